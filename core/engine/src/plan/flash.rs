//! Reading a model's units from flash as a store reads them, for as long as it takes to know how fast that is.
//!
//! Not a loop of reads of one size: halves of a unit wait for each other, a unit has as many reads as its tensors lie apart, and both cost up to a
//! third of what a disk can give.

use crate::memory::Category;
use crate::model::Blueprint;
use crate::residency::{Extents, FileSource, Slab, StreamOptions, UnitKind, View};
use crate::{Error, Result};
use pannier_gguf::Gguf;
use std::time::{Duration, Instant};

/// At most this much is read, and for so long.
const BYTES: u64 = 256 << 20;
const TIME: Duration = Duration::from_millis(500);

/// How often an expert is read alone, and the longest pause before, in seconds.
const LONE: usize = 16;
const PAUSE: f64 = 0.02;

/// What a store that streams would read.
pub(super) struct Reads {
    units: Vec<Extents>,
    /// Threads that take one unit after the other: one for dense weights, whose units are halved, several for experts.
    readers: usize,
}

/// What was read.
pub(super) struct Reading {
    pub bytes: f64,
    /// Until the last byte was there.
    pub reading: f64,
    /// Until what was done besides had ended, too.
    pub seconds: f64,
}

impl Reads {
    /// Experts, or without experts all blocks, that all readers together can hold in `most` bytes; single matrices of them where there is less memory, and
    /// nothing where there is not even enough for one.
    pub fn of(model: &Blueprint, most: u64) -> Result<Reads> {
        let layout = model.layout();
        let experts = layout.units().iter().any(|unit| matches!(unit.kind, UnitKind::Expert { .. }));
        let readers = if experts { StreamOptions::default().lanes } else { 1 };
        let most = usize::try_from(most).unwrap_or(usize::MAX) / readers;
        let wanted = || {
            layout.units().iter().filter(|unit| match unit.kind {
                UnitKind::Expert { .. } => true,
                kind => !experts && kind != UnitKind::Embedding,
            })
        };
        let fitting = |all: Result<Vec<Extents>>| -> Result<Vec<Extents>> {
            Ok(all?.into_iter().filter(|unit| (1..=most).contains(&unit.bytes)).collect())
        };
        let mut units = fitting(wanted().map(|unit| Extents::of(&unit.tensors)).collect())?;
        if units.is_empty() {
            units = fitting(wanted().flat_map(|unit| &unit.tensors).map(|one| Extents::of([one])).collect())?;
        }
        Ok(Reads { units, readers })
    }

    /// Models that are read alike have one name.
    pub fn name(&self) -> String {
        let all: usize = self.units.iter().map(|unit| unit.bytes).sum();
        let mean = all / self.units.len().max(1);
        format!("{}x{}k", self.readers, (mean >> 10).next_power_of_two())
    }

    /// Memory for any of the units.
    fn slab(&self) -> Result<Slab> {
        let largest = self.units.iter().map(|unit| unit.bytes).max();
        let mut slab = Slab::new(largest.unwrap_or(0), Category::Scratch)?;
        // What was never touched is slow once.
        slab.touch();
        Ok(slab)
    }

    /// What an expert gets that is read alone, after a pause, in bytes per second; `None` without experts. `flash_bps` is what many get.
    pub fn lone(&self, gguf: &Gguf, flash_bps: f64) -> Result<Option<f64>> {
        if self.readers == 1 {
            return Ok(None);
        }
        let source = FileSource::open(gguf)?;
        // Where `run` has not read.
        let own = self.units.iter().skip(self.units.len() * 3 / 4).take(LONE);
        let mut slab = self.slab()?;
        let (mut bytes, mut seconds) = (0, 0.0);
        for unit in own {
            let pause = (2.0 * unit.bytes as f64 / flash_bps).clamp(0.0, PAUSE);
            std::thread::sleep(Duration::from_secs_f64(pause));
            let start = Instant::now();
            unit.read(&source, &mut slab, View::Full)?;
            seconds += start.elapsed().as_secs_f64();
            bytes += unit.bytes;
        }
        Ok((bytes > 0).then(|| bytes as f64 / seconds.max(1e-9)))
    }

    /// Reads one half of the units, or a part of it; the second call has the other half, so that what has been read is not read again.
    /// `meanwhile` is called over and over.
    pub fn run(
        &self,
        gguf: &Gguf,
        half: usize,
        meanwhile: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Reading> {
        let source = FileSource::open(gguf)?;
        let first = half * (self.units.len() / 2);
        let slabs = (0..self.readers).map(|_| self.slab()).collect::<Result<Vec<_>>>()?;
        let start = Instant::now();
        let reader = |index: usize, mut slab: Slab| -> Result<(u64, f64)> {
            let mut got = 0u64;
            let own = self.units.iter().cycle().skip(first + index).step_by(self.readers);
            for unit in own.take(self.units.len().div_ceil(2 * self.readers)) {
                if start.elapsed() > TIME || got > BYTES / self.readers as u64 {
                    break;
                }
                unit.read(&source, &mut slab, View::Full)?;
                got += unit.bytes as u64;
            }
            Ok((got, start.elapsed().as_secs_f64()))
        };
        std::thread::scope(|scope| {
            let readers = (0..).zip(slabs).map(|(index, slab)| {
                let reader = &reader;
                scope.spawn(move || reader(index, slab))
            });
            let readers: Vec<_> = readers.collect();
            while readers.iter().any(|reader| !reader.is_finished()) {
                meanwhile()?;
            }
            let mut out = Reading { bytes: 0.0, reading: 0.0, seconds: start.elapsed().as_secs_f64() };
            for reader in readers {
                let (bytes, seconds) =
                    reader.join().unwrap_or_else(|_| Err(Error::internal("a reader panicked")))?;
                out.bytes += bytes as f64;
                out.reading = out.reading.max(seconds);
            }
            Ok(out)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ModelOptions;
    use std::path::Path;
    use std::sync::Arc;

    fn model(path: &Path) -> Blueprint {
        Blueprint::read(Arc::new(Gguf::open(path).unwrap()), &ModelOptions::default()).unwrap()
    }

    fn golden() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/golden/tiny/arch-qwen3-dense.gguf"))
    }

    #[test]
    fn no_more_memory_is_taken_than_allowed() {
        let model = model(golden());
        let all = Reads::of(&model, u64::MAX).unwrap();
        let sizes = |reads: &Reads| reads.units.iter().map(|unit| unit.bytes).collect::<Vec<_>>();
        let smallest = *sizes(&all).iter().min().unwrap();
        // Less than any unit: matrices one by one.
        let some = Reads::of(&model, smallest as u64 - 1).unwrap();
        assert!(!some.units.is_empty() && sizes(&some).iter().all(|bytes| *bytes < smallest));
        assert!(some.run(model.gguf(), 0, &mut || Ok(())).unwrap().bytes > 0.0);
        // Less than any matrix: nothing is read, and nobody waits for it.
        let none = Reads::of(&model, 1).unwrap();
        assert!(none.units.is_empty());
        assert!(none.run(model.gguf(), 1, &mut || Ok(())).unwrap().bytes == 0.0);
        assert!(none.lone(model.gguf(), 1e9).unwrap().is_none());
    }

    #[test]
    fn a_file_that_has_shrunk_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        std::fs::copy(golden(), &path).unwrap();
        let model = model(&path);
        let reads = Reads::of(&model, u64::MAX).unwrap();
        std::fs::File::options().write(true).open(&path).unwrap().set_len(9000).unwrap();
        let shrunk = reads.run(model.gguf(), 0, &mut || Ok(()));
        assert!(matches!(shrunk, Err(Error::Io { .. } | Error::ModelChanged { .. })));
    }
}
