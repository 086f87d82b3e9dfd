//! What will happen, before it does: what stays in memory, what is streamed, which context fits, how fast it will be, and why.
//!
//! ```text
//! C  = budget - vectors - KV - scratch - the rest of the process - margin      what copies of weights may take
//! all weights fit into C                  the file is mapped, nothing is copied
//! otherwise                               pinned + streamed, see residency::ResidencyPlan
//! ```
//!
//! How fast it will be is the head of `speed.rs`.
//!
//! Made from the tensor directory alone: no weight is read.

mod advice;
mod attention;
mod device;
mod flash;
mod measure;
mod speculation;
mod speed;

pub use device::{AttentionRate, DeviceProfile, FormatRate};
pub use speculation::{Forecast, GUESSES_RIGHT};
pub use speed::TokenTime;

use crate::kv::{EvictWhen, KvOptions, KvTypes};
use crate::memory::{Accountant, Category, Reservation};
use crate::model::{Blueprint, ModelOptions, PrecisionTable, ScratchPlan};
use crate::residency::{ResidencyPlan, ResidencyWish, View};
use crate::{Error, Result};
use pannier_gguf::{Gguf, Value};
use pannier_kernels::PAGE_TOKENS;
use std::sync::Arc;

/// What is asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlanWish {
    /// The memory budget in bytes; what the device has free if absent.
    pub budget: Option<u64>,
    /// The most tokens per prefill pass; 512, or less if that takes too much memory, if absent.
    pub chunk: Option<usize>,
    /// Threads; 1 if 0.
    pub threads: usize,
    /// The KV cache: its element types, and its policy if that bounds it.
    pub kv: KvOptions,
    /// What a draft model beside it takes of the same budget; nothing by default.
    pub draft: DraftShare,
}

/// What a draft model takes of the budget. It stays in memory whole, or is refused: one that is streamed is slower than the model that it
/// drafts for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DraftShare {
    /// Its weights, which are read for each guess: clean pages of its file.
    pub weight_bytes: u64,
    /// Its KV cache, buffers and vectors.
    pub anonymous_bytes: u64,
}

impl DraftShare {
    /// All of it.
    #[must_use]
    pub fn bytes(self) -> u64 {
        self.weight_bytes.saturating_add(self.anonymous_bytes)
    }
}

/// What bounds the speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Reading weights from memory.
    Memory,
    /// Reading weights from flash.
    Flash,
    /// Arithmetic.
    Compute,
}

impl Bound {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Bound::Memory => "memory bandwidth",
            Bound::Flash => "flash bandwidth",
            Bound::Compute => "compute",
        }
    }
}

/// A plan. All sizes in bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Whether it can be done; `notes` say what would fit if not.
    pub fits: bool,
    /// The budget it was made for.
    pub budget: u64,
    /// Tokens of the context.
    pub context: usize,
    /// The longest context that fits this budget, up to that of the training.
    pub max_context: usize,
    /// Tokens per prefill pass.
    pub chunk: usize,
    /// Where the weights live.
    pub residency: ResidencyPlan,
    /// All weights.
    pub weight_bytes: u64,
    /// Weights in memory: mapped, pinned, or in slots for experts.
    pub resident_bytes: u64,
    /// Read from flash for each decoded token.
    pub streamed_bytes_per_token: u64,
    /// The share of expert uses that the cache is expected to serve.
    pub expert_hit_rate: Option<f64>,
    /// The KV cache with a full context.
    pub kv_bytes: u64,
    /// Its element types.
    pub kv_types: KvTypes,
    /// Buffers of a pass.
    pub scratch_bytes: u64,
    /// Norms and biases, as floats.
    pub vector_bytes: u64,
    /// What the draft model takes of the budget; nothing without one.
    pub draft: DraftShare,
    /// Vocabulary, metadata, stacks, code's own data.
    pub other_bytes: u64,
    /// The most anonymous memory.
    pub peak_bytes: u64,
    /// The most clean pages of files: the system takes them back when it needs them.
    pub file_backed_bytes: u64,
    /// Tokens per second, behind half a context.
    pub decode_tok_s: f64,
    /// What that is made of.
    pub time: TokenTime,
    /// Tokens per second.
    pub prefill_tok_s: f64,
    /// What bounds decoding.
    pub bound_by: Bound,
    /// What speculation is made of.
    times: speculation::PassTimes,
    /// What guesses are expected to bring if [`GUESSES_RIGHT`] of them are right: those of the draft model, or those of n-grams, which cost
    /// nothing, without one.
    pub guessing: Forecast,
    /// Advice in words.
    pub notes: Vec<String>,
}

/// Kept free of the budget, so that allocators and the system's own bookkeeping find room.
fn margin(budget: u64) -> u64 {
    (budget / 128).clamp(2 << 20, 32 << 20)
}

/// What the process has besides: code's own data, the allocator's, and the vocabulary: a place per token and per merge.
///
/// Fitted to the kernel's figure of anonymous memory (2026-11-30, x86-64 Linux, `pannier run`, `chat` and `bench` on three vocabularies of
/// 49,152, 151,936 and 262,144 tokens, the last without merges), from which KV and buffers were taken off: 3.3, 9.3 and 5.5 MB were
/// left, this gives 4.0, 10.1 and 6.3.
fn other_bytes(gguf: &Gguf) -> u64 {
    let entries = |key: &str| match gguf.metadata().get(key) {
        Some(Value::Array(array)) => array.len() as u64,
        _ => 0,
    };
    (1 << 20) + 20 * entries("tokenizer.ggml.tokens") + 40 * entries("tokenizer.ggml.merges")
}

/// The context of chats on phones, when nothing is said.
pub const DEFAULT_CONTEXT: usize = 4096;

impl Plan {
    /// Makes a plan for a model that was read with the wished context.
    ///
    /// # Errors
    /// Only for mistakes in the model's file: a wish that cannot be met is a plan with `fits == false`.
    pub fn new(model: &Blueprint, device: &DeviceProfile, wish: &PlanWish) -> Result<Plan> {
        let spec = model.spec();
        let budget = wish.budget.unwrap_or(device.free);
        let threads = wish.threads.max(1);
        let precision = PrecisionTable::of(spec);
        let chooses = wish.kv.policy.reads().is_some();
        let scratch = |chunk| {
            let products = model.products();
            ScratchPlan { spec, products, precision: &precision, chunk, threads, chooses }.bytes()
        };
        let chunk = match wish.chunk {
            Some(chunk) => chunk.clamp(1, spec.context.max(1)),
            None => {
                let mut chunk = 512usize.min(spec.context.max(1));
                // A smaller chunk costs prefill speed; a scratch of more than a tenth of the budget costs decode speed.
                while chunk > 32 && scratch(chunk) > budget / 10 {
                    chunk /= 2;
                }
                chunk
            }
        };
        let layout = model.layout();
        let vector_bytes: u64 = layout.vectors().iter().map(|vector| 4 * vector.len as u64).sum();
        let weight_bytes: u64 = layout.units().iter().map(|unit| unit.bytes()).sum();
        let (scratch_bytes, other_bytes) = (scratch(chunk), other_bytes(model.gguf()));
        let (kv_types, policy) = (wish.kv.types, wish.kv.policy);
        let fresh_bytes = fresh_bytes(model, spec.context, chunk, &wish.kv);
        let kv_bytes = kv_bytes(model, spec.context, chunk, &wish.kv).saturating_add(fresh_bytes);
        let draft = wish.draft;
        let fixed =
            (vector_bytes + scratch_bytes + other_bytes + margin(budget)).saturating_add(draft.bytes());
        let around = fixed.saturating_add(kv_bytes);

        let mut plan = Plan {
            fits: true,
            budget,
            context: spec.context,
            max_context: 0,
            chunk,
            residency: ResidencyPlan::default(),
            weight_bytes,
            resident_bytes: 0,
            streamed_bytes_per_token: 0,
            expert_hit_rate: None,
            kv_bytes,
            kv_types,
            scratch_bytes,
            vector_bytes,
            draft,
            other_bytes,
            peak_bytes: 0,
            file_backed_bytes: 0,
            decode_tok_s: 0.0,
            time: TokenTime::default(),
            prefill_tok_s: 0.0,
            bound_by: Bound::Memory,
            times: speculation::PassTimes::default(),
            guessing: Forecast::default(),
            notes: Vec::new(),
        };
        let mut wish = ResidencyWish { budget: None, experts_used: model.experts_used() };
        let mut least = 0;
        if weight_bytes.saturating_add(around) > budget {
            wish.budget = Some(budget.saturating_sub(around));
        }
        match ResidencyPlan::new(layout, &wish)? {
            Ok(residency) => plan.residency = residency,
            Err(short) => {
                plan.fits = false;
                least = short.needed;
                // Speeds and sizes of the smallest budget that would do.
                wish.budget = Some(short.needed);
                if let Ok(residency) = ResidencyPlan::new(layout, &wish)? {
                    plan.residency = residency;
                }
            }
        }
        // Without weights to stream, a longer context costs only its KV.
        let least_weights = if plan.residency.mapped { weight_bytes } else { least_copies(model, &wish)? };
        let per_token = kv_bytes.saturating_sub(fresh_bytes) / spec.context.max(1) as u64;
        let spare = budget.saturating_sub(fixed).saturating_sub(fresh_bytes).saturating_sub(least_weights);
        plan.max_context = spare.checked_div(per_token).map_or(spec.trained_context, |tokens| {
            usize::try_from(tokens).unwrap_or(usize::MAX).min(spec.trained_context) / PAGE_TOKENS
                * PAGE_TOKENS
        });
        plan.sizes(around - margin(budget) - draft.weight_bytes);
        plan.speed(model, device, &precision, policy);
        plan.guessing = plan.speculation(device, GUESSES_RIGHT, draft.weight_bytes);
        advice::notes(&mut plan, model, device, least.saturating_add(around));
        Ok(plan)
    }

    fn sizes(&mut self, around: u64) {
        let residency = &self.residency;
        let copies = residency.anonymous_bytes();
        self.resident_bytes = if residency.mapped {
            self.weight_bytes
        } else {
            residency.pinned_bytes + u64::from(residency.slots) * residency.slot_bytes
        };
        self.peak_bytes = around + copies;
        self.file_backed_bytes =
            self.draft.weight_bytes + if residency.mapped { self.weight_bytes } else { 0 };
    }

    /// What guesses are expected to bring that are right with probability `right` (see [`GUESSES_RIGHT`]); those of n-grams cost nothing, a
    /// draft model of `draft_bytes` reads these for each.
    #[must_use]
    pub fn speculation(&self, device: &DeviceProfile, right: f64, draft_bytes: u64) -> Forecast {
        self.times.forecast(right, draft_bytes as f64 / device.decode_bps)
    }

    /// What the model of this plan takes of the budget of a model that it drafts for.
    #[must_use]
    pub fn as_draft(&self) -> DraftShare {
        // Besides: reads of directories, stacks of vectors.
        const ROUND: u64 = 1 << 20;
        let anonymous_bytes = self.kv_bytes + self.scratch_bytes + self.vector_bytes + ROUND;
        DraftShare { weight_bytes: self.weight_bytes, anonymous_bytes }
    }

    /// The plan, or the error that carries it.
    ///
    /// # Errors
    /// [`Error::DoesNotFit`].
    pub fn check(self) -> Result<Plan> {
        if self.fits { Ok(self) } else { Err(Error::DoesNotFit { plan: Box::new(self) }) }
    }

    /// Takes from the budget what the process has besides weights, KV and buffers. `taken` of it this model has reserved already; what
    /// other models of the same accountant have is theirs.
    ///
    /// # Errors
    /// [`Error::OutOfBudget`].
    pub fn reserve_rest(&self, accountant: &Accountant, taken: u64) -> Result<Reservation> {
        accountant.reserve(Category::Other, self.other_bytes.saturating_sub(taken))
    }
}

/// Reads a model's directory and plans for it. Without a budget everything is mapped. With one but without a wished context, the
/// context is the usual one, or what fits.
///
/// # Errors
/// Those of [`Blueprint::read`] and [`KvOptions::check`]; [`Error::DoesNotFit`].
pub fn prepare(gguf: &Arc<Gguf>, options: &ModelOptions, wish: &PlanWish) -> Result<(Blueprint, Plan)> {
    prepare_on(gguf, &DeviceProfile::unknown(), options, wish)
}

/// [`prepare`] with the speeds of a device.
///
/// # Errors
/// As there.
pub fn prepare_on(
    gguf: &Arc<Gguf>,
    device: &DeviceProfile,
    options: &ModelOptions,
    wish: &PlanWish,
) -> Result<(Blueprint, Plan)> {
    wish.kv.check()?;
    let blueprint = Blueprint::read(Arc::clone(gguf), options)?;
    if wish.budget.is_none() {
        let wish = PlanWish { budget: Some(u64::MAX / 2), ..*wish };
        let plan = Plan::new(&blueprint, device, &wish)?;
        return Ok((blueprint, plan));
    }
    if options.context.is_some() || blueprint.spec().context <= DEFAULT_CONTEXT {
        let plan = Plan::new(&blueprint, device, wish)?;
        if plan.fits || options.context.is_some() || plan.max_context < LEAST_CONTEXT {
            return Ok((blueprint, plan.check()?));
        }
        return planned(gguf, (plan.max_context, options.view), device, wish, true);
    }
    let (blueprint, plan) = planned(gguf, (DEFAULT_CONTEXT, options.view), device, wish, false)?;
    if plan.fits || plan.max_context < LEAST_CONTEXT {
        return Ok((blueprint, plan.check()?));
    }
    planned(gguf, (plan.max_context, options.view), device, wish, true)
}

/// Below this a chat is no chat: refusing is kinder.
const LEAST_CONTEXT: usize = 512;

/// With a context and a view; must it fit?
fn planned(
    gguf: &Arc<Gguf>,
    (context, view): (usize, View),
    device: &DeviceProfile,
    wish: &PlanWish,
    must: bool,
) -> Result<(Blueprint, Plan)> {
    let blueprint = Blueprint::read(Arc::clone(gguf), &ModelOptions { context: Some(context), view })?;
    let plan = Plan::new(&blueprint, device, wish)?;
    Ok((blueprint, if must { plan.check()? } else { plan }))
}

fn least_copies(model: &Blueprint, wish: &ResidencyWish) -> Result<u64> {
    let none = ResidencyWish { budget: Some(0), ..*wish };
    Ok(match ResidencyPlan::new(model.layout(), &none)? {
        Ok(plan) => plan.anonymous_bytes(),
        Err(short) => short.needed,
    })
}

/// KV of `tokens`, in whole pages and chunks as the cache allocates them, and the states of recurrent layers.
fn kv_bytes(model: &Blueprint, tokens: usize, chunk: usize, options: &KvOptions) -> u64 {
    // A policy that acts by itself lets no layer grow beyond this.
    let bound = match (options.policy.keeps(), options.evict) {
        (Some(keeps), EvictWhen::Above(slack)) => keeps.saturating_add(slack).saturating_add(chunk),
        _ => usize::MAX,
    };
    let mut pools: Vec<(u64, u64)> = Vec::new();
    for layer in model.spec().kv(options.types) {
        let page = PAGE_TOKENS as u64 * layer.under(options.policy).bytes_per_token();
        let tokens = if layer.window.is_none() { tokens.min(bound) } else { tokens };
        let pages = tokens.div_ceil(PAGE_TOKENS) as u64;
        add_pages(&mut pools, page, pages);
    }
    whole_chunks(pools).saturating_add(model.spec().recurrent_bytes())
}

/// Halves of the newest keys while a chunk is computed, for types that have them. They do not grow with the context.
fn fresh_bytes(model: &Blueprint, tokens: usize, chunk: usize, options: &KvOptions) -> u64 {
    let mut pools = Vec::new();
    for layer in model.spec().kv(options.types) {
        if let Some((pages, page)) = layer.fresh_pages(chunk, tokens) {
            add_pages(&mut pools, page, pages);
        }
    }
    whole_chunks(pools)
}

fn add_pages(pools: &mut Vec<(u64, u64)>, page: u64, pages: u64) {
    match pools.iter_mut().find(|(size, _)| *size == page) {
        Some((_, count)) => *count += pages,
        None => pools.push((page, pages)),
    }
}

/// Bytes of pages of several sizes, (size, how many), as pools allocate them.
fn whole_chunks(pools: Vec<(u64, u64)>) -> u64 {
    let bytes = |(page, count): (u64, u64)| {
        let chunk = ((1 << 20) / page.max(1)).max(1);
        count.next_multiple_of(chunk).saturating_mul(page)
    };
    pools.into_iter().map(bytes).fold(0, u64::saturating_add)
}
