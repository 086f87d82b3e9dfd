//! Layers that keep a state.

use super::{Context, Pass, piece, product, product_of, rows, rows_mut};
use crate::model::precision::Role;
use crate::model::recurrent::{DeltaGates, DeltaInputs, DeltaNet, ShortConv};
use crate::model::spec::RecurrentSpec;
use crate::model::state::LayerState;
use crate::residency::UnitGuard;
use crate::{Error, Result};
use pannier_kernels::{ConvJob, DeltaJob, for_each_piece, scalar};

/// What some tokens bring to a state.
#[derive(Clone, Copy)]
struct Rows<'x> {
    /// n x channels.
    x: &'x [f32],
    /// n x heads.
    decay: &'x [f32],
    /// n x heads.
    beta: &'x [f32],
}

/// A layer's part in taking tokens into a state.
#[derive(Clone, Copy)]
struct Recurrence<'w> {
    spec: RecurrentSpec,
    /// channels x taps.
    conv: &'w [f32],
    /// Of the norms of queries and keys.
    eps: f32,
}

impl Recurrence<'_> {
    /// Takes tokens into `state`. `convolved` (n x channels) is working memory, or the result if there is no delta rule;
    /// `out` is n x values, or empty if only the state is wanted.
    fn advance(
        &self,
        cx: &Context<'_>,
        state: &mut [f32],
        rows: Rows<'_>,
        convolved: &mut [f32],
        out: &mut [f32],
    ) {
        let RecurrentSpec { channels, taps, delta } = self.spec;
        let (memory, state) = state.split_at_mut(self.spec.conv_len());
        if !convolved.is_empty() {
            let (before, weight) = (&*memory, self.conv);
            cx.kernels
                .causal_conv(cx.par, ConvJob { before, x: rows.x, weight, channels, out: &mut *convolved });
        }
        // The last taps - 1 tokens.
        let kept = memory.len().saturating_sub(rows.x.len());
        memory.copy_within(memory.len() - kept.., 0);
        let new = &rows.x[rows.x.len() - (memory.len() - kept)..];
        memory[kept..].copy_from_slice(new);
        debug_assert_eq!(memory.len(), (taps - 1) * channels);
        let Some(shape) = delta else { return };
        let (queries, scale) = (shape.k_heads * shape.k_dim, 1.0 / (shape.k_dim as f32).sqrt());
        for_each_piece(cx.par, convolved, piece(channels), &|_, rows| {
            cx.kernels.silu_in_place(rows);
            for row in rows.chunks_exact_mut(channels) {
                cx.kernels.l2_norm_in_place(&mut row[..2 * queries], self.eps, shape.k_dim);
                cx.kernels.scale_in_place(&mut row[..queries], scale);
            }
        });
        let Rows { decay, beta, .. } = rows;
        cx.kernels.delta_rule(cx.par, DeltaJob { shape, qkv: convolved, decay, beta, state, out });
    }

    /// Makes a stale state from the base and the journal. `convolved` has room for a token.
    fn refresh(&self, cx: &Context<'_>, layer: &mut LayerState<'_>, convolved: &mut [f32]) {
        if !layer.is_stale() {
            return;
        }
        let (channels, heads) = (self.spec.channels, self.spec.v_heads());
        for position in layer.replay.clone() {
            let (base, row) = layer.base_and_row(position);
            let (x, gates) = row.split_at(channels);
            let (decay, beta) = gates.split_at(heads);
            let convolved = if self.spec.delta.is_some() { &mut convolved[..channels] } else { &mut [][..] };
            self.advance(cx, base, Rows { x, decay, beta }, convolved, &mut []);
        }
        layer.refreshed();
    }
}

/// One part of what a mixed matrix gives for each head of keys.
#[derive(Clone, Copy)]
struct Part {
    /// Heads of keys.
    groups: usize,
    /// Values per head of keys.
    width: usize,
    /// Where the part begins among them, and its size.
    from: usize,
    size: usize,
}

/// Copies a part to rows of `out_width`, from `out_at` on, head after head.
fn unmix(mixed: &[f32], part: Part, out: &mut [f32], (out_width, out_at): (usize, usize)) {
    let Part { groups, width, from, size } = part;
    for (mixed, out) in mixed.chunks_exact(groups * width).zip(out.chunks_exact_mut(out_width)) {
        for (group, out) in mixed.chunks_exact(width).zip(out[out_at..].chunks_exact_mut(size)) {
            out.copy_from_slice(&group[from..from + size]);
        }
    }
}

fn no_state() -> Error {
    Error::internal("a recurrent layer in a sequence without states")
}

impl Pass<'_> {
    /// What each token brings to a delta net: queries, keys and values, z, and the two gates of each head.
    ///
    /// # Errors
    /// Only for mistakes of the caller.
    pub fn delta_inputs(&mut self, unit: &UnitGuard<'_>, net: &DeltaNet) -> Result<()> {
        let (n, cx, s, shape) = (self.n(), &self.cx, &mut *self.s, net.shape);
        let (channels, values, heads) = (net.spec.channels, shape.v_width(), shape.v_heads);
        let mut outputs = Vec::with_capacity(4);
        match &net.inputs {
            DeltaInputs::Split { qkv, z } => {
                outputs.push((qkv.weights(unit, cx.weights)?, rows_mut(&mut s.mix, n, channels)));
                outputs.push((z.weights(unit, cx.weights)?, rows_mut(&mut s.z, n, values)));
            }
            DeltaInputs::Mixed(all) => {
                let out = rows_mut(&mut s.conv, n, channels + values);
                outputs.push((all.weights(unit, cx.weights)?, out));
            }
        }
        match &net.gates {
            DeltaGates::Split { alpha, beta } => {
                outputs.push((alpha.weights(unit, cx.weights)?, rows_mut(&mut s.decay, n, heads)));
                outputs.push((beta.weights(unit, cx.weights)?, rows_mut(&mut s.beta, n, heads)));
            }
            DeltaGates::Mixed(both) => {
                outputs.push((both.weights(unit, cx.weights)?, rows_mut(&mut s.gates, n, 2 * heads)));
            }
        }
        product_of(cx, Role::Qkv, &mut s.act, (rows_mut(&mut s.h, n, cx.embd), n, cx.embd), outputs);

        let groups = shape.k_heads;
        let per_group = heads / groups;
        if let DeltaInputs::Mixed(_) = net.inputs {
            let (key, value) = (shape.k_dim, per_group * shape.v_dim);
            let width = 2 * key + 2 * value;
            let mixed = rows(&s.conv, n, channels + values);
            let (keys, mix) = (groups * key, rows_mut(&mut s.mix, n, channels));
            for (from, size, to) in [(0, key, 0), (key, key, keys), (2 * key, value, 2 * keys)] {
                unmix(mixed, Part { groups, width, from, size }, mix, (channels, to));
            }
            let part = Part { groups, width, from: 2 * key + value, size: value };
            unmix(mixed, part, rows_mut(&mut s.z, n, values), (values, 0));
        }
        if let DeltaGates::Mixed(_) = net.gates {
            let mixed = rows(&s.gates, n, 2 * heads);
            for (from, out) in [(0, &mut s.beta), (per_group, &mut s.decay)] {
                let part = Part { groups, width: 2 * per_group, from, size: per_group };
                unmix(mixed, part, rows_mut(out, n, heads), (heads, 0));
            }
        }

        let (dt, a) = (cx.weights.vector(net.dt)?, cx.weights.vector(net.a)?);
        cx.kernels.sigmoid_in_place(rows_mut(&mut s.beta, n, heads));
        // Functions of one value, some 50 ns each.
        let per_piece = (256 / heads).max(1) * heads;
        for_each_piece(cx.par, rows_mut(&mut s.decay, n, heads), per_piece, &|_, decay| {
            for row in decay.chunks_exact_mut(heads) {
                for ((decay, dt), a) in row.iter_mut().zip(dt).zip(a) {
                    *decay = scalar::exp(scalar::softplus(*decay + dt) * a);
                }
            }
        });
        Ok(())
    }

    /// Takes the tokens into the state of recurrent layer `index` (counted among those); `a` = what each reads from it.
    ///
    /// # Errors
    /// Only for mistakes of the caller.
    pub fn delta_scan(&mut self, index: usize, net: &DeltaNet, eps: f32) -> Result<()> {
        let (n, cx, s) = (self.n(), &self.cx, &mut *self.s);
        let state = self.recurrent.as_deref_mut().ok_or_else(no_state)?;
        let mut layer = state.layer(index, self.start)?;
        let heads = net.shape.v_heads;
        let recurrence = Recurrence { spec: net.spec, conv: cx.weights.vector(net.conv)?, eps };
        recurrence.refresh(cx, &mut layer, &mut s.conv);
        let brought = Rows {
            x: rows(&s.mix, n, net.spec.channels),
            decay: rows(&s.decay, n, heads),
            beta: rows(&s.beta, n, heads),
        };
        layer.record(brought.x, [brought.decay, brought.beta]);
        let convolved = rows_mut(&mut s.conv, n, net.spec.channels);
        let out = rows_mut(&mut s.a, n, net.shape.v_width());
        recurrence.advance(cx, layer.state, brought, convolved, out);
        Ok(())
    }

    /// `h = W (rms_norm(a) * silu(z))`, the norm over each head.
    ///
    /// # Errors
    /// Only for mistakes of the caller.
    pub fn delta_output(&mut self, unit: &UnitGuard<'_>, net: &DeltaNet, eps: f32) -> Result<()> {
        let (n, cx, s) = (self.n(), &self.cx, &mut *self.s);
        let (width, head) = (net.shape.v_width(), net.shape.v_dim);
        super::norm_rows(cx, rows_mut(&mut s.a, n, width), net.norm, eps, head)?;
        let (a, per_piece) = (rows(&s.a, n, width), piece(width));
        for_each_piece(cx.par, rows_mut(&mut s.z, n, width), per_piece, &|index, z| {
            cx.kernels.silu_mul(z, &a[index * per_piece..][..z.len()]);
        });
        let outputs = [(net.out.weights(unit, cx.weights)?, rows_mut(&mut s.h, n, cx.embd))];
        product(cx, Role::AttentionOutput, &mut s.act, (rows_mut(&mut s.z, n, width), n, width), outputs);
        Ok(())
    }

    /// `a = c * conv(b * x)`, with `b, c, x = W h`; `index` counts recurrent layers.
    ///
    /// # Errors
    /// Only for mistakes of the caller.
    pub fn short_conv(&mut self, index: usize, unit: &UnitGuard<'_>, conv: &ShortConv) -> Result<()> {
        let (n, cx, s) = (self.n(), &self.cx, &mut *self.s);
        let width = conv.spec.channels;
        let outputs = [(conv.input.weights(unit, cx.weights)?, rows_mut(&mut s.mix, n, 3 * width))];
        product(cx, Role::Qkv, &mut s.act, (rows_mut(&mut s.h, n, cx.embd), n, cx.embd), outputs);
        let mixed = rows(&s.mix, n, 3 * width).chunks_exact(3 * width);
        let outputs = s.z.chunks_exact_mut(width).zip(s.a.chunks_exact_mut(width));
        for (mixed, (bx, a)) in mixed.zip(outputs) {
            let (b, rest) = mixed.split_at(width);
            let (c, x) = rest.split_at(width);
            bx.copy_from_slice(b);
            cx.kernels.mul_in_place(bx, x);
            a.copy_from_slice(c);
        }
        let state = self.recurrent.as_deref_mut().ok_or_else(no_state)?;
        let mut layer = state.layer(index, self.start)?;
        let recurrence = Recurrence { spec: conv.spec, conv: cx.weights.vector(conv.conv)?, eps: 0.0 };
        recurrence.refresh(cx, &mut layer, &mut s.conv);
        let brought = Rows { x: rows(&s.z, n, width), decay: &[], beta: &[] };
        layer.record(brought.x, [&[], &[]]);
        let convolved = rows_mut(&mut s.conv, n, width);
        recurrence.advance(cx, layer.state, brought, convolved, &mut []);
        cx.kernels.mul_in_place(rows_mut(&mut s.a, n, width), rows(&s.conv, n, width));
        Ok(())
    }

    /// `h = W a`.
    ///
    /// # Errors
    /// Only for mistakes of the caller.
    pub fn short_conv_output(&mut self, unit: &UnitGuard<'_>, conv: &ShortConv) -> Result<()> {
        let (n, cx, s, width) = (self.n(), &self.cx, &mut *self.s, conv.spec.channels);
        let outputs = [(conv.out.weights(unit, cx.weights)?, rows_mut(&mut s.h, n, cx.embd))];
        product(cx, Role::AttentionOutput, &mut s.act, (rows_mut(&mut s.a, n, width), n, width), outputs);
        Ok(())
    }

    /// [`Pass::is_wanted`] for a recurrent layer, after its state has taken all tokens.
    pub fn is_wanted_recurrent(&mut self, layer: usize, spec: &RecurrentSpec) -> bool {
        self.keep_wanted(layer, |s| [(&mut s.a, spec.out_width()), (&mut s.z, spec.out_width())])
    }
}
