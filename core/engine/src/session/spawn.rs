//! Generations on a thread of their own.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread::JoinHandle;

use super::control::{Control, StopReason};
use super::{Completion, GenerationEvent, SessionError};
use crate::{Error, Result};

/// An event handler that moves to another thread.
pub(super) type OwnedSink = Box<dyn FnMut(GenerationEvent<'_>) -> ControlFlow<()> + Send>;

/// A generation that runs on its own thread. Dropping the handle cancels the generation, without waiting.
#[derive(Debug)]
pub struct GenerationHandle {
    control: Arc<Control>,
    thread: Option<JoinHandle<Result<Completion>>>,
}

impl GenerationHandle {
    pub(super) fn start(
        control: Arc<Control>,
        work: impl FnOnce() -> Result<Completion> + Send + 'static,
    ) -> Result<Self> {
        let thread = std::thread::Builder::new()
            .name("pannier-generate".into())
            .spawn(work)
            .map_err(|source| SessionError::NoThread { source })?;
        Ok(Self { control, thread: Some(thread) })
    }

    /// Cancels the generation. Never blocks; does nothing to one that has ended.
    pub fn cancel(&self) {
        self.control.stop(StopReason::Cancelled);
    }

    /// Whether it has ended. The terminal event has been handled then.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// As for [`Session::generate`](super::Session::generate).
    pub fn join(mut self) -> Result<Completion> {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            _ => Err(Error::internal("the thread of a generation panicked")),
        }
    }

    /// Lets the generation run without a handle.
    pub fn detach(mut self) {
        self.thread = None;
    }
}

impl Drop for GenerationHandle {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.cancel();
        }
    }
}
