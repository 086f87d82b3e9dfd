//! Working memory of attention, allocated once.

use std::sync::atomic::AtomicU32;

use super::choose::{self, Choice};
use super::schedule::Grid;
use super::{PAGE_TOKENS, PART_TOKENS};
use crate::math::LANES;

/// Rows of a tile. 32 rows make the conversion of a page cost a twentieth of the work on it.
pub(crate) const TILE_ROWS: usize = 32;

/// Rows that share one broadcast load in the tile kernels; tiles are padded to a multiple.
pub(crate) const ROW_BLOCK: usize = 4;

/// Distance between the scores of two rows. One vector more than a partition: with a power of two the same scores of all rows
/// would compete for a few sets of the first-level cache.
pub(crate) const SCORE_STRIDE: usize = PART_TOKENS + LANES;

/// With fewer tiles per thread than this, the context is split too.
pub(super) const SPLIT_TILES: usize = 4;

/// The dimensions of an attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    /// Query heads.
    pub heads: usize,
    /// KV heads; divides `heads`.
    pub kv_heads: usize,
    /// Length of a query and a key.
    pub k_dim: usize,
    /// Length of a value.
    pub v_dim: usize,
}

/// Working memory for [`Kernels::attention`](crate::Kernels::attention), the same for all layers of a model.
#[derive(Debug)]
pub struct AttentionScratch {
    /// One slot per thread.
    pub(super) slots: Vec<f32>,
    /// Partial results (m, l, acc) of partitions that are computed by different threads.
    pub(super) partials: Vec<f32>,
    /// Partitions of a group of rows that are not computed yet.
    pub(super) pending: Vec<AtomicU32>,
    /// For queries that read only some pages.
    pub(super) choice: Choice,
}

/// Values that a slot needs for tiles of this shape.
pub(super) fn slot_len(k_dim: usize, v_dim: usize) -> usize {
    let (kp, vp) = (padded(k_dim), padded(v_dim));
    // Queries, a page of K and of V, the scores of a partition, two states of (acc, m, l).
    TILE_ROWS * kp + PAGE_TOKENS * (kp + vp) + TILE_ROWS * SCORE_STRIDE + 2 * TILE_ROWS * (vp + 2)
}

/// Rounded up to whole vectors.
pub(crate) fn padded(dim: usize) -> usize {
    dim.next_multiple_of(LANES)
}

impl AttentionScratch {
    /// For up to `threads` threads, and decoding with up to `max_context` positions. More threads or positions work too, with less
    /// parallelism. Layers of several shapes can share a scratch made for the largest.
    pub fn new(shape: &AttentionShape, threads: usize, max_context: usize) -> Self {
        let (slots, partials, pending) = Self::lens(shape, threads, max_context);
        AttentionScratch {
            slots: vec![0.0; slots],
            partials: vec![0.0; partials],
            pending: (0..pending).map(|_| AtomicU32::new(0)).collect(),
            choice: Choice::default(),
        }
    }

    /// The same for layers that read only some pages ([`KvPages::most_pages`](super::KvPages)), of up to `max_context` positions.
    #[must_use]
    pub fn choosing(mut self, shape: &AttentionShape, threads: usize, max_context: usize) -> Self {
        self.choice = Choice::new(shape, threads, max_context);
        self
    }

    /// Bytes that [`AttentionScratch::choosing`] allocates.
    pub fn choosing_bytes(shape: &AttentionShape, threads: usize, max_context: usize) -> usize {
        choose::bytes(shape, threads, max_context)
    }

    /// Bytes that [`AttentionScratch::new`] allocates.
    pub fn bytes(shape: &AttentionShape, threads: usize, max_context: usize) -> usize {
        let (slots, partials, pending) = Self::lens(shape, threads, max_context);
        4 * (slots + partials + pending)
    }

    fn lens(shape: &AttentionShape, threads: usize, max_context: usize) -> (usize, usize, usize) {
        let slots = threads.max(1) * slot_len(shape.k_dim, shape.v_dim);
        // Partial results are kept for one query. A single thread never splits the context.
        let parts = if threads > 1 { max_context.div_ceil(PART_TOKENS) + 1 } else { 0 };
        let grid = Grid::new(shape, 1);
        let partials = grid.tiles(shape) * grid.rows_per_tile(1) * parts * (padded(shape.v_dim) + 2);
        (slots, partials, if threads > 1 { SPLIT_TILES * threads } else { 0 })
    }
}
