//! Who computes what: tiles, partitions and threads. Nothing here touches a float that is not copied or merged in a fixed order.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::choose::{Chosen, LEAST, TOGETHER};
use super::scratch::{SPLIT_TILES, TILE_ROWS, padded, slot_len};
use super::work::{State, Work};
use super::{AttentionJob, AttentionScratch, AttentionShape, KvPages, PAGE_TOKENS, PART_TOKENS};
use crate::isa::Kernels;
use crate::parallel::Parallel;
use crate::vecops::call;

/// What all tiles of a job share.
#[derive(Clone, Copy)]
pub(crate) struct Common<'a> {
    pub q: &'a [f32],
    pub first_pos: usize,
    pub shape: AttentionShape,
    pub kv: KvPages<'a>,
    pub scale: f32,
    pub soft_cap: Option<f32>,
    pub window: Option<usize>,
    /// The pages that are read, if not all.
    pub chosen: Option<Chosen<'a>>,
}

/// Rows of one KV head: queries `first_query ..`, each with heads `first_head .. first_head + heads`.
#[derive(Clone, Copy)]
pub(crate) struct Tile<'a> {
    pub common: &'a Common<'a>,
    pub kv_head: usize,
    pub first_query: usize,
    pub first_head: usize,
    pub heads: usize,
    pub rows: usize,
}

impl Tile<'_> {
    /// Query and head of a row.
    pub(crate) fn row(&self, r: usize) -> (usize, usize) {
        (self.first_query + r / self.heads, self.first_head + r % self.heads)
    }

    /// Positions that a row attends to.
    #[inline(always)]
    pub(crate) fn span(&self, r: usize) -> Range<usize> {
        let end = self.common.first_pos + self.first_query + r / self.heads + 1;
        let start = self.common.window.map_or(0, |w| end.saturating_sub(w));
        start.max(self.common.kv.first_token)..end
    }

    /// The pages of a partition that a row reads, a bit each.
    pub(crate) fn pages_of(&self, r: usize, part: usize) -> u16 {
        let (span, first) = (self.span(r), part * PART_TOKENS);
        let end = span.end.saturating_sub(first).min(PART_TOKENS).div_ceil(PAGE_TOKENS);
        let start = (span.start.saturating_sub(first) / PAGE_TOKENS).min(end);
        let seen = ((1u32 << end) - (1u32 << start)) as u16;
        match &self.common.chosen {
            Some(chosen) => seen & chosen.of_part(self.first_query + r / self.heads, self.kv_head, part),
            None => seen,
        }
    }

    /// Whether a row reads a page; those behind its position do not count.
    #[inline(always)]
    pub(crate) fn reads(&self, r: usize, page: usize) -> bool {
        self.common
            .chosen
            .as_ref()
            .is_none_or(|chosen| chosen.has(self.first_query + r / self.heads, self.kv_head, page))
    }

    /// Those that any row reads.
    pub(crate) fn pages(&self, part: usize) -> u16 {
        (0..self.rows).step_by(self.heads).fold(0, |pages, r| pages | self.pages_of(r, part))
    }

    /// Positions that any row attends to. Both bounds grow with the query.
    pub(crate) fn spans(&self) -> Range<usize> {
        self.span(0).start..self.span(self.rows - 1).end
    }

    fn parts(&self) -> Range<usize> {
        let span = self.spans();
        if span.is_empty() { 0..0 } else { span.start / PART_TOKENS..(span.end - 1) / PART_TOKENS + 1 }
    }
}

/// How the queries and heads of a job are cut into tiles.
pub(super) struct Grid {
    group: usize,
    heads_per_tile: usize,
    queries_per_tile: usize,
    head_tiles: usize,
    query_tiles: usize,
}

impl Grid {
    pub(super) fn new(shape: &AttentionShape, n: usize) -> Self {
        let group = shape.heads / shape.kv_heads;
        let heads_per_tile = group.min(TILE_ROWS);
        let queries_per_tile = TILE_ROWS / heads_per_tile;
        Grid {
            group,
            heads_per_tile,
            queries_per_tile,
            head_tiles: group.div_ceil(heads_per_tile),
            query_tiles: n.div_ceil(queries_per_tile),
        }
    }

    pub(super) fn rows_per_tile(&self, n: usize) -> usize {
        self.heads_per_tile * self.queries_per_tile.min(n)
    }

    pub(super) fn tiles(&self, shape: &AttentionShape) -> usize {
        self.query_tiles * self.head_tiles * shape.kv_heads
    }

    /// Tile `index`, the last queries first: they attend to most, and long tasks at the end leave threads idle.
    pub(super) fn tile<'a>(&self, common: &'a Common<'a>, n: usize, index: usize) -> Tile<'a> {
        let per_query_tile = self.head_tiles * common.shape.kv_heads;
        let query_tile = self.query_tiles - 1 - index / per_query_tile;
        let (kv_head, head_tile) = ((index % per_query_tile) / self.head_tiles, index % self.head_tiles);
        let first_query = query_tile * self.queries_per_tile;
        let first_in_group = head_tile * self.heads_per_tile;
        let heads = self.heads_per_tile.min(self.group - first_in_group);
        Tile {
            common,
            kv_head,
            first_query,
            first_head: kv_head * self.group + first_in_group,
            heads,
            rows: heads * self.queries_per_tile.min(n - first_query),
        }
    }
}

/// A pointer that tasks share; each writes its own part.
#[derive(Clone, Copy)]
pub(super) struct Shared<T>(*mut T, usize);

// SAFETY: only `part` gives access, and its callers hand out disjoint ranges.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    pub(super) fn new(x: &mut [T]) -> Self {
        Shared(x.as_mut_ptr(), x.len())
    }

    /// # Safety
    /// While the slice lives, no other slice overlaps the range, and the slice that this was made from is borrowed.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn part(&self, at: usize, len: usize) -> &mut [T] {
        assert!(at <= self.1 && len <= self.1 - at, "part {at}+{len} of {}", self.1);
        // SAFETY: in bounds (above); unaliased by the precondition.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(at), len) }
    }
}

/// Runs `job` for each task, with the number of a working slot that no other running call has.
pub(super) fn with_slots(
    par: &dyn Parallel,
    slots: usize,
    tasks: usize,
    job: &(dyn Fn(usize, usize) + Sync),
) {
    let next = AtomicUsize::new(0);
    par.run(slots.min(tasks), &|slot| {
        loop {
            let task = next.fetch_add(1, Ordering::Relaxed);
            if task >= tasks {
                break;
            }
            job(task, slot);
        }
    });
}

impl Kernels {
    /// Attention of `n` queries over the pages of one layer; see the module for the order of operations.
    ///
    /// # Panics
    /// If lengths do not fit together, or the scratch was made for a smaller shape.
    pub fn attention(&self, par: &dyn Parallel, a: &mut AttentionJob<'_>) {
        let shape = AttentionShape { heads: a.heads, kv_heads: a.kv_heads, k_dim: a.k_dim, v_dim: a.v_dim };
        check(a, &shape);
        let (q, v) = (a.heads * a.k_dim, a.heads * a.v_dim);
        let mut first = 0;
        while first < a.n {
            let position = a.first_pos + first;
            let n = a.kv.together(position).min(a.n - first);
            self.attention_of_group(
                par,
                &mut AttentionJob {
                    q: &a.q[first * q..(first + n) * q],
                    n,
                    first_pos: position,
                    scratch: &mut *a.scratch,
                    out: &mut a.out[first * v..(first + n) * v],
                    ..*a
                },
            );
            first += n;
        }
    }

    /// Attention of queries that are computed together.
    fn attention_of_group(&self, par: &dyn Parallel, a: &mut AttentionJob<'_>) {
        let shape = AttentionShape { heads: a.heads, kv_heads: a.kv_heads, k_dim: a.k_dim, v_dim: a.v_dim };
        let AttentionScratch { slots, partials, pending, choice } = &mut *a.scratch;
        let mut common = Common {
            q: a.q,
            first_pos: a.first_pos,
            shape,
            kv: a.kv,
            scale: a.scale,
            soft_cap: a.soft_cap,
            window: a.window,
            chosen: None,
        };
        common.chosen = self.choose(par, &common, a.n, choice);
        let grid = Grid::new(&shape, a.n);
        let tiles = grid.tiles(&shape);
        let slot_len = slot_len(shape.k_dim, shape.v_dim);
        let threads = par.threads().min(slots.len() / slot_len).max(1);
        let slots = Shared::new(slots);
        let partials = Shared::new(partials);
        let out = Shared::new(a.out);
        let vp = padded(shape.v_dim);

        // The outcome is the same either way; splitting pays when there are too few tiles for the threads.
        let most_parts = (0..tiles).map(|i| grid.tile(&common, a.n, i).parts().len()).max().unwrap_or(0);
        let state_len = grid.rows_per_tile(a.n) * (vp + 2);
        let split = threads > 1
            && most_parts > 1
            && tiles < SPLIT_TILES * threads
            && tiles <= pending.len()
            && tiles * most_parts * state_len <= partials.1;

        let finish = |tile: &Tile<'_>, state: &mut State<'_>, spare: &mut State<'_>| {
            if let Some(sinks) = a.sinks {
                spare.clear();
                for r in 0..tile.rows {
                    spare.m[r] = sinks[tile.row(r).1];
                    spare.l[r] = 1.0;
                }
                call!(self, merge(state, spare));
            }
            for r in 0..tile.rows {
                let (query, head) = tile.row(r);
                // SAFETY: every (query, head) is a row of exactly one tile, and each tile is finished by one task.
                let out = unsafe { out.part((query * shape.heads + head) * shape.v_dim, shape.v_dim) };
                // A row without a position (only if all of them were evicted) is zero.
                let factor = if state.l[r] == 0.0 { 0.0 } else { 1.0 / state.l[r] };
                out.copy_from_slice(&state.acc[r * vp..r * vp + shape.v_dim]);
                call!(self, scale(out, factor));
            }
        };

        if !split {
            with_slots(par, threads, tiles, &|task, slot| {
                let tile = grid.tile(&common, a.n, task);
                // SAFETY: no other running task has this slot.
                let slot = unsafe { slots.part(slot * slot_len, slot_len) };
                let (mut work, mut merged) = Work::new(&tile, slot);
                work.load_queries(&tile);
                call!(self, round_f16(work.q));
                merged.clear();
                for part in tile.parts().filter(|&part| tile.pages(part) != 0) {
                    self.attend(&tile, part, &mut work);
                    call!(self, merge(&mut merged, &work.state));
                }
                finish(&tile, &mut merged, &mut work.state);
            });
            return;
        }

        for (i, left) in pending.iter().take(tiles).enumerate() {
            left.store(grid.tile(&common, a.n, i).parts().len() as u32, Ordering::Relaxed);
        }
        with_slots(par, threads, tiles * most_parts, &|task, slot| {
            let (index, part) = (task % tiles, task / tiles);
            let tile = grid.tile(&common, a.n, index);
            let parts = tile.parts();
            if part >= parts.len() {
                return;
            }
            // SAFETY: no other running task has this slot.
            let slot = unsafe { slots.part(slot * slot_len, slot_len) };
            let (mut work, mut merged) = Work::new(&tile, slot);
            let at = parts.start + part;
            if tile.pages(at) == 0 {
                work.state.clear();
            } else {
                work.load_queries(&tile);
                call!(self, round_f16(work.q));
                self.attend(&tile, at, &mut work);
            }
            let partial = |part: usize| {
                let at = (index * most_parts + part) * state_len;
                // SAFETY: a partial result belongs to the task of its partition until that task has counted itself off, and then to
                // the one task that finds nothing pending.
                State::new(unsafe { partials.part(at, tile.rows * (vp + 2)) }, tile.rows)
            };
            partial(part).copy_from(&work.state);
            // Release the partial result; the last task acquires all of them.
            if pending[index].fetch_sub(1, Ordering::AcqRel) == 1 {
                merged.clear();
                for part in 0..parts.len() {
                    call!(self, merge(&mut merged, &partial(part)));
                }
                finish(&tile, &mut merged, &mut work.state);
            }
        });
    }
}

impl KvPages<'_> {
    /// How many queries from this one on can be computed together.
    fn together(&self, position: usize) -> usize {
        match (self.layout.k.per_channel(), self.most_pages) {
            // Queries of one page read the same page as halves.
            (true, _) => {
                assert!(
                    self.fresh.is_some_and(|fresh| fresh.holds(position / PAGE_TOKENS)),
                    "fresh keys of the page of position {position}"
                );
                PAGE_TOKENS - position % PAGE_TOKENS
            }
            // Those that still read everything choose nothing.
            (_, Some(most)) => match most.saturating_mul(PAGE_TOKENS).saturating_sub(position) {
                0 => TOGETHER,
                left => left,
            },
            (_, None) => usize::MAX,
        }
    }
}

fn check(a: &AttentionJob<'_>, shape: &AttentionShape) {
    let AttentionShape { heads, kv_heads, k_dim, v_dim } = *shape;
    assert!(
        kv_heads > 0 && heads > 0 && heads.is_multiple_of(kv_heads),
        "{heads} heads over {kv_heads} KV heads"
    );
    assert!(k_dim > 0 && v_dim > 0, "empty heads");
    assert_eq!(a.q.len(), a.n * heads * k_dim, "queries");
    assert_eq!(a.out.len(), a.n * heads * v_dim, "output");
    assert!(a.sinks.is_none_or(|s| s.len() == heads), "one sink per head");
    let layout = &a.kv.layout;
    assert!(
        (layout.shape.kv_heads, layout.shape.k_dim, layout.shape.v_dim) == (kv_heads, k_dim, v_dim)
            && a.kv.page_len >= layout.page_len(),
        "a page holds K and V of all heads"
    );
    assert!(a.scratch.slots.len() >= slot_len(k_dim, v_dim), "scratch made for a smaller shape");
    assert!(
        a.kv.most_pages.is_none_or(|most| most >= LEAST && layout.summaries && a.window.is_none()),
        "{:?} pages of a layer without summaries, or with a window",
        a.kv.most_pages
    );
    let end = a.first_pos + a.n;
    assert!(a.kv.table.len() >= end.div_ceil(PAGE_TOKENS), "positions up to {end} are in the page table");
}
