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

/// A trie over the texts of the special tokens.
pub(crate) struct SpecialTexts {
    /// The root is first; the children of a node are neighbours, in the order of their bytes.
    nodes: Vec<Node>,
    /// The byte that leads to each node.
    labels: Vec<u8>,
}

#[derive(Clone, Copy)]
struct Node {
    /// The token whose text ends here, or `NONE`.
    token: u32,
    first_child: u32,
    children: u16,
}

const NONE: u32 = u32::MAX;

impl SpecialTexts {
    pub(crate) fn new(vocab: &Vocab) -> Self {
        let mut sorted: Vec<u32> = (0..vocab.len() as u32)
            .filter(|&id| {
                // Duplicates are left out: the text belongs to the first.
                vocab.attr(id) & attr::SPECIAL != 0 && vocab.id_of(vocab.text(id).as_bytes()) == Some(id)
            })
            .collect();
        sorted.sort_unstable_by(|a, b| vocab.text(*a).cmp(vocab.text(*b)));
        let byte = |id: &u32, depth: usize| vocab.text(*id).as_bytes().get(depth).copied().unwrap_or(0);
        let empty = Node { token: NONE, first_child: 0, children: 0 };
        let mut trie = Self { nodes: vec![empty], labels: vec![0] };
        // The tokens below each node; they agree in as many bytes as the node is deep.
        let mut below = vec![(sorted.as_slice(), 0)];
        let mut next = 0;
        while let Some(&(mut group, depth)) = below.get(next) {
            let mut node = Node { first_child: trie.nodes.len() as u32, ..empty };
            if let Some((&id, rest)) = group.split_first()
                && vocab.text(id).len() == depth
            {
                node.token = id;
                group = rest;
            }
            for part in group.chunk_by(|a, b| byte(a, depth) == byte(b, depth)) {
                trie.nodes.push(empty);
                trie.labels.extend(part.first().map(|id| byte(id, depth)));
                below.push((part, depth + 1));
                node.children += 1;
            }
            if let Some(slot) = trie.nodes.get_mut(next) {
                *slot = node;
            }
            next += 1;
        }
        trie
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
        let mut node = *self.nodes.first()?;
        let mut best = None;
        for (depth, byte) in text.get(pos..)?.iter().take(limit).enumerate() {
            let start = node.first_child as usize;
            let labels = self.labels.get(start..start + usize::from(node.children)).unwrap_or_default();
            let Ok(child) = labels.binary_search(byte) else { break };
            let Some(&below) = self.nodes.get(start + child) else { break };
            node = below;
            if node.token != NONE && vocab.attr(node.token) & skip == 0 {
                best = Some((depth + 1, node.token));
            }
        }
        best
    }

    /// Cuts `text` into special tokens and the text between them.
    pub(crate) fn split(&self, vocab: &Vocab, text: &str, parse_special: bool) -> Vec<Fragment> {
        let skip = if parse_special { 0 } else { attr::CONTROL | attr::UNKNOWN };
        let bytes = text.as_bytes();
        let key = |(len, id): (usize, u32), pos: usize| (len, Reverse(id), Reverse(pos));
        // Taken from the end. Sorting once is cheaper than a heap of all: most are never queued again.
        let mut found: Vec<_> = (0..bytes.len())
            .filter_map(|pos| Some(key(self.longest_at(vocab, bytes, pos, bytes.len() - pos, skip)?, pos)))
            .collect();
        found.sort_unstable();
        let mut again = BinaryHeap::new();
        // Start of each taken range to its end and token.
        let mut taken: BTreeMap<usize, (usize, u32)> = BTreeMap::new();
        loop {
            let next = if again.peek() > found.last() { again.pop() } else { found.pop() };
            let Some((len, Reverse(id), Reverse(pos))) = next else { break };
            if taken.range(..=pos).next_back().is_some_and(|(_, (end, _))| *end > pos) {
                continue;
            }
            let room = taken.range(pos..).next().map_or(bytes.len(), |(start, _)| *start) - pos;
            if len > room {
                again.extend(self.longest_at(vocab, bytes, pos, room, skip).map(|shorter| key(shorter, pos)));
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
        self.nodes.capacity() * size_of::<Node>() + self.labels.capacity()
    }
}
