//! Summaries of keys in the pages themselves, for layers of which a query reads only some pages ([`KvPolicy::Pages`](super::KvPolicy)).
//!
//! They are made when a page is full, and follow from it. So nothing here has to know of forks, copies, prefixes or files: a summary goes where its
//! page goes. Behind a cut a page is filled, and its summary made, again; until then no query asks for it.

use std::ops::Range;

use pannier_kernels::PAGE_TOKENS;

use super::{KvCache, Layer, Sequence};
use crate::{Error, Result};

/// What queries have read of a cache, in layers that may leave pages out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageReads {
    /// Pages that were read, counted once for each query.
    pub read: u64,
    /// Pages that there were.
    pub there: u64,
}

impl PageReads {
    /// What came after `before`.
    #[must_use]
    pub fn since(self, before: PageReads) -> PageReads {
        PageReads {
            read: self.read.saturating_sub(before.read),
            there: self.there.saturating_sub(before.there),
        }
    }

    /// Both together.
    #[must_use]
    pub fn plus(self, other: PageReads) -> PageReads {
        PageReads { read: self.read + other.read, there: self.there + other.there }
    }

    /// The share that was read; `None` if there was nothing.
    #[must_use]
    #[allow(clippy::cast_precision_loss)] // a share
    pub fn share(self) -> Option<f64> {
        (self.there > 0).then(|| self.read as f64 / self.there as f64)
    }
}

impl KvCache {
    /// Makes the summaries of the pages whose last row is among these slots.
    pub(super) fn summarise(&mut self, seq: &Sequence, layer: usize, slots: Range<usize>) -> Result<()> {
        let Layer { geometry, pool, .. } = self.layer(layer)?;
        let lost = || Error::internal("a page that was written");
        let (table, pool) = seq.tables().get(layer).zip(self.pools.get_mut(pool)).ok_or_else(lost)?;
        for index in slots.start / PAGE_TOKENS..slots.end / PAGE_TOKENS {
            let page = table.pages.get(index).and_then(|&page| pool.page_mut(page)).ok_or_else(lost)?;
            geometry.layout().summarise(page);
        }
        Ok(())
    }

    /// What queries at these positions read, all layers together; all zero if they read everything.
    pub fn page_reads(&self, positions: Range<usize>) -> PageReads {
        let Some(most) = self.options.policy.reads() else { return PageReads::default() };
        let layers = self.layers.iter().filter(|layer| layer.geometry.summaries).count() as u64;
        positions.fold(PageReads::default(), |sum, position| {
            let there = position / PAGE_TOKENS + 1;
            sum.plus(PageReads { read: layers * there.min(most) as u64, there: layers * there as u64 })
        })
    }
}
