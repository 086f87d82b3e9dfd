//! Gemma 3 (arXiv:2503.19786), text part.
//!
//! As Gemma 2, but each query and key is normed and nothing is soft-capped (a file may still ask for it on the logits); five layers with a window
//! follow each other before a global one, and the windowed ones have a RoPE base of their own and no scaling.

use super::ArchEntry;
use crate::Result;
use crate::model::{
    Architecture, Attention, AttentionSpec, Builder, Embedding, Ffn, Head, Hyper, ModelSpec, Pass, RopeConfig,
};
use crate::residency::VectorRef;
use pannier_kernels::RopeStyle;

/// Layers of the 27B model, whose queries are scaled by the width of the model instead of that of a head. No key says so.
const LAYERS_27B: usize = 62;
/// Every sixth layer is global.
const WINDOW_PERIOD: usize = 6;
/// Indices of the rotations.
const GLOBAL: usize = 0;
const LOCAL: usize = 1;

pub(super) const ARCH: ArchEntry = ArchEntry { names: &["gemma3"], build };

#[derive(Debug)]
struct Gemma3 {
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
    let global = hyper.rope(b, &dims, RopeStyle::Neox)?;
    let local = RopeConfig {
        freq_base: hyper.positive("rope.freq_base_swa")?.unwrap_or(10_000.0),
        freq_scale: 1.0,
        yarn: None,
        attn_factor: 1.0,
        ..global
    };
    let window = hyper.maybe("attention.sliding_window")?.unwrap_or(1024);
    let attention = {
        let mut attention = dims.attention(Some(GLOBAL));
        if dims.layers == LAYERS_27B {
            attention.scale = ((dims.heads as f32) / (dims.embd as f32)).sqrt();
        }
        let attention = attention.with_scaled_queries();
        hyper
            .window_layers(dims.layers, WINDOW_PERIOD)?
            .into_iter()
            .map(|local| match local {
                true => AttentionSpec { window: Some(window), rope: Some(LOCAL), ..attention },
                false => attention,
            })
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
                attention: Attention::load(b, i, dims.embd, attention)?.with_head_norms(b, i)?,
                attention_post_norm: norm(b, "post_attention_norm")?,
                ffn_norm: norm(b, "ffn_norm")?,
                ffn: Ffn::load(b, i, dims.embd, dims.ff)?,
                ffn_post_norm: norm(b, "post_ffw_norm")?,
            })
        })
        .collect::<Result<Vec<_>>>()?;
    let mut head = Head::load(b, dims.embd, embedding.vocab)?;
    head.soft_cap = hyper.positive("final_logit_softcapping")?;
    let spec = dims.spec(hyper, embedding.vocab, attention, vec![global, local]);
    Ok(Box::new(Gemma3 { spec, eps: dims.eps, embedding, layers, head }))
}

impl Architecture for Gemma3 {
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
            p.head_norms(attention, self.eps)?; //                over each k_dim
            p.rope(attention)?; //                                global or local base
            p.scale_queries(attention);
            p.store_kv(i, attention)?;
            if !p.is_wanted(i, attention) {
                return Ok(());
            }
            p.attend(i, attention)?; //                           a: n x heads x v_dim
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
        p.logits(&self.head, self.eps) //                         rows asked for x vocab
    }
}
