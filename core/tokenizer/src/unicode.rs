//! Characters with their classes, as the pre-tokenizers see them.

use crate::unicode_table::RUNS;

/// A code point in the low 21 bits, its class bits above.
///
/// Pre-tokenizers ask for the class of each character several times, so it is looked up once; packing keeps a 1 MB
/// text at 4 MB of scratch.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Char(u32);

const CODE: u32 = (1 << 21) - 1;
const LETTER: u32 = 1 << 24;
const NUMBER: u32 = 1 << 25;
const MARK: u32 = 1 << 26;
const PUNCTUATION: u32 = 1 << 27;
const SYMBOL: u32 = 1 << 28;
const SPACE: u32 = 1 << 29;

impl Char {
    pub(crate) fn new(c: char) -> Self {
        let class = if c.is_ascii() { ASCII[c as usize] } else { class_of(c) };
        Self(c as u32 | class)
    }

    pub(crate) const fn code(self) -> u32 {
        self.0 & CODE
    }

    pub(crate) fn is(self, c: char) -> bool {
        self.code() == c as u32
    }

    /// `\p{L}`
    pub(crate) const fn is_letter(self) -> bool {
        self.0 & LETTER != 0
    }

    /// `\p{N}`
    pub(crate) const fn is_number(self) -> bool {
        self.0 & NUMBER != 0
    }

    /// `\p{M}`
    pub(crate) const fn is_mark(self) -> bool {
        self.0 & MARK != 0
    }

    /// `\p{P}`
    pub(crate) const fn is_punctuation(self) -> bool {
        self.0 & PUNCTUATION != 0
    }

    /// `\p{S}`
    pub(crate) const fn is_symbol(self) -> bool {
        self.0 & SYMBOL != 0
    }

    /// `\s`: the Unicode property `White_Space`.
    pub(crate) const fn is_space(self) -> bool {
        self.0 & SPACE != 0
    }

    /// `[\r\n]`
    pub(crate) fn is_newline(self) -> bool {
        self.is('\r') || self.is('\n')
    }

    pub(crate) const fn is_ascii_lower(self) -> bool {
        matches!(self.code(), 0x61..=0x7A)
    }

    pub(crate) const fn is_ascii_upper(self) -> bool {
        matches!(self.code(), 0x41..=0x5A)
    }

    pub(crate) const fn is_ascii_letter(self) -> bool {
        self.is_ascii_lower() || self.is_ascii_upper()
    }

    pub(crate) const fn is_ascii_digit(self) -> bool {
        matches!(self.code(), 0x30..=0x39)
    }

    /// The lower-case form of an ASCII letter, any other character as it is.
    pub(crate) const fn ascii_lower(self) -> u32 {
        if self.is_ascii_upper() { self.code() + 32 } else { self.code() }
    }

    /// Bytes this character takes in UTF-8.
    pub(crate) const fn len_utf8(self) -> usize {
        match self.code() {
            0..=0x7F => 1,
            0x80..=0x7FF => 2,
            0x800..=0xFFFF => 3,
            _ => 4,
        }
    }
}

const ASCII: [u32; 128] = {
    let mut table = [0; 128];
    let mut i = 0;
    while i < 128 {
        let b = i as u8;
        table[i] = if b.is_ascii_alphabetic() {
            LETTER
        } else if b.is_ascii_digit() {
            NUMBER
        } else if matches!(b, b' ' | 0x09..=0x0D) {
            SPACE
        } else if matches!(b, b'$' | b'+' | b'<' | b'=' | b'>' | b'^' | b'`' | b'|' | b'~') {
            SYMBOL
        } else if b.is_ascii_punctuation() {
            PUNCTUATION
        } else {
            0
        };
        i += 1;
    }
    table
};

fn class_of(c: char) -> u32 {
    if c.is_whitespace() {
        return SPACE;
    }
    let behind = RUNS.partition_point(|run| run >> 3 <= c as u32);
    match behind.checked_sub(1).and_then(|i| RUNS.get(i)).map_or(0, |run| run & 7) {
        1 => LETTER,
        2 => NUMBER,
        3 => MARK,
        4 => PUNCTUATION,
        5 => SYMBOL,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ascii_classes_agree_with_the_unicode_table() {
        for b in 0u8..128 {
            let c = b as char;
            let expected = if c.is_whitespace() { SPACE } else { class_of(c) };
            assert_eq!(ASCII[b as usize], expected, "{c:?}");
        }
    }

    #[test]
    fn runs_are_sorted_and_change_the_class() {
        assert!(RUNS.windows(2).all(|w| w[0] >> 3 < w[1] >> 3 && w[0] & 7 != w[1] & 7));
        assert!(RUNS.iter().all(|run| run >> 3 <= 0x10FFFF && run & 7 <= 5));
    }

    #[test]
    fn classes_are_those_of_unicode() {
        for c in "aZéßµªʰǅЖשع한中々あァⅭ".chars() {
            let letter = c != 'Ⅽ';
            assert_eq!(Char::new(c).is_letter(), letter, "{c}");
            assert_eq!(Char::new(c).is_number(), !letter, "{c}");
        }
        assert!("0٣½²㈠१𝟙".chars().all(|c| Char::new(c).is_number()));
        assert!("\u{301}\u{20dd}ी".chars().all(|c| Char::new(c).is_mark()));
        assert!("!«。…—_".chars().all(|c| Char::new(c).is_punctuation()));
        assert!("+€→😀`´".chars().all(|c| Char::new(c).is_symbol()));
        assert!(" \u{a0}\u{3000}\u{85}".chars().all(|c| Char::new(c).is_space()));
        // Format characters, private use, and what was assigned after 15.1.
        assert!("\u{200d}\u{e000}\u{378}\u{1fae9}".chars().all(|c| Char::new(c).code() == Char::new(c).0));
    }

    #[test]
    fn lengths_agree_with_std() {
        for c in
            ['\0', 'a', '\u{7f}', '\u{80}', 'é', '\u{7ff}', '\u{800}', '中', '\u{ffff}', '😀', '\u{10ffff}']
        {
            assert_eq!(Char::new(c).len_utf8(), c.len_utf8());
            assert_eq!(Char::new(c).code(), c as u32);
        }
    }
}
