//! Which pages a query reads, where it may read only some.
//!
//! ```text
//! a query at position P, in page p = P / 32, of one KV head:
//!     p + 1 <= most:   all pages 0 ..= p
//!     else:            page 0 (what attention leans on whatever it says), the newest two (p - 1 and p), and of those between the most - 3 of largest
//!                      share, of equals the later
//!
//! share of a page    = sum over the query heads of softmax over the pages between (scale * bound of the page), see `summary.rs` for bounds
//! ```
//!
//! A share is what attention would be if the best key that a page may have were all that it has. Adding bounds up instead, which is one product for
//! all heads, chooses worse: a head that has no preference counts as much as one that has (perplexity 1.0% to 1.5% higher).
//!
//! It is a rule of the query, its position and the keys before it alone, so no bit depends on how a prompt was cut, on how many queries are
//! computed together, or on who computes them. All heads that share a KV head read the same pages: their loads are shared, too. What is
//! chosen is a bit per page; attention leaves the other pages out as if they were behind the query.

use super::schedule::{Common, Shared, with_slots};
use super::scratch::{ROW_BLOCK, padded};
use super::summary::{Summaries, split_query};
use super::{AttentionShape, PAGE_TOKENS, PART_TOKENS};
use crate::isa::Kernels;
use crate::math::LANES;
use crate::parallel::Parallel;
use crate::vecops::call;

/// The newest pages, which are read whatever their bounds are: the query's own, which has no summary yet, and the one before it.
const NEWEST: usize = 2;

/// Pages that are always read.
const ALWAYS: usize = 1 + NEWEST;

/// With fewer pages nothing would be chosen.
pub(super) const LEAST: usize = ALWAYS + 1;

/// Queries whose pages are chosen at a time: enough tiles for all threads, few enough to remember what they chose.
pub(super) const TOGETHER: usize = 64;

/// Pages of a partition.
const PART_PAGES: usize = PART_TOKENS / PAGE_TOKENS;

/// Working memory.
#[derive(Debug, Default)]
pub(super) struct Choice {
    /// Per thread a query as it is, four as they are multiplied with summaries, the bounds of pages for these, and shares.
    floats: Vec<f32>,
    /// Per thread bounds and numbers of pages, to be ordered.
    keys: Vec<u64>,
    /// The pages that are read: a bit for each, for each query and KV head.
    bits: Vec<u64>,
}

/// Lengths of the three.
fn lens(shape: &AttentionShape, threads: usize, max_context: usize) -> (usize, usize, usize) {
    let pages = max_context.div_ceil(PAGE_TOKENS);
    let threads = threads.max(1);
    (
        threads * floats_len(shape.k_dim, pages),
        threads * pages,
        TOGETHER * shape.kv_heads * pages.div_ceil(u64::BITS as usize),
    )
}

fn floats_len(k_dim: usize, pages: usize) -> usize {
    (1 + 2 * ROW_BLOCK) * padded(k_dim) + (ROW_BLOCK + 1) * pages.next_multiple_of(LANES)
}

impl Choice {
    pub(super) fn new(shape: &AttentionShape, threads: usize, max_context: usize) -> Self {
        let (floats, keys, bits) = lens(shape, threads, max_context);
        Choice { floats: vec![0.0; floats], keys: vec![0; keys], bits: vec![0; bits] }
    }

    #[cfg(test)]
    pub(super) fn allocated(&self) -> usize {
        4 * self.floats.len() + 8 * (self.keys.len() + self.bits.len())
    }
}

/// Bytes of them.
pub(super) fn bytes(shape: &AttentionShape, threads: usize, max_context: usize) -> usize {
    let (floats, keys, bits) = lens(shape, threads, max_context);
    4 * floats + 8 * (keys + bits)
}

/// The pages that were chosen.
#[derive(Clone, Copy)]
pub(crate) struct Chosen<'a> {
    bits: &'a [u64],
    /// Words of a query and KV head.
    words: usize,
    kv_heads: usize,
}

impl Chosen<'_> {
    /// The bits from those of `page` on that are in one word.
    #[inline(always)]
    fn from(&self, query: usize, kv_head: usize, page: usize) -> u64 {
        let of_query = (query * self.kv_heads + kv_head) * self.words;
        self.bits[of_query + page / u64::BITS as usize] >> (page % u64::BITS as usize)
    }

    #[inline(always)]
    pub(super) fn has(&self, query: usize, kv_head: usize, page: usize) -> bool {
        self.from(query, kv_head, page) & 1 != 0
    }

    /// Those of a partition, a bit each. Partitions are a quarter of a word.
    pub(super) fn of_part(&self, query: usize, kv_head: usize, part: usize) -> u16 {
        self.from(query, kv_head, part * PART_PAGES) as u16
    }
}

impl Kernels {
    /// Chooses the pages of all queries of a job, at most [`TOGETHER`]; `None` if they read all.
    pub(super) fn choose<'a>(
        &self,
        par: &dyn Parallel,
        common: &Common<'_>,
        n: usize,
        memory: &'a mut Choice,
    ) -> Option<Chosen<'a>> {
        let most = common.kv.most_pages?;
        let AttentionShape { kv_heads, k_dim, .. } = common.shape;
        let pages = (common.first_pos + n).div_ceil(PAGE_TOKENS);
        if pages <= most {
            return None;
        }
        let words = pages.div_ceil(u64::BITS as usize);
        let floats_len = floats_len(k_dim, pages);
        let (tasks, bits_len) = (n * kv_heads, n * kv_heads * words);
        let threads = par.threads().min(memory.floats.len() / floats_len).min(memory.keys.len() / pages);
        assert!(threads > 0 && memory.bits.len() >= bits_len, "scratch made for a shorter context");
        let floats = Shared::new(&mut memory.floats);
        let keys = Shared::new(&mut memory.keys);
        let bits = Shared::new(&mut memory.bits[..bits_len]);
        with_slots(par, threads, tasks, &|task, slot| {
            // SAFETY: no other running task has this slot.
            let (floats, keys) =
                unsafe { (floats.part(slot * floats_len, floats_len), keys.part(slot * pages, pages)) };
            // SAFETY: every task has its own query and KV head.
            let bits = unsafe { bits.part(task * words, words) };
            self.choose_for(common, most, (task / kv_heads, task % kv_heads), (floats, keys, bits));
        });
        Some(Chosen { bits: &memory.bits, words, kv_heads })
    }

    fn choose_for(
        &self,
        common: &Common<'_>,
        most: usize,
        (query, kv_head): (usize, usize),
        (floats, keys, bits): (&mut [f32], &mut [u64], &mut [u64]),
    ) {
        let AttentionShape { heads, kv_heads, k_dim, .. } = common.shape;
        let pages = (common.first_pos + query) / PAGE_TOKENS + 1;
        bits.fill(0);
        let mut read = |page: usize| bits[page / u64::BITS as usize] |= 1 << (page % u64::BITS as usize);
        if pages <= most {
            (0..pages).for_each(read);
            return;
        }
        let (group, summary) = (heads / kv_heads, 2 * padded(k_dim));
        let between = Summaries { kv: common.kv, kv_head, first: 1, count: pages - ALWAYS };
        let stride = between.count.next_multiple_of(LANES);
        let (q, rest) = floats.split_at_mut(padded(k_dim));
        let (parts, rest) = rest.split_at_mut(ROW_BLOCK * summary);
        let (bounds, shares) = rest.split_at_mut(ROW_BLOCK * stride);
        let (q, shares) = (&mut q[..k_dim], &mut shares[..between.count]);
        shares.fill(0.0);
        for first in (0..group).step_by(ROW_BLOCK) {
            let rows = ROW_BLOCK.min(group - first);
            for (head, parts) in (kv_head * group + first..).zip(parts.chunks_exact_mut(summary).take(rows)) {
                q.copy_from_slice(&common.q[(query * heads + head) * k_dim..][..k_dim]);
                call!(self, round_f16(q));
                split_query(q, parts);
            }
            call!(self, page_bounds((&*parts, rows), &between, bounds, stride));
            for bounds in bounds.chunks_exact_mut(stride).take(rows) {
                let bounds = &mut bounds[..between.count];
                self.scale_in_place(bounds, common.scale);
                self.softmax_in_place(bounds);
                self.add_in_place(shares, bounds);
            }
        }
        let keys = &mut keys[..between.count];
        for (i, (key, &share)) in keys.iter_mut().zip(&*shares).enumerate() {
            *key = u64::from(rank(share)) << 32 | (1 + i) as u64;
        }
        let top = most - ALWAYS;
        let (_, _, above) = keys.select_nth_unstable(keys.len() - top - 1);
        [0].into_iter().chain(pages - NEWEST..pages).for_each(&mut read);
        above.iter().for_each(|&key| read(key as u32 as usize));
    }
}

/// A share as an integer of the same order; what is not a number comes last.
fn rank(share: f32) -> u32 {
    let bits = if share.is_nan() { f32::NEG_INFINITY } else { share }.to_bits();
    bits ^ (((bits as i32 >> 31) as u32) | 1 << 31)
}
