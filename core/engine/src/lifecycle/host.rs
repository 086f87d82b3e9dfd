//! All models of an app, under one budget.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;

use super::guard::CrashGuard;
use super::model::{ManagedModel, ModelInner, ModelSource};
use super::state::ModelState;
use crate::memory::{Accountant, MemoryPressure, MemoryProbe, MemoryReading, SystemMemory, ThermalLevel};
use crate::model::{Forward, Runner};
use crate::session::{Clock, LoadOptions, LoadProgress, Model, MonotonicClock};
use crate::{Error, Result};

/// Loads a model; tests put in models that follow a script.
pub type Loader<F> =
    dyn Fn(&Path, &LoadOptions, &mut dyn FnMut(LoadProgress)) -> Result<Arc<Model<F>>> + Send + Sync;

/// What holds for all models.
#[derive(Clone)]
pub struct HostOptions {
    /// The most anonymous memory, in bytes, of all models together; `None`: no limit.
    pub budget_bytes: Option<u64>,
    /// Models that were not used for so long are unloaded; `None`: never.
    pub idle_unload: Option<Duration>,
    /// A private folder of the app, where the crash-loop guard keeps its marks; `None`: no guard.
    pub guard_dir: Option<PathBuf>,
    /// The time.
    pub clock: Arc<dyn Clock>,
}

impl Default for HostOptions {
    fn default() -> Self {
        Self {
            budget_bytes: None,
            idle_unload: None,
            guard_dir: None,
            clock: Arc::new(MonotonicClock::default()),
        }
    }
}

impl std::fmt::Debug for HostOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostOptions")
            .field("budget_bytes", &self.budget_bytes)
            .field("idle_unload", &self.idle_unload)
            .field("guarded", &self.guard_dir.is_some())
            .finish_non_exhaustive()
    }
}

/// Memory, as the budget and as the system see it, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryUse {
    /// The budget; `None`: none.
    pub budget: Option<u64>,
    /// Taken from it now.
    pub used: u64,
    /// The most that was taken.
    pub peak: u64,
    /// The process; `None` where the system does not tell.
    pub process: Option<MemoryReading>,
}

/// All models of an app. Clones are the same host.
pub struct ModelHost<F: Forward = Runner> {
    inner: Arc<HostInner<F>>,
}

pub(super) struct HostInner<F: Forward> {
    pub accountant: Accountant,
    pub loader: Box<Loader<F>>,
    pub guard: CrashGuard,
    pub clock: Arc<dyn Clock>,
    idle: Option<Duration>,
    heat: Mutex<ThermalLevel>,
    models: Mutex<Vec<Weak<ModelInner<F>>>>,
    stop: Arc<(Mutex<bool>, Condvar)>,
}

impl<F: Forward> Clone for ModelHost<F> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<F: Forward> std::fmt::Debug for ModelHost<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelHost").field("accountant", &self.inner.accountant).finish_non_exhaustive()
    }
}

impl ModelHost<Runner> {
    /// A host of GGUF models.
    #[must_use]
    pub fn new(options: HostOptions) -> Self {
        Self::with_loader(options, |path, options, progress| Model::load(path, options, progress))
    }
}

impl<F: Forward + 'static> ModelHost<F> {
    /// A host whose models come from `loader`, which takes its memory from [`LoadOptions::accountant`].
    #[must_use]
    pub fn with_loader(
        options: HostOptions,
        loader: impl Fn(&Path, &LoadOptions, &mut dyn FnMut(LoadProgress)) -> Result<Arc<Model<F>>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        let inner = Arc::new(HostInner {
            accountant: Accountant::new(options.budget_bytes),
            loader: Box::new(loader),
            guard: CrashGuard::new(options.guard_dir),
            clock: options.clock,
            idle: options.idle_unload,
            heat: Mutex::default(),
            models: Mutex::new(Vec::new()),
            stop: Arc::new((Mutex::new(false), Condvar::new())),
        });
        if let Some(idle) = options.idle_unload {
            watch_idle(&inner, idle);
        }
        Self { inner }
    }

    /// A model of this host. Nothing is read; it is loaded when first used, or by [`ManagedModel::load`].
    #[must_use]
    pub fn open(&self, source: ModelSource) -> ManagedModel<F> {
        let model = ModelInner::new(Arc::clone(&self.inner), source);
        let mut models = self.inner.models.lock().unwrap_or_else(PoisonError::into_inner);
        models.retain(|m| m.strong_count() > 0);
        models.push(Arc::downgrade(&model));
        ManagedModel::from_inner(model)
    }

    /// The memory of all models, and of the process.
    #[must_use]
    pub fn memory(&self) -> MemoryUse {
        let accountant = &self.inner.accountant;
        MemoryUse {
            budget: accountant.budget(),
            used: accountant.used(),
            peak: accountant.peak(),
            process: SystemMemory.read().ok(),
        }
    }

    /// Changes the budget, and unloads idle models until what is used fits.
    pub fn set_budget(&self, bytes: Option<u64>) {
        self.inner.accountant.set_budget(bytes);
        if let Some(bytes) = bytes {
            self.inner.shrink_to(bytes, &ModelState::Unloaded);
        }
    }

    /// Unloads what was not used for the time in [`HostOptions::idle_unload`]; a thread does it too. Answers how many.
    pub fn unload_idle(&self) -> usize {
        self.inner.unload_idle()
    }

    /// Gives memory back to the system. Running generations go on, with smaller caches.
    ///
    /// * Moderate: what is only kept for speed goes, and all idle models but the one used last.
    /// * Critical: every idle model goes.
    pub fn on_pressure(&self, level: MemoryPressure) {
        for model in self.inner.models() {
            model.tell_pressure(level);
        }
        let mut idle = match level {
            MemoryPressure::Normal => return,
            MemoryPressure::Moderate | MemoryPressure::Critical => self.inner.idle_models(),
        };
        if level == MemoryPressure::Moderate {
            // The last one used is most likely the next one used.
            if let Some((_, last)) = idle.pop() {
                last.forget();
            }
        }
        for (_, model) in idle {
            model.take_out(&ModelState::Unloaded, true);
        }
    }

    /// The system says how hot the device is, which holds until it says otherwise, also for models that are loaded later. Running
    /// generations go on with fewer threads, or with all of them again, and tell it with a notice. Any thread; never blocks.
    pub fn on_thermal(&self, level: ThermalLevel) {
        *self.inner.heat.lock().unwrap_or_else(PoisonError::into_inner) = level;
        for model in self.inner.models() {
            model.tell_heat(level);
        }
    }

    /// For the app's way to the background: writes the checkpoints of conversations, then unloads models until at most
    /// `keep_bytes` are used; idle ones first, then those that generate, whose generations are cancelled.
    ///
    /// # Errors
    /// The first checkpoint that could not be written; everything else was done all the same.
    pub fn suspend(&self, keep_bytes: u64) -> Result<()> {
        let models = self.inner.models();
        let checkpoints = models.iter().map(|m| m.checkpoint()).fold(Ok(()), Result::and);
        self.inner.shrink_to(keep_bytes, &ModelState::Suspended);
        for model in models {
            if self.inner.accountant.used() <= keep_bytes {
                break;
            }
            model.take_out(&ModelState::Suspended, false);
        }
        checkpoints
    }

    /// For the app's way back: loads what [`suspend`](Self::suspend) unloaded. A model that is used before loads by itself.
    ///
    /// # Errors
    /// The first model that could not be loaded; the others were tried all the same.
    pub fn resume(&self) -> Result<()> {
        let suspended = self.inner.models().into_iter().filter(|m| m.state() == ModelState::Suspended);
        suspended.map(|m| m.load(false, &mut |_| {})).fold(Ok(()), Result::and)
    }

    /// Closes all models. Idempotent, never blocks on a generation.
    pub fn close(&self) {
        for model in self.inner.models() {
            model.close();
        }
    }
}

impl<F: Forward> HostInner<F> {
    fn models(&self) -> Vec<Arc<ModelInner<F>>> {
        let models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        models.iter().filter_map(Weak::upgrade).collect()
    }

    /// What was said last.
    pub fn heat(&self) -> ThermalLevel {
        *self.heat.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loaded models that nobody uses, the least recently used first.
    fn idle_models(&self) -> Vec<(Duration, Arc<ModelInner<F>>)> {
        let mut idle: Vec<_> =
            self.models().into_iter().filter_map(|m| m.idle_since().map(|since| (since, m))).collect();
        idle.sort_by_key(|(since, _)| *since);
        idle
    }

    /// Unloads the idle model that was not used for the longest time, other than `except`. Answers whether there was one.
    pub fn make_room(&self, except: &ModelInner<F>) -> bool {
        self.idle_models()
            .into_iter()
            .filter(|(_, model)| !std::ptr::eq(Arc::as_ptr(model), except))
            .any(|(_, model)| model.take_out(&ModelState::Unloaded, true))
    }

    fn shrink_to(&self, bytes: u64, rest: &ModelState) {
        for (_, model) in self.idle_models() {
            if self.accountant.used() <= bytes {
                break;
            }
            model.take_out(rest, true);
        }
    }

    fn unload_idle(&self) -> usize {
        let Some(idle) = self.idle else { return 0 };
        let now = self.clock.now();
        let due = self.idle_models().into_iter().filter(|(since, _)| now.saturating_sub(*since) >= idle);
        due.filter(|(_, model)| model.take_out(&ModelState::Unloaded, true)).count()
    }

    /// Calls the loader; its panics are errors.
    pub fn call_loader(
        &self,
        path: &Path,
        options: &LoadOptions,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Arc<Model<F>>> {
        catch_unwind(AssertUnwindSafe(|| (self.loader)(path, options, progress)))
            .unwrap_or_else(|_| Err(Error::internal("loading a model panicked")))
    }
}

impl<F: Forward> Drop for HostInner<F> {
    fn drop(&mut self) {
        let (stop, wake) = &*self.stop;
        *stop.lock().unwrap_or_else(PoisonError::into_inner) = true;
        wake.notify_all();
    }
}

/// Looks for idle models several times per idle time. Without a thread, unloading waits for calls of `unload_idle`.
fn watch_idle<F: Forward + 'static>(host: &Arc<HostInner<F>>, idle: Duration) {
    let period = (idle / 4).clamp(Duration::from_millis(10), Duration::from_secs(15));
    let (weak, stop) = (Arc::downgrade(host), Arc::clone(&host.stop));
    let work = move || {
        loop {
            let (stopped, wake) = &*stop;
            let guard = stopped.lock().unwrap_or_else(PoisonError::into_inner);
            let (guard, _) =
                wake.wait_timeout_while(guard, period, |s| !*s).unwrap_or_else(PoisonError::into_inner);
            if *guard {
                return;
            }
            drop(guard);
            match weak.upgrade() {
                Some(host) => host.unload_idle(),
                None => return,
            };
        }
    };
    let _ = std::thread::Builder::new().name("pannier-idle".into()).spawn(work);
}
