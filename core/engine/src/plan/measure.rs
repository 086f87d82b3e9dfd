//! The machine at hand, measured in about two seconds and remembered.

use super::DeviceProfile;
use crate::memory::{Category, MemoryProbe, SystemMemory, zeroed};
use crate::residency::{FileSource, WeightSource};
use crate::{Error, Result};
use memmap2::MmapMut;
use pannier_gguf::Gguf;
use pannier_kernels::{Activations, Job, Kernels, Matrix, Need, Parallel, Precision, format};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Larger than the caches of phones and most desktops.
const WEIGHTS: usize = 96 << 20;
const COLS: usize = 4096;
/// Q4_K: what most models of phones are in.
const FORMAT: u32 = 12;
const TOKENS: usize = 64;
/// At most this much is read from flash.
const FLASH_BYTES: u64 = 512 << 20;

impl DeviceProfile {
    /// Measures this machine with the threads of `par`. Flash is measured by reading `model`'s file past the page cache.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::MemoryReading`], and what reading may bring.
    pub fn measure(par: &dyn Parallel, model: Option<&Gguf>) -> Result<DeviceProfile> {
        let memory = SystemMemory.read()?;
        let kernels = Kernels::detect();
        let format = format(FORMAT).ok_or_else(|| Error::internal("no Q4_K"))?;
        let row = format.row_bytes(COLS).ok_or_else(|| Error::internal("a row of Q4_K"))?;
        let rows = WEIGHTS / row / 64 * 64;
        // Any bytes will do whose scales are small numbers: zeros would be as fast, but pages never written are all one page.
        let weights = vec![0x11u8; rows * row];
        let matrix = Matrix::new(format, rows, COLS, &weights).map_err(|e| Error::internal(e.to_string()))?;
        let mut out = zeroed::<f32>(rows * TOKENS, Category::Scratch)?;
        let mut seconds = |tokens: usize, rows: usize| -> Result<f64> {
            let x = vec![0.5f32; tokens * COLS];
            let need = Need { q8: true, ..Need::default() };
            let mut activations = Activations::default();
            activations.set(kernels, par, &x, tokens, COLS, need);
            let part = matrix.rows_range(0..rows);
            let mut best = f64::INFINITY;
            for _ in 0..3 {
                let y = out.get_mut(..rows * tokens).unwrap_or_default();
                let mut jobs =
                    [Job { w: part, x: activations.all(), precision: Precision::Q8, y, bias: None }];
                let start = Instant::now();
                kernels.matmul(par, &mut jobs);
                best = best.min(start.elapsed().as_secs_f64());
            }
            Ok(best)
        };
        let decode_bps = (rows * row) as f64 / seconds(1, rows)?;
        let some = rows / 8;
        let gflops = 2.0 * (some * COLS * TOKENS) as f64 / seconds(TOKENS, some)? / 1e9;
        let dram_bps = read_bandwidth(par, &weights);
        let flash_bps = match model {
            Some(gguf) => flash_bandwidth(gguf)?,
            None => 1e9,
        };
        Ok(DeviceProfile {
            name: "this machine".to_owned(),
            ram: memory.total,
            free: memory.available,
            flash_bps,
            dram_bps,
            decode_bps,
            gflops,
            page: 4096,
        })
    }

    /// [`DeviceProfile::measure`], or what an earlier call found on a machine with as many threads.
    ///
    /// # Errors
    /// As there.
    pub fn measured(par: &dyn Parallel, model: Option<&Gguf>) -> Result<DeviceProfile> {
        let file = cache_file(par.threads());
        let known = file.as_ref().and_then(|file| std::fs::read(file).ok());
        if let Some(mut profile) =
            known.and_then(|bytes| serde_json::from_slice::<DeviceProfile>(&bytes).ok())
        {
            let memory = SystemMemory.read()?;
            (profile.ram, profile.free) = (memory.total, memory.available);
            return Ok(profile);
        }
        let profile = Self::measure(par, model)?;
        // Forgetting it costs two seconds next time.
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

/// Reads pieces from all over the file on two lanes, for at most a second.
fn flash_bandwidth(gguf: &Gguf) -> Result<f64> {
    const PIECE: u64 = 4 << 20;
    let source = FileSource::open(gguf)?;
    let bytes = gguf.shard(0).map_or(0, |shard| shard.bytes().len() as u64);
    let pieces = (bytes / PIECE).clamp(1, FLASH_BYTES / PIECE);
    let start = Instant::now();
    let read = |lane: u64| -> Result<u64> {
        let mut buffer = MmapMut::map_anon(PIECE as usize)
            .map_err(|_| Error::OutOfMemory { category: Category::Scratch, bytes: PIECE })?;
        let mut got = 0u64;
        for piece in (lane..pieces).step_by(2) {
            if start.elapsed() > Duration::from_secs(1) {
                break;
            }
            let fail = |error| Error::Io { action: "read", path: source.path(0).to_owned(), source: error };
            got += source.read_at(0, piece * PIECE, &mut buffer).map_err(fail)? as u64;
        }
        Ok(got)
    };
    let total = std::thread::scope(|scope| {
        let other = scope.spawn(|| read(1));
        let one = read(0)?;
        let two = other.join().unwrap_or_else(|_| Err(Error::internal("a lane panicked")))?;
        Ok::<u64, Error>(one + two)
    })?;
    Ok(total as f64 / start.elapsed().as_secs_f64().max(1e-9))
}
