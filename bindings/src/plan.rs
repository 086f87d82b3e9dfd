//! What a model will take.

use pannier::plan::{Forecast, Plan};

/// What guessing tokens is expected to bring on a middling phone, if 70% of the guesses are right.
#[derive(Debug, Clone, Copy, PartialEq, uniffi::Record)]
pub struct SpeculationForecast {
    /// Tokens to guess for a pass; 0 if guessing does not pay.
    pub draft_length: u32,
    /// Tokens that a pass gives.
    pub tokens_per_pass: f64,
    /// Tokens per second of an answer.
    pub decode_tok_s: f64,
    /// How many times as fast as one token per pass.
    pub gain: f64,
}

impl From<Forecast> for SpeculationForecast {
    fn from(f: Forecast) -> Self {
        Self {
            draft_length: u32::try_from(f.draft_len).unwrap_or(u32::MAX),
            tokens_per_pass: f.tokens_per_pass,
            decode_tok_s: f.decode_tok_s,
            gain: f.gain,
        }
    }
}

/// What loading a model takes, told before it is loaded. All sizes in bytes.
#[derive(Debug, Clone, PartialEq, uniffi::Record)]
pub struct PlanReport {
    /// Whether it fits the budget.
    pub fits: bool,
    /// The budget it was made for; more than any machine has: none.
    pub budget_bytes: u64,
    /// Tokens of the context.
    pub context: u64,
    /// The longest context that fits, up to that of the training; 0 if none does.
    pub max_context: u64,
    /// Weights in memory: mapped, pinned, or in slots for experts.
    pub resident_bytes: u64,
    /// Read from flash for each token of an answer.
    pub streamed_bytes_per_token: u64,
    /// The KV cache with a full context.
    pub kv_bytes: u64,
    /// Buffers of a pass.
    pub scratch_bytes: u64,
    /// What the draft model takes of the budget: weights, KV cache and buffers; 0 without one.
    pub draft_bytes: u64,
    /// The most anonymous memory: what the budget must hold.
    pub peak_bytes: u64,
    /// The most clean pages of files: the system takes them back when it needs them.
    pub file_backed_bytes: u64,
    /// Expected tokens per second of an answer, on a middling phone.
    pub predicted_decode_tok_s: f64,
    /// Expected tokens per second while reading a prompt, on a middling phone.
    pub predicted_prefill_tok_s: f64,
    /// What guesses are expected to bring: those of the draft model, or those of n-grams, which cost nothing, without one.
    pub speculation: SpeculationForecast,
    /// What bounds the speed: memory bandwidth, flash bandwidth, or compute.
    pub bound_by: String,
    /// Advice in words.
    pub notes: Vec<String>,
}

impl From<Plan> for PlanReport {
    fn from(p: Plan) -> Self {
        Self {
            fits: p.fits,
            budget_bytes: p.budget,
            context: p.context as u64,
            max_context: p.max_context as u64,
            resident_bytes: p.resident_bytes,
            streamed_bytes_per_token: p.streamed_bytes_per_token,
            kv_bytes: p.kv_bytes,
            scratch_bytes: p.scratch_bytes,
            draft_bytes: p.draft.bytes(),
            peak_bytes: p.peak_bytes,
            file_backed_bytes: p.file_backed_bytes,
            predicted_decode_tok_s: p.decode_tok_s,
            predicted_prefill_tok_s: p.prefill_tok_s,
            speculation: p.guessing.into(),
            bound_by: p.bound_by.name().into(),
            notes: p.notes,
        }
    }
}
