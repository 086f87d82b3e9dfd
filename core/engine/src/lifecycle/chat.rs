//! A conversation that outlives the loaded model.

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::model::{Lease, ModelInner, Use};
use super::{LifecycleError, saved};
use crate::kv::Evicted;
use crate::model::{Forward, Runner};
use crate::session::{
    Canceller, ChatMessage, ChatOptions, ChatSession, Completion, GenerationEvent, GenerationOptions,
    GenerationStats, Model, Role, SessionError, Sink, utc_now,
};
use crate::{Error, Result};

/// A conversation. It loads its model when it needs it, and carries on with a model that was unloaded and loaded again; only
/// what had been read is then read once more.
///
/// Turns become part of the history as in [`ChatSession`].
pub struct ManagedChat<F: Forward = Runner> {
    inner: Arc<ChatInner<F>>,
}

pub(super) struct ChatInner<F: Forward> {
    model: Arc<ModelInner<F>>,
    options: ChatOptions,
    talk: Mutex<Talk<F>>,
}

struct Talk<F: Forward> {
    history: Vec<ChatMessage>,
    /// On the model that is or was loaded.
    live: Option<Arc<ChatSession<F>>>,
    running: Option<Canceller>,
    closed: bool,
    checkpoint: Option<PathBuf>,
}

/// The right to run one turn. Gives the conversation free when dropped.
struct Admission<F: Forward> {
    chat: Arc<ChatInner<F>>,
    canceller: Canceller,
}

impl<F: Forward> Drop for Admission<F> {
    fn drop(&mut self) {
        self.chat.talk().running = None;
    }
}

impl<F: Forward> ChatInner<F> {
    fn talk(&self) -> MutexGuard<'_, Talk<F>> {
        self.talk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn admit(self: &Arc<Self>, canceller: Option<Canceller>) -> Result<Admission<F>> {
        if self.model.is_closed() {
            return Err(SessionError::Closed { what: "model" }.into());
        }
        let mut talk = self.talk();
        if talk.closed {
            return Err(SessionError::Closed { what: "session" }.into());
        }
        if talk.running.is_some() {
            return Err(SessionError::Busy.into());
        }
        let canceller = canceller.unwrap_or_default();
        talk.running = Some(canceller.clone());
        Ok(Admission { chat: Arc::clone(self), canceller })
    }

    /// The session on this loaded model, with the history.
    fn session_on(&self, model: &Arc<Model<F>>) -> Result<Arc<ChatSession<F>>> {
        let mut talk = self.talk();
        if let Some(live) = talk.live.as_ref().filter(|live| Arc::ptr_eq(live.model(), model)) {
            return Ok(Arc::clone(live));
        }
        let session = Arc::new(model.chat(self.options.clone())?);
        session.set_history(talk.history.clone())?;
        let old = talk.live.replace(Arc::clone(&session));
        drop(talk);
        drop(old);
        Ok(session)
    }

    /// Lets go of the session on a model that is being unloaded.
    pub fn let_go(&self, model: &Arc<Model<F>>) {
        let mut talk = self.talk();
        let live = talk.live.take_if(|live| Arc::ptr_eq(live.model(), model));
        drop(talk);
        drop(live);
    }

    pub fn cancel(&self) {
        let running = self.talk().running.clone();
        if let Some(running) = running {
            running.cancel();
        }
    }

    fn close(&self) {
        let (running, live) = {
            let mut talk = self.talk();
            talk.closed = true;
            (talk.running.clone(), talk.live.take())
        };
        if let Some(running) = running {
            running.cancel();
        }
        drop(live);
    }

    pub fn forget(&self) {
        let live = self.talk().live.clone();
        if let Some(live) = live {
            // A busy one keeps what it is using.
            let _ = live.forget();
        }
    }

    pub fn checkpoint(&self) -> Result<()> {
        let (path, text) = {
            let talk = self.talk();
            let Some(path) = talk.checkpoint.clone() else { return Ok(()) };
            (path, saved::write(&talk.history))
        };
        write_whole(&path, &text).map_err(|source| LifecycleError::Checkpoint { source }.into())
    }

    /// One turn, to its one terminal event.
    fn turn(
        self: &Arc<Self>,
        admission: Admission<F>,
        messages: &[ChatMessage],
        mut options: GenerationOptions,
        sink: &mut Sink<'_>,
    ) -> Result<Completion> {
        let canceller = admission.canceller.clone();
        options.canceller = Some(canceller.clone());
        let mut turn = Turn { chat: self, admission: Some(admission), lease: None, sink, ended: false };
        let mut heard = false;
        loop {
            let stop = || canceller.is_cancelled();
            let (session, lease) = match turn.begin(&stop) {
                Ok(begun) => begun,
                Err(error) => return turn.fail(error),
            };
            turn.lease = Some(lease);
            let (mut again, mut spoke) = (false, false);
            let result = session.send_messages(messages.to_vec(), options.clone(), &mut |event| {
                match &event {
                    // Told once, also when the turn begins again.
                    GenerationEvent::Started { .. } if std::mem::replace(&mut heard, true) => {
                        return ControlFlow::Continue(());
                    }
                    GenerationEvent::Text { .. } => {
                        spoke = true;
                        turn.survived();
                    }
                    // Another model may hold what this one needs; nothing of the answer was told yet.
                    GenerationEvent::Failed { error: Error::OutOfBudget { .. } }
                        if !spoke && self.model.host.make_room(&self.model) =>
                    {
                        again = true;
                        return ControlFlow::Continue(());
                    }
                    _ => {}
                }
                if event.is_terminal() {
                    turn.settle(&session);
                }
                (turn.sink)(event)
            });
            if again {
                continue;
            }
            return match result {
                // Refused, because the model was unloaded between two steps.
                Err(error) if !turn.ended => turn.fail(error),
                result => result,
            };
        }
    }
}

/// What a running turn holds.
struct Turn<'a, 's, F: Forward> {
    chat: &'a Arc<ChatInner<F>>,
    admission: Option<Admission<F>>,
    lease: Option<Lease<F>>,
    sink: &'a mut Sink<'s>,
    ended: bool,
}

impl<F: Forward> Turn<'_, '_, F> {
    fn begin(&mut self, stop: &dyn Fn() -> bool) -> Result<(Arc<ChatSession<F>>, Lease<F>)> {
        let lease = match self.lease.take() {
            Some(lease) => lease,
            None => self.chat.model.acquire(Use::Generate, false, stop, &mut |_| {})?,
        };
        Ok((self.chat.session_on(&lease.model)?, lease))
    }

    /// The model has answered: using it does not kill the process.
    fn survived(&mut self) {
        if let Some(lease) = &mut self.lease {
            lease.mark = None;
        }
    }

    /// Whoever reacts to the terminal event finds the history up to date, the conversation free and the model idle.
    fn settle(&mut self, session: &ChatSession<F>) {
        self.ended = true;
        self.chat.talk().history = session.history();
        self.lease = None;
        self.admission = None;
    }

    /// Ends a turn that the session did not begin.
    fn fail(mut self, error: Error) -> Result<Completion> {
        self.lease = None;
        self.admission = None;
        let error = match error {
            // Closing and unloading cancel, whenever they come.
            Error::Cancelled | Error::Session(SessionError::Closed { .. }) => Error::Cancelled,
            other => other,
        };
        let stats = GenerationStats::default();
        let event = match &error {
            Error::Cancelled => GenerationEvent::Cancelled { stats: &stats },
            error => GenerationEvent::Failed { error },
        };
        let _ = catch_unwind(AssertUnwindSafe(|| (self.sink)(event)));
        Err(error)
    }
}

impl<F: Forward + 'static> ManagedChat<F> {
    pub(super) fn new(model: Arc<ModelInner<F>>, mut options: ChatOptions) -> Self {
        options.now.get_or_insert_with(utc_now);
        let system = options.system.as_deref().map(|s| ChatMessage::new(Role::System, s));
        let talk = Talk {
            history: system.into_iter().collect(),
            live: None,
            running: None,
            closed: false,
            checkpoint: None,
        };
        let inner = Arc::new(ChatInner { model, options, talk: Mutex::new(talk) });
        inner.model.add_chat(&inner);
        Self { inner }
    }

    /// Adds messages and generates the answer, telling `sink` on the calling thread. Loads the model if need be.
    ///
    /// A call that is refused gives no event. Any other gives exactly one terminal event.
    ///
    /// # Errors
    /// [`Busy`](SessionError::Busy) or [`Closed`](SessionError::Closed): refused. [`Error::Cancelled`] after a `Cancelled` event, also when the
    /// model was closed or unloaded meanwhile. Anything else after a `Failed` event.
    pub fn send(
        &self,
        messages: &[ChatMessage],
        options: GenerationOptions,
        sink: &mut Sink<'_>,
    ) -> Result<Completion> {
        let admission = self.inner.admit(options.canceller.clone())?;
        self.inner.turn(admission, messages, options, sink)
    }

    /// Like [`send`](Self::send), on a thread of its own.
    ///
    /// # Errors
    /// [`Busy`](SessionError::Busy), [`Closed`](SessionError::Closed) or [`NoThread`](SessionError::NoThread); the sink is not called then.
    pub fn spawn(
        &self,
        messages: Vec<ChatMessage>,
        options: GenerationOptions,
        mut sink: impl FnMut(GenerationEvent<'_>) -> ControlFlow<()> + Send + 'static,
        done: impl FnOnce(Result<Completion>) + Send + 'static,
    ) -> Result<ChatRun> {
        let admission = self.inner.admit(options.canceller.clone())?;
        let canceller = admission.canceller.clone();
        let inner = Arc::clone(&self.inner);
        let thread = std::thread::Builder::new()
            .name("pannier-generate".into())
            .spawn(move || {
                let result = inner.turn(admission, &messages, options, &mut sink);
                // The app's data in the handler goes before it hears of the result.
                drop(sink);
                drop(inner);
                done(result);
            })
            .map_err(|source| SessionError::NoThread { source })?;
        Ok(ChatRun { canceller, thread })
    }

    /// The conversation so far, the system message first.
    #[must_use]
    pub fn history(&self) -> Vec<ChatMessage> {
        self.inner.talk().history.clone()
    }

    /// Replaces the conversation.
    ///
    /// # Errors
    /// [`Busy`](SessionError::Busy) or [`Closed`](SessionError::Closed).
    pub fn set_history(&self, messages: Vec<ChatMessage>) -> Result<()> {
        let _admission = self.inner.admit(None)?;
        let live = {
            let mut talk = self.inner.talk();
            talk.history = messages;
            talk.live.clone()
        };
        match live {
            // One on a model that was unloaded is replaced on the next turn.
            Some(live) if !live.model().is_closed() => live.set_history(self.history()),
            _ => Ok(()),
        }
    }

    /// The conversation as text, for [`restore`](Self::restore).
    #[must_use]
    pub fn save(&self) -> String {
        saved::write(&self.inner.talk().history)
    }

    /// Replaces the conversation by a saved one.
    ///
    /// # Errors
    /// [`LifecycleError::BadSave`], [`Busy`](SessionError::Busy) or [`Closed`](SessionError::Closed).
    pub fn restore(&self, text: &str) -> Result<()> {
        self.set_history(saved::read(text)?)
    }

    /// Writes the conversation to this file whenever the app goes to the background
    /// ([`ModelHost::suspend`](super::ModelHost::suspend)); `None`: never.
    pub fn set_checkpoint(&self, path: Option<PathBuf>) {
        self.inner.talk().checkpoint = path;
    }

    /// How many tokens the prompt for these further messages has. Loads the model if need be.
    ///
    /// # Errors
    /// [`Closed`](SessionError::Closed), [`Error::Template`], and those of loading.
    pub fn token_count(&self, next: &[ChatMessage]) -> Result<usize> {
        if self.inner.talk().closed {
            return Err(SessionError::Closed { what: "session" }.into());
        }
        let lease = self.inner.model.acquire(Use::Look, false, &|| false, &mut |_| {})?;
        self.inner.session_on(&lease.model)?.token_count(next)
    }

    /// Writes what was read to a file, for [`restore_cache`](Self::restore_cache); see [`ChatSession::save_cache`].
    ///
    /// # Errors
    /// [`NothingRead`](SessionError::NothingRead), also when the model was unloaded since; [`Busy`](SessionError::Busy) or
    /// [`Closed`](SessionError::Closed); [`Error::Io`].
    pub fn save_cache(&self, path: &Path) -> Result<()> {
        let _admission = self.inner.admit(None)?;
        let live = self.inner.talk().live.clone().filter(|live| !live.model().is_closed());
        live.ok_or(SessionError::NothingRead)?.save_cache(path)
    }

    /// Takes what was read from a file, also one of an earlier process; gives the number of tokens that need not be read again. The
    /// conversation stays as it is. Loads the model if need be.
    ///
    /// # Errors
    /// As for [`ChatSession::restore_cache`], and those of loading.
    pub fn restore_cache(&self, path: &Path) -> Result<usize> {
        let _admission = self.inner.admit(None)?;
        let lease = self.inner.model.acquire(Use::Look, false, &|| false, &mut |_| {})?;
        self.inner.session_on(&lease.model)?.restore_cache(path)
    }

    /// Forgets what the policy of the KV cache does not keep, and gives its memory back; nothing if nothing is in memory.
    ///
    /// # Errors
    /// As for [`ChatSession::evict`].
    pub fn evict(&self) -> Result<Evicted> {
        let _admission = self.inner.admit(None)?;
        let live = self.inner.talk().live.clone().filter(|live| !live.model().is_closed());
        live.map_or_else(|| Ok(Evicted::default()), |live| live.evict())
    }

    /// Gives the session on the loaded model to `look`; `None` if none was needed yet, or the model was unloaded. For what lies beside
    /// the conversation: what it leaves in the session's history is not part of this one's.
    pub fn with_session<R>(&self, look: impl FnOnce(&ChatSession<F>) -> R) -> Option<R> {
        let live = self.inner.talk().live.clone();
        live.map(|live| look(&live))
    }

    /// How many tokens need not be read again for the next turn.
    #[must_use]
    pub fn cached_tokens(&self) -> usize {
        let live = self.inner.talk().live.clone();
        live.map_or(0, |live| live.cached_tokens())
    }

    /// Gives back the memory of what was read; the history stays.
    pub fn forget(&self) {
        self.inner.forget();
    }

    /// Cancels the running turn, if any. Never blocks.
    pub fn cancel(&self) {
        self.inner.cancel();
    }

    /// Cancels the running turn and frees the conversation's memory. Idempotent, never blocks.
    pub fn close(&self) {
        self.inner.close();
    }
}

impl<F: Forward> Drop for ManagedChat<F> {
    fn drop(&mut self) {
        self.inner.close();
    }
}

impl<F: Forward> std::fmt::Debug for ManagedChat<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let talk = self.inner.talk();
        f.debug_struct("ManagedChat").field("messages", &talk.history.len()).finish_non_exhaustive()
    }
}

/// A turn on a thread of its own. Dropping it lets the turn run on.
#[derive(Debug)]
pub struct ChatRun {
    canceller: Canceller,
    thread: JoinHandle<()>,
}

impl ChatRun {
    /// Cancels the turn. Never blocks.
    pub fn cancel(&self) {
        self.canceller.cancel();
    }

    /// Waits until the thread has ended.
    pub fn join(self) {
        // A panic of `done` is the app's.
        let _ = self.thread.join();
    }
}

/// Writes a file so that it is there whole or not at all.
fn write_whole(path: &Path, text: &str) -> std::io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    std::fs::write(&new, text)?;
    std::fs::rename(&new, path)
}
