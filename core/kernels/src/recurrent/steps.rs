//! One token of a recurrence.

use crate::math::{Arith, LANES, Lanes, Single, load_part, store_part};

/// `out[c] = sum over j of weight[c * taps + j] * taps[j][c]`, j ascending: a convolution over time, channel by channel.
#[inline(always)]
pub(crate) fn conv<S: Lanes>(_: S, out: &mut [f32], taps: &[&[f32]], weight: &[f32]) {
    let n = out.len();
    match *taps {
        // The lengths that models have, so that the compiler sees how far apart the weights of neighbours are.
        [a, b, c] => fixed(out, [&a[..n], &b[..n], &c[..n]], weight),
        [a, b, c, d] => fixed(out, [&a[..n], &b[..n], &c[..n], &d[..n]], weight),
        _ => {
            for (c, (out, weight)) in out.iter_mut().zip(weight.chunks_exact(taps.len().max(1))).enumerate() {
                *out = taps.iter().zip(weight).fold(0.0, |sum, (tap, &w)| Single.fma(w, tap[c], sum));
            }
        }
    }
}

#[inline(always)]
fn fixed<const K: usize>(out: &mut [f32], taps: [&[f32]; K], weight: &[f32]) {
    let (weight, _) = weight.as_chunks::<K>();
    for (c, (out, weight)) in out.iter_mut().zip(weight).enumerate() {
        let mut sum = 0.0;
        for j in 0..K {
            sum = Single.fma(weight[j], taps[j][c], sum);
        }
        *out = sum;
    }
}

/// What a token brings to the state of one head.
pub(crate) struct Step<'a> {
    pub q: &'a [f32],
    pub k: &'a [f32],
    pub v: &'a [f32],
    pub decay: f32,
    pub beta: f32,
}

/// The gated delta rule for one head; `state` is k_dim x v_dim, and `out` has v_dim values.
///
/// Columns are independent, so lanes hold columns, and blocks of them stay in L1 between the two walks over the rows.
#[inline(always)]
pub(crate) fn delta<S: Lanes>(s: S, state: &mut [f32], step: &Step<'_>, out: &mut [f32]) {
    const WIDE: usize = 4;
    let dv = out.len();
    let mut at = 0;
    while at + WIDE * LANES <= dv {
        columns::<S, WIDE>(s, state, dv, at, step, out);
        at += WIDE * LANES;
    }
    while at + LANES <= dv {
        columns::<S, 1>(s, state, dv, at, step, out);
        at += LANES;
    }
    if at < dv {
        rest(s, state, dv, at, step, out);
    }
}

#[inline(always)]
fn columns<S: Lanes, const N: usize>(
    s: S,
    state: &mut [f32],
    dv: usize,
    at: usize,
    step: &Step<'_>,
    out: &mut [f32],
) {
    let width = N * LANES;
    let mut found = [s.splat(0.0); N];
    for (row, &k) in state.chunks_exact(dv).zip(step.k) {
        let (row, _) = row[at..at + width].as_chunks::<LANES>();
        let k = s.splat(k);
        for j in 0..N {
            found[j] = s.fma(k, s.load(&row[j]), found[j]);
        }
    }
    let (decay, beta) = (s.splat(step.decay), s.splat(step.beta));
    let (v, _) = step.v[at..at + width].as_chunks::<LANES>();
    let mut change = [s.splat(0.0); N];
    for j in 0..N {
        change[j] = s.mul(beta, s.fnma(decay, found[j], s.load(&v[j])));
    }
    let mut sum = [s.splat(0.0); N];
    for ((row, &k), &q) in state.chunks_exact_mut(dv).zip(step.k).zip(step.q) {
        let (row, _) = row[at..at + width].as_chunks_mut::<LANES>();
        let (k, q) = (s.splat(k), s.splat(q));
        for j in 0..N {
            let value = s.fma(k, change[j], s.mul(decay, s.load(&row[j])));
            s.store(value, &mut row[j]);
            sum[j] = s.fma(q, value, sum[j]);
        }
    }
    let (out, _) = out[at..at + width].as_chunks_mut::<LANES>();
    for j in 0..N {
        s.store(sum[j], &mut out[j]);
    }
}

/// Fewer than sixteen columns at the end.
#[inline(always)]
fn rest<S: Lanes>(s: S, state: &mut [f32], dv: usize, at: usize, step: &Step<'_>, out: &mut [f32]) {
    let mut found = s.splat(0.0);
    for (row, &k) in state.chunks_exact(dv).zip(step.k) {
        found = s.fma(s.splat(k), load_part(s, &row[at..]), found);
    }
    let (decay, beta) = (s.splat(step.decay), s.splat(step.beta));
    let change = s.mul(beta, s.fnma(decay, found, load_part(s, &step.v[at..])));
    let mut sum = s.splat(0.0);
    for ((row, &k), &q) in state.chunks_exact_mut(dv).zip(step.k).zip(step.q) {
        let value = s.fma(s.splat(k), change, s.mul(decay, load_part(s, &row[at..])));
        store_part(s, value, &mut row[at..]);
        sum = s.fma(s.splat(q), value, sum);
    }
    store_part(s, sum, &mut out[at..]);
}
