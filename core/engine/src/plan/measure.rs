//! The machine at hand, measured in a few seconds and remembered.
//!
//! What a plan's speeds follow from: products with the block formats of a model (one column, which is decoding, and many, which is
//! prefill), attention in layers of its shapes, what a parallel region costs, and reading, from memory and from flash (and what that takes from
//! computing).
//! What a later model brings is measured then and added.

use super::flash::Reads;
use super::{AttentionRate, DeviceProfile, FormatRate, attention};
use crate::memory::{Category, MemoryProbe, SystemMemory, zeroed};
use crate::model::{AttentionSpec, Blueprint};
use crate::{Error, Result};
use memmap2::MmapMut;
use pannier_gguf::{GgmlType, Gguf, TensorInfo, interleaved, nested, prefer_huge_pages};
use pannier_kernels::{
    Activations, AttentionShape, Format, Job, Kernels, Matrix, Need, Parallel, Precision, format,
};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What products are measured with at least, where there is memory for it: larger than the caches of phones.
const WEIGHTS: usize = 96 << 20;
/// And where there is not: a share of what is available may be taken for measuring, so that nobody is killed for it; another such share for reading
/// units from flash.
const LEAST_WEIGHTS: usize = 4 << 20;
const SHARE_OF_AVAILABLE: u64 = 8;
/// The most: larger than any cache.
const MOST_WEIGHTS: usize = 1 << 30;
/// What the products of a pass reach of one product as long as all of them: between two of them, lines that were asked for ahead are missing. On an
/// Intel Xeon 0.82 to 0.88, from a model of 0.5B to a mixture of 2.1 GB; 0.70 to 0.81 for one of 135M.
const PASS_SHARE: f64 = 0.86;
/// Columns where there is no model to take them from, and the most: longer rows cost no less.
const COLS: usize = 4096;
const MOST_COLS: usize = 16384;
/// What most models of phones are in, and what keys and values are in.
const ALWAYS: [u32; 2] = [Q4_K, 1];
const Q4_K: u32 = 12;
const TOKENS: usize = 64;
/// Where there is no file to read.
const UNKNOWN_FLASH: f64 = 1e9;
/// How often each thing is measured.
const TIMES: usize = 5;
/// Any bytes will do whose scales are ordinary numbers in every format: 0x3333 is 0.22 as a half float. Pages never written would all
/// be one page.
const FILLING: u8 = 0x33;

/// How large the matrices are that products are measured with: as long a row as the model's, and as much memory, since the caches of a server hold
/// small models whole, and short rows cost more.
#[derive(Clone, Copy)]
struct Sample {
    cols: usize,
    bytes: usize,
}

impl Sample {
    fn new(model: Option<&Blueprint>, available: u64) -> Sample {
        let cols = model.map_or(COLS, |model| model.spec().embd).clamp(1, MOST_COLS).next_multiple_of(32);
        let all = model.map_or(0, |model| usize::try_from(model.layout().bytes()).unwrap_or(usize::MAX));
        let most = usize::try_from(available / SHARE_OF_AVAILABLE).unwrap_or(MOST_WEIGHTS);
        // Few sizes, so that models of about one size share what was found.
        let bytes = all.clamp(WEIGHTS, MOST_WEIGHTS).next_power_of_two();
        Sample { cols, bytes: bytes.min(most.max(LEAST_WEIGHTS)) }
    }

    /// The columns of a matrix of this format, and the bytes of a row.
    fn row(&self, format: &'static Format) -> Result<(usize, usize)> {
        let whole = self.cols.next_multiple_of(256);
        let bytes = |cols| format.row_bytes(cols).map(|bytes| (cols, bytes));
        bytes(self.cols)
            .or_else(|| bytes(whole))
            .ok_or_else(|| Error::internal(format!("a row of {}", format.name)))
    }

    /// Where what was found with it is remembered; how the model is read is a part of that.
    fn cache_file(&self, threads: usize, reads: Option<&Reads>) -> Option<PathBuf> {
        let isa = format!("{:?}", Kernels::detect().isa()).to_lowercase();
        let reads = reads.map_or(String::new(), |reads| format!("-{}", reads.name()));
        let name = format!("device-{isa}-{threads}-{}-{}{reads}.json", self.cols, self.bytes >> 20);
        Some(dirs::cache_dir()?.join("pannier").join(name))
    }
}

/// What products are measured with.
struct Bench<'a> {
    par: &'a dyn Parallel,
    kernels: &'static Kernels,
    sample: Sample,
    /// In huge pages where the system has them, as models lie.
    weights: MmapMut,
    out: Vec<f32>,
}

impl<'a> Bench<'a> {
    fn new(par: &'a dyn Parallel, sample: Sample) -> Result<Bench<'a>> {
        let mut weights = anonymous(sample.bytes)?;
        prefer_huge_pages(&weights);
        weights.fill(FILLING);
        Ok(Bench { par, kernels: Kernels::detect(), sample, weights, out: Vec::new() })
    }

    /// A product with a matrix of up to `most` bytes, in seconds; and its rows and columns.
    fn seconds(
        &mut self,
        format: &'static Format,
        precision: Precision,
        tokens: usize,
        most: usize,
    ) -> Result<(f64, usize, usize)> {
        let (cols, row) = self.sample.row(format)?;
        let rows = most.min(self.weights.len()) / row / 64 * 64;
        let weights = self.weights.get(..rows * row).unwrap_or_default();
        let matrix = Matrix::new(format, rows, cols, weights).map_err(|e| Error::internal(e.to_string()))?;
        if self.out.len() < rows * tokens {
            self.out = zeroed(rows * tokens, Category::Scratch)?;
        }
        let x = vec![0.5f32; tokens * cols];
        let mut activations = Activations::default();
        activations.set(self.kernels, self.par, &x, tokens, cols, Need::of(&[(&matrix, precision)]));
        let seconds = middle(|| {
            let y = self.out.get_mut(..rows * tokens).unwrap_or_default();
            let mut jobs = [Job { w: matrix, x: activations.all(), precision, y, bias: None }];
            let start = Instant::now();
            self.kernels.matmul(self.par, &mut jobs);
            start.elapsed().as_secs_f64()
        });
        Ok((seconds.max(1e-9), rows, cols))
    }

    fn rate(&mut self, format: &'static Format, exact: bool) -> Result<FormatRate> {
        let precision = if exact { Precision::Q16 } else { Precision::Q8 };
        let (decode, rows, cols) = self.seconds(format, precision, 1, usize::MAX)?;
        let bytes = rows * format.row_bytes(cols).unwrap_or(0);
        let (prefill, some, cols) = self.seconds(format, precision, TOKENS, WEIGHTS / 8)?;
        Ok(FormatRate {
            format: format.id,
            exact,
            decode_bps: PASS_SHARE * bytes as f64 / decode,
            gflops: 2.0 * (some * cols * TOKENS) as f64 / prefill / 1e9,
        })
    }
}

/// The middle of what something took: passes have bad moments, too, so that the best of all would promise too much (a tenth, on shared machines).
pub(super) fn middle(mut seconds: impl FnMut() -> f64) -> f64 {
    let mut all: [f64; TIMES] = std::array::from_fn(|_| seconds());
    all.sort_by(f64::total_cmp);
    all[TIMES / 2]
}

fn anonymous(bytes: usize) -> Result<MmapMut> {
    let full = |_| Error::OutOfMemory { category: Category::Scratch, bytes: bytes as u64 };
    MmapMut::map_anon(bytes).map_err(full)
}

/// The formats of a model's matrices, and those that every device is measured with.
fn formats_of(model: Option<&Gguf>) -> Vec<u32> {
    let tensors = model.map_or(&[][..], |gguf| gguf.tensors());
    let id = |tensor: &TensorInfo| {
        let interleaved = tensor.name.ends_with(interleaved::SUFFIX);
        let format = format(tensor.ty.id()).filter(|_| interleaved).and_then(Format::with_rows_interleaved);
        format.map_or(tensor.ty.id(), |format| format.id)
    };
    let mut all: Vec<u32> = tensors.iter().filter(|tensor| tensor.dims.len() > 1).map(id).collect();
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
        let mut bench = Bench::new(par, Sample::new(model, memory.available))?;
        profile.dram_bps = read_bandwidth(par, &bench.weights);
        profile.add_rates(&mut bench, &formats_of(model.map(|model| &**model.gguf())))?;
        profile.add_attention(&bench, model)?;
        if let Some(model) = model {
            let reads = Reads::of(model, memory.available / SHARE_OF_AVAILABLE)?;
            (profile.flash_bps, profile.flash_cost_s) = flash(model, &reads, &mut bench)?;
            if let Some(bps) = reads.lone(model.gguf(), profile.flash_bps)? {
                profile.lone_read = bps / profile.flash_bps;
            }
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
            self.attention.push(attention::rate(
                bench.par,
                bench.kernels,
                &layer.shape,
                layer.scale,
                bench.weights.len() / 2,
            )?);
        }
        Ok(())
    }

    /// [`DeviceProfile::measure`], or what earlier calls found with as many threads for models of about this size.
    ///
    /// # Errors
    /// As there.
    pub fn measured(par: &dyn Parallel, model: Option<&Blueprint>) -> Result<DeviceProfile> {
        let memory = SystemMemory.read()?;
        let sample = Sample::new(model, memory.available);
        let most = memory.available / SHARE_OF_AVAILABLE;
        let reads = model.map(|model| Reads::of(model, most)).transpose()?;
        let file = sample.cache_file(par.threads(), reads.as_ref());
        let known = file.as_ref().and_then(|file| std::fs::read(file).ok());
        let known = known.and_then(|bytes| serde_json::from_slice::<DeviceProfile>(&bytes).ok());
        let formats = formats_of(model.map(|model| &**model.gguf()));
        let profile = match known {
            // Of an earlier version without rates, nothing is kept.
            Some(mut profile) if !profile.rates.is_empty() => {
                (profile.ram, profile.free) = (memory.total, memory.available);
                if profile.missing(&formats).is_empty() && profile.unmeasured(model).is_empty() {
                    return Ok(profile);
                }
                let mut bench = Bench::new(par, sample)?;
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

/// What flash gives to one who waits for it, in bytes per second; and the seconds of decoding that a byte takes from one who does not.
fn flash(model: &Blueprint, reads: &Reads, bench: &mut Bench<'_>) -> Result<(f64, f64)> {
    let gguf = model.gguf();
    let format = format(Q4_K).ok_or_else(|| Error::internal("no Q4_K"))?;
    let mut products = || bench.seconds(format, Precision::Q8, 1, WEIGHTS / 4).map(|(one, ..)| one);
    let alone = TIMES as f64 * products()?;
    let waiting = reads.run(gguf, 0, &mut || {
        std::thread::sleep(Duration::from_micros(200));
        Ok(())
    })?;
    let mut computed = 0.0;
    let computing = reads.run(gguf, 1, &mut || {
        computed += alone;
        products().map(drop)
    })?;
    let lost = (computing.seconds - computed).clamp(0.0, computing.seconds);
    // Where nothing could be read, nothing is known.
    let flash_bps =
        if waiting.bytes > 0.0 { waiting.bytes / waiting.reading.max(1e-9) } else { UNKNOWN_FLASH };
    Ok((flash_bps, lost / computing.bytes.max(1.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Measuring must not be what uses memory up.
    #[test]
    fn little_memory_is_measured_with_little() {
        assert_eq!(Sample::new(None, 16 << 30).bytes, WEIGHTS.next_power_of_two());
        assert_eq!(Sample::new(None, 400 << 20).bytes, 50 << 20);
        assert_eq!(Sample::new(None, 0).bytes, LEAST_WEIGHTS);
    }

    /// With the least of it there is a rate, not a division by zero, for every format in the longest rows.
    #[test]
    fn the_least_sample_has_rows_of_every_format() -> Result<()> {
        let sample = Sample { cols: MOST_COLS, bytes: LEAST_WEIGHTS };
        let mut bench = Bench::new(&pannier_kernels::Serial, sample)?;
        for format in pannier_kernels::formats() {
            let rate = bench.rate(format, false)?;
            assert!(rate.decode_bps > 1e3 && rate.gflops > 1e-6, "{}: {rate:?}", format.name);
        }
        Ok(())
    }
}
