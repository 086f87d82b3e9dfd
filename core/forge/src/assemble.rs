//! Writes a GGUF file piece by piece, in parallel, so that it is there whole or not at all, and can be continued.
//!
//! ```text
//! NAME.part        header, then every tensor at its final place
//! NAME.part.state  one line per finished piece: its number and the hash of its bytes
//! ```
//! The plan (header, pieces) follows from the input and the options alone, so a rerun with the same fingerprint makes the same
//! plan, keeps the pieces whose bytes still have the recorded hash, and makes the others. When all are there, the part file is
//! synced, opened as a model, read back, compared with the hashes, and renamed.

use crate::positional::{read_at, write_at};
use crate::{Error, Progress, Result};
use pannier_gguf::nested::{FINE, LOW};
use pannier_gguf::{GgmlType, Gguf, Metadata, Writer};
use pannier_kernels::nested::{BLOCK, FINE_BYTES, LOW_BYTES};
use rayon::prelude::*;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use xxhash_rust::xxh3::xxh3_64;

/// Elements per piece: a multiple of every block size. Input, decoded and encoded piece together are under 4 MiB per thread.
const PIECE: u64 = 1 << 18;

/// One tensor of the output.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub name: String,
    pub dims: Vec<u64>,
    pub ty: GgmlType,
    /// Stored as a low and a fine plane of Q5_K blocks (see [`pannier_kernels::nested`]).
    pub planes: bool,
}

impl Target {
    /// A tensor in one piece of the file.
    pub fn whole(name: String, dims: Vec<u64>, ty: GgmlType) -> Target {
        Target { name, dims, ty, planes: false }
    }

    /// What the file has of it: name, shape, type. Fine planes come behind all that has none.
    fn stored(&self) -> [Option<Stored>; 2] {
        if !self.planes {
            return [Some(Stored { name: self.name.clone(), dims: self.dims.clone(), ty: self.ty }), None];
        }
        [(LOW, LOW_BYTES), (FINE, FINE_BYTES)].map(|(suffix, bytes)| {
            let mut dims = self.dims.clone();
            if let Some(columns) = dims.first_mut() {
                *columns = *columns / BLOCK as u64 * bytes as u64;
            }
            Some(Stored { name: format!("{}{suffix}", self.name), dims, ty: GgmlType::I8 })
        })
    }
}

/// A tensor as the directory of the output has it.
struct Stored {
    name: String,
    dims: Vec<u64>,
    ty: GgmlType,
}

/// A run of elements of one tensor. Starts and ends at a block of the output (and of any input) type.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece {
    /// Index into the targets.
    pub tensor: usize,
    /// First element, in the order of the file.
    pub first: u64,
    /// Elements.
    pub count: usize,
    /// Where its bytes go: all of them, or those of each plane, one after the other.
    spans: [Span; 2],
}

#[derive(Debug, Clone, Copy, Default)]
struct Span {
    offset: u64,
    bytes: usize,
}

impl Piece {
    fn bytes(&self) -> usize {
        self.spans.iter().map(|span| span.bytes).sum()
    }

    fn read(&self, medium: &impl Medium, buffer: &mut [u8]) -> io::Result<()> {
        let (first, second) = buffer.split_at_mut(self.spans[0].bytes.min(buffer.len()));
        medium.read_at(first, self.spans[0].offset)?;
        if second.is_empty() { Ok(()) } else { medium.read_at(second, self.spans[1].offset) }
    }

    fn write(&self, medium: &impl Medium, buffer: &[u8]) -> io::Result<()> {
        let (first, second) = buffer.split_at(self.spans[0].bytes.min(buffer.len()));
        medium.write_at(first, self.spans[0].offset)?;
        if second.is_empty() { Ok(()) } else { medium.write_at(second, self.spans[1].offset) }
    }
}

/// Where bytes go. A trait, so that tests can let a disk be full.
pub(crate) trait Medium: Sync {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()>;
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
}

impl Medium for File {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        read_at(self, bytes, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        write_at(self, bytes, offset)
    }
}

/// What to write, and how.
pub(crate) struct Assembly<'a> {
    pub path: &'a Path,
    pub metadata: Metadata,
    pub targets: Vec<Target>,
    /// Identifies the input and the options; a part file with another one is started afresh.
    pub fingerprint: u64,
    /// 0: one per core.
    pub threads: usize,
    pub progress: &'a dyn Progress,
}

struct Layout {
    header: Vec<u8>,
    /// All tensors of the file, and where they begin.
    stored: Vec<(Stored, u64)>,
    pieces: Vec<Piece>,
    bytes: u64,
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(suffix);
    path.with_file_name(name)
}

/// The part file of an output.
pub(crate) fn part_path(path: &Path) -> PathBuf {
    with_suffix(path, ".part")
}

impl Assembly<'_> {
    /// Makes the file; `produce` fills the bytes of one piece. Gives the size of the file.
    pub fn run(self, produce: impl Fn(&Piece, &mut [u8]) -> Result<()> + Sync) -> Result<u64> {
        self.run_on(produce, |file| file)
    }

    /// `wrap` puts a test's medium around the part file.
    pub fn run_on<M: Medium>(
        self,
        produce: impl Fn(&Piece, &mut [u8]) -> Result<()> + Sync,
        wrap: impl FnOnce(File) -> M,
    ) -> Result<u64> {
        let layout = self.layout()?;
        let part_path = part_path(self.path);
        let part = PartFile::open(&part_path, self.fingerprint ^ xxh3_64(&layout.header), layout.bytes)?;
        let medium = wrap(part.file.try_clone().map_err(Error::io("open the part file", &part_path))?);
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(self.threads)
            .build()
            .map_err(|error| Error::Threads { threads: self.threads, why: error.to_string() })?;
        let write_failed = |source: io::Error| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                Error::DiskFull {
                    path: self.path.to_path_buf(),
                    part: part_path.clone(),
                    needed: layout.bytes,
                }
            }
            _ => Error::io("write", &part_path)(source),
        };
        medium.write_at(&layout.header, 0).map_err(write_failed)?;
        let done = AtomicU64::new(layout.header.len() as u64);
        let hashes = pool.install(|| {
            layout
                .pieces
                .par_iter()
                .enumerate()
                .with_max_len(1)
                .map_init(Vec::new, |buffer: &mut Vec<u8>, (index, piece)| {
                    if self.progress.cancelled() {
                        return Err(Error::Cancelled);
                    }
                    buffer.resize(piece.bytes(), 0);
                    let kept = part
                        .hash_of(index)
                        .filter(|hash| piece.read(&medium, buffer).is_ok() && xxh3_64(buffer) == *hash);
                    let hash = match kept {
                        Some(hash) => hash,
                        None => {
                            produce(piece, buffer)?;
                            piece.write(&medium, buffer).map_err(write_failed)?;
                            let hash = xxh3_64(buffer);
                            part.record(index, hash).map_err(write_failed)?;
                            hash
                        }
                    };
                    let bytes = piece.bytes() as u64;
                    let before = done.fetch_add(bytes, Ordering::Relaxed);
                    let name = self.targets.get(piece.tensor).map_or("", |target| target.name.as_str());
                    self.progress.step(before + bytes, layout.bytes, name);
                    Ok(hash)
                })
                .collect::<Result<Vec<u64>>>()
        })?;
        // Space that `set_len` promised is only found missing here, on some file systems.
        part.file.sync_all().map_err(write_failed)?;
        self.verify(&layout, &hashes, &medium, &part_path, &pool)?;
        drop(medium);
        part.rename_to(self.path)?;
        Ok(layout.bytes)
    }

    fn layout(&self) -> Result<Layout> {
        let mut writer = Writer::with_metadata(self.metadata.clone());
        let alignment = u64::from(self.metadata.opt_u32("general.alignment")?.unwrap_or(32)).max(1);
        // What every reader needs first, what only the full view needs behind it.
        let of_plane = |plane: usize| {
            let targets = self.targets.iter().enumerate();
            targets.filter_map(move |(index, target)| Some((index, target.stored().into_iter().nth(plane)??)))
        };
        let all: Vec<(usize, usize, Stored)> = of_plane(0)
            .map(|(index, stored)| (0, index, stored))
            .chain(of_plane(1).map(|(index, stored)| (1, index, stored)))
            .collect();
        for (_, _, stored) in &all {
            writer.tensor(stored.name.clone(), &stored.dims, stored.ty)?;
        }
        let mut header = Vec::new();
        writer.begin(&mut header)?;
        let too_large = |stored: &Stored| pannier_gguf::Error::TensorTooLarge {
            name: stored.name.clone(),
            dims: stored.dims.clone(),
        };
        let mut layout =
            Layout { stored: Vec::new(), pieces: Vec::new(), bytes: header.len() as u64, header };
        let mut starts = vec![[0u64; 2]; self.targets.len()];
        for (plane, index, stored) in all {
            let elements = stored.dims.iter().try_fold(1u64, |product, dim| product.checked_mul(*dim));
            let bytes = elements.and_then(|elements| {
                (elements / stored.ty.block_elements()).checked_mul(stored.ty.block_bytes())
            });
            let start = layout.bytes;
            let end = bytes.and_then(|bytes| start.checked_add(bytes)?.checked_next_multiple_of(alignment));
            layout.bytes = end.ok_or_else(|| too_large(&stored))?;
            if let Some(starts) = starts.get_mut(index) {
                starts[plane] = start;
            }
            layout.stored.push((stored, start));
        }
        for (tensor, (target, starts)) in self.targets.iter().zip(starts).enumerate() {
            let elements: u64 = target.dims.iter().fold(1, |product, dim| product.saturating_mul(*dim));
            // Bytes of a block in each plane.
            let (block, planes) = if target.planes {
                (BLOCK as u64, [LOW_BYTES as u64, FINE_BYTES as u64])
            } else {
                (target.ty.block_elements(), [target.ty.block_bytes(), 0])
            };
            let mut first = 0;
            while first < elements {
                let count = PIECE.min(elements - first);
                // The declaration above was accepted, so a tensor's bytes fit u64, and a piece is small.
                let span = |plane: usize| Span {
                    offset: starts[plane] + first / block * planes[plane],
                    bytes: (count / block * planes[plane]) as usize,
                };
                layout.pieces.push(Piece { tensor, first, count: count as usize, spans: [span(0), span(1)] });
                first += count;
            }
        }
        Ok(layout)
    }

    /// Reads the finished part file back: as a model, and every byte against its hash.
    fn verify<M: Medium>(
        &self,
        layout: &Layout,
        hashes: &[u64],
        medium: &M,
        part: &Path,
        pool: &rayon::ThreadPool,
    ) -> Result<()> {
        let differs =
            |tensor: &str| Error::Verification { path: part.to_path_buf(), tensor: tensor.to_owned() };
        let model = Gguf::open(part)?;
        for (stored, offset) in &layout.stored {
            let same = model.tensor(&stored.name).is_some_and(|found| {
                found.ty == stored.ty && found.dims == stored.dims && found.offset == *offset
            });
            if !same {
                return Err(differs(&stored.name));
            }
        }
        pool.install(|| {
            layout.pieces.par_iter().zip(hashes).with_max_len(1).try_for_each_init(
                Vec::new,
                |buffer: &mut Vec<u8>, (piece, hash)| {
                    if self.progress.cancelled() {
                        return Err(Error::Cancelled);
                    }
                    buffer.resize(piece.bytes(), 0);
                    piece.read(medium, buffer).map_err(Error::io("read back", part))?;
                    if xxh3_64(buffer) == *hash {
                        return Ok(());
                    }
                    Err(differs(self.targets.get(piece.tensor).map_or("", |target| target.name.as_str())))
                },
            )
        })
    }
}

/// The part file and what is known about it.
struct PartFile {
    file: File,
    path: PathBuf,
    state_path: PathBuf,
    state: Mutex<File>,
    /// Hashes of the pieces that an earlier run finished.
    finished: std::collections::HashMap<usize, u64>,
}

const STATE: &str = "pannier part 1";

impl PartFile {
    fn open(path: &Path, fingerprint: u64, bytes: u64) -> Result<PartFile> {
        let state_path = with_suffix(path, ".state");
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(Error::io("create the part file", path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => return Err(Error::Busy { part: path.to_path_buf() }),
            // A file system without locks: two writers would disturb each other, and the verification would say so.
            Err(std::fs::TryLockError::Error(_)) => {}
        }
        let header = format!("{STATE} {fingerprint:016x} {bytes}");
        let finished = read_state(&state_path, &header);
        let mut state = OpenOptions::new();
        state.create(true);
        let mut state =
            if finished.is_some() { state.append(true) } else { state.write(true).truncate(true) }
                .open(&state_path)
                .map_err(Error::io("create the state file", &state_path))?;
        // In case the last line was cut: an empty line costs nothing.
        let start = if finished.is_some() { "\n".to_owned() } else { format!("{header}\n") };
        state.write_all(start.as_bytes()).map_err(Error::io("write the state file", &state_path))?;
        if finished.is_none() {
            file.set_len(0).map_err(Error::io("empty the part file", path))?;
        }
        file.set_len(bytes).map_err(Error::io("size the part file", path))?;
        Ok(PartFile {
            file,
            path: path.to_path_buf(),
            state_path,
            state: Mutex::new(state),
            finished: finished.unwrap_or_default(),
        })
    }

    fn hash_of(&self, piece: usize) -> Option<u64> {
        self.finished.get(&piece).copied()
    }

    fn record(&self, piece: usize, hash: u64) -> io::Result<()> {
        let line = format!("{piece} {hash:016x}\n");
        // Poisoned only if a write panicked; the line may be cut then, which reading tolerates.
        let mut state = self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        state.write_all(line.as_bytes())
    }

    fn rename_to(self, path: &Path) -> Result<()> {
        std::fs::rename(&self.path, path).map_err(Error::io("rename the part file", &self.path))?;
        // The new name is durable once its folder is; where folders cannot be synced, the data already is.
        #[cfg(unix)]
        if let Some(folder) = path.parent() {
            let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
            File::open(folder).and_then(|folder| folder.sync_all()).ok();
        }
        // Without its part file the state is only litter: not being able to remove it is no failure.
        std::fs::remove_file(&self.state_path).ok();
        Ok(())
    }
}

/// The pieces recorded by a run with the same header; `None` if there was none.
fn read_state(path: &Path, header: &str) -> Option<std::collections::HashMap<usize, u64>> {
    let mut lines = BufReader::new(File::open(path).ok()?).lines();
    if lines.next()?.ok()? != header {
        return None;
    }
    // A line that does not parse is one that was cut when the process died: its piece is made again.
    let parse = |line: String| -> Option<(usize, u64)> {
        let (piece, hash) = line.split_once(' ')?;
        (hash.len() == 16).then_some(())?;
        Some((piece.parse().ok()?, u64::from_str_radix(hash, 16).ok()?))
    };
    Some(lines.map_while(io::Result::ok).filter_map(parse).collect())
}

#[cfg(test)]
mod tests;
