//! What one text has in the cache.

use super::fresh::Fresh;
use pannier_kernels::PAGE_TOKENS;
use std::sync::{Arc, Mutex};

/// Pages of dropped sequences, by pool, until the cache collects them.
#[derive(Debug, Default)]
pub(super) struct Returns(Mutex<Vec<(usize, Vec<u32>)>>);

impl Returns {
    pub(super) fn take(&self) -> Vec<(usize, Vec<u32>)> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }
}

/// The pages of one layer.
#[derive(Clone, Debug)]
pub(super) struct Table {
    pub(super) pool: usize,
    /// Entry `i` holds the slots `32 i .. 32 (i + 1)`.
    pub(super) pages: Vec<u32>,
    /// Entries before this one were given back and mean nothing.
    pub(super) first: usize,
    /// Positions that were evicted: a position from `floor` on is in the slot `position - gap`.
    pub(super) gap: usize,
    /// How long the sequence was when it was evicted last.
    pub(super) floor: usize,
    /// Of keys that are rounded per channel.
    pub(super) fresh: Option<Fresh>,
}

impl Table {
    pub(super) fn new(pool: usize, fresh: Option<usize>) -> Self {
        let fresh = fresh.map(Fresh::new);
        Table { pool, pages: Vec::new(), first: 0, gap: 0, floor: 0, fresh }
    }

    /// The slot of a position (or of the end).
    pub(super) fn slot(&self, position: usize) -> usize {
        position.saturating_sub(self.gap)
    }

    /// Pages for the positions before `len`.
    pub(super) fn pages_for(&self, len: usize) -> usize {
        self.slot(len).div_ceil(PAGE_TOKENS)
    }

    /// The entries that hold pages.
    pub(super) fn held(&self) -> &[u32] {
        self.pages.get(self.first..).unwrap_or(&[])
    }

    /// The page that a sequence of `len` tokens is in the middle of.
    pub(super) fn tail(&self, len: usize) -> Option<u32> {
        let slots = self.slot(len);
        if slots.is_multiple_of(PAGE_TOKENS) { None } else { self.pages.get(slots / PAGE_TOKENS).copied() }
    }

    pub(super) fn set_tail(&mut self, len: usize, page: u32) {
        let slots = self.slot(len);
        if let Some(entry) = self.pages.get_mut(slots / PAGE_TOKENS) {
            *entry = page;
        }
    }

    /// Keeps the pages of the positions before `len`.
    pub(super) fn cut(&mut self, len: usize, mut release: impl FnMut(u32)) {
        if len == 0 {
            (self.gap, self.floor) = (0, 0);
        }
        let pages = self.pages_for(len);
        let from = pages.max(self.first).min(self.pages.len());
        self.pages.drain(from..).for_each(&mut release);
        self.pages.truncate(pages);
        self.first = self.first.min(self.pages.len());
    }

    /// Gives the entries before `first` back.
    pub(super) fn drop_before(&mut self, first: usize, mut release: impl FnMut(u32)) {
        let first = first.min(self.pages.len());
        if let Some(gone) = self.pages.get(self.first..first) {
            gone.iter().for_each(|&page| release(page));
            self.first = first;
        }
    }
}

/// A text in the cache. Dropping it gives its pages back, without waiting for a step that is running.
#[derive(Debug)]
pub struct Sequence {
    len: usize,
    tables: Vec<Table>,
    returns: Arc<Returns>,
}

impl Sequence {
    pub(super) fn new(tables: Vec<Table>, returns: Arc<Returns>) -> Self {
        Sequence { len: 0, tables, returns }
    }

    /// How many tokens it has.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn set_len(&mut self, len: usize) {
        self.len = len;
    }

    pub(super) fn tables(&self) -> &[Table] {
        &self.tables
    }

    pub(super) fn tables_mut(&mut self) -> &mut [Table] {
        &mut self.tables
    }

    pub(super) fn returns(&self) -> &Arc<Returns> {
        &self.returns
    }
}

impl Drop for Sequence {
    fn drop(&mut self) {
        let mut returns = self.returns.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        for mut table in self.tables.drain(..) {
            table.pages.drain(..table.first.min(table.pages.len()));
            returns.push((table.pool, table.pages));
            if let Some(fresh) = table.fresh {
                returns.push((fresh.pool, fresh.into_pages()));
            }
        }
    }
}
