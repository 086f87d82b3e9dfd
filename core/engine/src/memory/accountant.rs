//! The budget, in one atomic counter per category.

use crate::{Error, Result};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What memory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Category {
    /// Copies of weights; the clean mapping of a file is not one.
    Weights,
    /// The KV cache.
    Kv,
    /// Buffers of the forward pass.
    Scratch,
    /// Everything that is kept only because it may be used again.
    Cache,
    /// The rest: tokenizer, tables.
    Other,
}

impl Category {
    /// All of them, in the order of [`Accountant::by_category`].
    pub const ALL: [Category; 5] =
        [Category::Weights, Category::Kv, Category::Scratch, Category::Cache, Category::Other];

    /// The name in messages and reports.
    pub fn name(self) -> &'static str {
        match self {
            Category::Weights => "weights",
            Category::Kv => "KV cache",
            Category::Scratch => "scratch",
            Category::Cache => "cache",
            Category::Other => "other",
        }
    }
}

impl fmt::Display for Category {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Counts the anonymous memory of one model against its budget. Clones share the counters.
#[derive(Clone, Debug)]
pub struct Accountant(Arc<Counters>);

#[derive(Debug)]
struct Counters {
    /// `u64::MAX` when there is none: then the sum cannot reach it.
    budget: AtomicU64,
    used: AtomicU64,
    peak: AtomicU64,
    by_category: [AtomicU64; Category::ALL.len()],
}

impl Accountant {
    /// An accountant with a budget in bytes, or one that only counts.
    pub fn new(budget: Option<u64>) -> Self {
        Accountant(Arc::new(Counters {
            budget: AtomicU64::new(budget.unwrap_or(u64::MAX)),
            used: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            by_category: Default::default(),
        }))
    }

    /// Takes `bytes` from the budget until the reservation is dropped.
    ///
    /// # Errors
    /// [`Error::OutOfBudget`]; nothing was taken then.
    pub fn reserve(&self, category: Category, bytes: u64) -> Result<Reservation> {
        let budget = self.0.budget.load(Ordering::Relaxed);
        let taken = self.0.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(bytes).filter(|&sum| sum <= budget)
        });
        match taken {
            Ok(before) => {
                self.0.peak.fetch_max(before + bytes, Ordering::Relaxed);
                self.counter(category).fetch_add(bytes, Ordering::Relaxed);
                Ok(Reservation { accountant: self.clone(), category, bytes })
            }
            Err(used) => Err(Error::OutOfBudget {
                category,
                needed: bytes,
                available: budget.saturating_sub(used),
                budget,
            }),
        }
    }

    fn counter(&self, category: Category) -> &AtomicU64 {
        let [weights, kv, scratch, cache, other] = &self.0.by_category;
        match category {
            Category::Weights => weights,
            Category::Kv => kv,
            Category::Scratch => scratch,
            Category::Cache => cache,
            Category::Other => other,
        }
    }

    /// The budget in bytes; `None` when there is none.
    pub fn budget(&self) -> Option<u64> {
        Some(self.0.budget.load(Ordering::Relaxed)).filter(|&budget| budget != u64::MAX)
    }

    /// Changes the budget. What is reserved stays so: a smaller budget only refuses what comes next.
    pub fn set_budget(&self, budget: Option<u64>) {
        self.0.budget.store(budget.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Bytes reserved now.
    pub fn used(&self) -> u64 {
        self.0.used.load(Ordering::Relaxed)
    }

    /// Bytes that can still be reserved; `u64::MAX` without a budget.
    pub fn available(&self) -> u64 {
        self.budget().map_or(u64::MAX, |budget| budget.saturating_sub(self.used()))
    }

    /// The most that was ever reserved at one time.
    pub fn peak(&self) -> u64 {
        self.0.peak.load(Ordering::Relaxed)
    }

    /// Bytes reserved now, for each category of [`Category::ALL`].
    pub fn by_category(&self) -> [(Category, u64); Category::ALL.len()] {
        Category::ALL.map(|category| (category, self.counter(category).load(Ordering::Relaxed)))
    }
}

/// Memory taken from the budget; dropping it gives the memory back.
#[derive(Debug)]
#[must_use = "dropping a reservation returns the memory to the budget"]
pub struct Reservation {
    accountant: Accountant,
    category: Category,
    bytes: u64,
}

impl Reservation {
    /// How much.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What for.
    pub fn category(&self) -> Category {
        self.category
    }

    /// Makes the reservation larger.
    ///
    /// # Errors
    /// [`Error::OutOfBudget`]; the reservation stays as it was.
    pub fn grow(&mut self, bytes: u64) -> Result<()> {
        let mut more = self.accountant.reserve(self.category, bytes)?;
        // The extra bytes now belong to `self`; `more` gives back nothing.
        self.bytes += std::mem::take(&mut more.bytes);
        Ok(())
    }

    /// Gives part of it back.
    pub fn shrink(&mut self, bytes: u64) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.release(bytes);
    }

    fn release(&self, bytes: u64) {
        self.accountant.counter(self.category).fetch_sub(bytes, Ordering::Relaxed);
        self.accountant.0.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.release(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_does_not_fit_and_says_what_would() {
        let accountant = Accountant::new(Some(100));
        let kv = accountant.reserve(Category::Kv, 60).unwrap();
        let error = accountant.reserve(Category::Scratch, 41).unwrap_err();
        let Error::OutOfBudget { category, needed, available, budget } = error else { panic!("{error}") };
        assert_eq!((category, needed, available, budget), (Category::Scratch, 41, 40, 100));
        let scratch = accountant.reserve(Category::Scratch, 40).unwrap();
        assert_eq!(accountant.used(), 100);
        drop((kv, scratch));
        assert_eq!((accountant.used(), accountant.peak(), accountant.available()), (0, 100, 100));
        assert!(accountant.by_category().iter().all(|&(_, bytes)| bytes == 0));
    }

    #[test]
    fn growing_and_shrinking_keep_the_sums() {
        let accountant = Accountant::new(Some(100));
        let mut cache = accountant.reserve(Category::Cache, 10).unwrap();
        cache.grow(50).unwrap();
        assert!(cache.grow(41).is_err());
        assert_eq!((cache.bytes(), accountant.used()), (60, 60));
        cache.shrink(25);
        assert_eq!((cache.bytes(), accountant.used()), (35, 35));
        accountant.set_budget(Some(20));
        assert_eq!(accountant.available(), 0);
        assert!(accountant.reserve(Category::Other, 1).is_err());
        drop(cache);
        assert_eq!(accountant.used(), 0);
    }

    #[test]
    fn sums_beyond_64_bits_are_refused() {
        let accountant = Accountant::new(None);
        let _one = accountant.reserve(Category::Other, u64::MAX - 1).unwrap();
        assert!(accountant.reserve(Category::Other, 2).is_err());
    }
}
