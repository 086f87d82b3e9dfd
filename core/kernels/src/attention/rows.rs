//! Readers of keys and values: sixteen values of one token of a page, as f32.
//!
//! A quantised page type is another implementation. A scale per token would be folded into the score (K) or into the probability (V)
//! by the caller, so that rows stay unscaled here.

use super::PAGE_TOKENS;
use crate::math::{LANES, Lanes, load_part_f16};

/// Halves in a cache line.
const LINE: usize = 32;

/// Halves that are fetched ahead: 4 KiB each of K and V hide the latency of memory, and leave room in a first-level cache of 32 KiB.
const AHEAD: usize = 2048;

/// The rows of one KV head in one page.
pub(super) trait Rows: Copy {
    /// Values `16 chunk ..` of the row of `token`.
    ///
    /// # Safety
    /// `token < PAGE_TOKENS` and `chunk < self.whole_chunks()`.
    unsafe fn load<S: Lanes>(self, s: S, token: usize, chunk: usize) -> S::V;

    /// Hints at what is read soon when `token` is being read now: a row some way on, in this page or in the next.
    fn prefetch<S: Lanes>(self, s: S, token: usize, next: Self);

    /// Chunks of sixteen values that a row has in full.
    fn whole_chunks(self) -> usize;
}

/// Half precision, as it lies in the page.
#[derive(Clone, Copy)]
pub(crate) struct F16Rows<'a> {
    data: &'a [u16],
    dim: usize,
}

impl<'a> F16Rows<'a> {
    pub(super) fn new(data: &'a [u16], dim: usize) -> Self {
        assert_eq!(data.len(), PAGE_TOKENS * dim, "rows of a page");
        F16Rows { data, dim }
    }

    /// Values `16 chunk ..` of a row, zeros beyond its end.
    #[inline(always)]
    pub(super) fn load_padded<S: Lanes>(self, s: S, token: usize, chunk: usize) -> S::V {
        let row = &self.data[token * self.dim..(token + 1) * self.dim];
        match row[chunk * LANES..].first_chunk() {
            Some(values) => s.load_f16(values),
            None => load_part_f16(s, &row[chunk * LANES..]),
        }
    }
}

impl Rows for F16Rows<'_> {
    #[inline(always)]
    unsafe fn load<S: Lanes>(self, s: S, token: usize, chunk: usize) -> S::V {
        // SAFETY: `data` has PAGE_TOKENS rows of `dim` (checked in `new`), and the sixteen values lie in the row of `token`.
        s.load_f16(unsafe { &*self.data.as_ptr().add(token * self.dim + chunk * LANES).cast() })
    }

    #[inline(always)]
    fn prefetch<S: Lanes>(self, s: S, token: usize, next: Self) {
        let ahead = token + (AHEAD / self.dim).clamp(1, PAGE_TOKENS);
        let (page, token) = if ahead < PAGE_TOKENS { (self, ahead) } else { (next, ahead - PAGE_TOKENS) };
        let row = page.data.as_ptr().wrapping_add(token * self.dim);
        for line in 0..self.dim.div_ceil(LINE) {
            s.prefetch(row.wrapping_add(line * LINE));
        }
    }

    #[inline(always)]
    fn whole_chunks(self) -> usize {
        self.dim / LANES
    }
}

/// A page converted to f32, rows padded to whole vectors.
#[derive(Clone, Copy)]
pub(super) struct F32Rows<'a> {
    data: &'a [f32],
    stride: usize,
}

impl<'a> F32Rows<'a> {
    pub(super) fn new(data: &'a [f32], stride: usize) -> Self {
        assert_eq!(data.len(), PAGE_TOKENS * stride, "rows of a page");
        F32Rows { data, stride }
    }
}

impl Rows for F32Rows<'_> {
    #[inline(always)]
    unsafe fn load<S: Lanes>(self, s: S, token: usize, chunk: usize) -> S::V {
        // SAFETY: as for `F16Rows`.
        s.load(unsafe { &*self.data.as_ptr().add(token * self.stride + chunk * LANES).cast() })
    }

    /// It was written a moment ago.
    #[inline(always)]
    fn prefetch<S: Lanes>(self, _: S, _: usize, _: Self) {}

    #[inline(always)]
    fn whole_chunks(self) -> usize {
        self.stride / LANES
    }
}
