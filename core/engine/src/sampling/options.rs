//! What an app may ask of the sampler.

use std::collections::BTreeMap;

use super::SamplingError;

/// The most entries a logit bias may have: more than any real use, and small enough to apply on every token.
pub const MAX_LOGIT_BIAS: usize = 65_536;
/// The most alternatives that can be reported per token.
pub const MAX_TOP_LOGPROBS: usize = 100;

/// How tokens are chosen. The order of the steps is documented in [the module](crate::sampling).
#[derive(Debug, Clone, PartialEq)]
pub struct SamplerOptions {
    /// 0 is greedy; 1 is the model's own distribution; higher is flatter.
    pub temperature: f32,
    /// Keep the `top_k` most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Keep the smallest set of most likely tokens whose mass reaches `top_p`; 1 keeps all.
    pub top_p: f32,
    /// Drop tokens less likely than `min_p` times the most likely one; 0 keeps all.
    pub min_p: f32,
    /// Divides positive logits (multiplies negative ones) of tokens in the window; 1 is off (Keskar et al., "CTRL", 2019).
    pub repetition_penalty: f32,
    /// Subtracted once per occurrence in the window; 0 is off.
    pub frequency_penalty: f32,
    /// Subtracted once if the token occurs in the window; 0 is off.
    pub presence_penalty: f32,
    /// How many of the last tokens, prompt included, the three penalties look at; `usize::MAX` is all of them.
    pub penalty_window: usize,
    /// Added to the logits of these tokens. Minus infinity bans a token.
    pub logit_bias: BTreeMap<u32, f32>,
    /// Seed of the draws. `None`: the session picks one and reports it, so that any answer can be repeated.
    pub seed: Option<u64>,
    /// How many alternatives with their log-probabilities to report for each token.
    pub top_logprobs: usize,
}

impl Default for SamplerOptions {
    fn default() -> Self {
        Self {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            penalty_window: 64,
            logit_bias: BTreeMap::new(),
            seed: None,
            top_logprobs: 0,
        }
    }
}

impl SamplerOptions {
    /// Always the most likely token.
    #[must_use]
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// The model's own distribution: temperature 1, no filter.
    #[must_use]
    pub fn unfiltered() -> Self {
        Self { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, ..Self::default() }
    }

    /// Checks every option against its range, and token ids against the vocabulary.
    ///
    /// # Errors
    /// [`SamplingError::InvalidOption`] or [`SamplingError::UnknownToken`], naming the first offender.
    pub fn validate(&self, vocab: usize) -> Result<(), SamplingError> {
        let check = |ok: bool, option, value: f32, range| {
            if ok {
                Ok(())
            } else {
                Err(SamplingError::InvalidOption { option, value: value.to_string(), range })
            }
        };
        let t = self.temperature;
        check(t.is_finite() && t >= 0.0, "temperature", t, "a finite number, 0 or more")?;
        check(self.top_p > 0.0 && self.top_p <= 1.0, "top_p", self.top_p, "above 0 and at most 1")?;
        check((0.0..=1.0).contains(&self.min_p), "min_p", self.min_p, "from 0 to 1")?;
        let r = self.repetition_penalty;
        check(r.is_finite() && r > 0.0, "repetition_penalty", r, "a finite number above 0")?;
        let f = self.frequency_penalty;
        check(f.is_finite(), "frequency_penalty", f, "a finite number")?;
        check(
            self.presence_penalty.is_finite(),
            "presence_penalty",
            self.presence_penalty,
            "a finite number",
        )?;
        if self.top_logprobs > MAX_TOP_LOGPROBS {
            let value = self.top_logprobs.to_string();
            return Err(SamplingError::InvalidOption { option: "top_logprobs", value, range: "at most 100" });
        }
        if self.logit_bias.len() > MAX_LOGIT_BIAS {
            let value = format!("{} entries", self.logit_bias.len());
            return Err(SamplingError::InvalidOption {
                option: "logit_bias",
                value,
                range: "at most 65536 entries",
            });
        }
        for (&id, &bias) in &self.logit_bias {
            check(
                bias.is_finite() || bias == f32::NEG_INFINITY,
                "logit_bias",
                bias,
                "finite, or minus infinity to ban a token",
            )?;
            if usize::try_from(id).map_or(true, |i| i >= vocab) {
                return Err(SamplingError::UnknownToken { option: "logit_bias", id, vocab });
            }
        }
        Ok(())
    }

    /// Whether any of the penalties changes a logit.
    #[must_use]
    #[allow(clippy::float_cmp)] // exactly the neutral values
    pub fn penalises(&self) -> bool {
        self.penalty_window > 0
            && (self.repetition_penalty != 1.0
                || self.frequency_penalty != 0.0
                || self.presence_penalty != 0.0)
    }
}
