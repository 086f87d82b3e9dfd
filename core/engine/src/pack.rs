//! Packs: a model's file, rearranged for flash.
//!
//! GGUF stores the gate matrices of all experts of a layer together, then all up matrices, then all down matrices, aligned to 32 bytes: an
//! expert is three reads. A pack is a GGUF file too (every reader of this project opens it), but each expert's gate, up and
//! down lie side by side, tensors come in the order of a pass and begin at multiples of 16 KiB, and small tensors are out of the way at
//! the front. So every unit is one large aligned read, gate first.
//!
//! Rows of quantised matrices lie as the kernels want them, sixteen interleaved: one stream through memory instead of sixteen, and nothing to
//! transpose. It is the same bytes in another order, so a pack gives the bits of its source, from the mapping too.
//!
//! A pack is derived data. It names its source by a fingerprint, and carries a hash of its own contents; what is stale or torn is
//! built anew. It is written beside its place and renamed when complete. An interrupted run leaves the part it has written, which
//! the next run compares with what it would write, and continues.

use crate::{Error, Result};
use pannier_gguf::nested::FINE;
use pannier_gguf::{GgmlType, Gguf, TensorInfo, Value, Writer, interleaved};
use pannier_kernels::{Format, format};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// What this code writes; others are rebuilt.
pub const PACK_VERSION: u32 = 2;
/// Pages of all phones, and blocks of all flash.
const ALIGNMENT: u32 = 16384;
const VERSION_KEY: &str = "pannier.pack.version";
const SOURCE_KEY: &str = "pannier.pack.source";
const HASH_TENSOR: &str = "pannier.pack.sha256";
/// Bytes that are written at a time, about.
const CHUNK: usize = 512 << 10;
/// Tensors below this are read when loading and never streamed.
const SMALL: u64 = 64 << 10;

/// What packing did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    /// Size of the pack.
    pub bytes: u64,
    /// Hash of its tensors.
    pub sha256: String,
    /// It was there already, whole and of this source.
    pub reused: bool,
    /// Bytes that an interrupted run had left.
    pub resumed_bytes: u64,
}

/// A tensor of the pack: a piece of one of the source.
#[derive(Debug)]
struct Piece<'a> {
    name: String,
    dims: Vec<u64>,
    tensor: &'a TensorInfo,
    /// In the tensor's data.
    offset: u64,
    bytes: u64,
    /// Bytes of the rows that are interleaved, and their format.
    groups: Option<(usize, &'static Format)>,
}

impl<'a> Piece<'a> {
    fn new(name: String, dims: Vec<u64>, tensor: &'a TensorInfo, (offset, bytes): (u64, u64)) -> Piece<'a> {
        let groups = interleaved_groups(&dims, tensor);
        let name = if groups.is_some() { name + interleaved::SUFFIX } else { name };
        Piece { name, dims, tensor, offset, bytes, groups }
    }
}

/// The groups of rows of a matrix that are interleaved. Tables that are only read by row stay as they are: a group is sixteen times as long.
fn interleaved_groups(dims: &[u64], tensor: &TensorInfo) -> Option<(usize, &'static Format)> {
    let format = format(tensor.ty.id())?;
    let rows = *dims.get(1)?;
    let fits = rows.is_multiple_of(interleaved::ROWS) && format.with_rows_interleaved().is_some();
    if !fits || tensor.name.starts_with("per_layer_token_embd") {
        return None;
    }
    let row = format.row_bytes(usize::try_from(*dims.first()?).ok()?)?;
    Some((row.checked_mul(format.with_rows_interleaved()?.interleaved)?, format))
}

/// Whether a model is a pack.
pub fn is_pack(gguf: &Gguf) -> bool {
    gguf.metadata().get(VERSION_KEY).is_some()
}

/// Writes the pack of `source` to `out`, unless it is there. `progress` gets bytes done and in total.
///
/// # Errors
/// The file system refuses, or the source is a pack itself.
pub fn pack(source: &Gguf, out: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Packed> {
    if is_pack(source) {
        return Err(Error::Unsupported { what: "packing a pack".into() });
    }
    let fingerprint = fingerprint(source);
    if let Some(sha256) = whole(out, &fingerprint) {
        let bytes = std::fs::metadata(out).map_err(|e| io_error("stat", out, e))?.len();
        return Ok(Packed { bytes, sha256, reused: true, resumed_bytes: 0 });
    }
    let pieces = arrange(source);
    let mut writer = Writer::with_metadata(source.metadata().clone());
    for key in ["split.no", "split.count", "split.tensors.count"] {
        writer.metadata_mut().remove(key);
    }
    writer.set_alignment(ALIGNMENT);
    writer.set(VERSION_KEY, PACK_VERSION);
    writer.set(SOURCE_KEY, fingerprint);
    for piece in &pieces {
        writer.tensor(&piece.name, &piece.dims, piece.tensor.ty)?;
    }
    writer.tensor(HASH_TENSOR, &[32], GgmlType::I8)?;

    let part = part_of(out);
    let resume = Resume::open(&part)?;
    let mut stream = writer.begin(resume)?;
    let total = pieces.iter().map(|piece| piece.bytes).sum();
    let (mut hash, mut done, mut mixed) = (Sha256::new(), 0u64, Vec::new());
    for piece in &pieces {
        let data = source.tensor_data(piece.tensor)?;
        let range = usize::try_from(piece.offset).ok().zip(usize::try_from(piece.bytes).ok());
        let data = range.and_then(|(start, len)| data.get(start..start.checked_add(len)?));
        let data = data.ok_or_else(|| Error::internal(format!("a piece of {:?}", piece.tensor.name)))?;
        let group = piece.groups.map_or(1, |(bytes, _)| bytes);
        for chunk in data.chunks((CHUNK / group).max(1) * group) {
            let chunk = match piece.groups {
                None => chunk,
                Some((group, format)) => {
                    mixed.resize(chunk.len(), 0);
                    for (rows, out) in chunk.chunks_exact(group).zip(mixed.chunks_exact_mut(group)) {
                        format.interleave(rows, out);
                    }
                    &mixed
                }
            };
            hash.update(chunk);
            stream.write(&piece.name, chunk)?;
            done += chunk.len() as u64;
            progress(done, total);
        }
    }
    let digest = hash.finalize();
    stream.write(HASH_TENSOR, &digest)?;
    let resume = stream.finish()?;
    let (bytes, resumed_bytes) = resume.finish().map_err(|e| io_error("write", &part, e))?;
    std::fs::rename(&part, out).map_err(|e| io_error("rename", &part, e))?;
    Ok(Packed { bytes, sha256: hex(&digest), reused: false, resumed_bytes })
}

/// The hash of a pack's contents, if they are what the pack says.
///
/// # Errors
/// It is no pack of this version, or damaged.
pub fn verify(pack: &Gguf) -> Result<String> {
    let damaged = |what: &str| Error::Unsupported { what: format!("a pack {what}") };
    if pack.metadata().opt_u64(VERSION_KEY)? != Some(u64::from(PACK_VERSION)) {
        return Err(damaged("of another version"));
    }
    let trailer = pack.tensor(HASH_TENSOR).ok_or_else(|| damaged("without its hash"))?;
    let expected = pack.tensor_data(trailer)?.to_vec();
    let mut hash = Sha256::new();
    // In the order in which they were written, which is that of the directory.
    for tensor in pack.tensors().iter().filter(|tensor| tensor.name != HASH_TENSOR) {
        hash.update(pack.tensor_data(tensor)?);
    }
    let digest = hash.finalize();
    if digest.as_slice() == expected.as_slice() {
        Ok(hex(&digest))
    } else {
        Err(damaged("whose contents were damaged"))
    }
}

/// The hash of a whole pack of this source.
fn whole(out: &Path, fingerprint: &str) -> Option<String> {
    let gguf = Gguf::open(out).ok()?;
    let of_source = matches!(gguf.metadata().get(SOURCE_KEY), Some(Value::String(found)) if found.as_str() == fingerprint);
    if of_source { verify(&gguf).ok() } else { None }
}

/// Sizes, directories, and samples of the data. Reading everything would take as long as packing.
fn fingerprint(source: &Gguf) -> String {
    const SAMPLES: usize = 1024;
    const SAMPLE: usize = 4096;
    const SMALL_FILE: usize = 64 << 20;
    let mut hash = Sha256::new();
    for shard in source.shards() {
        let bytes: &[u8] = shard.bytes();
        hash.update((bytes.len() as u64).to_le_bytes());
        let header = usize::try_from(shard.data_offset()).unwrap_or(0).min(bytes.len());
        let (header, data) = bytes.split_at(header);
        hash.update(header);
        if data.len() <= SMALL_FILE {
            hash.update(data);
            continue;
        }
        for sample in 0..SAMPLES {
            let at = (data.len() - SAMPLE) / (SAMPLES - 1) * sample;
            hash.update(data.get(at..at + SAMPLE).unwrap_or_default());
        }
        hash.update(data.get(data.len() - SAMPLE..).unwrap_or_default());
    }
    hex(&hash.finalize())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// All tensors of the pack, in its order.
fn arrange(source: &Gguf) -> Vec<Piece<'_>> {
    let whole = |tensor| {
        let TensorInfo { name, dims, bytes, .. }: &TensorInfo = tensor;
        Piece::new(name.clone(), dims.clone(), tensor, (0, *bytes))
    };
    // Fine planes stay behind all else, so that the low view is the front of the pack, too.
    let is_fine = |tensor: &TensorInfo| tensor.name.ends_with(FINE);
    let (small, large): (Vec<&TensorInfo>, Vec<&TensorInfo>) =
        source.tensors().iter().partition(|tensor| tensor.bytes < SMALL && !is_fine(tensor));
    // Embedding, layers in order (attention before feed-forward, experts last), then the output head.
    let place = |tensor: &TensorInfo| match layer_of(&tensor.name) {
        _ if is_fine(tensor) => (3, layer_of(&tensor.name).map_or(0, |(layer, _)| layer), 0),
        Some((layer, part)) => (1, layer, u8::from(part.starts_with("ffn_"))),
        // The second table of Gemma 4, and the product that goes with it, which a pass begins with.
        None if ["token_embd", "per_layer_"].iter().any(|start| tensor.name.starts_with(start)) => (0, 0, 0),
        None => (2, 0, 0),
    };
    let mut large = large;
    large.sort_by_key(|tensor| place(tensor));
    let mut out: Vec<Piece<'_>> = small.into_iter().map(whole).collect();
    let mut index = 0;
    while let Some(&tensor) = large.get(index) {
        let key = place(tensor);
        let end = index + large.iter().skip(index).take_while(|other| place(other) == key).count();
        let block = large.get(index..end).unwrap_or_default();
        let stack = layer_of(&tensor.name).and_then(|(layer, _)| Some((layer, stacks(block, layer)?)));
        let is_stacked = |tensor: &TensorInfo| {
            stack.as_ref().is_some_and(|(_, parts)| parts.iter().any(|part| part.name == tensor.name))
        };
        out.extend(block.iter().copied().filter(|tensor| !is_stacked(tensor)).map(whole));
        if let Some((layer, parts)) = &stack {
            let count = parts[0].dims.get(2).copied().unwrap_or(1);
            for expert in 0..count {
                for (tensor, part) in parts.iter().zip(PARTS) {
                    let bytes = tensor.bytes / count;
                    let name = format!("blk.{layer}.ffn_{part}.{expert}.weight");
                    let dims = tensor.dims.iter().take(2).copied().collect();
                    out.push(Piece::new(name, dims, tensor, (bytes * expert, bytes)));
                }
            }
        }
        index = end;
    }
    out
}

/// Gate first: it can be computed with while the others arrive.
const PARTS: [&str; 3] = ["gate", "up", "down"];

/// The three stacks of experts of a layer, if it has them in the form that can be taken apart.
fn stacks<'a>(block: &[&'a TensorInfo], layer: u64) -> Option<[&'a TensorInfo; 3]> {
    let find = |part: &str| {
        let name = format!("blk.{layer}.ffn_{part}_exps.weight");
        block.iter().copied().find(|tensor| tensor.name == name && tensor.dims.len() == 3)
    };
    let [gate, up, down] = PARTS.map(find);
    let parts = [gate?, up?, down?];
    let count = parts[0].dims.get(2)?;
    parts.iter().all(|part| part.dims.get(2) == Some(count)).then_some(parts)
}

fn layer_of(name: &str) -> Option<(u64, &str)> {
    let (layer, part) = name.strip_prefix("blk.")?.split_once('.')?;
    Some((layer.parse().ok()?, part))
}

fn part_of(out: &Path) -> PathBuf {
    let mut name = out.as_os_str().to_owned();
    name.push(".part");
    name.into()
}

fn io_error(action: &'static str, path: &Path, source: io::Error) -> Error {
    Error::Io { action, path: path.to_owned(), source }
}

/// Compares with what is there as long as it is the same, and writes from then on.
struct Resume {
    file: File,
    /// Bytes that are right.
    done: u64,
    /// Bytes that were there.
    resumed: u64,
    comparing: bool,
    buffer: Vec<u8>,
}

impl Resume {
    fn open(path: &Path) -> Result<Resume> {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|e| io_error("open", path, e))?;
        Ok(Resume { file, done: 0, resumed: 0, comparing: true, buffer: Vec::new() })
    }

    /// Flushes to the disk; the size, and how much of it was there before.
    fn finish(self) -> io::Result<(u64, u64)> {
        // A longer remainder of another run.
        self.file.set_len(self.done)?;
        self.file.sync_all()?;
        Ok((self.done, self.resumed))
    }
}

impl Write for Resume {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.comparing {
            self.buffer.clear();
            (&mut self.file).take(bytes.len() as u64).read_to_end(&mut self.buffer)?;
            if self.buffer == bytes {
                self.done += bytes.len() as u64;
                self.resumed = self.done;
                return Ok(bytes.len());
            }
            self.comparing = false;
            self.file.set_len(self.done)?;
            self.file.seek(SeekFrom::Start(self.done))?;
        }
        let written = self.file.write(bytes)?;
        self.done += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
