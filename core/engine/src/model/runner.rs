//! Runs a model: sequences in, logits out.

use super::activations::ActivationObserver;
use super::forward::{Forward, Outputs, PromptSteps};
use super::loaded::LoadedModel;
use super::pass::{Context, Pass, Tokens};
use super::precision::PrecisionTable;
use super::routing::RouteObserver;
use super::scratch::{Scratch, ScratchPlan};
use super::shortcuts::ExpertShortcuts;
use super::state::{ModelSequence, RecurrentState};
use crate::kv::{Evicted, KvCache, KvOptions, PageReads, WATCH_LAST};
use crate::memory::{Accountant, MemoryPressure, ThermalLevel};
use crate::residency::View;
use crate::{CancelFlag, Error, Result};
use pannier_kernels::{Kernels, PAGE_TOKENS, Parallel, RopeTable};
use std::any::Any;
use std::io::{Read, Seek, Write};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How a model is run.
#[derive(Clone, Debug)]
pub struct RunnerOptions {
    /// The most tokens that are computed together; more cost scratch memory and gain little.
    pub chunk: usize,
    /// The KV cache.
    pub kv: KvOptions,
    /// How activations are rounded; [`PrecisionTable::of`] the model if absent.
    pub precision: Option<PrecisionTable>,
    /// The kernels; the fastest of the machine if absent.
    pub kernels: Option<&'static Kernels>,
    /// Sees which experts are chosen.
    pub observer: Option<Arc<dyn RouteObserver>>,
    /// Experts that may be left out: none, unless somebody wants answers that differ from the model's own.
    pub shortcuts: ExpertShortcuts,
}

impl Default for RunnerOptions {
    fn default() -> Self {
        RunnerOptions {
            chunk: 512,
            kv: KvOptions::default(),
            precision: None,
            kernels: None,
            observer: None,
            shortcuts: ExpertShortcuts::default(),
        }
    }
}

/// A model with the buffers and the KV cache to run it.
pub struct Runner {
    model: Arc<LoadedModel>,
    par: Arc<dyn Parallel + Send + Sync>,
    kernels: &'static Kernels,
    pub(super) precision: PrecisionTable,
    observer: Option<Arc<dyn RouteObserver>>,
    shortcuts: ExpertShortcuts,
    dropped: AtomicU64,
    reads: PageReads,
    activations: Option<Arc<dyn ActivationObserver>>,
    pub(super) accountant: Accountant,
    pub(super) kv: KvCache,
    /// Of new sequences.
    pub(super) view: View,
    scratch: Scratch,
    ropes: Vec<RopeTable>,
    positions: Vec<u32>,
    chunk: usize,
}

impl std::fmt::Debug for Runner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runner")
            .field("arch", &self.model.spec().arch)
            .field("isa", &self.kernels.isa())
            .field("threads", &self.par.threads())
            .field("chunk", &self.chunk)
            .finish_non_exhaustive()
    }
}

impl Runner {
    /// Takes the scratch memory from the budget; the KV cache grows later.
    ///
    /// # Errors
    /// [`Error::OutOfBudget`], and RoPE parameters that make no sense.
    pub fn new(
        model: Arc<LoadedModel>,
        par: Arc<dyn Parallel + Send + Sync>,
        options: &RunnerOptions,
        accountant: &Accountant,
    ) -> Result<Runner> {
        let spec = model.spec();
        // More rows than the context has would only be memory.
        let chunk = options.chunk.clamp(1, spec.context.max(1));
        let precision = options.precision.unwrap_or_else(|| PrecisionTable::of(spec));
        let plan = ScratchPlan {
            spec,
            products: model.products(),
            precision: &precision,
            chunk,
            threads: par.threads(),
            chooses: options.kv.policy.reads().is_some(),
        };
        let scratch = Scratch::new(&plan, accountant)?;
        let kv = KvCache::new(&spec.kv(options.kv.types), options.kv, accountant)?;
        let ropes =
            spec.ropes.iter().map(|rope| rope.table(model.weights(), chunk)).collect::<Result<Vec<_>>>()?;
        Ok(Runner {
            kernels: options.kernels.unwrap_or_else(Kernels::detect),
            precision,
            observer: options.observer.clone(),
            shortcuts: options.shortcuts,
            dropped: AtomicU64::new(0),
            reads: PageReads::default(),
            activations: None,
            accountant: accountant.clone(),
            kv,
            view: model.view(),
            scratch,
            ropes,
            positions: Vec::with_capacity(chunk),
            chunk,
            par,
            model,
        })
    }

    /// The model.
    pub fn model(&self) -> &Arc<LoadedModel> {
        &self.model
    }

    /// The kernels that it runs with.
    pub fn kernels(&self) -> &'static Kernels {
        self.kernels
    }

    /// Threads.
    pub fn threads(&self) -> usize {
        self.par.threads()
    }

    /// The most tokens that are computed together.
    pub fn chunk(&self) -> usize {
        self.chunk
    }

    /// The KV cache.
    pub fn kv(&mut self) -> &mut KvCache {
        &mut self.kv
    }

    /// Reports the choices of routers from now on, or no more.
    pub fn observe(&mut self, observer: Option<Arc<dyn RouteObserver>>) {
        self.observer = observer;
    }

    /// Uses of experts that [`RunnerOptions::shortcuts`] has left out so far.
    pub fn dropped_experts(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Reports what enters the weight matrices from now on, or no more.
    pub fn observe_activations(&mut self, observer: Option<Arc<dyn ActivationObserver>>) {
        self.activations = observer;
    }

    /// A second sequence with the same tokens. Keys and values are shared, states of recurrent layers copied.
    ///
    /// # Errors
    /// [`Error::OutOfBudget`] and [`Error::OutOfMemory`], for such states.
    pub fn fork(&mut self, seq: &ModelSequence) -> Result<ModelSequence> {
        let recurrent = seq.recurrent.as_ref().map(|state| state.fork(&self.accountant)).transpose()?;
        let heat = seq.heat.as_ref().map(|heat| heat.fork()).transpose()?;
        Ok(ModelSequence { kv: self.kv.fork(&seq.kv)?, recurrent, heat, view: seq.view })
    }

    fn check(&self, seq: &ModelSequence, tokens: &[u32]) -> Result<()> {
        let spec = self.model.spec();
        let needed = seq.len().saturating_add(tokens.len());
        if needed > spec.context {
            return Err(Error::ContextFull { needed, limit: spec.context });
        }
        match tokens.iter().position(|&token| token as usize >= spec.vocab) {
            Some(index) => Err(Error::TokenOutOfRange {
                token: tokens.get(index).copied().unwrap_or_default(),
                index,
                vocab: spec.vocab,
            }),
            None => Ok(()),
        }
    }

    /// All chunks of a step; the sequence has room for them. The rows of logits asked for end up in the scratch.
    fn run(
        &mut self,
        seq: &mut ModelSequence,
        tokens: &[u32],
        outputs: Range<usize>,
        cancel: &CancelFlag,
    ) -> Result<()> {
        let (mut written, step) = (0, tokens.len());
        if !outputs.is_empty() {
            self.scratch.fit_logits(outputs.len(), &self.accountant)?;
        }
        for (index, tokens) in tokens.chunks(self.chunk).enumerate() {
            let start = index * self.chunk;
            let wanted = |at: usize| at.saturating_sub(start).min(tokens.len());
            let first = seq.len() + start;
            self.positions.clear();
            self.positions.extend((first..first + tokens.len()).map(|position| position as u32));
            self.ropes.iter_mut().for_each(|rope| rope.prepare(&self.positions));
            self.scratch.fit(tokens.len())?;
            self.model.weights().set_view(seq.view);
            self.model.weights().begin_pass()?;
            let cx = Context {
                kernels: self.kernels,
                par: &*self.par,
                weights: self.model.weights(),
                ropes: &self.ropes,
                precision: &self.precision,
                cancel,
                observer: self.observer.as_deref(),
                routers: self.model.routers(),
                shortcuts: self.shortcuts,
                dropped: &self.dropped,
                activations: self.activations.as_deref(),
                storing_layers: self.model.spec().storing_layers(),
                embd: self.model.spec().embd,
            };
            let outputs = wanted(outputs.start)..wanted(outputs.end);
            let rows = outputs.len();
            let tokens = Tokens { ids: tokens, positions: &self.positions, start, step };
            let of = (&seq.kv, seq.recurrent.as_mut(), seq.heat.as_mut());
            let mut pass = Pass::new(cx, &mut self.kv, of, &mut self.scratch, tokens, (outputs, written));
            self.model.arch().forward(&mut pass)?;
            written += rows;
        }
        Ok(())
    }
}

impl Forward for Runner {
    type Seq = ModelSequence;

    fn new_seq(&mut self) -> Result<ModelSequence> {
        let recurrent = match self.model.spec().recurrent.as_slice() {
            [] => None,
            layers => Some(RecurrentState::new(layers, &self.accountant)?),
        };
        let heat = self.new_heat()?;
        Ok(ModelSequence { kv: self.kv.new_sequence(), recurrent, heat, view: self.view })
    }

    fn vocab(&self) -> usize {
        self.model.spec().vocab
    }

    fn context(&self) -> usize {
        self.model.spec().context
    }

    fn step(
        &mut self,
        seq: &mut ModelSequence,
        tokens: &[u32],
        outputs: Outputs,
        cancel: &CancelFlag,
    ) -> Result<&[f32]> {
        self.check(seq, tokens)?;
        let outputs = outputs.rows(tokens.len());
        if tokens.is_empty() {
            return Ok(&[]);
        }
        let n = tokens.len();
        let (len, slots) = (seq.len(), self.kv.slots(&seq.kv));
        if let Some(heat) = &mut seq.heat {
            heat.begin(len, slots, n)?;
        }
        match self.kv.prepare(&mut seq.kv, n) {
            // What the plan promised to the KV cache was lent to more rows of logits.
            Err(Error::OutOfBudget { .. }) if self.scratch.give_back_logits() => {
                self.kv.prepare(&mut seq.kv, n)?;
            }
            prepared => prepared?,
        }
        if let Some(state) = &mut seq.recurrent {
            state.begin(n);
        }
        // A panic is a bug of ours; what it may have left half done (floats in buffers, keys behind the end of the
        // sequence) is never read.
        let result = catch_unwind(AssertUnwindSafe(|| self.run(seq, tokens, outputs.clone(), cancel)))
            .unwrap_or_else(|panic| Err(Error::internal(message(&*panic))));
        match result {
            Ok(()) => {
                self.kv.commit(&mut seq.kv, n);
                self.reads = self.reads.plus(self.kv.page_reads(len..len + n));
                if let Some(state) = &mut seq.recurrent {
                    state.commit(n);
                }
                if let Some(heat) = &mut seq.heat {
                    heat.commit(len, slots, n);
                }
                Ok(self.scratch.logits.get(..outputs.len() * self.model.spec().vocab).unwrap_or(&[]))
            }
            Err(error) => {
                self.kv.rollback(&mut seq.kv);
                if let Some(state) = &mut seq.recurrent {
                    state.rollback();
                }
                Err(error)
            }
        }
    }

    fn truncate(&mut self, seq: &mut ModelSequence, len: usize) -> Result<()> {
        let have = seq.len();
        if seq.recurrent.as_ref().is_some_and(|state| len <= have && !state.can_truncate(len)) {
            let reason = "the states that recurrent layers had there are gone";
            return Err(Error::CannotTruncate { len, have, reason });
        }
        self.kv.truncate(&mut seq.kv, len)?;
        if let Some(state) = &mut seq.recurrent {
            state.truncate(len);
        }
        if let Some(heat) = &mut seq.heat {
            heat.truncate(len, self.kv.slots(&seq.kv));
        }
        Ok(())
    }

    fn relieve(&mut self, pressure: MemoryPressure) -> Option<u64> {
        let weights = self.model.weights();
        let slots = weights.plan().map_or(0, |plan| u64::from(plan.slots) * plan.slot_bytes);
        let prefixes = self.kv.options().prefix_bytes;
        if slots == 0 && prefixes == 0 {
            return None;
        }
        let slots = if slots > 0 { weights.resize_cache(pressure.share(slots)) } else { 0 };
        self.kv.limit_prefixes(pressure.share(prefixes));
        Some(slots + pressure.share(prefixes))
    }

    fn publish(&mut self, seq: &ModelSequence, tokens: &[u32]) {
        self.publish_sequence(seq, tokens);
    }

    fn published(&mut self, tokens: &[u32]) -> usize {
        self.published_tokens(tokens)
    }

    fn resume(&mut self, tokens: &[u32]) -> Result<Option<ModelSequence>> {
        self.resume_sequence(tokens)
    }

    fn prompt_steps(&self) -> PromptSteps {
        let states = !self.model.spec().recurrent.is_empty() && self.kv.options().prefix_bytes > 0;
        PromptSteps {
            border: states.then_some(PAGE_TOKENS),
            last: if self.kv.options().policy.watches() { WATCH_LAST } else { 0 },
        }
    }

    fn evict(&mut self, seq: &mut ModelSequence) -> Result<Evicted> {
        self.evict_with(seq, self.kv.options().policy)
    }

    fn make_room(
        &mut self,
        seq: &mut ModelSequence,
        next: usize,
        pressure: Option<MemoryPressure>,
    ) -> Result<Option<Evicted>> {
        self.evict_before(seq, next, pressure)
    }

    fn save(&mut self, seq: &ModelSequence, tokens: &[u32], out: &mut dyn Write) -> Result<()> {
        self.save_sequence(seq, tokens, out)
    }

    fn restore<R: Read + Seek>(&mut self, input: &mut R) -> Result<(ModelSequence, Vec<u32>)> {
        self.restore_sequence(input)
    }

    fn undo(&self) -> usize {
        let recurrent = if self.model.spec().recurrent.is_empty() { usize::MAX } else { super::state::UNDO };
        // With shortcuts, answers depend on which experts are in memory, and so on what was guessed: no guesses then.
        // The same holds for what a policy evicts: it looks at whole steps. Which pages a query reads follows from its position.
        let keeps_all = self.kv.options().policy.keeps().is_none();
        let exact = keeps_all && self.shortcuts == ExpertShortcuts::default();
        let exact = if exact { usize::MAX } else { 0 };
        // Pages of windowed layers that a step gave back do not come again.
        self.kv.slack().min(recurrent).min(exact)
    }

    fn flash_bytes(&self) -> Option<u64> {
        let weights = self.model.weights();
        weights.plan().filter(|plan| !plan.mapped).map(|_| weights.flash().bytes)
    }

    fn page_reads(&self) -> PageReads {
        self.reads
    }

    fn cool(&mut self, level: ThermalLevel) -> Option<usize> {
        let threads = level.threads(self.par.threads());
        self.par.limit(threads);
        self.model.weights().read_ahead(level.prefetches());
        Some(threads)
    }

    fn has_view(&self, view: View) -> bool {
        view == self.model.view() || self.model.weights().layout().is_nested()
    }

    fn set_view(&mut self, view: View) -> Result<()> {
        if !self.has_view(view) {
            let what = match view {
                View::Low => "the low view of a file that is not in nested precision",
                View::Full => "the full view of a model that was loaded with the low view only",
            };
            return Err(Error::Unsupported { what: what.into() });
        }
        self.view = view;
        Ok(())
    }

    fn view(seq: &ModelSequence) -> View {
        seq.view
    }

    fn len(seq: &ModelSequence) -> usize {
        seq.len()
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a task panicked".to_owned())
}
