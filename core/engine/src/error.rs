//! The one error type of the engine: what, where, and the limit.

use crate::memory::Category;
use std::path::PathBuf;

/// The result of this crate's calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong.
///
/// Names and keys may come from an untrusted file; they are shown quoted and escaped, so that a message is always one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    // ---- the model file
    /// The file is not a usable GGUF file.
    #[error(transparent)]
    Gguf(#[from] pannier_gguf::Error),
    /// No file of `model/arch/` knows this architecture.
    #[error("architecture {name:?} is not supported; supported: {supported}")]
    UnsupportedArchitecture {
        /// The value of `general.architecture`.
        name: String,
        /// The names that are.
        supported: String,
    },
    /// A tensor is stored in a type that no kernel reads.
    #[error("tensor {tensor:?} has the type {ty}, which is not supported")]
    UnsupportedType {
        /// The tensor.
        tensor: String,
        /// The name of its type.
        ty: String,
    },
    /// The architecture is known, but not in this variant.
    #[error("{what} is not supported")]
    Unsupported {
        /// The variant.
        what: String,
    },
    /// A hyperparameter that no model of this architecture can have.
    #[error("key {key:?} is {value}: {reason}")]
    BadHyperparameter {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// Why it cannot be.
        reason: &'static str,
    },
    /// A tensor that the architecture needs is absent.
    #[error("tensor {name:?} is missing (expected with the shape {expected:?})")]
    MissingTensor {
        /// The tensor.
        name: String,
        /// The shape it must have, fastest dimension first.
        expected: Vec<u64>,
    },
    /// A tensor has another shape than the hyperparameters say.
    #[error("tensor {name:?} has the shape {found:?}, expected {expected:?}")]
    TensorShape {
        /// The tensor.
        name: String,
        /// The shape it must have, fastest dimension first.
        expected: Vec<u64>,
        /// The shape it has.
        found: Vec<u64>,
    },

    // ---- memory
    /// The memory budget does not allow this.
    #[error("{category} needs {needed} bytes, but only {available} of the budget of {budget} bytes are left")]
    OutOfBudget {
        /// What it was for.
        category: Category,
        /// Bytes asked for.
        needed: u64,
        /// Bytes left.
        available: u64,
        /// The whole budget.
        budget: u64,
    },
    /// No way to run this model keeps the budget.
    #[error("{}", plan.notes.join("; "))]
    DoesNotFit {
        /// What was tried, and what would fit.
        plan: Box<crate::plan::Plan>,
    },
    /// The operating system gave no memory.
    #[error("the system has no {bytes} bytes of memory for {category}")]
    OutOfMemory {
        /// What it was for.
        category: Category,
        /// Bytes asked for.
        bytes: u64,
    },
    /// The operating system did not tell how much memory there is or is used.
    #[error("cannot read {what}: {reason}")]
    MemoryReading {
        /// What was read.
        what: &'static str,
        /// Why it failed.
        reason: String,
    },

    // ---- running
    /// A sequence would become longer than the context.
    #[error("the sequence would have {needed} tokens, above the context of {limit}")]
    ContextFull {
        /// Tokens it would have.
        needed: usize,
        /// The context.
        limit: usize,
    },
    /// A token id that the model does not have.
    #[error("token {token} at index {index} is outside the vocabulary of {vocab}")]
    TokenOutOfRange {
        /// The id.
        token: u32,
        /// Where in the given tokens.
        index: usize,
        /// How many ids there are.
        vocab: usize,
    },
    /// A sequence cannot be shortened to this length.
    #[error("cannot truncate a sequence of {have} tokens to {len}: {reason}")]
    CannotTruncate {
        /// The length asked for.
        len: usize,
        /// The length it has.
        have: usize,
        /// Why not.
        reason: &'static str,
    },
    /// A file is no saved sequence of this model, or a damaged one. Nothing of it was used.
    #[error("cannot restore a sequence: {reason}")]
    BadCacheFile {
        /// What is wrong with it.
        reason: String,
    },
    /// An option of loading is out of its range, or does not go with another one.
    #[error("option `{option}`: {reason}")]
    BadOption {
        /// Its name.
        option: &'static str,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The work was stopped by its [`crate::CancelFlag`].
    #[error("cancelled")]
    Cancelled,

    // ---- answering
    /// The model's vocabulary cannot be used, or it has none.
    #[error(transparent)]
    Tokenizer(#[from] pannier_tokenizer::TokenizerError),
    /// The model's chat template cannot be used, or it refuses the conversation.
    #[error(transparent)]
    Template(#[from] pannier_tokenizer::TemplateError),
    /// No token could be chosen.
    #[error(transparent)]
    Sampling(#[from] crate::sampling::SamplingError),
    /// Speculation was asked for that cannot be.
    #[error(transparent)]
    Speculation(#[from] crate::speculate::SpeculationError),
    /// A session refused or ended a call.
    #[error(transparent)]
    Session(#[from] crate::session::SessionError),

    /// A model is not loaded, or a conversation not restored.
    #[error(transparent)]
    Lifecycle(#[from] crate::lifecycle::LifecycleError),

    // ---- around it
    /// The operating system refused a file operation.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The model's file is not what it was when it was opened.
    #[error("{} has changed while the model was loaded: {what} differs", path.display())]
    ModelChanged {
        /// The file.
        path: PathBuf,
        /// What differs.
        what: &'static str,
    },
    /// A bug of ours. The process and the user's data live on.
    #[error("internal error: {what}")]
    Internal {
        /// What was found broken.
        what: String,
    },
}

impl Error {
    /// A bug of ours.
    pub(crate) fn internal(what: impl Into<String>) -> Error {
        Error::Internal { what: what.into() }
    }
}
