//! Generations: what is asked for, and what is told meanwhile.

use std::sync::Arc;
use std::time::Duration;

use pannier::sampling::{SamplerOptions, TokenInfo};
use pannier::session::{self, Completion, GenerationOptions, GenerationStats, Notice};

use crate::{
    CancelHandle, EvictionReport, KvType, PannierError, PrecisionChoice, PressureLevel, SpeculationChoice,
    ThermalLevel, WeightView, WeightViewReason,
};

/// How an answer is to be generated. What is absent is the engine's default.
#[derive(Debug, Clone, Default, uniffi::Record)]
pub struct GenerationSettings {
    /// At most this many tokens; absent: until the model ends or the context is full.
    #[uniffi(default = None)]
    pub max_tokens: Option<u32>,
    /// The answer ends before the first of these strings. At most 64, of 1 to 1024 bytes.
    #[uniffi(default = [])]
    pub stop: Vec<String>,
    /// 0 always takes the most likely token; 1 is the model's own distribution.
    #[uniffi(default = None)]
    pub temperature: Option<f32>,
    /// Keep the most likely tokens; 0 keeps all.
    #[uniffi(default = None)]
    pub top_k: Option<u32>,
    /// Keep the smallest set of tokens that has this probability; 1 keeps all.
    #[uniffi(default = None)]
    pub top_p: Option<f32>,
    /// Drop tokens less likely than this share of the most likely one; 0 keeps all.
    #[uniffi(default = None)]
    pub min_p: Option<f32>,
    /// Makes what was said lately less likely; 1 is off.
    #[uniffi(default = None)]
    pub repetition_penalty: Option<f32>,
    /// Repeats an answer; absent: another one each time.
    #[uniffi(default = None)]
    pub seed: Option<u64>,
    /// How many alternatives to report for each token.
    #[uniffi(default = None)]
    pub top_logprobs: Option<u32>,
    /// Ends the answer with what there is after so many milliseconds.
    #[uniffi(default = None)]
    pub deadline_ms: Option<u64>,
    /// Which view of a model in nested precision answers; absent: as the model was loaded.
    #[uniffi(default = None)]
    pub precision: Option<PrecisionChoice>,
    /// Where guessed tokens come from; absent: as the model was loaded. The answer does not depend on it.
    #[uniffi(default = None)]
    pub speculation: Option<SpeculationChoice>,
    /// Always guess so many tokens, at most 8, whether it pays or not; absent: as many as pay.
    #[uniffi(default = None)]
    pub draft_length: Option<u32>,
}

impl GenerationSettings {
    pub(crate) fn into_options(self, cancel: &Arc<CancelHandle>) -> GenerationOptions {
        let d = SamplerOptions::default();
        GenerationOptions {
            max_tokens: self.max_tokens.map(|n| n as usize),
            stop: self.stop,
            sampler: SamplerOptions {
                temperature: self.temperature.unwrap_or(d.temperature),
                top_k: self.top_k.map_or(d.top_k, |n| n as usize),
                top_p: self.top_p.unwrap_or(d.top_p),
                min_p: self.min_p.unwrap_or(d.min_p),
                repetition_penalty: self.repetition_penalty.unwrap_or(d.repetition_penalty),
                seed: self.seed,
                top_logprobs: self.top_logprobs.map_or(d.top_logprobs, |n| n as usize),
                ..d
            },
            deadline: self.deadline_ms.map(Duration::from_millis),
            weight_precision: self.precision.map(Into::into),
            speculation: self.speculation.map(Into::into),
            draft_len: self.draft_length.map(|n| n as usize),
            canceller: Some(cancel.generation.clone()),
            ..GenerationOptions::default()
        }
    }
}

/// A token with its probability.
#[derive(Debug, Clone, PartialEq, uniffi::Record)]
pub struct TokenChoice {
    /// The token.
    pub id: u32,
    /// Natural logarithm of its probability.
    pub logprob: f32,
}

/// A token of the answer with the model's own opinion of it.
#[derive(Debug, Clone, PartialEq, uniffi::Record)]
pub struct TokenReport {
    /// The token.
    pub id: u32,
    /// Natural logarithm of its probability.
    pub logprob: f32,
    /// Probability of the most likely token minus that of the second.
    pub margin: f32,
    /// Entropy of the distribution in nats.
    pub entropy: f32,
    /// The most likely tokens, as many as were asked for.
    pub top: Vec<TokenChoice>,
}

impl From<&TokenInfo> for TokenReport {
    fn from(t: &TokenInfo) -> Self {
        Self {
            id: t.id,
            logprob: t.logprob,
            margin: t.margin,
            entropy: t.entropy,
            top: t.top.iter().map(|&(id, logprob)| TokenChoice { id, logprob }).collect(),
        }
    }
}

/// What a generation took.
#[derive(Debug, Clone, PartialEq, uniffi::Record)]
pub struct Stats {
    /// Tokens of the prompt, with the history.
    pub prompt_tokens: u64,
    /// Tokens of the prompt that were not read again.
    pub cached_tokens: u64,
    /// Tokens of the answer.
    pub generated_tokens: u64,
    /// From the call to the first token; absent if there was none.
    pub time_to_first_token_ms: Option<f64>,
    /// From the call to the end.
    pub total_ms: f64,
    /// Prompt tokens read per second; 0 if none were.
    pub prefill_tok_s: f64,
    /// Tokens per second after the first; 0 if there are none.
    pub decode_tok_s: f64,
    /// The most anonymous memory the process was seen to have; absent where the system does not tell.
    pub peak_anon_bytes: Option<u64>,
    /// Element types of the KV cache; absent where they have no name here.
    pub kv_type: Option<KvType>,
    /// Positions that the policy of the KV cache has forgotten meanwhile.
    pub evicted: u64,
    /// The view of the weights that the last token was computed with.
    pub view: WeightView,
    /// Tokens that were guessed and checked in a pass.
    pub proposed_tokens: u64,
    /// Those of them that became part of the answer.
    pub accepted_tokens: u64,
    /// The share of guessed tokens that were right, from 0 to 1; absent if none were guessed. Tokens behind a wrong one count as wrong.
    pub acceptance_rate: Option<f64>,
    /// Tokens that a pass gave on average, after the first one; 1 without guesses; absent if there was no such pass.
    pub tokens_per_pass: Option<f64>,
    /// Bytes of weights read from flash for each token of the answer after the first; absent if nothing is streamed.
    pub flash_bytes_per_token: Option<f64>,
}

impl From<&GenerationStats> for Stats {
    fn from(s: &GenerationStats) -> Self {
        Self {
            prompt_tokens: s.prompt_tokens as u64,
            cached_tokens: s.cached_tokens as u64,
            generated_tokens: s.generated_tokens as u64,
            time_to_first_token_ms: s.time_to_first_token.map(|d| d.as_secs_f64() * 1e3),
            total_ms: s.total_time.as_secs_f64() * 1e3,
            prefill_tok_s: s.prefill_tok_s(),
            decode_tok_s: s.decode_tok_s(),
            peak_anon_bytes: s.peak_anon_bytes,
            kv_type: KvType::convert(s.kv_types),
            evicted: s.evicted as u64,
            view: s.view.into(),
            proposed_tokens: s.speculation.proposed_tokens as u64,
            accepted_tokens: s.speculation.accepted_tokens as u64,
            acceptance_rate: s.speculation.acceptance_rate(),
            tokens_per_pass: s.tokens_per_pass(),
            flash_bytes_per_token: s.flash_bytes_per_token(),
        }
    }
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, uniffi::Enum)]
pub enum FinishReason {
    /// The model ended it.
    Stop,
    /// A stop string appeared.
    StopString,
    /// As many tokens as were asked for.
    Length,
    /// The context is full.
    ContextFull,
    /// The deadline passed.
    Deadline,
}

impl From<session::FinishReason> for FinishReason {
    fn from(reason: session::FinishReason) -> Self {
        match reason {
            session::FinishReason::StopString { .. } => Self::StopString,
            session::FinishReason::Length => Self::Length,
            session::FinishReason::ContextFull => Self::ContextFull,
            session::FinishReason::Deadline => Self::Deadline,
            _ => Self::Stop,
        }
    }
}

/// Who answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, uniffi::Enum)]
pub enum AnswerSource {
    /// The model on this device.
    OnDevice,
    /// A model in the cloud, which the app configured and allowed.
    Cloud,
}

/// A finished answer.
#[derive(Debug, Clone, PartialEq, uniffi::Record)]
pub struct Answer {
    /// All of the text.
    pub text: String,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// The seed that repeats it.
    pub seed: u64,
    /// Who answered.
    pub source: AnswerSource,
    /// Estimated probability that the answer is right, from 0 to 1; absent where nobody can tell.
    pub confidence: Option<f64>,
    /// What it took.
    pub stats: Stats,
}

impl From<&Completion> for Answer {
    fn from(c: &Completion) -> Self {
        Self {
            text: c.text.clone(),
            finish_reason: c.finish_reason.into(),
            seed: c.seed,
            source: AnswerSource::OnDevice,
            confidence: None,
            stats: (&c.stats).into(),
        }
    }
}

/// What is never silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, uniffi::Enum)]
pub enum GenerationNotice {
    /// The start of the prompt had been read before, but could not be reused.
    PrefixNotReused {
        /// Tokens that are read again.
        tokens: u64,
    },
    /// Memory is scarce, or no longer: the cache of weights changes its size before the next token. Only speed depends on it.
    MemoryPressure {
        /// How scarce.
        level: PressureLevel,
        /// The size that the cache will have.
        cache_bytes: u64,
    },
    /// Memory is scarce: the draft model was given up until the model is loaded again. Only speed depends on it.
    DraftReleased {
        /// Bytes of the budget that it took.
        bytes: u64,
    },
    /// The device is hot, or no longer: another number of threads computes from the next token on. Only speed depends on it.
    Heat {
        /// How hot.
        level: ThermalLevel,
        /// Threads that compute.
        threads: u32,
    },
    /// The policy of the KV cache has forgotten positions: the answer may be another than with all of them.
    Evicted {
        /// What, in each layer.
        eviction: EvictionReport,
    },
    /// The conversation did not fit into the context: its oldest turns left the history.
    TurnsDropped {
        /// Messages.
        messages: u64,
    },
    /// Which view of a model in nested precision goes on from here, where that was left to the engine.
    ViewChosen {
        /// The view.
        view: WeightView,
        /// Why.
        reason: WeightViewReason,
    },
    /// The answer was cut inside of a character; its first bytes are not part of the text.
    IncompleteCharacter,
    /// Something that this version has no word for.
    Other,
}

impl From<Notice> for GenerationNotice {
    fn from(notice: Notice) -> Self {
        match notice {
            Notice::PrefixNotReused { tokens } => Self::PrefixNotReused { tokens: tokens as u64 },
            Notice::MemoryPressure { level, cache_bytes } => {
                Self::MemoryPressure { level: level.into(), cache_bytes }
            }
            Notice::DraftReleased { bytes } => Self::DraftReleased { bytes },
            Notice::Heat { level, threads } => {
                Self::Heat { level: level.into(), threads: u32::try_from(threads).unwrap_or(u32::MAX) }
            }
            Notice::Evicted { gone, kept } => {
                Self::Evicted { eviction: EvictionReport { gone: gone as u64, kept: kept as u64 } }
            }
            Notice::TurnsDropped { messages } => Self::TurnsDropped { messages: messages as u64 },
            Notice::View { view, reason } => Self::ViewChosen { view: view.into(), reason: reason.into() },
            Notice::IncompleteCharacter => Self::IncompleteCharacter,
            _ => Self::Other,
        }
    }
}

/// One event of a generation. Exactly one of the last three ends it.
#[derive(Debug, Clone, uniffi::Enum)]
pub enum GenerationEvent {
    /// The prompt was accepted.
    Started {
        /// Tokens of the prompt.
        prompt_tokens: u64,
        /// How many of them need not be read again.
        cached_tokens: u64,
    },
    /// A part of the prompt was read.
    Prefill {
        /// Tokens read so far, without the cached ones.
        done: u64,
        /// Tokens to read.
        total: u64,
    },
    /// More of the answer; whole characters only.
    Text {
        /// The new text.
        text: String,
        /// The tokens since the last such event.
        tokens: Vec<TokenReport>,
    },
    /// Something happened that changes the answer or its cost and that nobody asked for.
    Notice {
        /// What.
        notice: GenerationNotice,
    },
    /// The answer is complete.
    Completed {
        /// The answer.
        answer: Answer,
    },
    /// The generation failed.
    Failed {
        /// Why.
        error: PannierError,
    },
    /// The generation was cancelled.
    Cancelled {
        /// What was done until then.
        stats: Stats,
    },
}

impl GenerationEvent {
    /// `None` for an event that this version has no word for.
    pub(crate) fn convert(event: &session::GenerationEvent<'_>) -> Option<Self> {
        use session::GenerationEvent as E;
        Some(match event {
            E::Started { prompt_tokens, cached_tokens } => {
                Self::Started { prompt_tokens: *prompt_tokens as u64, cached_tokens: *cached_tokens as u64 }
            }
            E::Prefill { done, total } => Self::Prefill { done: *done as u64, total: *total as u64 },
            E::Text { text, tokens } => {
                Self::Text { text: (*text).to_owned(), tokens: tokens.iter().map(Into::into).collect() }
            }
            E::Notice(notice) => Self::Notice { notice: (*notice).into() },
            E::Completed(completion) => Self::Completed { answer: (*completion).into() },
            E::Failed { error } => Self::Failed { error: (*error).into() },
            E::Cancelled { stats } => Self::Cancelled { stats: (*stats).into() },
            _ => return None,
        })
    }
}

/// Hears the events of a generation, one call per event, on the generation's thread. It may take its time: only its own
/// generation waits.
#[uniffi::export(callback_interface)]
pub trait TokenSink: Send + Sync {
    /// An event. After one of the last three kinds comes no other.
    fn on_event(&self, event: GenerationEvent);
}
