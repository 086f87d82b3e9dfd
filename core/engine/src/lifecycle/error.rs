//! What can go wrong with models over the life of an app.

use thiserror::Error;

/// Why a model is not loaded, or a conversation not restored. Messages carry no path and no text of a conversation.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LifecycleError {
    /// The process died while this model was being loaded, more than once. It is loaded again only when asked to by name.
    #[error(
        "the app died {deaths} times while it loaded the model {model:?}; it is not loaded again unless forced"
    )]
    CrashLoop {
        /// File name of the model.
        model: String,
        /// How often.
        deaths: u32,
    },
    /// The model's file is not there (yet).
    #[error("the model {model:?} is not on this device")]
    NotDownloaded {
        /// File name of the model.
        model: String,
    },
    /// What was given as a saved conversation is not one.
    #[error("not a saved conversation: {reason}")]
    BadSave {
        /// What is wrong with it.
        reason: String,
    },
    /// A conversation could not be written to its checkpoint.
    #[error("cannot write a checkpoint: {source}")]
    Checkpoint {
        /// The system's reason.
        source: std::io::Error,
    },
}
