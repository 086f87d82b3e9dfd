//! What an app may ask of a generation.

use std::time::Duration;

use super::{Canceller, WeightPrecision};
use crate::sampling::{LogitHook, SamplerOptions};
use crate::speculate::Speculation;

/// How one answer is to be generated.
#[derive(Default)]
pub struct GenerationOptions {
    /// At most this many tokens; `None`: until the model ends or the context is full. 0 only reads the prompt.
    pub max_tokens: Option<usize>,
    /// The answer ends before the first of these strings. At most 64, of 1 to 1024 bytes.
    pub stop: Vec<String>,
    /// How tokens are chosen.
    pub sampler: SamplerOptions,
    /// Ends the answer with what there is after this time, counted from the call.
    pub deadline: Option<Duration>,
    /// Go on behind end-of-generation tokens: for measurements.
    pub ignore_eog: bool,
    /// Cancels this generation from elsewhere.
    pub canceller: Option<Canceller>,
    /// Constraints on the tokens, applied in this order.
    pub hooks: Vec<Box<dyn LogitHook>>,
    /// Guess several tokens and check them in one pass; `None`: as the model was loaded. The answer does not depend on it.
    pub speculation: Option<Speculation>,
    /// Always guess so many tokens, at most [`MAX_DRAFT`](crate::speculate::MAX_DRAFT), whether it pays or not; `None`: as many as pay.
    pub draft_len: Option<usize>,
    /// Which view of a model in nested precision answers; `None`: as the model was loaded. Views are never mixed: what a session has read with another
    /// one is read again.
    pub weight_precision: Option<WeightPrecision>,
}

impl GenerationOptions {
    /// Always the most likely token, at most `max_tokens` of them.
    #[must_use]
    pub fn greedy(max_tokens: usize) -> Self {
        Self { max_tokens: Some(max_tokens), sampler: SamplerOptions::greedy(), ..Self::default() }
    }
}

impl Clone for GenerationOptions {
    fn clone(&self) -> Self {
        Self {
            max_tokens: self.max_tokens,
            stop: self.stop.clone(),
            sampler: self.sampler.clone(),
            deadline: self.deadline,
            ignore_eog: self.ignore_eog,
            canceller: self.canceller.clone(),
            hooks: self.hooks.iter().map(|h| h.fork()).collect(),
            speculation: self.speculation.clone(),
            draft_len: self.draft_len,
            weight_precision: self.weight_precision,
        }
    }
}

impl std::fmt::Debug for GenerationOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GenerationOptions")
            .field("max_tokens", &self.max_tokens)
            .field("stop", &self.stop.len())
            .field("sampler", &self.sampler)
            .field("deadline", &self.deadline)
            .field("ignore_eog", &self.ignore_eog)
            .field("hooks", &self.hooks.len())
            .field("speculation", &self.speculation)
            .field("draft_len", &self.draft_len)
            .field("weight_precision", &self.weight_precision)
            .finish_non_exhaustive()
    }
}

/// What to continue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt {
    /// Text; special tokens are recognised, BOS is added if the model wants it.
    Text(String),
    /// Tokens, as they are.
    Tokens(Vec<u32>),
}

impl From<&str> for Prompt {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Prompt {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<Vec<u32>> for Prompt {
    fn from(tokens: Vec<u32>) -> Self {
        Self::Tokens(tokens)
    }
}

impl From<&[u32]> for Prompt {
    fn from(tokens: &[u32]) -> Self {
        Self::Tokens(tokens.to_vec())
    }
}
