//! What a model will take.

use pannier::lifecycle::Estimate;

/// What loading a model takes, told before it is loaded. All sizes in bytes.
#[derive(Debug, Clone, PartialEq, uniffi::Record)]
pub struct PlanReport {
    /// Whether it fits the budget.
    pub fits: bool,
    /// The budget; absent: none.
    pub budget_bytes: Option<u64>,
    /// Tokens of the context.
    pub context: u64,
    /// The longest context that fits, up to that of the training; 0 if none does.
    pub max_context: u64,
    /// Weights in memory. Those that are pages of the file do not count against the budget.
    pub resident_bytes: u64,
    /// Read from flash for each token of an answer.
    pub streamed_bytes_per_token: u64,
    /// The KV cache with a full context.
    pub kv_bytes: u64,
    /// Buffers of a pass.
    pub scratch_bytes: u64,
    /// The most anonymous memory: what the budget must hold.
    pub peak_bytes: u64,
    /// Expected tokens per second of an answer, where it can be told.
    pub predicted_decode_tok_s: Option<f64>,
    /// Expected tokens per second while reading a prompt, where it can be told.
    pub predicted_prefill_tok_s: Option<f64>,
    /// What bounds the speed, where it can be told.
    pub bound_by: Option<String>,
    /// Advice in words.
    pub notes: Vec<String>,
}

impl From<Estimate> for PlanReport {
    fn from(e: Estimate) -> Self {
        Self {
            fits: e.fits,
            budget_bytes: e.budget_bytes,
            context: e.context as u64,
            max_context: e.max_context as u64,
            resident_bytes: e.file_backed_bytes,
            streamed_bytes_per_token: 0,
            kv_bytes: e.kv_bytes,
            scratch_bytes: e.scratch_bytes,
            peak_bytes: e.peak_bytes,
            predicted_decode_tok_s: None,
            predicted_prefill_tok_s: None,
            bound_by: None,
            notes: e.notes,
        }
    }
}
