//! Byte-pair encoding by ranked merges.
//!
//! ```text
//! symbols = the word's characters, as ids, in a linked list
//! queue   = ranks of all neighbours that can merge
//! while the queue has a lowest (rank, leftmost) pair that still stands:
//!     merge it; queue its new pairs with both neighbours
//! ```
//!
//! That is O(n log n) for a word of n characters, however long.

use crate::error::TokenizerError;
use crate::table::{Merge, MergeTable};
use crate::vocab::Vocab;
use pannier_gguf::StrArray;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// No piece: a character that the vocabulary lacks.
const NONE: u32 = u32::MAX;
/// A symbol that became part of its left neighbour, and the end of the list.
const GONE: u32 = u32::MAX - 1;

/// Splits "left right" as merges are written. A piece may start with a space, so the first byte is never the border.
fn parts(merge: &str) -> Option<(&str, &str)> {
    let (at, _) = merge.char_indices().skip(1).find(|(_, c)| *c == ' ')?;
    Some((merge.get(..at)?, merge.get(at + 1..)?))
}

/// Reads `tokenizer.ggml.merges`.
///
/// A merge one of whose three pieces is not in the vocabulary could only produce text that has no id. It is left out;
/// the number of those is returned with the table.
pub(crate) fn read_merges(merges: &StrArray, vocab: &Vocab) -> Result<(MergeTable, usize), TokenizerError> {
    // Ranks and slots are `u32`, and two values are taken.
    const LIMIT: usize = (u32::MAX >> 2) as usize;
    if merges.len() > LIMIT {
        return Err(TokenizerError::TooManyMerges { merges: merges.len(), limit: LIMIT });
    }
    let mut out = Vec::with_capacity(merges.len());
    let mut text = Vec::new();
    for merge in merges.iter() {
        let Some((left, right)) = parts(merge) else { continue };
        text.clear();
        text.extend_from_slice(left.as_bytes());
        text.extend_from_slice(right.as_bytes());
        let ids = (vocab.id_of(left.as_bytes()), vocab.id_of(right.as_bytes()), vocab.id_of(&text));
        if let (Some(left), Some(right), Some(merged)) = ids {
            out.push(Merge { left, right, merged });
        }
    }
    let left_out = merges.len() - out.len();
    out.shrink_to_fit();
    Ok((MergeTable::new(out), left_out))
}

/// Buffers reused over the words of one text.
#[derive(Default)]
pub(crate) struct Merger {
    ids: Vec<u32>,
    prev: Vec<u32>,
    next: Vec<u32>,
    queue: BinaryHeap<Reverse<u64>>,
}

impl Merger {
    pub(crate) fn clear(&mut self) {
        self.ids.clear();
    }

    /// Adds the next character of the word.
    pub(crate) fn push(&mut self, id: Option<u32>) {
        self.ids.push(id.unwrap_or(NONE));
    }

    /// Merges the word and calls `emit` for each resulting piece with its id and the index of its first character.
    /// A character without a piece has no id.
    pub(crate) fn merge(&mut self, table: &MergeTable, mut emit: impl FnMut(Option<u32>, usize)) {
        let len = self.ids.len();
        self.prev.clear();
        self.prev.extend((0..len as u32).map(|i| i.wrapping_sub(1).min(GONE)));
        self.next.clear();
        self.next.extend((1..=len as u32).map(|i| if i as usize == len { GONE } else { i }));
        self.queue.clear();
        for left in 0..len.saturating_sub(1) as u32 {
            self.offer(table, left, left + 1);
        }
        while let Some(Reverse(key)) = self.queue.pop() {
            let (rank, left) = ((key >> 32) as u32, key as u32);
            let Some(merge) = table.get(rank) else { continue };
            let right = self.link(&self.next, left);
            // The pair may have changed since it was queued.
            if self.id(left) != merge.left || self.id(right) != merge.right {
                continue;
            }
            let after = self.link(&self.next, right);
            set(&mut self.ids, left, merge.merged);
            set(&mut self.ids, right, GONE);
            set(&mut self.next, left, after);
            set(&mut self.prev, after, left);
            let before = self.link(&self.prev, left);
            self.offer(table, before, left);
            self.offer(table, left, after);
        }
        for (i, &id) in self.ids.iter().enumerate() {
            match id {
                GONE => {}
                NONE => emit(None, i),
                id => emit(Some(id), i),
            }
        }
    }

    fn id(&self, symbol: u32) -> u32 {
        self.ids.get(symbol as usize).copied().unwrap_or(GONE)
    }

    fn link(&self, links: &[u32], symbol: u32) -> u32 {
        links.get(symbol as usize).copied().unwrap_or(GONE)
    }

    fn offer(&mut self, table: &MergeTable, left: u32, right: u32) {
        let (a, b) = (self.id(left), self.id(right));
        if a < GONE
            && b < GONE
            && let Some(rank) = table.rank(a, b)
        {
            self.queue.push(Reverse((u64::from(rank) << 32) | u64::from(left)));
        }
    }
}

fn set(list: &mut [u32], index: u32, value: u32) {
    if let Some(slot) = list.get_mut(index as usize) {
        *slot = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merges_are_cut_at_the_first_space_but_not_at_the_first_byte() {
        assert_eq!(parts("a b"), Some(("a", "b")));
        assert_eq!(parts("  b"), Some((" ", "b")));
        assert_eq!(parts("Ġ b c"), Some(("Ġ", "b c")));
        assert_eq!(parts(" b"), None);
        assert_eq!(parts(""), None);
    }

    #[test]
    fn equal_ranks_merge_from_the_left() {
        // 0 = a, 1 = aa
        let table = MergeTable::new(vec![Merge { left: 0, right: 0, merged: 1 }]);
        let mut merger = Merger::default();
        (0..5).for_each(|_| merger.push(Some(0)));
        let mut out = Vec::new();
        merger.merge(&table, |id, at| out.push((id, at)));
        assert_eq!(out, [(Some(1), 0), (Some(1), 2), (Some(0), 4)]);
    }

    #[test]
    fn characters_without_a_piece_stay_alone() {
        let table = MergeTable::new(vec![Merge { left: 0, right: 0, merged: 1 }]);
        let mut merger = Merger::default();
        for id in [Some(0), None, Some(0), Some(0)] {
            merger.push(id);
        }
        let mut out = Vec::new();
        merger.merge(&table, |id, at| out.push((id, at)));
        assert_eq!(out, [(Some(0), 0), (None, 1), (Some(1), 2)]);
    }
}
