//! Hash tables of `u32` over the strings and merges of a vocabulary, which stay where they are.
//!
//! A vocabulary has up to 262 144 pieces and 514 906 merges and must be ready in a tenth of a second, in memory that
//! the budget can spare. So: open addressing, one `u32` per slot, no copy of any string. Hashes are seeded at random: a
//! hostile file can't choose pieces that collide.

use crate::hash::Seed;
use pannier_gguf::StrArray;

/// Slots for `len` entries: at most half of them are used.
fn slots_for(len: usize) -> Vec<u32> {
    vec![0; len.saturating_mul(2).max(2).next_power_of_two()]
}

/// Text of a piece to its id.
///
/// A slot is 0 if empty, else `id + 1` in its low `id_bits` and the top bits of the hash above; they save most of the
/// look-ups of a wrong piece's text, which would be cache misses.
pub(crate) struct PieceTable {
    slots: Vec<u32>,
    id_bits: u32,
    seed: Seed,
    longest: usize,
    duplicates: usize,
}

impl PieceTable {
    /// Of pieces with equal texts the first gets the text. Empty texts are left out.
    pub(crate) fn new(pieces: &StrArray) -> Self {
        let id_bits = usize::BITS - pieces.len().leading_zeros();
        let mut table =
            Self { slots: slots_for(pieces.len()), id_bits, seed: Seed::random(), longest: 0, duplicates: 0 };
        for (id, piece) in pieces.iter().enumerate() {
            if piece.is_empty() {
                continue;
            }
            table.longest = table.longest.max(piece.len());
            match table.find(pieces, piece.as_bytes()) {
                Ok(_) => table.duplicates += 1,
                Err((slot, tag)) => {
                    if let Some(slot) = table.slots.get_mut(slot) {
                        *slot = tag | (id as u32 + 1);
                    }
                }
            }
        }
        table
    }

    pub(crate) fn get(&self, pieces: &StrArray, text: &[u8]) -> Option<u32> {
        // Also bounds the work: merges ask for concatenations of growing length.
        if text.is_empty() || text.len() > self.longest {
            return None;
        }
        self.find(pieces, text).ok()
    }

    /// The id of `text`, or the slot and tag under which it belongs.
    fn find(&self, pieces: &StrArray, text: &[u8]) -> Result<u32, (usize, u32)> {
        let hash = self.seed.hash(text);
        let mask = self.slots.len() - 1;
        let id_mask = u32::MAX.checked_shr(32 - self.id_bits).unwrap_or(0);
        let tag = ((hash >> 32) as u32) & !id_mask;
        let mut slot = hash as usize & mask;
        loop {
            let entry = self.slots.get(slot).copied().unwrap_or(0);
            if entry == 0 {
                return Err((slot, tag));
            }
            let id = (entry & id_mask) - 1;
            if entry & !id_mask == tag && pieces.get(id as usize).is_some_and(|p| p.as_bytes() == text) {
                return Ok(id);
            }
            slot = (slot + 1) & mask;
        }
    }

    /// How many pieces had the text of an earlier one.
    pub(crate) fn duplicates(&self) -> usize {
        self.duplicates
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<u32>()
    }
}

/// One merge: two neighbours become one piece.
#[derive(Clone, Copy)]
pub(crate) struct Merge {
    pub(crate) left: u32,
    pub(crate) right: u32,
    pub(crate) merged: u32,
}

/// Pairs of ids to the rank of their merge; the lowest rank is merged first.
pub(crate) struct MergeTable {
    merges: Vec<Merge>,
    /// 0 if empty, else `rank + 1`.
    slots: Vec<u32>,
    seed: Seed,
}

impl MergeTable {
    /// Of merges of the same pair the first counts.
    pub(crate) fn new(merges: Vec<Merge>) -> Self {
        let mut table = Self { slots: slots_for(merges.len()), merges, seed: Seed::random() };
        for rank in 0..table.merges.len() {
            let Some(&Merge { left, right, .. }) = table.merges.get(rank) else { break };
            if let Err(slot) = table.find(left, right)
                && let Some(slot) = table.slots.get_mut(slot)
            {
                *slot = rank as u32 + 1;
            }
        }
        table
    }

    /// The rank of merging `left` and `right`.
    pub(crate) fn rank(&self, left: u32, right: u32) -> Option<u32> {
        self.find(left, right).ok()
    }

    /// The merge of a rank.
    pub(crate) fn get(&self, rank: u32) -> Option<Merge> {
        self.merges.get(rank as usize).copied()
    }

    fn find(&self, left: u32, right: u32) -> Result<u32, usize> {
        let hash = self.seed.hash_pair(left, right);
        let mask = self.slots.len() - 1;
        let mut slot = hash as usize & mask;
        loop {
            let entry = self.slots.get(slot).copied().unwrap_or(0);
            let Some(rank) = entry.checked_sub(1) else { return Err(slot) };
            if self.get(rank).is_some_and(|m| m.left == left && m.right == right) {
                return Ok(rank);
            }
            slot = (slot + 1) & mask;
        }
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.merges.capacity() * size_of::<Merge>() + self.slots.capacity() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_every_piece_and_nothing_else() {
        let texts: Vec<String> = (0..5000).map(|i| format!("piece{}", i * 7)).collect();
        let pieces: StrArray = texts.iter().collect();
        let table = PieceTable::new(&pieces);
        for (i, text) in texts.iter().enumerate() {
            assert_eq!(table.get(&pieces, text.as_bytes()), Some(i as u32));
        }
        for text in ["", "piece", "piece1", "a much longer text than any piece"] {
            assert_eq!(table.get(&pieces, text.as_bytes()), None);
        }
    }

    #[test]
    fn the_first_of_equal_pieces_wins_and_empty_ones_are_left_out() {
        let pieces: StrArray = ["a", "", "a", "b"].iter().collect();
        let table = PieceTable::new(&pieces);
        assert_eq!(table.get(&pieces, b"a"), Some(0));
        assert_eq!(table.get(&pieces, b"b"), Some(3));
        assert_eq!(table.get(&pieces, b""), None);
        assert_eq!(table.duplicates(), 1);
    }

    #[test]
    fn the_first_of_equal_merges_wins() {
        let merge = |left, right, merged| Merge { left, right, merged };
        let table = MergeTable::new(vec![merge(1, 2, 3), merge(2, 1, 4), merge(1, 2, 5)]);
        assert_eq!(table.rank(1, 2), Some(0));
        assert_eq!(table.rank(2, 1), Some(1));
        assert_eq!(table.rank(2, 2), None);
        assert_eq!(MergeTable::new(Vec::new()).rank(0, 0), None);
    }
}
