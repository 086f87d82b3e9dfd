//! Every ISA against plain loops, bit for bit, over odd lengths.

use half::f16;
use proptest::prelude::*;

use crate::isa::Kernels;
use crate::math::scalar;

const LENGTHS: [usize; 14] = [1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 63, 100, 576, 1000];

fn noise(n: usize, seed: u64, size: f32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 40) as f32 / 8_388_608.0 - 1.0) * size
        })
        .collect()
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| v.to_bits()).collect()
}

/// The fixed tree over sixteen partial sums, in which element k went to sum k % 16.
fn summed(x: impl Iterator<Item = (f32, f32)>) -> f32 {
    let mut p = [0.0f32; 16];
    for (k, (a, b)) in x.enumerate() {
        p[k % 16] = a.mul_add(b, p[k % 16]);
    }
    for width in [8, 4, 2, 1] {
        for i in 0..width {
            p[i] += p[i + width];
        }
    }
    p[0]
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    summed(a.iter().copied().zip(b.iter().copied()))
}

fn sum(x: &[f32]) -> f32 {
    summed(x.iter().map(|&v| (v, 1.0)))
}

/// Runs `op` on every ISA, for every length, and compares with the plain loop.
fn in_place(op: impl Fn(&Kernels, &mut [f32], &[f32]), plain: impl Fn(&mut [f32], &[f32])) {
    for n in LENGTHS {
        let (x, y) = (noise(n, n as u64, 9.0), noise(n, n as u64 + 1000, 9.0));
        let mut expected = x.clone();
        plain(&mut expected, &y);
        for k in Kernels::available() {
            let mut got = x.clone();
            op(k, &mut got, &y);
            assert_eq!(bits(&got), bits(&expected), "{:?}, {n} values", k.isa());
        }
    }
}

fn each(f: impl Fn(f32, f32) -> f32) -> impl Fn(&mut [f32], &[f32]) {
    move |x, y| x.iter_mut().zip(y).for_each(|(x, y)| *x = f(*x, *y))
}

#[test]
fn elementwise_operations_are_their_formulas() {
    in_place(|k, x, y| k.add_in_place(x, y), each(|x, y| x + y));
    in_place(|k, x, y| k.mul_in_place(x, y), each(|x, y| x * y));
    in_place(|k, x, y| k.add_scaled_in_place(x, y, 0.3), each(|x, y| 0.3f32.mul_add(y, x)));
    in_place(|k, x, _| k.scale_in_place(x, 0.7), each(|x, _| x * 0.7));
    in_place(|k, x, _| k.exp_in_place(x), each(|x, _| scalar::exp(x)));
    in_place(|k, x, _| k.sigmoid_in_place(x), each(|x, _| scalar::sigmoid(x)));
    in_place(|k, x, _| k.silu_in_place(x), each(|x, _| scalar::silu(x)));
    in_place(|k, x, _| k.gelu_in_place(x), each(|x, _| scalar::gelu_tanh(x)));
    in_place(|k, x, _| k.softplus_in_place(x), each(|x, _| scalar::softplus(x)));
    in_place(|k, x, _| k.soft_cap(x, 3.0), each(|x, _| 3.0 * scalar::tanh(x * (1.0 / 3.0))));
    in_place(|k, x, y| k.silu_mul(x, y), each(|x, y| scalar::silu(x) * y));
    in_place(|k, x, y| k.gelu_mul(x, y), each(|x, y| scalar::gelu_tanh(x) * y));
    in_place(|k, x, y| k.gelu_erf_mul(x, y), each(|x, y| scalar::gelu_erf(x) * y));
    in_place(
        |k, x, y| k.swiglu_oai(x, y, 1.702, 7.0),
        each(|x, y| {
            let (g, u) = (x.min(7.0), y.clamp(-7.0, 7.0));
            g / (1.0 + scalar::exp(-(1.702 * g))) * (u + 1.0)
        }),
    );
}

#[test]
fn extreme_values_have_the_same_bits_on_every_isa() {
    let extremes: Vec<f32> =
        (0..=u32::MAX).step_by(1 << 18).map(f32::from_bits).filter(|x| !x.is_nan()).collect();
    let ops: [fn(&Kernels, &mut [f32]); 6] = [
        |k, x| k.exp_in_place(x),
        |k, x| k.sigmoid_in_place(x),
        |k, x| k.silu_in_place(x),
        |k, x| k.gelu_in_place(x),
        |k, x| k.soft_cap(x, 30.0),
        |k, x| k.scale_in_place(x, 1e-30),
    ];
    for (i, op) in ops.iter().enumerate() {
        let results = Kernels::available().into_iter().map(|k| {
            let mut x = extremes.clone();
            op(k, &mut x);
            // A NaN may have any sign and payload.
            x.iter().map(|v| if v.is_nan() { 0x7fc0_0000 } else { v.to_bits() }).collect::<Vec<_>>()
        });
        let results: Vec<_> = results.collect();
        assert!(results.windows(2).all(|w| w[0] == w[1]), "operation {i}");
    }
}

#[test]
fn norms_are_their_formulas() {
    for d in LENGTHS {
        for rows in [1, 3] {
            let x = noise(rows * d, d as u64, 5.0);
            let (w, b) = (noise(d, 1, 2.0), noise(d, 2, 2.0));
            let plain = |f: &dyn Fn(&mut [f32])| {
                let mut x = x.clone();
                x.chunks_exact_mut(d).for_each(f);
                bits(&x)
            };
            let rms = plain(&|row| {
                let scale = 1.0 / (dot(row, row) / d as f32 + 1e-6).sqrt();
                row.iter_mut().zip(&w).for_each(|(x, w)| *x = *x * scale * w);
            });
            let layer = plain(&|row| {
                let mean = sum(row) / d as f32;
                row.iter_mut().for_each(|x| *x -= mean);
                let scale = 1.0 / (dot(row, row) / d as f32 + 1e-5).sqrt();
                row.iter_mut().zip(w.iter().zip(&b)).for_each(|(x, (w, b))| *x = *x * scale * w + b);
            });
            let l2 = plain(&|row| {
                let scale = 1.0 / dot(row, row).sqrt().max(1e-6);
                row.iter_mut().for_each(|x| *x *= scale);
            });
            for k in Kernels::available() {
                let mut out = vec![f32::NAN; x.len()];
                k.rms_norm(&x, Some(&w), 1e-6, &mut out, d);
                assert_eq!(bits(&out), rms, "{:?} rms_norm of {d}", k.isa());
                k.layer_norm(&x, Some(&w), Some(&b), 1e-5, &mut out, d);
                assert_eq!(bits(&out), layer, "{:?} layer_norm of {d}", k.isa());
                k.l2_norm(&x, 1e-6, &mut out, d);
                assert_eq!(bits(&out), l2, "{:?} l2_norm of {d}", k.isa());
            }
        }
    }
    for k in Kernels::available() {
        let mut zero = [0.0; 20];
        k.l2_norm_in_place(&mut zero, 1e-6, 20);
        k.rms_norm_in_place(&mut zero, None, 1e-6, 20);
        assert_eq!(zero, [0.0; 20]);
    }
}

#[test]
fn softmax_and_log_sum_exp() {
    for n in LENGTHS {
        let x = noise(n, n as u64, 30.0);
        let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let e: Vec<f32> = x.iter().map(|v| scalar::exp(v - max)).collect();
        let total = sum(&e);
        let expected: Vec<f32> = e.iter().map(|v| v / total).collect();
        let exact = f64::from(max) + x.iter().map(|v| f64::from(v - max).exp()).sum::<f64>().ln();
        let mut sums = Vec::new();
        for k in Kernels::available() {
            let mut got = x.clone();
            k.softmax_in_place(&mut got);
            assert_eq!(bits(&got), bits(&expected), "{:?} softmax of {n}", k.isa());
            sums.push(k.log_sum_exp(&x));
            assert!((sums[0] - exact).abs() < 1e-6, "log_sum_exp of {n}: {} and {exact}", sums[0]);
        }
        assert!(sums.windows(2).all(|s| s[0].to_bits() == s[1].to_bits()));
    }
    for k in Kernels::available() {
        let mut x = [f32::NEG_INFINITY; 19];
        k.softmax_in_place(&mut x);
        assert_eq!(x, [0.0; 19]);
        assert_eq!(k.log_sum_exp(&[f32::NEG_INFINITY; 19]), f64::NEG_INFINITY);
        assert_eq!(k.log_sum_exp(&[]), f64::NEG_INFINITY);
        k.softmax_in_place(&mut []);
    }
}

#[test]
fn log_sum_exp_of_a_large_vocabulary_keeps_its_digits() {
    let x = noise(262_144, 5, 0.5);
    let exact = x.iter().map(|&v| f64::from(v).exp()).sum::<f64>().ln();
    for k in Kernels::available() {
        assert!((k.log_sum_exp(&x) - exact).abs() < 2e-7, "{:?}", k.isa());
    }
}

#[test]
fn dots_have_the_fixed_order() {
    for n in LENGTHS.into_iter().chain([0]) {
        let (a, b) = (noise(n, 3, 2.0), noise(n, 4, 2.0));
        for k in Kernels::available() {
            assert_eq!(k.dot(&a, &b).to_bits(), dot(&a, &b).to_bits(), "{:?} dot of {n}", k.isa());
        }
    }
}

#[test]
fn halves_round_to_nearest_even_and_widen_exactly() {
    let every: Vec<u16> = (0..=u16::MAX).filter(|&h| !f16::from_bits(h).is_nan()).collect();
    let mut values: Vec<f32> =
        (0..=u32::MAX).step_by(4099).map(f32::from_bits).filter(|x| !x.is_nan()).collect();
    // Halfway between neighbours, and one step to each side.
    for &h in every.iter().step_by(7) {
        let x = f16::from_bits(h).to_f32();
        let y = f16::from_bits(h.wrapping_add(1)).to_f32();
        if x.is_finite() && y.is_finite() {
            let middle = ((f64::from(x) + f64::from(y)) / 2.0) as f32;
            values.extend([
                x,
                middle,
                f32::from_bits(middle.to_bits() + 1),
                f32::from_bits(middle.to_bits().wrapping_sub(1)),
            ]);
        }
    }
    values.retain(|x| !x.is_nan());
    let expected: Vec<u16> = values.iter().map(|&x| f16::from_f32(x).to_bits()).collect();
    let widened: Vec<f32> = every.iter().map(|&h| f16::from_bits(h).to_f32()).collect();
    for k in Kernels::available() {
        let mut halves = vec![0; values.len()];
        k.to_f16(&values, &mut halves);
        assert_eq!(halves, expected, "{:?}", k.isa());
        let mut back = vec![0.0; every.len()];
        k.from_f16(&every, &mut back);
        assert_eq!(bits(&back), bits(&widened), "{:?}", k.isa());
    }
}

#[test]
fn argmax_takes_the_first_and_ignores_nan() {
    for k in Kernels::available() {
        assert_eq!(k.argmax(&[]), None);
        assert_eq!(k.argmax(&[f32::NAN, f32::NAN]), None);
        assert_eq!(k.argmax(&[f32::NAN, f32::NEG_INFINITY]), Some(1));
        assert_eq!(k.argmax(&[1.0, 3.0, f32::NAN, 3.0, 2.0]), Some(1));
        let mut x = noise(10_007, 6, 1.0);
        for at in [0, 4095, 4096, 10_006] {
            x[at] = 2.0 + at as f32;
            assert_eq!(k.argmax(&x), Some(at));
        }
    }
}

fn plain_top_k(x: &[f32], k: usize) -> Vec<(u32, f32)> {
    let mut all: Vec<(u32, f32)> =
        x.iter().enumerate().filter(|(_, v)| !v.is_nan()).map(|(i, &v)| (i as u32, v)).collect();
    all.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
    all.truncate(k);
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn top_k_is_the_head_of_the_sorted_list(
        // Few distinct values, so that ties and minus infinities are common.
        x in proptest::collection::vec(
            prop_oneof![
                6 => (-20i8..20).prop_map(f32::from),
                1 => Just(f32::NAN),
                1 => Just(f32::NEG_INFINITY),
                4 => -1.0f32..1.0,
            ],
            0..200,
        ),
        k in 0usize..220,
    ) {
        for kernels in Kernels::available() {
            let mut out = vec![(9, 9.0)];
            kernels.top_k(&x, k, &mut out);
            prop_assert_eq!(&out, &plain_top_k(&x, k));
        }
    }
}

#[test]
fn top_k_of_a_large_vocabulary() {
    for seed in 0..3 {
        let mut x = noise(262_144, seed, 10.0);
        if seed == 2 {
            // The worst order: every value beats the bar.
            x.sort_by(f32::total_cmp);
        }
        for kernels in Kernels::available() {
            let mut out = Vec::new();
            kernels.top_k(&x, 40, &mut out);
            assert_eq!(out, plain_top_k(&x, 40), "{:?}", kernels.isa());
            assert!(out.capacity() <= 256, "{}", out.capacity());
        }
    }
}
