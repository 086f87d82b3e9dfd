//! Layers with a state instead of keys and values, as handles to weights.

use super::blocks::Linear;
use super::builder::Builder;
use super::hyper::{Hyper, MAX_WIDTH};
use super::precision::Role;
use super::spec::RecurrentSpec;
use crate::Result;
use crate::residency::{UnitId, UnitKind, VectorRef};
use pannier_kernels::{DeltaShape, KeyHeads};

/// No model convolves over more tokens.
const MAX_TAPS: usize = 16;
/// No model has longer heads; a state has its square.
const MAX_HEAD: usize = 1024;

/// A gated delta net (arXiv:2412.06464): convolved queries, keys and values, a state per head that forgets and is corrected,
/// and a gated norm of what is read from it.
#[derive(Clone, Copy, Debug)]
pub struct DeltaNet {
    /// Where its weights are.
    pub unit: UnitId,
    /// Sizes.
    pub spec: RecurrentSpec,
    pub(super) shape: DeltaShape,
    pub(super) inputs: DeltaInputs,
    pub(super) gates: DeltaGates,
    /// channels x taps.
    pub(super) conv: VectorRef,
    /// Per head: added to alpha.
    pub(super) dt: VectorRef,
    /// Per head: -exp(A).
    pub(super) a: VectorRef,
    /// Over one head of values.
    pub(super) norm: VectorRef,
    pub(super) out: Linear,
}

/// How queries, keys, values (and their gate z) are laid out.
#[derive(Clone, Copy, Debug)]
pub(super) enum DeltaInputs {
    /// q, k, v of all heads in one matrix, z in another.
    Split { qkv: Linear, z: Linear },
    /// One matrix; for each head of keys its q, k, v and z. Early converters left it so.
    Mixed(Linear),
}

/// How the two numbers per head are laid out.
#[derive(Clone, Copy, Debug)]
pub(super) enum DeltaGates {
    /// One matrix for each.
    Split { alpha: Linear, beta: Linear },
    /// One matrix; for each head of keys the betas and then the alphas of its heads of values.
    Mixed(Linear),
}

impl DeltaNet {
    /// The keys `ssm.*`, for a model whose heads are matched as `heads` says.
    ///
    /// # Errors
    /// A key is absent or its value impossible.
    pub fn shape(hyper: &Hyper<'_>, heads: KeyHeads) -> Result<RecurrentSpec> {
        let taps = hyper.count("ssm.conv_kernel", MAX_TAPS)?;
        let dim = hyper.count("ssm.state_size", MAX_HEAD)?;
        let k_heads = hyper.count("ssm.group_count", MAX_WIDTH)?;
        let v_heads = hyper.count("ssm.time_step_rank", MAX_WIDTH)?;
        if !v_heads.is_multiple_of(k_heads) {
            return Err(hyper.bad(
                "ssm.group_count",
                k_heads,
                "it must divide the number of heads of values",
            ));
        }
        let inner = hyper.count("ssm.inner_size", MAX_WIDTH)?;
        if v_heads.checked_mul(dim) != Some(inner) {
            return Err(hyper.bad("ssm.inner_size", inner, "it must be that of all heads of values"));
        }
        let shape = DeltaShape { k_heads, v_heads, k_dim: dim, v_dim: dim, heads };
        Ok(RecurrentSpec { channels: shape.qkv_width(), taps, delta: Some(shape) })
    }

    /// The tensors `attn_qkv` and `attn_gate` (or `ssm_in` with both), `ssm_alpha` and `ssm_beta` (or `ssm_ba` with both),
    /// `ssm_conv1d`, `ssm_dt`, `ssm_a`, `ssm_norm` and `ssm_out`.
    ///
    /// # Errors
    /// See [`Builder::matrix`].
    pub fn load(b: &mut Builder<'_>, layer: usize, embd: usize, spec: RecurrentSpec) -> Result<DeltaNet> {
        let shape = spec.delta.ok_or_else(|| crate::Error::internal("a delta net without heads"))?;
        let unit = b.unit(UnitKind::Attention { layer });
        let name = |part: &str| format!("blk.{layer}.{part}");
        let (heads, values) = (shape.v_heads, shape.v_width());
        let linear = |b: &mut Builder<'_>, part: &str, rows, cols, role| {
            Linear::load(b, unit, &name(part), rows, cols, role)
        };
        let inputs = if b.has(&name("ssm_in.weight")) && !b.has(&name("attn_qkv.weight")) {
            DeltaInputs::Mixed(linear(b, "ssm_in", spec.channels + values, embd, Role::Qkv)?)
        } else {
            let qkv = linear(b, "attn_qkv", spec.channels, embd, Role::Qkv)?;
            DeltaInputs::Split { qkv, z: linear(b, "attn_gate", values, embd, Role::Qkv)? }
        };
        let gates = if b.has(&name("ssm_ba.weight")) {
            DeltaGates::Mixed(linear(b, "ssm_ba", 2 * heads, embd, Role::Qkv)?)
        } else {
            let alpha = linear(b, "ssm_alpha", heads, embd, Role::Qkv)?;
            DeltaGates::Split { alpha, beta: linear(b, "ssm_beta", heads, embd, Role::Qkv)? }
        };
        let out = linear(b, "ssm_out", embd, values, Role::AttentionOutput)?;
        Ok(DeltaNet {
            unit,
            spec,
            shape,
            inputs,
            gates,
            conv: b.small(&name("ssm_conv1d.weight"), &[spec.taps, spec.channels])?,
            dt: b.vector(&name("ssm_dt.bias"), heads)?,
            a: b.vector(&name("ssm_a"), heads)?,
            norm: b.vector(&name("ssm_norm.weight"), shape.v_dim)?,
            out,
        })
    }
}

/// A gated convolution over the last few tokens (LFM2): `out (c * conv(b * x))`.
#[derive(Clone, Copy, Debug)]
pub struct ShortConv {
    /// Where its weights are.
    pub unit: UnitId,
    /// Sizes.
    pub spec: RecurrentSpec,
    /// b, c, x.
    pub(super) input: Linear,
    /// channels x taps.
    pub(super) conv: VectorRef,
    pub(super) out: Linear,
}

impl ShortConv {
    /// The key `shortconv.l_cache`.
    ///
    /// # Errors
    /// The key is absent or its value impossible.
    pub fn shape(hyper: &Hyper<'_>, embd: usize) -> Result<RecurrentSpec> {
        let taps = hyper.count("shortconv.l_cache", MAX_TAPS)?;
        Ok(RecurrentSpec { channels: embd, taps, delta: None })
    }

    /// The tensors `shortconv.in_proj`, `shortconv.conv` and `shortconv.out_proj`.
    ///
    /// # Errors
    /// See [`Builder::matrix`].
    pub fn load(b: &mut Builder<'_>, layer: usize, spec: RecurrentSpec) -> Result<ShortConv> {
        let unit = b.unit(UnitKind::Attention { layer });
        let name = |part: &str| format!("blk.{layer}.shortconv.{part}");
        let channels = spec.channels;
        Ok(ShortConv {
            unit,
            spec,
            input: Linear::load(b, unit, &name("in_proj"), 3 * channels, channels, Role::Qkv)?,
            conv: b.small(&name("conv.weight"), &[spec.taps, channels])?,
            out: Linear::load(b, unit, &name("out_proj"), channels, channels, Role::AttentionOutput)?,
        })
    }
}
