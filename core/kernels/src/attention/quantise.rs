//! Rounding keys and values to int8 and int4, and the rotation that makes int4 keys bearable.
//!
//! Plain Rust for every ISA: a token has few keys and values, and what is stored must be the same bits everywhere.

use half::f16;

use super::format::Q4_GROUP;

/// Adding and subtracting it rounds to an integer, ties to even, for magnitudes below 2^22.
const ROUND: f32 = 12_582_912.0;

/// The largest half; scales never become infinite.
pub(super) const MOST: f32 = 65_504.0;

pub(super) fn round(x: f32) -> f32 {
    (x + ROUND) - ROUND
}

/// `x` within `low..=high`; not a number becomes `low`.
pub(super) fn within(x: f32, low: f32, high: f32) -> f32 {
    if x > low { x.min(high) } else { low }
}

/// A scale as it is stored, and what it is then.
fn stored(scale: f32) -> (u16, f32) {
    let half = f16::from_f32(within(scale, -MOST, MOST));
    (half.to_bits(), half.to_f32())
}

fn largest(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |most: f32, x| if x.abs() > most { x.abs() } else { most })
}

/// `x[i] = d * q[i]`, q in -127..=127, packed two to a word, zeros behind the row; `d` in `scale[0]`.
pub(super) fn quantise_q8(x: &[f32], out: &mut [u16], scale: &mut [u16]) {
    let (bits, d) = stored(largest(x) / 127.0);
    scale[0] = bits;
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    // A saturating cast: not a number becomes 0.
    let int = |x: f32| round(within(x * inverse, -127.0, 127.0)) as i8 as u8;
    for (word, pair) in out.iter_mut().zip(x.chunks(2)) {
        *word = u16::from_le_bytes([int(pair[0]), pair.get(1).map_or(0, |&x| int(x))]);
    }
    out[x.len().div_ceil(2)..].fill(0);
}

/// The scale of a byte: one bit of sign, five of exponent, two of mantissa.
pub(super) fn scale_of_q4(byte: u8) -> f32 {
    f16::from_bits(u16::from(byte) << 8).to_f32()
}

/// The integer that is nearest to a value.
fn q4_step(x: f32, inverse: f32) -> f32 {
    round(within(x * inverse, -8.0, 7.0))
}

/// The byte of the scale with which up to sixteen values have the least squared error, out of a few: those near the one that makes -8 of the value of
/// largest magnitude, which uses all sixteen steps, and near the one that makes 7 of it.
fn best_q4_scale(x: &[f32]) -> u8 {
    let peak = x.iter().fold(0.0, |peak: f32, &x| if x.abs() > peak.abs() { x } else { peak });
    let bits = f16::from_f32(within(peak.abs() / 8.0, 0.0, MOST)).to_bits();
    let code = (bits >> 8) as u8;
    let against = if peak > 0.0 { 0x80 } else { 0 };
    let mut best = (f32::INFINITY, 0);
    for (up, sign) in
        [(0, against), (1, against), (1, against ^ 0x80), (2, against ^ 0x80), (0, against ^ 0x80)]
    {
        // The largest half is not infinite.
        let byte = (code + up).min(0x7b) | sign;
        let d = scale_of_q4(byte);
        let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
        let error: f32 = x
            .iter()
            .map(|&x| {
                let e = x - d * q4_step(x, inverse);
                e * e
            })
            .sum();
        if error < best.0 {
            best = (error, byte);
        }
    }
    best.1
}

/// `x[i] = d * (q[i] - 8)`, q in 0..=15, in groups of 16 with a scale each; what is missing behind a row is 8, which is 0.
pub(super) fn quantise_q4(x: &[f32], out: &mut [u16], scales: &mut [u16]) {
    for ((group, words), scales) in x.chunks(Q4_GROUP).zip(out.chunks_exact_mut(Q4_GROUP / 4)).zip(scales) {
        let (first, second) = group.split_at(group.len().min(Q4_GROUP / 2));
        let bytes = [best_q4_scale(first), best_q4_scale(second)];
        *scales = u16::from_le_bytes(bytes);
        let inverse = bytes.map(|byte| {
            let d = scale_of_q4(byte);
            if d == 0.0 { 0.0 } else { 1.0 / d }
        });
        let int = |i: usize| {
            let x = group.get(i).copied().unwrap_or(0.0);
            (q4_step(x, inverse[i / (Q4_GROUP / 2)]) + 8.0) as u8
        };
        let byte = |i: usize| int(i) | (int(i + Q4_GROUP / 2) << 4);
        for (i, word) in words.iter_mut().enumerate() {
            *word = u16::from_le_bytes([byte(2 * i), byte(2 * i + 1)]);
        }
    }
}

/// Rotates each row of `dim` values by a Hadamard matrix over the square root of its size, in place: in blocks of the largest power
/// of two that divides `dim`. Products of two rotated rows are those of the rows themselves, but a channel that stands out is
/// spread over its whole block, so that a scale per group no longer serves that one channel only.
///
/// # Panics
/// If `x` is no whole number of rows.
pub fn hadamard_in_place(x: &mut [f32], dim: usize) {
    assert!(dim > 0 && x.len().is_multiple_of(dim), "{} values are no rows of {dim}", x.len());
    let block = 1 << dim.trailing_zeros();
    let factor = 1.0 / (block as f32).sqrt();
    for x in x.chunks_exact_mut(block) {
        let mut half = 1;
        while half < block {
            for pair in x.chunks_exact_mut(2 * half) {
                let (low, high) = pair.split_at_mut(half);
                for (a, b) in low.iter_mut().zip(high) {
                    (*a, *b) = (*a + *b, *a - *b);
                }
            }
            half *= 2;
        }
        x.iter_mut().for_each(|x| *x *= factor);
    }
}
