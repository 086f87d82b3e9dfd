//! The architectures: names, hyperparameters, and where each tensor goes.
//!
//! A new architecture is one line in `ARCHITECTURES`, and its peculiarities as flags there. Keys and tensor names are those of the
//! GGUF format; they are what every reader of such files looks for.

use super::ConvertError;
use super::config::{Config, bad};
use crate::Result;
use pannier_gguf::{Metadata, Value};

/// One architecture.
#[derive(Debug)]
pub(super) struct Architecture {
    /// `general.architecture`.
    pub name: &'static str,
    /// Class names in config.json.
    classes: &'static [&'static str],
    /// Query and key rows are stored in rotated halves, GGUF wants interleaved pairs.
    pub interleave: bool,
    /// Norm weights are stored minus one.
    pub norms_minus_one: bool,
    /// `post_attention_layernorm` stands behind attention, not in front of the feed-forward block.
    pub norm_behind_attention: bool,
    /// The output matrix is always the embedding.
    pub always_tied: bool,
    extra: fn(&mut Keys<'_>) -> Result<()>,
}

const PLAIN: Architecture = Architecture {
    name: "",
    classes: &[],
    interleave: false,
    norms_minus_one: false,
    norm_behind_attention: false,
    always_tied: false,
    extra: |_| Ok(()),
};

static ARCHITECTURES: &[Architecture] = &[
    Architecture {
        name: "llama",
        classes: &["LlamaForCausalLM", "LLaMAForCausalLM", "MistralForCausalLM", "MixtralForCausalLM"],
        interleave: true,
        extra: |keys| keys.llama(),
        ..PLAIN
    },
    Architecture {
        name: "smollm3",
        classes: &["SmolLM3ForCausalLM"],
        interleave: true,
        extra: |keys| keys.llama(),
        ..PLAIN
    },
    Architecture { name: "qwen2", classes: &["Qwen2ForCausalLM"], ..PLAIN },
    Architecture {
        name: "qwen2moe",
        classes: &["Qwen2MoeForCausalLM"],
        extra: |keys| keys.experts(),
        ..PLAIN
    },
    Architecture { name: "qwen3", classes: &["Qwen3ForCausalLM"], ..PLAIN },
    Architecture {
        name: "qwen3moe",
        classes: &["Qwen3MoeForCausalLM"],
        extra: |keys| keys.experts(),
        ..PLAIN
    },
    Architecture {
        name: "qwen35",
        classes: &["Qwen3_5ForConditionalGeneration", "Qwen3_5ForCausalLM"],
        norms_minus_one: true,
        norm_behind_attention: true,
        extra: |keys| keys.linear_attention(),
        ..PLAIN
    },
    Architecture {
        name: "qwen35moe",
        classes: &["Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeForCausalLM"],
        norms_minus_one: true,
        norm_behind_attention: true,
        extra: |keys| {
            keys.experts()?;
            keys.linear_attention()
        },
        ..PLAIN
    },
    Architecture {
        name: "gemma2",
        classes: &["Gemma2ForCausalLM"],
        norms_minus_one: true,
        norm_behind_attention: true,
        always_tied: true,
        extra: |keys| keys.gemma(),
        ..PLAIN
    },
    Architecture {
        name: "gemma3",
        classes: &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"],
        norms_minus_one: true,
        norm_behind_attention: true,
        extra: |keys| keys.gemma(),
        ..PLAIN
    },
    Architecture { name: "phi3", classes: &["Phi3ForCausalLM"], extra: |keys| keys.phi3(), ..PLAIN },
    Architecture {
        name: "gpt-oss",
        classes: &["GptOssForCausalLM"],
        norm_behind_attention: true,
        extra: |keys| keys.gpt_oss(),
        ..PLAIN
    },
];

/// The architecture of a checkpoint.
pub(super) fn find(config: &Config) -> Result<&'static Architecture> {
    let named: Vec<&str> = config.architectures().collect();
    let known = |name: &&str| ARCHITECTURES.iter().find(|architecture| architecture.classes.contains(name));
    named.iter().find_map(known).ok_or_else(|| {
        let classes = ARCHITECTURES.iter().flat_map(|architecture| architecture.classes);
        ConvertError::UnknownArchitecture {
            found: named.join(", ").chars().take(120).collect(),
            known: classes.copied().collect::<Vec<_>>().join(", "),
        }
        .into()
    })
}

/// Writes keys under the architecture's name.
struct Keys<'a> {
    architecture: &'static str,
    config: &'a Config,
    metadata: &'a mut Metadata,
}

impl Keys<'_> {
    fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.metadata.insert(format!("{}.{key}", self.architecture), value);
    }

    fn count(&mut self, key: &str, from: &[&str]) -> Result<()> {
        // Counts were checked to fit u32.
        let value = self.config.count(from)? as u32;
        self.set(key, value);
        Ok(())
    }

    fn opt_count(&mut self, key: &str, from: &[&str]) -> Result<()> {
        if let Some(value) = self.config.opt_count(from)? {
            self.set(key, value as u32);
        }
        Ok(())
    }

    fn opt_float(&mut self, key: &str, from: &[&str]) -> Result<()> {
        if let Some(value) = self.config.opt_float(from)? {
            self.set(key, value);
        }
        Ok(())
    }

    fn common(&mut self) -> Result<()> {
        self.count("context_length", &["max_position_embeddings", "n_ctx", "n_positions"])?;
        self.count("embedding_length", &["hidden_size", "n_embd"])?;
        self.count("block_count", &["num_hidden_layers", "n_layer"])?;
        self.opt_count("feed_forward_length", &["intermediate_size"])?;
        self.count("attention.head_count", &["num_attention_heads", "n_head"])?;
        self.count("attention.head_count_kv", &["num_key_value_heads", "num_attention_heads", "n_head"])?;
        self.opt_count("attention.key_length", &["head_dim"])?;
        self.opt_count("attention.value_length", &["head_dim"])?;
        self.opt_float("attention.layer_norm_rms_epsilon", &["rms_norm_eps"])?;
        self.opt_count("expert_count", &["num_local_experts", "num_experts"])?;
        self.opt_count("expert_used_count", &["num_experts_per_tok", "num_experts_per_token"])?;
        if let Some(theta) = self.config.rope_theta()? {
            self.set("rope.freq_base", theta);
        }
        let scaling = self.config.rope_type().to_owned();
        if matches!(scaling.as_str(), "yarn" | "linear" | "longrope" | "su") {
            self.set("rope.scaling.type", if scaling == "su" { "longrope" } else { scaling.as_str() });
            if let Some(factor) = self.config.rope_float("factor")? {
                self.set("rope.scaling.factor", factor);
            }
        }
        if scaling == "yarn" {
            if let Some(length) = self.config.rope_count("original_max_position_embeddings")? {
                self.set("rope.scaling.original_context_length", length as u32);
            }
            for (key, from) in [("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")] {
                if let Some(beta) = self.config.rope_float(from)? {
                    self.set(&format!("rope.scaling.{key}"), beta);
                }
            }
        }
        Ok(())
    }

    fn llama(&mut self) -> Result<()> {
        self.count("vocab_size", &["vocab_size"])?;
        let width = self.config.head_dim()? as u32;
        self.set("rope.dimension_count", width);
        Ok(())
    }

    fn experts(&mut self) -> Result<()> {
        self.opt_count("expert_feed_forward_length", &["moe_intermediate_size"])?;
        self.opt_count("expert_shared_feed_forward_length", &["shared_expert_intermediate_size"])
    }

    fn gemma(&mut self) -> Result<()> {
        let width = self.config.opt_count(&["head_dim"])?.unwrap_or(256) as u32;
        self.set("attention.key_length", width);
        self.set("attention.value_length", width);
        self.opt_float("attn_logit_softcapping", &["attn_logit_softcapping"])?;
        self.opt_float("final_logit_softcapping", &["final_logit_softcapping"])?;
        self.opt_count("attention.sliding_window", &["sliding_window"])?;
        if self.architecture == "gemma3" && self.config.rope_theta()?.is_none() {
            self.set("rope.freq_base", 1_000_000f32);
        }
        Ok(())
    }

    fn phi3(&mut self) -> Result<()> {
        let original = match self.config.rope_count("original_max_position_embeddings")? {
            Some(length) => Some(length),
            None => self.config.opt_count(&["original_max_position_embeddings"])?,
        };
        let context = self.config.count(&["max_position_embeddings"])?;
        let original = original.unwrap_or(context).max(1);
        self.set("rope.scaling.original_context_length", original as u32);
        let share = self.config.rope_float("partial_rotary_factor")?;
        let share = share
            .map_or_else(|| self.config.opt_float(&["partial_rotary_factor"]), |share| Ok(Some(share)))?;
        let width = self.config.head_dim()? as f32 * share.unwrap_or(1.0);
        self.set("rope.dimension_count", width as u32);
        let window = self.config.opt_count(&["sliding_window"])?.unwrap_or(0) as u32;
        self.set("attention.sliding_window", window);
        if self.config.rope("long_factor").is_some() {
            let scale = context as f64 / original as f64;
            let factor = match self.config.rope_type() {
                _ if scale <= 1.0 => 1.0,
                "yarn" => 0.1 * libm::log(scale) + 1.0,
                _ => libm::sqrt(1.0 + libm::log(scale) / libm::log(original as f64)),
            };
            self.set("rope.scaling.attn_factor", factor as f32);
        }
        Ok(())
    }

    fn gpt_oss(&mut self) -> Result<()> {
        self.count("attention.sliding_window", &["sliding_window"])?;
        self.count("expert_feed_forward_length", &["intermediate_size"])
    }

    fn linear_attention(&mut self) -> Result<()> {
        let config = self.config;
        self.count("ssm.conv_kernel", &["linear_conv_kernel_dim"])?;
        self.count("ssm.state_size", &["linear_key_head_dim"])?;
        self.count("ssm.group_count", &["linear_num_key_heads"])?;
        self.count("ssm.time_step_rank", &["linear_num_value_heads"])?;
        let inner = config.count(&["linear_value_head_dim"])? * config.count(&["linear_num_value_heads"])?;
        let inner = u32::try_from(inner)
            .map_err(|_| bad("linear_value_head_dim", format!("gives a width of {inner}")))?;
        self.set("ssm.inner_size", inner);
        let interval = config.opt_count(&["full_attention_interval"])?.unwrap_or(4) as u32;
        self.set("full_attention_interval", interval);
        let share = config.rope_float("partial_rotary_factor")?;
        let share =
            share.map_or_else(|| config.opt_float(&["partial_rotary_factor"]), |share| Ok(Some(share)))?;
        let width = config.head_dim()? as f32 * share.unwrap_or(0.25);
        self.set("rope.dimension_count", width as u32);
        let mut sections: Vec<i32> = match config.rope("mrope_section").and_then(|value| value.as_array()) {
            Some(list) => list.iter().filter_map(|value| i32::try_from(value.as_i64()?).ok()).collect(),
            None => vec![11, 11, 10],
        };
        sections.resize(4, 0);
        self.set("rope.dimension_sections", sections);
        Ok(())
    }
}

/// Writes all hyperparameters.
pub(super) fn write_hyperparameters(
    architecture: &Architecture,
    config: &Config,
    metadata: &mut Metadata,
) -> Result<()> {
    let mut keys = Keys { architecture: architecture.name, config, metadata };
    keys.common()?;
    (architecture.extra)(&mut keys)
}
