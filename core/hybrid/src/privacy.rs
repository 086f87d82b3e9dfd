//! What must happen before anything leaves the device.

use pannier::session::ChatMessage;

use crate::cloud::OutgoingPayload;

/// The app's, or its user's, consent. Without one, nothing leaves.
pub trait Consent: Send + Sync {
    /// Whether exactly this may be sent. Called for every request, after redaction, on the thread of the generation, which waits:
    /// an app may ask its user here.
    fn allows(&self, payload: &OutgoingPayload) -> bool;
}

impl<F: Fn(&OutgoingPayload) -> bool + Send + Sync> Consent for F {
    fn allows(&self, payload: &OutgoingPayload) -> bool {
        self(payload)
    }
}

/// Takes out what must stay on the device.
pub trait Redactor: Send + Sync {
    /// Changes a copy of the messages; the conversation keeps the originals. Drafts of the device are among them.
    ///
    /// # Errors
    /// `Err`: this cannot be made fit to leave; the cloud is not asked.
    fn redact(&self, messages: &mut Vec<ChatMessage>) -> Result<(), Refused>;
}

/// A redactor's refusal. Carries no text: it would end in logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused;
