//! Sequences that are shared: as prefixes of others, and as files.

use std::any::Any;
use std::io::{Read, Seek, Write};

use pannier_kernels::PAGE_TOKENS;

use super::sequence::Table;
use super::{Checkpoint, Fingerprint, KvCache, Limits, Saved, Sequence, saved};
use crate::Result;

impl KvCache {
    /// Which prefixes there are from now on: those that were published under the same number. For models that can compute the same tokens in
    /// more ways than one.
    pub fn set_root(&mut self, root: u64) {
        self.prefixes.root = root;
    }

    /// Makes the full pages of a sequence, whose tokens are `tokens`, available to others that begin alike. A checkpoint belongs to the
    /// end of the sequence, which must be a page's border then. Sequences of which something was evicted or given back are not
    /// published.
    pub fn publish(&mut self, seq: &Sequence, tokens: &[u32], checkpoint: Option<Checkpoint>) {
        let whole = |table: &Table| table.first == 0 && table.gap == 0;
        if self.prefix_nodes == 0 || tokens.len() != seq.len() || !seq.tables().iter().all(whole) {
            return;
        }
        self.collect_returns();
        let mut path = self.prefixes.path(tokens);
        for (index, page) in tokens.as_chunks::<PAGE_TOKENS>().0.iter().enumerate().skip(path.len()) {
            if self.prefixes.len() >= self.prefix_nodes {
                self.forget_prefix();
            }
            let pages: Option<Box<[u32]>> =
                seq.tables().iter().map(|table| table.pages.get(index).copied()).collect();
            // The parent was used a moment ago, so it is the last to be forgotten; if even it was, nothing can stand on it.
            let parent = path.last().copied();
            let Some(pages) = pages.filter(|_| parent.is_none_or(|parent| self.prefixes.is_there(parent)))
            else {
                return;
            };
            let held = pages.clone();
            let Some(node) = self.prefixes.add(parent, page, pages) else { return };
            for (table, &page) in seq.tables().iter().zip(&held) {
                if let Some(pool) = self.pools.get_mut(table.pool) {
                    pool.share(page);
                }
            }
            path.push(node);
        }
        if let (Some(checkpoint), Some(&last)) = (checkpoint, path.last())
            && path.len() * PAGE_TOKENS == tokens.len()
        {
            self.prefixes.set_checkpoint(last, checkpoint);
        }
    }

    /// How many tokens a sequence from [`KvCache::resume`] would have.
    pub fn published(&mut self, tokens: &[u32], with_checkpoint: bool) -> usize {
        self.known(tokens, with_checkpoint).len() * PAGE_TOKENS
    }

    fn known(&mut self, tokens: &[u32], with_checkpoint: bool) -> Vec<usize> {
        let mut path = self.prefixes.path(tokens);
        while with_checkpoint && path.last().is_some_and(|&last| self.prefixes.checkpoint(last).is_none()) {
            path.pop();
        }
        path
    }

    /// A sequence of the longest published prefix of `tokens`, whole pages, with its checkpoint if there must be one; `None` if
    /// there is no prefix.
    pub fn resume(
        &mut self,
        tokens: &[u32],
        with_checkpoint: bool,
    ) -> Option<(Sequence, Option<&(dyn Any + Send)>)> {
        let path = self.known(tokens, with_checkpoint);
        let last = *path.last()?;
        let mut seq = self.new_sequence();
        for &node in &path {
            for (table, &page) in seq.tables_mut().iter_mut().zip(self.prefixes.pages(node)) {
                table.pages.push(page);
                if let Some(pool) = self.pools.get_mut(table.pool) {
                    pool.share(page);
                }
            }
        }
        seq.set_len(path.len() * PAGE_TOKENS);
        Some((seq, self.prefixes.checkpoint(last)))
    }

    /// Lets go of the prefix that was not used for longest.
    pub(super) fn forget_prefix(&mut self) {
        for (layer, page) in self.layers.iter().zip(self.prefixes.forget_leaf().unwrap_or_default()) {
            if let Some(pool) = self.pools.get_mut(layer.pool) {
                pool.release(page);
            }
        }
    }

    /// Lets prefixes take at most so many bytes from now on; the rest is given back to the system. Gives the bytes that they have
    /// then.
    pub fn limit_prefixes(&mut self, bytes: u64) -> u64 {
        self.prefix_nodes = self.nodes_in(bytes.min(self.options.prefix_bytes));
        let before = self.prefixes.len();
        while self.prefixes.len() > self.prefix_nodes {
            self.forget_prefix();
        }
        if self.prefixes.len() < before {
            self.trim();
        }
        (self.prefixes.len() * PAGE_TOKENS) as u64 * self.bytes_per_token()
    }

    /// Writes a sequence, for [`KvCache::restore`].
    ///
    /// # Errors
    /// Those of `out`.
    pub fn save(
        &self,
        seq: &Sequence,
        fingerprint: &Fingerprint,
        saved: &Saved,
        out: &mut dyn Write,
    ) -> std::io::Result<()> {
        saved::write(self, seq, fingerprint, saved, out)
    }

    /// Reads a sequence that [`KvCache::save`] has written.
    ///
    /// # Errors
    /// [`BadCacheFile`](crate::Error::BadCacheFile), [`OutOfBudget`](crate::Error::OutOfBudget), [`OutOfMemory`](crate::Error::OutOfMemory); nothing of it stays then.
    pub fn restore<R: Read + Seek>(
        &mut self,
        fingerprint: &Fingerprint,
        limits: &Limits,
        input: &mut R,
    ) -> Result<(Sequence, Saved)> {
        self.collect_returns();
        saved::read(self, fingerprint, limits, input)
    }
}
