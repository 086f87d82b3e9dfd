//! Accuracy against f64, over the whole range of f32.

use super::scalar;

/// Every 997th bit pattern: all exponents, both signs, NaN and infinity among them.
fn patterns() -> impl Iterator<Item = f32> {
    (0..=u32::MAX).step_by(997).map(f32::from_bits)
}

/// Distance from the exact value in units of the last place of an f32 of its size.
fn ulps(got: f32, exact: f64) -> f64 {
    let rounded = exact as f32;
    if got.to_bits() == rounded.to_bits() || (got.is_nan() && exact.is_nan()) {
        return 0.0;
    }
    let size = exact.abs().max(f64::from(f32::MIN_POSITIVE)).min(f64::from(f32::MAX));
    let ulp = libm::exp2(libm::floor(libm::log2(size)) - 23.0);
    (f64::from(got) - exact).abs() / ulp
}

fn worst(name: &str, f: fn(f32) -> f32, exact: fn(f64) -> f64, keep: fn(f32) -> bool, bound: f64) {
    let mut worst = (0.0, 0.0);
    for x in patterns().filter(|&x| keep(x)) {
        let error = ulps(f(x), exact(f64::from(x)));
        assert!(!error.is_nan(), "{name}({x:e}) is {:e}", f(x));
        if error > worst.0 {
            worst = (error, x);
        }
    }
    assert!(worst.0 < bound, "{name}({:e}) is off by {:.3} ulp", worst.1, worst.0);
}

#[test]
fn exp_is_accurate_everywhere() {
    worst("exp", scalar::exp, libm::exp, |_| true, 1.1);
    assert_eq!(scalar::exp(0.0), 1.0);
    assert_eq!(scalar::exp(-0.0), 1.0);
    assert_eq!(scalar::exp(f32::NEG_INFINITY), 0.0);
    assert_eq!(scalar::exp(-104.0), 0.0);
    assert_eq!(scalar::exp(-103.0), f32::from_bits(1));
    assert_eq!(scalar::exp(88.8), f32::INFINITY);
    assert_eq!(scalar::exp(f32::INFINITY), f32::INFINITY);
    assert!(scalar::exp(f32::NAN).is_nan());
    // Around the largest finite result, and around zero, every value.
    for x in (0..20_000u32).map(|i| f32::from_bits(88.72f32.to_bits() + i)) {
        let exact = libm::exp(f64::from(x));
        assert_eq!(scalar::exp(x).is_finite(), exact < 3.402_823_6e38, "{x}");
    }
}

#[test]
fn tanh_is_accurate_everywhere() {
    worst("tanh", scalar::tanh, libm::tanh, |_| true, 1.5);
    assert_eq!(scalar::tanh(f32::INFINITY), 1.0);
    assert_eq!(scalar::tanh(f32::NEG_INFINITY), -1.0);
    assert_eq!(scalar::tanh(-0.0).to_bits(), (-0.0f32).to_bits());
    assert!(scalar::tanh(f32::NAN).is_nan());
}

#[test]
fn logarithms_are_accurate_everywhere() {
    worst("ln", scalar::ln, libm::log, |_| true, 1.0);
    worst("ln_1p", scalar::ln_1p, libm::log1p, |x| x > -0.5 || x.is_nan(), 2.0);
    assert_eq!(scalar::ln(1.0), 0.0);
    assert_eq!(scalar::ln(0.0), f32::NEG_INFINITY);
    assert!(scalar::ln(-1.0).is_nan());
}

#[test]
fn gates_are_accurate() {
    worst("sigmoid", scalar::sigmoid, |x| 1.0 / (1.0 + libm::exp(-x)), |x| x > -87.0 || x.is_nan(), 3.0);
    worst("silu", scalar::silu, |x| x / (1.0 + libm::exp(-x)), |x| x > -87.0, 3.0);
    worst(
        "softplus",
        scalar::softplus,
        |x| x.max(0.0) + libm::log1p(libm::exp(-x.abs())),
        |x| x > -87.0,
        3.0,
    );
    for i in -4000..4000 {
        let x = i as f32 / 500.0;
        let e = f64::from(x);
        let u = (2.0 / std::f64::consts::PI).sqrt() * (e + 0.044_715 * e * e * e);
        let exact = 0.5 * e * (1.0 + libm::tanh(u));
        assert!(
            (f64::from(scalar::gelu_tanh(x)) - exact).abs() <= 3e-7 * e.abs().max(1e-3),
            "gelu_tanh({x})"
        );
        let exact = 0.5 * e * (1.0 + libm::erf(e / std::f64::consts::SQRT_2));
        assert_eq!(scalar::gelu_erf(x), exact as f32, "gelu_erf({x})");
    }
    // Far out: no NaN, no overflow.
    assert_eq!(scalar::sigmoid(-1e30), 0.0);
    assert_eq!(scalar::silu(-1e30), 0.0);
    assert_eq!(scalar::silu(1e30), 1e30);
    assert_eq!(scalar::gelu_tanh(-1e10), 0.0);
    assert_eq!(scalar::softplus(-1e30), 0.0);
    assert_eq!(scalar::softplus(1e30), 1e30);
}
