//! int4 keys with a scale and an offset per channel of a page.
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

use super::PAGE_TOKENS;
use super::channel::{Channels, SCALE_SHIFT, Span, code_of, scale_of};
use super::format::Q4_GROUP;
use super::quantise::{MOST, round, within};
use super::rows::{GROUP_WORDS, Rows, prefetch_row, prefetch_scales};
use crate::math::{LANES, Lanes};

/// Bytes per token of the offsets and scales of a group of 32 channels: 32 times three bytes over 32 tokens.
pub(super) const GROUP_BYTES: usize = 3;

/// Scales that are tried: the smallest that spans the channel, and the next ones below it, which cut its ends off and often serve the rest
/// better.
const TRIED: u8 = 3;

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

/// Rounds 32 rows of halves to the area of one head.
pub(super) fn quantise(rows: &[u16], dim: usize, area: &mut [u16]) {
    let groups = dim.div_ceil(Q4_GROUP);
    let (nibbles, rest) = area.split_at_mut(PAGE_TOKENS * groups * GROUP_WORDS);
    let (offsets, scales) = rest.split_at_mut(groups * Q4_GROUP);
    for group in 0..groups {
        let Span { x, low, high } = Span::of(rows, dim, group);
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
pub(crate) struct Channel4Rows<'a> {
    data: &'a [u16],
    offsets: &'a [u16],
    /// A byte per channel.
    scales: &'a [u16],
    /// Groups of 32 channels.
    groups: usize,
}

impl<'a> Channel4Rows<'a> {
    pub(super) fn new(area: &'a [u16], dim: usize) -> Self {
        let groups = dim.div_ceil(Q4_GROUP);
        let (data, rest) = area.split_at(PAGE_TOKENS * groups * GROUP_WORDS);
        let (offsets, scales) = rest.split_at(groups * Q4_GROUP);
        assert!(scales.len() == groups * Q4_GROUP / 2, "rows of a page");
        Channel4Rows { data, offsets, scales, groups }
    }
}

impl Rows for Channel4Rows<'_> {
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
}
