//! Q8_0, Q4_0, Q4_1, Q5_0, Q5_1: one scale (and minimum) per 32 weights.
//!
//! Without importance these follow the format's reference encoder to the bit, which the vectors in `tests/data` hold them to.
//! That fixes details that would otherwise be free: scales are divided before they are rounded to f16, the inverse is
//! multiplied, and Q8_0 rounds halves away from zero while the others add one half and cut.

use super::affine;
use super::pack::{Fields, blocks, nibbles};
use super::scaled::{self, Uniform};
use half::f16;
use multiversion::multiversion;

fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

#[multiversion(targets("x86_64+avx2", "x86_64+sse4.1"))]
pub(super) fn q8_0(row: &[f32], _: Option<&[f32]>, out: &mut [u8]) {
    blocks::<32>(row, None, out, 34, |x, _, block| {
        let mut amax = 0f32;
        for &x in x {
            amax = if x.abs() > amax { x.abs() } else { amax };
        }
        let d = amax / 127.0;
        let id = inverse(d);
        let mut q = [0u8; 32];
        for (q, &x) in q.iter_mut().zip(x) {
            // `f32::round` is a library call on the oldest machines, so: cut, then look at what was cut off. The difference is
            // exact (at most 127, so both are multiples of the product's last bit).
            let scaled = x * id;
            let cut = scaled as i32;
            let rest = scaled - cut as f32;
            *q = (cut + i32::from(rest >= 0.5) - i32::from(rest <= -0.5)) as u8;
        }
        let mut fields = Fields::new(block);
        fields.f16(f16::from_f32(d));
        fields.put(&q);
    });
}

/// The weight of largest magnitude, with its sign; the first of several.
fn extreme(x: &[f32; 32]) -> f32 {
    let mut best = 0f32;
    for &x in x {
        if x.abs() > best.abs() {
            best = x;
        }
    }
    best
}

fn range(x: &[f32; 32]) -> (f32, f32) {
    let mut low = f32::MAX;
    let mut high = f32::MIN;
    for &x in x {
        low = if x < low { x } else { low };
        high = if x > high { x } else { high };
    }
    (low, high)
}

/// `min(top, cut(x * id + offset))` of each weight.
#[inline(always)]
fn cut(x: &[f32; 32], id: f32, minus: f32, offset: f32, top: u8) -> [u8; 32] {
    let mut q = [0; 32];
    for (q, &x) in q.iter_mut().zip(x) {
        // The conversion saturates, which only matters where the reference encoder is undefined.
        *q = (((x - minus) * id + offset) as i32 as u8).min(top);
    }
    q
}

/// The fifth bits of 32 weights.
fn fifth(q: &[u8; 32]) -> [u8; 4] {
    let mut bits = 0u32;
    for (place, q) in q.iter().enumerate() {
        bits |= u32::from(q >> 4 & 1) << place;
    }
    bits.to_le_bytes()
}

/// d and quants of a format without minimum: `x = d * (q - zero)`, q up to `2 * zero - 1`.
#[inline(always)]
fn symmetric(x: &[f32; 32], importance: Option<&[f32; 32]>, zero: f32) -> (f16, [u8; 32]) {
    match importance {
        None => {
            let d = extreme(x) / -zero;
            (f16::from_f32(d), cut(x, inverse(d), 0.0, zero + 0.5, 2 * zero as u8 - 1))
        }
        Some(w) => {
            let levels = Uniform { low: -zero, high: zero - 1.0 };
            let (d, q) = scaled::block(&levels, x, w);
            (d, q.map(|q| (q + zero) as i32 as u8))
        }
    }
}

/// d, m and quants of a format with minimum: `x = d * q + m`, q up to `top`.
#[inline(always)]
fn with_minimum(x: &[f32; 32], importance: Option<&[f32; 32]>, top: u8) -> (f16, f16, [u8; 32]) {
    match importance {
        None => {
            let (low, high) = range(x);
            let d = (high - low) / f32::from(top);
            (f16::from_f32(d), f16::from_f32(low), cut(x, inverse(d), low, 0.5, top))
        }
        Some(w) => affine::block(x, w, f32::from(top)),
    }
}

/// Runs `encode` over the blocks; with importance it is `Some`.
#[inline(always)]
fn each(
    row: &[f32],
    importance: Option<&[f32]>,
    out: &mut [u8],
    block_bytes: usize,
    mut encode: impl FnMut(&[f32; 32], Option<&[f32; 32]>, &mut [u8]),
) {
    let weighted = importance.is_some();
    blocks::<32>(row, importance, out, block_bytes, |x, w, block| encode(x, weighted.then_some(w), block));
}

#[multiversion(targets("x86_64+avx2", "x86_64+sse4.1"))]
pub(super) fn q4_0(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    each(row, importance, out, 18, |x, w, block| {
        let (d, q) = symmetric(x, w, 8.0);
        let mut fields = Fields::new(block);
        fields.f16(d);
        fields.put(&nibbles::<16>(&q, 16));
    });
}

#[multiversion(targets("x86_64+avx2", "x86_64+sse4.1"))]
pub(super) fn q5_0(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    each(row, importance, out, 22, |x, w, block| {
        let (d, q) = symmetric(x, w, 16.0);
        let mut fields = Fields::new(block);
        fields.f16(d);
        fields.put(&fifth(&q));
        fields.put(&nibbles::<16>(&q, 16));
    });
}

#[multiversion(targets("x86_64+avx2", "x86_64+sse4.1"))]
pub(super) fn q4_1(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    each(row, importance, out, 20, |x, w, block| {
        let (d, m, q) = with_minimum(x, w, 15);
        let mut fields = Fields::new(block);
        fields.f16(d);
        fields.f16(m);
        fields.put(&nibbles::<16>(&q, 16));
    });
}

#[multiversion(targets("x86_64+avx2", "x86_64+sse4.1"))]
pub(super) fn q5_1(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    each(row, importance, out, 24, |x, w, block| {
        let (d, m, q) = with_minimum(x, w, 31);
        let mut fields = Fields::new(block);
        fields.f16(d);
        fields.f16(m);
        fields.put(&fifth(&q));
        fields.put(&nibbles::<16>(&q, 16));
    });
}
