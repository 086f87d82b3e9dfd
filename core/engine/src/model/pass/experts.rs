//! The routed feed-forward block.
//!
//! ```text
//! route:    scores = softmax(router h), the best few per token; uses of all tokens ordered by expert
//! experts:  for waves of experts, ascending, with as many rows as the buffers hold:
//!               until all are done: those that are there now (else wait for the next):
//!                   gate, up = W h of their tokens     all experts, and the shared one: one parallel region
//!                   gate = act(gate) * up
//!                   y = W gate                         again one
//!               sum[token] = fma(weight, y, sum)       for each token, its experts ascending
//! ```
//!
//! So each expert's weights are touched once per pass, reading those that are missing overlaps with computing the others, and
//! a token's bits depend neither on what else is in the pass nor on which expert was there first.

use super::{
    Context, PIECE, Pass, gelu_halves_mul, norm_rows, piece, product, round_halves, rows, rows_mut,
    takes_halves,
};
use crate::Error;
use crate::Result;
use crate::model::activations::{observe, observe_some};
use crate::model::blocks::Weights;
use crate::model::experts::{Expert, Moe, Shared};
use crate::model::precision::Role;
use crate::model::routing::{Route, choose};
use crate::model::spec::{ExpertActivation, MoeSpec};
use crate::residency::{UnitGuard, VectorRef, WeightStore};
use pannier_kernels::{ActRows, Job, Kernels, Need, Precision, for_each_piece};
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Experts that are there, and their rows in the buffers of a wave.
struct Batch<'a> {
    guards: Vec<UnitGuard<'a>>,
    experts: Vec<Expert>,
    rows: Vec<Range<usize>>,
}

/// Disjoint ascending ranges of rows of a buffer.
fn carve<'b>(mut buffer: &'b mut [f32], width: usize, rows: &[Range<usize>]) -> Vec<&'b mut [f32]> {
    let mut at = 0;
    let mut parts = Vec::with_capacity(rows.len());
    for range in rows {
        let (_, rest) = buffer.split_at_mut((range.start - at) * width);
        let (part, rest) = rest.split_at_mut(range.len() * width);
        (buffer, at) = (rest, range.end);
        parts.push(part);
    }
    parts
}

fn need(weights: &[Weights<'_>], precision: Precision) -> Need {
    weights.iter().fold(Need::default(), |need, w| need.and(Need::of(&[(&w.matrix, precision)])))
}

fn gate_by(kernels: &Kernels, activation: ExpertActivation, gate: &mut [f32], up: &[f32]) {
    /// Of gpt-oss; no key says so.
    const ALPHA: f32 = 1.702;
    const LIMIT: f32 = 7.0;
    match activation {
        ExpertActivation::Silu => kernels.silu_mul(gate, up),
        ExpertActivation::Gelu => gelu_halves_mul(kernels, gate, up),
        ExpertActivation::SwigluOai => kernels.swiglu_oai(gate, up, ALPHA, LIMIT),
    }
}

fn no_moe() -> Error {
    Error::internal("experts in a model without")
}

impl<'a> Pass<'a> {
    /// `h = rms_norm(x) / sqrt(embd)`, for architectures whose router does not see what experts see.
    ///
    /// # Errors
    /// Only for mistakes of the caller.
    pub fn router_norm(&mut self, weight: VectorRef, eps: f32) -> Result<()> {
        self.rms_norm(weight, eps)?;
        let (n, embd) = (self.n(), self.cx.embd);
        self.cx.kernels.scale_in_place(rows_mut(&mut self.s.h, n, embd), 1.0 / (embd as f32).sqrt());
        Ok(())
    }

    /// Puts h aside, normed: the result of a dense block that stands beside experts.
    ///
    /// # Errors
    /// Only for mistakes of the caller.
    pub fn put_aside(&mut self, weight: VectorRef, eps: f32) -> Result<()> {
        let (n, embd, s) = (self.n(), self.cx.embd, &mut *self.s);
        norm_rows(&self.cx, rows_mut(&mut s.h, n, embd), weight, eps, embd)?;
        // Such architectures have no shared expert, whose place this is.
        let m = s.moe.as_mut().ok_or_else(no_moe)?;
        rows_mut(&mut m.shared_y, n, embd).copy_from_slice(rows(&s.h, n, embd));
        Ok(())
    }

    /// `h += ` what was put aside.
    ///
    /// # Errors
    /// Only for mistakes of the caller.
    pub fn add_aside(&mut self) -> Result<()> {
        let (n, embd, s) = (self.n(), self.cx.embd, &mut *self.s);
        let m = s.moe.as_ref().ok_or_else(no_moe)?;
        self.cx.kernels.add_in_place(rows_mut(&mut s.h, n, embd), rows(&m.shared_y, n, embd));
        Ok(())
    }

    /// Chooses experts for each row of h.
    ///
    /// # Errors
    /// Only for mistakes of the caller.
    pub fn route(&mut self, unit: &UnitGuard<'_>, moe: &Moe) -> Result<()> {
        let (n, cx, s) = (self.n(), &self.cx, &mut *self.s);
        let m = s.moe.as_mut().ok_or_else(no_moe)?;
        let shortcuts = cx.shortcuts;
        let spec = &MoeSpec { used: shortcuts.used(&moe.spec), ..moe.spec };
        let present =
            |expert: usize| moe.experts.get(expert).is_none_or(|expert| cx.weights.is_ready(expert.unit));
        let lift = |scores: &mut [f32]| {
            if shortcuts.prefer_present > 0.0 {
                shortcuts.lift(spec.gating, scores, present);
            }
        };
        let scores = rows_mut(&mut m.scores, n, spec.experts);
        let outputs = [(moe.router.weights(unit, cx.weights)?, &mut *scores)];
        product(cx, Role::Router, &mut s.act, (rows_mut(&mut s.h, n, cx.embd), n, cx.embd), outputs);
        let bias = moe.choice_bias.map(|bias| cx.weights.vector(bias)).transpose()?;
        let scales = moe.scales.map(|scales| cx.weights.vector(scales)).transpose()?;
        let first = self.seq.len() + self.start + self.rows.start;
        let (chosen, weights) = (&mut m.chosen[..n * spec.used], &mut m.weights[..n * spec.used]);
        for (i, ((scores, chosen), weights)) in scores
            .chunks_exact_mut(spec.experts)
            .zip(chosen.chunks_exact_mut(spec.used))
            .zip(weights.chunks_exact_mut(spec.used))
            .enumerate()
        {
            let work = (&mut m.ranked, &mut m.biased);
            choose(cx.kernels, spec, bias, &lift, scores, (&mut *chosen, &mut *weights), work);
            if let Some(scales) = scales {
                for (weight, &expert) in weights.iter_mut().zip(&*chosen) {
                    *weight *= scales.get(usize::from(expert)).copied().unwrap_or(1.0);
                }
            }
            cx.weights.routed(moe.layer, chosen, scores);
            if let Some(observer) = cx.observer {
                observer.routed(&Route {
                    layer: moe.layer,
                    position: first + i,
                    batch: n,
                    chosen,
                    weights,
                    probabilities: scores,
                });
            }
        }
        // Only a single token's lightest experts: in a chunk the same expert is a favourite of others.
        let (chosen, weights) = (&mut *chosen, &mut *weights);
        m.used = if n == 1 {
            shortcuts.keep(chosen, weights, |expert| present(usize::from(expert)))
        } else {
            spec.used
        };
        cx.dropped.fetch_add((spec.used - m.used) as u64, Ordering::Relaxed);
        let kept = n * m.used;
        m.groups.arrange(spec.experts, m.used, &chosen[..kept], &weights[..kept]);
        m.units.clear();
        m.units.extend(
            m.groups.used.iter().filter_map(|&e| moe.experts.get(usize::from(e))).map(|expert| expert.unit),
        );
        cx.weights.hint(&m.units);
        if n == 1 && cx.weights.wants_guesses() {
            self.guess(moe.layer)?;
        }
        Ok(())
    }

    /// Runs the next layer's router on what this layer's router saw, and tells the store what it would choose. The residual stream
    /// changes little from layer to layer, so most of it comes true; whether that is worth reading is for the store to find out.
    fn guess(&mut self, layer: usize) -> Result<()> {
        let (cx, s) = (&self.cx, &mut *self.s);
        let next = cx.routers.partition_point(|router| router.layer <= layer);
        let Some(next) = cx.routers.get(next).filter(|next| cx.weights.is_ready(next.unit)) else {
            return Ok(());
        };
        let unit = cx.weights.acquire(next.unit)?;
        let weights = next.router.weights(&unit, cx.weights)?;
        let m = s.moe.as_mut().ok_or_else(no_moe)?;
        // Rounding the input in place would change this layer's own result.
        if weights.halves || weights.matrix.rows() > m.scores.len() {
            return Ok(());
        }
        let scores = &mut m.scores[..weights.matrix.rows()];
        product(
            cx,
            Role::Router,
            &mut s.act,
            (rows_mut(&mut s.h, 1, cx.embd), 1, cx.embd),
            [(weights, &mut *scores)],
        );
        cx.kernels.top_k(scores, next.used, &mut m.ranked);
        m.guesses.clear();
        m.guesses.extend(m.ranked.iter().filter_map(|&(expert, _)| next.experts.get(expert as usize)));
        cx.weights.guess(&m.guesses);
        Ok(())
    }

    /// `h = sum of weight * expert(h)` over the chosen experts of each row, and the shared expert's share.
    ///
    /// # Errors
    /// What reading weights may bring, and [`Error::Cancelled`].
    pub fn experts(&mut self, unit: &UnitGuard<'_>, moe: &Moe) -> Result<()> {
        let (n, embd) = (self.n(), self.cx.embd);
        {
            let (cx, s) = (&self.cx, &mut *self.s);
            let m = s.moe.as_mut().ok_or_else(no_moe)?;
            m.sum[..n * embd].fill(0.0);
            if let Some(gate) = moe.shared.and_then(|shared| shared.gate) {
                let gate = cx.weights.vector(gate)?;
                for (share, h) in m.shared_share.iter_mut().zip(rows(&s.h, n, embd).chunks_exact(embd)) {
                    *share = pannier_kernels::scalar::sigmoid(cx.kernels.dot(h, gate));
                }
            } else {
                m.shared_share[..n].fill(1.0);
            }
            if moe.halves {
                round_halves(cx, rows_mut(&mut s.h, n, embd));
            }
        }
        let mut shared = moe.shared.as_ref();
        let mut next = 0;
        loop {
            let m = self.s.moe.as_ref().ok_or_else(no_moe)?;
            let Some(&first) = m.groups.used.get(next) else { break };
            let start = m.groups.of(first).start;
            let room = |&&expert: &&u16| m.groups.of(expert).end - start <= m.capacity;
            let wave: Vec<u16> =
                m.groups.used.get(next..).unwrap_or(&[]).iter().take_while(room).copied().collect();
            if wave.is_empty() {
                return Err(Error::internal("an expert has more rows than tokens"));
            }
            next += wave.len();
            self.wave(unit, moe, &wave, start, shared.take())?;
        }
        let (cx, s) = (&self.cx, &mut *self.s);
        let m = s.moe.as_mut().ok_or_else(no_moe)?;
        std::mem::swap(&mut s.h, &mut m.sum);
        if moe.shared.is_some() {
            let per_piece = piece(embd);
            let (share, y) = (&m.shared_share, &m.shared_y);
            for_each_piece(cx.par, rows_mut(&mut s.h, n, embd), per_piece, &|index, h| {
                let first = index * (per_piece / embd);
                for (token, h) in (first..).zip(h.chunks_exact_mut(embd)) {
                    cx.kernels.add_scaled_in_place(h, &y[token * embd..][..embd], share[token]);
                }
            });
        }
        Ok(())
    }

    /// Some experts, whose uses begin with `start`.
    fn wave(
        &mut self,
        unit: &UnitGuard<'_>,
        moe: &Moe,
        wave: &[u16],
        start: usize,
        mut shared: Option<&Shared>,
    ) -> Result<()> {
        let weights: &'a dyn WeightStore = self.cx.weights;
        let mut pending = wave.to_vec();
        while !pending.is_empty() || shared.is_some() {
            self.cx.cancel.check()?;
            let m = self.s.moe.as_ref().ok_or_else(no_moe)?;
            let mut batch = Batch { guards: Vec::new(), experts: Vec::new(), rows: Vec::new() };
            let mut later = Vec::new();
            // Waiting for one while others are held could wait for ever: a store may have no room for more. So wait only
            // when nothing is held and there is nothing else to do.
            let mut may_wait = shared.is_none() && {
                let ready =
                    |&e: &u16| moe.experts.get(usize::from(e)).is_some_and(|e| weights.is_ready(e.unit));
                !pending.iter().any(ready)
            };
            for id in pending {
                let expert = moe.experts.get(usize::from(id)).ok_or_else(no_moe)?;
                if !may_wait && !weights.is_ready(expert.unit) {
                    later.push(id);
                    continue;
                }
                may_wait = false;
                batch.guards.push(weights.acquire(expert.unit)?);
                batch.experts.push(*expert);
                let rows = m.groups.of(id);
                batch.rows.push(rows.start - start..rows.end - start);
            }
            pending = later;
            self.batch(unit, moe, &batch, start, shared.take())?;
        }
        self.accumulate(start, wave)
    }

    /// Experts that are there; their results go to the buffers of the wave.
    fn batch(
        &mut self,
        unit: &UnitGuard<'_>,
        moe: &Moe,
        batch: &Batch<'_>,
        start: usize,
        shared: Option<&Shared>,
    ) -> Result<()> {
        let (n, cx, s) = (self.n(), &self.cx, &mut *self.s);
        let (embd, ff) = (cx.embd, moe.spec.ff);
        let m = s.moe.as_mut().ok_or_else(no_moe)?;
        let (gate_up, down) = (cx.precision.get(Role::GateUp), cx.precision.get(Role::Down));
        let shared_ff = shared.map_or(0, |shared| shared.ffn.ff);
        let of_shared = |linear: fn(&Shared) -> &crate::model::Linear| {
            shared.map(|shared| linear(shared).weights(unit, cx.weights)).transpose()
        };
        let own = |linear: fn(&Expert) -> &crate::model::Linear| -> Result<Vec<Weights<'_>>> {
            let pairs = batch.experts.iter().zip(&batch.guards);
            pairs.map(|(expert, guard)| linear(expert).weights(guard, cx.weights)).collect()
        };
        let sizes = || batch.rows.iter().map(ExactSizeIterator::len);

        // gate, up: uses x ff
        let first = [of_shared(|shared| &shared.ffn.gate)?, of_shared(|shared| &shared.ffn.up)?];
        let (gates, ups) = (own(|expert| &expert.gate)?, own(|expert| &expert.up)?);
        let mut all_rows =
            first.iter().flatten().fold(Need::default(), |all, w| all.and(need(&[*w], gate_up)));
        let needs = need(&gates, gate_up).and(need(&ups, gate_up));
        observe(cx, first.iter().flatten(), embd, rows(&s.h, n, embd));
        for (weights, rows) in gates.iter().zip(&batch.rows).chain(ups.iter().zip(&batch.rows)) {
            let tokens = &m.groups.tokens[start + rows.start..start + rows.end];
            observe_some(cx, weights, embd, &s.h, tokens);
        }
        if n == 1 {
            // Every expert reads the same row.
            all_rows = all_rows.and(needs);
        } else {
            m.index.clear();
            for rows in &batch.rows {
                m.index.extend_from_slice(&m.groups.tokens[start + rows.start..start + rows.end]);
            }
            m.act_in.set_groups(cx.kernels, cx.par, (rows(&s.h, n, embd), embd), &m.index, sizes(), needs);
        }
        if all_rows != Need::default() {
            s.act.set(cx.kernels, cx.par, rows(&s.h, n, embd), n, embd, all_rows);
        }
        let (act, act_in) = (&s.act, &m.act_in);
        let x = |i: usize| -> ActRows<'_> { if n == 1 { act.all() } else { act_in.group(i) } };
        let mut jobs: Vec<Job<'_>> = Vec::with_capacity(2 * gates.len() + 2);
        let outputs = [rows_mut(&mut s.gate, n, shared_ff), rows_mut(&mut s.up, n, shared_ff)];
        for (w, y) in first.into_iter().zip(outputs) {
            jobs.extend(w.map(|w| Job { w: w.matrix, x: act.all(), precision: gate_up, y, bias: w.bias }));
        }
        for (weights, buffer) in [(&gates, &mut m.gate), (&ups, &mut m.up)] {
            let outputs = carve(buffer, ff, &batch.rows);
            jobs.extend(weights.iter().zip(outputs).enumerate().map(|(i, (w, y))| Job {
                w: w.matrix,
                x: x(i),
                precision: gate_up,
                y,
                bias: w.bias,
            }));
        }
        cx.kernels.matmul(cx.par, &mut jobs);
        drop(jobs);

        // gate = act(gate) * up
        for (gate, rows) in carve(&mut m.gate, ff, &batch.rows).into_iter().zip(&batch.rows) {
            let up = &m.up[rows.start * ff..rows.end * ff];
            for_each_piece(cx.par, gate, PIECE, &|index, gate| {
                gate_by(cx.kernels, moe.spec.activation, gate, &up[index * PIECE..][..gate.len()]);
            });
        }
        if shared.is_some() {
            let up = rows(&s.up, n, shared_ff);
            for_each_piece(cx.par, rows_mut(&mut s.gate, n, shared_ff), PIECE, &|index, gate| {
                cx.kernels.silu_mul(gate, &up[index * PIECE..][..gate.len()]);
            });
        }

        // y: uses x embd
        let (last, downs) = (of_shared(|shared| &shared.ffn.down)?, own(|expert| &expert.down)?);
        for (weights, rows) in downs.iter().zip(&batch.rows) {
            observe(cx, [weights], ff, &m.gate[rows.start * ff..rows.end * ff]);
        }
        observe(cx, last.iter(), shared_ff, rows(&s.gate, n, shared_ff));
        for (gate, w) in carve(&mut m.gate, ff, &batch.rows).into_iter().zip(&downs) {
            // Each expert for itself: who its neighbours are depends on what is in memory.
            if w.halves {
                round_halves(cx, gate);
            }
        }
        if takes_halves(last.iter()) {
            round_halves(cx, rows_mut(&mut s.gate, n, shared_ff));
        }
        m.index.clear();
        m.index.extend(batch.rows.iter().flat_map(|rows| rows.start as u32..rows.end as u32));
        m.act_down.set_groups(cx.kernels, cx.par, (&m.gate, ff), &m.index, sizes(), need(&downs, down));
        let mut jobs: Vec<Job<'_>> = Vec::with_capacity(downs.len() + 1);
        if let Some(w) = last {
            let x = rows(&s.gate, n, shared_ff);
            m.act_shared.set(cx.kernels, cx.par, x, n, shared_ff, need(&[w], down));
            let y = rows_mut(&mut m.shared_y, n, embd);
            jobs.push(Job { w: w.matrix, x: m.act_shared.all(), precision: down, y, bias: w.bias });
        }
        let outputs = carve(&mut m.y, embd, &batch.rows);
        jobs.extend(downs.iter().zip(outputs).enumerate().map(|(i, (w, y))| Job {
            w: w.matrix,
            x: m.act_down.group(i),
            precision: down,
            y,
            bias: w.bias,
        }));
        cx.kernels.matmul(cx.par, &mut jobs);
        Ok(())
    }

    /// `sum = fma(weight, y, sum)` for the experts of a wave.
    fn accumulate(&mut self, start: usize, wave: &[u16]) -> Result<()> {
        let (n, s) = (self.n(), &mut *self.s);
        let (cx, embd): (&Context<'_>, usize) = (&self.cx, self.cx.embd);
        let m = s.moe.as_mut().ok_or_else(no_moe)?;
        let end = wave.last().map_or(start, |&last| m.groups.of(last).end);
        let (uses, y, used) = (&m.groups.uses, &m.y, m.used);
        let per_piece = piece(embd);
        for_each_piece(cx.par, rows_mut(&mut m.sum, n, embd), per_piece, &|index, sum| {
            let first = index * (per_piece / embd);
            for (sum, uses) in sum.chunks_exact_mut(embd).zip(uses.chunks_exact(used).skip(first)) {
                for one in uses {
                    let row = one.row as usize;
                    if (start..end).contains(&row) {
                        cx.kernels.add_scaled_in_place(sum, &y[(row - start) * embd..][..embd], one.weight);
                    }
                }
            }
        });
        Ok(())
    }
}
