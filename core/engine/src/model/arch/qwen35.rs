//! Qwen3.5, dense and with experts: the layers of Qwen3-Next, with heads of keys tiled over heads of values, and RoPE in sections
//! (time, height, width), which for text is plain RoPE. Layers for predicting several tokens at once, which some files have at
//! the end, are not used.

use super::ArchEntry;
use crate::Result;
use crate::model::{
    Architecture, Attention, AttentionSpec, Builder, DeltaNet, Embedding, Ffn, Gating, Head, Hyper,
    ModelSpec, Moe, Pass, RecurrentSpec,
};
use crate::residency::VectorRef;
use pannier_kernels::{KeyHeads, RopeStyle, sections_are_plain};

pub(super) const ARCH: ArchEntry = ArchEntry { names: &["qwen35", "qwen35moe"], build };

#[derive(Debug)]
struct Qwen35 {
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
enum Mixer {
    Attention(usize, Attention),
    Delta(usize, DeltaNet),
}

#[derive(Debug)]
enum FeedForward {
    Dense(Ffn),
    Experts(Moe),
}

fn build(hyper: &Hyper<'_>, b: &mut Builder<'_>) -> Result<Box<dyn Architecture>> {
    let mut dims = hyper.dims()?;
    let unused = hyper.maybe("nextn_predict_layers")?.unwrap_or(0);
    dims.layers = dims
        .layers
        .checked_sub(unused)
        .filter(|&layers| layers > 0)
        .ok_or_else(|| hyper.bad("nextn_predict_layers", unused, "there are no more layers than that"))?;
    let rope = hyper.rope(b, &dims, RopeStyle::Neox)?;
    let sections = hyper.sections()?;
    if !sections_are_plain(sections, true, rope.n_rot) {
        let sections = format!("{sections:?}");
        return Err(hyper.bad("rope.dimension_sections", sections, "text would have more than one position"));
    }
    let gated = AttentionSpec { gated: true, ..dims.attention(Some(0)) };
    let delta = DeltaNet::shape(hyper, KeyHeads::Tiled)?;
    let (moe, shared) = match hyper.maybe("expert_count")? {
        None => (None, 0),
        Some(_) => {
            let used = hyper.maybe("expert_used_count")?.unwrap_or(1);
            let moe = hyper.experts(dims.ff / used, Gating::Softmax, true)?;
            (Some(moe), hyper.width_or("expert_shared_feed_forward_length", dims.ff)?)
        }
    };
    let embedding = Embedding::load(b, dims.embd)?;
    let (mut attention, mut recurrent): (Vec<AttentionSpec>, Vec<RecurrentSpec>) = (Vec::new(), Vec::new());
    let mut layers = Vec::with_capacity(dims.layers);
    for (i, is_recurrent) in hyper.recurrent_layers(dims.layers)?.into_iter().enumerate() {
        let norm = |b: &mut Builder<'_>, name: &str| b.vector(&format!("blk.{i}.{name}.weight"), dims.embd);
        layers.push(Layer {
            mixer_norm: norm(b, "attn_norm")?,
            mixer: if is_recurrent {
                recurrent.push(delta);
                Mixer::Delta(recurrent.len() - 1, DeltaNet::load(b, i, dims.embd, delta)?)
            } else {
                attention.push(gated);
                let loaded = Attention::load(b, i, dims.embd, gated)?.with_head_norms(b, i)?;
                Mixer::Attention(attention.len() - 1, loaded)
            },
            ffn_norm: norm(b, "post_attention_norm")?,
            ffn: match moe {
                None => FeedForward::Dense(Ffn::load(b, i, dims.embd, dims.ff)?),
                Some(moe) => {
                    let moe = Moe::load(b, i, dims.embd, moe)?;
                    FeedForward::Experts(moe.with_shared(b, dims.embd, shared)?)
                }
            },
        });
    }
    let head = Head::load(b, dims.embd, embedding.vocab)?;
    let spec = ModelSpec {
        recurrent,
        ff: if moe.is_some() { shared } else { dims.ff },
        moe,
        ..dims.spec(hyper, embedding.vocab, attention, vec![rope])
    };
    Ok(Box::new(Qwen35 { spec, eps: dims.eps, embedding, layers, head }))
}

impl Architecture for Qwen35 {
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
                    p.qkv(&w, attention)?; //                     q, gate: n x heads x k_dim; k, v: n x kv_heads x dim
                    p.head_norms(attention, self.eps)?; //        over each k_dim
                    p.rope(attention)?; //                        a part of each head
                    p.store_kv(*kv, attention)?;
                    if !p.is_wanted(i, attention) {
                        return Ok(());
                    }
                    p.attend(*kv, attention)?; //                 a: n x heads x v_dim
                    p.gate_attention(attention); //               a = a * sigmoid(gate)
                    p.attention_output(&w, attention)?; //        h: n x embd
                }
                Mixer::Delta(state, net) => {
                    let w = p.unit(net.unit)?;
                    p.rms_norm(layer.mixer_norm, self.eps)?; //   h = norm(x)
                    p.delta_inputs(&w, net)?; //                  q, k, v, z, and two gates per head
                    p.delta_scan(*state, net, self.eps)?; //      a: n x v_heads x v_dim
                    if !p.is_wanted_recurrent(i, &net.spec) {
                        return Ok(());
                    }
                    p.delta_output(&w, net, self.eps)?; //        h: n x embd
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
