//! Messages that apps may show, log and send: no path of the user's, no text of a conversation.

use std::io;

use super::LifecycleError;
use crate::Error;
use crate::session::SessionError;
use crate::store::StoreError;
use pannier_tokenizer::TemplateError;

/// What went wrong, without paths and without text of a conversation.
#[must_use]
pub fn public_message(error: &Error) -> String {
    match error {
        Error::Gguf(error) => error.fault().to_string(),
        // A template may put what was said into its refusal.
        Error::Template(TemplateError::Refused { line, .. }) => {
            format!("the chat template refuses this conversation (line {line})")
        }
        Error::Template(TemplateError::Failed { line, .. }) => {
            format!("the chat template fails for this conversation (line {line})")
        }
        Error::Io { action, source, .. } => format!("cannot {action} a file: {}", io_reason(source)),
        Error::ModelChanged { what, .. } => {
            format!("the file has changed while the model was loaded: {what} differs")
        }
        Error::Session(SessionError::SinkPanicked { .. }) => "the event handler panicked".to_owned(),
        Error::Lifecycle(LifecycleError::Checkpoint { source }) => {
            format!("cannot write a checkpoint: {}", io_reason(source))
        }
        // What a bug says of itself is for the log of who looks for it; it may hold anything.
        Error::Internal { .. } => "an internal error of the engine".to_owned(),
        other => other.to_string(),
    }
}

/// The same for errors of the store. Addresses are left out too: they may carry a user's token.
#[must_use]
pub fn public_store_message(error: &StoreError) -> String {
    match error {
        StoreError::UnknownModel { known, .. } => {
            format!("no known model of that name; known models: {known}")
        }
        StoreError::WrongStoredSize { name, expected, actual, .. } => {
            format!("the file of model `{name}` has {actual} bytes instead of {expected}")
        }
        StoreError::Io { action, source, .. } => format!("cannot {action} a file: {}", io_reason(source)),
        StoreError::NoSpace { needed, available, .. } => {
            format!("{needed} more bytes of disk are needed, but only {available} are free")
        }
        StoreError::Busy { .. } => "this model is being downloaded already".to_owned(),
        StoreError::BadUrl { reason, .. } => format!("the address cannot be downloaded: {reason}"),
        StoreError::BadDigest { .. } => "a SHA-256 is 64 hexadecimal digits".to_owned(),
        StoreError::Unreachable { done, faults, .. } => {
            format!(
                "none of {} sources could deliver the model; {done} bytes are kept for the next try",
                faults.len()
            )
        }
        other => other.to_string(),
    }
}

/// The system's words for the kind; the full text may name files.
fn io_reason(error: &io::Error) -> String {
    error.kind().to_string()
}
