//! Why a model cannot draft for another one.

use thiserror::Error;

/// Why speculation was refused when it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SpeculationError {
    /// The two models mean different things by the same token ids.
    #[error("the draft model has another vocabulary: token {id} is {draft} there and {target} in the model")]
    OtherVocabulary {
        /// The first id that differs.
        id: u32,
        /// What it stands for in the model, quoted.
        target: String,
        /// What it stands for in the draft model, quoted.
        draft: String,
    },
    /// One has a vocabulary and the other runs on ids only, or neither has one and they have different numbers of ids.
    #[error("the draft model has another vocabulary: {draft} there and {target} in the model")]
    OtherSize {
        /// The model's.
        target: String,
        /// The draft model's.
        draft: String,
    },
    /// A draft model that has to be streamed is slower than the model it drafts for.
    #[error("the draft model needs {needed} bytes to stay in memory, its share of the budget is {share}")]
    DraftDoesNotFit {
        /// Bytes that it needs: weights, KV cache and buffers.
        needed: u64,
        /// Bytes that it may have.
        share: u64,
    },
    /// Drafting was asked for, but the model was loaded without a draft model, or it was released.
    #[error("there is no draft model: name one when the model is loaded")]
    NoDraftModel,
    /// A draft length that cannot be.
    #[error("a draft of {len} tokens was asked for; at most {limit} can be")]
    DraftTooLong {
        /// Tokens asked for.
        len: usize,
        /// The limit.
        limit: usize,
    },
}
