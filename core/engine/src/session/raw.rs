//! Raw completion.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use super::core::{self, SessionCore, Sink};
use super::spawn::{GenerationHandle, OwnedSink};
use super::{Completion, GenerationEvent, GenerationOptions, Model, Prompt};
use crate::Result;
use crate::kv::Evicted;
use crate::model::{Forward, Runner};

/// Continues prompts. What a prompt has in common with the one before is not read again.
///
/// A session does one thing at a time; several sessions of one model take turns. Dropping or closing a session cancels its
/// generation.
pub struct Session<F: Forward = Runner> {
    core: Arc<SessionCore<F>>,
}

impl<F: Forward> Session<F> {
    pub(super) fn new(core: Arc<SessionCore<F>>) -> Self {
        Self { core }
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &Arc<Model<F>> {
        &self.core.model
    }

    /// Continues `prompt`, telling `sink` on the calling thread.
    ///
    /// A call that is refused gives no event. Any other gives exactly one terminal event, also if the sink panics.
    ///
    /// # Errors
    /// [`Busy`](super::SessionError::Busy) or [`Closed`](super::SessionError::Closed): refused. [`Error::Cancelled`](crate::Error::Cancelled)
    /// after a `Cancelled` event. Anything else after a `Failed` event.
    pub fn generate(
        &self,
        prompt: impl Into<Prompt>,
        options: GenerationOptions,
        sink: &mut Sink<'_>,
    ) -> Result<Completion> {
        let admission = self.core.admit()?;
        let prompt = prompt.into();
        core::run(admission, |model| tokens_of(model, prompt), options, sink, |_| {})
    }

    /// Like [`generate`](Self::generate), on a thread of its own.
    ///
    /// # Errors
    /// [`Busy`](super::SessionError::Busy), [`Closed`](super::SessionError::Closed) or [`NoThread`](super::SessionError::NoThread); the sink is not
    /// called then.
    pub fn spawn(
        &self,
        prompt: impl Into<Prompt>,
        options: GenerationOptions,
        sink: impl FnMut(GenerationEvent<'_>) -> ControlFlow<()> + Send + 'static,
    ) -> Result<GenerationHandle>
    where
        F: 'static,
    {
        let admission = self.core.admit()?;
        let prompt = prompt.into();
        let mut sink: OwnedSink = Box::new(sink);
        GenerationHandle::start(Arc::clone(&admission.control), move || {
            core::run(admission, |model| tokens_of(model, prompt), options, &mut *sink, |_| {})
        })
    }

    /// Cancels the running generation, if any. Never blocks.
    pub fn cancel(&self) {
        self.core.cancel();
    }

    /// Cancels the running generation, and frees the session's memory as soon as that has ended. Idempotent, never blocks.
    pub fn close(&self) {
        self.core.close();
    }

    /// Gives back the memory of what was read; the next prompt is read from its start.
    ///
    /// # Errors
    /// [`Busy`](super::SessionError::Busy) or [`Closed`](super::SessionError::Closed).
    pub fn forget(&self) -> Result<()> {
        self.core.forget()
    }

    /// How many tokens are kept for the next prompt; 0 while a generation runs.
    #[must_use]
    pub fn cached_tokens(&self) -> usize {
        self.core.cached_tokens()
    }

    /// Forgets what the policy of the KV cache does not keep (see [`KvOptions`](crate::kv::KvOptions)), and gives its memory back.
    /// What stays keeps its positions.
    ///
    /// # Errors
    /// [`Busy`](super::SessionError::Busy) or [`Closed`](super::SessionError::Closed); [`Error::OutOfBudget`](crate::Error::OutOfBudget) if pages
    /// that other sessions share cannot be copied.
    pub fn evict(&self) -> Result<Evicted> {
        self.core.evict()
    }

    /// Writes what was read to a file, for [`restore`](Self::restore). The file appears whole or not at all. It holds the
    /// text in a form that this model can read: it is as private as the text itself.
    ///
    /// # Errors
    /// [`NothingRead`](super::SessionError::NothingRead), [`Busy`](super::SessionError::Busy) or [`Closed`](super::SessionError::Closed);
    /// [`Error::Io`](crate::Error::Io).
    pub fn save(&self, path: &Path) -> Result<()> {
        self.core.save(path)
    }

    /// Takes what was read from a file, also one of an earlier process: a prompt that begins with its tokens need not read them again.
    /// Gives the number of tokens.
    ///
    /// # Errors
    /// [`Error::BadCacheFile`](crate::Error::BadCacheFile) if the file is damaged, or was saved with another model or other settings; the session
    /// is as it was then. [`Busy`](super::SessionError::Busy) or [`Closed`](super::SessionError::Closed);
    /// [`Error::Io`](crate::Error::Io), [`Error::OutOfBudget`](crate::Error::OutOfBudget).
    pub fn restore(&self, path: &Path) -> Result<usize> {
        self.core.restore(path)
    }
}

impl<F: Forward> Drop for Session<F> {
    fn drop(&mut self) {
        self.core.close();
    }
}

fn tokens_of<F: Forward>(model: &Model<F>, prompt: Prompt) -> Result<Vec<u32>> {
    match prompt {
        Prompt::Tokens(tokens) => Ok(tokens),
        // The empty text, even if BOS would make a token of it: most likely a mistake of the caller.
        Prompt::Text(text) if text.is_empty() => Err(super::SessionError::EmptyPrompt.into()),
        Prompt::Text(text) => model.encode_prompt(&text, true),
    }
}
