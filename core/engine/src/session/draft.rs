//! Loading a draft model: its share of the budget comes first, its buffers last.

use std::path::PathBuf;
use std::sync::Arc;

use pannier_gguf::Gguf;
use pannier_kernels::Parallel;
use pannier_tokenizer::Tokenizer;

use super::LoadOptions;
use crate::Result;
use crate::kv::KvOptions;
use crate::memory::{Accountant, Category, Reservation};
use crate::model::{Blueprint, ModelOptions, Runner, RunnerOptions};
use crate::plan::{self, DEFAULT_CONTEXT, DraftShare, Plan, PlanWish};
use crate::residency::StreamOptions;
use crate::speculate::{Draft, SpeculationError, Vocabulary, same_vocabulary};

/// A draft model to load with a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DraftOptions {
    /// The GGUF file; the first one, if it is split.
    pub path: PathBuf,
    /// The most bytes of the budget that its weights, KV cache and buffers may take; `None`: what they need.
    pub budget_bytes: Option<u64>,
}

impl DraftOptions {
    /// With as much memory as it needs.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), budget_bytes: None }
    }
}

/// A draft model whose directory was read.
pub(crate) struct OpenedDraft {
    gguf: Arc<Gguf>,
    blueprint: Blueprint,
    plan: Plan,
}

impl OpenedDraft {
    /// Opens the file, and looks what it needs.
    ///
    /// # Errors
    /// What opening and planning may bring; [`SpeculationError::DraftDoesNotFit`] for a budget of its own.
    pub fn new(wish: &DraftOptions, options: &LoadOptions, threads: usize) -> Result<Self> {
        let gguf = Arc::new(Gguf::open(&wish.path)?);
        let trained = Blueprint::read(Arc::clone(&gguf), &ModelOptions::default())?.spec().trained_context;
        let context = options.context.unwrap_or(DEFAULT_CONTEXT).min(trained.max(1));
        let of = ModelOptions { context: Some(context), ..ModelOptions::default() };
        // Without a limit: a draft model is worth its memory only if all of it is there.
        let unlimited =
            PlanWish { chunk: Some(DRAFT_CHUNK), threads, kv: draft_kv(options), ..PlanWish::default() };
        let (blueprint, plan) = plan::prepare(&gguf, &of, &unlimited)?;
        let needed = plan.as_draft().bytes();
        match wish.budget_bytes {
            Some(share) if share < needed => Err(SpeculationError::DraftDoesNotFit { needed, share }.into()),
            _ => Ok(Self { gguf, blueprint, plan }),
        }
    }

    /// What it takes.
    pub fn share(&self) -> DraftShare {
        self.plan.as_draft()
    }

    /// Takes that from the budget.
    ///
    /// # Errors
    /// [`Error::OutOfBudget`](crate::Error::OutOfBudget).
    pub(super) fn reserve(self, accountant: &Accountant) -> Result<PlannedDraft> {
        let share = accountant.reserve(Category::Weights, self.share().bytes())?;
        Ok(PlannedDraft { opened: self, share })
    }
}

/// A draft model that has its share of the budget, and no buffers yet.
pub(super) struct PlannedDraft {
    opened: OpenedDraft,
    share: Reservation,
}

/// The model's element types; all positions are kept, and no prefixes: the model's own tell what is shared.
fn draft_kv(options: &LoadOptions) -> KvOptions {
    let KvOptions { types, window_slack, .. } = options.kv;
    KvOptions { types, window_slack, prefix_bytes: 0, ..KvOptions::default() }
}

/// Tokens that it reads at once: it reads texts once, and a pass of the model waits meanwhile.
const DRAFT_CHUNK: usize = 128;

impl PlannedDraft {
    /// Refuses a draft model that means something else by its tokens.
    ///
    /// # Errors
    /// Those of [`same_vocabulary`].
    pub fn check(&self, target: Option<&Tokenizer>, ids: usize) -> Result<()> {
        // Only for this comparison: the texts of tokens are the model's own.
        let own = Tokenizer::from_metadata(self.opened.gguf.metadata()).ok();
        let draft = Vocabulary { tokenizer: own.as_ref(), ids: self.opened.blueprint.spec().vocab };
        Ok(same_vocabulary(Vocabulary { tokenizer: target, ids }, draft)?)
    }

    /// Takes its buffers. It runs on the model's own threads: the two never run at the same time.
    ///
    /// # Errors
    /// What loading may bring.
    pub fn load(
        self,
        options: &LoadOptions,
        pool: Arc<dyn Parallel + Send + Sync>,
        target_bytes: u64,
    ) -> Result<Draft<Runner>> {
        // What it allocates is counted against its share, which is taken already.
        let own = Accountant::new(Some(self.share.bytes()));
        let OpenedDraft { blueprint, plan, .. } = self.opened;
        let loaded = blueprint.load(plan.residency, &StreamOptions::default(), &own)?;
        let runner_options = RunnerOptions {
            chunk: plan.chunk,
            kv: draft_kv(options),
            precision: options.precision,
            kernels: options.kernels,
            ..RunnerOptions::default()
        };
        let runner = Runner::new(Arc::new(loaded), pool, &runner_options, &own)?;
        let chunk = runner.chunk();
        let cost = plan.weight_bytes as f64 / target_bytes.max(1) as f64;
        Ok(Draft::new(runner, chunk, Some(self.share), cost.max(0.01)))
    }
}
