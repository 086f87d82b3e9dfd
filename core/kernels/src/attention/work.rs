//! Working memory of a tile.

use super::PAGE_TOKENS;
use super::page::tiled;
use super::schedule::Tile;
use super::scratch::{ROW_BLOCK, SCORE_STRIDE, padded};
use crate::math::LANES;

/// Softmax of some rows: maximum, denominator and weighted sum of values (rows of whole vectors). The sum of a single partition is
/// divided by its denominator, that of several is not yet.
pub(crate) struct State<'a> {
    pub m: &'a mut [f32],
    pub l: &'a mut [f32],
    pub acc: &'a mut [f32],
}

impl<'a> State<'a> {
    /// Lays `rows` rows out in `memory`, which is `rows` times the padded value length plus two.
    pub(crate) fn new(memory: &'a mut [f32], rows: usize) -> Self {
        let (m, rest) = memory.split_at_mut(rows);
        let (l, acc) = rest.split_at_mut(rows);
        State { m, l, acc }
    }

    /// No position seen.
    pub(crate) fn clear(&mut self) {
        self.m.fill(f32::NEG_INFINITY);
        self.l.fill(0.0);
        self.acc.fill(0.0);
    }

    /// Takes the leading rows of `from`, as many as fit.
    pub(crate) fn copy_from(&mut self, from: &State<'_>) {
        self.m.copy_from_slice(&from.m[..self.m.len()]);
        self.l.copy_from_slice(&from.l[..self.l.len()]);
        self.acc.copy_from_slice(&from.acc[..self.acc.len()]);
    }
}

/// Working memory of one tile. Rows are padded to a multiple of [`ROW_BLOCK`].
pub(crate) struct Work<'a> {
    pub kp: usize,
    pub vp: usize,
    /// Direct: row by row. Tiled: in blocks of four rows, `[block][lane 16][chunk][row 4]`, so that the kernel walks through it.
    pub q: &'a mut [f32],
    /// A page's keys as `[lane 16][chunk][position 32]`, where lane and chunk are k % 16 and k / 16.
    pub keys: &'a mut [f32],
    /// A page's values as `[position 32][vp]`.
    pub values: &'a mut [f32],
    /// Scores, then probabilities: `[row][position 512]`, rows [`SCORE_STRIDE`] apart.
    pub p: &'a mut [f32],
    /// Where the current page begins in a row of `p`.
    pub at: usize,
    pub state: State<'a>,
}

impl<'a> Work<'a> {
    /// Splits a thread's slot. The second state is for the caller, to merge partitions into.
    pub(crate) fn new(tile: &Tile<'_>, slot: &'a mut [f32]) -> (Self, State<'a>) {
        let (kp, vp) = (padded(tile.common.shape.k_dim), padded(tile.common.shape.v_dim));
        let rows = tile.rows.next_multiple_of(ROW_BLOCK);
        let (q, rest) = slot.split_at_mut(rows * kp);
        let (keys, rest) = rest.split_at_mut(PAGE_TOKENS * kp);
        let (values, rest) = rest.split_at_mut(PAGE_TOKENS * vp);
        let (p, rest) = rest.split_at_mut(rows * SCORE_STRIDE);
        let (state, rest) = rest.split_at_mut(rows * (vp + 2));
        let merged = State::new(&mut rest[..rows * (vp + 2)], rows);
        (Work { kp, vp, q, keys, values, p, at: 0, state: State::new(state, rows) }, merged)
    }

    /// Copies the tile's queries in the order that its kernel reads them.
    pub(crate) fn load_queries(&mut self, tile: &Tile<'_>) {
        let (dim, heads) = (tile.common.shape.k_dim, tile.common.shape.heads);
        let query = |r: usize| {
            let (query, head) = tile.row(r);
            &tile.common.q[(query * heads + head) * dim..][..dim]
        };
        if !tiled(tile) {
            for (r, row) in self.q.chunks_exact_mut(self.kp).enumerate() {
                let (values, padding) = row.split_at_mut(dim);
                padding.fill(0.0);
                if r < tile.rows {
                    values.copy_from_slice(query(r));
                }
            }
            return;
        }
        let chunks = self.kp / LANES;
        for (b, block) in self.q.chunks_exact_mut(ROW_BLOCK * self.kp).enumerate() {
            block.fill(0.0);
            for i in 0..ROW_BLOCK.min(tile.rows - ROW_BLOCK * b) {
                let row = query(ROW_BLOCK * b + i);
                for (chunk, values) in row.chunks(LANES).enumerate() {
                    for (lane, &value) in values.iter().enumerate() {
                        block[(lane * chunks + chunk) * ROW_BLOCK + i] = value;
                    }
                }
            }
        }
    }
}
