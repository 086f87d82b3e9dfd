//! What all kinds of sessions have in common: one cache, one generation at a time, and how a generation ends.

use std::any::Any;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::control::{Control, StopReason};
use super::generate::{Ending, Generation};
use super::{Completion, GenerationEvent, GenerationOptions, Model, SessionError};
use crate::model::Forward;
use crate::speculate::DraftText;
use crate::{Error, Result};

/// An app's event handler, as sessions see it.
pub type Sink<'s> = dyn FnMut(GenerationEvent<'_>) -> ControlFlow<()> + 's;

/// What a session has read so far. `tokens` are exactly those in `seq`.
pub(super) struct Cache<S> {
    pub seq: S,
    pub tokens: Vec<u32>,
    /// The same for the draft model, if it was asked.
    pub draft: Arc<Mutex<DraftText<S>>>,
}

impl<S> Cache<S> {
    pub fn new(seq: S) -> Self {
        Self { seq, tokens: Vec::new(), draft: Arc::default() }
    }
}

/// The state shared by a session, its running generation, and its model.
pub(super) struct SessionCore<F: Forward> {
    pub model: Arc<Model<F>>,
    slot: Mutex<Slot<F::Seq>>,
}

struct Slot<S> {
    cache: Option<Cache<S>>,
    running: Option<Arc<Control>>,
    closed: bool,
}

/// A generation that was let in, not begun. Gives the session free when dropped.
pub(super) struct Admission<F: Forward> {
    core: Arc<SessionCore<F>>,
    cache: Option<Cache<F::Seq>>,
    pub control: Arc<Control>,
}

impl<F: Forward> SessionCore<F> {
    pub fn new(model: Arc<Model<F>>) -> Self {
        Self { model, slot: Mutex::new(Slot { cache: None, running: None, closed: false }) }
    }

    fn slot(&self) -> MutexGuard<'_, Slot<F::Seq>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the session for one generation.
    pub fn admit(self: &Arc<Self>) -> Result<Admission<F>> {
        if self.model.is_closed() {
            return Err(SessionError::Closed { what: "model" }.into());
        }
        let mut slot = self.slot();
        if slot.closed {
            return Err(SessionError::Closed { what: "session" }.into());
        }
        if slot.running.is_some() {
            return Err(SessionError::Busy.into());
        }
        let control = Arc::new(Control::default());
        slot.running = Some(Arc::clone(&control));
        Ok(Admission { core: Arc::clone(self), cache: slot.cache.take(), control })
    }

    /// Cancels the running generation, if any.
    pub fn cancel(&self) {
        if let Some(control) = &self.slot().running {
            control.stop(StopReason::Cancelled);
        }
    }

    /// Cancels, frees the cache now or when the generation ends. Idempotent, never blocks.
    pub fn close(&self) {
        let cache = {
            let mut slot = self.slot();
            slot.closed = true;
            if let Some(control) = &slot.running {
                control.stop(StopReason::Cancelled);
            }
            slot.cache.take()
        };
        drop(cache);
    }

    /// Forgets what was read, to give its memory back. The next generation reads its prompt from the start.
    pub fn forget(self: &Arc<Self>) -> Result<()> {
        let mut admission = self.admit()?;
        admission.cache = None;
        Ok(())
    }

    /// How many tokens are in the cache; 0 while a generation runs.
    pub fn cached_tokens(&self) -> usize {
        self.slot().cache.as_ref().map_or(0, |c| c.tokens.len())
    }
}

impl<F: Forward> Admission<F> {
    /// What the session has read.
    pub fn cache_mut(&mut self) -> &mut Option<Cache<F::Seq>> {
        &mut self.cache
    }
}

impl<F: Forward> Drop for Admission<F> {
    fn drop(&mut self) {
        let mut slot = self.core.slot();
        slot.running = None;
        if slot.closed || self.core.model.is_closed() {
            // The cache goes with `self`, after the lock.
            return;
        }
        slot.cache = self.cache.take();
    }
}

/// How a generation ended, for whoever keeps a history.
pub(super) enum Outcome<'a> {
    Completed(&'a Completion),
    /// With the text that was given out.
    Cancelled(&'a str),
    Failed,
}

/// Runs an admitted generation to its one terminal event.
///
/// `prompt` makes the tokens; `commit` is told the outcome after the work and before the terminal event, so that whoever
/// reacts to that event finds the session free and its history up to date.
pub(super) fn run<F: Forward>(
    mut admission: Admission<F>,
    prompt: impl FnOnce(&Model<F>) -> Result<Vec<u32>>,
    options: GenerationOptions,
    sink: &mut Sink<'_>,
    commit: impl FnOnce(Outcome<'_>),
) -> Result<Completion> {
    let core = Arc::clone(&admission.core);
    let control = Arc::clone(&admission.control);
    let mut delivery = Delivery { sink, control: &control, broken_off: false, panic: None };
    let mut cache = admission.cache.take();
    let ending = catch_unwind(AssertUnwindSafe(|| {
        Generation::begin(&core.model, &mut cache, &control, prompt, options, &mut delivery)
    }));
    let ending = match ending {
        Ok(ending) => ending,
        Err(payload) => {
            // A bug of ours: what is in the cache can't be trusted.
            cache = None;
            Ending::Failed(Error::internal(panic_message(payload.as_ref())))
        }
    };
    let ending = match delivery.panic.take() {
        Some(message) => Ending::Failed(SessionError::SinkPanicked { message }.into()),
        None => ending,
    };
    admission.cache = cache;
    // Also when `commit` has a bug, the terminal event comes.
    let committed = catch_unwind(AssertUnwindSafe(|| {
        commit(match &ending {
            Ending::Completed(completion) => Outcome::Completed(completion),
            Ending::Cancelled { text, .. } => Outcome::Cancelled(text),
            Ending::Failed(_) => Outcome::Failed,
        });
    }));
    drop(admission);
    let ending = match committed {
        Ok(()) => ending,
        Err(payload) => Ending::Failed(Error::internal(panic_message(payload.as_ref()))),
    };
    match ending {
        Ending::Completed(completion) => {
            delivery.last(GenerationEvent::Completed(&completion));
            Ok(*completion)
        }
        Ending::Cancelled { stats, .. } => {
            delivery.last(GenerationEvent::Cancelled { stats: &stats });
            Err(Error::Cancelled)
        }
        Ending::Failed(error) => {
            delivery.last(GenerationEvent::Failed { error: &error });
            Err(error)
        }
    }
}

/// Hands events to the app's code, which may break off or panic. No lock is held meanwhile.
pub(super) struct Delivery<'a, 's> {
    sink: &'a mut Sink<'s>,
    control: &'a Control,
    broken_off: bool,
    panic: Option<String>,
}

impl Delivery<'_, '_> {
    /// Delivers an event that is not the last. A handler that breaks off or panics stops the generation.
    pub fn send(&mut self, event: GenerationEvent<'_>) {
        debug_assert!(!event.is_terminal());
        if self.panic.is_some() || self.broken_off {
            return;
        }
        match catch_unwind(AssertUnwindSafe(|| (self.sink)(event))) {
            Ok(ControlFlow::Continue(())) => {}
            Ok(ControlFlow::Break(())) => {
                self.broken_off = true;
                self.control.stop(StopReason::Cancelled);
            }
            Err(payload) => {
                self.panic = Some(panic_message(payload.as_ref()));
                self.control.stop(StopReason::Cancelled);
            }
        }
    }

    /// Whether the handler asked to stop.
    pub fn broke_off(&self) -> bool {
        self.broken_off
    }

    /// Delivers the terminal event. What the handler does with it changes nothing any more.
    fn last(&mut self, event: GenerationEvent<'_>) {
        debug_assert!(event.is_terminal());
        let _ = catch_unwind(AssertUnwindSafe(|| (self.sink)(event)));
    }
}

fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic").to_owned()
}
