//! What a generation tells while it runs, and what it leaves behind.

use crate::kv::{KvTypes, PageReads};
use crate::memory::{MemoryPressure, ThermalLevel};
use std::time::Duration;

use crate::Error;
use crate::residency::View;
use crate::sampling::TokenInfo;

use super::ViewReason;

/// One event of a generation. Every generation gives exactly one terminal event, and nothing after it.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum GenerationEvent<'a> {
    /// The prompt was accepted.
    Started {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// How many of them need no work because the session has seen them.
        cached_tokens: usize,
    },
    /// A chunk of the prompt was read.
    Prefill {
        /// Tokens read so far, without the cached ones.
        done: usize,
        /// Tokens to read.
        total: usize,
    },
    /// More of the answer: whole characters only, and nothing that could be the beginning of a stop string.
    Text {
        /// The new text; empty only for models without a vocabulary.
        text: &'a str,
        /// The tokens since the last `Text` event. Most often one; more when a character took several.
        tokens: &'a [TokenInfo],
    },
    /// Something happened that changes the answer or its cost and that nobody asked for.
    Notice(Notice),
    /// Terminal: the answer is complete.
    Completed(&'a Completion),
    /// Terminal: the generation failed.
    Failed {
        /// Why.
        error: &'a Error,
    },
    /// Terminal: the generation was cancelled, by a [`Canceller`](super::Canceller), by closing, or by a
    /// [`ControlFlow::Break`](std::ops::ControlFlow::Break) of the event handler.
    Cancelled {
        /// What was done until then.
        stats: &'a GenerationStats,
    },
}

impl GenerationEvent<'_> {
    /// Whether this is the last event of its generation.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        matches!(self, Self::Completed(_) | Self::Failed { .. } | Self::Cancelled { .. })
    }
}

/// What is never silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// The start of the prompt had been read before, but could not be reused.
    PrefixNotReused {
        /// Tokens that are read again.
        tokens: usize,
    },
    /// Memory is scarce, or no longer: the caches of weights and of prefixes change their sizes before the next token. Only speed
    /// depends on it.
    MemoryPressure {
        /// How scarce.
        level: MemoryPressure,
        /// The bytes that they may have together.
        cache_bytes: u64,
    },
    /// Memory is scarce: the draft model was given up. Only speed depends on it.
    DraftReleased {
        /// Bytes that it took.
        bytes: u64,
    },
    /// The policy of the KV cache has forgotten positions: the answer may be another than with all of them.
    Evicted {
        /// How many, in each layer.
        gone: usize,
        /// How many each layer still has.
        kept: usize,
    },
    /// The conversation did not fit into the context: its oldest turns are not part of the prompt any more.
    TurnsDropped {
        /// Messages.
        messages: usize,
    },
    /// The device is hot, or no longer: another number of threads computes from the next token on. Only speed depends on it.
    Heat {
        /// How hot.
        level: ThermalLevel,
        /// Threads that compute.
        threads: usize,
    },
    /// Which view of a model in nested precision goes on from here; told when that was left to the engine.
    View {
        /// The view.
        view: View,
        /// Why.
        reason: ViewReason,
    },
    /// The answer was cut inside of a character; its first bytes are not part of the text.
    IncompleteCharacter,
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FinishReason {
    /// The model ended it with this token.
    Stop {
        /// One of the tokenizer's end-of-generation tokens.
        eog: u32,
    },
    /// A stop string appeared. Neither it nor what follows is part of the text.
    StopString {
        /// Its index in [`GenerationOptions::stop`](super::GenerationOptions::stop).
        index: usize,
    },
    /// `max_tokens` were generated.
    Length,
    /// The context is full: no position is left for the last token.
    ContextFull,
    /// The deadline passed; the text is what there was by then.
    Deadline,
}

impl FinishReason {
    /// The name in reports: `stop`, `stop_string`, `length`, `context_full` or `deadline`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop { .. } => "stop",
            Self::StopString { .. } => "stop_string",
            Self::Length => "length",
            Self::ContextFull => "context_full",
            Self::Deadline => "deadline",
        }
    }
}

/// A finished answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Completion {
    /// All of the text, equal to the texts of the events put together.
    pub text: String,
    /// All generated tokens, without the end-of-generation token. Those of a stop string are among them.
    pub tokens: Vec<TokenInfo>,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// The seed that repeats this answer.
    pub seed: u64,
    /// What it took.
    pub stats: GenerationStats,
}

impl Completion {
    /// The ids of the generated tokens.
    pub fn ids(&self) -> impl Iterator<Item = u32> {
        self.tokens.iter().map(|t| t.id)
    }
}

/// What a generation took.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GenerationStats {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the prompt that were reused from the session's cache.
    pub cached_tokens: usize,
    /// Element types of the KV cache that the answer was computed with.
    pub kv_types: KvTypes,
    /// The view of the weights that the last token was computed with; full, unless the model is in nested precision.
    pub view: View,
    /// Positions that the policy of the cache has forgotten meanwhile.
    pub evicted: usize,
    /// Pages of the KV cache that were read after the first token, where the policy leaves some out.
    pub page_reads: PageReads,
    /// Tokens drawn, the end-of-generation token included.
    pub generated_tokens: usize,
    /// From the call to the first token; waiting for other sessions is included.
    pub time_to_first_token: Option<Duration>,
    /// Time in the forward passes of the prompt.
    pub prefill_time: Duration,
    /// Time in the forward passes after the first token, with sampling.
    pub decode_time: Duration,
    /// Forward passes after that of the prompt.
    pub decode_passes: usize,
    /// Bytes of weights read from storage in these passes; `None` if none are streamed.
    pub decode_flash_bytes: Option<u64>,
    /// Tokens that were guessed.
    pub speculation: SpeculationStats,
    /// From the call to the end.
    pub total_time: Duration,
    /// The most anonymous memory the process was seen to have, in bytes. `None` if the system does not tell.
    pub peak_anon_bytes: Option<u64>,
}

/// Guessed tokens of a generation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpeculationStats {
    /// Tokens that were guessed and checked in a pass.
    pub proposed_tokens: usize,
    /// Those of them that became part of the answer.
    pub accepted_tokens: usize,
}

impl SpeculationStats {
    /// The share of guessed tokens that were right; `None` if none were guessed. Tokens behind a wrong one count as wrong.
    #[must_use]
    #[allow(clippy::cast_precision_loss)] // token counts are small
    pub fn acceptance_rate(&self) -> Option<f64> {
        (self.proposed_tokens > 0).then(|| self.accepted_tokens as f64 / self.proposed_tokens as f64)
    }
}

impl GenerationStats {
    /// Tokens that a decode pass gave on average; `None` without one. 1 without speculation.
    #[must_use]
    #[allow(clippy::cast_precision_loss)]
    pub fn tokens_per_pass(&self) -> Option<f64> {
        let tokens = self.generated_tokens.saturating_sub(1);
        (self.decode_passes > 0).then(|| tokens as f64 / self.decode_passes as f64)
    }

    /// Bytes read from storage for each token of the answer after the first; `None` if nothing is streamed.
    #[must_use]
    #[allow(clippy::cast_precision_loss)]
    pub fn flash_bytes_per_token(&self) -> Option<f64> {
        let tokens = self.generated_tokens.saturating_sub(1);
        self.decode_flash_bytes.filter(|_| tokens > 0).map(|bytes| bytes as f64 / tokens as f64)
    }

    /// Prompt tokens read per second; 0 if none were.
    #[must_use]
    pub fn prefill_tok_s(&self) -> f64 {
        rate(self.prompt_tokens.saturating_sub(self.cached_tokens), self.prefill_time)
    }

    /// Tokens per second after the first one, which belongs to the prompt; 0 if there are none.
    #[must_use]
    pub fn decode_tok_s(&self) -> f64 {
        rate(self.generated_tokens.saturating_sub(1), self.decode_time)
    }
}

#[allow(clippy::cast_precision_loss)] // token counts are small
fn rate(tokens: usize, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { tokens as f64 / time.as_secs_f64() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_leave_out_what_cost_nothing() {
        let stats = GenerationStats {
            prompt_tokens: 30,
            cached_tokens: 10,
            generated_tokens: 5,
            prefill_time: Duration::from_secs(2),
            decode_time: Duration::from_secs(1),
            ..GenerationStats::default()
        };
        assert_eq!((stats.prefill_tok_s(), stats.decode_tok_s()), (10.0, 4.0));
        assert_eq!(GenerationStats::default().decode_tok_s(), 0.0);
    }
}
