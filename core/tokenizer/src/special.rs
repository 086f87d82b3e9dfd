//! Splitting special tokens out of text.
//!
//! The reference engine goes through the special tokens from the longest text to the shortest and takes each one's
//! occurrences, from the left, in what is still free. Gemma has 6 400 of them, some of which are runs of spaces, so
//! doing just that takes seconds for a long text. The same result:
//!
//! ```text
//! queue = for each position, the longest token that starts there
//! while the queue has a longest (then lowest id, then leftmost) one:
//!     if its first byte is taken: drop it
//!     if it runs into a taken range: queue the longest token at its position that ends before, if any
//!     else: take it
//! ```

use crate::vocab::{Vocab, attr};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::Range;

/// A part of the text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fragment {
    Text(Range<usize>),
    Token(u32),
}

pub(crate) struct SpecialTexts {
    /// Special tokens in the order of their texts: those with a common prefix are neighbours.
    sorted: Vec<u32>,
    /// Where in `sorted` the texts with each first byte are.
    first: Box<[Range<u32>; 256]>,
}

impl SpecialTexts {
    pub(crate) fn new(vocab: &Vocab) -> Self {
        let mut sorted: Vec<u32> = (0..vocab.len() as u32)
            .filter(|&id| {
                let text = vocab.text(id);
                // Duplicates are left out: the text belongs to the first.
                vocab.attr(id) & attr::SPECIAL != 0 && vocab.id_of(text.as_bytes()) == Some(id)
            })
            .collect();
        sorted.sort_unstable_by(|a, b| vocab.text(*a).cmp(vocab.text(*b)));
        let mut first = Box::new([const { 0..0 }; 256]);
        for (i, &id) in sorted.iter().enumerate() {
            if let Some(range) = vocab.text(id).bytes().next().and_then(|b| first.get_mut(usize::from(b))) {
                let start = if range.start == range.end { i as u32 } else { range.start };
                *range = start..i as u32 + 1;
            }
        }
        Self { sorted, first }
    }

    /// The longest token that starts at `pos`, takes at most `limit` bytes and has none of the bits of `skip`.
    fn longest_at(
        &self,
        vocab: &Vocab,
        text: &[u8],
        pos: usize,
        limit: usize,
        skip: u8,
    ) -> Option<(usize, u32)> {
        let range = self.first.get(usize::from(*text.get(pos)?))?;
        let mut group = self.sorted.get(range.start as usize..range.end as usize)?;
        let mut best = None;
        let mut depth = 1;
        // All of `group` agree with the text in `depth` bytes.
        while let Some(&id) = group.first() {
            if depth > limit {
                break;
            }
            if vocab.text(id).len() == depth {
                if vocab.attr(id) & skip == 0 {
                    best = Some((depth, id));
                }
                group = group.get(1..)?;
            }
            let Some(&byte) = text.get(pos + depth) else { break };
            let byte_of = |id: &u32| vocab.text(*id).as_bytes().get(depth).copied();
            let low = group.partition_point(|id| byte_of(id) < Some(byte));
            let high = group.partition_point(|id| byte_of(id) <= Some(byte));
            group = group.get(low..high)?;
            depth += 1;
        }
        best
    }

    /// Cuts `text` into special tokens and the text between them.
    pub(crate) fn split(&self, vocab: &Vocab, text: &str, parse_special: bool) -> Vec<Fragment> {
        let skip = if parse_special { 0 } else { attr::CONTROL | attr::UNKNOWN };
        let bytes = text.as_bytes();
        let mut queue: BinaryHeap<(usize, Reverse<u32>, Reverse<usize>)> = (0..bytes.len())
            .filter_map(|pos| {
                let (len, id) = self.longest_at(vocab, bytes, pos, bytes.len() - pos, skip)?;
                Some((len, Reverse(id), Reverse(pos)))
            })
            .collect();
        // Start of each taken range to its end and token.
        let mut taken: BTreeMap<usize, (usize, u32)> = BTreeMap::new();
        while let Some((len, Reverse(id), Reverse(pos))) = queue.pop() {
            if taken.range(..=pos).next_back().is_some_and(|(_, (end, _))| *end > pos) {
                continue;
            }
            let room = taken.range(pos..).next().map_or(bytes.len(), |(start, _)| *start) - pos;
            if len > room {
                if let Some((len, id)) = self.longest_at(vocab, bytes, pos, room, skip) {
                    queue.push((len, Reverse(id), Reverse(pos)));
                }
                continue;
            }
            let mut end = pos + len;
            if vocab.attr(id) & attr::RSTRIP != 0 {
                let behind = bytes.get(end..pos + room).unwrap_or_default();
                end += behind.iter().take_while(|b| matches!(b, b' ' | 0x09..=0x0D)).count();
            }
            taken.insert(pos, (end, id));
        }
        let mut out = Vec::with_capacity(2 * taken.len() + 1);
        let mut done = 0;
        for (start, (end, id)) in taken {
            if done < start {
                out.push(Fragment::Text(done..start));
            }
            out.push(Fragment::Token(id));
            done = end;
        }
        if done < text.len() {
            out.push(Fragment::Text(done..text.len()));
        }
        out
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.sorted.capacity() * size_of::<u32>() + size_of_val(&*self.first)
    }
}
