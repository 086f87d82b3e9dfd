//! LFM2 (arXiv:2511.23404), dense and with experts: most layers are gated convolutions over a few tokens, the others attention with
//! normed queries and keys. Experts are chosen by sigmoids with a bias that does not count for their weights; the first layers
//! have none.

use super::ArchEntry;
use crate::Result;
use crate::model::{
    Architecture, Attention, AttentionSpec, Builder, Embedding, Ffn, Gating, Head, Hyper, ModelSpec, Moe,
    Pass, RecurrentSpec, ShortConv,
};
use crate::residency::VectorRef;
use pannier_kernels::RopeStyle;

pub(super) const ARCH: ArchEntry = ArchEntry { names: &["lfm2", "lfm2moe"], build };

#[derive(Debug)]
struct Lfm2 {
    spec: ModelSpec,
    eps: f32,
    embedding: Embedding,
    layers: Vec<Layer>,
    head: Head,
}

#[derive(Debug)]
struct Layer {
    mixer_norm: VectorRef,
    mixer: Mixer,
    ffn_norm: VectorRef,
    ffn: FeedForward,
}

/// What mixes tokens; the number counts layers of its kind.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "one for each layer: a box would save a few kilobytes per model"
)]
enum Mixer {
    Attention(usize, Attention),
    Conv(usize, ShortConv),
}

#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "one for each layer: a box would save a few kilobytes per model"
)]
enum FeedForward {
    Dense(Ffn),
    Experts(Moe),
}

fn build(hyper: &Hyper<'_>, b: &mut Builder<'_>) -> Result<Box<dyn Architecture>> {
    const KV_HEADS: &str = "attention.head_count_kv";
    let dims = hyper.dims()?;
    let rope = hyper.rope(b, &dims, RopeStyle::Neox)?;
    let conv = ShortConv::shape(hyper, dims.embd)?;
    // Layers without heads of keys are convolutions.
    let kv_heads = hyper.per_layer(KV_HEADS, dims.layers, dims.heads)?;
    let kv_heads = kv_heads.unwrap_or_else(|| vec![dims.kv_heads; dims.layers]);
    let (moe, dense_layers) = match hyper.maybe("expert_count")? {
        None => (None, dims.layers),
        Some(_) => {
            let gating = hyper.gating()?.unwrap_or(Gating::Sigmoid);
            let dense = hyper.maybe("leading_dense_block_count")?.unwrap_or(0);
            (Some(hyper.experts(dims.ff, gating, true)?), dense)
        }
    };
    let embedding = Embedding::load(b, dims.embd)?;
    let (mut attention, mut recurrent): (Vec<AttentionSpec>, Vec<RecurrentSpec>) = (Vec::new(), Vec::new());
    let mut layers = Vec::with_capacity(dims.layers);
    for (i, kv_heads) in kv_heads.into_iter().enumerate() {
        let norm = |b: &mut Builder<'_>, name: &str| b.vector(&format!("blk.{i}.{name}.weight"), dims.embd);
        layers.push(Layer {
            mixer_norm: norm(b, "attn_norm")?,
            mixer: if kv_heads == 0 {
                recurrent.push(conv);
                Mixer::Conv(recurrent.len() - 1, ShortConv::load(b, i, conv)?)
            } else {
                let mut spec = dims.attention(Some(0));
                spec.shape.kv_heads = kv_heads;
                if !dims.heads.is_multiple_of(kv_heads) {
                    return Err(hyper.bad(KV_HEADS, kv_heads, "it must divide the number of heads"));
                }
                attention.push(spec);
                let loaded = Attention::load(b, i, dims.embd, spec)?.with_head_norms(b, i)?;
                Mixer::Attention(attention.len() - 1, loaded)
            },
            ffn_norm: norm(b, "ffn_norm")?,
            ffn: match moe {
                Some(moe) if i >= dense_layers => {
                    FeedForward::Experts(Moe::load(b, i, dims.embd, moe)?.with_choice_bias(b)?)
                }
                _ => FeedForward::Dense(Ffn::load(b, i, dims.embd, dims.ff)?),
            },
        });
    }
    // The reference's converter stores the last norm under the name of another.
    let norm = if b.has("output_norm.weight") { "output_norm.weight" } else { "token_embd_norm.weight" };
    let head = Head::load_with(b, dims.embd, embedding.vocab, norm)?;
    let spec = ModelSpec { recurrent, moe, ..dims.spec(hyper, embedding.vocab, attention, vec![rope]) };
    Ok(Box::new(Lfm2 { spec, eps: dims.eps, embedding, layers, head }))
}

impl Architecture for Lfm2 {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn forward(&self, p: &mut Pass<'_>) -> Result<()> {
        p.embed(&self.embedding, 1.0)?; //                        x: n x embd
        for (i, layer) in self.layers.iter().enumerate() {
            match &layer.mixer {
                Mixer::Attention(kv, attention) => {
                    let w = p.unit(attention.unit)?;
                    p.rms_norm(layer.mixer_norm, self.eps)?; //   h = norm(x)
                    p.qkv(&w, attention)?; //                     q: n x heads x k_dim; k, v: n x kv_heads x dim
                    p.head_norms(attention, self.eps)?; //        over each k_dim
                    p.rope(attention)?;
                    p.store_kv(*kv, attention)?;
                    if !p.is_wanted(i, attention) {
                        return Ok(());
                    }
                    p.attend(*kv, attention)?; //                 a: n x heads x v_dim
                    p.attention_output(&w, attention)?; //        h: n x embd
                }
                Mixer::Conv(state, conv) => {
                    let w = p.unit(conv.unit)?;
                    p.rms_norm(layer.mixer_norm, self.eps)?; //   h = norm(x)
                    p.short_conv(*state, &w, conv)?; //           a: n x embd
                    if !p.is_wanted_recurrent(i, &conv.spec) {
                        return Ok(());
                    }
                    p.short_conv_output(&w, conv)?; //            h: n x embd
                }
            }
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
