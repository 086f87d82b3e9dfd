//! Pre-tokenizers: cutting text into the words inside which byte-pair merges may happen.
//!
//! Each pre-tokenizer is published as a list of regular expressions. They are applied one after the other: an
//! expression cuts every segment left by the one before into its matches and the gaps between them. Here each
//! expression is a small scanner instead of a regex. That keeps them linear (the `\s+(?!\S)` and
//! `U*W+|U+W*` forms backtrack) and lets them share one lookup of each character's class.
//!
//! ```text
//! segments = [whole text]
//! for stage in stages:
//!     segments = flat_map(segments, s -> gaps and matches of stage in s)
//! ```

mod names;
mod rules;

pub(crate) use names::{PreTokenizer, known_names, lookup};

use crate::unicode::Char;
use rules::{CasedRule, Scan, WordRule};

/// One regular expression of a pre-tokenizer.
#[derive(Debug)]
pub(crate) enum Stage {
    /// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
    Gpt2,
    /// The llama-3 family of expressions.
    Words(WordRule),
    /// The o200k family of expressions, which start words at capital letters.
    Cased(CasedRule),
    /// DeepSeek-V3's last expression.
    DeepSeekWords,
    /// `C{1,max}` for a class of characters.
    Run(fn(Char) -> bool, usize),
    /// `\s?C+`
    SpacedRun(fn(Char) -> bool),
    /// ` ?C+`
    BlankRun(fn(Char) -> bool),
    /// `[0-9][0-9][0-9]`
    DigitTriples,
    /// Digits in threes from the right: `\d{1,3}(?=(?:\d{3})*\b)`
    DigitsFromRight,
    /// `\s+$`
    TrailingSpace,
    /// `[^\n]+|[\n]+`
    Lines,
}

impl Stage {
    fn apply(&self, chars: &[Char], ends: &[u32], out: &mut Vec<u32>) {
        match self {
            Self::Gpt2 => each_match(chars, ends, out, rules::gpt2),
            Self::Words(rule) => each_match(chars, ends, out, |s, p| rule.scan(s, p)),
            Self::Cased(rule) => each_match(chars, ends, out, |s, p| rule.scan(s, p)),
            Self::DeepSeekWords => each_match(chars, ends, out, rules::deepseek_words),
            Self::Run(class, max) => each_match(chars, ends, out, |s, p| rules::run(s, p, class, *max)),
            Self::SpacedRun(class) => {
                each_match(chars, ends, out, |s, p| rules::prefixed_run(s, p, Char::is_space, class))
            }
            Self::BlankRun(class) => {
                each_match(chars, ends, out, |s, p| rules::prefixed_run(s, p, |c| c.is(' '), class))
            }
            Self::DigitTriples => each_match(chars, ends, out, rules::digit_triple),
            Self::DigitsFromRight => each_segment(chars, ends, out, rules::digits_from_right),
            Self::TrailingSpace => each_segment(chars, ends, out, rules::trailing_space),
            Self::Lines => each_match(chars, ends, out, rules::line),
        }
    }
}

/// Cuts each segment into the matches of `scan` and the gaps between them.
fn each_match(chars: &[Char], ends: &[u32], out: &mut Vec<u32>, scan: impl Fn(&[Char], usize) -> Scan) {
    each_segment(chars, ends, out, |segment, cut| {
        let (mut pos, mut gap) = (0, 0);
        while pos < segment.len() {
            match scan(segment, pos) {
                Some(end) if end > pos => {
                    if gap < pos {
                        cut(pos);
                    }
                    cut(end);
                    (pos, gap) = (end, end);
                }
                _ => pos += 1,
            }
        }
        if gap < segment.len() {
            cut(segment.len());
        }
    });
}

/// Runs `split` on each segment; it reports the end of each part, the last of which is the segment's length.
fn each_segment(
    chars: &[Char],
    ends: &[u32],
    out: &mut Vec<u32>,
    split: impl Fn(&[Char], &mut dyn FnMut(usize)),
) {
    let mut start = 0usize;
    for &end in ends {
        let end = end as usize;
        if let Some(segment) = chars.get(start..end) {
            split(segment, &mut |part| out.push((start + part) as u32));
        }
        start = end;
    }
}

/// Buffers reused over the fragments of one text.
#[derive(Default)]
pub(crate) struct Splitter {
    chars: Vec<Char>,
    ends: Vec<u32>,
    next: Vec<u32>,
}

impl Splitter {
    /// Cuts `text` into words and calls `word` with each, in order.
    pub(crate) fn split<'t>(&mut self, stages: &[Stage], text: &'t str, mut word: impl FnMut(&'t str)) {
        self.chars.clear();
        self.chars.extend(text.chars().map(Char::new));
        self.ends.clear();
        self.ends.push(self.chars.len() as u32);
        for stage in stages {
            self.next.clear();
            stage.apply(&self.chars, &self.ends, &mut self.next);
            std::mem::swap(&mut self.ends, &mut self.next);
        }
        let (mut from_char, mut from_byte) = (0usize, 0usize);
        for &end in &self.ends {
            let end = end as usize;
            let part = self.chars.get(from_char..end).unwrap_or_default();
            let to_byte = from_byte + part.iter().map(|c| c.len_utf8()).sum::<usize>();
            if let Some(part) = text.get(from_byte..to_byte) {
                word(part);
            }
            (from_char, from_byte) = (end, to_byte);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split<'t>(name: &str, text: &'t str) -> Vec<&'t str> {
        let mut out = Vec::new();
        Splitter::default().split(lookup(name).unwrap().stages, text, |w| out.push(w));
        out
    }

    #[test]
    fn gpt2_keeps_number_runs_and_lower_case_contractions() {
        assert_eq!(
            split("gpt-2", "Don't  DON'T 1234 x\n\n y "),
            ["Don", "'t", " ", " DON", "'", "T", " 1234", " x", "\n\n", " y", " "]
        );
    }

    #[test]
    fn llama3_takes_three_digits_and_any_case() {
        assert_eq!(
            split("llama-bpe", "DON'T 12345 (x)\r\n  a  \n b"),
            ["DON", "'T", " ", "123", "45", " (", "x", ")\r\n", " ", " a", "  \n", " b"]
        );
    }

    #[test]
    fn qwen2_takes_single_digits() {
        assert_eq!(split("qwen2", "a12 b"), ["a", "1", "2", " b"]);
    }

    #[test]
    fn smollm_isolates_digits_before_words() {
        assert_eq!(split("smollm", "x 12a"), ["x", " ", "1", "2", "a"]);
    }

    #[test]
    fn gpt4o_starts_words_at_capitals_and_keeps_contractions() {
        assert_eq!(split("gpt-4o", "camelCaseHTTPServer isn't"), ["camel", "Case", "HTTPServer", " isn't"]);
        assert_eq!(split("tekken", "isn't 12"), ["isn", "'t", " ", "1", "2"]);
    }

    #[test]
    fn deepseek_llm_applies_every_stage_to_every_segment() {
        // The punctuation class holds ASCII letters, so a mixed word is cut at its non-ASCII letters.
        assert_eq!(split("deepseek-llm", "Helloé 12\n"), ["Hello", "é", " ", "12", "\n"]);
    }

    #[test]
    fn default_cuts_digits_in_threes_from_the_left() {
        assert_eq!(split("default", "a 12345"), ["a", " ", "123", "45"]);
    }

    #[test]
    fn every_pre_tokenizer_loses_nothing() {
        let text = "  Hé's 12345٣٤ 中文かな가\r\n\n\t… \u{301}x\u{200d}👩‍👩 \u{3000}`~$ <|a|> \u{85}\u{0} AÉB ";
        for name in known_names() {
            assert_eq!(split(name, text).concat(), text, "{name}");
            assert!(split(name, "").concat().is_empty(), "{name}");
        }
    }
}
