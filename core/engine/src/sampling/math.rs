//! The exponential, and the sums over a whole vocabulary that use it.
//!
//! Idea: a vocabulary has up to 262,144 entries, and a library call for each would cost milliseconds per token, as much as
//! a small model's forward pass. The function below is branch-free, so that the compiler makes lanes of it. It is built
//! from separate multiplications and additions (the compiler may not fuse them), which round the same way on every ISA.

/// `e^x` for `x <= 0`, to within 2 units in the last place; exactly 0 below -700 (also for minus infinity), exactly 1 at 0.
#[inline(always)]
#[must_use]
pub fn exp(x: f64) -> f64 {
    const LOG2_E: f64 = std::f64::consts::LOG2_E;
    // ln 2 in two parts; the first has 33 significant bits, so its product with n (at most 11 bits) is exact.
    const LN2_HI: f64 = 6.931_471_803_691_238e-1;
    const LN2_LO: f64 = 1.908_214_929_270_587_7e-10;
    // Adding 1.5 * 2^52 rounds to an integer and leaves it in the low bits of the mantissa.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    // 1/k!: with |r| <= ln(2)/2 the first term left out, r^13/13!, is below 2e-16.
    const C: [f64; 13] = [
        1.0,
        1.0,
        1.0 / 2.0,
        1.0 / 6.0,
        1.0 / 24.0,
        1.0 / 120.0,
        1.0 / 720.0,
        1.0 / 5_040.0,
        1.0 / 40_320.0,
        1.0 / 362_880.0,
        1.0 / 3_628_800.0,
        1.0 / 39_916_800.0,
        1.0 / 479_001_600.0,
    ];
    let clamped = if x > FLOOR { x } else { FLOOR };
    let t = clamped * LOG2_E + ROUND;
    let n = t - ROUND;
    let r = (clamped - n * LN2_HI) - n * LN2_LO;
    let p = C.iter().rev().fold(0.0, |p, c| p * r + c);
    // 2^n by its bit pattern: the low 12 bits of `t` are n, and -1010 <= n <= 0.
    let scale = f64::from_bits(t.to_bits().wrapping_add(1023) << 52);
    if x > FLOOR { p * scale } else { 0.0 }
}

/// Below this, `exp` is 0: e^-700 is 1e-304, the last stretch before numbers lose precision.
const FLOOR: f64 = -700.0;

/// The sum of `e^(x - max)` in f64: eight partial sums, element `i` in sum `i % 8`, added pairwise at the end.
#[must_use]
pub fn exp_sum(logits: &[f32], max: f32) -> f64 {
    let max = f64::from(max);
    let mut z = [0.0f64; 8];
    let mut e = [0.0f64; 64];
    blocks(logits, |block| {
        for (&x, e) in block.iter().zip(&mut e) {
            *e = exp(f64::from(x) - max);
        }
        for part in e.as_chunks::<8>().0 {
            for (z, e) in z.iter_mut().zip(part) {
                *z += e;
            }
        }
    });
    tree(z)
}

/// `(sum of e^(x - max), sum of (x - max) * e^(x - max))` to about 1e-7, for reports.
///
/// In f32, which has twice the lanes and half the terms: on every token this runs over the whole vocabulary. Sums of 64
/// elements are kept in f32 lanes and then added up in f64, so that the error does not grow with the vocabulary.
#[must_use]
pub fn exp_sums(logits: &[f32], max: f32) -> (f64, f64) {
    let (mut z, mut s) = (0.0f64, 0.0f64);
    let mut e = [0.0f32; 64];
    let mut ed = [0.0f32; 64];
    blocks(logits, |block| {
        for ((&x, e), ed) in block.iter().zip(&mut e).zip(&mut ed) {
            let d = x - max;
            *e = exp_f32(d);
            // The clamp keeps 0 * -inf (a banned token) from becoming NaN.
            *ed = *e * if d > FLOOR_F32 { d } else { FLOOR_F32 };
        }
        z += f64::from(sum64(&e));
        s += f64::from(sum64(&ed));
    });
    (z, s)
}

/// `e^x` for `x <= 0` to within 1e-7; exactly 0 below -87, exactly 1 at 0. The same idea as [`exp`].
#[inline(always)]
fn exp_f32(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23
    const LN2_HI: f32 = 355.0 / 512.0; // 9 significant bits: its product with n is exact
    const LN2_LO: f32 = -2.121_944_4e-4;
    const C: [f32; 8] = [1.0, 1.0, 0.5, 1.0 / 6.0, 1.0 / 24.0, 1.0 / 120.0, 1.0 / 720.0, 1.0 / 5_040.0];
    let clamped = if x > FLOOR_F32 { x } else { FLOOR_F32 };
    let t = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = t - ROUND;
    let r = (clamped - n * LN2_HI) - n * LN2_LO;
    let p = C.iter().rev().fold(0.0, |p, c| p * r + c);
    let scale = f32::from_bits(t.to_bits().wrapping_add(127) << 23);
    if x > FLOOR_F32 { p * scale } else { 0.0 }
}

const FLOOR_F32: f32 = -87.0;

/// Calls `f` with the logits in blocks of 64, the last filled up with banned tokens, which add nothing to any sum.
fn blocks(logits: &[f32], mut f: impl FnMut(&[f32; 64])) {
    let (chunks, tail) = logits.as_chunks::<64>();
    chunks.iter().for_each(&mut f);
    let mut last = [f32::NEG_INFINITY; 64];
    for (slot, x) in last.iter_mut().zip(tail) {
        *slot = *x;
    }
    f(&last);
}

fn sum64(v: &[f32; 64]) -> f32 {
    let mut lanes = [0.0f32; 16];
    for part in v.as_chunks::<16>().0 {
        for (lane, x) in lanes.iter_mut().zip(part) {
            *lane += x;
        }
    }
    let v: [f32; 8] = std::array::from_fn(|i| lanes[i] + lanes[i + 8]);
    ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]))
}

fn tree(v: [f64; 8]) -> f64 {
    ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close_to_libm_everywhere_it_is_used() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f64::NEG_INFINITY), 0.0);
        assert_eq!(exp(-700.1), 0.0);
        let mut x = 0.0;
        while x > -700.0 {
            let (got, want) = (exp(x), libm::exp(x));
            assert!(((got - want) / want).abs() < 5e-16, "exp({x}) = {got}, libm {want}");
            x -= 0.013_7;
        }
    }

    #[test]
    fn the_f32_exponential_is_close_too() {
        assert_eq!(exp_f32(0.0), 1.0);
        assert_eq!(exp_f32(f32::NEG_INFINITY), 0.0);
        let mut x = 0.0f32;
        while x > -86.9 {
            let want = libm::exp(f64::from(x));
            assert!((f64::from(exp_f32(x)) / want - 1.0).abs() < 2e-7, "exp({x})");
            x -= 0.001_37;
        }
    }

    #[test]
    fn sums_agree_with_a_plain_loop_and_ignore_banned_tokens() {
        let logits: Vec<f32> = (0..1003)
            .map(|i| if i % 7 == 3 { f32::NEG_INFINITY } else { ((i * 37) % 101) as f32 * 0.3 - 20.0 })
            .collect();
        let max = logits.iter().copied().fold(f32::MIN, f32::max);
        let (z, s) = exp_sums(&logits, max);
        let exact = exp_sum(&logits, max);
        let (mut zn, mut sn) = (0.0, 0.0);
        for &x in logits.iter().filter(|x| x.is_finite()) {
            let d = f64::from(x) - f64::from(max);
            zn += d.exp();
            sn += d * d.exp();
        }
        assert!((exact / zn - 1.0).abs() < 1e-14);
        assert!((z / zn - 1.0).abs() < 1e-7 && (s / sn - 1.0).abs() < 2e-7, "{z} {zn} {s} {sn}");
    }
}
