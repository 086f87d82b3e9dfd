//! From the tensors of a unit to few large aligned reads.

use super::layout::{UnitTensor, View};
use super::source::{DIRECT_ALIGN, WeightSource, read_needed};
use crate::memory::Category;
use crate::{Error, Result};
use memmap2::MmapMut;

/// Anonymous pages that are given back to the system when dropped, which the allocator does not promise.
#[derive(Debug)]
pub(crate) struct Slab(MmapMut);

impl Slab {
    pub fn new(bytes: usize, category: Category) -> Result<Slab> {
        let failed = |_| Error::OutOfMemory { category, bytes: bytes as u64 };
        let slab = MmapMut::map_anon(bytes.max(DIRECT_ALIGN)).map_err(failed)?;
        // Kernels walk many rows at once, each on pages of its own.
        pannier_gguf::prefer_huge_pages(&slab);
        Ok(Slab(slab))
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Makes the system give all pages now.
    pub fn touch(&mut self) {
        self.0.fill(0);
    }
}

/// One read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    shard: usize,
    /// In the file; aligned.
    offset: u64,
    /// In the slab; aligned.
    at: usize,
    /// Aligned.
    len: usize,
    /// The part of it that must be there: the file may end before `len`.
    needed: usize,
}

/// How to bring some tensors into a slab.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extents {
    reads: Vec<Extent>,
    /// Where the planes of each of the given tensors begin in the slab.
    pub at: Vec<[usize; 2]>,
    /// The size of the slab; also what is read.
    pub bytes: usize,
    /// How many reads, and bytes, are those of first planes.
    low_reads: usize,
    low_bytes: usize,
}

/// Reading this much that nobody wants is cheaper than another read; what packs have between tensors is less.
pub(super) const GAP: u64 = 16 << 10;
/// Two halves of a read of this size are read at the same time: one lane does not saturate a phone's flash, two do.
const SPLIT: usize = 4 << 20;
/// The largest single read: a store that closes waits for one.
const PIECE: usize = 8 << 20;

impl Extents {
    /// First planes come before second ones, so that reading without these is reading the front.
    pub fn of<'a>(tensors: impl IntoIterator<Item = &'a UnitTensor>) -> Result<Extents> {
        let tensors: Vec<&UnitTensor> = tensors.into_iter().collect();
        let mut out = Extents { at: vec![[0; 2]; tensors.len()], ..Extents::default() };
        let first =
            |(index, tensor): (usize, &&UnitTensor)| (index, tensor.shard, tensor.offset, tensor.bytes);
        out.add(0, tensors.iter().enumerate().map(first).collect())?;
        (out.low_reads, out.low_bytes) = (out.reads.len(), out.bytes);
        let fine = tensors.iter().enumerate();
        let fine =
            fine.filter_map(|(index, tensor)| tensor.fine.map(|f| (index, f.shard, f.offset, f.bytes)));
        out.add(1, fine.collect())?;
        Ok(out)
    }

    /// Appends one plane of some tensors: index, shard, offset, bytes.
    fn add(&mut self, plane: usize, mut sorted: Vec<(usize, usize, u64, u64)>) -> Result<()> {
        let overflow = || Error::internal("sizes of a unit overflow");
        let align = DIRECT_ALIGN as u64;
        sorted.sort_by_key(|&(_, shard, offset, _)| (shard, offset));
        // Start and end in the file of the extent that is being built.
        let mut open: Option<(usize, u64, u64)> = None;
        let mut starts = Vec::with_capacity(sorted.len());
        let close = |out: &mut Extents, open: Option<(usize, u64, u64)>| -> Result<()> {
            let Some((shard, start, end)) = open else { return Ok(()) };
            let needed = usize::try_from(end - start).map_err(|_| overflow())?;
            let len = needed.checked_next_multiple_of(DIRECT_ALIGN).ok_or_else(overflow)?;
            out.reads.push(Extent { shard, offset: start, at: out.bytes, len, needed });
            out.bytes = out.bytes.checked_add(len).ok_or_else(overflow)?;
            Ok(())
        };
        for (index, shard, offset, bytes) in sorted {
            let end = offset.checked_add(bytes).ok_or_else(overflow)?;
            match &mut open {
                Some((other, _, last)) if *other == shard && offset <= last.saturating_add(GAP) => {
                    *last = end.max(*last);
                }
                _ => {
                    close(self, open.take())?;
                    open = Some((shard, offset / align * align, end));
                }
            }
            starts.push((index, self.reads.len(), offset));
        }
        close(self, open)?;
        for (index, read, offset) in starts {
            let extent = self.reads.get(read).ok_or_else(overflow)?;
            let inside = usize::try_from(offset - extent.offset).map_err(|_| overflow())?;
            if let Some(at) = self.at.get_mut(index) {
                at[plane] = extent.at + inside;
            }
        }
        Ok(())
    }

    /// How many reads a view takes.
    pub fn reads(&self, view: View) -> usize {
        if view == View::Low { self.low_reads } else { self.reads.len() }
    }

    /// How many bytes a view reads.
    pub fn bytes_in(&self, view: View) -> usize {
        if view == View::Low { self.low_bytes } else { self.bytes }
    }

    /// Fills a slab, or its front if the view needs no more.
    pub fn read(&self, source: &dyn WeightSource, slab: &mut Slab, view: View) -> Result<()> {
        for extent in self.reads.iter().take(self.reads(view)) {
            let out = slab
                .0
                .get_mut(extent.at..extent.at + extent.len)
                .ok_or_else(|| Error::internal("a unit is larger than its slab"))?;
            if extent.len < SPLIT {
                read_needed(source, extent.shard, extent.offset, out, extent.needed)?;
                continue;
            }
            let half = (extent.len / 2).next_multiple_of(DIRECT_ALIGN);
            let (first, second) = out.split_at_mut(half);
            // Starting a thread costs a hundredth of what the read takes.
            std::thread::scope(|scope| {
                let helper =
                    std::thread::Builder::new().name("flash lane".into()).spawn_scoped(scope, || {
                        read_pieces(
                            source,
                            extent.shard,
                            extent.offset + half as u64,
                            second,
                            extent.needed - half,
                        )
                    });
                let one = read_pieces(source, extent.shard, extent.offset, first, half);
                let two = match helper {
                    Ok(helper) => helper.join().unwrap_or_else(|_| Err(Error::internal("a lane panicked"))),
                    Err(error) => Err(Error::internal(format!("cannot start a lane: {error}"))),
                };
                one.and(two)
            })?;
        }
        Ok(())
    }
}

fn read_pieces(
    source: &dyn WeightSource,
    shard: usize,
    offset: u64,
    out: &mut [u8],
    needed: usize,
) -> Result<()> {
    let mut done = 0;
    for piece in out.chunks_mut(PIECE) {
        if done < needed {
            read_needed(source, shard, offset + done as u64, piece, piece.len().min(needed - done))?;
        }
        done += piece.len();
    }
    Ok(())
}
