//! Errors by what an app can do about them.

use pannier_gguf::Error as GgufError;

use super::LifecycleError;
use crate::Error;
use crate::sampling::SamplingError;
use crate::session::SessionError;
use crate::speculate::SpeculationError;
use crate::store::StoreError;

/// What an app can do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// Get the file, or correct the name.
    NotFound,
    /// Fetch the file again, or take another: it is damaged, or no model.
    InvalidModel,
    /// Take another model: this one needs what the engine cannot do.
    Unsupported,
    /// Correct the argument.
    InvalidArgument,
    /// Give a larger budget, or ask for less.
    OutOfBudget,
    /// Shorten the conversation.
    ContextOverflow {
        /// Tokens that were needed.
        tokens: usize,
        /// Tokens that the context holds.
        limit: usize,
    },
    /// The chat template does not take this conversation.
    Template,
    /// It was cancelled.
    Cancelled,
    /// Try later.
    Busy,
    /// It was closed before.
    Closed,
    /// Ask the user before loading this model again.
    CrashLoop {
        /// How often the process died.
        deaths: u32,
    },
    /// Make room on the disk, or look at the folder's permissions.
    Io,
    /// Try again when the network is better.
    Network,
    /// Report a bug of the engine.
    Internal,
}

impl From<&Error> for ErrorKind {
    fn from(error: &Error) -> Self {
        match error {
            Error::Gguf(error) => match error.fault() {
                GgufError::NotFound | GgufError::NotAFile { .. } | GgufError::MissingShard { .. } => {
                    Self::NotFound
                }
                GgufError::Io { .. } => Self::Io,
                GgufError::BigEndian
                | GgufError::UnsupportedVersion { .. }
                | GgufError::UnknownTensorType { .. } => Self::Unsupported,
                _ => Self::InvalidModel,
            },
            Error::UnsupportedArchitecture { .. }
            | Error::UnsupportedType { .. }
            | Error::Unsupported { .. } => Self::Unsupported,
            Error::BadHyperparameter { .. }
            | Error::MissingTensor { .. }
            | Error::TensorShape { .. }
            | Error::ModelChanged { .. }
            | Error::Tokenizer(_) => Self::InvalidModel,
            Error::OutOfBudget { .. }
            | Error::OutOfMemory { .. }
            | Error::DoesNotFit { .. }
            | Error::Speculation(SpeculationError::DraftDoesNotFit { .. }) => Self::OutOfBudget,
            Error::ContextFull { needed: tokens, limit }
            | Error::Session(SessionError::PromptTooLong { tokens, limit }) => {
                Self::ContextOverflow { tokens: *tokens, limit: *limit }
            }
            Error::Template(_) => Self::Template,
            Error::Cancelled => Self::Cancelled,
            Error::Session(SessionError::Busy) => Self::Busy,
            Error::Session(SessionError::Closed { .. }) => Self::Closed,
            Error::Session(
                SessionError::EmptyPrompt | SessionError::NothingRead | SessionError::InvalidOption { .. },
            )
            | Error::BadOption { .. }
            | Error::BadCacheFile { .. }
            | Error::Sampling(SamplingError::InvalidOption { .. } | SamplingError::UnknownToken { .. })
            | Error::TokenOutOfRange { .. }
            | Error::Speculation(_)
            | Error::Lifecycle(LifecycleError::BadSave { .. }) => Self::InvalidArgument,
            Error::Lifecycle(LifecycleError::CrashLoop { deaths, .. }) => Self::CrashLoop { deaths: *deaths },
            Error::Lifecycle(LifecycleError::NotDownloaded { .. }) => Self::NotFound,
            Error::Io { .. } | Error::Lifecycle(LifecycleError::Checkpoint { .. }) => Self::Io,
            _ => Self::Internal,
        }
    }
}

impl From<&StoreError> for ErrorKind {
    fn from(error: &StoreError) -> Self {
        match error {
            StoreError::UnknownModel { .. }
            | StoreError::NotDownloaded { .. }
            | StoreError::NoSource { .. } => Self::NotFound,
            StoreError::WrongStoredSize { .. } | StoreError::WrongDigest { .. } => Self::InvalidModel,
            StoreError::NoDirectory | StoreError::Io { .. } | StoreError::NoSpace { .. } => Self::Io,
            StoreError::Busy { .. } => Self::Busy,
            StoreError::BadUrl { .. } | StoreError::BadDigest { .. } => Self::InvalidArgument,
            StoreError::Tls { .. } | StoreError::Unreachable { .. } => Self::Network,
            StoreError::Cancelled { .. } => Self::Cancelled,
        }
    }
}
