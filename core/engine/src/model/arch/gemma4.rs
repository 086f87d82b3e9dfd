//! Gemma 4, text part: E2B and E4B for phones, dense models, and mixtures of experts (26B-A4B).
//!
//! As Gemma 3, and:
//!
//! * Windowed and global layers have heads of different lengths, and may have different numbers of keys. Global ones rotate the first part
//!   of each head only, by factors in the file. Scores are not scaled; values are normed, and may be the keys themselves.
//! * The last layers have no keys and values of their own: they read those of the last layer before them that is of their kind.
//! * Each layer may have an embedding of the token for itself.
//! * Experts stand beside the dense block, not in its place, and the router sees another norm of the stream than they do.

use super::ArchEntry;
use crate::model::hyper::MAX_WIDTH;
use crate::model::{
    Architecture, Attention, AttentionSpec, Builder, Dims, Embedding, ExpertActivation, Ffn, Gating, Head,
    Hyper, ModelSpec, Moe, MoeSpec, Pass, PerLayerBlock, PerLayerInputs, RopeConfig,
};
use crate::residency::VectorRef;
use crate::{Error, Result};
use pannier_kernels::{AttentionShape, RopeStyle};

/// Values that all layers together may have of a token for themselves: a task holds a row of them.
const MOST_OWN: usize = 1 << 18;
/// Indices of the rotations.
const GLOBAL: usize = 0;
const LOCAL: usize = 1;

pub(super) const ARCH: ArchEntry = ArchEntry { names: &["gemma4"], build };

#[derive(Debug)]
struct Gemma4 {
    spec: ModelSpec,
    eps: f32,
    embedding: Embedding,
    per_layer: Option<PerLayerInputs>,
    layers: Vec<Layer>,
    head: Head,
    /// Tokens for pictures and sounds, which nothing that reads text could use.
    suppressed: Vec<usize>,
}

#[derive(Debug)]
struct Layer {
    attention_norm: VectorRef,
    attention: Attention,
    attention_post_norm: VectorRef,
    ffn_norm: VectorRef,
    ffn: Ffn,
    experts: Option<Experts>,
    ffn_post_norm: VectorRef,
    per_layer: Option<PerLayerBlock>,
    scale: Option<VectorRef>,
}

/// Experts beside a dense block.
#[derive(Debug)]
struct Experts {
    ffn_post_norm: VectorRef,
    router_norm: VectorRef,
    norm: VectorRef,
    moe: Moe,
    post_norm: VectorRef,
}

fn build(hyper: &Hyper<'_>, b: &mut Builder<'_>) -> Result<Box<dyn Architecture>> {
    let dims = hyper.dims()?;
    let layers = dims.layers;
    let attention = attention(hyper, b, &dims)?;
    let global = hyper.rope(b, &dims, RopeStyle::Neox)?;
    let local_dim = hyper.width_or("attention.key_length_swa", dims.k_dim)?;
    let local = RopeConfig {
        n_rot: hyper.rotated_by("rope.dimension_count_swa", local_dim)?,
        freq_base: hyper.positive("rope.freq_base_swa")?.unwrap_or(10_000.0),
        factors: None,
        ..global
    };
    let ff = hyper.per_layer("feed_forward_length", layers, MAX_WIDTH)?.unwrap_or_default();
    let width = hyper.maybe("embedding_length_per_layer_input")?.unwrap_or(0);
    if width.saturating_mul(layers) > MOST_OWN {
        return Err(hyper.bad("embedding_length_per_layer_input", width, "all layers together are too wide"));
    }
    let moe = match hyper.maybe("expert_count")? {
        None => None,
        Some(_) => Some(MoeSpec {
            activation: ExpertActivation::Gelu,
            ..hyper.experts(dims.ff, Gating::Softmax, true)?
        }),
    };
    let embedding = Embedding::load(b, dims.embd)?;
    let mut per_layer = None;
    let layers = attention
        .iter()
        .enumerate()
        .map(|(i, &spec)| {
            let norm = |b: &mut Builder<'_>, name: &str| b.vector(&format!("blk.{i}.{name}"), dims.embd);
            let attention = Attention::load(b, i, dims.embd, spec)?.with_head_norms(b, i)?.with_value_norms();
            if i == 0 && width > 0 {
                let sizes = (dims.embd, dims.layers, width);
                per_layer = Some(PerLayerInputs::load(b, &embedding, attention.unit, sizes)?);
            }
            let ffn = Ffn::load(b, i, dims.embd, ff.get(i).copied().unwrap_or(dims.ff))?;
            let own =
                if width > 0 { Some(PerLayerBlock::load(b, ffn.unit, i, (dims.embd, width))?) } else { None };
            let routed = moe.filter(|_| b.has(&format!("blk.{i}.ffn_gate_inp.weight")));
            Ok(Layer {
                attention_norm: norm(b, "attn_norm.weight")?,
                attention,
                attention_post_norm: norm(b, "post_attention_norm.weight")?,
                ffn_norm: norm(b, "ffn_norm.weight")?,
                ffn,
                experts: match routed {
                    None => None,
                    Some(spec) => Some(Experts {
                        ffn_post_norm: norm(b, "post_ffw_norm_1.weight")?,
                        router_norm: norm(b, "ffn_gate_inp.scale")?,
                        norm: norm(b, "pre_ffw_norm_2.weight")?,
                        moe: Moe::load_into(b, ffn.unit, i, dims.embd, spec)?.with_scales(b)?,
                        post_norm: norm(b, "post_ffw_norm_2.weight")?,
                    }),
                },
                ffn_post_norm: norm(b, "post_ffw_norm.weight")?,
                per_layer: own,
                scale: b.maybe_vector(&format!("blk.{i}.layer_output_scale.weight"), 1)?,
            })
        })
        .collect::<Result<Vec<_>>>()?;
    let mut head = Head::load(b, dims.embd, embedding.vocab)?;
    head.soft_cap = hyper.positive("final_logit_softcapping")?;
    let moe = moe.filter(|_| layers.iter().any(|layer| layer.experts.is_some()));
    let spec = ModelSpec {
        per_layer: width,
        moe,
        ..dims.spec(hyper, embedding.vocab, attention, vec![global, local])
    };
    let suppressed = hyper.suppressed(embedding.vocab)?;
    Ok(Box::new(Gemma4 { spec, eps: dims.eps, embedding, per_layer, layers, head, suppressed }))
}

/// Attention of each layer: its kind, its heads, and whose keys it reads.
fn attention(hyper: &Hyper<'_>, b: &Builder<'_>, dims: &Dims) -> Result<Vec<AttentionSpec>> {
    const SHARED: &str = "attention.shared_kv_layers";
    let layers = dims.layers;
    // No default: models of the family differ in it.
    hyper.present("attention.sliding_window_pattern")?;
    let is_local = hyper.window_layers(layers, 0)?;
    let kv_heads = hyper.per_layer("attention.head_count_kv", layers, MAX_WIDTH)?.unwrap_or_default();
    let heads = hyper.per_layer("attention.head_count", layers, MAX_WIDTH)?.unwrap_or_default();
    let (k_dim, v_dim) = (
        hyper.width_or("attention.key_length_swa", dims.k_dim)?,
        hyper.width_or("attention.value_length_swa", dims.v_dim)?,
    );
    for (name, dim) in [("attention.key_length_swa", k_dim), ("attention.value_length_swa", v_dim)] {
        if dims.heads.saturating_mul(dim) > MAX_WIDTH || !dim.is_multiple_of(2) {
            return Err(hyper.bad(name, dim, "heads cannot have this length"));
        }
    }
    let window = hyper.count("attention.sliding_window", u32::MAX as usize)?;
    let shared = hyper.maybe(SHARED)?.unwrap_or(0);
    let own = layers
        .checked_sub(shared)
        .filter(|&own| own > 0)
        .ok_or_else(|| hyper.bad(SHARED, shared, "no layer with keys of its own is left"))?;
    let base = AttentionSpec { scale: 1.0, ..dims.attention(Some(GLOBAL)) };
    let mut specs: Vec<AttentionSpec> = Vec::with_capacity(layers);
    for (i, &local) in is_local.iter().enumerate() {
        let shape = AttentionShape {
            heads: heads.get(i).copied().unwrap_or(dims.heads),
            kv_heads: kv_heads.get(i).copied().unwrap_or(dims.kv_heads),
            k_dim: if local { k_dim } else { dims.k_dim },
            v_dim: if local { v_dim } else { dims.v_dim },
        };
        if shape.heads == 0 || shape.kv_heads == 0 || !shape.heads.is_multiple_of(shape.kv_heads) {
            let reason = "it must divide the number of heads of each layer";
            return Err(hyper.bad("attention.head_count_kv", shape.kv_heads, reason));
        }
        let v_from_k = !b.has(&format!("blk.{i}.attn_v.weight"));
        if v_from_k && shape.k_dim != shape.v_dim {
            return Err(Error::Unsupported { what: format!("layer {i}: keys as values of another length") });
        }
        let borrows = match i < own {
            true => None,
            // The last layer before that is of the same kind.
            false => Some(is_local.iter().take(own).rposition(|&other| other == local).ok_or_else(|| {
                hyper.bad(SHARED, shared, "no layer of the same kind is left to share keys with")
            })?),
        };
        if let Some(lender) = borrows.and_then(|lender| specs.get(lender))
            && (AttentionShape { heads: shape.heads, ..lender.shape }) != shape
        {
            return Err(hyper.bad(SHARED, shared, "layers that share keys have heads of different shapes"));
        }
        let window = local.then_some(window);
        let rope = Some(if local { LOCAL } else { GLOBAL });
        specs.push(AttentionSpec { shape, window, rope, borrows, v_from_k, ..base });
    }
    Ok(specs)
}

impl Architecture for Gemma4 {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn forward(&self, p: &mut Pass<'_>) -> Result<()> {
        let eps = self.eps;
        p.embed(&self.embedding, (self.spec.embd as f32).sqrt())?; //  x: n x embd
        for (i, layer) in self.layers.iter().enumerate() {
            let (attention, ffn) = (&layer.attention, &layer.ffn);
            let w = p.unit(attention.unit)?;
            if let Some(inputs) = self.per_layer.as_ref().filter(|_| i == 0) {
                p.per_layer_inputs(&w, inputs, eps)?; //      e: n x layers x width
            }
            p.rms_norm(layer.attention_norm, eps)?; //        h = norm(x)
            p.qkv(&w, attention)?; //                         q: n x heads x k_dim; k, v: n x kv_heads x dim, or none
            p.head_norms(attention, eps)?; //                 over each k_dim, and each v_dim
            p.rope(attention)?;
            if attention.spec.borrows.is_none() {
                p.store_kv(i, attention)?;
            }
            if !p.is_wanted(i, attention) {
                return Ok(());
            }
            p.attend(i, attention)?; //                       a: n x heads x v_dim
            p.attention_output(&w, attention)?; //            h: n x embd
            p.post_norm(layer.attention_post_norm, eps)?;
            p.add_residual();

            let w = p.unit(ffn.unit)?;
            p.rms_norm(layer.ffn_norm, eps)?; //              h = norm(x)
            p.gate_up(&w, ffn)?; //                           gate, up: n x ff
            p.gelu_mul(ffn);
            p.down(&w, ffn)?; //                              h: n x embd
            if let Some(experts) = &layer.experts {
                p.put_aside(experts.ffn_post_norm, eps)?;
                p.router_norm(experts.router_norm, eps)?; //  h = norm(x) / sqrt(embd)
                p.route(&w, &experts.moe)?; //                `used` experts for each row
                p.rms_norm(experts.norm, eps)?; //            h = norm(x)
                p.experts(&w, &experts.moe)?; //              h: n x embd, their weighted sum
                p.post_norm(experts.post_norm, eps)?;
                p.add_aside()?;
            }
            p.post_norm(layer.ffn_post_norm, eps)?;
            p.add_residual();

            if let Some(own) = &layer.per_layer {
                p.per_layer_block(&w, own, i, eps)?; //       h: n x embd
                p.add_residual();
            }
            if let Some(scale) = layer.scale {
                p.scale_residual(scale)?;
            }
        }
        p.logits(&self.head, eps)?; //                        rows asked for x vocab
        p.suppress(&self.head, &self.suppressed);
        Ok(())
    }
}
