//! Operations with a sum or a maximum over a row.

use crate::math::{self, LANES, Lanes, load_part, store_part};

#[inline(always)]
pub(crate) fn dot<S: Lanes>(s: S, a: &[f32], b: &[f32]) -> f32 {
    let (a_full, a_rest) = a.as_chunks::<LANES>();
    let (b_full, b_rest) = b.as_chunks::<LANES>();
    let mut p = s.splat(0.0);
    for (a, b) in a_full.iter().zip(b_full) {
        p = s.fma(s.load(a), s.load(b), p);
    }
    if !a_rest.is_empty() {
        p = s.fma(load_part(s, a_rest), load_part(s, b_rest), p);
    }
    s.sum(p)
}

#[inline(always)]
fn sum<S: Lanes>(s: S, x: &[f32]) -> f32 {
    let (full, rest) = x.as_chunks::<LANES>();
    let mut p = s.splat(0.0);
    for c in full {
        p = s.add(p, s.load(c));
    }
    if !rest.is_empty() {
        p = s.add(p, load_part(s, rest));
    }
    s.sum(p)
}

/// The largest value; lanes beyond the end count as minus infinity.
#[inline(always)]
pub(super) fn max<S: Lanes>(s: S, x: &[f32]) -> f32 {
    let (full, rest) = x.as_chunks::<LANES>();
    let mut m = s.splat(f32::NEG_INFINITY);
    for c in full {
        // The running maximum is the second operand: a NaN in x loses.
        m = s.max(s.load(c), m);
    }
    if !rest.is_empty() {
        m = s.max(s.load(&padded(rest)), m);
    }
    s.max_lane(m)
}

/// Fewer than sixteen values, followed by minus infinity.
#[inline(always)]
pub(super) fn padded(rest: &[f32]) -> [f32; LANES] {
    let mut last = [f32::NEG_INFINITY; LANES];
    last[..rest.len()].copy_from_slice(rest);
    last
}

/// `x = x * factor * weight + bias`, where weight and bias may be missing.
#[inline(always)]
fn scale_row<S: Lanes>(s: S, x: &mut [f32], factor: f32, weight: Option<&[f32]>, bias: Option<&[f32]>) {
    let factor = s.splat(factor);
    for at in (0..x.len()).step_by(LANES) {
        let end = x.len().min(at + LANES);
        let mut v = s.mul(load_at(s, x, at, end), factor);
        if let Some(w) = weight {
            v = s.mul(v, load_at(s, w, at, end));
        }
        if let Some(b) = bias {
            v = s.add(v, load_at(s, b, at, end));
        }
        match x[at..end].as_chunks_mut::<LANES>() {
            ([full], _) => s.store(v, full),
            (_, rest) => store_part(s, v, rest),
        }
    }
}

#[inline(always)]
fn load_at<S: Lanes>(s: S, x: &[f32], at: usize, end: usize) -> S::V {
    match x[at..end].as_chunks::<LANES>() {
        ([full], _) => s.load(full),
        (_, rest) => load_part(s, rest),
    }
}

#[inline(always)]
pub(crate) fn rms_norm<S: Lanes>(s: S, x: &mut [f32], weight: Option<&[f32]>, eps: f32, d: usize) {
    for row in x.chunks_exact_mut(d) {
        let mean = dot(s, row, row) / d as f32;
        scale_row(s, row, 1.0 / (mean + eps).sqrt(), weight, None);
    }
}

#[inline(always)]
pub(crate) fn layer_norm<S: Lanes>(
    s: S,
    x: &mut [f32],
    weight: Option<&[f32]>,
    bias: Option<&[f32]>,
    eps: f32,
    d: usize,
) {
    for row in x.chunks_exact_mut(d) {
        let mean = s.splat(sum(s, row) / d as f32);
        let (full, rest) = row.as_chunks_mut::<LANES>();
        for c in full {
            let v = s.sub(s.load(c), mean);
            s.store(v, c);
        }
        if !rest.is_empty() {
            let v = s.sub(load_part(s, rest), mean);
            store_part(s, v, rest);
        }
        let variance = dot(s, row, row) / d as f32;
        scale_row(s, row, 1.0 / (variance + eps).sqrt(), weight, bias);
    }
}

#[inline(always)]
pub(crate) fn l2_norm<S: Lanes>(s: S, x: &mut [f32], eps: f32, d: usize) {
    for row in x.chunks_exact_mut(d) {
        let length = dot(s, row, row).sqrt();
        scale_row(s, row, 1.0 / if length > eps { length } else { eps }, None, None);
    }
}

#[inline(always)]
pub(crate) fn softmax<S: Lanes>(s: S, x: &mut [f32]) {
    let m = max(s, x);
    if m == f32::NEG_INFINITY {
        x.fill(0.0);
        return;
    }
    let m = s.splat(m);
    let (full, rest) = x.as_chunks_mut::<LANES>();
    let mut p = s.splat(0.0);
    for c in full {
        let e = math::exp(s, s.sub(s.load(c), m));
        p = s.add(p, e);
        s.store(e, c);
    }
    if !rest.is_empty() {
        let e = math::exp(s, s.sub(s.load(&padded(rest)), m));
        p = s.add(p, e);
        store_part(s, e, rest);
    }
    let total = s.splat(s.sum(p));
    let (full, rest) = x.as_chunks_mut::<LANES>();
    for c in full {
        let v = s.div(s.load(c), total);
        s.store(v, c);
    }
    if !rest.is_empty() {
        let v = s.div(load_part(s, rest), total);
        store_part(s, v, rest);
    }
}

/// Sums of 1024 values in f32, the sums of those in f64: with a quarter of a million logits, f32 alone loses the digits that a
/// comparison of perplexities needs.
#[inline(always)]
pub(crate) fn log_sum_exp<S: Lanes>(s: S, x: &[f32]) -> f64 {
    let max = max(s, x);
    if max == f32::NEG_INFINITY {
        return f64::NEG_INFINITY;
    }
    let m = s.splat(max);
    let mut total = 0.0f64;
    for block in x.chunks(64 * LANES) {
        let (full, rest) = block.as_chunks::<LANES>();
        let mut p = s.splat(0.0);
        for c in full {
            p = s.add(p, math::exp(s, s.sub(s.load(c), m)));
        }
        if !rest.is_empty() {
            p = s.add(p, math::exp(s, s.sub(s.load(&padded(rest)), m)));
        }
        total += f64::from(s.sum(p));
    }
    f64::from(max) + libm::log(total)
}
