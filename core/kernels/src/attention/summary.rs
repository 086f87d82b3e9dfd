//! Summaries of pages: the largest and the smallest value of each channel of a page's keys, and what follows from them.
//!
//! ```text
//! summary  of a KV head: dim halves, the largest of each channel; dim halves, the smallest; both padded with zeros to whole vectors
//! bound    no key of the page has a larger product with q than   sum over channels of max(q largest, q smallest)
//!        = q+ . largest + q- . smallest                          where q+ = max(q, 0) and q- = min(q, 0)
//! ```
//!
//! So a bound is a dot product of a row that is twice as long as a key (and costs a sixteenth of reading 32 keys in half precision); the idea
//! is that of Quest (arXiv:2406.10774).
//!
//! Summaries lie in the pages that they are of: whatever happens to a page (it is shared, copied, saved) happens to its summary. It is made when
//! the 32nd row is written, from the keys as they are read (rounded, if their format rounds), so it follows from the page; a page that is not full
//! has none, and nobody asks for it.

// Loops over the registers of a block; see `stages.rs`.
#![allow(clippy::needless_range_loop)]

use std::ops::Range;

use half::f16;

use super::channel4;
use super::channel8;
use super::format::{KvFormat, KvLayout, Q4_GROUP};
use super::quantise::scale_of_q4;
use super::scratch::{ROW_BLOCK, padded};
use super::{KvPages, PAGE_TOKENS};
use crate::math::{LANES, Lanes};

/// Pages that are fetched ahead. A summary is a few lines at an address of its own, which no hardware foresees.
const AHEAD: usize = 8;

/// Halves in a cache line.
const LINE: usize = 32;

/// The largest half, in the order of [`ordered`]; the smallest is one below its negative.
const MOST: i16 = 0x7bff;

impl KvLayout {
    /// Words of one head's summary, or none.
    pub(super) fn summary_len(&self) -> usize {
        if self.summaries { 2 * padded(self.shape.k_dim) } else { 0 }
    }

    /// The words of a KV head's summary, behind all keys and values.
    pub(super) fn summary(&self, kv_head: usize) -> Range<usize> {
        let len = self.summary_len();
        let first = self.page_len() - self.shape.kv_heads * len + kv_head * len;
        first..first + len
    }

    /// Makes the summary of a page all of whose rows were written, if its layout has one.
    ///
    /// # Panics
    /// If the page is too short.
    pub fn summarise(&self, page: &mut [u16]) {
        if !self.summaries {
            return;
        }
        let dim = self.shape.k_dim;
        for head in 0..self.shape.kv_heads {
            let (rows, summary) = page.split_at_mut(self.summary(head).start);
            let keys = Keys::new(self.k, &rows[self.keys(head)], dim);
            let (largest, smallest) = summary[..self.summary_len()].split_at_mut(padded(dim));
            for group in 0..dim.div_ceil(Q4_GROUP) {
                let (mut high, mut low) = ([i16::MIN; Q4_GROUP], [i16::MAX; Q4_GROUP]);
                for slot in 0..PAGE_TOKENS {
                    let row = keys.group(slot, group);
                    for c in 0..Q4_GROUP {
                        high[c] = high[c].max(row[c]);
                        low[c] = low[c].min(row[c]);
                    }
                }
                for c in 0..Q4_GROUP.min(dim - group * Q4_GROUP) {
                    // What is not finite becomes something finite: infinity times nothing would be no bound.
                    let stored = |x: i16| ordered(x.clamp(-MOST - 1, MOST) as u16) as u16;
                    largest[group * Q4_GROUP + c] = stored(high[c]);
                    smallest[group * Q4_GROUP + c] = stored(low[c]);
                }
            }
            largest[dim..].fill(0);
            smallest[dim..].fill(0);
        }
    }

    /// Clears the summary of a page.
    ///
    /// # Panics
    /// If the page is too short.
    pub fn clear_summary(&self, page: &mut [u16]) {
        for head in 0..self.shape.kv_heads {
            page[self.summary(head)].fill(0);
        }
    }
}

/// A half as an integer of the same order, and back: negative ones have their other bits turned.
fn ordered(half: u16) -> i16 {
    (half ^ (((half as i16 >> 15) as u16) >> 1)) as i16
}

/// The keys of one head in a page, as they are read.
struct Keys<'a> {
    format: KvFormat,
    rows: &'a [u16],
    scales: &'a [u16],
    dim: usize,
}

impl<'a> Keys<'a> {
    fn new(format: KvFormat, area: &'a [u16], dim: usize) -> Self {
        let (rows, scales) = area.split_at(PAGE_TOKENS * format.row_words(dim));
        Keys { format, rows, scales, dim }
    }

    /// 32 channels of a row, [`ordered`]; anything behind the last channel.
    fn group(&self, slot: usize, group: usize) -> [i16; Q4_GROUP] {
        let words = self.format.row_words(self.dim);
        let row = &self.rows[slot * words..(slot + 1) * words];
        let scale = |i: usize| f16::from_bits(self.scales[i]).to_f32();
        let stored = |x: f32| ordered(f16::from_f32(x).to_bits());
        let mut out = [0; Q4_GROUP];
        match self.format {
            KvFormat::F16 => {
                for (out, &half) in out.iter_mut().zip(&row[group * Q4_GROUP..]) {
                    *out = ordered(half);
                }
            }
            KvFormat::Q8 => {
                let d = scale(slot);
                bytes(row, group, |c, q| out[c] = stored(d * q));
            }
            KvFormat::Q8Channel => {
                let (d, m) = channel8::channel_scales(self.scales, self.dim, group);
                bytes(row, group, |c, q| out[c] = stored(q.mul_add(d[c], m[c])));
            }
            KvFormat::Q4 => {
                let scales = self.scales[slot * self.format.row_scales(self.dim) + group].to_le_bytes();
                let d = scales.map(scale_of_q4);
                nibbles(row, group, |c, q| out[c] = stored(d[c / (Q4_GROUP / 2)] * q));
            }
            KvFormat::Q4Channel => {
                let (d, m) = channel4::channel_scales(self.scales, self.dim, group);
                nibbles(row, group, |c, q| out[c] = stored(q.mul_add(d[c], m[c])));
            }
        }
        out
    }
}

/// The values of a group of int8.
fn bytes(row: &[u16], group: usize, mut each: impl FnMut(usize, f32)) {
    for (i, word) in row[group * Q4_GROUP / 2..].iter().take(Q4_GROUP / 2).enumerate() {
        for (c, byte) in (2 * i..).zip(word.to_le_bytes()) {
            each(c, f32::from(byte as i8));
        }
    }
}

/// The steps, -8 ..= 7, of a group of int4.
fn nibbles(row: &[u16], group: usize, mut each: impl FnMut(usize, f32)) {
    let half = Q4_GROUP / 2;
    for (i, word) in row[group * Q4_GROUP / 4..(group + 1) * Q4_GROUP / 4].iter().enumerate() {
        for (c, byte) in (2 * i..).zip(word.to_le_bytes()) {
            each(c, f32::from(byte & 15) - 8.0);
            each(c + half, f32::from(byte >> 4) - 8.0);
        }
    }
}

/// The summaries of one KV head, from a page on.
#[derive(Clone, Copy)]
pub(crate) struct Summaries<'a> {
    pub kv: KvPages<'a>,
    pub kv_head: usize,
    pub first: usize,
    /// How many.
    pub count: usize,
}

/// Splits a query into its positive and its negative part, as it is multiplied with summaries.
pub(super) fn split_query(q: &[f32], parts: &mut [f32]) {
    parts.fill(0.0);
    let (plus, minus) = parts.split_at_mut(parts.len() / 2);
    for ((plus, minus), &q) in plus.iter_mut().zip(minus).zip(q) {
        *(if q > 0.0 { plus } else { minus }) = q;
    }
}

/// The bounds of pages for up to four queries: sixteen-lane dots of each (a row of `q`, as long as a summary) with the summaries. Rows of `out` are
/// `stride` apart, which is room for whole vectors.
#[inline(always)]
pub(crate) fn page_bounds<S: Lanes>(
    s: S,
    (q, rows): (&[f32], usize),
    pages: &Summaries<'_>,
    out: &mut [f32],
    stride: usize,
) {
    match rows {
        1 => bounds_of::<S, 1>(s, q, pages, out, stride),
        2 => bounds_of::<S, 2>(s, q, pages, out, stride),
        3 => bounds_of::<S, 3>(s, q, pages, out, stride),
        _ => bounds_of::<S, ROW_BLOCK>(s, q, pages, out, stride),
    }
}

#[inline(always)]
fn bounds_of<S: Lanes, const M: usize>(
    s: S,
    q: &[f32],
    pages: &Summaries<'_>,
    out: &mut [f32],
    stride: usize,
) {
    let range = pages.kv.layout.summary(pages.kv_head);
    let row = |i: usize| &pages.kv.page(pages.first + i)[range.clone()];
    let chunks = range.len() / LANES;
    let (q, _) = q.as_chunks::<LANES>();
    let q = &q[..M * chunks];
    let last = pages.count.saturating_sub(1);
    for block in 0..pages.count.div_ceil(LANES) {
        let mut sums = [[s.splat(0.0); LANES]; M];
        for i in 0..LANES.min(pages.count - block * LANES) {
            let page = block * LANES + i;
            let ahead = row((page + AHEAD).min(last)).as_ptr();
            for line in 0..range.len().div_ceil(LINE) {
                s.prefetch(ahead.wrapping_add(line * LINE));
            }
            let (halves, _) = row(page).as_chunks::<LANES>();
            let mut acc = [s.splat(0.0); M];
            for c in 0..chunks {
                let extremes = s.load_f16(&halves[c]);
                for m in 0..M {
                    acc[m] = s.fma(s.load(&q[m * chunks + c]), extremes, acc[m]);
                }
            }
            for m in 0..M {
                sums[m][i] = acc[m];
            }
        }
        for m in 0..M {
            let (out, _) = out[m * stride + block * LANES..].as_chunks_mut::<LANES>();
            s.store(s.sum_each(&sums[m]), &mut out[0]);
        }
    }
}
