//! What tests of attention share: a cache of noise, threads, and comparisons.

use half::f16;

use super::oracle::{self, Query};
use super::*;
use crate::Kernels;
use crate::parallel::Parallel;

/// Some threads that claim tasks, as the engine's pool does.
pub(super) struct Threads(pub usize);

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
pub(super) struct Noise(pub u64);

impl Noise {
    pub(super) fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 40) as f32 / 8_388_608.0) - 1.0
    }
    pub(super) fn vec(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.next()).collect()
    }
}

/// Pages in a chunk of the test cache.
pub(super) const CHUNK_PAGES: usize = 3;

/// A cache of `tokens` positions, pages in scattered order, everything not written NaN.
pub(super) struct Cache {
    pub shape: AttentionShape,
    pub layout: KvLayout,
    pub chunks: Vec<Box<[u16]>>,
    pub table: Vec<u32>,
    /// Halves of all keys, where their format asks for them.
    pub fresh: Vec<Box<[u16]>>,
    pub fresh_table: Vec<u32>,
    pub q: Vec<f32>,
    pub sinks: Vec<f32>,
    pub scale: f32,
    pub soft_cap: Option<f32>,
    pub window: Option<usize>,
    pub first_token: usize,
    pub tokens: usize,
    pub most_pages: Option<usize>,
    pub k: Vec<f32>,
    pub v: Vec<f32>,
}

pub(super) fn page_mut(chunks: &mut [Box<[u16]>], page: u32, page_len: usize) -> &mut [u16] {
    let page = page as usize;
    &mut chunks[page / CHUNK_PAGES][page % CHUNK_PAGES * page_len..][..page_len]
}

impl Cache {
    pub(super) fn new(shape: AttentionShape, tokens: usize, seed: u64) -> Self {
        Self::with(KvLayout::f16(shape), tokens, seed)
    }

    pub(super) fn with(layout: KvLayout, tokens: usize, seed: u64) -> Self {
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
        let fresh_len = if layout.k.per_channel() { layout.fresh().page_len() } else { 0 };
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
            if layout.k.per_channel() {
                let of_page = page_mut(&mut fresh, fresh_table[t / PAGE_TOKENS], layout.fresh().page_len());
                kernels.write_kv(&layout.fresh(), of_page, t % PAGE_TOKENS, k, &[]);
                if t % PAGE_TOKENS == PAGE_TOKENS - 1 {
                    layout.close_keys(of_page, page);
                }
            }
            if t % PAGE_TOKENS == PAGE_TOKENS - 1 {
                layout.summarise(page_mut(&mut chunks, table[t / PAGE_TOKENS], page_len));
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
            most_pages: None,
            k,
            v,
        }
    }

    pub(super) fn kv(&self) -> KvPages<'_> {
        KvPages {
            chunks: &self.chunks,
            chunk_pages: CHUNK_PAGES,
            layout: self.layout,
            page_len: self.layout.page_len(),
            table: &self.table,
            first_token: self.first_token,
            fresh: (self.layout.k.per_channel()).then(|| FreshKeys {
                chunks: &self.fresh,
                chunk_pages: CHUNK_PAGES,
                page_len: self.layout.fresh().page_len(),
                table: &self.fresh_table,
                first: 0,
            }),
            most_pages: self.most_pages,
        }
    }

    /// A value of a key as it lies in its page.
    pub(super) fn stored_key(&self, head: usize, t: usize, channel: usize) -> f64 {
        let area = &self.kv().page(t / PAGE_TOKENS)[self.layout.keys(head)];
        let (row, factor) = oracle::read(self.layout.k, area, self.shape.k_dim, t % PAGE_TOKENS);
        f64::from(row[channel] * factor)
    }

    /// Queries `first .. first + n`.
    pub(super) fn run(
        &self,
        kernels: &Kernels,
        par: &dyn Parallel,
        first: usize,
        n: usize,
        sinks: bool,
    ) -> Vec<f32> {
        let s = &self.shape;
        let mut scratch = AttentionScratch::new(s, par.threads(), self.tokens);
        if self.most_pages.is_some() {
            scratch = scratch.choosing(s, par.threads(), self.tokens);
        }
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

    pub(super) fn oracle(&self, first: usize, n: usize, sinks: bool) -> Vec<f32> {
        let s = &self.shape;
        let mut out = Vec::new();
        for position in first..first + n {
            for head in 0..s.heads {
                let kv_head = head * s.kv_heads / s.heads;
                let all = &self.q[position * s.heads * s.k_dim..][..s.heads * s.k_dim];
                out.extend(oracle::attend(&Query {
                    reads: self
                        .most_pages
                        .map(|_| oracle::choose(&self.kv(), (all, self.scale), position, kv_head, s.heads)),
                    q: &self.q[(position * s.heads + head) * s.k_dim..][..s.k_dim],
                    position,
                    kv_head,
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
    pub(super) fn exact(&self, position: usize, head: usize, sinks: bool) -> Vec<f64> {
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

pub(super) fn shape(heads: usize, kv_heads: usize, k_dim: usize, v_dim: usize) -> AttentionShape {
    AttentionShape { heads, kv_heads, k_dim, v_dim }
}

pub(super) fn assert_bits(a: &[f32], b: &[f32], what: &str) {
    assert_eq!(a.len(), b.len(), "{what}");
    for (i, (x, y)) in a.iter().zip(b).enumerate() {
        assert!(x.to_bits() == y.to_bits(), "{what}: value {i} is {x:e}, expected {y:e}");
    }
}

pub(super) const FORMATS: [(KvFormat, KvFormat); 9] = [
    (KvFormat::Q8, KvFormat::Q8),
    (KvFormat::Q8, KvFormat::Q4),
    (KvFormat::Q4, KvFormat::Q4),
    (KvFormat::F16, KvFormat::Q8),
    (KvFormat::Q4, KvFormat::F16),
    (KvFormat::Q4Channel, KvFormat::Q4),
    (KvFormat::Q4Channel, KvFormat::F16),
    (KvFormat::Q8Channel, KvFormat::Q8),
    (KvFormat::Q8Channel, KvFormat::Q4),
];
