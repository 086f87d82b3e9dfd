//! The largest of many logits.

use std::cmp::Ordering;

use super::norm::{max, padded};
use crate::math::{LANES, Lanes};

#[inline(always)]
pub(crate) fn argmax<S: Lanes>(s: S, x: &[f32]) -> Option<usize> {
    // Only the block that holds the maximum is searched value by value.
    const BLOCK: usize = 256 * LANES;
    let mut best = (f32::NEG_INFINITY, 0);
    for (i, block) in x.chunks(BLOCK).enumerate() {
        let m = max(s, block);
        if m > best.0 {
            best = (m, i * BLOCK);
        }
    }
    // If nothing is above minus infinity, this finds the first minus infinity, or nothing among NaNs.
    Some(best.1 + x[best.1..].iter().position(|&v| v == best.0)?)
}

/// Larger values first, then lower indices. No NaN comes here.
#[inline(always)]
fn by_rank(a: &(u32, f32), b: &(u32, f32)) -> Ordering {
    b.1.partial_cmp(&a.1).unwrap_or(Ordering::Equal).then(a.0.cmp(&b.0))
}

/// Sixteen values are compared at once with the k-th best so far; the few that beat it are collected, and when twice as many as needed
/// have come together, the better half stays and raises the bar. On logits in random order almost all vectors cost one comparison.
#[inline(always)]
pub(crate) fn top_k<S: Lanes>(s: S, x: &[f32], k: usize, out: &mut Vec<(u32, f32)>) {
    out.clear();
    if k == 0 {
        return;
    }
    let k = k.min(x.len());
    let mut bar = f32::NEG_INFINITY;
    // Minus infinity itself qualifies until k values have been seen.
    let mut open = true;
    let (full, rest) = x.as_chunks::<LANES>();
    let last = padded(rest);
    for (c, values) in full.iter().chain((!rest.is_empty()).then_some(&last)).enumerate() {
        if !open && !s.any_gt(s.load(values), s.splat(bar)) {
            continue;
        }
        let first = c * LANES;
        for (i, &v) in values.iter().take(x.len() - first).enumerate() {
            if v > bar || (open && v == bar) {
                out.push(((first + i) as u32, v));
            }
        }
        if out.len() >= 2 * k {
            out.select_nth_unstable_by(k - 1, by_rank);
            out.truncate(k);
            bar = out[k - 1].1;
            open = false;
        }
    }
    out.sort_unstable_by(by_rank);
    out.truncate(k);
}
