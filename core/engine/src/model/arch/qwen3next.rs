//! Qwen3-Next: three of four layers are gated delta nets (arXiv:2412.06464), the others gated attention (arXiv:2505.06708) with
//! RoPE over a part of each head; experts, and one shared by all tokens behind a sigmoid gate.

use super::ArchEntry;
use crate::Result;
use crate::model::{
    Architecture, Attention, AttentionSpec, Builder, DeltaNet, Embedding, Gating, Head, Hyper, ModelSpec,
    Moe, Pass, RecurrentSpec,
};
use crate::residency::VectorRef;
use pannier_kernels::{KeyHeads, RopeStyle};

pub(super) const ARCH: ArchEntry = ArchEntry { names: &["qwen3next"], build };

#[derive(Debug)]
struct Qwen3Next {
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
    ffn: Moe,
}

/// What mixes tokens; the number counts layers of its kind.
#[derive(Debug)]
enum Mixer {
    Attention(usize, Attention),
    Delta(usize, DeltaNet),
}

fn build(hyper: &Hyper<'_>, b: &mut Builder<'_>) -> Result<Box<dyn Architecture>> {
    let dims = hyper.dims()?;
    let rope = hyper.rope(b, &dims, RopeStyle::Neox)?;
    let gated = AttentionSpec { gated: true, ..dims.attention(Some(0)) };
    let delta = DeltaNet::shape(hyper, KeyHeads::Grouped)?;
    let used = hyper.maybe("expert_used_count")?.unwrap_or(1);
    let moe = hyper.experts(dims.ff / used, Gating::Softmax, true)?;
    let shared = hyper.width_or("expert_shared_feed_forward_length", dims.ff)?;
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
            ffn: Moe::load(b, i, dims.embd, moe)?.with_shared(b, dims.embd, shared)?,
        });
    }
    let head = Head::load(b, dims.embd, embedding.vocab)?;
    let spec = ModelSpec {
        recurrent,
        ff: shared,
        moe: Some(moe),
        ..dims.spec(hyper, embedding.vocab, attention, vec![rope])
    };
    Ok(Box::new(Qwen3Next { spec, eps: dims.eps, embedding, layers, head }))
}

impl Architecture for Qwen3Next {
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

            let w = p.unit(layer.ffn.unit)?;
            p.rms_norm(layer.ffn_norm, self.eps)?; //             h = norm(x)
            p.route(&w, &layer.ffn)?; //                          `used` experts for each row
            p.experts(&w, &layer.ffn)?; //                        h: n x embd, their weighted sum
            p.add_residual();
        }
        p.logits(&self.head, self.eps) //                         rows asked for x vocab
    }
}
