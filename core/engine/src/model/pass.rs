//! One pass over some tokens of a sequence, as a vocabulary of operations.
//!
//! A pass has a residual stream `x` and one working row `h` per token; a block reads `x` through a norm into `h`, leaves its
//! result in `h`, and `add_residual` closes it. Architectures call these operations in their order; what is behind them
//! (threads, instruction sets, where weights live) they never see.

mod experts;
mod per_layer;
mod recurrent;

use super::activations::{ActivationObserver, observe};
use super::blocks::{Attention, Embedding, Ffn, Head, Weights};
use super::builder::RouterRef;
use super::precision::{PrecisionTable, Role};
use super::routing::RouteObserver;
use super::scratch::Scratch;
use super::shortcuts::ExpertShortcuts;
use super::state::RecurrentState;
use crate::kv::{Heat, KvCache, Sequence};
use crate::residency::{UnitGuard, UnitId, VectorRef, WeightStore};
use crate::{CancelFlag, Error, Result};
use pannier_kernels::{
    Activations, AttentionJob, Job, Kernels, Need, ObserveJob, Parallel, RopeTable, for_each_piece,
    hadamard_in_place,
};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

/// Values per task of what is done element by element: some microseconds of work.
const PIECE: usize = 8192;

/// What a pass runs with.
pub(super) struct Context<'a> {
    pub kernels: &'static Kernels,
    pub par: &'a dyn Parallel,
    pub weights: &'a dyn WeightStore,
    pub ropes: &'a [RopeTable],
    pub precision: &'a PrecisionTable,
    pub cancel: &'a CancelFlag,
    pub observer: Option<&'a dyn RouteObserver>,
    /// Of all layers with experts, ascending.
    pub routers: &'a [RouterRef],
    pub shortcuts: ExpertShortcuts,
    /// Counts experts that were left out.
    pub dropped: &'a AtomicU64,
    pub activations: Option<&'a dyn ActivationObserver>,
    /// Up to the last layer that keeps something of a token.
    pub storing_layers: usize,
    pub embd: usize,
}

/// Some tokens on their way through the layers.
pub struct Pass<'a> {
    cx: Context<'a>,
    kv: &'a mut KvCache,
    seq: &'a Sequence,
    recurrent: Option<&'a mut RecurrentState>,
    heat: Option<&'a mut Heat>,
    s: &'a mut Scratch,
    tokens: &'a [u32],
    positions: &'a [u32],
    /// Index of the first token among those that were prepared in the sequence.
    start: usize,
    /// Tokens of the step that this pass is part of.
    step: usize,
    /// Tokens whose logits are asked for.
    outputs: Range<usize>,
    /// Rows of logits that earlier passes of the same step have written.
    written: usize,
    /// Rows that are still computed: all tokens, or in the end only `outputs`.
    rows: Range<usize>,
}

/// The tokens of a pass.
#[derive(Clone, Copy)]
pub(super) struct Tokens<'a> {
    pub ids: &'a [u32],
    pub positions: &'a [u32],
    /// Index of the first among the tokens of the step.
    pub start: usize,
    /// Tokens of the step.
    pub step: usize,
}

impl std::fmt::Debug for Pass<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pass")
            .field("tokens", &self.tokens.len())
            .field("rows", &self.rows)
            .finish_non_exhaustive()
    }
}

/// The first `n` rows of a buffer.
fn rows(buffer: &[f32], n: usize, width: usize) -> &[f32] {
    &buffer[..n * width]
}

fn rows_mut(buffer: &mut [f32], n: usize, width: usize) -> &mut [f32] {
    &mut buffer[..n * width]
}

/// Whole rows, some [`PIECE`] values together.
fn piece(width: usize) -> usize {
    (PIECE / width.max(1)).max(1) * width
}

impl<'a> Pass<'a> {
    pub(super) fn new(
        cx: Context<'a>,
        kv: &'a mut KvCache,
        (seq, recurrent, heat): (&'a Sequence, Option<&'a mut RecurrentState>, Option<&'a mut Heat>),
        s: &'a mut Scratch,
        tokens: Tokens<'a>,
        (outputs, written): (Range<usize>, usize),
    ) -> Self {
        let Tokens { ids, positions, start, step } = tokens;
        Pass {
            cx,
            kv,
            seq,
            recurrent,
            heat,
            s,
            tokens: ids,
            positions,
            start,
            step,
            outputs,
            written,
            rows: 0..ids.len(),
        }
    }

    fn n(&self) -> usize {
        self.rows.len()
    }

    /// The weights of the next block. Between blocks is where a cancel takes effect.
    ///
    /// # Errors
    /// [`Error::Cancelled`], and what reading weights may bring.
    pub fn unit(&mut self, unit: UnitId) -> Result<UnitGuard<'a>> {
        self.cx.cancel.check()?;
        self.cx.weights.acquire(unit)
    }

    /// `x = scale * E[token]`.
    ///
    /// # Errors
    /// What reading weights may bring.
    pub fn embed(&mut self, embedding: &Embedding, scale: f32) -> Result<()> {
        self.cx.cancel.check()?;
        let (cx, embd, tokens) = (&self.cx, self.cx.embd, self.tokens);
        let failed = Mutex::new(None);
        let per_piece = piece(embd);
        for_each_piece(cx.par, rows_mut(&mut self.s.x, tokens.len(), embd), per_piece, &|index, x| {
            let first = index * (per_piece / embd);
            for (row, &token) in x.chunks_exact_mut(embd).zip(tokens.iter().skip(first)) {
                if let Err(error) = cx.weights.row(embedding.table, token as usize, row) {
                    failed.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get_or_insert(error);
                }
            }
            if scale != 1.0 {
                cx.kernels.scale_in_place(x, scale);
            }
        });
        failed.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()).map_or(Ok(()), Err)
    }

    /// `h = rms_norm(x)`.
    ///
    /// # Errors
    /// Only for mistakes of the caller.
    pub fn rms_norm(&mut self, weight: VectorRef, eps: f32) -> Result<()> {
        let (n, embd, cx) = (self.n(), self.cx.embd, &self.cx);
        let weight = cx.weights.vector(weight)?;
        let (per_piece, s) = (piece(embd), &mut *self.s);
        let x = rows(&s.x, n, embd);
        for_each_piece(cx.par, rows_mut(&mut s.h, n, embd), per_piece, &|index, h| {
            let x = &x[index * per_piece..][..h.len()];
            cx.kernels.rms_norm(x, Some(weight), eps, h, embd);
        });
        Ok(())
    }

    /// `h = rms_norm(h)`, for architectures that norm a block's result too.
    ///
    /// # Errors
    /// Only for mistakes of the caller.
    pub fn post_norm(&mut self, weight: VectorRef, eps: f32) -> Result<()> {
        let (n, embd) = (self.n(), self.cx.embd);
        norm_rows(&self.cx, rows_mut(&mut self.s.h, n, embd), weight, eps, embd)
    }

    /// `x += h`.
    pub fn add_residual(&mut self) {
        let (n, embd, cx) = (self.n(), self.cx.embd, &self.cx);
        let s = &mut *self.s;
        let h = rows(&s.h, n, embd);
        let per_piece = piece(embd);
        for_each_piece(cx.par, rows_mut(&mut s.x, n, embd), per_piece, &|index, x| {
            cx.kernels.add_in_place(x, &h[index * per_piece..][..x.len()]);
        });
    }

    /// `x *= scale`, of one value.
    ///
    /// # Errors
    /// Only for mistakes of the caller.
    pub fn scale_residual(&mut self, scale: VectorRef) -> Result<()> {
        let (n, embd, cx) = (self.n(), self.cx.embd, &self.cx);
        let scale = cx.weights.vector(scale)?.first().copied().unwrap_or(1.0);
        let x = rows_mut(&mut self.s.x, n, embd);
        for_each_piece(cx.par, x, PIECE, &|_, x| cx.kernels.scale_in_place(x, scale));
        Ok(())
    }

    /// `q, k, v = W h + b`; only q where keys and values are another layer's.
    ///
    /// # Errors
    /// Only for mistakes of the caller.
    pub fn qkv(&mut self, unit: &UnitGuard<'_>, attention: &Attention) -> Result<()> {
        let (n, cx, spec, s) = (self.n(), &self.cx, attention.spec, &mut *self.s);
        let q = if spec.gated {
            rows_mut(&mut s.mix, n, 2 * spec.q_width())
        } else {
            rows_mut(&mut s.q, n, spec.q_width())
        };
        let mut outputs = vec![(attention.q.weights(unit, cx.weights)?, q)];
        for (linear, buffer, width) in
            [(attention.k, &mut s.k, spec.k_width()), (attention.v, &mut s.v, spec.v_width())]
        {
            if let Some(linear) = linear {
                outputs.push((linear.weights(unit, cx.weights)?, rows_mut(buffer, n, width)));
            }
        }
        product_of(cx, Role::Qkv, &mut s.act, (rows_mut(&mut s.h, n, cx.embd), n, cx.embd), outputs);
        if attention.k.is_some() && attention.v.is_none() {
            rows_mut(&mut s.v, n, spec.v_width()).copy_from_slice(rows(&s.k, n, spec.k_width()));
        }
        if spec.gated {
            // Each head's query is followed by its gate.
            let k_dim = spec.shape.k_dim;
            let heads = rows(&s.mix, n, 2 * spec.q_width()).chunks_exact(2 * k_dim);
            for ((both, q), gate) in heads.zip(s.q.chunks_exact_mut(k_dim)).zip(s.z.chunks_exact_mut(k_dim)) {
                let (from_q, from_gate) = both.split_at(k_dim);
                q.copy_from_slice(from_q);
                gate.copy_from_slice(from_gate);
            }
        }
        Ok(())
    }

    /// `q, k, v = rms_norm` of each head (or of all together), where the architecture has it.
    ///
    /// # Errors
    /// Only for mistakes of the caller.
    pub fn head_norms(&mut self, attention: &Attention, eps: f32) -> Result<()> {
        let (n, spec, s) = (self.n(), attention.spec, &mut *self.s);
        if let Some((weight, width)) = attention.q_norm {
            norm_rows(&self.cx, rows_mut(&mut s.q, n, spec.q_width()), weight, eps, width)?;
        }
        if let Some((weight, width)) = attention.k_norm {
            norm_rows(&self.cx, rows_mut(&mut s.k, n, spec.k_width()), weight, eps, width)?;
        }
        if attention.norms_v && attention.k.is_some() {
            let (cx, v, dim) = (&self.cx, rows_mut(&mut s.v, n, spec.v_width()), spec.shape.v_dim);
            for_each_piece(cx.par, v, piece(dim), &|_, v| cx.kernels.rms_norm_in_place(v, None, eps, dim));
        }
        Ok(())
    }

    /// Rotates q and k to their positions, unless the layer has none (NoPE).
    ///
    /// # Errors
    /// Only for mistakes of the caller.
    pub fn rope(&mut self, attention: &Attention) -> Result<()> {
        let (n, spec, s, cx) = (self.n(), attention.spec, &mut *self.s, &self.cx);
        let Some(rope) = spec.rope else { return Ok(()) };
        let rope = cx.ropes.get(rope).ok_or_else(|| Error::internal(format!("no RoPE {rope}")))?;
        let (shape, positions) = (spec.shape, &self.positions[self.rows.clone()]);
        let k = (&mut s.k, shape.kv_heads);
        for (x, heads) in
            [Some((&mut s.q, shape.heads)), Some(k).filter(|_| attention.k.is_some())].into_iter().flatten()
        {
            let width = heads * shape.k_dim;
            let per_piece = piece(width);
            for_each_piece(cx.par, rows_mut(x, n, width), per_piece, &|index, x| {
                let positions = &positions[index * (per_piece / width)..][..x.len() / width];
                cx.kernels.rope(x, heads, shape.k_dim, rope, positions);
            });
        }
        Ok(())
    }

    /// Scales q, for architectures that scale queries instead of scores.
    pub fn scale_queries(&mut self, attention: &Attention) {
        let (n, spec, cx) = (self.n(), attention.spec, &self.cx);
        let q = rows_mut(&mut self.s.q, n, spec.q_width());
        for_each_piece(cx.par, q, PIECE, &|_, q| cx.kernels.scale_in_place(q, spec.q_scale));
    }

    /// Puts k and v into the cache.
    ///
    /// # Errors
    /// Only for mistakes of the caller.
    pub fn store_kv(&mut self, layer: usize, attention: &Attention) -> Result<()> {
        let (n, spec, s) = (self.n(), attention.spec, &mut *self.s);
        if self.kv.types(layer).0.is_rotated() {
            rotate(&self.cx, rows_mut(&mut s.k, n, spec.k_width()), spec.shape.k_dim);
        }
        let (k, v) = (rows(&s.k, n, spec.k_width()), rows(&s.v, n, spec.v_width()));
        self.kv.write(self.cx.kernels, self.seq, layer, self.start, k, v)
    }

    /// In the last layer that stores anything, after its keys and values are stored, only the rows whose logits are asked for matter:
    /// drops the others, and is false when none is left.
    pub fn is_wanted(&mut self, layer: usize, attention: &Attention) -> bool {
        let spec = attention.spec;
        let gates = if spec.gated { spec.q_width() } else { 0 };
        self.keep_wanted(layer, |s| {
            let per_layer = s.per_layer_width();
            [(&mut s.q, spec.q_width()), (&mut s.z, gates), (&mut s.per_layer, per_layer)]
        })
    }

    /// Drops rows of x, and of the buffers given with their widths.
    fn keep_wanted<const N: usize>(
        &mut self,
        layer: usize,
        buffers: impl FnOnce(&mut Scratch) -> [(&mut Vec<f32>, usize); N],
    ) -> bool {
        if layer + 1 == self.cx.storing_layers && self.outputs.len() < self.n() {
            let (first, end) = (self.outputs.start, self.outputs.end);
            let keep = |buffer: &mut Vec<f32>, width: usize| {
                buffer.copy_within(first * width..end * width, 0);
            };
            keep(&mut self.s.x, self.cx.embd);
            for (buffer, width) in buffers(self.s) {
                keep(buffer, width);
            }
            self.rows = self.outputs.clone();
        }
        self.n() > 0
    }

    /// `a = softmax(scale * q kᵀ) v` over the cache, or over that of the layer that this one borrows from.
    ///
    /// # Errors
    /// Only for mistakes of the caller.
    pub fn attend(&mut self, layer: usize, attention: &Attention) -> Result<()> {
        let (n, spec, s) = (self.n(), attention.spec, &mut *self.s);
        let layer = spec.borrows.unwrap_or(layer);
        let shape = spec.shape;
        let sinks = attention.sinks.map(|sinks| self.cx.weights.vector(sinks)).transpose()?;
        if self.kv.types(layer).0.is_rotated() {
            rotate(&self.cx, rows_mut(&mut s.q, n, spec.q_width()), shape.k_dim);
        }
        self.cx.kernels.attention(
            self.cx.par,
            &mut AttentionJob {
                q: rows(&s.q, n, spec.q_width()),
                n,
                first_pos: self.kv.slot(self.seq, layer) + self.start + self.rows.start,
                heads: shape.heads,
                kv_heads: shape.kv_heads,
                k_dim: shape.k_dim,
                v_dim: shape.v_dim,
                kv: self.kv.pages(self.seq, layer)?,
                scale: spec.scale,
                soft_cap: spec.soft_cap,
                window: spec.window,
                sinks,
                scratch: &mut s.attention,
                out: rows_mut(&mut s.a, n, spec.out_width()),
            },
        );
        self.watch(layer, attention)
    }

    /// Adds up the attention of those queries that a policy watches.
    fn watch(&mut self, layer: usize, attention: &Attention) -> Result<()> {
        let Some(heat) = self.heat.as_deref_mut() else { return Ok(()) };
        let (spec, s) = (attention.spec, &mut *self.s);
        let sinks = attention.sinks.map(|sinks| self.cx.weights.vector(sinks)).transpose()?;
        let first = self.start + self.rows.start;
        let here = first..first + self.rows.len();
        let watched = Heat::watched(self.seq.len(), self.step).enumerate();
        for (query, index) in watched.filter(|(_, index)| here.contains(index)) {
            let position = self.kv.slot(self.seq, layer) + index;
            let Some((sums, weights)) = heat.of_layer(layer, position + 1, (query, self.step)) else {
                return Ok(());
            };
            let width = spec.q_width();
            self.cx.kernels.observe(
                self.cx.par,
                &mut ObserveJob {
                    q: &s.q[(index - first) * width..][..width],
                    position,
                    shape: spec.shape,
                    kv: self.kv.pages(self.seq, layer)?,
                    scale: spec.scale,
                    soft_cap: spec.soft_cap,
                    sinks,
                    scratch: &mut s.attention,
                    weights,
                    sums,
                },
            );
        }
        Ok(())
    }

    /// `a = a * sigmoid(gate)`, for gated attention.
    pub fn gate_attention(&mut self, attention: &Attention) {
        let (n, cx, s) = (self.n(), &self.cx, &mut *self.s);
        let width = attention.spec.out_width();
        cx.kernels.sigmoid_in_place(rows_mut(&mut s.z, n, width));
        cx.kernels.mul_in_place(rows_mut(&mut s.a, n, width), rows(&s.z, n, width));
    }

    /// `h = W a`.
    ///
    /// # Errors
    /// Only for mistakes of the caller.
    pub fn attention_output(&mut self, unit: &UnitGuard<'_>, attention: &Attention) -> Result<()> {
        let (n, cx, s) = (self.n(), &self.cx, &mut *self.s);
        let width = attention.spec.out_width();
        let outputs = [(attention.out.weights(unit, cx.weights)?, rows_mut(&mut s.h, n, cx.embd))];
        product(cx, Role::AttentionOutput, &mut s.act, (rows_mut(&mut s.a, n, width), n, width), outputs);
        Ok(())
    }

    /// `gate, up = W h`.
    ///
    /// # Errors
    /// Only for mistakes of the caller.
    pub fn gate_up(&mut self, unit: &UnitGuard<'_>, ffn: &Ffn) -> Result<()> {
        let (n, cx, s) = (self.n(), &self.cx, &mut *self.s);
        let outputs = [
            (ffn.gate.weights(unit, cx.weights)?, rows_mut(&mut s.gate, n, ffn.ff)),
            (ffn.up.weights(unit, cx.weights)?, rows_mut(&mut s.up, n, ffn.ff)),
        ];
        product(cx, Role::GateUp, &mut s.act, (rows_mut(&mut s.h, n, cx.embd), n, cx.embd), outputs);
        Ok(())
    }

    /// `gate = silu(gate) * up`.
    pub fn silu_mul(&mut self, ffn: &Ffn) {
        self.gated(ffn, Kernels::silu_mul);
    }

    /// `gate = gelu(gate) * up`, with the tanh approximation.
    ///
    /// Its argument and its result are rounded to half precision: the field looks this function up in a table of halves, and models'
    /// published figures are made with it.
    pub fn gelu_mul(&mut self, ffn: &Ffn) {
        self.gated(ffn, gelu_halves_mul);
    }

    fn gated(&mut self, ffn: &Ffn, gated: fn(&Kernels, &mut [f32], &[f32])) {
        let (n, cx, s) = (self.n(), &self.cx, &mut *self.s);
        let up = rows(&s.up, n, ffn.ff);
        for_each_piece(cx.par, rows_mut(&mut s.gate, n, ffn.ff), PIECE, &|index, gate| {
            gated(cx.kernels, gate, &up[index * PIECE..][..gate.len()]);
        });
    }

    /// `h = W gate`.
    ///
    /// # Errors
    /// Only for mistakes of the caller.
    pub fn down(&mut self, unit: &UnitGuard<'_>, ffn: &Ffn) -> Result<()> {
        let (n, ff, cx, s) = (self.n(), ffn.ff, &self.cx, &mut *self.s);
        let outputs = [(ffn.down.weights(unit, cx.weights)?, rows_mut(&mut s.h, n, cx.embd))];
        product(cx, Role::Down, &mut s.act, (rows_mut(&mut s.gate, n, ff), n, ff), outputs);
        Ok(())
    }

    /// Logits of the rows asked for: `soft_cap(W rms_norm(x))`.
    ///
    /// # Errors
    /// What reading weights may bring.
    pub fn logits(&mut self, head: &Head, eps: f32) -> Result<()> {
        let (n, embd) = (self.n(), self.cx.embd);
        self.rms_norm(head.norm, eps)?;
        let unit = self.unit(head.unit)?;
        let (cx, s) = (&self.cx, &mut *self.s);
        let vocab = head.weight.rows();
        let logits = &mut s.logits[self.written * vocab..][..n * vocab];
        let outputs = [(head.weight.weights(&unit, cx.weights)?, &mut *logits)];
        product(cx, Role::Head, &mut s.act, (rows_mut(&mut s.h, n, embd), n, embd), outputs);
        if let Some(cap) = head.soft_cap {
            for_each_piece(cx.par, logits, PIECE, &|_, logits| cx.kernels.soft_cap(logits, cap));
        }
        Ok(())
    }

    /// Takes some tokens out of the logits just computed.
    pub fn suppress(&mut self, head: &Head, tokens: &[usize]) {
        let (n, vocab) = (self.n(), head.weight.rows());
        let logits = &mut self.s.logits[self.written * vocab..][..n * vocab];
        for row in logits.chunks_exact_mut(vocab) {
            tokens.iter().for_each(|&token| row[token] = f32::NEG_INFINITY);
        }
    }
}

/// See [`Pass::gelu_mul`].
fn gelu_halves_mul(kernels: &Kernels, gate: &mut [f32], by: &[f32]) {
    kernels.round_f16_in_place(gate);
    kernels.gelu_in_place(gate);
    kernels.round_f16_in_place(gate);
    kernels.mul_in_place(gate, by);
}

/// In-place RMS norm of rows of `width` values.
fn norm_rows(cx: &Context<'_>, x: &mut [f32], weight: VectorRef, eps: f32, width: usize) -> Result<()> {
    let weight = cx.weights.vector(weight)?;
    for_each_piece(cx.par, x, piece(width), &|_, x| {
        cx.kernels.rms_norm_in_place(x, Some(weight), eps, width);
    });
    Ok(())
}

/// Rotates heads of `dim` values, so that no channel stands out.
fn rotate(cx: &Context<'_>, x: &mut [f32], dim: usize) {
    for_each_piece(cx.par, x, piece(dim), &|_, x| hadamard_in_place(x, dim));
}

/// Whether products with these weights read activations rounded to half precision.
fn takes_halves<'w>(mut weights: impl Iterator<Item = &'w Weights<'w>>) -> bool {
    weights.any(|w| w.halves)
}

fn round_halves(cx: &Context<'_>, x: &mut [f32]) {
    for_each_piece(cx.par, x, PIECE, &|_, x| cx.kernels.round_f16_in_place(x));
}

/// Products of one input with several matrices, in one parallel region: fewer barriers, and no thread idles at the end of
/// a small matrix.
fn product<const N: usize>(
    cx: &Context<'_>,
    role: Role,
    act: &mut Activations,
    input: (&mut [f32], usize, usize),
    outputs: [(Weights<'_>, &mut [f32]); N],
) {
    product_of(cx, role, act, input, outputs.into_iter().collect());
}

/// [`product`] with as many matrices as there happen to be.
fn product_of(
    cx: &Context<'_>,
    role: Role,
    act: &mut Activations,
    (x, n, cols): (&mut [f32], usize, usize),
    outputs: Vec<(Weights<'_>, &mut [f32])>,
) {
    let precision = cx.precision.get(role);
    observe(cx, outputs.iter().map(|(w, _)| w), cols, &x[..n * cols]);
    if takes_halves(outputs.iter().map(|(w, _)| w)) {
        round_halves(cx, x);
    }
    let need =
        outputs.iter().fold(Need::default(), |need, (w, _)| need.and(Need::of(&[(&w.matrix, precision)])));
    act.set(cx.kernels, cx.par, x, n, cols, need);
    let x = act.all();
    let mut jobs: Vec<Job<'_>> =
        outputs.into_iter().map(|(w, y)| Job { w: w.matrix, x, precision, y, bias: w.bias }).collect();
    cx.kernels.matmul(cx.par, &mut jobs);
}
