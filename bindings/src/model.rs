//! Models.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use pannier::lifecycle::{ManagedModel, ModelSource, ModelState, Watch};
use pannier::session::{DraftOptions, LoadOptions, LoadProgress};

use crate::border::on_thread;
use crate::{Chat, ChatConfig, KvConfig, PannierError, PlanReport, PrecisionChoice, SpeculationChoice};

/// Which model, and how it is loaded. What is absent is the engine's default.
#[derive(Debug, Clone, uniffi::Record)]
pub struct ModelConfig {
    /// The GGUF file; the first one of a split model. It need not be there yet.
    pub path: String,
    /// The longest conversation in tokens; absent: what the model was trained for.
    #[uniffi(default = None)]
    pub context: Option<u32>,
    /// Threads; absent: the performance cores.
    #[uniffi(default = None)]
    pub threads: Option<u32>,
    /// The most prompt tokens per pass.
    #[uniffi(default = None)]
    pub prefill_chunk: Option<u32>,
    /// The KV cache; absent: everything is kept, in halves.
    #[uniffi(default = None)]
    pub kv: Option<KvConfig>,
    /// Which view of a file in nested precision is loaded, and answers if a request does not say; absent: the full one.
    #[uniffi(default = None)]
    pub precision: Option<PrecisionChoice>,
    /// The GGUF file of a smaller model of the same vocabulary that guesses tokens for this one; absent: none.
    #[uniffi(default = None)]
    pub draft_path: Option<String>,
    /// Where guesses come from if a request does not say; absent: from the draft model if there is one, else nowhere.
    #[uniffi(default = None)]
    pub speculation: Option<SpeculationChoice>,
}

impl ModelConfig {
    pub(crate) fn options(&self) -> LoadOptions {
        let d = LoadOptions::default();
        LoadOptions {
            context: self.context.map(|n| n as usize),
            threads: self.threads.map(|n| n as usize),
            prefill_chunk: self.prefill_chunk.map_or(d.prefill_chunk, |n| n as usize),
            kv: self.kv.as_ref().map_or(d.kv, KvConfig::options),
            weight_precision: self.precision.map_or(d.weight_precision, Into::into),
            draft: self.draft_path.as_deref().map(DraftOptions::new),
            speculation: self.speculation.map(Into::into),
            ..d
        }
    }

    pub(crate) fn into_source(self) -> ModelSource {
        ModelSource { options: self.options(), path: PathBuf::from(self.path) }
    }
}

/// The state of a model, from download to unloading.
#[derive(Debug, Clone, PartialEq, uniffi::Enum)]
pub enum ModelLifeState {
    /// There is no file.
    NotDownloaded,
    /// The file is arriving.
    Downloading {
        /// Bytes on disk.
        done: u64,
        /// Size of the file, where known.
        total: Option<u64>,
    },
    /// The file is there; nothing is loaded.
    Downloaded,
    /// The file is being rewritten into the layout for streaming.
    Preparing {
        /// How much is done, from 0 to 1.
        fraction: f32,
    },
    /// The model is being loaded.
    Loading {
        /// How much is done, from 0 to 1.
        fraction: f32,
    },
    /// Loaded, and idle.
    Ready,
    /// Loaded, and answering.
    Generating,
    /// Unloaded because the app went to the background.
    Suspended,
    /// Unloaded; loaded again when it is used.
    Unloaded,
    /// The last attempt to download or load failed.
    Failed {
        /// Why.
        reason: String,
    },
}

impl From<&ModelState> for ModelLifeState {
    fn from(state: &ModelState) -> Self {
        match state {
            ModelState::NotDownloaded => Self::NotDownloaded,
            ModelState::Downloading { done, total } => Self::Downloading { done: *done, total: *total },
            ModelState::Downloaded => Self::Downloaded,
            ModelState::Preparing { fraction } => Self::Preparing { fraction: *fraction },
            ModelState::Loading { fraction } => Self::Loading { fraction: *fraction },
            ModelState::Ready => Self::Ready,
            ModelState::Generating => Self::Generating,
            ModelState::Suspended => Self::Suspended,
            ModelState::Failed { reason } => Self::Failed { reason: reason.clone() },
            _ => Self::Unloaded,
        }
    }
}

/// What there is to tell about a loaded model.
#[derive(Debug, Clone, PartialEq, uniffi::Record)]
pub struct ModelDetails {
    /// The name in the file.
    pub name: String,
    /// The architecture.
    pub architecture: String,
    /// The context it runs with, in tokens.
    pub context: u64,
    /// The context it was trained for, in tokens.
    pub trained_context: u64,
    /// Size of the file.
    pub file_bytes: u64,
    /// Threads.
    pub threads: u32,
    /// Which kernels run: the name of an instruction set.
    pub isa: String,
    /// What was wrong in the file and how it was mended.
    pub notes: Vec<String>,
    /// How long loading took.
    pub load_ms: f64,
}

/// Hears how loading goes on, on the loading thread.
#[uniffi::export(callback_interface)]
pub trait LoadSink: Send + Sync {
    /// How much is done, from 0 to 1.
    fn on_progress(&self, fraction: f32);
}

/// Hears of changes of a model's state, in order, on the thread that changes it.
#[uniffi::export(callback_interface)]
pub trait StateObserver: Send + Sync {
    /// The new state.
    fn on_state(&self, state: ModelLifeState);
}

/// An observation; it ends when this is released or stopped.
#[derive(Debug, uniffi::Object)]
pub struct StateWatch {
    inner: Mutex<Option<Watch>>,
}

#[uniffi::export]
impl StateWatch {
    /// Ends the observation. Idempotent. A change that is being told at this moment may still arrive.
    pub fn stop(&self) {
        let watch = self.inner.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(watch);
    }
}

/// A model that is loaded when it is used, and unloaded when the budget, the system or the app asks.
#[derive(Debug, uniffi::Object)]
pub struct Model {
    pub(crate) inner: ManagedModel,
}

#[uniffi::export]
impl Model {
    /// Loads it now; does nothing to a loaded model. `forced` overrides the crash-loop guard.
    pub async fn load(&self, forced: bool, sink: Option<Box<dyn LoadSink>>) -> Result<(), PannierError> {
        let model = self.inner.clone();
        on_thread(move || {
            let mut progress = |p: LoadProgress| {
                if let Some(sink) = &sink {
                    sink.on_progress(p.fraction);
                }
            };
            let result = model.load(forced, &mut progress);
            result.map_err(|e| PannierError::from(e).with_plan(|| model.plan().ok().map(Into::into)))
        })
        .await
    }

    /// What loading it takes under the engine's budget.
    pub async fn plan(&self) -> Result<PlanReport, PannierError> {
        let model = self.inner.clone();
        on_thread(move || Ok(model.plan()?.into())).await
    }

    /// What it is doing.
    pub fn state(&self) -> ModelLifeState {
        (&self.inner.state()).into()
    }

    /// Tells the observer every later change of the state.
    pub fn observe(&self, observer: Box<dyn StateObserver>) -> Arc<StateWatch> {
        let watch = self.inner.watch(move |state| observer.on_state(state.into()));
        Arc::new(StateWatch { inner: Mutex::new(Some(watch)) })
    }

    /// What there is to tell about the loaded model; absent while it is not loaded.
    pub fn details(&self) -> Option<ModelDetails> {
        let (info, context) = (self.inner.info()?, self.inner.context()?);
        Some(ModelDetails {
            name: info.name,
            architecture: info.architecture,
            context: context as u64,
            trained_context: info.trained_context as u64,
            file_bytes: info.file_bytes,
            threads: u32::try_from(info.threads).unwrap_or(u32::MAX),
            isa: info.isa,
            notes: info.notes,
            load_ms: info.load_time.as_secs_f64() * 1e3,
        })
    }

    /// A conversation. Nothing is loaded until it is used.
    pub fn chat(&self, config: ChatConfig) -> Result<Arc<Chat>, PannierError> {
        let checkpoint = config.checkpoint_path.clone().map(PathBuf::from);
        let chat = self.inner.chat(config.into_options()?);
        chat.set_checkpoint(checkpoint);
        Ok(Chat::new(chat))
    }

    /// Frees its memory; generations are cancelled. The next use loads it again. Never blocks.
    pub fn unload(&self) {
        self.inner.unload();
    }

    /// Like `unload`, and for good. Idempotent, never blocks.
    pub fn shutdown(&self) {
        self.inner.close();
    }
}
