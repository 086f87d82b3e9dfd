//! Llama (Touvron et al., arXiv:2302.13971; Llama 3, arXiv:2407.21783) and what shares its blocks: SmolLM2, Mistral, TinyLlama.
//!
//! Pre-normed attention and SwiGLU blocks, RoPE over neighbouring pairs, grouped KV heads. Llama 3.1 stretches RoPE by a table of
//! divisors (`rope_freqs.weight`). Biases are used where a file has them. With experts instead of the feed-forward block it is
//! Mixtral (arXiv:2401.04088).

use super::ArchEntry;
use crate::Result;
use crate::model::{
    Architecture, Attention, Builder, Embedding, Ffn, Gating, Head, Hyper, ModelSpec, Moe, Pass,
};
use crate::residency::VectorRef;
use pannier_kernels::RopeStyle;

pub(super) const ARCH: ArchEntry = ArchEntry { names: &["llama"], build };

#[derive(Debug)]
struct Llama {
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
    ffn: FeedForward,
}

#[derive(Debug)]
enum FeedForward {
    Dense(Ffn),
    Experts(Moe),
}

fn build(hyper: &Hyper<'_>, b: &mut Builder<'_>) -> Result<Box<dyn Architecture>> {
    let dims = hyper.dims()?;
    let rope = hyper.rope(b, &dims, RopeStyle::Normal)?;
    let attention = dims.attention(Some(0));
    let moe = match hyper.maybe("expert_count")? {
        None => None,
        Some(_) => Some(hyper.experts(dims.ff, Gating::Softmax, true)?),
    };
    let embedding = Embedding::load(b, dims.embd)?;
    let layers = (0..dims.layers)
        .map(|i| {
            Ok(Layer {
                attention_norm: b.vector(&format!("blk.{i}.attn_norm.weight"), dims.embd)?,
                attention: Attention::load(b, i, dims.embd, attention)?,
                ffn_norm: b.vector(&format!("blk.{i}.ffn_norm.weight"), dims.embd)?,
                ffn: match moe {
                    None => FeedForward::Dense(Ffn::load(b, i, dims.embd, dims.ff)?),
                    Some(moe) => FeedForward::Experts(Moe::load(b, i, dims.embd, moe)?),
                },
            })
        })
        .collect::<Result<Vec<_>>>()?;
    let head = Head::load(b, dims.embd, embedding.vocab)?;
    let spec = ModelSpec {
        ff: if moe.is_some() { 0 } else { dims.ff },
        moe,
        ..dims.spec(hyper, embedding.vocab, vec![attention; dims.layers], vec![rope])
    };
    Ok(Box::new(Llama { spec, eps: dims.eps, embedding, layers, head }))
}

impl Architecture for Llama {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn forward(&self, p: &mut Pass<'_>) -> Result<()> {
        p.embed(&self.embedding, 1.0)?; //                        x: n x embd
        for (i, layer) in self.layers.iter().enumerate() {
            let attention = &layer.attention;
            let w = p.unit(attention.unit)?;
            p.rms_norm(layer.attention_norm, self.eps)?; //       h = norm(x)
            p.qkv(&w, attention)?; //                             q: n x heads x k_dim; k, v: n x kv_heads x dim
            p.rope(attention)?;
            p.store_kv(i, attention)?;
            if !p.is_wanted(i, attention) {
                return Ok(());
            }
            p.attend(i, attention)?; //                           a: n x heads x v_dim
            p.attention_output(&w, attention)?; //                h: n x embd
            p.add_residual();

            match &layer.ffn {
                FeedForward::Dense(ffn) => {
                    let w = p.unit(ffn.unit)?;
                    p.rms_norm(layer.ffn_norm, self.eps)?; //     h = norm(x)
                    p.gate_up(&w, ffn)?; //                       gate, up: n x ff
                    p.silu_mul(ffn);
                    p.down(&w, ffn)?; //                          h: n x embd
                }
                FeedForward::Experts(moe) => {
                    let w = p.unit(moe.unit)?;
                    p.rms_norm(layer.ffn_norm, self.eps)?; //     h = norm(x)
                    p.route(&w, moe)?; //                         `used` experts for each row
                    p.experts(&w, moe)?; //                       h: n x embd, their weighted sum
                }
            }
            p.add_residual();
        }
        p.logits(&self.head, self.eps) //                         rows asked for x vocab
    }
}
