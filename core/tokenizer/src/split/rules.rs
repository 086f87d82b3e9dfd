//! The scanners behind the pre-tokenizers' regular expressions.
//!
//! A scanner gets a segment and a position and gives the end of the match that starts there, if there is one.

use crate::unicode::Char;

/// End of a match.
pub(crate) type Scan = Option<usize>;

fn at(s: &[Char], pos: usize) -> Option<Char> {
    s.get(pos).copied()
}

fn holds(s: &[Char], pos: usize, class: impl Fn(Char) -> bool) -> bool {
    at(s, pos).is_some_and(class)
}

/// The end of the longest run of `class` from `pos`.
fn run_end(s: &[Char], pos: usize, class: impl Fn(Char) -> bool) -> usize {
    s.get(pos..).map_or(pos, |rest| pos + rest.iter().take_while(|c| class(**c)).count())
}

/// `C{1,max}`
pub(crate) fn run(s: &[Char], pos: usize, class: impl Fn(Char) -> bool, max: usize) -> Scan {
    let window = s.get(..pos.saturating_add(max).min(s.len())).unwrap_or(s);
    let end = run_end(window, pos, class);
    (end > pos).then_some(end)
}

/// `P?C+`, for classes that have no character in common.
pub(crate) fn prefixed_run(
    s: &[Char],
    pos: usize,
    prefix: impl Fn(Char) -> bool,
    class: impl Fn(Char) -> bool,
) -> Scan {
    let start = if holds(s, pos, prefix) && holds(s, pos + 1, &class) { pos + 1 } else { pos };
    run(s, start, class, usize::MAX)
}

/// `\s+(?!\S)|\s+`: a run of white space leaves its last character to the word that follows.
fn space(s: &[Char], pos: usize) -> Scan {
    let end = run_end(s, pos, Char::is_space);
    match end - pos {
        0 => None,
        1 => Some(end),
        _ if end == s.len() => Some(end),
        _ => Some(end - 1),
    }
}

/// `\s*[\r\n]+|\s+(?!\S)|\s+`: a run of white space ends behind its last line break.
fn space_or_newlines(s: &[Char], pos: usize) -> Scan {
    let end = run_end(s, pos, Char::is_space);
    let last = s.get(pos..end)?.iter().rposition(|c| c.is_newline());
    last.map(|i| pos + i + 1).or_else(|| space(s, pos))
}

/// `'s|'t|'re|'ve|'m|'ll|'d`, where `fold` gives the code point to compare.
fn contraction(s: &[Char], pos: usize, fold: impl Fn(Char) -> u32) -> Scan {
    if !holds(s, pos, |c| c.is('\'')) {
        return None;
    }
    let letter = |i| at(s, i).map(&fold).and_then(char::from_u32);
    match (letter(pos + 1)?, letter(pos + 2)) {
        ('s' | 't' | 'm' | 'd', _) => Some(pos + 2),
        ('r' | 'v', Some('e')) | ('l', Some('l')) => Some(pos + 3),
        _ => None,
    }
}

/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
pub(crate) fn gpt2(s: &[Char], pos: usize) -> Scan {
    let blank = |c: Char| c.is(' ');
    contraction(s, pos, Char::code)
        .or_else(|| prefixed_run(s, pos, blank, Char::is_letter))
        .or_else(|| prefixed_run(s, pos, blank, Char::is_number))
        .or_else(|| prefixed_run(s, pos, blank, |c| !(c.is_space() || c.is_letter() || c.is_number())))
        .or_else(|| space(s, pos))
}

/// What may follow a run of punctuation.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Tail {
    /// Nothing.
    None,
    /// `[\r\n]*`
    Newlines,
    /// `[\r\n/]*`
    NewlinesOrSlash,
}

impl Tail {
    fn end(self, s: &[Char], pos: usize) -> usize {
        match self {
            Self::None => pos,
            Self::Newlines => run_end(s, pos, Char::is_newline),
            Self::NewlinesOrSlash => run_end(s, pos, |c| c.is_newline() || c.is('/')),
        }
    }
}

/// The llama-3 family; with `W` for letters (and marks, if `marks`):
/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?W+|\p{N}{1,digits}| ?[^\s W \p{N}]+tail|\s*[\r\n]+|\s+(?!\S)|\s+`
#[derive(Debug, Clone, Copy)]
pub(crate) struct WordRule {
    pub(crate) contractions: bool,
    pub(crate) marks: bool,
    pub(crate) digits: usize,
    pub(crate) tail: Tail,
}

impl WordRule {
    pub(crate) fn scan(&self, s: &[Char], pos: usize) -> Scan {
        let first = at(s, pos)?;
        if self.contractions
            && let Some(end) = contraction(s, pos, Char::ascii_lower)
        {
            return Some(end);
        }
        let word = |c: Char| c.is_letter() || (self.marks && c.is_mark());
        if first.is_number() {
            return run(s, pos, Char::is_number, self.digits);
        }
        if !first.is_newline() && (word(first) || holds(s, pos + 1, word)) {
            return Some(run_end(s, pos + 1, word));
        }
        prefixed_run(s, pos, |c| c.is(' '), |c| !(c.is_space() || word(c) || c.is_number()))
            .map(|end| self.tail.end(s, end))
            .or_else(|| space_or_newlines(s, pos))
    }
}

/// The o200k family; with `U` for letters but a-z and `W` for letters but A-Z:
/// `[^\r\n\p{L}\p{N}]?U*W+c?|[^\r\n\p{L}\p{N}]?U+W*c?|\p{N}{1,digits}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
///
/// The published expressions distinguish case for all scripts (`\p{Lu}`, `\p{Ll}`). GGUF engines, and so the
/// reference ids, know it for ASCII only: every other letter is in both classes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CasedRule {
    pub(crate) contractions: bool,
    /// Marks count as letters of both cases.
    pub(crate) marks: bool,
    /// ASCII letters have a case; otherwise every letter is in both classes.
    pub(crate) cased: bool,
    pub(crate) digits: usize,
}

impl CasedRule {
    pub(crate) fn scan(&self, s: &[Char], pos: usize) -> Scan {
        let first = at(s, pos)?;
        if let Some(end) = self.word(s, pos, first) {
            let suffix = if self.contractions { contraction(s, end, Char::ascii_lower) } else { None };
            return suffix.or(Some(end));
        }
        if first.is_number() {
            return run(s, pos, Char::is_number, self.digits);
        }
        prefixed_run(s, pos, |c| c.is(' '), |c| !(c.is_space() || c.is_letter() || c.is_number()))
            .map(|end| Tail::NewlinesOrSlash.end(s, end))
            .or_else(|| space_or_newlines(s, pos))
    }

    fn word(&self, s: &[Char], pos: usize, first: Char) -> Scan {
        if first.is_newline() || first.is_number() {
            return None;
        }
        if first.is_letter() {
            return self.lower_end(s, pos).or_else(|| self.upper_end(s, pos));
        }
        self.lower_end(s, pos + 1)
            .or_else(|| self.lower_end(s, pos))
            .or_else(|| self.upper_end(s, pos + 1))
            .or_else(|| self.upper_end(s, pos))
    }

    fn letter(&self, c: Char) -> bool {
        c.is_letter() || (self.marks && c.is_mark())
    }

    fn upper(&self, c: Char) -> bool {
        self.letter(c) && !(self.cased && c.is_ascii_lower())
    }

    fn lower(&self, c: Char) -> bool {
        self.letter(c) && !(self.cased && c.is_ascii_upper())
    }

    /// `U*W+`. If nothing of `W` follows the run of `U`, the run gives back up to its last character that is in both.
    fn lower_end(&self, s: &[Char], pos: usize) -> Scan {
        let upper = run_end(s, pos, |c| self.upper(c));
        let end = run_end(s, upper, |c| self.lower(c));
        if end > upper {
            return Some(end);
        }
        s.get(pos..upper)?.iter().rposition(|c| self.lower(*c)).map(|i| pos + i + 1)
    }

    /// `U+W*`
    fn upper_end(&self, s: &[Char], pos: usize) -> Scan {
        let upper = run(s, pos, |c| self.upper(c), usize::MAX)?;
        Some(run_end(s, upper, |c| self.lower(c)))
    }
}

/// `[ASCII punctuation][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
pub(crate) fn deepseek_words(s: &[Char], pos: usize) -> Scan {
    let first = at(s, pos)?;
    let sign = |c: Char| c.is_punctuation() || c.is_symbol();
    let word = |c: Char| c.is_letter() || c.is_mark();
    if sign(first) && first.code() < 0x80 && holds(s, pos + 1, Char::is_ascii_letter) {
        return Some(run_end(s, pos + 1, Char::is_ascii_letter));
    }
    if word(first) || (!first.is_newline() && !sign(first) && holds(s, pos + 1, word)) {
        return Some(run_end(s, pos + 1, word));
    }
    prefixed_run(s, pos, |c| c.is(' '), sign)
        .map(|end| Tail::Newlines.end(s, end))
        .or_else(|| space_or_newlines(s, pos))
}

/// `[0-9][0-9][0-9]`
pub(crate) fn digit_triple(s: &[Char], pos: usize) -> Scan {
    let three = s.get(pos..pos.checked_add(3)?)?;
    three.iter().all(|c| c.is_ascii_digit()).then_some(pos + 3)
}

/// `[^\n]+|[\n]+`
pub(crate) fn line(s: &[Char], pos: usize) -> Scan {
    let breaks = at(s, pos)?.is('\n');
    Some(run_end(s, pos, |c| c.is('\n') == breaks))
}

/// `\s+$`, from the end, so that long runs of white space elsewhere are not rescanned from each of their positions.
pub(crate) fn trailing_space(s: &[Char], cut: &mut dyn FnMut(usize)) {
    let body = s.len() - s.iter().rev().take_while(|c| c.is_space()).count();
    if body > 0 {
        cut(body);
    }
    if body < s.len() {
        cut(s.len());
    }
}

/// Numbers in threes from the right: `1234567` is `1`, `234`, `567`.
///
/// What is before a number stays in one piece with its first group if that group is whole, as in the reference.
pub(crate) fn digits_from_right(s: &[Char], cut: &mut dyn FnMut(usize)) {
    let (mut pos, mut done) = (0, 0);
    while pos < s.len() {
        let end = run_end(s, pos, Char::is_number);
        if end == pos {
            pos += 1;
            continue;
        }
        let lead = (end - pos) % 3;
        let mut next = pos + if lead == 0 { 3 } else { lead };
        while next <= end {
            cut(next);
            done = next;
            next += 3;
        }
        pos = end;
    }
    if done < s.len() {
        cut(s.len());
    }
}
