//! The machine at hand, measured in a few seconds and remembered.
//!
//! What a plan's speeds follow from: products with the block formats of a model (one column, which is decoding, and many, which is
//! prefill), attention in layers of its shapes, what a parallel region costs, and reading, from memory and, while all cores compute, from flash.
//! What a later model brings is measured then and added.

use super::{AttentionRate, DeviceProfile, FormatRate, attention};
use crate::memory::{Category, MemoryProbe, SystemMemory, zeroed};
use crate::model::{AttentionSpec, Blueprint};
use crate::residency::{FileSource, WeightSource};
use crate::{Error, Result};
use memmap2::MmapMut;
use pannier_gguf::{GgmlType, Gguf, nested, prefer_huge_pages};
use pannier_kernels::{
    Activations, AttentionShape, Format, Job, Kernels, Matrix, Need, Parallel, Precision, format,
};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Larger than the caches of phones and most desktops.
const WEIGHTS: usize = 96 << 20;
const COLS: usize = 4096;
/// What most models of phones are in, and what keys and values are in.
const ALWAYS: [u32; 2] = [Q4_K, 1];
const Q4_K: u32 = 12;
const TOKENS: usize = 64;
/// Where there is no file to read.
const UNKNOWN_FLASH: f64 = 1e9;
/// At most this much is read from flash.
const FLASH_BYTES: u64 = 512 << 20;
/// Any bytes will do whose scales are ordinary numbers in every format: 0x3333 is 0.22 as a half float. Pages never written would all
/// be one page.
const FILLING: u8 = 0x33;

/// What products are measured with.
struct Bench<'a> {
    par: &'a dyn Parallel,
    kernels: &'static Kernels,
    /// In huge pages where the system has them, as models lie.
    weights: MmapMut,
    out: Vec<f32>,
}

impl<'a> Bench<'a> {
    fn new(par: &'a dyn Parallel) -> Result<Bench<'a>> {
        let mut weights = anonymous(WEIGHTS)?;
        prefer_huge_pages(&weights);
        weights.fill(FILLING);
        Ok(Bench { par, kernels: Kernels::detect(), weights, out: Vec::new() })
    }

    /// The best of three products with `share` of the matrix, in seconds; and how many rows it has.
    fn seconds(
        &mut self,
        format: &'static Format,
        precision: Precision,
        tokens: usize,
        share: usize,
    ) -> Result<(f64, usize)> {
        let row =
            format.row_bytes(COLS).ok_or_else(|| Error::internal(format!("a row of {}", format.name)))?;
        let rows = WEIGHTS / row / share / 64 * 64;
        let weights = self.weights.get(..rows * row).unwrap_or_default();
        let matrix = Matrix::new(format, rows, COLS, weights).map_err(|e| Error::internal(e.to_string()))?;
        if self.out.len() < rows * tokens {
            self.out = zeroed(rows * tokens, Category::Scratch)?;
        }
        let x = vec![0.5f32; tokens * COLS];
        let mut activations = Activations::default();
        activations.set(self.kernels, self.par, &x, tokens, COLS, Need::of(&[(&matrix, precision)]));
        let mut best = f64::INFINITY;
        for _ in 0..3 {
            let y = self.out.get_mut(..rows * tokens).unwrap_or_default();
            let mut jobs = [Job { w: matrix, x: activations.all(), precision, y, bias: None }];
            let start = Instant::now();
            self.kernels.matmul(self.par, &mut jobs);
            best = best.min(start.elapsed().as_secs_f64());
        }
        Ok((best.max(1e-9), rows))
    }

    fn rate(&mut self, format: &'static Format, exact: bool) -> Result<FormatRate> {
        let precision = if exact { Precision::Q16 } else { Precision::Q8 };
        let (decode, rows) = self.seconds(format, precision, 1, 1)?;
        let bytes = rows * format.row_bytes(COLS).unwrap_or(0);
        let (prefill, some) = self.seconds(format, precision, TOKENS, 8)?;
        Ok(FormatRate {
            format: format.id,
            exact,
            decode_bps: bytes as f64 / decode,
            gflops: 2.0 * (some * COLS * TOKENS) as f64 / prefill / 1e9,
        })
    }
}

fn anonymous(bytes: usize) -> Result<MmapMut> {
    let full = |_| Error::OutOfMemory { category: Category::Scratch, bytes: bytes as u64 };
    MmapMut::map_anon(bytes).map_err(full)
}

/// The formats of a model's matrices, and those that every device is measured with.
fn formats_of(model: Option<&Gguf>) -> Vec<u32> {
    let tensors = model.map_or(&[][..], |gguf| gguf.tensors());
    let mut all: Vec<u32> =
        tensors.iter().filter(|tensor| tensor.dims.len() > 1).map(|t| t.ty.id()).collect();
    if model.is_some_and(|gguf| gguf.metadata().get(nested::VERSION_KEY).is_some()) {
        // What stands for planes, see `speed.rs`.
        all.extend([GgmlType::Q3_K.id(), GgmlType::Q5_K.id()]);
    }
    all.extend(ALWAYS);
    all.sort_unstable();
    all.dedup();
    all
}

impl DeviceProfile {
    /// Measures this machine with the threads of `par`: products with the block formats of `model`, attention in its shapes, and its flash by
    /// reading the model's file past the page cache.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::MemoryReading`], and what reading may bring.
    pub fn measure(par: &dyn Parallel, model: Option<&Blueprint>) -> Result<DeviceProfile> {
        let memory = SystemMemory.read()?;
        let mut profile = DeviceProfile {
            name: "this machine".to_owned(),
            free: memory.available,
            region_s: region(par),
            ..DeviceProfile::custom(memory.total, UNKNOWN_FLASH, 1.0, 1.0)
        };
        let mut bench = Bench::new(par)?;
        profile.dram_bps = read_bandwidth(par, &bench.weights);
        profile.add_rates(&mut bench, &formats_of(model.map(|model| &**model.gguf())))?;
        profile.add_attention(&bench, model)?;
        if let Some(model) = model {
            (profile.flash_bps, profile.flash_cost_s) = flash(model.gguf(), &mut bench)?;
        }
        if let Some(rate) = profile.rates.iter().find(|rate| rate.format == Q4_K && !rate.exact) {
            (profile.decode_bps, profile.gflops) = (rate.decode_bps, rate.gflops);
        }
        Ok(profile)
    }

    fn missing(&self, formats: &[u32]) -> Vec<u32> {
        let known = |id: &u32| self.rates.iter().any(|rate| rate.format == *id);
        formats.iter().copied().filter(|id| format(*id).is_some() && !known(id)).collect()
    }

    fn add_rates(&mut self, bench: &mut Bench<'_>, formats: &[u32]) -> Result<()> {
        for format in self.missing(formats).into_iter().filter_map(format) {
            self.rates.push(bench.rate(format, false)?);
            if format.is_quantised() {
                self.rates.push(bench.rate(format, true)?);
            }
        }
        Ok(())
    }

    /// Layers of a model whose attention was not measured.
    fn unmeasured<'a>(&self, model: Option<&'a Blueprint>) -> Vec<&'a AttentionSpec> {
        let mut out: Vec<&AttentionSpec> = Vec::new();
        for layer in model.map_or(&[][..], |model| &model.spec().attention) {
            let known = out.iter().any(|other| other.shape == layer.shape);
            if !known && self.attention_rate(&layer.shape).is_none() {
                out.push(layer);
            }
        }
        out
    }

    /// How fast layers of this shape are, if that was measured.
    pub(super) fn attention_rate(&self, shape: &AttentionShape) -> Option<&AttentionRate> {
        let AttentionShape { heads, kv_heads, k_dim, v_dim } = *shape;
        self.attention.iter().find(|rate| {
            (rate.heads, rate.kv_heads, rate.k_dim, rate.v_dim) == (heads, kv_heads, k_dim, v_dim)
        })
    }

    fn add_attention(&mut self, bench: &Bench<'_>, model: Option<&Blueprint>) -> Result<()> {
        for layer in self.unmeasured(model) {
            self.attention.push(attention::rate(bench.par, bench.kernels, &layer.shape, layer.scale)?);
        }
        Ok(())
    }

    /// [`DeviceProfile::measure`], or what earlier calls found on a machine with as many threads.
    ///
    /// # Errors
    /// As there.
    pub fn measured(par: &dyn Parallel, model: Option<&Blueprint>) -> Result<DeviceProfile> {
        let file = cache_file(par.threads());
        let known = file.as_ref().and_then(|file| std::fs::read(file).ok());
        let known = known.and_then(|bytes| serde_json::from_slice::<DeviceProfile>(&bytes).ok());
        let formats = formats_of(model.map(|model| &**model.gguf()));
        let profile = match known {
            // Of an earlier version without rates, nothing is kept.
            Some(mut profile) if !profile.rates.is_empty() => {
                let memory = SystemMemory.read()?;
                (profile.ram, profile.free) = (memory.total, memory.available);
                if profile.missing(&formats).is_empty() && profile.unmeasured(model).is_empty() {
                    return Ok(profile);
                }
                let mut bench = Bench::new(par)?;
                profile.add_rates(&mut bench, &formats)?;
                profile.add_attention(&bench, model)?;
                profile
            }
            _ => Self::measure(par, model)?,
        };
        // Forgetting it costs seconds next time.
        if let (Some(file), Ok(text)) = (file, serde_json::to_vec_pretty(&profile))
            && model.is_some()
        {
            let _ = file.parent().map(std::fs::create_dir_all);
            let _ = std::fs::write(file, text);
        }
        Ok(profile)
    }
}

fn cache_file(threads: usize) -> Option<PathBuf> {
    let isa = format!("{:?}", Kernels::detect().isa()).to_lowercase();
    Some(dirs::cache_dir()?.join("pannier").join(format!("device-{isa}-{threads}.json")))
}

/// What a parallel region without work costs.
fn region(par: &dyn Parallel) -> f64 {
    const MANY: usize = 2000;
    let start = Instant::now();
    for _ in 0..MANY {
        par.run(2 * par.threads(), &|index| {
            std::hint::black_box(index);
        });
    }
    start.elapsed().as_secs_f64() / MANY as f64
}

/// Sums bytes on all threads.
fn read_bandwidth(par: &dyn Parallel, bytes: &[u8]) -> f64 {
    let pieces: Vec<&[u8]> = bytes.chunks(1 << 20).collect();
    let mut best = f64::INFINITY;
    for _ in 0..3 {
        let start = Instant::now();
        par.run(pieces.len(), &|index| {
            let words = pieces.get(index).copied().unwrap_or_default().chunks_exact(8);
            let sum =
                words.fold(0u64, |sum, word| sum.wrapping_add(word.try_into().map_or(0, u64::from_le_bytes)));
            std::hint::black_box(sum);
        });
        best = best.min(start.elapsed().as_secs_f64());
    }
    bytes.len() as f64 / best.max(1e-9)
}

/// Reads pieces from all over the file on two lanes, for at most a second, while all threads decode: bytes per second, and the seconds of
/// decoding that a byte takes.
fn flash(gguf: &Gguf, bench: &mut Bench<'_>) -> Result<(f64, f64)> {
    const PIECE: u64 = 4 << 20;
    const LANES: u64 = 2;
    let format = format(Q4_K).ok_or_else(|| Error::internal("no Q4_K"))?;
    let mut products = || bench.seconds(format, Precision::Q8, 1, 4).map(|(best, _)| best);
    let alone = products()?;
    let source = FileSource::open(gguf)?;
    let bytes = gguf.shard(0).map_or(0, |shard| shard.bytes().len() as u64);
    let pieces = (bytes / PIECE).clamp(1, FLASH_BYTES / PIECE);
    let start = Instant::now();
    let reading = AtomicUsize::new(LANES as usize);
    let read = |lane: u64| -> Result<(u64, f64)> {
        let mut buffer = anonymous(PIECE as usize)?;
        let mut got = 0u64;
        for piece in (lane..pieces).step_by(LANES as usize) {
            if start.elapsed() > Duration::from_secs(1) {
                break;
            }
            let fail = |error| Error::Io { action: "read", path: source.path(0).to_owned(), source: error };
            got += source.read_at(0, piece * PIECE, &mut buffer).map_err(fail)? as u64;
        }
        Ok((got, start.elapsed().as_secs_f64()))
    };
    let (computed, seconds, lanes) = std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..LANES)
            .map(|lane| {
                let (read, reading) = (&read, &reading);
                scope.spawn(move || {
                    let result = read(lane);
                    reading.fetch_sub(1, Ordering::Release);
                    result
                })
            })
            .collect();
        let mut times = 0u32;
        while reading.load(Ordering::Acquire) > 0 {
            products()?;
            times += 1;
        }
        let seconds = start.elapsed().as_secs_f64();
        let lanes: Result<Vec<_>> = lanes
            .into_iter()
            .map(|lane| lane.join().unwrap_or_else(|_| Err(Error::internal("a lane panicked"))))
            .collect();
        Ok::<_, Error>((f64::from(3 * times) * alone, seconds, lanes?))
    })?;
    let bytes: u64 = lanes.iter().map(|&(bytes, _)| bytes).sum();
    let reading = lanes.iter().map(|&(_, seconds)| seconds).fold(0.0, f64::max);
    let lost = (seconds - computed).clamp(0.0, seconds);
    Ok((bytes as f64 / reading.max(1e-9), lost / (bytes as f64).max(1.0)))
}
