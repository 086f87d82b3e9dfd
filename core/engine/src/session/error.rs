//! Why a session did not do what it was asked.

use thiserror::Error;

/// Why a session refused or ended a call. Messages carry no prompt text.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SessionError {
    /// A generation is running in this session; a session does one thing at a time.
    #[error("the session is busy with another generation")]
    Busy,
    /// The session or its model was closed.
    #[error("the {what} is closed")]
    Closed {
        /// `session` or `model`.
        what: &'static str,
    },
    /// There is nothing to continue.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// There is nothing to save: the session has read nothing, or its model has forgotten it.
    #[error("the session has read nothing yet")]
    NothingRead,
    /// The prompt alone does not fit. Nothing was computed, and nothing was cut off.
    #[error("the prompt has {tokens} tokens, but the context holds {limit}")]
    PromptTooLong {
        /// Tokens of the prompt, with all of the history in a chat.
        tokens: usize,
        /// The context.
        limit: usize,
    },
    /// A generation option is out of range.
    #[error("generation option `{option}` is {value}, but must be {range}")]
    InvalidOption {
        /// Name of the option.
        option: &'static str,
        /// The refused value.
        value: String,
        /// What is allowed.
        range: &'static str,
    },
    /// The app's event handler panicked.
    #[error("the event handler panicked: {message}")]
    SinkPanicked {
        /// Its message.
        message: String,
    },
    /// The system gave no thread.
    #[error("no thread for a generation: {source}")]
    NoThread {
        /// The system's reason.
        source: std::io::Error,
    },
}
