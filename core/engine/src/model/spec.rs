//! What there is to know about a model besides its weights.

use super::pass::Pass;
use crate::Result;
use crate::kv::{KvGeometry, KvType, KvTypes};
use crate::residency::VectorRef;
use pannier_kernels::{AttentionShape, DeltaShape, RopeStyle, Yarn};

/// Sizes, caches and products of a model, from the tensor directory alone.
#[derive(Clone, Debug)]
pub struct ModelSpec {
    /// The architecture's name.
    pub arch: String,
    /// Layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub embd: usize,
    /// Token ids, and so logits per row.
    pub vocab: usize,
    /// The context it was trained with.
    pub trained_context: usize,
    /// The context it is run with.
    pub context: usize,
    /// Attention of each layer that has it, in their order: all, unless some are recurrent.
    pub attention: Vec<AttentionSpec>,
    /// Recurrent layers, in their order.
    pub recurrent: Vec<RecurrentSpec>,
    /// The widest dense feed-forward block, that of shared experts included; 0 if there is none.
    pub ff: usize,
    /// Width of the embedding that each layer has of a token for itself; 0 if layers have none.
    pub per_layer: usize,
    /// Experts, if there are any; all layers that have them have the same.
    pub moe: Option<MoeSpec>,
    /// The rotations that layers use, by index.
    pub ropes: Vec<RopeConfig>,
}

impl ModelSpec {
    /// Bytes of the states that recurrent layers keep for each sequence; they do not grow with it.
    pub fn recurrent_bytes(&self) -> u64 {
        super::state::bytes(&self.recurrent)
    }

    /// What attention layers keep of each token, with these element types. Layers that borrow keep nothing.
    pub fn kv(&self, types: KvTypes) -> Vec<KvGeometry> {
        let own = self.attention.iter().filter(|layer| layer.borrows.is_none());
        crate::kv::typed(own.map(AttentionSpec::kv).collect::<Vec<_>>().into_iter(), types)
    }

    /// Layers up to the last one that keeps something of a token: behind it, only tokens whose logits are asked for matter.
    pub fn storing_layers(&self) -> usize {
        let borrow = self.attention.iter().rev().take_while(|layer| layer.borrows.is_some());
        self.layers.saturating_sub(borrow.count())
    }
}

/// Attention of one layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionSpec {
    /// Heads and their lengths.
    pub shape: AttentionShape,
    /// Attends only to the last `window` tokens, its own included.
    pub window: Option<usize>,
    /// Factor on the scores.
    pub scale: f32,
    /// Factor on the queries: where an architecture is defined so, it makes a difference to their rounding.
    pub q_scale: f32,
    /// Scores become `cap * tanh(score / cap)`.
    pub soft_cap: Option<f32>,
    /// Index into [`ModelSpec::ropes`]; `None` for layers without positions (NoPE).
    pub rope: Option<usize>,
    /// Each query comes with a gate, whose sigmoid is a factor on the result.
    pub gated: bool,
    /// The layer has no keys and values of its own and reads those of this one. Such layers come last.
    pub borrows: Option<usize>,
    /// Values are the keys as the product gives them, before norm and rotation.
    pub v_from_k: bool,
}

/// A mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MoeSpec {
    /// Experts per layer.
    pub experts: usize,
    /// Experts that a token uses.
    pub used: usize,
    /// Width of an expert.
    pub ff: usize,
    /// From the router's logits to weights.
    pub gating: Gating,
    /// Weights of the chosen are divided by their sum.
    pub normalise: bool,
    /// Factor on the weights.
    pub scale: f32,
    /// Between gate, up and down.
    pub activation: ExpertActivation,
}

/// What a router's logits mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gating {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each.
    Sigmoid,
    /// Softmax over the chosen experts only.
    SoftmaxOfChosen,
}

/// The gate of an expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertActivation {
    /// `silu(gate) * up`.
    Silu,
    /// `gelu(gate) * up`, with the tanh approximation.
    Gelu,
    /// Clamped, with 1 added to up: gpt-oss.
    SwigluOai,
}

/// A layer that remembers the text in a state of fixed size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecurrentSpec {
    /// Channels of the convolution.
    pub channels: usize,
    /// Tokens that the convolution looks at, its own included.
    pub taps: usize,
    /// The gated delta rule behind it, if there is one.
    pub delta: Option<DeltaShape>,
}

impl RecurrentSpec {
    /// Values of the convolution's memory.
    pub fn conv_len(&self) -> usize {
        (self.taps - 1) * self.channels
    }

    /// Values of the whole state.
    pub fn state_len(&self) -> usize {
        self.conv_len() + self.delta.map_or(0, |shape| shape.state_len())
    }

    /// Values that a token brings to the state: the channels, and two gates per head.
    pub fn row_len(&self) -> usize {
        self.channels + 2 * self.v_heads()
    }

    /// Heads of values.
    pub fn v_heads(&self) -> usize {
        self.delta.map_or(0, |shape| shape.v_heads)
    }

    /// Width of the layer's result before its last product.
    pub fn out_width(&self) -> usize {
        self.delta.map_or(self.channels, |shape| shape.v_width())
    }
}

impl AttentionSpec {
    /// The same, with the queries scaled instead of the scores.
    pub fn with_scaled_queries(self) -> AttentionSpec {
        AttentionSpec { scale: self.q_scale, q_scale: self.scale, ..self }
    }

    /// What the layer keeps of each token, in half precision.
    pub fn kv(&self) -> KvGeometry {
        let AttentionShape { kv_heads, k_dim, v_dim, .. } = self.shape;
        let (k, v) = (KvType::F16, KvType::F16);
        KvGeometry { kv_heads, k_dim, v_dim, window: self.window, k, v, summaries: false }
    }

    /// Width of all queries of a token.
    pub fn q_width(&self) -> usize {
        self.shape.heads * self.shape.k_dim
    }

    /// Width of all keys of a token.
    pub fn k_width(&self) -> usize {
        self.shape.kv_heads * self.shape.k_dim
    }

    /// Width of all values of a token.
    pub fn v_width(&self) -> usize {
        self.shape.kv_heads * self.shape.v_dim
    }

    /// Width of the result of a token.
    pub fn out_width(&self) -> usize {
        self.shape.heads * self.shape.v_dim
    }
}

/// One way to rotate queries and keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeConfig {
    /// Pairing.
    pub style: RopeStyle,
    /// Leading values of each head that are rotated.
    pub n_rot: usize,
    /// Base of the frequencies.
    pub freq_base: f32,
    /// 1 / scaling factor.
    pub freq_scale: f32,
    /// A divisor per pair.
    pub factors: Option<VectorRef>,
    /// YaRN scaling.
    pub yarn: Option<Yarn>,
    /// Factor on sines and cosines.
    pub attn_factor: f32,
}

/// A family of models: its sizes and its forward pass.
pub trait Architecture: Send + Sync + std::fmt::Debug {
    /// What the rest of the engine needs to know.
    fn spec(&self) -> &ModelSpec;

    /// Turns the tokens of the pass into logits for the rows asked for.
    ///
    /// # Errors
    /// What reading weights may bring, and [`crate::Error::Cancelled`].
    fn forward(&self, pass: &mut Pass<'_>) -> Result<()>;
}
