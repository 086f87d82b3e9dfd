//! How keys and values lie in a page.
//!
//! ```text
//! page   K of KV head 0, K of head 1, … then V of head 0, V of head 1, …        in 16-bit words
//!        then a summary of K of head 0, of head 1, …                            if there are any (`summary.rs`)
//! head   32 rows, then the scales of 32 rows
//!
//! F16    row = dim halves                                         no scales
//! Q8     row = dim int8, padded to 16:  x[i] = d * q[i]           one half per row: d = max |x| / 127
//! Q4     row = 16 bytes per 32 values:  x[i] = d * (q[i] - 8)     a byte per 16 values, the upper half of a half; low nibbles are the first 16
//! ```
//!
//! These three are written token by token and never rewritten, so what a position holds does not depend on how a prompt was cut.
//! [`KvFormat::Q4Channel`] and [`KvFormat::Q8Channel`], for keys only, are written page by page: see `channel.rs`.

use std::ops::Range;

use super::quantise::{quantise_q4, quantise_q8};
use super::{AttentionShape, PAGE_TOKENS, channel4, channel8};
use crate::isa::Kernels;
use crate::math::LANES;

/// Values that lie together in [`KvFormat::Q4`]: two groups with a scale each.
pub(crate) const Q4_GROUP: usize = 32;

/// The element type of keys or of values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KvFormat {
    /// IEEE halves: 16 bits per value.
    #[default]
    F16,
    /// Symmetric int8 with a scale per token and head: 8 bits and 16 / dim.
    Q8,
    /// Symmetric int4 with a scale (of 8 bits) per 16 values of a token: 4.5 bits.
    Q4,
    /// int4 with a scale and an offset per channel of a page: 4.75 bits. Keys only; those of the page that a query is in are halves, which
    /// lie elsewhere ([`KvLayout::fresh`]).
    Q4Channel,
    /// int8 with a scale and an offset per channel of a page: 8.5 bits. Otherwise as [`KvFormat::Q4Channel`].
    Q8Channel,
}

impl KvFormat {
    /// Whether scales belong to channels of a page, so that keys are written when their page is full.
    pub fn per_channel(self) -> bool {
        matches!(self, KvFormat::Q4Channel | KvFormat::Q8Channel)
    }

    /// 16-bit words of one row, without its scales.
    pub(crate) fn row_words(self, dim: usize) -> usize {
        match self {
            KvFormat::F16 => dim,
            KvFormat::Q8 | KvFormat::Q8Channel => dim.next_multiple_of(LANES) / 2,
            KvFormat::Q4 | KvFormat::Q4Channel => dim.div_ceil(Q4_GROUP) * (Q4_GROUP / 4),
        }
    }

    /// Scales of one row, a word each; those of channels are no row's.
    pub(crate) fn row_scales(self, dim: usize) -> usize {
        match self {
            KvFormat::F16 | KvFormat::Q4Channel | KvFormat::Q8Channel => 0,
            KvFormat::Q8 => 1,
            KvFormat::Q4 => dim.div_ceil(Q4_GROUP),
        }
    }

    /// Words of the 32 rows of one head.
    fn area(self, dim: usize) -> usize {
        PAGE_TOKENS / 2 * self.row_bytes(dim)
    }

    /// Bytes of a row of `dim` values, its scales (or its share of those of a page) included.
    pub fn row_bytes(self, dim: usize) -> usize {
        let of_page = match self {
            KvFormat::F16 | KvFormat::Q8 | KvFormat::Q4 => 0,
            KvFormat::Q4Channel => dim.div_ceil(Q4_GROUP) * channel4::GROUP_BYTES,
            KvFormat::Q8Channel => dim.div_ceil(LANES) * channel8::CHUNK_BYTES,
        };
        2 * (self.row_words(dim) + self.row_scales(dim)) + of_page
    }
}

/// Where everything lies in the pages of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// KV heads and the lengths of keys and values; the number of query heads does not matter.
    pub shape: AttentionShape,
    /// Of keys.
    pub k: KvFormat,
    /// Of values.
    pub v: KvFormat,
    /// Whether each page has a summary of its keys.
    pub summaries: bool,
}

impl KvLayout {
    /// Keys and values in half precision, no summaries.
    pub fn f16(shape: AttentionShape) -> Self {
        KvLayout { shape, k: KvFormat::F16, v: KvFormat::F16, summaries: false }
    }

    /// 16-bit words of a page: K and V of all KV heads, and summaries of K.
    pub fn page_len(&self) -> usize {
        let rows = self.k.area(self.shape.k_dim) + self.v.area(self.shape.v_dim);
        self.shape.kv_heads * (rows + self.summary_len())
    }

    /// Bytes of one token, its share of a summary included: whole bytes, since summaries are whole vectors.
    pub fn bytes_per_token(&self) -> usize {
        let rows = self.k.row_bytes(self.shape.k_dim) + self.v.row_bytes(self.shape.v_dim);
        self.shape.kv_heads * (rows + 2 * self.summary_len() / PAGE_TOKENS)
    }

    /// The words of all keys of a KV head.
    pub(crate) fn keys(&self, kv_head: usize) -> Range<usize> {
        let len = self.k.area(self.shape.k_dim);
        kv_head * len..(kv_head + 1) * len
    }

    /// The words of all its values.
    pub(crate) fn values(&self, kv_head: usize) -> Range<usize> {
        let (first, len) =
            (self.shape.kv_heads * self.k.area(self.shape.k_dim), self.v.area(self.shape.v_dim));
        first + kv_head * len..first + (kv_head + 1) * len
    }

    /// Where the key of a token slot (0..32) and KV head begins in a page.
    pub fn key_at(&self, kv_head: usize, slot: usize) -> usize {
        self.keys(kv_head).start + slot * self.k.row_words(self.shape.k_dim)
    }

    /// Where the value begins.
    pub fn value_at(&self, kv_head: usize, slot: usize) -> usize {
        self.values(kv_head).start + slot * self.v.row_words(self.shape.v_dim)
    }

    /// Clears a slot of all KV heads; scales of channels stay.
    ///
    /// # Panics
    /// If the page is too short or the slot is none.
    pub fn clear_row(&self, page: &mut [u16], slot: usize) {
        assert!(slot < PAGE_TOKENS, "slot {slot}");
        for head in 0..self.shape.kv_heads {
            let areas =
                [(self.keys(head), self.k, self.shape.k_dim), (self.values(head), self.v, self.shape.v_dim)];
            for (area, format, dim) in areas {
                let (words, scales) = (format.row_words(dim), format.row_scales(dim));
                let area = &mut page[area];
                area[slot * words..(slot + 1) * words].fill(0);
                area[PAGE_TOKENS * words..][slot * scales..(slot + 1) * scales].fill(0);
            }
        }
    }

    /// Copies one KV head's key and value from a slot of one page to a slot of another, as they are.
    ///
    /// # Panics
    /// If a page is too short or a slot is none, and for keys whose scales belong to a page.
    pub fn copy_row(&self, kv_head: usize, from: (&[u16], usize), to: (&mut [u16], usize)) {
        assert!(from.1 < PAGE_TOKENS && to.1 < PAGE_TOKENS, "slots {} and {}", from.1, to.1);
        assert!(!self.k.per_channel(), "a key of {:?} cannot leave its page", self.k);
        let areas = [
            (self.keys(kv_head), self.k, self.shape.k_dim),
            (self.values(kv_head), self.v, self.shape.v_dim),
        ];
        for (area, format, dim) in areas {
            let (source, target) = (&from.0[area.clone()], &mut to.0[area]);
            let (words, scales) = (format.row_words(dim), format.row_scales(dim));
            target[to.1 * words..][..words].copy_from_slice(&source[from.1 * words..][..words]);
            let first = PAGE_TOKENS * words;
            target[first + to.1 * scales..][..scales]
                .copy_from_slice(&source[first + from.1 * scales..][..scales]);
        }
    }
}

impl Kernels {
    /// Writes one token's keys (kv_heads x k_dim) and values (kv_heads x v_dim) into a slot (0..32) of a page, rounded to the
    /// formats of the layout. Keys with scales per channel are left out: they are written into a page of [`KvLayout::fresh`], and
    /// [`KvLayout::close_keys`] brings them here when the page is full.
    ///
    /// # Panics
    /// If lengths do not fit together.
    pub fn write_kv(&self, layout: &KvLayout, page: &mut [u16], slot: usize, k: &[f32], v: &[f32]) {
        let shape = &layout.shape;
        assert!(slot < PAGE_TOKENS, "slot {slot}");
        assert_eq!(k.len(), shape.kv_heads * shape.k_dim, "keys of a token");
        assert_eq!(v.len(), shape.kv_heads * shape.v_dim, "values of a token");
        for head in 0..shape.kv_heads {
            let row = &k[head * shape.k_dim..(head + 1) * shape.k_dim];
            self.write_row(layout.k, &mut page[layout.keys(head)], slot, row);
            let row = &v[head * shape.v_dim..(head + 1) * shape.v_dim];
            self.write_row(layout.v, &mut page[layout.values(head)], slot, row);
        }
    }

    fn write_row(&self, format: KvFormat, area: &mut [u16], slot: usize, row: &[f32]) {
        let (words, scales) = (format.row_words(row.len()), format.row_scales(row.len()));
        let (rows, all_scales) = area.split_at_mut(PAGE_TOKENS * words);
        let to = &mut rows[slot * words..(slot + 1) * words];
        let scales = &mut all_scales[slot * scales..(slot + 1) * scales];
        match format {
            KvFormat::F16 => self.to_f16(row, to),
            KvFormat::Q8 => quantise_q8(row, to, scales),
            KvFormat::Q4 => quantise_q4(row, to, scales),
            KvFormat::Q4Channel | KvFormat::Q8Channel => {}
        }
    }
}
