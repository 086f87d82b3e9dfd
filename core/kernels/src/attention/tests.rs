//! Attention against the plain oracle, bit for bit, and against f64.

use proptest::prelude::*;

use super::test_support::{Cache, FORMATS, Noise, Threads, assert_bits, page_mut, shape};
use super::*;
use crate::Kernels;
use crate::parallel::Serial;

#[test]
fn every_isa_has_the_bits_of_the_oracle() {
    let shapes = [
        shape(1, 1, 32, 32),
        shape(4, 1, 64, 64),
        shape(9, 3, 64, 64),
        shape(7, 1, 80, 80),
        shape(2, 2, 96, 96),
        shape(3, 3, 40, 72),
        shape(8, 1, 128, 128),
        shape(5, 1, 192, 128),
        shape(4, 1, 256, 256),
        shape(16, 1, 64, 64),
        shape(3, 1, 576, 512),
        shape(40, 1, 32, 20),
    ];
    for (i, s) in shapes.into_iter().enumerate() {
        let cache = Cache::new(s, 77, i as u64);
        for (first, n) in [(0, 1), (0, 33), (31, 2), (63, 9), (76, 1), (40, 37)] {
            let expected = cache.oracle(first, n, false);
            for kernels in Kernels::available() {
                let got = cache.run(kernels, &Serial, first, n, false);
                assert_bits(&got, &expected, &format!("{:?} {s:?} queries {first}+{n}", kernels.isa()));
            }
        }
    }
}

#[test]
fn quantised_pages_have_the_bits_of_the_oracle() {
    let shapes = [
        shape(1, 1, 32, 32),
        shape(9, 3, 64, 64),
        shape(7, 1, 80, 80),
        shape(3, 3, 40, 72),
        shape(8, 1, 128, 128),
        shape(4, 1, 256, 256),
        shape(40, 1, 32, 20),
    ];
    for (i, s) in shapes.into_iter().enumerate() {
        for (k, v) in FORMATS {
            let mut cache = Cache::with(KvLayout { shape: s, k, v, summaries: false }, 570, 400 + i as u64);
            for (first, n, window) in
                [(0, 1, None), (31, 2, None), (540, 30, None), (569, 1, Some(40)), (520, 37, Some(33))]
            {
                cache.window = window;
                let expected = cache.oracle(first, n, false);
                for kernels in Kernels::available() {
                    for threads in [1, 3] {
                        let got = cache.run(kernels, &Threads(threads), first, n, false);
                        let what =
                            format!("{:?} {s:?} {k:?} {v:?} {first}+{n} {threads} threads", kernels.isa());
                        assert_bits(&got, &expected, &what);
                    }
                }
            }
        }
    }
}

/// Quantised attention is the attention of rounded keys and values: near that of the exact ones.
#[test]
fn quantised_attention_is_near_attention() {
    let s = shape(4, 2, 64, 64);
    for (k, v, bound) in [
        (KvFormat::Q8, KvFormat::Q8, 0.02),
        (KvFormat::Q8, KvFormat::Q4, 0.12),
        (KvFormat::Q4, KvFormat::Q4, 0.25),
        (KvFormat::Q4Channel, KvFormat::Q4, 0.25),
        (KvFormat::Q8Channel, KvFormat::Q8, 0.02),
    ] {
        let cache = Cache::with(KvLayout { shape: s, k, v, summaries: false }, 300, 500);
        let got = cache.run(Kernels::detect(), &Serial, 299, 1, false);
        for head in 0..s.heads {
            let exact = cache.exact(299, head, false);
            let norm = exact.iter().map(|x| x * x).sum::<f64>().sqrt();
            let got = &got[head * s.v_dim..(head + 1) * s.v_dim];
            let error = exact.iter().zip(got).map(|(x, y)| (x - f64::from(*y)).powi(2)).sum::<f64>().sqrt();
            assert!(error <= bound * norm, "{k:?} {v:?} head {head}: {error:e} of {norm:e}");
        }
    }
}

#[test]
fn tokens_take_the_bytes_of_their_formats() {
    for dim in [64, 128, 256] {
        let s = shape(1, 1, dim, dim);
        let bytes = |k, v| KvLayout { shape: s, k, v, summaries: false }.bytes_per_token() as f64;
        let f16 = bytes(KvFormat::F16, KvFormat::F16);
        assert_eq!(f16, 4.0 * dim as f64);
        assert!(bytes(KvFormat::Q8, KvFormat::Q8) <= 0.53 * f16);
        assert!(bytes(KvFormat::Q4, KvFormat::Q4) <= 0.29 * f16);
        assert!(bytes(KvFormat::Q4Channel, KvFormat::Q4) <= 0.29 * f16);
        assert_eq!(8.0 * bytes(KvFormat::Q4Channel, KvFormat::Q4), (4.75 + 4.5) * dim as f64);
        assert!(bytes(KvFormat::Q8Channel, KvFormat::Q8) <= 0.53 * f16);
        assert_eq!(8.0 * bytes(KvFormat::Q8Channel, KvFormat::Q8), 16.5 * dim as f64 + 16.0);
        for (k, v) in FORMATS {
            let layout = KvLayout { shape: s, k, v, summaries: false };
            assert_eq!(2 * layout.page_len(), PAGE_TOKENS * layout.bytes_per_token());
        }
    }
}

/// Whatever is written, also what is not finite, can be read again.
#[test]
fn odd_rows_are_stored() {
    let kernels = Kernels::detect();
    for row in [vec![0.0; 40], vec![f32::NAN; 40], vec![f32::INFINITY; 40], vec![1e-30; 40], vec![-3e38; 40]]
    {
        for (k, v) in FORMATS {
            let layout = KvLayout { shape: shape(1, 1, 40, 40), k, v, summaries: false };
            let mut page = vec![0; layout.page_len()];
            kernels.write_kv(&layout, &mut page, 31, &row, &row);
            if k.per_channel() {
                continue;
            }
            let mut copy = vec![0; layout.page_len()];
            layout.copy_row(0, (&page, 31), (&mut copy, 31));
            assert_eq!(page, copy);
        }
    }
}

#[test]
fn a_rotation_keeps_products_and_spreads_peaks() {
    let mut noise = Noise(600);
    for dim in [16, 64, 80, 96, 128, 33] {
        let (mut a, mut b) = (noise.vec(2 * dim), noise.vec(2 * dim));
        a[3] = 50.0;
        let dot =
            |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>();
        let before = dot(&a, &b);
        hadamard_in_place(&mut a, dim);
        hadamard_in_place(&mut b, dim);
        assert!((dot(&a, &b) - before).abs() <= 1e-4 * before.abs().max(1.0), "{dim}");
        let block = 1 << dim.trailing_zeros();
        let most = a[..block].iter().fold(0.0, |most: f32, x| most.max(x.abs()));
        assert!(block == 1 || most <= 50.0 / (block as f32).sqrt() + (block as f32).sqrt(), "{dim}: {most}");
    }
}

/// What a query is seen to attend to is what attention weighs values with: one-hot values show the weights.
#[test]
fn observed_attention_is_that_of_the_values() {
    let s = shape(6, 2, 32, 80);
    let mut cache = Cache::new(s, 75, 700);
    let kernels = Kernels::detect();
    for t in 0..75 {
        let mut v = vec![0.0; 160];
        (v[t], v[80 + t]) = (1.0, 1.0);
        let k = cache.k[t * 64..(t + 1) * 64].to_vec();
        let page = page_mut(&mut cache.chunks, cache.table[t / PAGE_TOKENS], cache.layout.page_len());
        kernels.write_kv(&cache.layout, page, t % PAGE_TOKENS, &k, &v);
    }
    for position in [0, 31, 74] {
        for sinks in [false, true] {
            let weights = cache.run(kernels, &Serial, position, 1, sinks);
            let mut expected: Option<Vec<Vec<f32>>> = None;
            for kernels in Kernels::available() {
                let mut sums = vec![vec![0.0; position + 1]; 2];
                kernels.observe(
                    &Threads(2),
                    &mut ObserveJob {
                        q: &cache.q[position * 192..(position + 1) * 192],
                        position,
                        shape: s,
                        kv: cache.kv(),
                        scale: cache.scale,
                        soft_cap: None,
                        sinks: sinks.then_some(&cache.sinks),
                        scratch: &mut AttentionScratch::new(&s, 2, 75),
                        weights: &mut vec![0.0; 6 * (position + 2)],
                        sums: &mut sums,
                    },
                );
                for (g, sums) in sums.iter().enumerate() {
                    for (t, sum) in sums.iter().enumerate() {
                        let by_hand: f32 = (0..3).map(|h| weights[(3 * g + h) * 80 + t]).sum();
                        assert!((sum - by_hand).abs() < 2e-3, "{position} {g} {t}: {sum} {by_hand}");
                    }
                }
                assert_eq!(*expected.get_or_insert_with(|| sums.clone()), sums, "{:?}", kernels.isa());
            }
        }
    }
}

#[test]
fn windows_caps_and_sinks_have_the_bits_of_the_oracle() {
    for (i, s) in [shape(4, 2, 64, 64), shape(2, 2, 48, 32), shape(8, 1, 32, 32)].into_iter().enumerate() {
        let mut cache = Cache::new(s, 150, 100 + i as u64);
        for (window, soft_cap, sinks, first_token) in [
            (Some(1), None, false, 0),
            (Some(31), None, true, 0),
            (Some(32), Some(5.0), false, 0),
            (Some(33), Some(0.5), true, 64),
            (Some(100), None, false, 17),
            (None, Some(50.0), true, 0),
        ] {
            (cache.window, cache.soft_cap, cache.first_token) = (window, soft_cap, first_token);
            for (first, n) in [(100, 50), (149, 1), (127, 3), (96, 33)] {
                let expected = cache.oracle(first, n, sinks);
                for kernels in Kernels::available() {
                    let got = cache.run(kernels, &Serial, first, n, sinks);
                    let what =
                        format!("{:?} {s:?} {window:?} {soft_cap:?} {sinks} {first}+{n}", kernels.isa());
                    assert_bits(&got, &expected, &what);
                }
            }
        }
    }
}

#[test]
fn long_contexts_have_the_bits_of_the_oracle_on_any_number_of_threads() {
    for (i, s) in [shape(4, 1, 32, 32), shape(6, 3, 64, 64), shape(1, 1, 256, 256)].into_iter().enumerate() {
        let cache = Cache::new(s, 1300, 200 + i as u64);
        for (first, n) in [(1299, 1), (511, 1), (512, 1), (1020, 8), (1290, 10)] {
            let expected = cache.oracle(first, n, true);
            for kernels in Kernels::available() {
                for threads in [1, 2, 5] {
                    let got = cache.run(kernels, &Threads(threads), first, n, true);
                    assert_bits(
                        &got,
                        &expected,
                        &format!("{:?} {s:?} {first}+{n} {threads} threads", kernels.isa()),
                    );
                }
            }
        }
    }
}

#[test]
fn the_result_is_attention() {
    for (i, s) in [shape(4, 2, 64, 64), shape(2, 1, 128, 128), shape(3, 1, 96, 80)].into_iter().enumerate() {
        let mut cache = Cache::new(s, 700, 300 + i as u64);
        for (window, soft_cap, sinks) in [(None, None, false), (Some(200), Some(2.0), true)] {
            (cache.window, cache.soft_cap) = (window, soft_cap);
            for position in [0, 31, 500, 699] {
                let got = cache.run(Kernels::detect(), &Serial, position, 1, sinks);
                for head in 0..s.heads {
                    let exact = cache.exact(position, head, sinks);
                    let norm = exact.iter().map(|x| x * x).sum::<f64>().sqrt();
                    let got = &got[head * s.v_dim..(head + 1) * s.v_dim];
                    let error =
                        exact.iter().zip(got).map(|(x, y)| (x - f64::from(*y)).powi(2)).sum::<f64>().sqrt();
                    // Probabilities are halves: each is off by at most 2^-12 of itself.
                    let values = (0..=position).map(|t| {
                        let v =
                            &cache.v[(t * s.kv_heads + head * s.kv_heads / s.heads) * s.v_dim..][..s.v_dim];
                        v.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt()
                    });
                    let bound = values.fold(0.0, f64::max) / 4096.0 + 1e-5 * norm;
                    assert!(error <= bound, "{s:?} position {position} head {head}: {error:e} of {norm:e}");
                }
            }
        }
    }
}

#[test]
fn what_lies_outside_the_window_is_never_read_into_the_result() {
    let s = shape(2, 1, 64, 64);
    let mut cache = Cache::new(s, 200, 7);
    cache.window = Some(40);
    let before = cache.run(Kernels::detect(), &Serial, 190, 10, false);
    // Positions below 151 are out of every window: poison them, and give their pages up.
    for t in 0..151 {
        let page = page_mut(&mut cache.chunks, cache.table[t / PAGE_TOKENS], cache.layout.page_len());
        page[cache.layout.key_at(0, t % PAGE_TOKENS)..][..64].fill(0x7e00);
        page[cache.layout.value_at(0, t % PAGE_TOKENS)..][..64].fill(0x7e00);
    }
    cache.table[..4].fill(u32::MAX);
    cache.first_token = 151;
    for kernels in Kernels::available() {
        assert_bits(&cache.run(kernels, &Serial, 190, 10, false), &before, "poisoned");
    }
}

#[test]
fn a_row_without_positions_is_zero() {
    let mut cache = Cache::new(shape(2, 1, 32, 32), 40, 8);
    cache.first_token = 40;
    for kernels in Kernels::available() {
        assert!(cache.run(kernels, &Serial, 39, 1, false).iter().all(|&x| x == 0.0));
        assert!(cache.run(kernels, &Serial, 39, 1, true).iter().all(|&x| x == 0.0));
    }
}

#[test]
fn infinite_inputs_do_not_panic() {
    let mut cache = Cache::new(shape(2, 1, 32, 32), 70, 9);
    cache.q[69 * 64] = f32::INFINITY;
    cache.q[69 * 64 + 32] = f32::NAN;
    for kernels in Kernels::available() {
        assert_eq!(cache.run(kernels, &Serial, 60, 10, false).len(), 640);
    }
}

#[test]
fn scratch_takes_the_bytes_it_says() {
    let s = shape(9, 3, 64, 64);
    for threads in [1, 4] {
        let scratch = AttentionScratch::new(&s, threads, 4096);
        let bytes = 4 * (scratch.slots.len() + scratch.partials.len() + scratch.pending.len());
        assert_eq!(bytes, AttentionScratch::bytes(&s, threads, 4096));
    }
}

/// Few heads to a KV head and whole vectors: pages are read as they lie, by blocks of as many rows as there are heads.
#[test]
fn any_group_that_reads_pages_directly_has_the_bits_of_a_converted_page() {
    for (group, (k, v)) in (1..=7).flat_map(|group| FORMATS.map(|format| (group, format))) {
        for (k_dim, v_dim) in [(64, 64), (16, 80), (96, 32)] {
            let (shape, tokens) = (shape(2 * group, 2, k_dim, v_dim), 75);
            let cache = Cache::with(KvLayout { shape, k, v, summaries: false }, tokens, group as u64);
            let whole = cache.run(Kernels::available()[0], &Serial, 0, tokens, false);
            let row = 2 * group * v_dim;
            for kernels in Kernels::available() {
                for position in [0, 15, 32, 74] {
                    let got = cache.run(kernels, &Serial, position, 1, false);
                    assert_bits(&got, &whole[position * row..(position + 1) * row], "one query");
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn chunks_batches_and_threads_change_no_bit(
        seed in any::<u64>(),
        group in 1usize..=16,
        kv_heads in 1usize..=3,
        k_dim in 1usize..=80,
        v_dim in 1usize..=80,
        cuts in proptest::collection::vec(1usize..=70, 1..6),
        window in proptest::option::of(1usize..=200),
        cap in proptest::option::of(0.5f32..50.0),
        sinks in any::<bool>(),
        threads in 1usize..=3,
        format in proptest::option::of(0..FORMATS.len()),
    ) {
        let tokens: usize = cuts.iter().sum();
        let (k, v) = format.map_or((KvFormat::F16, KvFormat::F16), |i| FORMATS[i]);
        let shape = shape(group * kv_heads, kv_heads, k_dim, v_dim);
        let mut cache = Cache::with(KvLayout { shape, k, v, summaries: false }, tokens, seed);
        (cache.window, cache.soft_cap) = (window, cap);
        let kernels = Kernels::available();
        let whole = cache.run(kernels[0], &Serial, 0, tokens, sinks);
        let row = group * kv_heads * v_dim;
        for kernels in kernels {
            let mut first = 0;
            for &n in &cuts {
                let got = cache.run(kernels, &Threads(threads), first, n, sinks);
                assert_bits(&got, &whole[first * row..(first + n) * row], "chunk");
                first += n;
            }
            let last = cache.run(kernels, &Serial, tokens - 1, 1, sinks);
            assert_bits(&last, &whole[(tokens - 1) * row..], "single query");
        }
    }
}
