//! The KV cache: pages of 32 tokens, shared between sequences by reference count, copied on write.
//!
//! ```text
//! KvCache     pools of equal pages, one pool per page length; a pool grows by chunks of about 1 MiB under the Accountant
//! Sequence    per layer a table of pages: entry i holds the tokens 32 i .. 32 (i + 1)
//! step:       prepare(n)   pages for n more tokens, the last one unshared; fails without a trace
//!             write …      keys and values of the new tokens, layer by layer
//!             commit(n)    they belong to the sequence now; or rollback() after a failure
//! ```
//!
//! Growth never copies: chunks stay where they are. A page belongs to one layer of one geometry, and only this room knows what
//! lies in it, so that other element types are other pools.

mod pool;
mod sequence;
#[cfg(test)]
mod tests;

pub use sequence::Sequence;

use crate::memory::Accountant;
use crate::{Error, Result};
use pannier_kernels::{AttentionShape, Kernels, KvPages, PAGE_TOKENS};
use pool::PagePool;
use sequence::{Returns, Table};
use std::sync::Arc;

/// What one attention layer keeps of each token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvGeometry {
    /// KV heads.
    pub kv_heads: usize,
    /// Length of a key.
    pub k_dim: usize,
    /// Length of a value.
    pub v_dim: usize,
    /// The layer attends only to the last `window` tokens, its own included.
    pub window: Option<usize>,
}

impl KvGeometry {
    /// The shape as the kernels want it for pages, which do not depend on the number of query heads.
    fn shape(&self) -> AttentionShape {
        AttentionShape { heads: self.kv_heads, kv_heads: self.kv_heads, k_dim: self.k_dim, v_dim: self.v_dim }
    }

    /// Bytes of one token.
    pub fn bytes_per_token(&self) -> u64 {
        2 * self.kv_heads as u64 * (self.k_dim as u64 + self.v_dim as u64)
    }
}

/// How a cache behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvOptions {
    /// Pages of a windowed layer are given back once they lie this many tokens behind the window; a sequence cannot be
    /// truncated further back then. `None` keeps them: any truncation works.
    pub window_slack: Option<usize>,
}

/// The pages of all sequences of one model.
#[derive(Debug)]
pub struct KvCache {
    pools: Vec<PagePool>,
    layers: Vec<Layer>,
    options: KvOptions,
    returns: Arc<Returns>,
    /// Pages that a step needs, per pool; kept so that a decode step allocates nothing.
    needed: Vec<usize>,
}

#[derive(Clone, Copy, Debug)]
struct Layer {
    geometry: KvGeometry,
    pool: usize,
}

impl KvCache {
    /// An empty cache for a model whose layers keep `layers`. No page is allocated yet.
    ///
    /// # Errors
    /// A geometry that is empty or overflows.
    pub fn new(layers: &[KvGeometry], options: KvOptions, accountant: &Accountant) -> Result<KvCache> {
        let mut pools: Vec<PagePool> = Vec::new();
        let mut placed = Vec::with_capacity(layers.len());
        for &geometry in layers {
            let values = geometry.k_dim.checked_add(geometry.v_dim).filter(|&sum| sum > 0);
            let page_len = values
                .and_then(|values| values.checked_mul(geometry.kv_heads))
                .and_then(|values| values.checked_mul(PAGE_TOKENS))
                .filter(|&len| len > 0 && len < u32::MAX as usize)
                .ok_or_else(|| Error::internal(format!("KV geometry {geometry:?}")))?;
            let pool = match pools.iter().position(|pool| pool.page_len() == page_len) {
                Some(pool) => pool,
                None => {
                    pools.push(PagePool::new(page_len, accountant.clone()));
                    pools.len() - 1
                }
            };
            placed.push(Layer { geometry, pool });
        }
        let needed = vec![0; pools.len()];
        Ok(KvCache { pools, layers: placed, options, returns: Arc::default(), needed })
    }

    /// A sequence without tokens.
    pub fn new_sequence(&self) -> Sequence {
        let tables = self.layers.iter().map(|layer| Table::new(layer.pool)).collect();
        Sequence::new(tables, Arc::clone(&self.returns))
    }

    /// Bytes that a token takes in all layers.
    pub fn bytes_per_token(&self) -> u64 {
        self.layers.iter().map(|layer| layer.geometry.bytes_per_token()).sum()
    }

    /// Pages that sequences hold now.
    pub fn pages_in_use(&mut self) -> usize {
        self.collect_returns();
        self.pools.iter().map(PagePool::used).sum()
    }

    /// Bytes allocated for pages, free ones included.
    pub fn bytes(&self) -> u64 {
        self.pools.iter().map(PagePool::bytes).sum()
    }

    fn check(&self, seq: &Sequence) -> Result<()> {
        if Arc::ptr_eq(&self.returns, seq.returns()) {
            Ok(())
        } else {
            Err(Error::internal("a sequence of another model"))
        }
    }

    fn layer(&self, layer: usize) -> Result<Layer> {
        self.layers.get(layer).copied().ok_or_else(|| Error::internal(format!("no KV layer {layer}")))
    }

    /// Pages of dropped sequences come back here: dropping must not wait for a step that is running.
    fn collect_returns(&mut self) {
        for (pool, pages) in self.returns.take() {
            if let Some(pool) = self.pools.get_mut(pool) {
                pages.iter().for_each(|&page| pool.release(page));
            }
        }
    }

    /// Makes room for `n` more tokens, and the page they begin in this sequence's own.
    ///
    /// # Errors
    /// [`Error::OutOfBudget`] and [`Error::OutOfMemory`]; the sequence is as it was then.
    pub fn prepare(&mut self, seq: &mut Sequence, n: usize) -> Result<()> {
        self.check(seq)?;
        self.collect_returns();
        let end = seq.len().checked_add(n).ok_or_else(|| Error::internal("sequence length overflows"))?;
        let pages = end.div_ceil(PAGE_TOKENS);
        // First all that can fail, then all that changes the sequence.
        self.needed.fill(0);
        for table in seq.tables() {
            let (Some(pool), Some(needed)) = (self.pools.get(table.pool), self.needed.get_mut(table.pool))
            else {
                return Err(Error::internal("page pool"));
            };
            let shared = table.tail(seq.len()).is_some_and(|page| pool.is_shared(page));
            *needed += pages.saturating_sub(table.pages.len()) + usize::from(shared);
        }
        for (pool, &needed) in self.pools.iter_mut().zip(&self.needed) {
            pool.ensure_free(needed)?;
        }
        let len = seq.len();
        for table in seq.tables_mut() {
            let Some(pool) = self.pools.get_mut(table.pool) else { continue };
            if let Some(page) = table.tail(len)
                && pool.is_shared(page)
            {
                let own = pool.take()?;
                pool.copy(page, own);
                pool.release(page);
                table.set_tail(len, own);
            }
            while table.pages.len() < pages {
                table.pages.push(pool.take()?);
            }
        }
        Ok(())
    }

    /// Stores keys (tokens x kv_heads x k_dim) and values (tokens x kv_heads x v_dim) of the tokens that were prepared,
    /// from `first` (counted from the end of the sequence) on.
    ///
    /// # Errors
    /// Only for mistakes of the caller.
    pub fn write(
        &mut self,
        kernels: &Kernels,
        seq: &Sequence,
        layer: usize,
        first: usize,
        keys: &[f32],
        values: &[f32],
    ) -> Result<()> {
        let Layer { geometry, pool } = self.layer(layer)?;
        let shape = geometry.shape();
        let (k_len, v_len) = (geometry.kv_heads * geometry.k_dim, geometry.kv_heads * geometry.v_dim);
        let (table, pool) = seq
            .tables()
            .get(layer)
            .zip(self.pools.get_mut(pool))
            .ok_or_else(|| Error::internal("KV layer"))?;
        let start = seq.len() + first;
        for (position, (key, value)) in
            (start..).zip(keys.chunks_exact(k_len).zip(values.chunks_exact(v_len)))
        {
            let page = table
                .pages
                .get(position / PAGE_TOKENS)
                .and_then(|&page| pool.page_mut(page))
                .ok_or_else(|| Error::internal(format!("position {position} was not prepared")))?;
            kernels.write_kv(&shape, page, position % PAGE_TOKENS, key, value);
        }
        Ok(())
    }

    /// The pages of one layer, for attention.
    ///
    /// # Errors
    /// Only for mistakes of the caller.
    pub fn pages<'a>(&'a self, seq: &'a Sequence, layer: usize) -> Result<KvPages<'a>> {
        let Layer { pool, .. } = self.layer(layer)?;
        let (table, pool) =
            seq.tables().get(layer).zip(self.pools.get(pool)).ok_or_else(|| Error::internal("KV layer"))?;
        Ok(KvPages {
            chunks: pool.chunks(),
            chunk_pages: pool.chunk_pages(),
            page_len: pool.page_len(),
            table: &table.pages,
            first_token: table.first * PAGE_TOKENS,
        })
    }

    /// The `n` prepared tokens belong to the sequence from now on.
    pub fn commit(&mut self, seq: &mut Sequence, n: usize) {
        let len = seq.len() + n;
        seq.set_len(len);
        let Some(slack) = self.options.window_slack else { return };
        for (layer, table) in self.layers.iter().zip(seq.tables_mut()) {
            let (Some(window), Some(pool)) = (layer.geometry.window, self.pools.get_mut(layer.pool)) else {
                continue;
            };
            let gone = needed_from(len, window).saturating_sub(slack) / PAGE_TOKENS;
            table.drop_before(gone, |page| pool.release(page));
        }
    }

    /// Gives back what `prepare` took and nobody committed.
    pub fn rollback(&mut self, seq: &mut Sequence) {
        let len = seq.len();
        self.cut(seq, len);
    }

    /// Forgets the tokens from `len` on.
    ///
    /// # Errors
    /// [`Error::CannotTruncate`]: the sequence is shorter, or what the tokens before `len` attend to was given back.
    pub fn truncate(&mut self, seq: &mut Sequence, len: usize) -> Result<()> {
        self.check(seq)?;
        let have = seq.len();
        let cannot = |reason| Err(Error::CannotTruncate { len, have, reason });
        if len > have {
            return cannot("it is shorter");
        }
        for (layer, table) in self.layers.iter().zip(seq.tables()) {
            let needed = layer.geometry.window.map_or(0, |window| needed_from(len, window));
            if len > 0 && table.first * PAGE_TOKENS > needed {
                return cannot("the keys and values that sliding-window layers need there were given back");
            }
        }
        seq.set_len(len);
        self.cut(seq, len);
        Ok(())
    }

    /// How many of the last tokens of a sequence can be forgotten for certain.
    pub fn slack(&self) -> usize {
        self.options.window_slack.unwrap_or(usize::MAX)
    }

    fn cut(&mut self, seq: &mut Sequence, len: usize) {
        let pages = len.div_ceil(PAGE_TOKENS);
        for table in seq.tables_mut() {
            if let Some(pool) = self.pools.get_mut(table.pool) {
                table.cut(pages, |page| pool.release(page));
            }
        }
    }

    /// A second sequence with the same tokens. Nothing is copied until one of them writes into a shared page.
    ///
    /// # Errors
    /// Only for mistakes of the caller.
    pub fn fork(&mut self, seq: &Sequence) -> Result<Sequence> {
        self.check(seq)?;
        let mut tables = Vec::with_capacity(seq.tables().len());
        for table in seq.tables() {
            if let Some(pool) = self.pools.get_mut(table.pool) {
                table.held().iter().for_each(|&page| pool.share(page));
            }
            tables.push(table.clone());
        }
        let mut fork = Sequence::new(tables, Arc::clone(&self.returns));
        fork.set_len(seq.len());
        Ok(fork)
    }

    /// Gives chunks without a page in use back to the system; for memory pressure.
    pub fn trim(&mut self) {
        self.collect_returns();
        self.pools.iter_mut().for_each(PagePool::trim);
    }
}

/// The first position that the token at `len` attends to, with a window.
fn needed_from(len: usize, window: usize) -> usize {
    (len + 1).saturating_sub(window)
}
