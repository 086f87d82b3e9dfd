//! The pages of one partition, one after the other, for one tile.

use std::ops::Range;

use super::rows::F16Rows;
use super::schedule::Tile;
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
    let span = tile.span(row);
    let first = page * PAGE_TOKENS;
    let end = span.end.saturating_sub(first).min(PAGE_TOKENS);
    span.start.saturating_sub(first).min(end)..end
}

/// A page's keys and values of one KV head.
#[derive(Clone, Copy)]
struct Page<'a> {
    index: usize,
    keys: F16Rows<'a>,
    values: F16Rows<'a>,
}

impl<'a> Page<'a> {
    fn new(tile: &Tile<'a>, index: usize) -> Self {
        let shape = &tile.common.shape;
        let data = tile.common.kv.page(index);
        let keys = &data[shape.key_at(tile.kv_head, 0)..][..PAGE_TOKENS * shape.k_dim];
        let values = &data[shape.value_at(tile.kv_head, 0)..][..PAGE_TOKENS * shape.v_dim];
        Page { index, keys: F16Rows::new(keys, shape.k_dim), values: F16Rows::new(values, shape.v_dim) }
    }
}

impl Kernels {
    /// Computes `work.state` for one partition of the context.
    pub(super) fn attend(&self, tile: &Tile<'_>, part: usize, work: &mut Work<'_>) {
        work.state.clear();
        let spans = tile.spans();
        let span = spans.start.max(part * PART_TOKENS)..spans.end.min((part + 1) * PART_TOKENS);
        for index in span.start / PAGE_TOKENS..span.end.div_ceil(PAGE_TOKENS) {
            let page = Page::new(tile, index);
            let next = if (index + 1) * PAGE_TOKENS < span.end { Page::new(tile, index + 1) } else { page };
            if tiled(tile) {
                self.page_tiled(tile, page, next, work);
            } else {
                self.page_direct(tile, page, next, work);
            }
        }
    }

    fn page_direct(&self, tile: &Tile<'_>, page: Page<'_>, next: Page<'_>, work: &mut Work<'_>) {
        let mut row = 0;
        while row < tile.rows {
            // Rows of one query see the same slots; rows of different queries are separated here.
            let rows = (tile.heads - row % tile.heads).min(tile.rows - row).min(ROW_BLOCK);
            let slots = slots(tile, row, page.index);
            if !slots.is_empty() {
                let keys = Block { page: page.keys, next: next.keys, slots: &slots, row, rows };
                call!(self, scores_f16(&keys, work));
                let mut factors = [1.0; ROW_BLOCK];
                for (r, factor) in factors.iter_mut().enumerate().take(rows) {
                    *factor = call!(self, soften(scores(tile), &slots, row + r, work));
                }
                let values = Block { page: page.values, next: next.values, ..keys };
                call!(self, values_f16(&values, &factors, work));
            }
            row += rows;
        }
    }

    fn page_tiled(&self, tile: &Tile<'_>, page: Page<'_>, next: Page<'_>, work: &mut Work<'_>) {
        call!(self, convert_f16([page.keys, page.values], [next.keys, next.values], work));
        for row in (0..tile.rows).step_by(ROW_BLOCK) {
            let rows = ROW_BLOCK.min(tile.rows - row);
            let mut spans = [const { 0..0 }; ROW_BLOCK];
            for (r, span) in spans.iter_mut().enumerate().take(rows) {
                *span = slots(tile, row + r, page.index);
            }
            let spans = &spans[..rows];
            if spans.iter().all(|span| span.is_empty()) {
                continue;
            }
            call!(self, scores_f32(row, work));
            let mut factors = [1.0; ROW_BLOCK];
            for (r, span) in spans.iter().enumerate() {
                if !span.is_empty() {
                    factors[r] = call!(self, soften(scores(tile), span, row + r, work));
                }
            }
            self.add_values(row, spans, &mut factors, work);
        }
    }

    /// The positions that all four rows see first (they must begin together), then what single rows see beyond them.
    fn add_values(
        &self,
        row: usize,
        spans: &[Range<usize>],
        factors: &mut [f32; ROW_BLOCK],
        work: &mut Work<'_>,
    ) {
        let start = spans[0].start;
        let end = spans.iter().map(|span| span.end).min().unwrap_or(start);
        let together =
            spans.len() == ROW_BLOCK && spans.iter().all(|span| span.start == start) && end > start;
        if together {
            let block = Block { page: (), next: (), slots: &(start..end), row, rows: ROW_BLOCK };
            call!(self, values_f32(&block, factors, work));
            *factors = [1.0; ROW_BLOCK];
        }
        for (r, span) in spans.iter().enumerate() {
            let rest = if together { end..span.end } else { span.clone() };
            if !rest.is_empty() {
                let block = Block { page: (), next: (), slots: &rest, row: row + r, rows: 1 };
                call!(self, values_f32(&block, &[factors[r]; ROW_BLOCK], work));
            }
        }
    }
}

fn scores(tile: &Tile<'_>) -> Scores {
    Scores { scale: tile.common.scale, soft_cap: tile.common.soft_cap }
}
