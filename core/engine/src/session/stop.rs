//! Finding stop strings in a stream of text, without letting their beginnings out.
//!
//! Aho and Corasick's automaton ("Efficient string matching", 1975) over the bytes of the stop strings. Its state is the
//! longest end of the text that could still become a stop string; exactly that much is held back. What is found does not
//! depend on how the text is cut into parts: the first byte at which any stop string ends decides, and the longest that ends
//! there wins.

use std::collections::VecDeque;

use super::SessionError;

/// The most stop strings of one generation.
pub const MAX_STOP_STRINGS: usize = 64;
/// The most bytes of one stop string.
pub const MAX_STOP_BYTES: usize = 1024;

/// A compiled set of stop strings and the text that is held back.
#[derive(Debug)]
pub(super) struct StopMatcher {
    nodes: Vec<Node>,
    /// Bytes of each stop string.
    lengths: Vec<usize>,
    state: usize,
    held: String,
}

#[derive(Debug, Default)]
struct Node {
    /// Sorted by byte: few nodes have more than one child.
    children: Vec<(u8, usize)>,
    /// The longest proper end of this node's text that is a node too.
    fail: usize,
    /// Length of this node's text.
    depth: usize,
    /// The longest stop string that ends here: its index.
    found: Option<usize>,
}

/// A stop string was found; what came before it has been given out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    /// Which one.
    pub index: usize,
}

impl StopMatcher {
    /// Compiles the stop strings.
    pub fn new(strings: &[String]) -> Result<Self, SessionError> {
        let refuse = |value: String, range| SessionError::InvalidOption { option: "stop", value, range };
        if strings.len() > MAX_STOP_STRINGS {
            return Err(refuse(format!("{} strings", strings.len()), "at most 64 strings"));
        }
        let mut matcher = Self {
            nodes: vec![Node::default()],
            lengths: strings.iter().map(String::len).collect(),
            state: 0,
            held: String::new(),
        };
        for (index, s) in strings.iter().enumerate() {
            if s.is_empty() || s.len() > MAX_STOP_BYTES {
                return Err(refuse(format!("a string of {} bytes", s.len()), "strings of 1 to 1024 bytes"));
            }
            matcher.insert(s, index);
        }
        matcher.link();
        Ok(matcher)
    }

    fn insert(&mut self, s: &str, index: usize) {
        let mut at = 0;
        for (i, byte) in s.bytes().enumerate() {
            let new = self.nodes.len();
            let children = &mut self.nodes[at].children;
            at = match children.binary_search_by_key(&byte, |c| c.0) {
                Ok(i) => children[i].1,
                Err(slot) => {
                    children.insert(slot, (byte, new));
                    self.nodes.push(Node { depth: i + 1, ..Node::default() });
                    new
                }
            };
        }
        self.nodes[at].found.get_or_insert(index);
    }

    /// Sets the fail links, shallow nodes first: a link always leads to a shallower node.
    fn link(&mut self) {
        let mut queue: VecDeque<usize> = self.nodes[0].children.iter().map(|c| c.1).collect();
        while let Some(at) = queue.pop_front() {
            for (byte, child) in self.nodes[at].children.clone() {
                self.nodes[child].fail = self.next(self.nodes[at].fail, byte);
                queue.push_back(child);
            }
            // A node's own string is longer than any that ends in it.
            if self.nodes[at].found.is_none() {
                self.nodes[at].found = self.nodes[self.nodes[at].fail].found;
            }
        }
    }

    fn next(&self, mut at: usize, byte: u8) -> usize {
        loop {
            let node = &self.nodes[at];
            if let Ok(i) = node.children.binary_search_by_key(&byte, |c| c.0) {
                return node.children[i].1;
            }
            if at == 0 {
                return 0;
            }
            at = node.fail;
        }
    }

    /// Takes more text. What can be shown now is appended to `out`. After a find, the rest of the text is dropped.
    pub fn push(&mut self, text: &str, out: &mut String) -> Option<Found> {
        if self.nodes.len() == 1 {
            out.push_str(text);
            return None;
        }
        let before = self.held.len();
        self.held.push_str(text);
        for (i, byte) in text.bytes().enumerate() {
            self.state = self.next(self.state, byte);
            if let Some(index) = self.nodes[self.state].found {
                let end = before + i + 1;
                // The stop string began in what was held back or in this text: both start and end are whole characters.
                let start = end.saturating_sub(self.lengths.get(index).copied().unwrap_or(0));
                out.push_str(self.held.get(..start).unwrap_or_default());
                self.held.clear();
                self.state = 0;
                return Some(Found { index });
            }
        }
        // A possible beginning starts with a stop string's first byte, so the cut is between characters.
        let safe = self.held.len().saturating_sub(self.nodes[self.state].depth);
        out.push_str(self.held.get(..safe).unwrap_or_default());
        self.held.drain(..safe);
        None
    }

    /// The text ends: what was held back is no stop string after all.
    pub fn finish(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
        self.state = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(strings: &[String], parts: &[&str]) -> (String, Option<usize>) {
        let mut matcher = StopMatcher::new(strings).unwrap();
        let mut out = String::new();
        for part in parts {
            if let Some(found) = matcher.push(part, &mut out) {
                return (out, Some(found.index));
            }
            // Never more than could be the beginning of a stop string.
            assert!(strings.iter().any(|s| s.starts_with(&matcher.held)) || matcher.held.is_empty());
        }
        matcher.finish(&mut out);
        (out, None)
    }

    /// Character by character, looking at all of the text each time.
    fn naive(strings: &[String], text: &str) -> (String, Option<usize>) {
        for end in (0..=text.len()).filter(|e| text.is_char_boundary(*e)) {
            let ends: Vec<usize> =
                (0..strings.len()).filter(|i| text[..end].ends_with(strings[*i].as_str())).collect();
            // The longest; the first among equal ones.
            if let Some(&i) = ends.iter().rev().max_by_key(|i| strings[**i].len()) {
                return (text[..end - strings[i].len()].to_owned(), Some(i));
            }
        }
        (text.to_owned(), None)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn any_split_gives_what_the_naive_search_gives(
            strings in prop::collection::vec("[abé🙂]{1,5}", 0..5), text in "[abé🙂]{0,24}",
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        ) {
            let borders: Vec<usize> = text.char_indices().map(|c| c.0).chain([text.len()]).collect();
            let mut at: Vec<usize> = cuts.iter().map(|c| borders[c.index(borders.len())]).chain([0, text.len()]).collect();
            at.sort_unstable();
            let parts: Vec<&str> = at.windows(2).map(|w| &text[w[0]..w[1]]).collect();
            prop_assert_eq!(run(&strings, &parts), naive(&strings, &text));
        }
    }

    #[test]
    fn every_split_of_one_text() {
        let strings = vec!["</s>".to_owned(), "###".to_owned()];
        for text in ["a<</s>b", "a##x###y", "a</s", "a</s<##", "</s>", "🙂</s>🙂"] {
            let chars: Vec<String> = text.chars().map(String::from).collect();
            for mask in 0..1u32 << (chars.len() - 1) {
                let mut parts = vec![String::new()];
                for (i, c) in chars.iter().enumerate() {
                    if i > 0 && mask >> (i - 1) & 1 == 1 {
                        parts.push(String::new());
                    }
                    parts.last_mut().unwrap().push_str(c);
                }
                let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
                assert_eq!(run(&strings, &parts), naive(&strings, text), "{parts:?}");
            }
        }
    }

    #[test]
    fn only_a_possible_beginning_is_held_back() {
        let strings = vec!["<end>".to_owned()];
        let mut matcher = StopMatcher::new(&strings).unwrap();
        let mut out = String::new();
        assert_eq!(matcher.push("abc<en", &mut out), None);
        assert_eq!(out, "abc");
        assert_eq!(matcher.push("x", &mut out), None);
        assert_eq!(out, "abc<enx");
    }

    #[test]
    fn limits_are_typed_errors() {
        let refused =
            |s: Vec<String>| matches!(StopMatcher::new(&s), Err(SessionError::InvalidOption { .. }));
        assert!(refused(vec![String::new()]));
        assert!(refused(vec!["x".repeat(1025)]));
        assert!(refused(vec!["x".to_owned(); 65]));
        assert!(!refused(vec!["x".repeat(1024); 64]));
    }
}
