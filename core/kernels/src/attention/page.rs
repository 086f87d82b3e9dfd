//! One partition for one tile: the scores of its pages, their softmax, then the values of its pages.

use std::mem::discriminant;
use std::ops::Range;

use super::rows::AnyRows;
use super::schedule::{Common, Tile};
use super::scratch::ROW_BLOCK;
use super::stages::{Block, Scores};
use super::work::Work;
use super::{PAGE_TOKENS, PART_TOKENS};
use crate::isa::Kernels;
use crate::math::LANES;
use crate::vecops::call;

/// From this many rows on, converting a page to f32 first is faster than reading it once per few rows.
const TILED_FROM: usize = 8;

/// Whether a tile works on converted pages. Rows that are not whole vectors always do, which keeps that case out of the inner loops of
/// the other path.
pub(super) fn tiled(tile: &Tile<'_>) -> bool {
    let shape = &tile.common.shape;
    tile.rows >= TILED_FROM || !shape.k_dim.is_multiple_of(LANES) || !shape.v_dim.is_multiple_of(LANES)
}

/// The slots of a page that a row attends to.
fn slots(tile: &Tile<'_>, row: usize, page: usize) -> Range<usize> {
    if !tile.reads(row, page) {
        return 0..0;
    }
    let span = tile.span(row);
    let first = page * PAGE_TOKENS;
    let end = span.end.saturating_sub(first).min(PAGE_TOKENS);
    span.start.saturating_sub(first).min(end)..end
}

/// A page's keys and values of one KV head.
#[derive(Clone, Copy)]
struct Page<'a> {
    index: usize,
    keys: AnyRows<'a>,
    values: AnyRows<'a>,
}

/// Calls the entry for the format of a page and the next one, which are the same; only keys have the last two.
macro_rules! by_format {
    ($rows:expr, $next:expr, |$r:ident, $n:ident| $f16:expr, $q8:expr, $q4:expr $(, $channel4:expr, $channel8:expr)?) => {
        match ($rows, $next) {
            (AnyRows::F16($r), AnyRows::F16($n)) => $f16,
            (AnyRows::Q8($r), AnyRows::Q8($n)) => $q8,
            (AnyRows::Q4($r), AnyRows::Q4($n)) => $q4,
            $(
                (AnyRows::Q4Channel($r), AnyRows::Q4Channel($n)) => $channel4,
                (AnyRows::Q8Channel($r), AnyRows::Q8Channel($n)) => $channel8,
            )?
            _ => unreachable!("the pages of a layer have one format"),
        }
    };
}

impl<'a> Page<'a> {
    fn new(tile: &Tile<'a>, index: usize) -> Self {
        let Common { kv, first_pos, .. } = tile.common;
        let (layout, data) = (&kv.layout, kv.page(index));
        let keys = match &kv.fresh {
            // All queries of the tile are in this page.
            Some(fresh) if layout.k.per_channel() && index == first_pos / PAGE_TOKENS => {
                AnyRows::keys(&layout.fresh(), fresh.page(index), tile.kv_head)
            }
            _ => AnyRows::keys(layout, data, tile.kv_head),
        };
        Page { index, keys, values: AnyRows::values(layout, data, tile.kv_head) }
    }
}

impl Kernels {
    /// Computes `work.state` for one partition of the context.
    pub(super) fn attend(&self, tile: &Tile<'_>, part: usize, work: &mut Work<'_>) {
        work.state.clear();
        score_part(self, tile, part, work);
        for row in 0..tile.rows {
            let pages = tile.pages_of(row, part);
            if pages != 0 {
                call!(self, soften(pages, row, work));
            }
        }
        for (index, next) in each(tile.pages(part), part) {
            let (page, next) = page_and_next(tile, index, next);
            work.at = index * PAGE_TOKENS - part * PART_TOKENS;
            if tiled(tile) {
                self.add_tiled(tile, page, next, work);
            } else {
                self.add_direct(tile, page, next, work);
            }
        }
    }

    fn score_direct(&self, tile: &Tile<'_>, page: Page<'_>, next: Page<'_>, work: &mut Work<'_>) {
        for (row, rows) in queries(tile) {
            let slots = slots(tile, row, page.index);
            if !slots.is_empty() {
                by_format!(
                    page.keys,
                    next.keys,
                    |page, next| {
                        call!(self, scores_f16(&Block { page, next, slots: &slots, row, rows }, work))
                    },
                    call!(self, scores_q8(&Block { page, next, slots: &slots, row, rows }, work)),
                    call!(self, scores_q4(&Block { page, next, slots: &slots, row, rows }, work)),
                    call!(self, scores_q4_channel(&Block { page, next, slots: &slots, row, rows }, work)),
                    call!(self, scores_q8_channel(&Block { page, next, slots: &slots, row, rows }, work))
                );
                for row in row..row + rows {
                    call!(self, scale_scores(scores(tile, page), &slots, row, work));
                }
            }
        }
    }

    fn add_direct(&self, tile: &Tile<'_>, page: Page<'_>, next: Page<'_>, work: &mut Work<'_>) {
        for (row, rows) in queries(tile) {
            let slots = slots(tile, row, page.index);
            if !slots.is_empty() {
                if let Some(factors) = page.values.factors() {
                    for row in row..row + rows {
                        call!(self, fold_factors(factors, row, work));
                    }
                }
                by_format!(
                    page.values,
                    next.values,
                    |page, next| {
                        call!(self, values_f16(&Block { page, next, slots: &slots, row, rows }, work))
                    },
                    call!(self, values_q8(&Block { page, next, slots: &slots, row, rows }, work)),
                    call!(self, values_q4(&Block { page, next, slots: &slots, row, rows }, work))
                );
            }
        }
    }

    fn score_tiled(&self, tile: &Tile<'_>, page: Page<'_>, next: Page<'_>, work: &mut Work<'_>) {
        by_format!(
            page.keys,
            next.keys,
            |keys, next| call!(self, convert_keys(keys, next, work)),
            call!(self, convert_keys_q8(keys, next, work)),
            call!(self, convert_keys_q4(keys, next, work)),
            call!(self, convert_keys_q4_channel(keys, next, work)),
            call!(self, convert_keys_q8_channel(keys, next, work))
        );
        for row in (0..tile.rows).step_by(ROW_BLOCK) {
            let spans = block_slots(tile, row, page.index);
            if spans.iter().all(Range::is_empty) {
                continue;
            }
            call!(self, scores_f32(row, work));
            for (r, span) in spans.iter().enumerate() {
                if !span.is_empty() {
                    call!(self, scale_scores(scores(tile, page), span, row + r, work));
                }
            }
        }
    }

    /// The positions that all four rows see first (they must begin together), then what single rows see beyond them.
    fn add_tiled(&self, tile: &Tile<'_>, page: Page<'_>, next: Page<'_>, work: &mut Work<'_>) {
        by_format!(
            page.values,
            next.values,
            |values, next| call!(self, convert_values(values, next, work)),
            call!(self, convert_values_q8(values, next, work)),
            call!(self, convert_values_q4(values, next, work))
        );
        for row in (0..tile.rows).step_by(ROW_BLOCK) {
            let spans = block_slots(tile, row, page.index);
            if let Some(factors) = page.values.factors() {
                for r in (0..ROW_BLOCK).filter(|&r| !spans[r].is_empty()) {
                    call!(self, fold_factors(factors, row + r, work));
                }
            }
            let start = spans[0].start;
            let end = spans.iter().map(|span| span.end).min().unwrap_or(start);
            let together = end > start && spans.iter().all(|span| span.start == start);
            if together {
                let block = Block { page: (), next: (), slots: &(start..end), row, rows: ROW_BLOCK };
                call!(self, values_f32(&block, work));
            }
            for (r, span) in spans.iter().enumerate() {
                let rest = if together { end..span.end } else { span.clone() };
                if !rest.is_empty() {
                    let block = Block { page: (), next: (), slots: &rest, row: row + r, rows: 1 };
                    call!(self, values_f32(&block, work));
                }
            }
        }
    }
}

/// The pages of a partition that `bits` has, and the one behind each (the last one itself).
fn each(mut bits: u16, part: usize) -> impl Iterator<Item = (usize, usize)> {
    let first = part * PART_TOKENS / PAGE_TOKENS;
    std::iter::from_fn(move || {
        let at = bits.trailing_zeros() as usize;
        (bits != 0).then(|| {
            bits &= bits - 1;
            let next = if bits == 0 { at } else { bits.trailing_zeros() as usize };
            (first + at, first + next)
        })
    })
}

fn page_and_next<'a>(tile: &Tile<'a>, index: usize, next: usize) -> (Page<'a>, Page<'a>) {
    let (page, mut next) = (Page::new(tile, index), Page::new(tile, next));
    if discriminant(&page.keys) != discriminant(&next.keys) {
        // Only the page of the queries themselves has other keys than those before it. What is fetched ahead is a hint.
        next.keys = page.keys;
    }
    (page, next)
}

/// Puts the scores of one partition into `work.p`, and their maxima into `work.state.m`.
pub(super) fn score_part(kernels: &Kernels, tile: &Tile<'_>, part: usize, work: &mut Work<'_>) {
    for (index, next) in each(tile.pages(part), part) {
        let (page, next) = page_and_next(tile, index, next);
        work.at = index * PAGE_TOKENS - part * PART_TOKENS;
        if tiled(tile) {
            kernels.score_tiled(tile, page, next, work);
        } else {
            kernels.score_direct(tile, page, next, work);
        }
    }
}

/// The rows of each query, which see the same slots: first row and how many, fewer than [`TILED_FROM`].
fn queries(tile: &Tile<'_>) -> impl Iterator<Item = (usize, usize)> {
    let (heads, rows) = (tile.heads, tile.rows);
    let mut row = 0;
    std::iter::from_fn(move || {
        let first = row;
        row += heads - first % heads;
        (first < rows).then(|| (first, row.min(rows) - first))
    })
}

/// What four rows see of a page; nothing where the tile has no such row.
fn block_slots(tile: &Tile<'_>, row: usize, page: usize) -> [Range<usize>; ROW_BLOCK] {
    std::array::from_fn(|r| if row + r < tile.rows { slots(tile, row + r, page) } else { 0..0 })
}

fn scores<'a>(tile: &Tile<'a>, page: Page<'a>) -> Scores<'a> {
    Scores { factors: page.keys.factors(), scale: tile.common.scale, soft_cap: tile.common.soft_cap }
}
