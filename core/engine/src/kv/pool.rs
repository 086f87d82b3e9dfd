//! Equal pages in chunks that never move.

use crate::memory::{Accountant, Category, Reservation, zeroed};
use crate::{Error, Result};

/// A chunk is about this large: small enough that half a chunk of slack does not matter to a budget, large enough that the
/// system's own bookkeeping does not either.
const CHUNK_BYTES: usize = 1 << 20;

/// Pages of one length.
#[derive(Debug)]
pub(super) struct PagePool {
    page_len: usize,
    chunk_pages: usize,
    /// Empty where a chunk was given back.
    chunks: Vec<Box<[u16]>>,
    held: Vec<Option<Reservation>>,
    /// How many sequences hold a page; 0 for a free one and for one whose chunk was given back.
    refs: Vec<u32>,
    free: Vec<u32>,
    accountant: Accountant,
}

impl PagePool {
    pub(super) fn new(page_len: usize, accountant: Accountant) -> Self {
        let chunk_pages = (CHUNK_BYTES / (2 * page_len)).max(1);
        PagePool {
            page_len,
            chunk_pages,
            chunks: Vec::new(),
            held: Vec::new(),
            refs: Vec::new(),
            free: Vec::new(),
            accountant,
        }
    }

    pub(super) fn page_len(&self) -> usize {
        self.page_len
    }

    pub(super) fn chunk_pages(&self) -> usize {
        self.chunk_pages
    }

    pub(super) fn chunk_bytes(&self) -> u64 {
        2 * (self.chunk_pages * self.page_len) as u64
    }

    pub(super) fn chunks(&self) -> &[Box<[u16]>] {
        &self.chunks
    }

    pub(super) fn used(&self) -> usize {
        self.refs.iter().filter(|&&refs| refs > 0).count()
    }

    pub(super) fn free(&self) -> usize {
        self.free.len()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.held.iter().flatten().map(Reservation::bytes).sum()
    }

    /// Grows until `pages` are free.
    pub(super) fn ensure_free(&mut self, pages: usize) -> Result<()> {
        while self.free.len() < pages {
            self.grow()?;
        }
        Ok(())
    }

    fn grow(&mut self) -> Result<()> {
        let len = self.chunk_pages * self.page_len;
        let held = self.accountant.reserve(Category::Kv, 2 * len as u64)?;
        let data = zeroed::<u16>(len, Category::Kv)?.into_boxed_slice();
        let chunk = match self.chunks.iter().position(|chunk| chunk.is_empty()) {
            Some(chunk) => chunk,
            None => {
                let pages = self.refs.len() + self.chunk_pages;
                if u32::try_from(pages).is_err() {
                    return Err(Error::OutOfMemory { category: Category::Kv, bytes: 2 * len as u64 });
                }
                self.refs.resize(pages, 0);
                self.chunks.push(Box::default());
                self.held.push(None);
                self.chunks.len() - 1
            }
        };
        if let (Some(slot), Some(reservation)) = (self.chunks.get_mut(chunk), self.held.get_mut(chunk)) {
            *slot = data;
            *reservation = Some(held);
        }
        let first = chunk * self.chunk_pages;
        // The lowest is taken first, so that a short sequence stays in one chunk.
        self.free.extend((first..first + self.chunk_pages).rev().map(|page| page as u32));
        Ok(())
    }

    /// A free page, held once. Call [`PagePool::ensure_free`] before.
    pub(super) fn take(&mut self) -> Result<u32> {
        let page = self.free.pop().ok_or_else(|| Error::internal("no free KV page"))?;
        self.share(page);
        Ok(page)
    }

    /// A free page with what `page` holds, which is held once less.
    pub(super) fn take_copy(&mut self, page: u32) -> Result<u32> {
        let own = self.take()?;
        self.copy(page, own);
        self.release(page);
        Ok(own)
    }

    pub(super) fn share(&mut self, page: u32) {
        if let Some(refs) = self.refs.get_mut(page as usize) {
            *refs += 1;
        }
    }

    pub(super) fn is_shared(&self, page: u32) -> bool {
        self.refs.get(page as usize).is_some_and(|&refs| refs > 1)
    }

    pub(super) fn release(&mut self, page: u32) {
        if let Some(refs) = self.refs.get_mut(page as usize)
            && *refs > 0
        {
            *refs -= 1;
            if *refs == 0 {
                self.free.push(page);
            }
        }
    }

    fn range(&self, page: u32) -> (usize, std::ops::Range<usize>) {
        let start = page as usize % self.chunk_pages * self.page_len;
        (page as usize / self.chunk_pages, start..start + self.page_len)
    }

    pub(super) fn page(&self, page: u32) -> Option<&[u16]> {
        let (chunk, range) = self.range(page);
        self.chunks.get(chunk)?.get(range)
    }

    pub(super) fn page_mut(&mut self, page: u32) -> Option<&mut [u16]> {
        let (chunk, range) = self.range(page);
        self.chunks.get_mut(chunk)?.get_mut(range)
    }

    fn copy(&mut self, from: u32, to: u32) {
        let (from_chunk, from) = self.range(from);
        let (to_chunk, to) = self.range(to);
        if from_chunk == to_chunk {
            if let Some(chunk) = self.chunks.get_mut(from_chunk) {
                chunk.copy_within(from, to.start);
            }
        } else if let Ok([source, target]) = self.chunks.get_disjoint_mut([from_chunk, to_chunk])
            && let (Some(source), Some(target)) = (source.get(from), target.get_mut(to))
        {
            target.copy_from_slice(source);
        }
    }

    /// Gives chunks without a page in use back.
    pub(super) fn trim(&mut self) {
        for (chunk, refs) in self.refs.chunks(self.chunk_pages).enumerate() {
            if refs.iter().all(|&refs| refs == 0)
                && let (Some(data), Some(held)) = (self.chunks.get_mut(chunk), self.held.get_mut(chunk))
            {
                *data = Box::default();
                *held = None;
            }
        }
        let (chunks, chunk_pages) = (&self.chunks, self.chunk_pages);
        self.free
            .retain(|&page| chunks.get(page as usize / chunk_pages).is_some_and(|chunk| !chunk.is_empty()));
    }
}
