//! Halves of the newest keys, for layers whose keys are rounded per channel of a page ([`KvType::is_per_channel`](super::KvType)).
//!
//! ```text
//! prepare    a fresh page for each page that the new tokens touch; one that others share is copied first
//! write      keys go into the fresh page; with its 32nd row the integers in the page itself is computed, and computed again when tokens
//!            were taken back and others come
//! attention  a query reads its own page as halves and all earlier ones as integers
//! commit     the page that the end is in and the full one before it stay, older ones go: 32 tokens can be taken back
//! ```
//!
//! A step takes fresh pages for all of its tokens at once. Plans promise those of a chunk, so who has a budget cuts steps there, as sessions do.
//! Nothing is given back before `commit`, so a step that fails finds the halves of the page that it began in. A sequence that ends at a page's
//! border needs no fresh page: that is where prefixes are shared, and where one can always be cut.

use pannier_kernels::{FreshKeys, Kernels, KvLayout, PAGE_TOKENS};

use super::pool::PagePool;
use super::sequence::Table;
use crate::{Error, Result};

/// Full pages before the end whose fresh keys stay.
const KEPT: usize = 1;

/// The fresh pages of one layer: those up to the page of the last token, or none at a page's border.
#[derive(Clone, Debug)]
pub(super) struct Fresh {
    pub(super) pool: usize,
    /// The page that entry 0 holds the keys of.
    first: usize,
    pages: Vec<u32>,
}

impl Fresh {
    pub(super) fn new(pool: usize) -> Self {
        Fresh { pool, first: 0, pages: Vec::new() }
    }

    /// The most pages of a layer while `n` tokens more are computed, in a sequence of up to `len` tokens with them.
    pub(super) fn most(n: usize, len: usize) -> usize {
        // From the middle of a page on, and what `commit` had left before.
        (n.saturating_add(PAGE_TOKENS - 2) / PAGE_TOKENS)
            .saturating_add(1 + KEPT)
            .min(len.div_ceil(PAGE_TOKENS))
    }

    pub(super) fn pages(&self) -> &[u32] {
        &self.pages
    }

    pub(super) fn into_pages(self) -> Vec<u32> {
        self.pages
    }

    /// The page behind the last one, in a sequence of `len` tokens.
    fn end(&self, len: usize) -> usize {
        if self.pages.is_empty() { len / PAGE_TOKENS } else { self.first + self.pages.len() }
    }

    /// Pages that are missing for tokens up to `end`, in a sequence of `len`.
    pub(super) fn missing(&self, len: usize, end: usize) -> usize {
        end.div_ceil(PAGE_TOKENS).saturating_sub(self.end(len))
    }

    /// Appends a page.
    pub(super) fn push(&mut self, len: usize, page: u32) {
        if self.pages.is_empty() {
            self.first = len / PAGE_TOKENS;
        }
        self.pages.push(page);
    }

    fn at(&self, index: usize) -> Option<u32> {
        self.pages.get(index.checked_sub(self.first)?).copied()
    }

    /// The fresh page that a sequence of `len` tokens is in the middle of.
    pub(super) fn tail(&self, len: usize) -> Option<u32> {
        if len.is_multiple_of(PAGE_TOKENS) { None } else { self.at(len / PAGE_TOKENS) }
    }

    pub(super) fn set_tail(&mut self, len: usize, page: u32) {
        let index = (len / PAGE_TOKENS).checked_sub(self.first);
        if let Some(entry) = index.and_then(|index| self.pages.get_mut(index)) {
            *entry = page;
        }
    }

    /// Whether a sequence can be cut to `len`: its last page begins anew, or its halves are there.
    pub(super) fn can_cut(&self, len: usize) -> bool {
        len.is_multiple_of(PAGE_TOKENS) || self.tail(len).is_some()
    }

    /// Keeps the pages of the tokens before `len`.
    pub(super) fn cut(&mut self, len: usize, release: impl FnMut(u32)) {
        let kept = len.div_ceil(PAGE_TOKENS).saturating_sub(self.first).min(self.pages.len());
        self.pages.drain(kept..).for_each(release);
    }

    /// Gives back what a sequence of `len` tokens does not keep.
    pub(super) fn commit(&mut self, len: usize, release: impl FnMut(u32)) {
        let first = (len / PAGE_TOKENS).saturating_sub(KEPT);
        let gone = first.saturating_sub(self.first).min(self.pages.len());
        self.pages.drain(..gone).for_each(release);
        self.first += gone;
    }

    pub(super) fn view<'a>(&'a self, pool: &'a PagePool) -> FreshKeys<'a> {
        FreshKeys {
            chunks: pool.chunks(),
            chunk_pages: pool.chunk_pages(),
            page_len: pool.page_len(),
            table: &self.pages,
            first: self.first,
        }
    }
}

/// Stores keys from slot `start` on in the fresh pages of a layer, and closes the pages that they fill.
pub(super) fn write(
    kernels: &Kernels,
    layout: &KvLayout,
    pools: &mut [PagePool],
    table: &Table,
    start: usize,
    keys: &[f32],
) -> Result<()> {
    let Some(fresh) = &table.fresh else { return Ok(()) };
    let lost = || Error::internal("the pools of a layer with fresh keys");
    let [pages, halves] = pools.get_disjoint_mut([table.pool, fresh.pool]).map_err(|_| lost())?;
    let of_page = layout.fresh();
    for (at, key) in (start..).zip(keys.chunks_exact(layout.shape.kv_heads * layout.shape.k_dim)) {
        let (index, slot) = (at / PAGE_TOKENS, at % PAGE_TOKENS);
        let unprepared = || Error::internal(format!("position {at} has no fresh page"));
        let newest = fresh.at(index).and_then(|page| halves.page_mut(page)).ok_or_else(unprepared)?;
        kernels.write_kv(&of_page, newest, slot, key, &[]);
        if slot + 1 == PAGE_TOKENS {
            let page =
                table.pages.get(index).and_then(|&page| pages.page_mut(page)).ok_or_else(unprepared)?;
            layout.close_keys(newest, page);
        }
    }
    Ok(())
}
