//! gpt-oss (arXiv:2508.10925): attention with a sink logit per head, every second layer with a window; experts with biases and a
//! clamped gate, chosen by logits and weighted by a softmax over the chosen ones. YaRN stretches RoPE.

use super::ArchEntry;
use crate::Result;
use crate::model::{
    Architecture, Attention, AttentionSpec, Builder, Embedding, ExpertActivation, Gating, Head, Hyper,
    ModelSpec, Moe, MoeSpec, Pass,
};
use crate::residency::VectorRef;
use pannier_kernels::RopeStyle;

/// Every second layer is global.
const WINDOW_PERIOD: usize = 2;

pub(super) const ARCH: ArchEntry = ArchEntry { names: &["gpt-oss"], build };

#[derive(Debug)]
struct GptOss {
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
    let window = hyper.maybe("attention.sliding_window")?;
    let attention: Vec<AttentionSpec> = hyper
        .window_layers(dims.layers, WINDOW_PERIOD)?
        .into_iter()
        .map(|local| AttentionSpec { window: window.filter(|_| local), ..dims.attention(Some(0)) })
        .collect();
    let moe = MoeSpec {
        activation: ExpertActivation::SwigluOai,
        ..hyper.experts(dims.ff, Gating::SoftmaxOfChosen, false)?
    };
    let embedding = Embedding::load(b, dims.embd)?;
    let layers = attention
        .iter()
        .enumerate()
        .map(|(i, &spec)| {
            Ok(Layer {
                attention_norm: b.vector(&format!("blk.{i}.attn_norm.weight"), dims.embd)?,
                attention: Attention::load(b, i, dims.embd, spec)?.with_sinks(b, i)?,
                ffn_norm: b.vector(&format!("blk.{i}.post_attention_norm.weight"), dims.embd)?,
                moe: Moe::load(b, i, dims.embd, moe)?,
            })
        })
        .collect::<Result<Vec<_>>>()?;
    let head = Head::load(b, dims.embd, embedding.vocab)?;
    let spec =
        ModelSpec { ff: 0, moe: Some(moe), ..dims.spec(hyper, embedding.vocab, attention, vec![rope]) };
    Ok(Box::new(GptOss { spec, eps: dims.eps, embedding, layers, head }))
}

impl Architecture for GptOss {
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
            p.attend(i, attention)?; //                           a: n x heads x v_dim, with sinks
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
