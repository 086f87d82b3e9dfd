//! The rotation itself: `(a, b) -> (a cos - b sin, a sin + b cos)`, of each pair the product with the sine fused.

use super::{RopeStyle, Turn};
use crate::math::{LANES, Lanes, load_part, store_part};

/// All heads of one token.
#[inline(always)]
pub(crate) fn heads<S: Lanes>(s: S, x: &mut [f32], head_dim: usize, turn: Turn<'_>) {
    for head in x.chunks_exact_mut(head_dim) {
        match turn.style {
            RopeStyle::Neox => neox(s, head, turn.cos, turn.sin),
            RopeStyle::Normal => normal(s, head, turn.cos, turn.sin),
        }
    }
}

#[inline(always)]
fn neox<S: Lanes>(s: S, head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let half = cos.len();
    let (a, b) = head.split_at_mut(half);
    let (a_full, a_rest) = a.as_chunks_mut::<LANES>();
    let (b_full, b_rest) = b[..half].as_chunks_mut::<LANES>();
    let (cos_full, cos_rest) = cos.as_chunks::<LANES>();
    let (sin_full, sin_rest) = sin.as_chunks::<LANES>();
    for (((a, b), c), d) in a_full.iter_mut().zip(b_full).zip(cos_full).zip(sin_full) {
        let (x, y) = turned(s, s.load(a), s.load(b), s.load(c), s.load(d));
        s.store(x, a);
        s.store(y, b);
    }
    if !a_rest.is_empty() {
        let (x, y) = turned(
            s,
            load_part(s, a_rest),
            load_part(s, b_rest),
            load_part(s, cos_rest),
            load_part(s, sin_rest),
        );
        store_part(s, x, a_rest);
        store_part(s, y, b_rest);
    }
}

#[inline(always)]
fn turned<S: Lanes>(s: S, a: S::V, b: S::V, cos: S::V, sin: S::V) -> (S::V, S::V) {
    (s.fnma(b, sin, s.mul(a, cos)), s.fma(a, sin, s.mul(b, cos)))
}

/// `cos` and `sin` have one value per lane, the sine with the sign of its lane: then both halves of a pair are
/// `fma(neighbour, sin, self * cos)`, which has the bits of [`turned`].
#[inline(always)]
fn normal<S: Lanes>(s: S, head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (full, rest) = head[..cos.len()].as_chunks_mut::<LANES>();
    let (cos_full, cos_rest) = cos.as_chunks::<LANES>();
    let (sin_full, sin_rest) = sin.as_chunks::<LANES>();
    for ((x, c), d) in full.iter_mut().zip(cos_full).zip(sin_full) {
        let v = s.load(x);
        let v = s.fma(s.swap_pairs(v), s.load(d), s.mul(v, s.load(c)));
        s.store(v, x);
    }
    if !rest.is_empty() {
        let v = load_part(s, rest);
        let v = s.fma(s.swap_pairs(v), load_part(s, sin_rest), s.mul(v, load_part(s, cos_rest)));
        store_part(s, v, rest);
    }
}
