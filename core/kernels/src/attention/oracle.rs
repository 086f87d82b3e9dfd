//! The order of operations of the module's head, written down as plainly as possible: one query, one head, one position at a time.

use half::f16;

use super::{AttentionShape, KvPages, PAGE_TOKENS, PART_TOKENS};
use crate::math::scalar::{exp, tanh};

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

pub(super) fn attend(query: &Query<'_>) -> Vec<f32> {
    let Query { shape, kv, .. } = query;
    let end = query.position + 1;
    let first = query.window.map_or(0, |w| end.saturating_sub(w)).max(kv.first_token);
    let row = |at: usize, position: usize, dim: usize| -> Vec<f32> {
        let page = kv.page(position / PAGE_TOKENS);
        page[at..at + dim].iter().map(|&h| f16::from_bits(h).to_f32()).collect()
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
            if seen.is_empty() {
                continue;
            }
            let mut s = [f32::NEG_INFINITY; PAGE_TOKENS];
            for &t in &seen {
                let k = row(shape.key_at(query.kv_head, t), page * PAGE_TOKENS + t, shape.k_dim);
                s[t] = dot(&q, &k) * query.scale;
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
                let p = rounded(s[t] * (1.0 / run.l));
                let v = row(shape.value_at(query.kv_head, t), page * PAGE_TOKENS + t, shape.v_dim);
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
