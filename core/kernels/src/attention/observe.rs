//! How much attention a query pays to each position, for policies that forget the least attended ones.
//!
//! A second look at the scores of a few queries. The first look keeps no probabilities: they are final only when all partitions are
//! merged, and keeping them would cost every query what only some are asked for.

use super::page::score_part;
use super::schedule::{Common, Grid, Shared, with_slots};
use super::scratch::{SCORE_STRIDE, slot_len};
use super::work::Work;
use super::{AttentionScratch, AttentionShape, KvPages, PART_TOKENS};
use crate::isa::Kernels;
use crate::parallel::Parallel;
use crate::vecops::call;

/// One query and what it may look at.
#[derive(Debug)]
pub struct ObserveJob<'a> {
    /// heads x k_dim.
    pub q: &'a [f32],
    /// Its position: it sees all positions (slots) up to and including this one.
    pub position: usize,
    /// Query heads, KV heads and lengths.
    pub shape: AttentionShape,
    /// Keys and values.
    pub kv: KvPages<'a>,
    /// Factor on the scores.
    pub scale: f32,
    /// Scores become `cap * tanh(score / cap)`.
    pub soft_cap: Option<f32>,
    /// One logit per head that joins the softmax and has no position.
    pub sinks: Option<&'a [f32]>,
    /// Working memory of attention.
    pub scratch: &'a mut AttentionScratch,
    /// Working memory: heads x (position + 2).
    pub weights: &'a mut [f32],
    /// For each KV head, the probabilities are added here, summed over the query heads that share it: position + 1 values each.
    pub sums: &'a mut [Vec<f32>],
}

impl Kernels {
    /// Adds a query's attention to sums per KV head and position.
    ///
    /// # Panics
    /// If lengths do not fit together.
    pub fn observe(&self, par: &dyn Parallel, job: &mut ObserveJob<'_>) {
        let (shape, seen) = (job.shape, job.position + 1);
        let stride = seen + 1;
        assert_eq!(job.q.len(), shape.heads * shape.k_dim, "queries");
        assert!(job.weights.len() >= shape.heads * stride, "room for the weights of all heads");
        assert!(job.sinks.is_none_or(|sinks| sinks.len() == shape.heads), "one sink per head");
        assert!(
            job.sums.len() == shape.kv_heads && job.sums.iter().all(|sums| sums.len() >= seen),
            "sums for all positions of all KV heads"
        );
        let slot_len = slot_len(shape.k_dim, shape.v_dim);
        assert!(job.scratch.slots.len() >= slot_len, "scratch made for a smaller shape");
        let common = Common {
            q: job.q,
            first_pos: job.position,
            shape,
            kv: job.kv,
            scale: job.scale,
            soft_cap: job.soft_cap,
            window: None,
            chosen: None,
        };
        let grid = Grid::new(&shape, 1);
        let threads = par.threads().min(job.scratch.slots.len() / slot_len).max(1);
        let slots = Shared::new(&mut job.scratch.slots);
        let weights = Shared::new(&mut job.weights[..shape.heads * stride]);
        with_slots(par, threads, grid.tiles(&shape), &|task, slot| {
            let tile = grid.tile(&common, 1, task);
            // SAFETY: no other running task has this slot.
            let slot = unsafe { slots.part(slot * slot_len, slot_len) };
            let (mut work, _) = Work::new(&tile, slot);
            work.load_queries(&tile);
            call!(self, round_f16(work.q));
            // SAFETY: every head is a row of exactly one tile.
            let rows = unsafe { weights.part(tile.first_head * stride, tile.rows * stride) };
            for part in 0..seen.div_ceil(PART_TOKENS) {
                work.state.clear();
                score_part(self, &tile, part, &mut work);
                let (first, end) = (part * PART_TOKENS, seen.min((part + 1) * PART_TOKENS));
                for (r, row) in rows.chunks_exact_mut(stride).enumerate() {
                    row[first..end].copy_from_slice(&work.p[r * SCORE_STRIDE..][..end - first]);
                }
            }
            for (r, row) in rows.chunks_exact_mut(stride).enumerate() {
                row[seen] = job.sinks.map_or(f32::NEG_INFINITY, |sinks| sinks[tile.first_head + r]);
                self.softmax_in_place(row);
            }
        });
        let group = shape.heads / shape.kv_heads;
        for (sums, rows) in job.sums.iter_mut().zip(job.weights.chunks_exact(group * stride)) {
            for row in rows.chunks_exact(stride) {
                self.add_in_place(&mut sums[..seen], &row[..seen]);
            }
        }
    }
}
