//! The order of operations of the module's head, written down as plainly as possible: one query, one head, one position at a time.

use half::f16;

use super::format::Q4_GROUP;
use super::{AttentionShape, KvFormat, KvPages, PAGE_TOKENS, PART_TOKENS};
use crate::math::scalar::{exp, tanh};
use crate::{Isa, Kernels};

pub(super) struct Query<'a> {
    pub q: &'a [f32],
    pub position: usize,
    pub kv_head: usize,
    pub shape: AttentionShape,
    pub kv: KvPages<'a>,
    pub scale: f32,
    pub soft_cap: Option<f32>,
    pub window: Option<usize>,
    pub sink: Option<f32>,
    /// Which pages are read, if not all.
    pub reads: Option<Vec<bool>>,
}

struct Running {
    m: f32,
    l: f32,
    acc: Vec<f32>,
}

impl Running {
    fn new(v_dim: usize) -> Self {
        Running { m: f32::NEG_INFINITY, l: 0.0, acc: vec![0.0; v_dim] }
    }

    fn merge(&mut self, part: &Running) {
        let m = greater(self.m, part.m);
        let (a, b) = (exp(self.m - m), exp(part.m - m) * part.l);
        self.m = m;
        self.l = self.l.mul_add(a, b);
        for (x, y) in self.acc.iter_mut().zip(&part.acc) {
            *x = x.mul_add(a, y * b);
        }
    }
}

fn rounded(x: f32) -> f32 {
    f16::from_f32(x).to_f32()
}

fn greater(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

fn tree(mut p: [f32; 16], op: fn(f32, f32) -> f32) -> f32 {
    for width in [8, 4, 2, 1] {
        for i in 0..width {
            p[i] = op(p[i], p[i + width]);
        }
    }
    p[0]
}

fn over_page(x: &[f32; PAGE_TOKENS], op: fn(f32, f32) -> f32) -> f32 {
    tree(std::array::from_fn(|i| op(x[i], x[i + 16])), op)
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut p = [0.0f32; 16];
    for (k, (x, y)) in a.iter().zip(b).enumerate() {
        p[k % 16] = x.mul_add(*y, p[k % 16]);
    }
    tree(p, |a, b| a + b)
}

/// A row of a page: what is multiplied, and the factor that is folded.
pub(super) fn read(format: KvFormat, area: &[u16], dim: usize, slot: usize) -> (Vec<f32>, f32) {
    let (rows, scales) = area.split_at(PAGE_TOKENS * format.row_words(dim));
    let words = &rows[slot * format.row_words(dim)..(slot + 1) * format.row_words(dim)];
    let scale = |i: usize| f16::from_bits(scales[slot * format.row_scales(dim) + i]).to_f32();
    let byte = |i: usize| words[i / 2].to_le_bytes()[i % 2];
    match format {
        KvFormat::F16 => (words.iter().map(|&h| f16::from_bits(h).to_f32()).collect(), 1.0),
        KvFormat::Q8 => ((0..dim).map(|i| f32::from(byte(i) as i8)).collect(), scale(0)),
        KvFormat::Q4 => {
            let value = |i: usize| {
                let (group, i) = (i / Q4_GROUP, i % Q4_GROUP);
                let byte = byte(group * 16 + i % 16);
                let nibble = if i < 16 { byte & 15 } else { byte >> 4 };
                let d = f16::from_bits(
                    u16::from(scales[slot * format.row_scales(dim) + group].to_le_bytes()[i / 16]) << 8,
                )
                .to_f32();
                d * (f32::from(nibble) - 8.0)
            };
            ((0..dim).map(value).collect(), 1.0)
        }
        KvFormat::Q8Channel => {
            let (offsets, scales) = scales.split_at(dim.next_multiple_of(16) / 2);
            let value = |i: usize| {
                let of = |words: &[u16]| words[i / 2].to_le_bytes()[i % 2];
                let d = f16::from_bits(u16::from(of(scales)) * 128).to_f32();
                d * (f32::from(byte(i) as i8) + 16.0 * f32::from(of(offsets) as i8))
            };
            ((0..dim).map(value).collect(), 1.0)
        }
        KvFormat::Q4Channel => {
            let padded = dim.next_multiple_of(Q4_GROUP);
            let (offsets, scales) = scales.split_at(padded);
            let value = |i: usize| {
                let (group, at) = (i / Q4_GROUP, i % Q4_GROUP);
                let byte = byte(group * 16 + at % 16);
                let nibble = if at < 16 { byte & 15 } else { byte >> 4 };
                let d = f16::from_bits(u16::from(scales[i / 2].to_le_bytes()[i % 2]) * 128).to_f32();
                (f32::from(nibble) - 8.0).mul_add(d, f16::from_bits(offsets[i]).to_f32())
            };
            ((0..dim).map(value).collect(), 1.0)
        }
    }
}

pub(super) fn attend(query: &Query<'_>) -> Vec<f32> {
    let Query { shape, kv, .. } = query;
    let end = query.position + 1;
    let first = query.window.map_or(0, |w| end.saturating_sub(w)).max(kv.first_token);
    let key = |t: usize| {
        if let (true, true, Some(fresh)) =
            (kv.layout.k.per_channel(), t / PAGE_TOKENS == query.position / PAGE_TOKENS, &kv.fresh)
        {
            let area = &fresh.page(t / PAGE_TOKENS)[query.kv_head * PAGE_TOKENS * shape.k_dim..];
            let area = &area[..PAGE_TOKENS * shape.k_dim];
            return read(KvFormat::F16, area, shape.k_dim, t % PAGE_TOKENS);
        }
        let area = &kv.page(t / PAGE_TOKENS)[kv.layout.keys(query.kv_head)];
        read(kv.layout.k, area, shape.k_dim, t % PAGE_TOKENS)
    };
    let value = |t: usize| {
        let area = &kv.page(t / PAGE_TOKENS)[kv.layout.values(query.kv_head)];
        read(kv.layout.v, area, shape.v_dim, t % PAGE_TOKENS)
    };
    let q: Vec<f32> = query.q.iter().map(|&x| rounded(x)).collect();
    let mut all = Running::new(shape.v_dim);
    for part in first / PART_TOKENS..end.div_ceil(PART_TOKENS) {
        let mut run = Running::new(shape.v_dim);
        let pages = PART_TOKENS / PAGE_TOKENS;
        let mut scored = Vec::new();
        for page in part * pages..(part + 1) * pages {
            let seen: Vec<usize> =
                (0..PAGE_TOKENS).filter(|t| (first..end).contains(&(page * PAGE_TOKENS + t))).collect();
            let left_out = query.reads.as_ref().is_some_and(|reads| !reads.get(page).unwrap_or(&false));
            if seen.is_empty() || left_out {
                continue;
            }
            let mut s = [f32::NEG_INFINITY; PAGE_TOKENS];
            for &t in &seen {
                let (k, factor) = key(page * PAGE_TOKENS + t);
                s[t] = dot(&q, &k) * factor * query.scale;
                if let Some(cap) = query.soft_cap {
                    s[t] = cap * tanh(s[t] * (1.0 / cap));
                }
            }
            run.m = greater(run.m, over_page(&s, greater));
            scored.push((page, seen, s));
        }
        for (_, _, s) in &mut scored {
            *s = s.map(|x| exp(x - run.m));
            run.l += over_page(s, |a, b| a + b);
        }
        for (page, seen, s) in &scored {
            for &t in seen {
                let (v, factor) = value(page * PAGE_TOKENS + t);
                let p = rounded(s[t] * (1.0 / run.l)) * factor;
                for (x, v) in run.acc.iter_mut().zip(&v) {
                    *x = p.mul_add(*v, *x);
                }
            }
        }
        all.merge(&run);
    }
    if let Some(sink) = query.sink {
        let mut part = Running::new(shape.v_dim);
        (part.m, part.l) = (sink, 1.0);
        all.merge(&part);
    }
    let factor = 1.0 / all.l;
    all.acc.iter().map(|x| x * factor).collect()
}

/// The largest or smallest of each channel of a full page, as a summary has it.
fn extremes(
    kv: &KvPages<'_>,
    dim: usize,
    kv_head: usize,
    page: usize,
    better: fn(f32, f32) -> bool,
) -> Vec<f32> {
    let area = &kv.page(page)[kv.layout.keys(kv_head)];
    let rows: Vec<Vec<f32>> = (0..PAGE_TOKENS)
        .map(|slot| {
            let (row, factor) = read(kv.layout.k, area, dim, slot);
            row.iter().map(|x| rounded(x * factor).clamp(-65504.0, 65504.0)).collect()
        })
        .collect();
    (0..dim)
        .map(|c| rows.iter().map(|row| row[c]).reduce(|a, b| if better(a, b) { a } else { b }).unwrap())
        .collect()
}

/// The pages that a query (all heads) reads of a KV head, by the head of `choose.rs`.
pub(super) fn choose(
    kv: &KvPages<'_>,
    (q, scale): (&[f32], f32),
    position: usize,
    kv_head: usize,
    heads: usize,
) -> Vec<bool> {
    let dim = kv.layout.shape.k_dim;
    let (pages, most) = (position / PAGE_TOKENS + 1, kv.most_pages.unwrap());
    if pages <= most {
        return vec![true; pages];
    }
    let group = heads / kv.layout.shape.kv_heads;
    let padded = dim.next_multiple_of(16);
    let rows: Vec<Vec<f32>> = (1..pages - 2)
        .map(|page| {
            let mut row = vec![0.0; 2 * padded];
            row[..dim].copy_from_slice(&extremes(kv, dim, kv_head, page, |a, b| a > b));
            row[padded..padded + dim].copy_from_slice(&extremes(kv, dim, kv_head, page, |a, b| a < b));
            row
        })
        .collect();
    let mut shares = vec![0.0; rows.len()];
    for head in kv_head * group..(kv_head + 1) * group {
        let mut parts = vec![0.0; 2 * padded];
        for (c, &x) in q[head * dim..(head + 1) * dim].iter().enumerate() {
            let x = rounded(x);
            parts[if x > 0.0 { c } else { padded + c }] = x;
        }
        let mut bounds: Vec<f32> = rows.iter().map(|row| dot(&parts, row) * scale).collect();
        Kernels::by_isa(Isa::Scalar).unwrap().softmax_in_place(&mut bounds);
        shares.iter_mut().zip(&bounds).for_each(|(sum, share)| *sum += share);
    }
    let mut ranked: Vec<(f32, usize)> = shares.into_iter().zip(1..).collect();
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.1.cmp(&a.1)));
    let mut out = vec![false; pages];
    let always = [0, pages - 2, pages - 1];
    always
        .into_iter()
        .chain(ranked.iter().take(most - 3).map(|&(_, page)| page))
        .for_each(|page| out[page] = true);
    out
}
