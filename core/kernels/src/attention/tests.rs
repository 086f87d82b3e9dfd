//! Attention against the plain oracle, bit for bit, and against f64.

use half::f16;
use proptest::prelude::*;

use super::oracle::{self, Query};
use super::*;
use crate::Kernels;
use crate::parallel::{Parallel, Serial};

/// Some threads that claim tasks, as the engine's pool does.
struct Threads(usize);

impl Parallel for Threads {
    fn threads(&self) -> usize {
        self.0
    }
    fn run(&self, tasks: usize, job: &(dyn Fn(usize) + Sync)) {
        let next = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..self.0 {
                scope.spawn(|| {
                    loop {
                        let task = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        if task >= tasks {
                            break;
                        }
                        job(task);
                    }
                });
            }
        });
    }
}

/// A generator good enough for test data, the same on every machine.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 40) as f32 / 8_388_608.0) - 1.0
    }
    fn vec(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.next()).collect()
    }
}

/// Pages in a chunk of the test cache.
const CHUNK_PAGES: usize = 3;

/// A cache of `tokens` positions, pages in scattered order, everything not written NaN.
struct Cache {
    shape: AttentionShape,
    layout: KvLayout,
    chunks: Vec<Box<[u16]>>,
    table: Vec<u32>,
    /// Halves of all keys, where their format asks for them.
    fresh: Vec<Box<[u16]>>,
    fresh_table: Vec<u32>,
    q: Vec<f32>,
    sinks: Vec<f32>,
    scale: f32,
    soft_cap: Option<f32>,
    window: Option<usize>,
    first_token: usize,
    tokens: usize,
    k: Vec<f32>,
    v: Vec<f32>,
}

fn page_mut(chunks: &mut [Box<[u16]>], page: u32, page_len: usize) -> &mut [u16] {
    let page = page as usize;
    &mut chunks[page / CHUNK_PAGES][page % CHUNK_PAGES * page_len..][..page_len]
}

impl Cache {
    fn new(shape: AttentionShape, tokens: usize, seed: u64) -> Self {
        Self::with(KvLayout::f16(shape), tokens, seed)
    }

    fn with(layout: KvLayout, tokens: usize, seed: u64) -> Self {
        let shape = layout.shape;
        let mut noise = Noise(seed);
        let pages = tokens.div_ceil(PAGE_TOKENS);
        let page_len = layout.page_len();
        let chunks = (pages + 1).div_ceil(CHUNK_PAGES);
        let mut chunks: Vec<_> =
            (0..chunks).map(|_| vec![0x7e00; CHUNK_PAGES * page_len].into_boxed_slice()).collect();
        let table: Vec<u32> = (0..pages as u32).rev().map(|p| p + 1).collect();
        let k = noise.vec(tokens * shape.kv_heads * shape.k_dim);
        let v = noise.vec(tokens * shape.kv_heads * shape.v_dim);
        let kernels = Kernels::by_isa(crate::Isa::Scalar).unwrap();
        let fresh_table: Vec<u32> = (0..pages as u32).map(|p| p ^ 1).collect();
        let fresh_len = if layout.k == KvFormat::Q4Channel { layout.fresh().page_len() } else { 0 };
        let mut fresh: Vec<_> = (0..(pages + 1).div_ceil(CHUNK_PAGES))
            .map(|_| vec![0x7e00; CHUNK_PAGES * fresh_len].into_boxed_slice())
            .collect();
        for (t, (k, v)) in k
            .chunks_exact(shape.kv_heads * shape.k_dim)
            .zip(v.chunks_exact(shape.kv_heads * shape.v_dim))
            .enumerate()
        {
            let page = page_mut(&mut chunks, table[t / PAGE_TOKENS], page_len);
            kernels.write_kv(&layout, page, t % PAGE_TOKENS, k, v);
            if layout.k == KvFormat::Q4Channel {
                let of_page = page_mut(&mut fresh, fresh_table[t / PAGE_TOKENS], layout.fresh().page_len());
                kernels.write_kv(&layout.fresh(), of_page, t % PAGE_TOKENS, k, &[]);
                if t % PAGE_TOKENS == PAGE_TOKENS - 1 {
                    layout.close_keys(of_page, page);
                }
            }
        }
        let mut q = noise.vec(tokens * shape.heads * shape.k_dim);
        q.iter_mut().for_each(|x| *x *= 4.0);
        let sinks = noise.vec(shape.heads);
        let scale = 1.0 / (shape.k_dim as f32).sqrt();
        Cache {
            shape,
            layout,
            chunks,
            table,
            fresh,
            fresh_table,
            q,
            sinks,
            scale,
            soft_cap: None,
            window: None,
            first_token: 0,
            tokens,
            k,
            v,
        }
    }

    fn kv(&self) -> KvPages<'_> {
        KvPages {
            chunks: &self.chunks,
            chunk_pages: CHUNK_PAGES,
            layout: self.layout,
            page_len: self.layout.page_len(),
            table: &self.table,
            first_token: self.first_token,
            fresh: (self.layout.k == KvFormat::Q4Channel).then(|| FreshKeys {
                chunks: &self.fresh,
                chunk_pages: CHUNK_PAGES,
                page_len: self.layout.fresh().page_len(),
                table: &self.fresh_table,
                first: 0,
            }),
        }
    }

    /// Queries `first .. first + n`.
    fn run(&self, kernels: &Kernels, par: &dyn Parallel, first: usize, n: usize, sinks: bool) -> Vec<f32> {
        let s = &self.shape;
        let mut scratch = AttentionScratch::new(s, par.threads(), self.tokens);
        let mut out = vec![f32::NAN; n * s.heads * s.v_dim];
        kernels.attention(
            par,
            &mut AttentionJob {
                q: &self.q[first * s.heads * s.k_dim..(first + n) * s.heads * s.k_dim],
                n,
                first_pos: first,
                heads: s.heads,
                kv_heads: s.kv_heads,
                k_dim: s.k_dim,
                v_dim: s.v_dim,
                kv: self.kv(),
                scale: self.scale,
                soft_cap: self.soft_cap,
                window: self.window,
                sinks: sinks.then_some(&self.sinks),
                scratch: &mut scratch,
                out: &mut out,
            },
        );
        out
    }

    fn oracle(&self, first: usize, n: usize, sinks: bool) -> Vec<f32> {
        let s = &self.shape;
        let mut out = Vec::new();
        for position in first..first + n {
            for head in 0..s.heads {
                out.extend(oracle::attend(&Query {
                    q: &self.q[(position * s.heads + head) * s.k_dim..][..s.k_dim],
                    position,
                    kv_head: head * s.kv_heads / s.heads,
                    shape: *s,
                    kv: self.kv(),
                    scale: self.scale,
                    soft_cap: self.soft_cap,
                    window: self.window,
                    sink: sinks.then(|| self.sinks[head]),
                }));
            }
        }
        out
    }

    /// Plain softmax attention in f64, Q, K and V rounded to halves first.
    fn exact(&self, position: usize, head: usize, sinks: bool) -> Vec<f64> {
        let s = &self.shape;
        let g = head * s.kv_heads / s.heads;
        let half = |x: f32| f64::from(f16::from_f32(x).to_f32());
        let q = &self.q[(position * s.heads + head) * s.k_dim..][..s.k_dim];
        let first = self.window.map_or(0, |w| (position + 1).saturating_sub(w)).max(self.first_token);
        let scores: Vec<f64> = (first..=position)
            .map(|t| {
                let k = &self.k[(t * s.kv_heads + g) * s.k_dim..][..s.k_dim];
                let x: f64 =
                    q.iter().zip(k).map(|(q, k)| half(*q) * half(*k)).sum::<f64>() * f64::from(self.scale);
                self.soft_cap.map_or(x, |cap| f64::from(cap) * (x / f64::from(cap)).tanh())
            })
            .collect();
        let sink = if sinks { f64::from(self.sinks[head]).exp() } else { 0.0 };
        let total: f64 = scores.iter().map(|x| x.exp()).sum::<f64>() + sink;
        (0..s.v_dim)
            .map(|d| {
                let v = |t: usize| half(self.v[(t * s.kv_heads + g) * s.v_dim + d]);
                scores.iter().enumerate().map(|(i, x)| x.exp() * v(first + i)).sum::<f64>() / total
            })
            .collect()
    }
}

fn shape(heads: usize, kv_heads: usize, k_dim: usize, v_dim: usize) -> AttentionShape {
    AttentionShape { heads, kv_heads, k_dim, v_dim }
}

fn assert_bits(a: &[f32], b: &[f32], what: &str) {
    assert_eq!(a.len(), b.len(), "{what}");
    for (i, (x, y)) in a.iter().zip(b).enumerate() {
        assert!(x.to_bits() == y.to_bits(), "{what}: value {i} is {x:e}, expected {y:e}");
    }
}

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

const FORMATS: [(KvFormat, KvFormat); 7] = [
    (KvFormat::Q8, KvFormat::Q8),
    (KvFormat::Q8, KvFormat::Q4),
    (KvFormat::Q4, KvFormat::Q4),
    (KvFormat::F16, KvFormat::Q8),
    (KvFormat::Q4, KvFormat::F16),
    (KvFormat::Q4Channel, KvFormat::Q4),
    (KvFormat::Q4Channel, KvFormat::F16),
];

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
            let mut cache = Cache::with(KvLayout { shape: s, k, v }, 570, 400 + i as u64);
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
    ] {
        let cache = Cache::with(KvLayout { shape: s, k, v }, 300, 500);
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
        let bytes = |k, v| KvLayout { shape: s, k, v }.bytes_per_token() as f64;
        let f16 = bytes(KvFormat::F16, KvFormat::F16);
        assert_eq!(f16, 4.0 * dim as f64);
        assert!(bytes(KvFormat::Q8, KvFormat::Q8) <= 0.53 * f16);
        assert!(bytes(KvFormat::Q4, KvFormat::Q4) <= 0.29 * f16);
        assert!(bytes(KvFormat::Q4Channel, KvFormat::Q4) <= 0.29 * f16);
        assert_eq!(8.0 * bytes(KvFormat::Q4Channel, KvFormat::Q4), (4.75 + 4.5) * dim as f64);
        for (k, v) in FORMATS {
            let layout = KvLayout { shape: s, k, v };
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
            let layout = KvLayout { shape: shape(1, 1, 40, 40), k, v };
            let mut page = vec![0; layout.page_len()];
            kernels.write_kv(&layout, &mut page, 31, &row, &row);
            if k == KvFormat::Q4Channel {
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
        let mut cache = Cache::with(KvLayout { shape, k, v }, tokens, seed);
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
