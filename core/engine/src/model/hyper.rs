//! Hyperparameters, read from the metadata with errors that name the key.

use super::spec::{ExpertActivation, Gating, MoeSpec};
use crate::{Error, Result};
use pannier_gguf::{Metadata, OneOrMany};
use pannier_kernels::Yarn;

/// No model has more layers; a file that says so would only make us allocate tables.
const MAX_LAYERS: usize = 4096;
/// No model has wider rows than this.
pub(super) const MAX_WIDTH: usize = 1 << 20;
/// No model has more experts in a layer; it also keeps their numbers in 16 bits.
const MAX_EXPERTS: usize = 1024;

/// The metadata as one architecture sees it: keys get its name as prefix.
#[derive(Clone, Copy, Debug)]
pub struct Hyper<'a> {
    metadata: &'a Metadata,
    arch: &'a str,
    context: Option<usize>,
}

impl<'a> Hyper<'a> {
    /// The hyperparameters of `arch`. `context` is what the app asked for.
    pub fn new(metadata: &'a Metadata, arch: &'a str, context: Option<usize>) -> Self {
        Hyper { metadata, arch, context }
    }

    /// The architecture's name.
    pub fn arch(&self) -> &'a str {
        self.arch
    }

    /// The whole key.
    pub fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.arch)
    }

    /// A complaint about a key's value.
    pub fn bad(&self, name: &str, value: impl ToString, reason: &'static str) -> Error {
        Error::BadHyperparameter { key: self.key(name), value: value.to_string(), reason }
    }

    /// That the file has a key, of whatever type.
    ///
    /// # Errors
    /// It is absent.
    pub fn present(&self, name: &str) -> Result<()> {
        let key = self.key(name);
        match self.metadata.get(&key) {
            Some(_) => Ok(()),
            None => Ok(self.metadata.u32_or_u32s(&key).map(drop)?),
        }
    }

    /// A count, at least 1 and at most `limit`.
    ///
    /// # Errors
    /// The key is absent, no integer, or out of range.
    pub fn count(&self, name: &str, limit: usize) -> Result<usize> {
        let value = self.metadata.u32(&self.key(name))? as usize;
        self.in_range(name, value, limit)
    }

    /// [`Hyper::count`] with a default for an absent key.
    ///
    /// # Errors
    /// The key is no integer or out of range.
    pub fn count_or(&self, name: &str, default: usize, limit: usize) -> Result<usize> {
        match self.metadata.opt_u32(&self.key(name))? {
            Some(value) => self.in_range(name, value as usize, limit),
            None => Ok(default),
        }
    }

    fn in_range(&self, name: &str, value: usize, limit: usize) -> Result<usize> {
        match value {
            0 => Err(self.bad(name, value, "it must be at least 1")),
            value if value > limit => Err(self.bad(name, value, "no model has so many")),
            value => Ok(value),
        }
    }

    /// A count that is 0 when absent.
    ///
    /// # Errors
    /// The key is no integer.
    pub fn maybe(&self, name: &str) -> Result<Option<usize>> {
        Ok(self.metadata.opt_u32(&self.key(name))?.filter(|&value| value > 0).map(|value| value as usize))
    }

    /// A width; `default` when absent or 0.
    ///
    /// # Errors
    /// The key is no integer, or out of range.
    pub fn width_or(&self, name: &str, default: usize) -> Result<usize> {
        let width = self.maybe(name)?.unwrap_or(default);
        self.in_range(name, width, MAX_WIDTH)
    }

    /// A finite float.
    ///
    /// # Errors
    /// The key is absent, no float, or not finite.
    pub fn float(&self, name: &str) -> Result<f32> {
        let value = self.metadata.f32(&self.key(name))?;
        self.finite(name, value)
    }

    /// A positive float; 0 counts as absent.
    ///
    /// # Errors
    /// The key is no float, negative, or not finite.
    pub fn positive(&self, name: &str) -> Result<Option<f32>> {
        let Some(value) = self.metadata.opt_f32(&self.key(name))? else { return Ok(None) };
        let value = self.finite(name, value)?;
        if value < 0.0 {
            return Err(self.bad(name, value, "it must be positive"));
        }
        Ok(Some(value).filter(|&value| value > 0.0))
    }

    fn finite(&self, name: &str, value: f32) -> Result<f32> {
        if value.is_finite() { Ok(value) } else { Err(self.bad(name, value, "it must be a finite number")) }
    }

    /// Text.
    ///
    /// # Errors
    /// The key is no string.
    pub fn text(&self, name: &str) -> Result<Option<&'a str>> {
        Ok(self.metadata.opt_str(&self.key(name))?)
    }

    /// Which layers have a sliding window: an array says it layer by layer; a number `n` makes every `n`-th layer global;
    /// without the key `period` is that number.
    ///
    /// # Errors
    /// The key has another type, or an array is too short.
    pub fn window_layers(&self, layers: usize, period: usize) -> Result<Vec<bool>> {
        const NAME: &str = "attention.sliding_window_pattern";
        let key = self.key(NAME);
        let short = || self.bad(NAME, "an array", "it is shorter than there are layers");
        let by_period = |period: usize| (0..layers).map(|i| period > 0 && i % period + 1 < period).collect();
        if let Ok(Some(OneOrMany::Many(flags))) = self.metadata.opt_bool_or_bools(&key) {
            return flags.get(..layers).map(<[bool]>::to_vec).ok_or_else(short);
        }
        Ok(match self.metadata.opt_u32_or_u32s(&key)? {
            None => by_period(period),
            Some(OneOrMany::One(period)) => by_period(period as usize),
            Some(OneOrMany::Many(flags)) => {
                flags.get(..layers).ok_or_else(short)?.iter().map(|&flag| flag != 0).collect()
            }
        })
    }

    /// A number per layer, or one for all; 0 is allowed.
    ///
    /// # Errors
    /// The key has another type, an array is too short, or a number is out of range.
    pub fn per_layer(&self, name: &str, layers: usize, limit: usize) -> Result<Option<Vec<usize>>> {
        let values = match self.metadata.opt_u32_or_u32s(&self.key(name))? {
            None => return Ok(None),
            Some(OneOrMany::One(value)) => vec![value; layers],
            Some(OneOrMany::Many(values)) => values,
        };
        let values = values
            .get(..layers)
            .ok_or_else(|| self.bad(name, "an array", "it is shorter than there are layers"))?;
        match values.iter().find(|&&value| value as usize > limit) {
            Some(value) => Err(self.bad(name, value, "no model has so many")),
            None => Ok(Some(values.iter().map(|&value| value as usize).collect())),
        }
    }

    /// Which layers are recurrent: the key says it, or all but every `full_attention_interval`-th.
    ///
    /// # Errors
    /// A key has another type, or an array is too short.
    pub fn recurrent_layers(&self, layers: usize) -> Result<Vec<bool>> {
        const NAME: &str = "attention.recurrent_layers";
        let key = self.key(NAME);
        if let Ok(Some(OneOrMany::Many(flags))) = self.metadata.opt_bool_or_bools(&key) {
            return flags
                .get(..layers)
                .map(<[bool]>::to_vec)
                .ok_or_else(|| self.bad(NAME, "an array", "it is shorter than there are layers"));
        }
        if let Some(flags) = self.per_layer(NAME, layers, 1)? {
            return Ok(flags.iter().map(|&flag| flag != 0).collect());
        }
        let interval = self.count_or("full_attention_interval", 4, MAX_LAYERS)?;
        Ok((0..layers).map(|i| !(i + 1).is_multiple_of(interval)).collect())
    }

    /// Tokens that must not come out, whatever the logits say: `tokenizer.ggml.suppress_tokens`.
    ///
    /// # Errors
    /// The key is no list of ids, or one of them is no id of a vocabulary of this size.
    pub fn suppressed(&self, vocab: usize) -> Result<Vec<usize>> {
        const KEY: &str = "tokenizer.ggml.suppress_tokens";
        let ids = match self.metadata.opt_u32_or_u32s(KEY)? {
            None => Vec::new(),
            Some(OneOrMany::One(id)) => vec![id],
            Some(OneOrMany::Many(ids)) => ids,
        };
        match ids.iter().find(|&&id| id as usize >= vocab) {
            Some(id) => Err(Error::BadHyperparameter {
                key: KEY.to_owned(),
                value: id.to_string(),
                reason: "the vocabulary has no such token",
            }),
            None => Ok(ids.iter().map(|&id| id as usize).collect()),
        }
    }

    /// The sections of multi-section RoPE.
    ///
    /// # Errors
    /// The key is absent, no array, or has more than four entries.
    pub fn sections(&self) -> Result<[usize; 4]> {
        const NAME: &str = "rope.dimension_sections";
        let mut sections = [0; 4];
        match self.metadata.u32_or_u32s(&self.key(NAME))? {
            OneOrMany::Many(values) if values.len() <= 4 => {
                for (section, value) in sections.iter_mut().zip(values) {
                    *section = value as usize;
                }
                Ok(sections)
            }
            _ => Err(self.bad(NAME, "no array of four", "it must be one")),
        }
    }

    /// The key that says what a router's logits mean.
    ///
    /// # Errors
    /// A number that stands for nothing known.
    pub fn gating(&self) -> Result<Option<Gating>> {
        const NAME: &str = "expert_gating_func";
        match self.maybe(NAME)? {
            None => Ok(None),
            Some(1) => Ok(Some(Gating::Softmax)),
            Some(2) => Ok(Some(Gating::Sigmoid)),
            Some(3) => Ok(Some(Gating::SoftmaxOfChosen)),
            Some(other) => Err(self.bad(NAME, other, "it is not supported")),
        }
    }

    /// Experts: how many, how many of them a token uses, and how wide they are. What is not in keys but in the architecture's
    /// nature is given.
    ///
    /// # Errors
    /// A key is absent or its value impossible.
    pub fn experts(&self, default_ff: usize, gating: Gating, normalise: bool) -> Result<MoeSpec> {
        const USED: &str = "expert_used_count";
        const FF: &str = "expert_feed_forward_length";
        let experts = self.count("expert_count", MAX_EXPERTS)?;
        let used = self.count(USED, MAX_EXPERTS)?;
        if used > experts {
            return Err(self.bad(USED, used, "there are fewer experts"));
        }
        // Writers that write every key write 0 for "not said".
        let ff = self.maybe(FF)?.unwrap_or(default_ff);
        if ff == 0 || ff > MAX_WIDTH {
            return Err(self.bad(FF, ff, "experts cannot have this width"));
        }
        let scale = self.positive("expert_weights_scale")?.unwrap_or(1.0);
        Ok(MoeSpec { experts, used, ff, gating, normalise, scale, activation: ExpertActivation::Silu })
    }

    /// What all transformers have.
    ///
    /// # Errors
    /// A key is absent or its value impossible.
    pub fn dims(&self) -> Result<Dims> {
        let layers = self.count("block_count", MAX_LAYERS)?;
        let embd = self.count("embedding_length", MAX_WIDTH)?;
        let heads = self.most("attention.head_count", layers, None)?;
        let kv_heads = self.most("attention.head_count_kv", layers, Some(heads))?;
        if !heads.is_multiple_of(kv_heads) {
            return Err(self.bad("attention.head_count_kv", kv_heads, "it must divide the number of heads"));
        }
        if embd < heads && self.metadata.get(&self.key("attention.key_length")).is_none() {
            return Err(self.bad("attention.head_count", heads, "there are more heads than values"));
        }
        let k_dim = self.count_or("attention.key_length", (embd / heads).max(1), MAX_WIDTH)?;
        let v_dim = self.count_or("attention.value_length", (embd / heads).max(1), MAX_WIDTH)?;
        for (name, dim) in [("attention.key_length", k_dim), ("attention.value_length", v_dim)] {
            if heads.saturating_mul(dim) > MAX_WIDTH {
                return Err(self.bad(name, dim, "all heads together are too wide"));
            }
        }
        let trained = self.count("context_length", u32::MAX as usize)?;
        Ok(Dims {
            layers,
            embd,
            heads,
            kv_heads,
            k_dim,
            v_dim,
            ff: match self.maybe("expert_count")? {
                None => self.most("feed_forward_length", layers, None)?,
                // There may be no dense block at all.
                Some(_) => self.widest("feed_forward_length", layers)?.unwrap_or(0),
            },
            eps: self.eps()?,
            trained,
            context: self.context.unwrap_or(trained),
        })
    }

    /// The largest of the numbers of all layers: those with another kind of layer have 0.
    fn most(&self, name: &str, layers: usize, default: Option<usize>) -> Result<usize> {
        match self.widest(name, layers)? {
            Some(most) => self.in_range(name, most, MAX_WIDTH),
            None => default.map_or_else(|| self.count(name, MAX_WIDTH), Ok),
        }
    }

    fn widest(&self, name: &str, layers: usize) -> Result<Option<usize>> {
        let values = self.per_layer(name, layers, MAX_WIDTH)?;
        Ok(values.map(|values| values.into_iter().max().unwrap_or(0)))
    }

    fn eps(&self) -> Result<f32> {
        const NAME: &str = "attention.layer_norm_rms_epsilon";
        let eps = self.float(NAME)?;
        if eps >= 0.0 { Ok(eps) } else { Err(self.bad(NAME, eps, "it must not be negative")) }
    }

    /// How many values of a head are rotated.
    ///
    /// # Errors
    /// More than there are, or an odd number.
    pub fn rotated(&self, k_dim: usize) -> Result<usize> {
        self.rotated_by("rope.dimension_count", k_dim)
    }

    /// The same by another key.
    ///
    /// # Errors
    /// More than there are, or an odd number.
    pub fn rotated_by(&self, name: &str, k_dim: usize) -> Result<usize> {
        let rotated = self.count_or(name, k_dim, MAX_WIDTH)?;
        if rotated > k_dim || !rotated.is_multiple_of(2) {
            return Err(self.bad(name, rotated, "it must be even and at most the length of a key"));
        }
        Ok(rotated)
    }

    /// RoPE scaling as the metadata has it.
    ///
    /// # Errors
    /// A key's value is impossible, or the kind of scaling is unknown.
    pub fn rope_scaling(&self, trained: usize) -> Result<RopeScaling> {
        let factor = match self.positive("rope.scaling.factor")? {
            Some(factor) => Some(factor),
            // The name before there were kinds.
            None => self.positive("rope.scale_linear")?,
        };
        let freq_scale = factor.map_or(1.0, |factor| 1.0 / factor);
        let original_context = self.maybe("rope.scaling.original_context_length")?.unwrap_or(trained);
        let attn_factor = self.positive("rope.scaling.attn_factor")?.unwrap_or(1.0);
        let mut scaling = RopeScaling { freq_scale, attn_factor, yarn: None, original_context };
        match self.text("rope.scaling.type")? {
            None | Some("linear" | "longrope" | "su") => {}
            Some("none") => scaling.freq_scale = 1.0,
            Some("yarn") => {
                let or = |name, default: f32| -> Result<f32> { Ok(self.positive(name)?.unwrap_or(default)) };
                // -1 stands for "not set" here.
                let ext = self.metadata.opt_f32(&self.key("rope.scaling.yarn_ext_factor"))?;
                scaling.attn_factor *= or("rope.scaling.yarn_attn_factor", 1.0)?;
                scaling.yarn = Some(Yarn {
                    ext_factor: ext.filter(|ext| ext.is_finite() && *ext >= 0.0).unwrap_or(1.0),
                    beta_fast: or("rope.scaling.yarn_beta_fast", 32.0)?,
                    beta_slow: or("rope.scaling.yarn_beta_slow", 1.0)?,
                    original_context,
                });
            }
            Some(kind) => {
                return Err(self.bad("rope.scaling.type", format!("{kind:?}"), "it is not supported"));
            }
        }
        Ok(scaling)
    }
}

/// Sizes and constants of a transformer.
#[derive(Clone, Copy, Debug)]
pub struct Dims {
    /// Layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub embd: usize,
    /// Query heads.
    pub heads: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Length of a key.
    pub k_dim: usize,
    /// Length of a value.
    pub v_dim: usize,
    /// Width of the feed-forward block.
    pub ff: usize,
    /// Epsilon of the norms.
    pub eps: f32,
    /// The context it was trained with.
    pub trained: usize,
    /// The context it is run with.
    pub context: usize,
}

/// How RoPE is stretched beyond the context of the training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeScaling {
    /// 1 / factor.
    pub freq_scale: f32,
    /// Factor on sines and cosines.
    pub attn_factor: f32,
    /// For YaRN.
    pub yarn: Option<Yarn>,
    /// The context before it was stretched.
    pub original_context: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base() -> Metadata {
        let mut m = Metadata::new();
        for (key, value) in [
            ("block_count", 2u32),
            ("embedding_length", 64),
            ("attention.head_count", 4),
            ("attention.head_count_kv", 2),
            ("context_length", 128),
            ("feed_forward_length", 96),
        ] {
            m.insert(format!("x.{key}"), value);
        }
        m.insert("x.attention.layer_norm_rms_epsilon", 1e-5f32);
        m
    }

    #[test]
    fn defaults_follow_from_the_width() {
        let m = base();
        let dims = Hyper::new(&m, "x", Some(100)).dims().unwrap();
        assert_eq!((dims.k_dim, dims.v_dim, dims.trained, dims.context), (16, 16, 128, 100));
    }

    #[test]
    fn impossible_values_name_their_key() {
        for (key, value, says) in [
            ("block_count", 0u32, "at least 1"),
            ("block_count", u32::MAX, "so many"),
            ("attention.head_count_kv", 3, "divide"),
            ("attention.head_count", 1000, "more heads"),
            ("embedding_length", u32::MAX, "so many"),
            ("attention.key_length", 1 << 20, "too wide"),
        ] {
            let mut m = base();
            if key == "attention.head_count" {
                m.insert("x.attention.head_count_kv", 1u32);
            }
            m.insert(format!("x.{key}"), value);
            let error = Hyper::new(&m, "x", None).dims().unwrap_err().to_string();
            assert!(error.contains(&format!("x.{key}")) && error.contains(says), "{error}");
        }
        let mut m = base();
        m.remove("x.feed_forward_length");
        assert!(Hyper::new(&m, "x", None).dims().unwrap_err().to_string().contains("x.feed_forward_length"));
        m = base();
        m.insert("x.attention.layer_norm_rms_epsilon", f32::NAN);
        assert!(Hyper::new(&m, "x", None).dims().unwrap_err().to_string().contains("finite"));
    }

    #[test]
    fn window_patterns_come_in_three_forms() {
        const KEY: &str = "x.attention.sliding_window_pattern";
        let mut m = base();
        let get = |m: &Metadata, layers| Hyper::new(m, "x", None).window_layers(layers, 6);
        assert_eq!(get(&m, 7).unwrap(), [true, true, true, true, true, false, true]);
        m.insert(KEY, 2u32);
        assert_eq!(get(&m, 3).unwrap(), [true, false, true]);
        m.insert(KEY, vec![true, false, false]);
        assert_eq!(get(&m, 3).unwrap(), [true, false, false]);
        assert!(get(&m, 4).is_err());
        m.insert(KEY, vec![0u32, 1]);
        assert_eq!(get(&m, 2).unwrap(), [false, true]);
        m.insert(KEY, 0u32);
        assert_eq!(get(&m, 2).unwrap(), [false, false]);
        m.insert(KEY, "often");
        assert!(get(&m, 2).is_err());
    }

    #[test]
    fn rope_scaling_kinds() {
        let mut m = base();
        let get = |m: &Metadata| Hyper::new(m, "x", None).rope_scaling(128);
        assert_eq!(get(&m).unwrap().freq_scale, 1.0);
        m.insert("x.rope.scaling.factor", 8.0f32);
        m.insert("x.rope.scaling.type", "linear");
        assert_eq!(get(&m).unwrap().freq_scale, 0.125);
        m.insert("x.rope.scaling.type", "yarn");
        m.insert("x.rope.scaling.yarn_ext_factor", -1.0f32);
        assert_eq!(get(&m).unwrap().yarn.unwrap().ext_factor, 1.0);
        m.insert("x.rope.scaling.type", "none");
        assert_eq!(get(&m).unwrap().freq_scale, 1.0);
        m.insert("x.rope.scaling.type", "elastic");
        assert!(get(&m).unwrap_err().to_string().contains("elastic"));
        m.insert("x.rope.scaling.factor", -1.0f32);
        assert!(get(&m).unwrap_err().to_string().contains("positive"));
    }
}
