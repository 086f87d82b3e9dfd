//! Readers of keys and values: sixteen values of one token of a page, as f32.
//!
//! A quantised page type is another implementation. A scale per token would be folded into the score (K) or into the probability (V)
//! by the caller, so that rows stay unscaled here.

use super::PAGE_TOKENS;
use crate::math::{LANES, Lanes, load_part_f16};

/// The rows of one KV head in one page.
pub(super) trait Rows: Copy {
    /// Values `16 chunk ..` of the row of `token`, zeros beyond its end.
    ///
    /// # Safety
    /// `token < PAGE_TOKENS` and `chunk < dim.div_ceil(16)` for the row length `dim` that the reader was made with.
    unsafe fn load<S: Lanes>(self, s: S, token: usize, chunk: usize) -> S::V;
}

/// Half precision, as it lies in the page.
#[derive(Clone, Copy)]
pub(super) struct F16Rows<'a> {
    data: &'a [u16],
    dim: usize,
}

impl<'a> F16Rows<'a> {
    pub(super) fn new(data: &'a [u16], dim: usize) -> Self {
        assert_eq!(data.len(), PAGE_TOKENS * dim, "rows of a page");
        F16Rows { data, dim }
    }
}

impl Rows for F16Rows<'_> {
    #[inline(always)]
    unsafe fn load<S: Lanes>(self, s: S, token: usize, chunk: usize) -> S::V {
        let at = token * self.dim + chunk * LANES;
        if (chunk + 1) * LANES <= self.dim {
            // SAFETY: the row of `token` lies in `data` (checked in `new`), and these 16 values lie in the row.
            let values = unsafe { &*self.data.as_ptr().add(at).cast::<[u16; LANES]>() };
            s.load_f16(values)
        } else {
            load_part_f16(s, &self.data[at..(token + 1) * self.dim])
        }
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
        assert!(stride.is_multiple_of(LANES), "padded rows");
        F32Rows { data, stride }
    }
}

impl Rows for F32Rows<'_> {
    #[inline(always)]
    unsafe fn load<S: Lanes>(self, s: S, token: usize, chunk: usize) -> S::V {
        // SAFETY: the row of `token` lies in `data` and is whole vectors (checked in `new`).
        let values =
            unsafe { &*self.data.as_ptr().add(token * self.stride + chunk * LANES).cast::<[f32; LANES]>() };
        s.load(values)
    }
}
