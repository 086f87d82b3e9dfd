//! int8 keys with a scale and an offset per channel of a page.
//!
//! ```text
//! head   32 rows of int8 as in `KvFormat::Q8`, an offset (an int8) per channel, a scale (a byte) per channel
//!        x[t][c] = d[c] * (q[t][c] + 16 n[c])
//!        d as in `channel4.rs`
//! ```
//!
//! 8 + 8 / 32 + 8 / 32 bits per value. Offsets in steps of 16 d cost a channel at most 8 of its 127 steps to each side, and reach eight times as far as
//! those; a channel that lies further from zero than that takes a larger scale. The integer has 12 bits and the scale 4, so that products of
//! the two are exact, in whatever order they are computed.

// Loops over all channels of several arrays at once, which become vectors.
#![allow(clippy::needless_range_loop)]

use super::PAGE_TOKENS;
use super::channel::{Channels, SCALE_SHIFT, Span, code_of, scale_of};
use super::format::{KvFormat, Q4_GROUP};
use super::quantise::{round, within};
use super::rows::{Rows, prefetch_row, prefetch_scales};
use crate::math::{LANES, Lanes};

/// Bytes per token of the offsets and scales of sixteen channels: sixteen times two bytes over 32 tokens.
pub(super) const CHUNK_BYTES: usize = 1;

/// Steps of a value in a step of an offset.
const OFFSET_STEP: f32 = 16.0;

/// Where values and offsets end.
const MOST_STEPS: f32 = 127.0;

/// Scales and offsets (as values) of a group, out of all that a head has behind its rows; zeros behind the last channel.
pub(super) fn channel_scales(stored: &[u16], dim: usize, group: usize) -> (Channels, Channels) {
    let (offsets, scales) = stored.split_at(dim.next_multiple_of(LANES) / 2);
    let (mut d, mut m) = ([0.0; Q4_GROUP], [0.0; Q4_GROUP]);
    let words = group * Q4_GROUP / 2..;
    for (i, (offsets, scales)) in
        offsets[words.clone()].iter().zip(&scales[words]).take(Q4_GROUP / 2).enumerate()
    {
        for (c, (n, code)) in (2 * i..).zip(offsets.to_le_bytes().into_iter().zip(scales.to_le_bytes())) {
            d[c] = scale_of(code);
            m[c] = OFFSET_STEP * f32::from(n as i8) * d[c];
        }
    }
    (d, m)
}

/// Rounds 32 rows of halves to the area of one head.
pub(super) fn quantise(rows: &[u16], dim: usize, area: &mut [u16]) {
    let words = KvFormat::Q8Channel.row_words(dim);
    let (ints, rest) = area.split_at_mut(PAGE_TOKENS * words);
    let (offsets, scales) = rest.split_at_mut(words);
    for group in 0..dim.div_ceil(Q4_GROUP) {
        let Span { x, low, high } = Span::of(rows, dim, group);
        let (mut code, mut n) = ([0; Q4_GROUP], [0.0; Q4_GROUP]);
        let (mut m, mut inverse) = ([0.0; Q4_GROUP], [0.0; Q4_GROUP]);
        for c in 0..Q4_GROUP {
            let middle = 0.5 * (low[c] + high[c]);
            let spans = (high[c] - low[c]) / (2.0 * MOST_STEPS - OFFSET_STEP);
            let reaches = middle.abs() / (OFFSET_STEP * MOST_STEPS);
            code[c] = code_of(if spans > reaches { spans } else { reaches });
            let d = scale_of(code[c]);
            inverse[c] = if d == 0.0 { 0.0 } else { 1.0 / d };
            n[c] = round(within(middle * inverse[c] / OFFSET_STEP, -MOST_STEPS, MOST_STEPS));
            m[c] = OFFSET_STEP * n[c] * d;
        }
        let at = group * Q4_GROUP / 2..words.min((group + 1) * Q4_GROUP / 2);
        pack(&mut offsets[at.clone()], |c| n[c] as i8 as u8);
        pack(&mut scales[at.clone()], |c| code[c]);
        for (x, row) in x.iter().zip(ints.chunks_exact_mut(words)) {
            let mut q = [0.0; Q4_GROUP];
            for c in 0..Q4_GROUP {
                q[c] = round(within((x[c] - m[c]) * inverse[c], -MOST_STEPS, MOST_STEPS));
            }
            pack(&mut row[at.clone()], |c| q[c] as i8 as u8);
        }
    }
}

/// Fills words with bytes.
fn pack(words: &mut [u16], byte: impl Fn(usize) -> u8) {
    for (i, word) in words.iter_mut().enumerate() {
        *word = u16::from_le_bytes([byte(2 * i), byte(2 * i + 1)]);
    }
}

/// int8 with a scale and an offset per channel.
#[derive(Clone, Copy)]
pub(crate) struct Channel8Rows<'a> {
    data: &'a [u16],
    /// A byte per channel.
    offsets: &'a [u16],
    /// A byte per channel.
    scales: &'a [u16],
    /// Words of a row.
    stride: usize,
}

impl<'a> Channel8Rows<'a> {
    pub(super) fn new(data: &'a [u16], rest: &'a [u16], dim: usize) -> Self {
        let stride = KvFormat::Q8Channel.row_words(dim);
        let (offsets, scales) = rest.split_at(stride);
        assert!(data.len() == PAGE_TOKENS * stride && scales.len() == stride, "rows of a page");
        Channel8Rows { data, offsets, scales, stride }
    }
}

impl Rows for Channel8Rows<'_> {
    #[inline(always)]
    unsafe fn load<S: Lanes>(self, s: S, token: usize, chunk: usize) -> S::V {
        let at = chunk * (LANES / 2);
        // SAFETY: `data` has PAGE_TOKENS rows of `stride` words, offsets and scales are as long as a row (checked in `new`), and the
        // sixteen bytes of each are the same eight words of a row. Bytes need no alignment, and any byte is an int8.
        let (ints, offsets, scales) = unsafe {
            (
                &*self.data.as_ptr().add(token * self.stride + at).cast(),
                &*self.offsets.as_ptr().add(at).cast(),
                &*self.scales.as_ptr().add(at).cast::<[u8; LANES]>(),
            )
        };
        let mut halves = [0; LANES];
        for i in 0..LANES {
            halves[i] = u16::from(scales[i]) << SCALE_SHIFT;
        }
        let steps = s.fma(s.load_i8(offsets), s.splat(OFFSET_STEP), s.load_i8(ints));
        s.mul(steps, s.load_f16(&halves))
    }

    #[inline(always)]
    fn prefetch<S: Lanes>(self, s: S, token: usize, next: Self) {
        prefetch_row(s, self.data, next.data, self.stride, token);
        prefetch_scales(s, next.offsets, token);
        prefetch_scales(s, next.scales, token);
    }

    #[inline(always)]
    fn whole_chunks(self) -> usize {
        self.stride / (LANES / 2)
    }
}
