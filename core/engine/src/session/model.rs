//! A loaded model that sessions share.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use pannier_tokenizer::{ChatTemplate, EncodeOptions, TemplateError, Tokenizer, TokenizerError};

use super::core::SessionCore;
use super::turnstile::Turnstile;
use super::{ChatOptions, ChatSession, Clock, MonotonicClock, Session, SessionError, WeightPrecision};
use crate::kv::{KvPolicy, KvTypes};
use crate::memory::{
    Accountant, MemoryPressure, MemoryProbe, MemoryReading, PressureMonitor, PressureOptions, Reservation,
    SystemMemory, ThermalLevel, ThermalMonitor,
};
use crate::model::{Forward, PromptSteps, Runner};
use crate::residency::View;
use crate::speculate::{Draft, Governor, Speculation};
use crate::{Error, Result};

/// What a model is made of. [`ModelParts::new`] fills in what most callers want.
pub struct ModelParts<F> {
    /// Runs the forward passes.
    pub forward: F,
    /// A smaller model of the same vocabulary that guesses tokens for this one.
    pub draft: Option<Draft<F>>,
    /// Where guesses come from if a generation does not say.
    pub speculation: Speculation,
    /// The vocabulary, or why there is none: what needs one gives this error.
    pub tokenizer: Result<Arc<Tokenizer>, TokenizerError>,
    /// The chat template, or why there is none: chats give this error.
    pub template: Result<Arc<ChatTemplate>, TemplateError>,
    /// The most prompt tokens per forward pass. Other sessions wait for at most one pass.
    pub prefill_chunk: usize,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// The memory of the process.
    pub memory: Arc<dyn MemoryProbe>,
    /// Who keeps the budget.
    pub accountant: Accountant,
    /// When to act on scarce memory.
    pub pressure: PressureOptions,
    /// What the model's parts have taken from it; given back with the model.
    pub held: Vec<Reservation>,
    /// What to tell about it.
    pub info: ModelInfo,
}

/// What there is to tell about a loaded model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelInfo {
    /// The name in the file.
    pub name: String,
    /// The architecture.
    pub architecture: String,
    /// The context it was trained for; [`Model::context`] is the one it runs with.
    pub trained_context: usize,
    /// Size of the file, or of all files of a split model.
    pub file_bytes: u64,
    /// Threads of the forward passes.
    pub threads: usize,
    /// Which kernels run: the name of an instruction set.
    pub isa: String,
    /// Element types of the KV cache: other types than halves change answers a little.
    pub kv_types: KvTypes,
    /// What the KV cache may forget.
    pub kv_policy: KvPolicy,
    /// Which view of a file in nested precision answers, if a request does not say.
    pub weight_precision: WeightPrecision,
    /// What was wrong in the file and how it was mended.
    pub notes: Vec<String>,
    /// How long loading took.
    pub load_time: Duration,
}

impl<F: Forward> ModelParts<F> {
    /// A model without a vocabulary, on the system's clock, without a budget.
    #[must_use]
    pub fn new(forward: F) -> Self {
        Self {
            forward,
            draft: None,
            speculation: Speculation::Off,
            tokenizer: Err(TokenizerError::NoVocabulary { model: "absent".to_owned() }),
            template: Err(TemplateError::NoTemplate),
            prefill_chunk: 512,
            clock: Arc::new(MonotonicClock::default()),
            memory: Arc::new(SystemMemory),
            accountant: Accountant::new(None),
            pressure: PressureOptions::default(),
            held: Vec::new(),
            info: ModelInfo::default(),
        }
    }
}

/// A loaded model. Sessions take turns, pass by pass, in the order in which they ask.
///
/// Closing and dropping never wait: a generation that is under way notices within one layer's work, and the last user frees
/// the memory.
pub struct Model<F: Forward = Runner> {
    pub(super) forward: Turnstile<F>,
    pub(super) draft: Option<Arc<Draft<F>>>,
    pub(super) speculation: Speculation,
    pub(super) governor: Mutex<Governor>,
    pub(super) tokenizer: Result<Arc<Tokenizer>, TokenizerError>,
    template: Result<Arc<ChatTemplate>, TemplateError>,
    pub(super) vocab: usize,
    pub(super) context: usize,
    pub(super) weight_precision: WeightPrecision,
    /// Whether there is a low view, and a full one.
    pub(super) views: (bool, bool),
    pub(super) prefill_chunk: usize,
    pub(super) prompt_steps: PromptSteps,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) memory: Arc<dyn MemoryProbe>,
    pub(super) accountant: Accountant,
    pub(super) pressure: PressureMonitor,
    pub(super) heat: ThermalMonitor,
    info: ModelInfo,
    _held: Vec<Reservation>,
    sessions: Mutex<Vec<Weak<SessionCore<F>>>>,
}

impl<F: Forward> Model<F> {
    /// Puts a model together.
    #[must_use]
    pub fn from_parts(parts: ModelParts<F>) -> Arc<Self> {
        Arc::new(Self {
            vocab: parts.forward.vocab(),
            context: parts.forward.context(),
            weight_precision: parts.info.weight_precision,
            views: (parts.forward.has_view(View::Low), parts.forward.has_view(View::Full)),
            prompt_steps: parts.forward.prompt_steps(),
            forward: Turnstile::new(parts.forward),
            draft: parts.draft.map(Arc::new),
            speculation: parts.speculation,
            governor: Mutex::default(),
            tokenizer: parts.tokenizer,
            template: parts.template,
            prefill_chunk: parts.prefill_chunk.max(1),
            clock: parts.clock,
            memory: parts.memory,
            accountant: parts.accountant,
            pressure: PressureMonitor::new(parts.pressure),
            heat: ThermalMonitor::default(),
            info: parts.info,
            _held: parts.held,
            sessions: Mutex::new(Vec::new()),
        })
    }

    /// What there is to tell about it.
    #[must_use]
    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    /// The memory of the process, as the system tells it.
    ///
    /// # Errors
    /// [`Error::MemoryReading`].
    pub fn memory_reading(&self) -> Result<MemoryReading> {
        self.memory.read()
    }

    /// Number of token ids.
    #[must_use]
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// The most tokens of a sequence, prompt and answer together.
    #[must_use]
    pub fn context(&self) -> usize {
        self.context
    }

    /// The vocabulary.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the model runs on ids only.
    pub fn tokenizer(&self) -> Result<&Arc<Tokenizer>> {
        self.tokenizer.as_ref().map_err(|e| e.clone().into())
    }

    /// The chat template of the file.
    ///
    /// # Errors
    /// [`Error::Template`] if there is none, or it can't be compiled.
    pub fn template(&self) -> Result<&Arc<ChatTemplate>> {
        self.template.as_ref().map_err(|e| e.clone().into())
    }

    /// The system says that memory is scarce (`onTrimMemory`, `didReceiveMemoryWarning`), or no longer. Takes effect within one token
    /// of the running generation, which tells it with a notice. Any thread; never blocks.
    pub fn on_memory_pressure(&self, level: MemoryPressure) {
        self.pressure.tell(level);
    }

    /// Whether a draft model is loaded: it is given up when memory is scarce.
    #[must_use]
    pub fn has_draft(&self) -> bool {
        self.draft.as_ref().is_some_and(|draft| !draft.is_released())
    }

    /// The system says how hot the device is. Takes effect within one token of the running generation, which tells it with a notice. Any
    /// thread; never blocks.
    pub fn on_thermal(&self, level: ThermalLevel) {
        self.heat.tell(level);
    }

    /// Who keeps the budget.
    #[must_use]
    pub fn accountant(&self) -> &Accountant {
        &self.accountant
    }

    /// A session for raw completions.
    #[must_use]
    pub fn session(self: &Arc<Self>) -> Session<F> {
        Session::new(self.new_core())
    }

    /// A session that keeps a conversation.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] or [`Error::Template`] if the model can't chat.
    pub fn chat(self: &Arc<Self>, options: ChatOptions) -> Result<ChatSession<F>> {
        self.tokenizer()?;
        let template = match &options.template {
            Some(template) => Arc::clone(template),
            None => Arc::clone(self.template()?),
        };
        Ok(ChatSession::new(self.new_core(), template, options))
    }

    pub(super) fn new_core(self: &Arc<Self>) -> Arc<SessionCore<F>> {
        let core = Arc::new(SessionCore::new(Arc::clone(self)));
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.retain(|s| s.strong_count() > 0);
        sessions.push(Arc::downgrade(&core));
        core
    }

    /// Text to prompt tokens: special tokens are recognised. `add_special` adds BOS if the model wants it.
    pub(super) fn encode_prompt(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        let tokenizer = self.tokenizer()?;
        let mut tokens = tokenizer.encode(text, EncodeOptions { add_special, parse_special: true });
        // A prompt is continued; an end-of-sequence token behind it would end it.
        if add_special && tokenizer.add_eos() && tokens.last().is_some_and(|t| tokenizer.is_eog(*t)) {
            tokens.pop();
        }
        Ok(tokens)
    }

    /// Cancels all generations, frees what is idle at once and the rest as soon as it is let go. Idempotent, never blocks.
    /// Later calls to the model's sessions give [`SessionError::Closed`].
    pub fn close(&self) {
        let sessions = std::mem::take(&mut *self.sessions.lock().unwrap_or_else(PoisonError::into_inner));
        self.forward.close();
        if let Some(draft) = &self.draft {
            draft.release();
        }
        for session in sessions.iter().filter_map(Weak::upgrade) {
            session.close();
        }
    }

    /// Whether [`close`](Self::close) was called.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.forward.is_closed()
    }
}

impl<F: Forward> std::fmt::Debug for Model<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model")
            .field("vocab", &self.vocab)
            .field("context", &self.context)
            .field("closed", &self.is_closed())
            .finish_non_exhaustive()
    }
}

impl From<super::turnstile::Refused> for Error {
    fn from(refused: super::turnstile::Refused) -> Self {
        match refused {
            super::turnstile::Refused::Stopped => Self::Cancelled,
            super::turnstile::Refused::Closed => SessionError::Closed { what: "model" }.into(),
        }
    }
}
