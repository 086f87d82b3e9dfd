//! Where sentences end, in text that comes in pieces.

/// Finds sentence borders in a stream: a terminal mark followed by white space, or a line break. The mark alone is not
/// enough (3.14, e.g. abbreviations inside of words), and most abbreviations are short, which `MIN_CHARS` sorts out.
#[derive(Debug, Clone, Default)]
pub struct SentenceSplitter {
    /// Since the last border.
    chars: usize,
    marked: bool,
    /// Letters of the word under way, and whether it begins with a capital.
    word: usize,
    capital: bool,
}

/// A shorter piece is no sentence: "Well. ", "1. ".
const MIN_CHARS: usize = 8;
/// A capital and at most this many letters before a full stop make a title: "Dr.", "St.", "J.".
const TITLE: usize = 3;

impl SentenceSplitter {
    /// At the start of a text.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes more text; gives the byte offset behind the last border in it, if there is one.
    pub fn push(&mut self, text: &str) -> Option<usize> {
        let mut border = None;
        for (at, c) in text.char_indices() {
            let wide = matches!(c, '。' | '！' | '？');
            let line = c == '\n';
            if ((self.marked && c.is_whitespace()) || wide || line) && self.chars >= MIN_CHARS {
                border = Some(at + c.len_utf8());
                self.chars = 0;
                self.marked = false;
                continue;
            }
            self.chars += usize::from(!c.is_whitespace());
            let title = c == '.' && self.capital && (1..=TITLE).contains(&self.word);
            // A closing quote or bracket does not undo the mark.
            let closing = matches!(c, '"' | '\'' | ')' | ']' | '”' | '’' | '»');
            self.marked =
                (matches!(c, '.' | '!' | '?' | '…' | ':' | ';') && !title) || (self.marked && closing);
            if c.is_alphabetic() {
                self.capital = if self.word == 0 { c.is_uppercase() } else { self.capital };
                self.word += 1;
            } else {
                self.word = 0;
            }
        }
        border
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(text: &str, step: usize) -> Vec<String> {
        let mut splitter = SentenceSplitter::new();
        let mut out = vec![String::new()];
        let chars: Vec<char> = text.chars().collect();
        for part in chars.chunks(step) {
            let part: String = part.iter().collect();
            match splitter.push(&part) {
                Some(at) => {
                    out.last_mut().unwrap().push_str(&part[..at]);
                    out.push(part[at..].to_owned());
                }
                None => out.last_mut().unwrap().push_str(&part),
            }
        }
        out
    }

    #[test]
    fn sentences_end_at_marks_with_space() {
        let text = "Pi is 3.14159 or so. \"Is it?\" Yes, Dr. Who said it!\nDone";
        assert_eq!(
            pieces(text, 1),
            ["Pi is 3.14159 or so. ", "\"Is it?\" Yes, Dr. Who said it!\n", "Done"]
                .map(String::from)
                .to_vec()
        );
        assert_eq!(pieces("你好，世界今天天气很好。再见", 1).len(), 2);
        assert_eq!(pieces("", 1), [""]);
    }

    #[test]
    fn a_large_piece_tells_its_last_border() {
        let mut splitter = SentenceSplitter::new();
        assert_eq!(splitter.push("First sentence. Second sentence. Thi"), Some(33));
    }
}
