//! What a model will take, told before it is loaded.

use std::path::Path;
use std::sync::Arc;

use pannier_gguf::Gguf;

use crate::kv::KvGeometry;
use crate::memory::Accountant;
use crate::model::{LoadedModel, ModelOptions, ScratchPlan};
use crate::pool::{SystemCpus, default_threads};
use crate::session::LoadOptions;
use crate::{Error, Result};

/// A model's needs, in bytes, and whether a budget holds them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Estimate {
    /// Whether all of it fits.
    pub fits: bool,
    /// The budget it was made for; `None`: none.
    pub budget_bytes: Option<u64>,
    /// Tokens of the context.
    pub context: usize,
    /// The longest context that the budget holds, up to that of the training; 0 if none.
    pub max_context: usize,
    /// The weights, as clean pages of the file: the system takes them back when it needs them.
    pub file_backed_bytes: u64,
    /// The KV cache with a full context.
    pub kv_bytes: u64,
    /// Buffers of a pass.
    pub scratch_bytes: u64,
    /// Vocabulary and small weights.
    pub other_bytes: u64,
    /// The most anonymous memory: what the budget must hold.
    pub peak_bytes: u64,
    /// What would help, in words.
    pub notes: Vec<String>,
}

/// Per token id: the entry of the vocabulary, its place in the hash table, the merges. Measured on small models.
const BYTES_PER_TOKEN_ID: u64 = 220;
/// Pages of the KV cache hold so many tokens.
const PAGE: u64 = pannier_kernels::PAGE_TOKENS as u64;

/// Reads the directory of the file, no weights, and adds up.
///
/// # Errors
/// The file is absent, broken or not supported. A budget that is too small is no error: `fits` is false then.
pub fn estimate(path: &Path, options: &LoadOptions) -> Result<Estimate> {
    let gguf = Arc::new(Gguf::open(path)?);
    let counter = Accountant::new(None);
    let model = LoadedModel::new(Arc::clone(&gguf), &ModelOptions { context: options.context }, &counter)?;
    let spec = model.spec();
    let threads = options.threads.unwrap_or_else(|| default_threads(&SystemCpus)).max(1);
    let plan = ScratchPlan {
        spec,
        products: model.products(),
        precision: &options.precision,
        chunk: options.prefill_chunk.clamp(1, spec.context.max(1)),
        threads,
    };
    let scratch = plan.bytes();
    let geometries: Vec<KvGeometry> = spec.attention.iter().map(|layer| layer.kv()).collect();
    let kv_of = |tokens: usize| -> u64 {
        let pages = (tokens as u64).div_ceil(PAGE);
        geometries.iter().map(|g| g.bytes_per_token().saturating_mul(pages.saturating_mul(PAGE))).sum()
    };
    let other = counter.peak().saturating_add(BYTES_PER_TOKEN_ID.saturating_mul(spec.vocab as u64));
    let fixed = scratch.saturating_add(other);
    let kv = kv_of(spec.context);
    let peak = fixed.saturating_add(kv);
    let fits = options.budget_bytes.is_none_or(|budget| peak <= budget);
    let max_context = match options.budget_bytes {
        None => spec.trained_context.max(spec.context),
        Some(budget) => longest(spec.trained_context.max(spec.context), |n| {
            fixed.saturating_add(kv_of(n)) <= budget
        }),
    };
    let mut notes = Vec::new();
    if !fits {
        notes.push(if max_context > 0 {
            format!("a context of {max_context} tokens fits")
        } else {
            format!("needs at least {} bytes for buffers and vocabulary", fixed.saturating_add(kv_of(1)))
        });
    }
    Ok(Estimate {
        fits,
        budget_bytes: options.budget_bytes,
        context: spec.context,
        max_context,
        file_backed_bytes: gguf.file_bytes(),
        kv_bytes: kv,
        scratch_bytes: scratch,
        other_bytes: other,
        peak_bytes: peak,
        notes,
    })
}

/// The largest `n` up to `limit` for which `fits` holds; it holds for all smaller ones then.
fn longest(limit: usize, fits: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, limit);
    while low < high {
        let middle = high - (high - low) / 2;
        if fits(middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

impl Estimate {
    /// The estimate, or [`Error::OutOfBudget`] when it does not fit.
    ///
    /// # Errors
    /// [`Error::OutOfBudget`].
    pub fn check(self) -> Result<Estimate> {
        match self.budget_bytes {
            Some(budget) if !self.fits => Err(Error::OutOfBudget {
                category: crate::memory::Category::Other,
                needed: self.peak_bytes,
                available: budget,
                budget,
            }),
            _ => Ok(self),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_that_fits() {
        assert_eq!(longest(1000, |n| n <= 437), 437);
        assert_eq!(longest(1000, |_| true), 1000);
        assert_eq!(longest(1000, |_| false), 0);
        assert_eq!(longest(0, |_| true), 0);
    }
}
