//! Keys with a scale and an offset per channel of a page (as in KIVI, arXiv:2402.02750), and the half precision in which the newest
//! page is read.
//!
//! Single channels of keys are large, and nearly the same in neighbouring tokens: an offset takes that off, where a scale per token has to
//! span it. But a channel is known only when its page is full, so the rule is one of positions:
//!
//! ```text
//! a query at position P reads the page P / 32, its own, from the fresh keys (halves), and all earlier ones as integers
//! the integers of a page are a function of its 32 rows of halves
//! ```
//!
//! So what a query sees depends neither on how a prompt was cut nor on how many queries are computed together: a batch is split where its
//! queries enter another page. How the integers lie is told in `channel4.rs` and `channel8.rs`.

// Loops over all channels of several arrays at once, which become vectors.
#![allow(clippy::needless_range_loop)]

use half::f16;

use super::format::{KvFormat, KvLayout, Q4_GROUP};
use super::quantise::{MOST, within};
use super::{AttentionShape, PAGE_TOKENS, channel4, channel8};

/// Where the bits of a scale lie in a half: below the sign, above what is dropped of the mantissa.
pub(super) const SCALE_SHIFT: u32 = 7;

/// The fresh keys of the newest pages of a layer.
#[derive(Clone, Copy, Debug)]
pub struct FreshKeys<'a> {
    /// Storage, as in [`KvPages`](super::KvPages); a page is one of [`KvLayout::fresh`].
    pub chunks: &'a [Box<[u16]>],
    /// Pages in a chunk.
    pub chunk_pages: usize,
    /// Distance between pages in a chunk.
    pub page_len: usize,
    /// Entry `i` holds the keys of page `first + i`.
    pub table: &'a [u32],
    /// The first page that there are fresh keys of.
    pub first: usize,
}

impl<'a> FreshKeys<'a> {
    /// The keys of positions `32 i .. 32 (i + 1)`.
    ///
    /// # Panics
    /// If there are none.
    pub fn page(&self, i: usize) -> &'a [u16] {
        let page = self.table[i - self.first] as usize;
        &self.chunks[page / self.chunk_pages][page % self.chunk_pages * self.page_len..][..self.page_len]
    }

    pub(super) fn holds(&self, i: usize) -> bool {
        i >= self.first && i - self.first < self.table.len()
    }
}

impl KvLayout {
    /// How the fresh keys of a page lie: halves, and no values.
    #[must_use]
    pub fn fresh(&self) -> KvLayout {
        KvLayout::f16(AttentionShape { v_dim: 0, ..self.shape })
    }

    /// Computes the keys of a page, of a format that has scales per channel, from its fresh keys, all 32 of which were written.
    ///
    /// # Panics
    /// If a page is too short, or the keys have another format.
    pub fn close_keys(&self, fresh: &[u16], page: &mut [u16]) {
        let halves = self.fresh();
        for head in 0..self.shape.kv_heads {
            let (rows, dim, area) = (&fresh[halves.keys(head)], self.shape.k_dim, &mut page[self.keys(head)]);
            match self.k {
                KvFormat::Q4Channel => channel4::quantise(rows, dim, area),
                KvFormat::Q8Channel => channel8::quantise(rows, dim, area),
                other => unreachable!("keys of {other:?} are written row by row"),
            }
        }
    }

    /// Clears all keys of a page.
    ///
    /// # Panics
    /// If the page is too short.
    pub fn clear_keys(&self, page: &mut [u16]) {
        for head in 0..self.shape.kv_heads {
            page[self.keys(head)].fill(0);
        }
    }
}

/// A value of each channel of a group.
pub(super) type Channels = [f32; Q4_GROUP];

/// The scale of a byte.
pub(super) fn scale_of(code: u8) -> f32 {
    f16::from_bits(u16::from(code) << SCALE_SHIFT).to_f32()
}

/// The byte of the smallest scale that is not below `scale`, which is that of two halves and so far from the largest.
pub(super) fn code_of(scale: f32) -> u8 {
    (u32::from(f16::from_f32(scale).to_bits()).next_multiple_of(1 << SCALE_SHIFT) >> SCALE_SHIFT) as u8
}

/// Values of each channel that span it. What is not finite becomes something finite, here as in the other formats.
pub(super) struct Span {
    pub x: [Channels; PAGE_TOKENS],
    pub low: Channels,
    pub high: Channels,
}

impl Span {
    /// A group of the rows of a head. Channels behind the last one are zero.
    pub(super) fn of(rows: &[u16], dim: usize, group: usize) -> Span {
        let channels = group * Q4_GROUP..dim.min((group + 1) * Q4_GROUP);
        let mut x = [[0.0; Q4_GROUP]; PAGE_TOKENS];
        let (mut low, mut high) = ([MOST; Q4_GROUP], [-MOST; Q4_GROUP]);
        for (x, row) in x.iter_mut().zip(rows.chunks_exact(dim)) {
            for (x, &half) in x.iter_mut().zip(&row[channels.clone()]) {
                *x = within(f16::from_bits(half).to_f32(), -MOST, MOST);
            }
            for c in 0..Q4_GROUP {
                low[c] = if x[c] < low[c] { x[c] } else { low[c] };
                high[c] = if x[c] > high[c] { x[c] } else { high[c] };
            }
        }
        Span { x, low, high }
    }
}
