//! Readers of keys and values: sixteen values of one token of a page, as f32.
//!
//! A scale per token is folded into the score (K) or into the probability (V) by the caller, so that int8 rows stay unscaled here.
//! Scales of parts of a row cannot be folded: int4 rows are scaled, which is exact (4 bits times 3).

use super::channel4::Channel4Rows;
use super::channel8::Channel8Rows;
use super::format::{KvFormat, Q4_GROUP};
use super::{KvLayout, PAGE_TOKENS};
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

    /// Values `16 chunk ..` of a row, zeros beyond its end: as it lies in the page, where rows are padded.
    #[inline(always)]
    fn load_padded<S: Lanes>(self, s: S, token: usize, chunk: usize) -> S::V {
        assert!(token < PAGE_TOKENS && chunk < self.whole_chunks());
        // SAFETY: checked above.
        unsafe { self.load(s, token, chunk) }
    }
}

/// Hints at a row some way on, in this page or in the next.
#[inline(always)]
pub(super) fn prefetch_row<S: Lanes>(s: S, data: &[u16], next: &[u16], stride: usize, token: usize) {
    let ahead = token + (AHEAD / stride).clamp(1, PAGE_TOKENS);
    let (page, token) = if ahead < PAGE_TOKENS { (data, ahead) } else { (next, ahead - PAGE_TOKENS) };
    let row = page.as_ptr().wrapping_add(token * stride);
    for line in 0..stride.div_ceil(LINE) {
        s.prefetch(row.wrapping_add(line * LINE));
    }
}

/// Hints at the scales of the next page, when this one is begun.
#[inline(always)]
pub(super) fn prefetch_scales<S: Lanes>(s: S, next: &[u16], token: usize) {
    if token == 0 {
        for line in 0..next.len().div_ceil(LINE) {
            s.prefetch(next.as_ptr().wrapping_add(line * LINE));
        }
    }
}

/// The rows of one KV head in one page, of any format.
#[derive(Clone, Copy)]
pub(super) enum AnyRows<'a> {
    F16(F16Rows<'a>),
    Q8(Q8Rows<'a>),
    Q4(Q4Rows<'a>),
    Q4Channel(Channel4Rows<'a>),
    Q8Channel(Channel8Rows<'a>),
}

impl<'a> AnyRows<'a> {
    fn new(format: KvFormat, area: &'a [u16], dim: usize) -> Self {
        let (rows, scales) = area.split_at(PAGE_TOKENS * format.row_words(dim));
        match format {
            KvFormat::F16 => AnyRows::F16(F16Rows::new(rows, dim)),
            KvFormat::Q8 => AnyRows::Q8(Q8Rows::new(rows, scales, dim)),
            KvFormat::Q4 => AnyRows::Q4(Q4Rows::new(rows, scales, dim)),
            KvFormat::Q4Channel => AnyRows::Q4Channel(Channel4Rows::new(area, dim)),
            KvFormat::Q8Channel => AnyRows::Q8Channel(Channel8Rows::new(rows, scales, dim)),
        }
    }

    pub(super) fn keys(layout: &KvLayout, page: &'a [u16], kv_head: usize) -> Self {
        Self::new(layout.k, &page[layout.keys(kv_head)], layout.shape.k_dim)
    }

    pub(super) fn values(layout: &KvLayout, page: &'a [u16], kv_head: usize) -> Self {
        Self::new(layout.v, &page[layout.values(kv_head)], layout.shape.v_dim)
    }

    /// A scale (a half) per token that is not part of what the rows give.
    pub(super) fn factors(&self) -> Option<&'a [u16; PAGE_TOKENS]> {
        match self {
            AnyRows::Q8(rows) => rows.scales.first_chunk(),
            AnyRows::F16(_) | AnyRows::Q4(_) | AnyRows::Q4Channel(_) | AnyRows::Q8Channel(_) => None,
        }
    }
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
}

impl Rows for F16Rows<'_> {
    #[inline(always)]
    unsafe fn load<S: Lanes>(self, s: S, token: usize, chunk: usize) -> S::V {
        // SAFETY: `data` has PAGE_TOKENS rows of `dim` (checked in `new`), and the sixteen values lie in the row of `token`.
        s.load_f16(unsafe { &*self.data.as_ptr().add(token * self.dim + chunk * LANES).cast() })
    }

    #[inline(always)]
    fn prefetch<S: Lanes>(self, s: S, token: usize, next: Self) {
        prefetch_row(s, self.data, next.data, self.dim, token);
    }

    #[inline(always)]
    fn whole_chunks(self) -> usize {
        self.dim / LANES
    }

    #[inline(always)]
    fn load_padded<S: Lanes>(self, s: S, token: usize, chunk: usize) -> S::V {
        let row = &self.data[token * self.dim..(token + 1) * self.dim];
        match row[chunk * LANES..].first_chunk() {
            Some(values) => s.load_f16(values),
            None => load_part_f16(s, &row[chunk * LANES..]),
        }
    }
}

/// int8 as it lies in the page, not scaled.
#[derive(Clone, Copy)]
pub(crate) struct Q8Rows<'a> {
    data: &'a [u16],
    scales: &'a [u16],
    /// Words of a row.
    stride: usize,
}

impl<'a> Q8Rows<'a> {
    fn new(data: &'a [u16], scales: &'a [u16], dim: usize) -> Self {
        let stride = KvFormat::Q8.row_words(dim);
        assert!(data.len() == PAGE_TOKENS * stride && scales.len() == PAGE_TOKENS, "rows of a page");
        Q8Rows { data, scales, stride }
    }
}

impl Rows for Q8Rows<'_> {
    #[inline(always)]
    unsafe fn load<S: Lanes>(self, s: S, token: usize, chunk: usize) -> S::V {
        // SAFETY: `data` has PAGE_TOKENS rows of `stride` words (checked in `new`), and the sixteen bytes are eight words in the row of
        // `token`. Bytes need no alignment, and any byte is an int8.
        s.load_i8(unsafe { &*self.data.as_ptr().add(token * self.stride + chunk * (LANES / 2)).cast() })
    }

    #[inline(always)]
    fn prefetch<S: Lanes>(self, s: S, token: usize, next: Self) {
        prefetch_row(s, self.data, next.data, self.stride, token);
        prefetch_scales(s, next.scales, token);
    }

    #[inline(always)]
    fn whole_chunks(self) -> usize {
        self.stride / (LANES / 2)
    }
}

/// int4, scaled.
#[derive(Clone, Copy)]
pub(crate) struct Q4Rows<'a> {
    data: &'a [u16],
    scales: &'a [u16],
    /// Words of scales, and so groups of 32 values, of a row.
    groups: usize,
}

/// Words of a group.
pub(super) const GROUP_WORDS: usize = Q4_GROUP / 4;

impl<'a> Q4Rows<'a> {
    fn new(data: &'a [u16], scales: &'a [u16], dim: usize) -> Self {
        let groups = KvFormat::Q4.row_scales(dim);
        let rows = PAGE_TOKENS * groups;
        assert!(data.len() == rows * GROUP_WORDS && scales.len() == rows, "rows of a page");
        Q4Rows { data, scales, groups }
    }
}

impl Rows for Q4Rows<'_> {
    #[inline(always)]
    unsafe fn load<S: Lanes>(self, s: S, token: usize, chunk: usize) -> S::V {
        let group = token * self.groups + chunk / 2;
        // SAFETY: the chunk is half of a group of the row of `token`, and there are PAGE_TOKENS rows of groups (checked in `new`): eight
        // words and a word with two scales each. Bytes need no alignment.
        let (nibbles, scale) = unsafe {
            (
                &*self.data.as_ptr().add(group * GROUP_WORDS).cast::<[u8; LANES]>(),
                *self.scales.as_ptr().cast::<u8>().add(2 * group + chunk % 2),
            )
        };
        s.mul(s.load_i4(nibbles, chunk % 2 == 1), s.splat_f16(u16::from(scale) << 8))
    }

    #[inline(always)]
    fn prefetch<S: Lanes>(self, s: S, token: usize, next: Self) {
        prefetch_row(s, self.data, next.data, self.groups * GROUP_WORDS, token);
        prefetch_scales(s, next.scales, token);
    }

    #[inline(always)]
    fn whole_chunks(self) -> usize {
        2 * self.groups
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

    #[inline(always)]
    fn load_padded<S: Lanes>(self, s: S, token: usize, chunk: usize) -> S::V {
        s.load(self.data[token * self.stride + chunk * LANES..].first_chunk().unwrap_or(&[0.0; LANES]))
    }
}
