//! A model that is loaded when it is used.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::chat::{ChatInner, ManagedChat};
use super::guard::{Mark, Paused};
use super::host::HostInner;
use super::message::public_message;
use super::state::{ModelState, StateCell, Watch};
use super::{LifecycleError, plan_file};
use crate::memory::{MemoryPressure, ThermalLevel};
use crate::model::{Forward, Runner};
use crate::plan::Plan;
use crate::session::{ChatOptions, LoadOptions, LoadProgress, Model, ModelInfo, SessionError};
use crate::store::{
    DownloadCanceller, DownloadEvent, DownloadOptions, DownloadRequest, Downloaded, ModelStore, StoreError,
};
use crate::{Error, Result};

/// Waiting calls look this often whether they should give up.
const POLL: Duration = Duration::from_millis(5);

/// Which file, and how it is loaded.
#[derive(Debug, Clone)]
pub struct ModelSource {
    /// The GGUF file; the first one of a split model. It need not be there yet.
    pub path: PathBuf,
    /// How to load it. `budget_bytes` and `accountant` are the host's.
    pub options: LoadOptions,
}

/// A model that is loaded when it is used, and unloaded when the budget, the system or the app asks. Clones are the same model.
pub struct ManagedModel<F: Forward = Runner> {
    inner: Arc<ModelInner<F>>,
}

pub(super) struct ModelInner<F: Forward> {
    pub host: Arc<HostInner<F>>,
    source: ModelSource,
    slot: Mutex<Slot<F>>,
    changed: Condvar,
    state: StateCell,
    chats: Mutex<Vec<Weak<ChatInner<F>>>>,
}

struct Slot<F: Forward> {
    phase: Phase<F>,
    /// Calls that use the loaded model now; some of them generate.
    users: usize,
    generating: usize,
    last_used: Duration,
    closed: bool,
}

enum Phase<F: Forward> {
    Out,
    Loading,
    In {
        model: Arc<Model<F>>,
        /// Until the first generation.
        unproven: Option<Paused>,
    },
}

/// What a loaded model is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    Generate,
    /// Something short.
    Look,
}

/// Keeps a model from being unloaded for want of use.
pub(super) struct Lease<F: Forward> {
    owner: Arc<ModelInner<F>>,
    pub model: Arc<Model<F>>,
    usage: Use,
    /// Present on the first generation of a loaded model.
    pub mark: Option<Mark>,
}

impl<F: Forward> Drop for Lease<F> {
    fn drop(&mut self) {
        let owner = &self.owner;
        {
            let mut slot = owner.slot();
            slot.users = slot.users.saturating_sub(1);
            slot.last_used = owner.host.clock.now();
            if self.usage == Use::Generate {
                slot.generating = slot.generating.saturating_sub(1);
            }
            let still_in = matches!(&slot.phase, Phase::In { model, .. } if Arc::ptr_eq(model, &self.model));
            if still_in && slot.generating == 0 {
                owner.state.post(ModelState::Ready);
            }
        }
        owner.state.tell();
    }
}

impl<F: Forward> ModelInner<F> {
    pub fn new(host: Arc<HostInner<F>>, source: ModelSource) -> Arc<Self> {
        let state = if source.path.is_file() { ModelState::Downloaded } else { ModelState::NotDownloaded };
        let slot =
            Slot { phase: Phase::Out, users: 0, generating: 0, last_used: host.clock.now(), closed: false };
        Arc::new(Self {
            host,
            source,
            slot: Mutex::new(slot),
            changed: Condvar::new(),
            state: StateCell::new(state),
            chats: Mutex::new(Vec::new()),
        })
    }

    fn slot(&self) -> MutexGuard<'_, Slot<F>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn state(&self) -> ModelState {
        self.state.get()
    }

    pub fn is_closed(&self) -> bool {
        self.slot().closed
    }

    /// The loaded model, loading it if need be. Waits for a load that is under way; `stop` says whether to give up.
    pub fn acquire(
        self: &Arc<Self>,
        usage: Use,
        forced: bool,
        stop: &dyn Fn() -> bool,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Lease<F>> {
        let mut slot = self.slot();
        loop {
            if slot.closed {
                return Err(SessionError::Closed { what: "model" }.into());
            }
            if stop() {
                return Err(Error::Cancelled);
            }
            match &slot.phase {
                Phase::In { .. } => {
                    let lease = self.lend(&mut slot, usage);
                    drop(slot);
                    self.state.tell();
                    return lease;
                }
                Phase::Loading => {
                    slot = self.changed.wait_timeout(slot, POLL).unwrap_or_else(PoisonError::into_inner).0;
                }
                Phase::Out => break,
            }
        }
        slot.phase = Phase::Loading;
        self.state.post(ModelState::Loading { fraction: 0.0 });
        drop(slot);
        self.state.tell();
        let loaded = self.load_file(forced, progress);
        let mut slot = self.slot();
        let mut unwanted = None;
        let lease = match loaded {
            Ok((model, _)) if slot.closed => {
                slot.phase = Phase::Out;
                unwanted = Some(model);
                self.state.post(ModelState::Unloaded);
                Err(SessionError::Closed { what: "model" }.into())
            }
            Ok((model, unproven)) => {
                model.on_thermal(self.host.heat());
                slot.phase = Phase::In { model, unproven: Some(unproven) };
                slot.last_used = self.host.clock.now();
                self.state.post(ModelState::Ready);
                self.lend(&mut slot, usage)
            }
            Err(error) => {
                slot.phase = Phase::Out;
                self.state.post(ModelState::Failed { reason: public_message(&error) });
                Err(error)
            }
        };
        drop(slot);
        self.changed.notify_all();
        if let Some(model) = unwanted {
            model.close();
        }
        self.state.tell();
        lease
    }

    fn lend(self: &Arc<Self>, slot: &mut Slot<F>, usage: Use) -> Result<Lease<F>> {
        let Phase::In { model, unproven } = &mut slot.phase else {
            return Err(Error::internal("a model that is not loaded was lent"));
        };
        let mark = match usage {
            Use::Generate => unproven.take().map(Paused::resume),
            Use::Look => None,
        };
        let model = Arc::clone(model);
        slot.users += 1;
        if usage == Use::Generate {
            slot.generating += 1;
            self.state.post(ModelState::Generating);
        }
        Ok(Lease { owner: Arc::clone(self), model, usage, mark })
    }

    fn load_file(
        &self,
        forced: bool,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<(Arc<Model<F>>, Paused)> {
        let path = &self.source.path;
        for path in [path].into_iter().chain(self.source.options.draft.as_ref().map(|draft| &draft.path)) {
            if !path.exists() {
                let model = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                return Err(LifecycleError::NotDownloaded { model }.into());
            }
        }
        let mark = self.host.guard.begin(path, forced)?;
        let options = LoadOptions {
            accountant: Some(self.host.accountant.clone()),
            budget_bytes: self.host.accountant.budget(),
            ..self.source.options.clone()
        };
        let mut told = |p: LoadProgress| {
            // `Ready` comes with the model itself.
            if p.fraction < 1.0 {
                self.state.set(ModelState::Loading { fraction: p.fraction });
            }
            progress(p);
        };
        loop {
            match self.host.call_loader(path, &options, &mut told) {
                Err(Error::OutOfBudget { .. } | Error::DoesNotFit { .. }) if self.host.make_room(self) => {}
                Err(error) => return Err(error),
                Ok(model) => return Ok((model, mark.pause())),
            }
        }
    }

    pub fn load(self: &Arc<Self>, forced: bool, progress: &mut dyn FnMut(LoadProgress)) -> Result<()> {
        self.acquire(Use::Look, forced, &|| false, progress).map(drop)
    }

    /// Since when nobody uses the loaded model.
    pub fn idle_since(&self) -> Option<Duration> {
        let slot = self.slot();
        (slot.users == 0 && matches!(slot.phase, Phase::In { .. })).then_some(slot.last_used)
    }

    /// Unloads; `only_idle` leaves a model alone that is used. Answers whether one was unloaded.
    pub fn take_out(&self, rest: &ModelState, only_idle: bool) -> bool {
        let model = {
            let mut slot = self.slot();
            if only_idle && slot.users > 0 {
                return false;
            }
            match std::mem::replace(&mut slot.phase, Phase::Out) {
                Phase::In { model, .. } => {
                    self.state.post(rest.clone());
                    model
                }
                other => {
                    // A load under way looks for `closed` itself.
                    slot.phase = other;
                    return false;
                }
            }
        };
        // Cancels generations and frees what is not in use; sessions of chats hold the rest.
        model.close();
        for chat in self.chats() {
            chat.let_go(&model);
        }
        drop(model);
        self.state.tell();
        true
    }

    pub fn close(&self) {
        self.slot().closed = true;
        self.changed.notify_all();
        for chat in self.chats() {
            chat.cancel();
        }
        self.take_out(&ModelState::Unloaded, false);
    }

    /// What generates now makes its caches smaller before the next token. An idle model is not told: it would act on old news.
    pub fn tell_pressure(&self, level: MemoryPressure) {
        let slot = self.slot();
        if let Phase::In { model, .. } = &slot.phase
            && slot.generating > 0
        {
            model.on_memory_pressure(level);
        }
    }

    /// The loaded model acts on it before its next token.
    pub fn tell_heat(&self, level: ThermalLevel) {
        if let Phase::In { model, .. } = &self.slot().phase {
            model.on_thermal(level);
        }
    }

    /// Gives back what chats keep for their next turn.
    pub fn forget(&self) {
        for chat in self.chats() {
            chat.forget();
        }
    }

    pub fn checkpoint(&self) -> Result<()> {
        self.chats().iter().map(|chat| chat.checkpoint()).fold(Ok(()), Result::and)
    }

    fn chats(&self) -> Vec<Arc<ChatInner<F>>> {
        let chats = self.chats.lock().unwrap_or_else(PoisonError::into_inner);
        chats.iter().filter_map(Weak::upgrade).collect()
    }

    pub fn add_chat(&self, chat: &Arc<ChatInner<F>>) {
        let mut chats = self.chats.lock().unwrap_or_else(PoisonError::into_inner);
        chats.retain(|c| c.strong_count() > 0);
        chats.push(Arc::downgrade(chat));
    }

    /// A state between absent and downloaded, which a loaded model does not take.
    fn post_if_out(&self, state: ModelState) {
        {
            let slot = self.slot();
            if matches!(slot.phase, Phase::Out) {
                self.state.post(state);
            }
        }
        self.state.tell();
    }
}

impl<F: Forward> Clone for ManagedModel<F> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<F: Forward> std::fmt::Debug for ManagedModel<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ManagedModel").field("state", &self.inner.state()).finish_non_exhaustive()
    }
}

impl<F: Forward + 'static> ManagedModel<F> {
    pub(super) fn from_inner(inner: Arc<ModelInner<F>>) -> Self {
        Self { inner }
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.inner.source.path
    }

    /// What it is doing.
    #[must_use]
    pub fn state(&self) -> ModelState {
        self.inner.state()
    }

    /// Tells `observer` every later change of the state, in order, until the watch is dropped. It may call anything.
    pub fn watch(&self, observer: impl Fn(&ModelState) + Send + Sync + 'static) -> Watch {
        self.inner.state.watch(observer)
    }

    /// Loads it now; does nothing to a loaded model. `forced` overrides the crash-loop guard.
    ///
    /// # Errors
    /// [`LifecycleError::NotDownloaded`], [`LifecycleError::CrashLoop`], and those of [`Model::load`].
    pub fn load(&self, forced: bool, progress: &mut dyn FnMut(LoadProgress)) -> Result<()> {
        self.inner.load(forced, progress)
    }

    /// What it will take under the host's budget.
    ///
    /// # Errors
    /// Those of [`plan_file`].
    pub fn plan(&self) -> Result<Plan> {
        let budget_bytes = self.inner.host.accountant.budget();
        plan_file(self.path(), &LoadOptions { budget_bytes, ..self.inner.source.options.clone() })
    }

    /// What there is to tell about the loaded model; `None` while it is not loaded.
    #[must_use]
    pub fn info(&self) -> Option<ModelInfo> {
        match &self.inner.slot().phase {
            Phase::In { model, .. } => Some(model.info().clone()),
            Phase::Out | Phase::Loading => None,
        }
    }

    /// The most tokens of a conversation; `None` while it is not loaded.
    #[must_use]
    pub fn context(&self) -> Option<usize> {
        match &self.inner.slot().phase {
            Phase::In { model, .. } => Some(model.context()),
            Phase::Out | Phase::Loading => None,
        }
    }

    /// Frees its memory; generations are cancelled. The next use loads it again. Never blocks. A load that is under way is
    /// not stopped.
    pub fn unload(&self) {
        self.inner.take_out(&ModelState::Unloaded, false);
    }

    /// Like [`unload`](Self::unload), and for good: later calls give [`SessionError::Closed`]. Idempotent, never blocks.
    pub fn close(&self) {
        self.inner.close();
    }

    /// A conversation. Nothing is loaded until it is used.
    #[must_use]
    pub fn chat(&self, options: ChatOptions) -> ManagedChat<F> {
        ManagedChat::new(Arc::clone(&self.inner), options)
    }

    /// Downloads the model's file, on this thread; the state follows.
    ///
    /// # Errors
    /// Those of [`ModelStore::pull`].
    pub fn download(
        &self,
        store: &ModelStore,
        request: &DownloadRequest,
        options: DownloadOptions,
        cancel: &DownloadCanceller,
        observer: &mut (dyn FnMut(DownloadEvent) + Send),
    ) -> Result<Downloaded, StoreError> {
        let inner = &self.inner;
        inner.post_if_out(ModelState::Downloading { done: 0, total: request.bytes });
        let mut observer = |event: DownloadEvent| {
            if let DownloadEvent::Progress { done, total, .. } = event {
                inner.post_if_out(ModelState::Downloading { done, total });
            }
            observer(event);
        };
        let result = store.pull_blocking(request, options, cancel, &mut observer);
        inner.post_if_out(match &result {
            Ok(_) => ModelState::Downloaded,
            Err(StoreError::Cancelled { .. }) => ModelState::NotDownloaded,
            Err(error) => ModelState::Failed { reason: super::message::public_store_message(error) },
        });
        result
    }
}
