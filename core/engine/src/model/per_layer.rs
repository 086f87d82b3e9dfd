//! Embeddings that each layer has of a token for itself, as handles to weights.
//!
//! The table is as large as many layers together (half of Gemma 4 E2B), but of each token one row is read: it
//! stays in flash, beside the table of the first embedding.

use super::blocks::{Embedding, Linear};
use super::builder::Builder;
use super::precision::Role;
use crate::Result;
use crate::residency::{TensorRef, UnitId, VectorRef};

/// What all layers get, computed once at the start of a pass.
#[derive(Clone, Copy, Debug)]
pub struct PerLayerInputs {
    /// Values for each layer.
    pub width: usize,
    /// Where its product is.
    pub unit: UnitId,
    /// A row for each token: layers x width.
    pub(super) table: TensorRef,
    pub(super) project: Linear,
    pub(super) norm: VectorRef,
}

impl PerLayerInputs {
    /// The tensors `per_layer_token_embd`, `per_layer_model_proj` (which goes to the unit given, the first of the pass) and
    /// `per_layer_proj_norm`.
    ///
    /// # Errors
    /// See [`Builder::matrix`].
    pub fn load(
        b: &mut Builder<'_>,
        embedding: &Embedding,
        unit: UnitId,
        (embd, layers, width): (usize, usize, usize),
    ) -> Result<PerLayerInputs> {
        let all = layers * width;
        Ok(PerLayerInputs {
            width,
            unit,
            table: embedding.beside(b, "per_layer_token_embd.weight", all)?,
            project: Linear::load(b, unit, "per_layer_model_proj", all, embd, Role::GateUp)?,
            norm: b.vector("per_layer_proj_norm.weight", width)?,
        })
    }
}

/// How a layer lets its own embedding in: behind a gate that the residual stream opens.
#[derive(Clone, Copy, Debug)]
pub struct PerLayerBlock {
    pub(super) gate: Linear,
    pub(super) out: Linear,
    pub(super) norm: VectorRef,
}

impl PerLayerBlock {
    /// The tensors `inp_gate`, `proj` and `post_norm` of a layer, in a unit of it.
    ///
    /// # Errors
    /// See [`Builder::matrix`].
    pub fn load(
        b: &mut Builder<'_>,
        unit: UnitId,
        layer: usize,
        (embd, width): (usize, usize),
    ) -> Result<PerLayerBlock> {
        let name = |part: &str| format!("blk.{layer}.{part}");
        Ok(PerLayerBlock {
            gate: Linear::load(b, unit, &name("inp_gate"), width, embd, Role::GateUp)?,
            out: Linear::load(b, unit, &name("proj"), embd, width, Role::Down)?,
            norm: b.vector(&name("post_norm.weight"), embd)?,
        })
    }
}
