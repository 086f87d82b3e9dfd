//! Hyperparameters, read from the metadata with errors that name the key.

use crate::{Error, Result};
use pannier_gguf::{Metadata, OneOrMany};
use pannier_kernels::Yarn;

/// No model has more layers; a file that says so would only make us allocate tables.
const MAX_LAYERS: usize = 4096;
/// No model has wider rows than this.
const MAX_WIDTH: usize = 1 << 20;

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

    /// What all transformers have.
    ///
    /// # Errors
    /// A key is absent or its value impossible.
    pub fn dims(&self) -> Result<Dims> {
        let layers = self.count("block_count", MAX_LAYERS)?;
        let embd = self.count("embedding_length", MAX_WIDTH)?;
        let heads = self.count("attention.head_count", MAX_WIDTH)?;
        let kv_heads = self.count_or("attention.head_count_kv", heads, MAX_WIDTH)?;
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
            ff: self.count("feed_forward_length", MAX_WIDTH)?,
            eps: self.eps()?,
            trained,
            context: self.context.unwrap_or(trained),
        })
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
        const NAME: &str = "rope.dimension_count";
        let rotated = self.count_or(NAME, k_dim, MAX_WIDTH)?;
        if rotated > k_dim || !rotated.is_multiple_of(2) {
            return Err(self.bad(NAME, rotated, "it must be even and at most the length of a key"));
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
