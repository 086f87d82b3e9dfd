//! From a file to a model that sessions can use.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pannier_gguf::Gguf;
use pannier_kernels::{Kernels, Parallel};
use pannier_tokenizer::{ChatTemplate, Tokenizer, TokenizerError};

use super::draft::OpenedDraft;
use super::{Clock, DraftOptions, Model, ModelInfo, ModelParts, MonotonicClock, WeightPrecision};
use crate::kv::KvOptions;
use crate::memory::{Accountant, Category, MemoryProbe, PressureOptions, SystemMemory};
use crate::model::{Blueprint, ExpertShortcuts, ModelOptions, PrecisionTable, Runner, RunnerOptions};
use crate::plan::{self, DeviceProfile, DraftShare, Plan, PlanWish};
use crate::pool::{Pool, SystemCpus, default_threads};
use crate::residency::StreamOptions;
use crate::speculate::{Speculation, SpeculationError};
use crate::{Error, Result};

/// How a model is loaded. The defaults suit a phone with room to spare.
#[derive(Clone)]
pub struct LoadOptions {
    /// Threads of the forward passes; `None`: the performance cores.
    pub threads: Option<usize>,
    /// The most memory, in bytes, that weights, KV cache and buffers may take together; `None`: no limit. Weights that do not fit are
    /// streamed from the file; what cannot be run in this budget is refused before a weight is read.
    pub budget_bytes: Option<u64>,
    /// Who counts memory, to share one budget between models; `None`: one of its own, with `budget_bytes`.
    pub accountant: Option<Accountant>,
    /// The longest sequence; `None`: what the model was trained for, and with a budget at most what fits. Memory is taken as
    /// sequences grow.
    pub context: Option<usize>,
    /// The most prompt tokens per forward pass; fewer if the budget is small. More need more buffers and make other sessions
    /// wait longer.
    pub prefill_chunk: usize,
    /// A smaller model of the same vocabulary that guesses tokens for this one.
    pub draft: Option<DraftOptions>,
    /// Where guesses come from if a generation does not say; `None`: from the draft model if one is named here, else nowhere.
    pub speculation: Option<Speculation>,
    /// How weights that do not fit are streamed.
    pub stream: StreamOptions,
    /// The KV cache.
    pub kv: KvOptions,
    /// How activations are rounded; `None`: as is best for the model's size.
    pub precision: Option<PrecisionTable>,
    /// Which view of a file in nested precision is loaded, and answers if a request does not say. With [`WeightPrecision::Low`] the fine planes are
    /// never read and there is no other view; else a request may ask for any.
    pub weight_precision: WeightPrecision,
    /// Experts that may be left out. Off by default: answers differ from the model's own, and its notes say so.
    pub shortcuts: ExpertShortcuts,
    /// The kernels; `None`: the fastest of the machine.
    pub kernels: Option<&'static Kernels>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// The memory of the process.
    pub memory: Arc<dyn MemoryProbe>,
    /// When to act on scarce memory.
    pub pressure: PressureOptions,
}

impl Default for LoadOptions {
    fn default() -> Self {
        let runner = RunnerOptions::default();
        Self {
            threads: None,
            budget_bytes: None,
            accountant: None,
            context: None,
            prefill_chunk: runner.chunk,
            draft: None,
            speculation: None,
            stream: StreamOptions::default(),
            kv: runner.kv,
            precision: runner.precision,
            weight_precision: WeightPrecision::default(),
            shortcuts: runner.shortcuts,
            kernels: None,
            clock: Arc::new(MonotonicClock::default()),
            memory: Arc::new(SystemMemory),
            pressure: PressureOptions::default(),
        }
    }
}

impl std::fmt::Debug for LoadOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoadOptions")
            .field("threads", &self.threads)
            .field("budget_bytes", &self.budget_bytes)
            .field("context", &self.context)
            .field("prefill_chunk", &self.prefill_chunk)
            .field("draft", &self.draft)
            .field("speculation", &self.speculation)
            .field("kv", &self.kv)
            .field("weight_precision", &self.weight_precision)
            .finish_non_exhaustive()
    }
}

impl LoadOptions {
    fn threads(&self) -> usize {
        self.threads.unwrap_or_else(|| default_threads(&SystemCpus)).max(1)
    }

    /// Where guesses come from if a generation does not say.
    ///
    /// # Errors
    /// [`SpeculationError::NoDraftModel`].
    fn speculation(&self) -> Result<Speculation> {
        match (&self.speculation, &self.draft) {
            (Some(Speculation::Draft), None) => Err(SpeculationError::NoDraftModel.into()),
            (Some(wish), _) => Ok(wish.clone()),
            (None, Some(_)) => Ok(Speculation::Draft),
            (None, None) => Ok(Speculation::Off),
        }
    }

    /// Reads the directory of the draft model, if there is to be one. It has no budget yet.
    pub(crate) fn open_draft(&self) -> Result<Option<OpenedDraft>> {
        self.draft.as_ref().map(|wish| OpenedDraft::new(wish, self, self.threads())).transpose()
    }

    /// Reads the directory of a file and plans for these options: the one way to do it, so that what is told before loading is what loading
    /// does. `budget` is that of the model and its draft model together.
    pub(crate) fn prepare(
        &self,
        gguf: &Arc<Gguf>,
        budget: Option<u64>,
        draft: DraftShare,
        device: &DeviceProfile,
    ) -> Result<(Blueprint, Plan)> {
        self.kv.check()?;
        self.speculation()?;
        // Fewer tokens per pass than usual are a wish; more are a permission.
        let usual = RunnerOptions::default().chunk;
        let chunk = (self.prefill_chunk < usual).then_some(self.prefill_chunk);
        let wish = PlanWish { budget, chunk, threads: self.threads(), kv: self.kv, draft };
        plan::prepare_on(
            gguf,
            device,
            &ModelOptions { context: self.context, view: self.weight_precision.loaded() },
            &wish,
        )
    }
}

/// What a load is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoadStage {
    /// Opening the file and checking its directory.
    Opening,
    /// Building the vocabulary and the chat template.
    Vocabulary,
    /// Checking tensors and decoding the small ones.
    Weights,
    /// Taking buffers and starting threads.
    Buffers,
    /// Done.
    Ready,
}

/// Progress of a load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LoadProgress {
    /// What begins now.
    pub stage: LoadStage,
    /// How much is done, from 0 to 1.
    pub fraction: f32,
}

impl Model<Runner> {
    /// Loads a GGUF file (the first one, if it is split).
    ///
    /// A file without a vocabulary loads and runs on token ids. A chat template that can't be compiled does not hinder
    /// loading; it is reported by [`chat`](Model::chat).
    ///
    /// # Errors
    /// The file is absent, broken, of an unsupported architecture or type, its vocabulary can't be used, or the budget does
    /// not allow its buffers.
    pub fn load(
        path: impl AsRef<Path>,
        options: &LoadOptions,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Arc<Self>> {
        let begun = options.clock.now();
        progress(LoadProgress { stage: LoadStage::Opening, fraction: 0.0 });
        let gguf = Arc::new(Gguf::open(path)?);
        Self::load_opened(&gguf, options, progress, begun)
    }

    /// Loads a file that is open already.
    ///
    /// # Errors
    /// As for [`load`](Self::load).
    pub fn from_gguf(
        gguf: &Arc<Gguf>,
        options: &LoadOptions,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Arc<Self>> {
        let begun = options.clock.now();
        Self::load_opened(gguf, options, progress, begun)
    }

    fn load_opened(
        gguf: &Arc<Gguf>,
        options: &LoadOptions,
        progress: &mut dyn FnMut(LoadProgress),
        begun: Duration,
    ) -> Result<Arc<Self>> {
        let accountant = options.accountant.clone().unwrap_or_else(|| Accountant::new(options.budget_bytes));
        let (threads, speculation) = (options.threads(), options.speculation()?);
        // With a shared accountant the others' share is gone already.
        let budget = accountant.budget().map(|_| accountant.available());
        let draft = options.open_draft()?;
        let share = draft.as_ref().map(OpenedDraft::share).unwrap_or_default();
        let (blueprint, plan) = options.prepare(gguf, budget, share, &DeviceProfile::unknown())?;
        let draft = draft.map(|draft| draft.reserve(&accountant)).transpose()?;
        progress(LoadProgress { stage: LoadStage::Vocabulary, fraction: 0.1 });
        let tokenizer = match Tokenizer::from_metadata(gguf.metadata()) {
            Ok(tokenizer) => Ok(Arc::new(tokenizer)),
            // Ids are enough to run; whoever brings text gets this error.
            Err(
                error @ (TokenizerError::NoVocabulary { .. }
                | TokenizerError::UnsupportedModel { .. }
                | TokenizerError::UnknownPreTokenizer { .. }),
            ) => Err(error),
            Err(error) => return Err(error.into()),
        };
        if let Some(draft) = &draft {
            draft.check(tokenizer.as_deref().ok(), blueprint.spec().vocab)?;
        }
        let mut held = Vec::new();
        let mut notes = Vec::new();
        if let Ok(tokenizer) = &tokenizer {
            held.push(accountant.reserve(Category::Other, tokenizer.heap_bytes() as u64)?);
            notes.extend_from_slice(tokenizer.notes());
        }
        let template = match &tokenizer {
            Ok(tokenizer) => ChatTemplate::from_metadata(gguf.metadata(), tokenizer).map(Arc::new),
            Err(_) => Err(pannier_tokenizer::TemplateError::NoTemplate),
        };
        progress(LoadProgress { stage: LoadStage::Weights, fraction: 0.5 });
        let taken = held.iter().map(crate::memory::Reservation::bytes).sum();
        held.push(plan.reserve_rest(&accountant, taken)?);
        let chunk = options.prefill_chunk.min(plan.chunk);
        let loaded = Arc::new(blueprint.load(plan.residency.clone(), &options.stream, &accountant)?);
        progress(LoadProgress { stage: LoadStage::Buffers, fraction: 0.8 });
        let pool: Arc<dyn Parallel + Send + Sync> = Arc::new(Pool::new(threads));
        // With a budget, prefixes live within what the plan has promised to the KV cache.
        let soft_limit = options.kv.soft_limit.or(accountant.budget().map(|_| plan.kv_bytes));
        let runner_options = RunnerOptions {
            chunk,
            kv: KvOptions { soft_limit, ..options.kv },
            precision: options.precision,
            kernels: options.kernels,
            observer: None,
            shortcuts: options.shortcuts,
        };
        notes.extend(options.shortcuts.describe());
        if options.weight_precision == WeightPrecision::Low {
            notes.push("the low view of the weights: answers differ from those of the full view".to_owned());
        }
        let runner = Runner::new(loaded, Arc::clone(&pool), &runner_options, &accountant)?;
        let draft = draft.map(|draft| draft.load(options, pool, plan.weight_bytes)).transpose()?;
        let name = gguf.metadata().opt_str("general.name").ok().flatten().unwrap_or_default().to_owned();
        let info = ModelInfo {
            name,
            architecture: runner.model().spec().arch.clone(),
            trained_context: runner.model().spec().trained_context,
            file_bytes: gguf.file_bytes(),
            threads: runner.threads(),
            isa: format!("{:?}", runner.kernels().isa()),
            kv_types: options.kv.types,
            kv_policy: options.kv.policy,
            weight_precision: options.weight_precision,
            notes,
            load_time: options.clock.now().saturating_sub(begun),
        };
        let model = Self::from_parts(ModelParts {
            prefill_chunk: runner.chunk(),
            forward: runner,
            draft,
            speculation,
            tokenizer,
            template,
            clock: Arc::clone(&options.clock),
            memory: Arc::clone(&options.memory),
            pressure: options.pressure,
            accountant,
            held,
            info,
        });
        progress(LoadProgress { stage: LoadStage::Ready, fraction: 1.0 });
        Ok(model)
    }
}

impl<F: crate::model::Forward> Model<F> {
    /// Runs `work` with the forward pass itself, between the passes of sessions: for measurements, and for logits of whole
    /// texts. Waits for its turn.
    ///
    /// # Errors
    /// [`Error::Cancelled`] if `cancel` was set while waiting, [`Closed`](super::SessionError::Closed), and what `work` gives.
    pub fn with_forward<R>(
        &self,
        cancel: &crate::CancelFlag,
        work: impl FnOnce(&mut F) -> Result<R>,
    ) -> Result<R, Error> {
        self.forward.with(|| cancel.is_cancelled(), work)?
    }
}
