//! What there is to know about a model besides its weights.

use super::pass::Pass;
use crate::Result;
use crate::kv::KvGeometry;
use crate::residency::VectorRef;
use pannier_kernels::{AttentionShape, RopeStyle, Yarn};

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
    /// Attention of each layer.
    pub attention: Vec<AttentionSpec>,
    /// The widest feed-forward block.
    pub ff: usize,
    /// The rotations that layers use, by index.
    pub ropes: Vec<RopeConfig>,
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
}

impl AttentionSpec {
    /// The same, with the queries scaled instead of the scores.
    pub fn with_scaled_queries(self) -> AttentionSpec {
        AttentionSpec { scale: self.q_scale, q_scale: self.scale, ..self }
    }

    /// What the layer keeps of each token.
    pub fn kv(&self) -> KvGeometry {
        let AttentionShape { kv_heads, k_dim, v_dim, .. } = self.shape;
        KvGeometry { kv_heads, k_dim, v_dim, window: self.window }
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
