//! Forgetting by a policy: what stays is moved together, row by row as it is stored.
//!
//! ```text
//! before   slot = position                            each KV head may keep other positions, all keep equally many
//! after    slot = position - gap for new positions    keys carry their positions in their rotation, so attention needs none
//! ```
//!
//! The moves go forward only (a kept row's new slot is never behind its old one), so pages of one's own are compacted in
//! place; only pages that others share are copied first.

use pannier_kernels::PAGE_TOKENS;

use super::{Heat, KvCache, KvPolicy, Sequence, cannot_forget};
use crate::{Error, Result};

/// What an eviction did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evicted {
    /// Positions of each layer (and KV head) that are gone.
    pub gone: usize,
    /// Positions that stay.
    pub kept: usize,
}

impl KvCache {
    /// Forgets what `policy` does not keep, in all layers without a window. Without `heat` all positions are alike, and the later
    /// ones stay.
    ///
    /// # Errors
    /// [`Error::OutOfBudget`] if shared pages cannot be copied, [`Error::Unsupported`] with keys per channel and with summaries of pages; the sequence is as it was then.
    pub fn evict(
        &mut self,
        seq: &mut Sequence,
        policy: KvPolicy,
        heat: Option<&mut Heat>,
    ) -> Result<Evicted> {
        self.check(seq)?;
        self.collect_returns();
        let len = seq.len();
        let slots = self.slots(seq);
        let kept = policy.keeps().map_or(slots, |keeps| keeps.min(slots));
        if kept == slots {
            return Ok(Evicted { gone: 0, kept });
        }
        if self.layers.iter().any(|layer| layer.evicts() && layer.fresh.is_some()) {
            return Err(cannot_forget("keys per channel", policy));
        }
        if self.layers.iter().any(|layer| layer.geometry.summaries) {
            let what = format!(
                "the KV policy {policy} for a cache with {}: keys with summaries stay where they are, and none is forgotten",
                self.options.policy
            );
            return Err(Error::Unsupported { what });
        }
        let pages = kept.div_ceil(PAGE_TOKENS);
        // First all that can fail.
        self.needed.fill(0);
        for (layer, table) in self.layers.iter().zip(seq.tables()).filter(|(layer, _)| layer.evicts()) {
            let pool = self.pools.get(layer.pool).ok_or_else(|| Error::internal("page pool"))?;
            let shared = table.pages.iter().take(pages).filter(|&&page| pool.is_shared(page)).count();
            if let Some(needed) = self.needed.get_mut(layer.pool) {
                *needed += shared;
            }
        }
        for pool in 0..self.pools.len() {
            self.make_room(pool)?;
        }
        let mut heat = heat;
        if let Some(heat) = heat.as_deref_mut() {
            heat.settle_all();
        }
        let mut rates = Vec::new();
        let mut row = Vec::new();
        for index in 0..self.layers.len() {
            let Some(layer) = self.layers.get(index).copied().filter(|layer| layer.evicts()) else {
                continue;
            };
            let heads: Vec<Vec<u32>> = (0..layer.geometry.kv_heads)
                .map(|head| {
                    match heat.as_deref_mut() {
                        Some(heat) => heat.rates(index, head, &mut rates),
                        None => rates.clear(),
                    }
                    rates.resize(slots, 0.0);
                    policy.choose(&rates, &mut row);
                    if let Some(heat) = heat.as_deref_mut() {
                        heat.keep(index, head, &rates, &row);
                    }
                    row.clone()
                })
                .collect();
            self.compact(seq, index, &heads, kept)?;
        }
        if let Some(heat) = heat {
            heat.kept(kept);
        }
        for (layer, table) in self.layers.iter().zip(seq.tables_mut()).filter(|(layer, _)| layer.evicts()) {
            debug_assert!(layer.geometry.window.is_none());
            table.gap = len - kept;
            table.floor = len;
        }
        Ok(Evicted { gone: slots - kept, kept })
    }

    /// Moves the kept rows of one layer together and gives the rest of its pages back.
    fn compact(&mut self, seq: &mut Sequence, layer: usize, heads: &[Vec<u32>], kept: usize) -> Result<()> {
        let layout = self.layer(layer)?.geometry.layout();
        let lost = || Error::internal("a page of a sequence that is being evicted");
        let table = seq.tables_mut().get_mut(layer).ok_or_else(lost)?;
        let pool = self.pools.get_mut(table.pool).ok_or_else(lost)?;
        let old = std::mem::take(&mut table.pages);
        let pages = kept.div_ceil(PAGE_TOKENS);
        for &page in old.iter().take(pages) {
            // Taking cannot fail: `evict` has made room.
            table.pages.push(if pool.is_shared(page) { pool.take()? } else { page });
        }
        let mut cursors = vec![0usize; heads.len()];
        let mut source = vec![0u16; pool.page_len()];
        for (index, &page) in old.iter().enumerate() {
            source.copy_from_slice(pool.page(page).ok_or_else(lost)?);
            let end = ((index + 1) * PAGE_TOKENS) as u32;
            for (head, (kept, cursor)) in heads.iter().zip(&mut cursors).enumerate() {
                while let Some(&slot) = kept.get(*cursor).filter(|&&slot| slot < end) {
                    let to = table.pages.get(*cursor / PAGE_TOKENS).copied().ok_or_else(lost)?;
                    let target = pool.page_mut(to).ok_or_else(lost)?;
                    let from = slot as usize % PAGE_TOKENS;
                    layout.copy_row(head, (&source, from), (target, *cursor % PAGE_TOKENS));
                    *cursor += 1;
                }
            }
        }
        for (index, &page) in old.iter().enumerate() {
            if table.pages.get(index) != Some(&page) {
                pool.release(page);
            }
        }
        Ok(())
    }
}
