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
//! Keys per channel have pages of halves beside the others, see `fresh.rs`.
//!
//! Growth never copies: chunks stay where they are. A page belongs to one layer of one geometry, and only this room knows what
//! lies in it, so that other element types are other pools.

mod evict;
mod fresh;
#[cfg(test)]
mod fresh_tests;
mod heat;
mod policy;
mod pool;
mod prefix;
mod saved;
mod sequence;
mod share;
mod summaries;
#[cfg(test)]
mod summary_tests;
#[cfg(test)]
mod tests;
mod types;

pub use evict::Evicted;
pub use heat::{Heat, WATCH_LAST};
pub use policy::{EvictWhen, KvPolicy};
pub use prefix::Checkpoint;
pub use saved::{Fingerprint, Limits, Saved};
pub use sequence::Sequence;
pub use summaries::PageReads;
pub use types::{KvType, KvTypes};

use crate::memory::Accountant;
use crate::{Error, Result};
use fresh::Fresh;
use pannier_kernels::{AttentionShape, Kernels, KvLayout, KvPages, LEAST_PAGES, PAGE_TOKENS};
use pool::PagePool;
use prefix::PrefixCache;
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
    /// Element type of keys.
    pub k: KvType,
    /// Element type of values.
    pub v: KvType,
    /// Whether each page has a summary of its keys.
    pub summaries: bool,
}

impl KvGeometry {
    /// Its pages, which do not depend on the number of query heads.
    fn layout(&self) -> KvLayout {
        let KvGeometry { kv_heads, k_dim, v_dim, .. } = *self;
        let shape = AttentionShape { heads: kv_heads, kv_heads, k_dim, v_dim };
        KvLayout { shape, k: self.k.format(), v: self.v.format(), summaries: self.summaries }
    }

    /// The layer as a policy needs it. Layers with a window read all of that, so they need no summaries.
    #[must_use]
    pub fn under(self, policy: KvPolicy) -> KvGeometry {
        KvGeometry { summaries: policy.reads().is_some() && self.window.is_none(), ..self }
    }

    /// Bytes of one token, scales included: `2 kv_heads (k_dim + v_dim)` for f16. Summaries add `kv_heads k_dim / 8` (two halves per channel
    /// of 32 tokens; `k_dim` rounded up to 16). Fresh keys, of which only the newest tokens have any, do not count.
    pub fn bytes_per_token(&self) -> u64 {
        self.layout().bytes_per_token() as u64
    }

    /// Words of a page of fresh keys, if there are any.
    fn fresh_len(&self) -> Option<usize> {
        (self.k.is_per_channel()).then(|| self.layout().fresh().page_len())
    }

    /// Pages of fresh keys, and the bytes of one, that a sequence of up to `len` tokens has at most while the last `n` of them are computed.
    pub(crate) fn fresh_pages(&self, n: usize, len: usize) -> Option<(u64, u64)> {
        self.fresh_len().map(|words| (Fresh::most(n, len) as u64, 2 * words as u64))
    }
}

/// The layers of a model, each with its element types.
pub fn typed(layers: impl ExactSizeIterator<Item = KvGeometry>, types: KvTypes) -> Vec<KvGeometry> {
    let count = layers.len();
    layers
        .enumerate()
        .map(|(layer, geometry)| {
            let (k, v) = types.of_layer(layer, count);
            KvGeometry { k, v, ..geometry }
        })
        .collect()
}

/// How a cache behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvOptions {
    /// Pages of a windowed layer are given back once they lie this many tokens behind the window; a sequence cannot be
    /// truncated further back then. `None` keeps them: any truncation works.
    pub window_slack: Option<usize>,
    /// Element types of keys and values.
    pub types: KvTypes,
    /// What may be forgotten. Answers change when something is.
    pub policy: KvPolicy,
    /// When that happens.
    pub evict: EvictWhen,
    /// The most memory, in bytes, for prefixes that no sequence uses just now; 0 keeps none. What sequences need is taken from
    /// it first, and scarce memory empties it.
    pub prefix_bytes: u64,
    /// What sequences and prefixes may take together before prefixes go, in bytes; `None`: until the budget is used up. A plan
    /// for a budget sets it to what it has promised to the cache, so that nobody else's share is taken.
    pub soft_limit: Option<u64>,
}

impl Default for KvOptions {
    fn default() -> Self {
        KvOptions {
            window_slack: None,
            types: KvTypes::F16,
            policy: KvPolicy::KeepAll,
            evict: EvictWhen::Asked,
            prefix_bytes: 64 << 20,
            soft_limit: None,
        }
    }
}

impl KvOptions {
    /// Whether types, policy and time of eviction make sense together.
    ///
    /// # Errors
    /// [`Error::BadOption`] for a policy that would keep nothing of a kind it names or leave no choice of pages, and for a bound where nothing
    /// may be forgotten.
    /// [`Error::Unsupported`]: rows of pages with scales per channel cannot be moved, so nothing of them can be forgotten.
    pub fn check(&self) -> Result<()> {
        if self.policy.keeps().is_some() && self.types.k.is_per_channel() {
            return Err(cannot_forget(&format!("the KV type {}", self.types), self.policy));
        }
        let bad = |option, reason| Err(Error::BadOption { option, reason });
        match (self.policy, self.evict) {
            (KvPolicy::Window { recent: 0 }, _)
            | (KvPolicy::Sinks { recent: 0, .. } | KvPolicy::HeavyHitters { recent: 0, .. }, _) => {
                bad("recent", "a policy must keep at least the last position")
            }
            (KvPolicy::Sinks { sinks: 0, .. } | KvPolicy::HeavyHitters { sinks: 0, .. }, _) => {
                bad("sinks", "a policy with sinks must keep at least one")
            }
            (KvPolicy::HeavyHitters { top: 0, .. }, _) => {
                bad("top", "without heavy hitters this is the policy of sinks")
            }
            (KvPolicy::Pages { .. }, _) if self.policy.reads().is_some_and(|pages| pages < LEAST_PAGES) => {
                bad(
                    "tokens",
                    "the first page and the newest two are read in any case: at least 128 leave a choice",
                )
            }
            (KvPolicy::KeepAll | KvPolicy::Pages { .. }, EvictWhen::Above(_)) => {
                bad("evict", "a policy that keeps all positions cannot bound how many there are")
            }
            _ => Ok(()),
        }
    }
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
    prefixes: PrefixCache,
    /// The most nodes that `prefixes` may have now.
    prefix_nodes: usize,
}

fn cannot_forget(what: &str, policy: KvPolicy) -> Error {
    let what = format!(
        "the KV policy {policy} with {what}: keys with scales per channel stay where they are; with all other types positions can be forgotten"
    );
    Error::Unsupported { what }
}

#[derive(Clone, Copy, Debug)]
struct Layer {
    geometry: KvGeometry,
    pool: usize,
    /// The pool of its fresh keys.
    fresh: Option<usize>,
}

impl Layer {
    /// Layers with a window forget by themselves, page by page.
    fn evicts(&self) -> bool {
        self.geometry.window.is_none()
    }
}

impl KvCache {
    /// Element types of a layer.
    pub fn types(&self, layer: usize) -> (KvType, KvType) {
        self.layers.get(layer).map_or_else(Default::default, |layer| (layer.geometry.k, layer.geometry.v))
    }

    /// An empty cache for a model whose layers keep `layers`. No page is allocated yet.
    ///
    /// # Errors
    /// A geometry that is empty or overflows; a policy that the layers cannot follow, and those of [`KvOptions::check`].
    pub fn new(layers: &[KvGeometry], options: KvOptions, accountant: &Accountant) -> Result<KvCache> {
        if options.policy.reads().is_some() {
            options.check()?;
        }
        let mut pools: Vec<PagePool> = Vec::new();
        let mut placed = Vec::with_capacity(layers.len());
        for &geometry in layers {
            let geometry = geometry.under(options.policy);
            let values = geometry.k_dim.checked_add(geometry.v_dim).filter(|&sum| sum > 0);
            values
                .and_then(|values| values.checked_mul(geometry.kv_heads))
                .and_then(|values| values.checked_mul(16 * PAGE_TOKENS))
                .filter(|&len| len > 0 && len < u32::MAX as usize && !geometry.v.is_per_channel())
                .ok_or_else(|| Error::internal(format!("KV geometry {geometry:?}")))?;
            // Padding makes rows of a few values up to nine times as long; that cannot overflow either.
            let page_len = geometry.layout().page_len();
            let pool = match pools.iter().position(|pool| pool.page_len() == page_len) {
                Some(pool) => pool,
                None => {
                    pools.push(PagePool::new(page_len, accountant.clone()));
                    pools.len() - 1
                }
            };
            placed.push(Layer { geometry, pool, fresh: None });
        }
        // Behind all others and of their own, so that a page and its fresh keys are never in one pool.
        let first = pools.len();
        for layer in &mut placed {
            let Some(len) = layer.geometry.fresh_len() else { continue };
            if layer.evicts() && options.policy.keeps().is_some() {
                return Err(cannot_forget("keys per channel", options.policy));
            }
            let known = pools.iter().skip(first).position(|pool| pool.page_len() == len);
            layer.fresh = Some(known.map_or(pools.len(), |at| first + at));
            if known.is_none() {
                pools.push(PagePool::new(len, accountant.clone()));
            }
        }
        let needed = vec![0; pools.len()];
        let mut cache = KvCache {
            pools,
            layers: placed,
            options,
            returns: Arc::default(),
            needed,
            prefixes: PrefixCache::default(),
            prefix_nodes: 0,
        };
        cache.prefix_nodes = cache.nodes_in(options.prefix_bytes);
        Ok(cache)
    }

    /// How it behaves.
    pub fn options(&self) -> &KvOptions {
        &self.options
    }

    fn nodes_in(&self, bytes: u64) -> usize {
        let node = PAGE_TOKENS as u64 * self.bytes_per_token();
        usize::try_from(bytes / node.max(1)).unwrap_or(usize::MAX)
    }

    /// A sequence without tokens.
    pub fn new_sequence(&self) -> Sequence {
        let tables = self.layers.iter().map(|layer| Table::new(layer.pool, layer.fresh)).collect();
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
        // First all that can fail, then all that changes the sequence.
        self.needed.fill(0);
        for table in seq.tables() {
            let (Some(pool), Some(needed)) = (self.pools.get(table.pool), self.needed.get_mut(table.pool))
            else {
                return Err(Error::internal("page pool"));
            };
            let shared = table.tail(seq.len()).is_some_and(|page| pool.is_shared(page));
            *needed += table.pages_for(end).saturating_sub(table.pages.len()) + usize::from(shared);
            let Some(fresh) = &table.fresh else { continue };
            let (Some(pool), Some(needed)) = (self.pools.get(fresh.pool), self.needed.get_mut(fresh.pool))
            else {
                return Err(Error::internal("page pool"));
            };
            let shared = fresh.tail(seq.len()).is_some_and(|page| pool.is_shared(page));
            *needed += fresh.missing(seq.len(), end) + usize::from(shared);
        }
        for pool in 0..self.pools.len() {
            self.make_room(pool)?;
        }
        let len = seq.len();
        for table in seq.tables_mut() {
            let Some(pool) = self.pools.get_mut(table.pool) else { continue };
            if let Some(page) = table.tail(len)
                && pool.is_shared(page)
            {
                table.set_tail(len, pool.take_copy(page)?);
            }
            while table.pages.len() < table.pages_for(end) {
                table.pages.push(pool.take()?);
            }
            let Some(fresh) = &mut table.fresh else { continue };
            let Some(pool) = self.pools.get_mut(fresh.pool) else { continue };
            if let Some(page) = fresh.tail(len)
                && pool.is_shared(page)
            {
                fresh.set_tail(len, pool.take_copy(page)?);
            }
            while fresh.missing(len, end) > 0 {
                fresh.push(len, pool.take()?);
            }
        }
        Ok(())
    }

    /// Frees the pages that `needed` asks of a pool, if need be at the cost of prefixes.
    fn make_room(&mut self, pool: usize) -> Result<()> {
        let needed = self.needed.get(pool).copied().unwrap_or(0);
        let limit = self.options.soft_limit.unwrap_or(u64::MAX);
        while self.prefixes.len() > 0
            && self.pools.get(pool).is_some_and(|pages| pages.free() < needed)
            && self.bytes().saturating_add(self.pools.get(pool).map_or(0, PagePool::chunk_bytes)) > limit
        {
            self.forget_prefix();
        }
        loop {
            let Some(pages) = self.pools.get_mut(pool) else { return Err(Error::internal("page pool")) };
            match pages.ensure_free(needed) {
                Err(Error::OutOfBudget { .. } | Error::OutOfMemory { .. }) if self.prefixes.len() > 0 => {
                    self.forget_prefix();
                    // Chunks of another pool may have become empty.
                    if self.pools.get(pool).is_some_and(|pages| pages.free() < needed) {
                        self.pools.iter_mut().for_each(PagePool::trim);
                    }
                }
                result => return result,
            }
        }
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
        let Layer { geometry, pool, .. } = self.layer(layer)?;
        let layout = geometry.layout();
        let (k_len, v_len) = (geometry.kv_heads * geometry.k_dim, geometry.kv_heads * geometry.v_dim);
        let (table, pool) = seq
            .tables()
            .get(layer)
            .zip(self.pools.get_mut(pool))
            .ok_or_else(|| Error::internal("KV layer"))?;
        let start = table.slot(seq.len()) + first;
        for (position, (key, value)) in
            (start..).zip(keys.chunks_exact(k_len).zip(values.chunks_exact(v_len)))
        {
            let page = table
                .pages
                .get(position / PAGE_TOKENS)
                .and_then(|&page| pool.page_mut(page))
                .ok_or_else(|| Error::internal(format!("position {position} was not prepared")))?;
            kernels.write_kv(&layout, page, position % PAGE_TOKENS, key, value);
        }
        fresh::write(kernels, &layout, &mut self.pools, table, start, keys)?;
        if layout.summaries {
            self.summarise(seq, layer, start..start + keys.len() / k_len)?;
        }
        Ok(())
    }

    /// The slot of a layer that the end of the sequence is at: its length, less what was evicted.
    pub fn slot(&self, seq: &Sequence, layer: usize) -> usize {
        seq.tables().get(layer).map_or(0, |table| table.slot(seq.len()))
    }

    /// Positions that layers without a window hold of a sequence.
    pub fn slots(&self, seq: &Sequence) -> usize {
        let mut tables = self.layers.iter().zip(seq.tables()).filter(|(layer, _)| layer.evicts());
        tables.next().map_or(0, |(_, table)| table.slot(seq.len()))
    }

    /// KV heads of each layer whose attention a policy must know, 0 for the others.
    pub fn watched_heads(&self) -> Vec<usize> {
        let heads = |layer: &Layer| if layer.evicts() { layer.geometry.kv_heads } else { 0 };
        self.layers.iter().map(heads).collect()
    }

    /// The pages of one layer, for attention. Their positions are slots.
    ///
    /// # Errors
    /// Only for mistakes of the caller.
    pub fn pages<'a>(&'a self, seq: &'a Sequence, layer: usize) -> Result<KvPages<'a>> {
        let Layer { geometry, pool, .. } = self.layer(layer)?;
        let (table, pool) =
            seq.tables().get(layer).zip(self.pools.get(pool)).ok_or_else(|| Error::internal("KV layer"))?;
        Ok(KvPages {
            chunks: pool.chunks(),
            chunk_pages: pool.chunk_pages(),
            layout: geometry.layout(),
            page_len: pool.page_len(),
            table: &table.pages,
            first_token: table.first * PAGE_TOKENS,
            fresh: table.fresh.as_ref().and_then(|fresh| Some(fresh.view(self.pools.get(fresh.pool)?))),
            most_pages: self.options.policy.reads().filter(|_| geometry.summaries),
        })
    }

    /// The `n` prepared tokens belong to the sequence from now on.
    pub fn commit(&mut self, seq: &mut Sequence, n: usize) {
        let len = seq.len() + n;
        seq.set_len(len);
        for fresh in seq.tables_mut().iter_mut().filter_map(|table| table.fresh.as_mut()) {
            if let Some(pool) = self.pools.get_mut(fresh.pool) {
                fresh.commit(len, |page| pool.release(page));
            }
        }
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
            if len > 0 && len < table.floor {
                return cannot("keys and values of earlier tokens were evicted");
            }
            if table.fresh.as_ref().is_some_and(|fresh| !fresh.can_cut(len)) {
                return cannot("only whole pages are left there of keys that are rounded per channel");
            }
        }
        seq.set_len(len);
        self.cut(seq, len);
        Ok(())
    }

    /// How many tokens of a sequence can be forgotten for certain, counted from the longest that it has been since it was restored or resumed
    /// (but not those that it had then).
    pub fn slack(&self) -> usize {
        let fresh = self.layers.iter().any(|layer| layer.fresh.is_some());
        let of_pages = if fresh { PAGE_TOKENS } else { usize::MAX };
        self.options.window_slack.unwrap_or(usize::MAX).min(of_pages)
    }

    fn cut(&mut self, seq: &mut Sequence, len: usize) {
        for table in seq.tables_mut() {
            if let Some(pool) = self.pools.get_mut(table.pool) {
                table.cut(len, |page| pool.release(page));
            }
            if let Some(fresh) = &mut table.fresh
                && let Some(pool) = self.pools.get_mut(fresh.pool)
            {
                fresh.cut(len, |page| pool.release(page));
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
            if let Some(fresh) = &table.fresh
                && let Some(pool) = self.pools.get_mut(fresh.pool)
            {
                fresh.pages().iter().for_each(|&page| pool.share(page));
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
