//! Qwen1.5-MoE and Qwen2-57B-A14B (arXiv:2407.10671): Qwen2 with experts, and one shared by all tokens behind a sigmoid gate.

use super::ArchEntry;
use crate::Result;
use crate::model::{Architecture, Attention, Builder, Embedding, Gating, Head, Hyper, ModelSpec, Moe, Pass};
use crate::residency::VectorRef;
use pannier_kernels::RopeStyle;

pub(super) const ARCH: ArchEntry = ArchEntry { names: &["qwen2moe"], build };

#[derive(Debug)]
struct Qwen2Moe {
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
    moe: Moe,
}

fn build(hyper: &Hyper<'_>, b: &mut Builder<'_>) -> Result<Box<dyn Architecture>> {
    let dims = hyper.dims()?;
    let rope = hyper.rope(b, &dims, RopeStyle::Neox)?;
    let attention = dims.attention(Some(0));
    let used = hyper.maybe("expert_used_count")?.unwrap_or(1);
    let moe = hyper.experts(dims.ff / used, Gating::Softmax, false)?;
    let shared = hyper.width_or("expert_shared_feed_forward_length", dims.ff)?;
    let embedding = Embedding::load(b, dims.embd)?;
    let layers = (0..dims.layers)
        .map(|i| {
            Ok(Layer {
                attention_norm: b.vector(&format!("blk.{i}.attn_norm.weight"), dims.embd)?,
                attention: Attention::load(b, i, dims.embd, attention)?,
                ffn_norm: b.vector(&format!("blk.{i}.ffn_norm.weight"), dims.embd)?,
                moe: Moe::load(b, i, dims.embd, moe)?.with_shared(b, dims.embd, shared)?,
            })
        })
        .collect::<Result<Vec<_>>>()?;
    let head = Head::load(b, dims.embd, embedding.vocab)?;
    let spec = ModelSpec {
        ff: shared,
        moe: Some(moe),
        ..dims.spec(hyper, embedding.vocab, vec![attention; dims.layers], vec![rope])
    };
    Ok(Box::new(Qwen2Moe { spec, eps: dims.eps, embedding, layers, head }))
}

impl Architecture for Qwen2Moe {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn forward(&self, p: &mut Pass<'_>) -> Result<()> {
        p.embed(&self.embedding, 1.0)?; //                        x: n x embd
        for (i, layer) in self.layers.iter().enumerate() {
            let (attention, moe) = (&layer.attention, &layer.moe);
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

            let w = p.unit(moe.unit)?;
            p.rms_norm(layer.ffn_norm, self.eps)?; //             h = norm(x)
            p.route(&w, moe)?; //                                 `used` experts for each row
            p.experts(&w, moe)?; //                               h: n x embd, their weighted sum
            p.add_residual();
        }
        p.logits(&self.head, self.eps) //                         rows asked for x vocab
    }
}
