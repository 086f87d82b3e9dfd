//! SmolLM3 (Hugging Face, 2025): Llama's blocks, but every fourth layer has no positions (NoPE, arXiv:2501.18795).

use super::ArchEntry;
use crate::Result;
use crate::model::{Architecture, Attention, Builder, Embedding, Ffn, Head, Hyper, ModelSpec, Pass};
use crate::residency::VectorRef;
use pannier_kernels::RopeStyle;

/// Layers 4, 8, 12, … have no RoPE. No key says so.
const NOPE_PERIOD: usize = 4;

pub(super) const ARCH: ArchEntry = ArchEntry { names: &["smollm3"], build };

#[derive(Debug)]
struct SmolLm3 {
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
    let rope = hyper.rope(b, &dims, RopeStyle::Normal)?;
    let attention: Vec<_> =
        (1..=dims.layers).map(|i| dims.attention((!i.is_multiple_of(NOPE_PERIOD)).then_some(0))).collect();
    let embedding = Embedding::load(b, dims.embd)?;
    let layers = attention
        .iter()
        .enumerate()
        .map(|(i, &attention)| {
            Ok(Layer {
                attention_norm: b.vector(&format!("blk.{i}.attn_norm.weight"), dims.embd)?,
                attention: Attention::load(b, i, dims.embd, attention)?,
                ffn_norm: b.vector(&format!("blk.{i}.ffn_norm.weight"), dims.embd)?,
                ffn: Ffn::load(b, i, dims.embd, dims.ff)?,
            })
        })
        .collect::<Result<Vec<_>>>()?;
    let head = Head::load(b, dims.embd, embedding.vocab)?;
    let spec = dims.spec(hyper, embedding.vocab, attention, vec![rope]);
    Ok(Box::new(SmolLm3 { spec, eps: dims.eps, embedding, layers, head }))
}

impl Architecture for SmolLm3 {
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
            p.rope(attention)?; //                                not in NoPE layers
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
