//! Reading a model's units from flash as a store reads them, for as long as it takes to know how fast that is.
//!
//! Not a loop of reads of one size: halves of a unit wait for each other, a unit has as many reads as its tensors lie apart, and both cost up to a
//! third of what a disk can give.

use crate::memory::Category;
use crate::model::Blueprint;
use crate::residency::{Extents, FileSource, Slab, StreamOptions, UnitKind, View};
use crate::{Error, Result};
use pannier_gguf::Gguf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// At most this much is read, and for so long.
const BYTES: u64 = 256 << 20;
const TIME: Duration = Duration::from_millis(500);

/// How often an expert is read alone, and the longest pause before.
const LONE: usize = 16;
const PAUSE: Duration = Duration::from_millis(20);

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
    /// Experts, or without experts all blocks; of those, what fits into `most` bytes for each reader.
    pub fn of(model: &Blueprint, most: u64) -> Result<Reads> {
        let of = |wanted: fn(UnitKind) -> bool| -> Result<Vec<Extents>> {
            let units = model.layout().units().iter().filter(|unit| wanted(unit.kind));
            let mut all = units.map(|unit| Extents::of(&unit.tensors)).collect::<Result<Vec<_>>>()?;
            all.retain(|unit| unit.bytes > 0);
            Ok(all)
        };
        let mut readers = StreamOptions::default().lanes;
        let mut units = of(|kind| matches!(kind, UnitKind::Expert { .. }))?;
        if units.is_empty() {
            readers = 1;
            units = of(|kind| kind != UnitKind::Embedding)?;
        }
        let smallest = units.iter().map(|unit| unit.bytes).min().unwrap_or(0);
        let most = usize::try_from(most).unwrap_or(usize::MAX) / readers;
        units.retain(|unit| unit.bytes <= most.max(smallest));
        Ok(Reads { units, readers })
    }

    /// Models that are read alike have one name.
    pub fn name(&self) -> String {
        let all: usize = self.units.iter().map(|unit| unit.bytes).sum();
        let mean = all / self.units.len().max(1);
        format!("{}x{}k", self.readers, (mean >> 10).next_power_of_two())
    }

    /// What an expert gets that is read alone, after a pause, in bytes per second; `None` without experts. `flash_bps` is what many get.
    pub fn lone(&self, gguf: &Gguf, flash_bps: f64) -> Result<Option<f64>> {
        if self.readers == 1 {
            return Ok(None);
        }
        let source = FileSource::open(gguf)?;
        // Where `run` has not read.
        let own = self.units.iter().skip(self.units.len() * 3 / 4).take(LONE);
        let mut slab = Slab::new(own.clone().map(|unit| unit.bytes).max().unwrap_or(0), Category::Scratch)?;
        let (mut bytes, mut seconds) = (0, 0.0);
        for unit in own {
            std::thread::sleep(Duration::from_secs_f64(2.0 * unit.bytes as f64 / flash_bps).min(PAUSE));
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
        // The largest is read beforehand: memory that was never touched is slow once.
        let largest = self.units.iter().max_by_key(|unit| unit.bytes);
        let slabs = (0..self.readers).map(|_| {
            let mut slab = Slab::new(largest.map_or(0, |unit| unit.bytes), Category::Scratch)?;
            if let Some(unit) = largest {
                unit.read(&source, &mut slab, View::Full)?;
            }
            Ok(slab)
        });
        let slabs = slabs.collect::<Result<Vec<_>>>()?;
        let start = Instant::now();
        let reading = AtomicUsize::new(self.readers);
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
                let (reader, reading) = (&reader, &reading);
                scope.spawn(move || {
                    let result = reader(index, slab);
                    reading.fetch_sub(1, Ordering::Release);
                    result
                })
            });
            let readers: Vec<_> = readers.collect();
            while reading.load(Ordering::Acquire) > 0 {
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
