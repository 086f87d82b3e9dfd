//! `exp`, `tanh` and what follows from them, over any lanes.
//!
//! The coefficients interpolate at Chebyshev nodes; `tests.rs` holds the measured error bounds against `f64`.

use super::lanes::Arith;

/// 1.5 * 2^23: adding it to |x| < 2^22 rounds x to an integer (ties to even) in the low mantissa bits.
const ROUND: f32 = 12_582_912.0;
/// 2^23 + 127: adding an integer n leaves the biased exponent of 2^n in the low mantissa bits.
const EXPONENT_BIAS: f32 = 8_388_735.0;
const LOG2_E: f32 = std::f32::consts::LOG2_E;
pub(super) const LN2_HI: f32 = std::f32::consts::LN_2;
/// ln 2 - LN2_HI.
pub(super) const LN2_LO: f32 = -1.904_654_2e-9;

/// e^x over the whole range: 0 below -104, denormals above, infinity from 88.73 on; NaN stays NaN. Error below 1.1 ulp. `exp(0) == 1`.
///
/// x = n ln 2 + r with |r| <= ln 2 / 2, so e^x = 2^n e^r. 2^n is applied as two factors, because neither 2^-150 nor 2^128 is a normal
/// `f32` while the product may well be representable.
#[inline(always)]
pub(crate) fn exp<S: Arith>(s: S, x: S::V) -> S::V {
    // The constant comes first so that a NaN in x passes through.
    let x = s.max(s.splat(-105.0), s.min(s.splat(90.0), x));
    let n = s.sub(s.fma(x, s.splat(LOG2_E), s.splat(ROUND)), s.splat(ROUND));
    let r = s.fnma(n, s.splat(LN2_HI), x);
    let r = s.fnma(n, s.splat(LN2_LO), r);
    let p = s.fma(s.splat(1.392_625_1e-3), r, s.splat(8.363_233e-3));
    let p = s.fma(p, r, s.splat(4.166_655_4e-2));
    let p = s.fma(p, r, s.splat(1.666_657_7e-1));
    let p = s.fma(p, r, s.splat(0.5));
    let p = s.fma(s.mul(r, r), p, r);
    let p = s.add(p, s.splat(1.0));
    let n1 = s.sub(s.fma(n, s.splat(0.5), s.splat(ROUND)), s.splat(ROUND));
    let n2 = s.sub(n, n1);
    let scale1 = s.shl23(s.add(n1, s.splat(EXPONENT_BIAS)));
    let scale2 = s.shl23(s.add(n2, s.splat(EXPONENT_BIAS)));
    s.mul(s.mul(p, scale1), scale2)
}

/// tanh: a polynomial near zero, where 1 - 2 / (e^2x + 1) would cancel.
#[inline(always)]
pub(crate) fn tanh<S: Arith>(s: S, x: S::V) -> S::V {
    let a = s.abs(x);
    let z = s.mul(a, a);
    let p = s.fma(s.splat(-6.045_165e-3), z, s.splat(2.096_133e-2));
    let p = s.fma(p, z, s.splat(-5.384_326_3e-2));
    let p = s.fma(p, z, s.splat(1.333_271_9e-1));
    let p = s.fma(p, z, s.splat(-3.333_333e-1));
    let near = s.fma(s.mul(a, z), p, a);
    let one = s.splat(1.0);
    let far = s.sub(one, s.div(s.splat(2.0), s.add(exp(s, s.add(a, a)), one)));
    s.copysign(s.select_lt(a, s.splat(0.625), near, far), x)
}

/// 1 / (1 + e^-x).
#[inline(always)]
pub(crate) fn sigmoid<S: Arith>(s: S, x: S::V) -> S::V {
    let one = s.splat(1.0);
    s.div(one, s.add(one, exp(s, s.sub(s.splat(0.0), x))))
}

/// x * sigmoid(x).
#[inline(always)]
pub(crate) fn silu<S: Arith>(s: S, x: S::V) -> S::V {
    s.div(x, s.add(s.splat(1.0), exp(s, s.sub(s.splat(0.0), x))))
}

/// x / 2 * (1 + tanh(u)) with u = sqrt(2 / pi) * (x + 0.044715 x^3), as x * sigmoid(2u): the same function, but without the
/// cancellation of 1 + tanh(u) for negative x.
#[inline(always)]
pub(crate) fn gelu_tanh<S: Arith>(s: S, x: S::V) -> S::V {
    let inner = s.fma(s.mul(x, x), s.splat(0.044_715), s.splat(1.0));
    let minus_2u = s.mul(s.mul(x, s.splat(-1.595_769)), inner);
    s.div(x, s.add(s.splat(1.0), exp(s, minus_2u)))
}
