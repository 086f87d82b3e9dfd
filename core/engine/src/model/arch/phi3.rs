//! Phi-3 and Phi-4-mini (arXiv:2404.14219, arXiv:2503.01743): Phi3's blocks with q, k, v in one matrix and gate, up in another,
//! and RoPE over halves of each head.
//!
//! LongRoPE (arXiv:2402.13753) has two tables of divisors, one for texts that fit the original context and one for longer ones. Which one
//! is used follows from the context that the model is run with, so that it does not change in the middle of a text. The sliding
//! window that some files mention is not used, as the reference engine does not either.

use super::ArchEntry;
use crate::Result;
use crate::model::{Architecture, Attention, Builder, Embedding, Ffn, Head, Hyper, ModelSpec, Pass};
use crate::residency::VectorRef;
use pannier_kernels::RopeStyle;

pub(super) const ARCH: ArchEntry = ArchEntry { names: &["phi3"], build };

#[derive(Debug)]
struct Phi3 {
    spec: ModelSpec,
    eps: f32,
    embedding: Embedding,
    layers: Vec<Layer>,
    head: Head,
}

#[derive(Debug)]
struct Layer {
    attention_norm: VectorRef,
    attention: Attention,
    ffn_norm: VectorRef,
    ffn: Ffn,
}

fn build(hyper: &Hyper<'_>, b: &mut Builder<'_>) -> Result<Box<dyn Architecture>> {
    let dims = hyper.dims()?;
    let mut rope = hyper.rope(b, &dims, RopeStyle::Neox)?;
    let original = hyper.rope_scaling(dims.trained)?.original_context;
    let factors =
        if dims.context > original { "rope_factors_long.weight" } else { "rope_factors_short.weight" };
    if let Some(factors) = b.maybe_vector(factors, rope.n_rot / 2)? {
        rope.factors = Some(factors);
    }
    let attention = dims.attention(Some(0)).with_scaled_queries();
    let embedding = Embedding::load(b, dims.embd)?;
    let layers = (0..dims.layers)
        .map(|i| {
            Ok(Layer {
                attention_norm: b.vector(&format!("blk.{i}.attn_norm.weight"), dims.embd)?,
                attention: Attention::load(b, i, dims.embd, attention)?,
                ffn_norm: b.vector(&format!("blk.{i}.ffn_norm.weight"), dims.embd)?,
                ffn: Ffn::load(b, i, dims.embd, dims.ff)?,
            })
        })
        .collect::<Result<Vec<_>>>()?;
    let head = Head::load(b, dims.embd, embedding.vocab)?;
    let spec = dims.spec(hyper, embedding.vocab, vec![attention; dims.layers], vec![rope]);
    Ok(Box::new(Phi3 { spec, eps: dims.eps, embedding, layers, head }))
}

impl Architecture for Phi3 {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn forward(&self, p: &mut Pass<'_>) -> Result<()> {
        p.embed(&self.embedding, 1.0)?; //                        x: n x embd
        for (i, layer) in self.layers.iter().enumerate() {
            let (attention, ffn) = (&layer.attention, &layer.ffn);
            let w = p.unit(attention.unit)?;
            p.rms_norm(layer.attention_norm, self.eps)?; //       h = norm(x)
            p.qkv(&w, attention)?; //                             q: n x heads x k_dim; k, v: n x kv_heads x dim
            p.rope(attention)?;
            p.scale_queries(attention);
            p.store_kv(i, attention)?;
            if !p.is_wanted(i, attention) {
                return Ok(());
            }
            p.attend(i, attention)?; //                           a: n x heads x v_dim
            p.attention_output(&w, attention)?; //                h: n x embd
            p.add_residual();

            let w = p.unit(ffn.unit)?;
            p.rms_norm(layer.ffn_norm, self.eps)?; //             h = norm(x)
            p.gate_up(&w, ffn)?; //                               gate, up: n x ff
            p.silu_mul(ffn);
            p.down(&w, ffn)?; //                                  h: n x embd
            p.add_residual();
        }
        p.logits(&self.head, self.eps) //                         rows asked for x vocab
    }
}
