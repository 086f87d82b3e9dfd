//! SentencePiece-style byte-pair encoding: neighbours merge if their text is a piece, best score first.
//!
//! Same linked list and queue as in `bpe`, but merges are found by looking up the joined text, and what is no piece at
//! the end is spelled in `<0xNN>` byte pieces. (Scores as of the SentencePiece BPE trainer: Kudo and Richardson 2018.)

use crate::vocab::Vocab;
use std::collections::BinaryHeap;

#[derive(Clone, Copy)]
struct Symbol {
    start: u32,
    /// 0 when the symbol became part of its left neighbour.
    len: u32,
    prev: u32,
    next: u32,
}

const END: u32 = u32::MAX;

/// Order: score, then leftmost. `len` of the joined text tells whether the pair still stands.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    /// Order-preserving bits of the score, then the complement of the left index.
    key: u64,
    right: u32,
    len: u32,
}

/// Maps a float to an integer of the same order; both zeros to one value.
fn order(score: f32) -> u32 {
    let bits = (score + 0.0).to_bits();
    if bits >> 31 == 0 { bits | (1 << 31) } else { !bits }
}

/// The pairs of neighbouring characters that occur in pieces, as a Bloom filter of one hash.
///
/// No merge crosses a border between two characters that are neighbours in no piece. Cut there, most text falls into
/// words, whose symbols and queue stay in the first-level cache: twice as fast for prose.
pub(crate) struct NeighbourFilter {
    bits: Vec<u64>,
}

impl NeighbourFilter {
    /// Gemma's 262 144 pieces have some hundred thousand pairs: a few percent of false hits, which only cost time.
    const BITS: u32 = 21;

    pub(crate) fn new(vocab: &Vocab) -> Self {
        let mut filter = Self { bits: vec![0; 1 << (Self::BITS - 6)] };
        for id in 0..vocab.len() as u32 {
            let text = vocab.text(id);
            for (left, right) in text.chars().zip(text.chars().skip(1)) {
                let (word, bit) = Self::place(left, right);
                if let Some(word) = filter.bits.get_mut(word) {
                    *word |= bit;
                }
            }
        }
        filter
    }

    fn may_join(&self, left: char, right: char) -> bool {
        let (word, bit) = Self::place(left, right);
        self.bits.get(word).is_some_and(|word| word & bit != 0)
    }

    fn place(left: char, right: char) -> (usize, u64) {
        let key = (u64::from(u32::from(left)) << 32) | u64::from(u32::from(right));
        let hash = key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - Self::BITS);
        ((hash >> 6) as usize, 1 << (hash & 63))
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.bits.capacity() * size_of::<u64>()
    }
}

/// Buffers reused over the fragments of one text.
#[derive(Default)]
pub(crate) struct ScoreMerger {
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Candidate>,
}

impl ScoreMerger {
    /// Encodes text whose spaces are already written as `▁`, at most `u32::MAX - 1` bytes.
    pub(crate) fn encode(
        &mut self,
        vocab: &Vocab,
        neighbours: &NeighbourFilter,
        text: &str,
        out: &mut Vec<u32>,
    ) {
        let mut start = 0;
        let mut before = None;
        for (at, c) in text.char_indices() {
            if before.is_some_and(|before| !neighbours.may_join(before, c)) {
                self.encode_joined(vocab, text.get(start..at).unwrap_or_default(), out);
                start = at;
            }
            before = Some(c);
        }
        self.encode_joined(vocab, text.get(start..).unwrap_or_default(), out);
    }

    fn encode_joined(&mut self, vocab: &Vocab, text: &str, out: &mut Vec<u32>) {
        self.symbols.clear();
        self.queue.clear();
        for (i, (start, c)) in text.char_indices().enumerate() {
            let i = i as u32;
            self.symbols.push(Symbol {
                start: start as u32,
                len: c.len_utf8() as u32,
                prev: i.checked_sub(1).unwrap_or(END),
                next: i + 1,
            });
        }
        if let Some(last) = self.symbols.last_mut() {
            last.next = END;
        }
        let text = text.as_bytes();
        for right in 1..self.symbols.len() as u32 {
            self.offer(vocab, text, right - 1, right);
        }
        while let Some(best) = self.queue.pop() {
            let left = !(best.key as u32);
            let (Some(a), Some(b)) = (self.symbol(left), self.symbol(best.right)) else { continue };
            if a.len == 0 || b.len == 0 || a.len + b.len != best.len {
                continue;
            }
            if let Some(a) = self.symbols.get_mut(left as usize) {
                a.len += b.len;
                a.next = b.next;
            }
            if let Some(b) = self.symbols.get_mut(best.right as usize) {
                b.len = 0;
            }
            if let Some(after) = self.symbols.get_mut(b.next as usize) {
                after.prev = left;
            }
            self.offer(vocab, text, a.prev, left);
            self.offer(vocab, text, left, b.next);
        }
        for symbol in self.symbols.iter().filter(|s| s.len > 0) {
            let Some(piece) = text.get(symbol.start as usize..(symbol.start + symbol.len) as usize) else {
                continue;
            };
            match vocab.id_of(piece) {
                Some(id) => out.push(id),
                None => out.extend(piece.iter().filter_map(|b| vocab.byte_piece(*b))),
            }
        }
    }

    fn symbol(&self, index: u32) -> Option<Symbol> {
        self.symbols.get(index as usize).copied()
    }

    fn offer(&mut self, vocab: &Vocab, text: &[u8], left: u32, right: u32) {
        let (Some(a), Some(b)) = (self.symbol(left), self.symbol(right)) else { return };
        let len = a.len + b.len;
        let Some(joined) = text.get(a.start as usize..(a.start + len) as usize) else { return };
        if let Some(id) = vocab.id_of(joined) {
            let key = (u64::from(order(vocab.score(id))) << 32) | u64::from(!left);
            self.queue.push(Candidate { key, right, len });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integer_order_is_float_order() {
        let scores = [f32::NEG_INFINITY, -1e30, -2.0, -1.0, -1e-30, 0.0, 1e-30, 1.0, 1e30, f32::INFINITY];
        assert!(scores.windows(2).all(|w| order(w[0]) < order(w[1])));
        assert_eq!(order(-0.0), order(0.0));
    }
}
