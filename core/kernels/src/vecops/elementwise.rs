//! Operations that treat every element alike.

use crate::math::{self, Arith, LANES, Lanes, load_part, store_part};

/// A function of one value, or of two.
trait Map: Copy {
    fn one<S: Arith>(self, s: S, x: S::V) -> S::V;
}
trait Map2: Copy {
    fn two<S: Arith>(self, s: S, x: S::V, y: S::V) -> S::V;
}

#[inline(always)]
fn map<S: Lanes, F: Map>(s: S, f: F, x: &mut [f32]) {
    let (full, rest) = x.as_chunks_mut::<LANES>();
    for c in full {
        let v = f.one(s, s.load(c));
        s.store(v, c);
    }
    if !rest.is_empty() {
        let v = f.one(s, load_part(s, rest));
        store_part(s, v, rest);
    }
}

#[inline(always)]
fn map2<S: Lanes, F: Map2>(s: S, f: F, x: &mut [f32], y: &[f32]) {
    let (full, rest) = x.as_chunks_mut::<LANES>();
    let (y_full, y_rest) = y.as_chunks::<LANES>();
    for (c, y) in full.iter_mut().zip(y_full) {
        let v = f.two(s, s.load(c), s.load(y));
        s.store(v, c);
    }
    if !rest.is_empty() {
        let v = f.two(s, load_part(s, rest), load_part(s, y_rest));
        store_part(s, v, rest);
    }
}

/// `name(lanes, x, constants)` from an expression over the lanes.
macro_rules! maps {
    ($($name:ident($s:ident, $x:ident $(, $c:ident)*) = $body:expr;)*) => {$(
        #[inline(always)]
        pub(crate) fn $name<S: Lanes>(s: S, x: &mut [f32] $(, $c: f32)*) {
            #[derive(Clone, Copy)]
            struct F { $($c: f32),* }
            impl Map for F {
                #[inline(always)]
                fn one<S: Arith>(self, $s: S, $x: S::V) -> S::V {
                    $(let $c = $s.splat(self.$c);)*
                    $body
                }
            }
            map(s, F { $($c),* }, x);
        }
    )*};
}

macro_rules! maps2 {
    ($($name:ident($s:ident, $x:ident, $y:ident $(, $c:ident)*) = $body:expr;)*) => {$(
        #[inline(always)]
        pub(crate) fn $name<S: Lanes>(s: S, x: &mut [f32], y: &[f32] $(, $c: f32)*) {
            #[derive(Clone, Copy)]
            struct F { $($c: f32),* }
            impl Map2 for F {
                #[inline(always)]
                fn two<S: Arith>(self, $s: S, $x: S::V, $y: S::V) -> S::V {
                    $(let $c = $s.splat(self.$c);)*
                    $body
                }
            }
            map2(s, F { $($c),* }, x, y);
        }
    )*};
}

maps! {
    scale(s, x, factor) = s.mul(x, factor);
    soft_cap_by(s, x, cap, inverse) = soft_capped(s, x, cap, inverse);
    sigmoid(s, x) = math::sigmoid(s, x);
    silu(s, x) = math::silu(s, x);
    gelu(s, x) = math::gelu_tanh(s, x);
    exp(s, x) = math::exp(s, x);
}

maps2! {
    add(s, x, y) = s.add(x, y);
    mul(s, x, y) = s.mul(x, y);
    add_scaled(s, x, y, factor) = s.fma(factor, y, x);
    silu_mul(s, x, y) = s.mul(math::silu(s, x), y);
    gelu_mul(s, x, y) = s.mul(math::gelu_tanh(s, x), y);
    swiglu_oai(s, x, y, alpha, limit) = {
        let zero = s.splat(0.0);
        let one = s.splat(1.0);
        let g = s.min(limit, x);
        let u = s.max(s.sub(zero, limit), s.min(limit, y));
        let glu = s.div(g, s.add(one, math::exp(s, s.sub(zero, s.mul(alpha, g)))));
        s.mul(glu, s.add(u, one))
    };
}

#[inline(always)]
pub(crate) fn soft_cap<S: Lanes>(s: S, x: &mut [f32], cap: f32) {
    soft_cap_by(s, x, cap, 1.0 / cap);
}

/// `cap * tanh(x / cap)`, also for the scores of attention.
#[inline(always)]
pub(crate) fn soft_capped<S: Arith>(s: S, x: S::V, cap: S::V, inverse: S::V) -> S::V {
    s.mul(cap, math::tanh(s, s.mul(x, inverse)))
}
