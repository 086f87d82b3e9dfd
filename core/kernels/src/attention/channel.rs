//! int4 keys with a scale and an offset per channel of a page (as in KIVI, arXiv:2402.02750), and the half precision in which the newest
//! page is read.
//!
//! Single channels of keys are large, and nearly the same in neighbouring tokens: an offset takes that off, where a scale per token has to
//! span it. But a channel is known only when its page is full, so the rule is one of positions:
//!
//! ```text
//! a query at position P reads the page P / 32, its own, from the fresh keys (halves), and all earlier ones as int4
//! the int4 form of a page is a function of its 32 rows of halves
//! ```
//!
//! So what a query sees depends neither on how a prompt was cut nor on how many queries are computed together: a batch is split where its
//! queries enter another page.
//!
//! ```text
//! head   32 rows of int4 as in `KvFormat::Q4`, an offset (a half) per channel, a scale (a byte) per channel
//!        x[t][c] = fma(q[t][c] - 8, d[c], m[c])
//!        d = the half whose bits are the byte << 7: five bits of exponent, three of mantissa, no sign
//! ```
//!
//! 4 + 16 / 32 + 8 / 32 bits per value.

// Loops over all channels of several arrays at once, which become vectors.
#![allow(clippy::needless_range_loop)]

use half::f16;

use super::format::{KvFormat, KvLayout, Q4_GROUP};
use super::quantise::{MOST, round, within};
use super::rows::{GROUP_WORDS, Rows, prefetch_row, prefetch_scales};
use super::{AttentionShape, PAGE_TOKENS};
use crate::math::{LANES, Lanes};

/// Bytes per token of the offsets and scales of a group of 32 channels: 32 times three bytes over 32 tokens.
pub(super) const GROUP_BYTES: usize = 3;

/// Where the bits of a scale lie in a half: below the sign, above what is dropped of the mantissa.
const SCALE_SHIFT: u32 = 7;

/// Scales that are tried: the smallest that spans the channel, and the next ones below it, which cut its ends off and often serve the rest
/// better.
const TRIED: u8 = 3;

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

    /// Computes the keys of a page, of [`KvFormat::Q4Channel`], from its fresh keys, all 32 of which were written.
    ///
    /// # Panics
    /// If a page is too short, or the keys have another format.
    pub fn close_keys(&self, fresh: &[u16], page: &mut [u16]) {
        assert!(self.k == KvFormat::Q4Channel, "keys of {:?}", self.k);
        let halves = self.fresh();
        for head in 0..self.shape.kv_heads {
            quantise_channels(&fresh[halves.keys(head)], self.shape.k_dim, &mut page[self.keys(head)]);
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
fn scale_of(code: u8) -> f32 {
    f16::from_bits(u16::from(code) << SCALE_SHIFT).to_f32()
}

/// Scales and offsets of a group, out of all that a head has behind its rows.
pub(super) fn channel_scales(stored: &[u16], dim: usize, group: usize) -> (Channels, Channels) {
    let (offsets, scales) = stored.split_at(dim.div_ceil(Q4_GROUP) * Q4_GROUP);
    let (mut d, mut m) = ([0.0; Q4_GROUP], [0.0; Q4_GROUP]);
    for c in 0..Q4_GROUP {
        let at = group * Q4_GROUP + c;
        d[c] = scale_of(scales[at / 2].to_le_bytes()[at % 2]);
        m[c] = f16::from_bits(offsets[at]).to_f32();
    }
    (d, m)
}

/// The byte of the smallest scale that is not below `scale`, which is that of two halves and so far from the largest.
fn code_of(scale: f32) -> u8 {
    (u32::from(f16::from_f32(scale).to_bits()).next_multiple_of(1 << SCALE_SHIFT) >> SCALE_SHIFT) as u8
}

/// A channel's numbers as they are stored, and how to use them.
#[derive(Clone, Copy)]
struct Affine {
    code: [u8; Q4_GROUP],
    offset: [u16; Q4_GROUP],
    d: Channels,
    m: Channels,
    inverse: Channels,
}

impl Affine {
    /// Scales `less` steps below those that span the channels.
    fn new(low: &Channels, high: &Channels, less: u8) -> Self {
        let mut out = Affine {
            code: [0; Q4_GROUP],
            offset: [0; Q4_GROUP],
            d: [0.0; Q4_GROUP],
            m: [0.0; Q4_GROUP],
            inverse: [0.0; Q4_GROUP],
        };
        for c in 0..Q4_GROUP {
            let code = code_of((high[c] - low[c]) / 15.0).saturating_sub(less);
            let d = scale_of(code);
            // The steps are -8 ..= 7, so their middle is half a step below the offset.
            let offset = f16::from_f32(within(0.5 * (low[c] + high[c]) + 0.5 * d, -MOST, MOST));
            (out.code[c], out.offset[c]) = (code, offset.to_bits());
            (out.d[c], out.m[c]) = (d, offset.to_f32());
            out.inverse[c] = if d == 0.0 { 0.0 } else { 1.0 / d };
        }
        out
    }

    /// The steps of one token, -8 ..= 7.
    fn steps(&self, x: &Channels) -> Channels {
        let mut out = [0.0; Q4_GROUP];
        for c in 0..Q4_GROUP {
            out[c] = round(within((x[c] - self.m[c]) * self.inverse[c], -8.0, 7.0));
        }
        out
    }

    fn error(&self, x: &[Channels; PAGE_TOKENS]) -> Channels {
        let mut sum = [0.0; Q4_GROUP];
        for x in x {
            let steps = self.steps(x);
            for c in 0..Q4_GROUP {
                let e = x[c] - (steps[c] * self.d[c] + self.m[c]);
                sum[c] += e * e;
            }
        }
        sum
    }

    /// Takes over the channels of `other` whose error is smaller.
    fn take_better(&mut self, error: &mut Channels, other: &Affine, of_other: &Channels) {
        for c in 0..Q4_GROUP {
            if of_other[c] < error[c] {
                (self.code[c], self.offset[c]) = (other.code[c], other.offset[c]);
                (self.d[c], self.m[c], self.inverse[c]) = (other.d[c], other.m[c], other.inverse[c]);
                error[c] = of_other[c];
            }
        }
    }
}

/// Rounds 32 rows of halves to the area of one head. Channels behind the last one are zero.
fn quantise_channels(rows: &[u16], dim: usize, area: &mut [u16]) {
    let groups = dim.div_ceil(Q4_GROUP);
    let (nibbles, rest) = area.split_at_mut(PAGE_TOKENS * groups * GROUP_WORDS);
    let (offsets, scales) = rest.split_at_mut(groups * Q4_GROUP);
    for group in 0..groups {
        let channels = group * Q4_GROUP..dim.min((group + 1) * Q4_GROUP);
        let mut x = [[0.0; Q4_GROUP]; PAGE_TOKENS];
        let (mut low, mut high) = ([MOST; Q4_GROUP], [-MOST; Q4_GROUP]);
        for (x, row) in x.iter_mut().zip(rows.chunks_exact(dim)) {
            for (x, &half) in x.iter_mut().zip(&row[channels.clone()]) {
                // What is not finite becomes something finite, here as in the other formats.
                *x = within(f16::from_bits(half).to_f32(), -MOST, MOST);
            }
            for c in 0..Q4_GROUP {
                low[c] = if x[c] < low[c] { x[c] } else { low[c] };
                high[c] = if x[c] > high[c] { x[c] } else { high[c] };
            }
        }
        let mut best = Affine::new(&low, &high, 0);
        let mut error = best.error(&x);
        for less in 1..TRIED {
            let other = Affine::new(&low, &high, less);
            best.take_better(&mut error, &other, &other.error(&x));
        }
        offsets[group * Q4_GROUP..(group + 1) * Q4_GROUP].copy_from_slice(&best.offset);
        for (word, pair) in scales[group * Q4_GROUP / 2..].iter_mut().zip(best.code.chunks_exact(2)) {
            *word = u16::from_le_bytes([pair[0], pair[1]]);
        }
        for (x, row) in x.iter().zip(nibbles.chunks_exact_mut(groups * GROUP_WORDS)) {
            let steps = best.steps(x);
            let byte = |i: usize| {
                let int = |i: usize| (steps[i] + 8.0) as u8;
                int(i) | (int(i + Q4_GROUP / 2) << 4)
            };
            for (i, word) in row[group * GROUP_WORDS..(group + 1) * GROUP_WORDS].iter_mut().enumerate() {
                *word = u16::from_le_bytes([byte(2 * i), byte(2 * i + 1)]);
            }
        }
    }
}

/// int4 with a scale and an offset per channel.
#[derive(Clone, Copy)]
pub(crate) struct ChannelRows<'a> {
    data: &'a [u16],
    offsets: &'a [u16],
    /// A byte per channel.
    scales: &'a [u16],
    /// Groups of 32 channels.
    groups: usize,
}

impl<'a> ChannelRows<'a> {
    pub(super) fn new(area: &'a [u16], dim: usize) -> Self {
        let groups = dim.div_ceil(Q4_GROUP);
        let (data, rest) = area.split_at(PAGE_TOKENS * groups * GROUP_WORDS);
        let (offsets, scales) = rest.split_at(groups * Q4_GROUP);
        assert!(scales.len() == groups * Q4_GROUP / 2, "rows of a page");
        ChannelRows { data, offsets, scales, groups }
    }
}

impl Rows for ChannelRows<'_> {
    #[inline(always)]
    unsafe fn load<S: Lanes>(self, s: S, token: usize, chunk: usize) -> S::V {
        let group = token * self.groups + chunk / 2;
        // SAFETY: the chunk is half of one of `groups` groups, and so sixteen of the channels, for each of which `new` has seen an offset of
        // a word and a scale of a byte; the group is one of PAGE_TOKENS rows of `groups` groups of eight words. Bytes need no
        // alignment, and the offsets are words in an array of words.
        let (nibbles, offsets, scales) = unsafe {
            (
                &*self.data.as_ptr().add(group * GROUP_WORDS).cast::<[u8; LANES]>(),
                &*self.offsets.as_ptr().add(chunk * LANES).cast::<[u16; LANES]>(),
                &*self.scales.as_ptr().cast::<u8>().add(chunk * LANES).cast::<[u8; LANES]>(),
            )
        };
        let mut halves = [0; LANES];
        for i in 0..LANES {
            halves[i] = u16::from(scales[i]) << SCALE_SHIFT;
        }
        s.fma(s.load_i4(nibbles, chunk % 2 == 1), s.load_f16(&halves), s.load_f16(offsets))
    }

    #[inline(always)]
    fn prefetch<S: Lanes>(self, s: S, token: usize, next: Self) {
        prefetch_row(s, self.data, next.data, self.groups * GROUP_WORDS, token);
        prefetch_scales(s, next.offsets, token);
        prefetch_scales(s, next.scales, token);
    }

    #[inline(always)]
    fn whole_chunks(self) -> usize {
        2 * self.groups
    }

    /// Channels are padded in the page.
    #[inline(always)]
    fn load_padded<S: Lanes>(self, s: S, token: usize, chunk: usize) -> S::V {
        assert!(token < PAGE_TOKENS && chunk < self.whole_chunks());
        // SAFETY: checked above.
        unsafe { self.load(s, token, chunk) }
    }
}
