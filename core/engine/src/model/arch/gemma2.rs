//! Gemma 2 (arXiv:2408.00118).
//!
//! Embeddings are scaled by sqrt(embd); every second layer looks only at a window of tokens; attention scores and logits are soft-capped;
//! the result of each block is normed before it joins the residual stream. Norm weights in GGUF files already contain the "1 +".

use super::ArchEntry;
use crate::Result;
use crate::model::{
    Architecture, Attention, AttentionSpec, Builder, Embedding, Ffn, Head, Hyper, ModelSpec, Pass,
};
use crate::residency::VectorRef;
use pannier_kernels::RopeStyle;

/// Layers of the 27B model, whose queries are scaled by the width of the model instead of that of a head. No key says so.
const LAYERS_27B: usize = 46;
/// Every second layer is global.
const WINDOW_PERIOD: usize = 2;

pub(super) const ARCH: ArchEntry = ArchEntry { names: &["gemma2"], build };

#[derive(Debug)]
struct Gemma2 {
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
    attention_post_norm: VectorRef,
    ffn_norm: VectorRef,
    ffn: Ffn,
    ffn_post_norm: VectorRef,
}

fn build(hyper: &Hyper<'_>, b: &mut Builder<'_>) -> Result<Box<dyn Architecture>> {
    let dims = hyper.dims()?;
    let rope = hyper.rope(b, &dims, RopeStyle::Neox)?;
    let window = hyper.maybe("attention.sliding_window")?.unwrap_or(4096);
    let attention = {
        let mut attention = dims.attention(Some(0));
        attention.soft_cap = hyper.positive("attn_logit_softcapping")?;
        if dims.layers == LAYERS_27B {
            attention.scale = ((dims.heads as f32) / (dims.embd as f32)).sqrt();
        }
        let attention = attention.with_scaled_queries();
        hyper
            .window_layers(dims.layers, WINDOW_PERIOD)?
            .into_iter()
            .map(|local| AttentionSpec { window: local.then_some(window), ..attention })
            .collect::<Vec<_>>()
    };
    let embedding = Embedding::load(b, dims.embd)?;
    let layers = attention
        .iter()
        .enumerate()
        .map(|(i, &attention)| {
            let norm =
                |b: &mut Builder<'_>, name: &str| b.vector(&format!("blk.{i}.{name}.weight"), dims.embd);
            Ok(Layer {
                attention_norm: norm(b, "attn_norm")?,
                attention: Attention::load(b, i, dims.embd, attention)?,
                attention_post_norm: norm(b, "post_attention_norm")?,
                ffn_norm: norm(b, "ffn_norm")?,
                ffn: Ffn::load(b, i, dims.embd, dims.ff)?,
                ffn_post_norm: norm(b, "post_ffw_norm")?,
            })
        })
        .collect::<Result<Vec<_>>>()?;
    let mut head = Head::load(b, dims.embd, embedding.vocab)?;
    head.soft_cap = hyper.positive("final_logit_softcapping")?;
    let spec = dims.spec(hyper, embedding.vocab, attention, vec![rope]);
    Ok(Box::new(Gemma2 { spec, eps: dims.eps, embedding, layers, head }))
}

impl Architecture for Gemma2 {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn forward(&self, p: &mut Pass<'_>) -> Result<()> {
        p.embed(&self.embedding, (self.spec.embd as f32).sqrt())?; //  x: n x embd
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
            p.attend(i, attention)?; //                           a: n x heads x v_dim, scores soft-capped
            p.attention_output(&w, attention)?; //                h: n x embd
            p.post_norm(layer.attention_post_norm, self.eps)?;
            p.add_residual();

            let w = p.unit(ffn.unit)?;
            p.rms_norm(layer.ffn_norm, self.eps)?; //             h = norm(x)
            p.gate_up(&w, ffn)?; //                               gate, up: n x ff
            p.gelu_mul(ffn);
            p.down(&w, ffn)?; //                                  h: n x embd
            p.post_norm(layer.ffn_post_norm, self.eps)?;
            p.add_residual();
        }
        p.logits(&self.head, self.eps) //                         rows asked for x vocab, soft-capped
    }
}
