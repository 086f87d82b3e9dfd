//! The same functions for one value, with the bits of the wide ones.

use super::functions::{LN2_HI, LN2_LO};
use super::{Single, functions};

/// e^x, with the bits that the kernels compute.
pub fn exp(x: f32) -> f32 {
    functions::exp(Single, x)
}

/// tanh x.
pub fn tanh(x: f32) -> f32 {
    functions::tanh(Single, x)
}

/// 1 / (1 + e^-x).
pub fn sigmoid(x: f32) -> f32 {
    functions::sigmoid(Single, x)
}

/// x * sigmoid(x).
pub fn silu(x: f32) -> f32 {
    functions::silu(Single, x)
}

/// The tanh approximation of GELU.
pub fn gelu_tanh(x: f32) -> f32 {
    functions::gelu_tanh(Single, x)
}

/// x / 2 * (1 + erf(x / sqrt 2)). The error function is `libm`'s in f64, which is slow; no architecture of ours uses it in a hot loop.
pub fn gelu_erf(x: f32) -> f32 {
    let x = f64::from(x);
    (0.5 * x * (1.0 + libm::erf(x * std::f64::consts::FRAC_1_SQRT_2))) as f32
}

/// Natural logarithm: -infinity at zero, NaN below.
pub fn ln(x: f32) -> f32 {
    if x.is_nan() || x < 0.0 {
        return f32::NAN;
    }
    if x == 0.0 {
        return f32::NEG_INFINITY;
    }
    if x == f32::INFINITY {
        return x;
    }
    // Denormals are scaled by 2^25 first: they have no exponent to read.
    let (x, shift) = if x < f32::MIN_POSITIVE { (x * 33_554_432.0, -25.0) } else { (x, 0.0) };
    // x = 2^k * m with m in [sqrt 1/2, sqrt 2), so that ln m stays small on both sides of one.
    const SQRT_HALF: u32 = 0x3f35_04f3;
    let bits = x.to_bits().wrapping_add(0x3f80_0000 - SQRT_HALF);
    let k = (bits >> 23) as f32 - 127.0 + shift;
    let f = f32::from_bits((bits & 0x007f_ffff) + SQRT_HALF) - 1.0;
    let mut p = 6.971_612e-2_f32;
    for c in [
        -1.147_973_4e-1,
        1.168_542e-1,
        -1.242_568_7e-1,
        1.424_905_8e-1,
        -1.666_780_2e-1,
        2.000_071_6e-1,
        -2.499_999_7e-1,
        3.333_333e-1,
    ] {
        p = p.mul_add(f, c);
    }
    let z = f * f;
    let y = (f * z).mul_add(p, -0.5 * z);
    k.mul_add(LN2_HI, f + k.mul_add(LN2_LO, y))
}

/// ln(1 + x) for x > -1, accurate for tiny x.
pub fn ln_1p(x: f32) -> f32 {
    let u = 1.0 + x;
    if u == 1.0 {
        return x;
    }
    if u == f32::INFINITY {
        return u;
    }
    // The rounding of 1 + x is given back to first order: d ln u = du / u.
    ln(u) + (x - (u - 1.0)) / u
}

/// ln(1 + e^x), without overflow.
pub fn softplus(x: f32) -> f32 {
    let tail = ln_1p(exp(-x.abs()));
    if x > 0.0 { x + tail } else { tail }
}
