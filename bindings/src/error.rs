//! One small error for apps.

use pannier::Error;
use pannier::lifecycle::{ErrorKind, public_message, public_store_message};
use pannier::store::StoreError;

use crate::PlanReport;

/// What went wrong. `reason` is one line for a developer; it holds no text of a conversation and no path of the user's.
#[derive(Debug, Clone, thiserror::Error, uniffi::Error)]
pub enum PannierError {
    /// There is no such model, file, or known name.
    #[error("{reason}")]
    NotFound {
        /// What went wrong.
        reason: String,
    },
    /// The file is damaged, or not a model.
    #[error("{reason}")]
    InvalidModel {
        /// What went wrong.
        reason: String,
    },
    /// A model, a template or an option that the engine cannot do.
    #[error("{reason}")]
    Unsupported {
        /// What went wrong.
        reason: String,
    },
    /// An argument out of its range.
    #[error("{reason}")]
    InvalidArgument {
        /// What went wrong.
        reason: String,
    },
    /// The memory budget does not hold this.
    #[error("{reason}")]
    OutOfBudget {
        /// What went wrong.
        reason: String,
        /// What the model needs, and what would fit. Absent when a running generation hit the budget.
        plan: Option<PlanReport>,
    },
    /// The conversation is longer than the context.
    #[error("{reason}")]
    ContextOverflow {
        /// What went wrong.
        reason: String,
        /// Tokens that were needed.
        tokens: u64,
        /// Tokens that the context holds.
        limit: u64,
    },
    /// The chat template of the model does not take this conversation.
    #[error("{reason}")]
    Template {
        /// What went wrong.
        reason: String,
    },
    /// Cancelled, by the app, or because the model or the session was closed or unloaded meanwhile.
    #[error("{reason}")]
    Cancelled {
        /// What went wrong.
        reason: String,
    },
    /// Something else is running that excludes this.
    #[error("{reason}")]
    Busy {
        /// What went wrong.
        reason: String,
    },
    /// The model or session was closed before the call.
    #[error("{reason}")]
    Closed {
        /// What went wrong.
        reason: String,
    },
    /// The app died repeatedly while it loaded this model.
    #[error("{reason}")]
    CrashLoop {
        /// What went wrong.
        reason: String,
        /// How often.
        deaths: u32,
    },
    /// The system refused a file operation, or the disk is full.
    #[error("{reason}")]
    Io {
        /// What went wrong.
        reason: String,
    },
    /// The network, or the server.
    #[error("{reason}")]
    Network {
        /// What went wrong.
        reason: String,
    },
    /// A bug of the engine. The process and the user's data live on.
    #[error("{reason}")]
    Internal {
        /// What went wrong.
        reason: String,
    },
}

impl PannierError {
    pub(crate) fn internal(reason: impl Into<String>) -> Self {
        Self::Internal { reason: reason.into() }
    }

    /// The same error with the plan that explains it.
    pub(crate) fn with_plan(self, plan: impl FnOnce() -> Option<PlanReport>) -> Self {
        match self {
            Self::OutOfBudget { reason, plan: None } => Self::OutOfBudget { reason, plan: plan() },
            other => other,
        }
    }
}

fn new(kind: ErrorKind, reason: String) -> PannierError {
    match kind {
        ErrorKind::NotFound => PannierError::NotFound { reason },
        ErrorKind::InvalidModel => PannierError::InvalidModel { reason },
        ErrorKind::Unsupported => PannierError::Unsupported { reason },
        ErrorKind::InvalidArgument => PannierError::InvalidArgument { reason },
        ErrorKind::OutOfBudget => PannierError::OutOfBudget { reason, plan: None },
        ErrorKind::ContextOverflow { tokens, limit } => {
            PannierError::ContextOverflow { reason, tokens: tokens as u64, limit: limit as u64 }
        }
        ErrorKind::Template => PannierError::Template { reason },
        ErrorKind::Cancelled => PannierError::Cancelled { reason },
        ErrorKind::Busy => PannierError::Busy { reason },
        ErrorKind::Closed => PannierError::Closed { reason },
        ErrorKind::CrashLoop { deaths } => PannierError::CrashLoop { reason, deaths },
        ErrorKind::Io => PannierError::Io { reason },
        ErrorKind::Network => PannierError::Network { reason },
        ErrorKind::Internal => PannierError::Internal { reason },
    }
}

impl From<&Error> for PannierError {
    fn from(error: &Error) -> Self {
        let plan = match error {
            Error::DoesNotFit { plan } => Some(PlanReport::from((**plan).clone())),
            _ => None,
        };
        new(ErrorKind::from(error), public_message(error)).with_plan(|| plan)
    }
}

impl From<Error> for PannierError {
    fn from(error: Error) -> Self {
        Self::from(&error)
    }
}

impl From<StoreError> for PannierError {
    fn from(error: StoreError) -> Self {
        new(ErrorKind::from(&error), public_store_message(&error))
    }
}
