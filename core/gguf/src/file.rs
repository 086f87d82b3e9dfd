//! A model on disk: one file, or the shards of a split one.

use crate::error::shown;
use crate::parse::{Parsed, TensorInfo, parse};
use crate::{Error, Metadata, Result};
use bytes::Bytes;
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};

/// An open GGUF model.
///
/// The files are mapped, not read: opening costs the header's pages, and the data of a tensor costs its pages when touched.
/// All shards of a split model appear as one.
pub struct Gguf {
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    /// Indices into `tensors`, sorted by name.
    by_name: Vec<u32>,
    shards: Vec<Shard>,
    version: u32,
    alignment: u32,
}

/// One file of a model.
pub struct Shard {
    path: Option<PathBuf>,
    bytes: Bytes,
    data_offset: u64,
}

impl Shard {
    /// Where the file is; `None` for a model made from bytes.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The whole file.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Where the data section starts, in bytes from the start of the file.
    pub fn data_offset(&self) -> u64 {
        self.data_offset
    }
}

impl Gguf {
    /// Maps and checks the file, and its siblings when it is one shard of a split model (any of them may be given).
    ///
    /// The files must not be truncated while the model is open: reading a page that is gone stops the process. Replace a
    /// model by renaming a new file over it, as [`crate::Writer::write_file`] does.
    ///
    /// # Errors
    /// Any fault of the file, as [`Error::InFile`]; see [`Error`].
    pub fn open(path: impl AsRef<Path>) -> Result<Gguf> {
        let path = path.as_ref();
        let (bytes, parsed) = open_shard(path, 0)?;
        let Some(split) = split_of(&parsed.metadata).map_err(|error| error.in_file(path))? else {
            return Gguf::assemble(vec![(Some(path.to_path_buf()), bytes, parsed)])
                .map_err(|error| error.in_file(path));
        };
        let name = SplitName::of(path).filter(|name| (name.shard, name.count) == (split.no, split.count));
        let Some(name) = name else {
            return Err(Error::SplitName { shard: split.no, count: split.count }.in_file(path));
        };
        // Shards open one by one: a false count stops at the first file that is not there.
        let mut given = Some((bytes, parsed));
        let mut shards = Vec::new();
        for no in 0..split.count {
            let sibling = name.sibling(path, no);
            let (bytes, mut parsed) = match given.take_if(|_| no == split.no) {
                Some(given) => given,
                None => open_shard(&sibling, shards.len()).map_err(|error| match error.fault() {
                    Error::NotFound => {
                        Error::MissingShard { shard: no, count: split.count }.in_file(&sibling)
                    }
                    _ => error,
                })?,
            };
            for tensor in &mut parsed.tensors {
                tensor.shard = shards.len();
            }
            shards.push((Some(sibling), bytes, parsed));
        }
        Gguf::assemble(shards).map_err(|error| error.in_file(path))
    }

    /// A model from bytes in memory. Tensor data is as aligned as `bytes` is.
    ///
    /// # Errors
    /// Any fault of the bytes, among them that they are only one shard of several.
    pub fn from_bytes(bytes: Bytes) -> Result<Gguf> {
        Gguf::from_shards([bytes])
    }

    /// [`Gguf::from_bytes`] of a vector.
    ///
    /// # Errors
    /// As there.
    pub fn from_vec(bytes: Vec<u8>) -> Result<Gguf> {
        Gguf::from_bytes(bytes.into())
    }

    /// A split model from the bytes of all its shards, in order.
    ///
    /// # Errors
    /// Any fault of the bytes.
    pub fn from_shards(shards: impl IntoIterator<Item = Bytes>) -> Result<Gguf> {
        let mut parsed = Vec::new();
        for (no, bytes) in shards.into_iter().enumerate() {
            let shard = parse(&bytes, no)?;
            parsed.push((None, bytes, shard));
        }
        Gguf::assemble(parsed)
    }

    fn assemble(parts: Vec<(Option<PathBuf>, Bytes, Parsed)>) -> Result<Gguf> {
        let count = parts.len() as u64;
        let mut shards = Vec::with_capacity(parts.len());
        let mut tensors: Vec<TensorInfo> = Vec::new();
        let mut first = None;
        let mut declared_tensors = None;
        for (no, (path, bytes, parsed)) in (0u64..).zip(parts) {
            let check = || -> Result<Option<u64>> {
                let split = split_of(&parsed.metadata)?.unwrap_or(Split { no: 0, count: 1 });
                expect("split.count", split.count, count)?;
                expect("split.no", split.no, no)?;
                parsed.metadata.opt_u64("split.tensors.count")
            };
            let declared = check().map_err(|error| match &path {
                Some(path) => error.in_file(path),
                None => error,
            })?;
            declared_tensors = declared_tensors.or(declared);
            shards.push(Shard { path, bytes, data_offset: parsed.data_offset });
            if tensors.is_empty() {
                tensors = parsed.tensors;
            } else {
                tensors.extend(parsed.tensors);
            }
            first.get_or_insert((parsed.metadata, parsed.version, parsed.alignment));
        }
        let (metadata, version, alignment) = first.ok_or(Error::Empty)?;
        if let Some(declared) = declared_tensors.filter(|_| count > 1) {
            expect("split.tensors.count", declared, tensors.len() as u64)?;
        }
        let by_name = index_by_name(&tensors)?;
        Ok(Gguf { metadata, tensors, by_name, shards, version, alignment })
    }

    /// Says that the whole model will be read again and again, and has room: the system may then read and map the files in huge
    /// pages. Matrix products walk many rows at once, each on pages of its own, and misses of the TLB are what they wait for.
    /// What is in the page cache already stays as it is, and a system without such pages does nothing.
    pub fn expect_reuse(&self) {
        self.shards
            .iter()
            .filter(|shard| shard.path.is_some())
            .for_each(|shard| prefer_huge_pages(&shard.bytes));
    }

    /// Keys and values; of a split model, those of its first shard.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// All tensors in the order of the directory, shard after shard.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        let place = self.by_name.binary_search_by(|&index| name_at(&self.tensors, index).cmp(name)).ok()?;
        self.tensors.get(*self.by_name.get(place)? as usize)
    }

    /// The data of a tensor of this model: `tensor.bytes` bytes, in the mapping.
    ///
    /// # Errors
    /// [`Error::ForeignTensor`] when `tensor` came from elsewhere and is out of range here.
    pub fn tensor_data(&self, tensor: &TensorInfo) -> Result<&[u8]> {
        self.shards
            .get(tensor.shard)
            .and_then(|shard| {
                let start = usize::try_from(tensor.offset).ok()?;
                let end = start.checked_add(usize::try_from(tensor.bytes).ok()?)?;
                shard.bytes.get(start..end)
            })
            .ok_or_else(|| Error::ForeignTensor { name: shown(&tensor.name) })
    }

    /// [`Gguf::tensor_data`] that keeps the mapping alive by itself.
    ///
    /// # Errors
    /// As there.
    pub fn tensor_bytes(&self, tensor: &TensorInfo) -> Result<Bytes> {
        let data = self.tensor_data(tensor)?;
        self.shards
            .get(tensor.shard)
            .map(|shard| shard.bytes.slice_ref(data))
            .ok_or_else(|| Error::ForeignTensor { name: shown(&tensor.name) })
    }

    /// The files; one, unless the model is split.
    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// File `index`.
    pub fn shard(&self, index: usize) -> Option<&Shard> {
        self.shards.get(index)
    }

    /// Where file `index` is; `None` for a model made from bytes.
    pub fn shard_path(&self, index: usize) -> Option<&Path> {
        self.shards.get(index)?.path()
    }

    /// The format version of the (first) file: 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The alignment of tensor data in the (first) file, a power of two.
    pub fn alignment(&self) -> u32 {
        self.alignment
    }

    /// The size of all files together.
    pub fn file_bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.bytes.len() as u64).sum()
    }
}

// Short by hand: the derived ones would print every byte of the model.
impl fmt::Debug for Gguf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gguf")
            .field("version", &self.version)
            .field("keys", &self.metadata.len())
            .field("tensors", &self.tensors.len())
            .field("shards", &self.shards)
            .finish()
    }
}

impl fmt::Debug for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shard")
            .field("path", &self.path)
            .field("bytes", &self.bytes.len())
            .field("data_offset", &self.data_offset)
            .finish()
    }
}

fn name_at(tensors: &[TensorInfo], index: u32) -> &str {
    tensors.get(index as usize).map_or("", |tensor| tensor.name.as_str())
}

fn index_by_name(tensors: &[TensorInfo]) -> Result<Vec<u32>> {
    let mut by_name: Vec<u32> = (0..tensors.len() as u32).collect();
    by_name.sort_unstable_by_key(|&index| name_at(tensors, index));
    for pair in by_name.windows(2) {
        if let [a, b] = *pair
            && name_at(tensors, a) == name_at(tensors, b)
        {
            return Err(Error::DuplicateTensor { name: shown(name_at(tensors, a)) });
        }
    }
    Ok(by_name)
}

fn expect(key: &'static str, found: u64, expected: u64) -> Result<()> {
    if found == expected { Ok(()) } else { Err(Error::SplitMismatch { key, found, expected }) }
}

/// What the metadata says about splitting.
struct Split {
    no: u64,
    count: u64,
}

/// `None` when the file is whole.
fn split_of(metadata: &Metadata) -> Result<Option<Split>> {
    let count = metadata.opt_u64("split.count")?.unwrap_or(0);
    if count <= 1 {
        return Ok(None);
    }
    let no = metadata.u64("split.no")?;
    if no >= count {
        return Err(Error::SplitMismatch { key: "split.no", found: no, expected: count - 1 });
    }
    Ok(Some(Split { no, count }))
}

/// A file name `PREFIX-00001-of-00003.gguf`.
struct SplitName {
    prefix: String,
    shard: u64,
    count: u64,
}

impl SplitName {
    fn of(path: &Path) -> Option<SplitName> {
        let stem = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
        let (rest, count) = stem.rsplit_once("-of-")?;
        let (prefix, number) = rest.rsplit_once('-')?;
        let digits = |text: &str| -> Option<u64> {
            (text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok())?
        };
        let shard = digits(number)?.checked_sub(1)?;
        Some(SplitName { prefix: prefix.to_owned(), shard, count: digits(count)? })
    }

    fn sibling(&self, path: &Path, shard: u64) -> PathBuf {
        path.with_file_name(format!("{}-{:05}-of-{:05}.gguf", self.prefix, shard + 1, self.count))
    }
}

fn open_shard(path: &Path, shard: usize) -> Result<(Bytes, Parsed)> {
    let open = || {
        let bytes = map(path)?;
        let parsed = parse(&bytes, shard)?;
        Ok((bytes, parsed))
    };
    open().map_err(|error: Error| error.in_file(path))
}

fn map(path: &Path) -> Result<Bytes> {
    let io = |action| move |source| Error::Io { action, source };
    // Looked at before it is opened: opening a pipe would wait for its writer.
    let found = std::fs::metadata(path).map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => Error::NotFound,
        _ => Error::Io { action: "look at the file", source },
    })?;
    if found.is_dir() {
        return Err(Error::NotAFile { kind: "directory" });
    }
    if !found.is_file() {
        return Err(Error::NotAFile { kind: "device, pipe or socket" });
    }
    let file = File::open(path).map_err(io("open the file"))?;
    if file.metadata().map_err(io("look at the file"))?.len() == 0 {
        return Err(Error::Empty); // A mapping of no bytes is an error on every system.
    }
    // SAFETY: the mapping is private to this value, read-only, and lives as long as the `Bytes` that owns it, so no
    // pointer into it dangles. What we cannot rule out is another process changing the file. (1) Changed bytes: nothing
    // here or above relies on mapped bytes staying what they were when checked; sizes and offsets were copied out, text is
    // checked again at each access, and block data has no invalid bit patterns. (2) A truncated file: touching a page past
    // the new end raises SIGBUS, which no check of ours can turn into an error. It is documented at `Gguf::open`; the
    // model store never truncates a model, it renames a complete file into place, and the old file lives on until unmapped.
    let mapping = unsafe { memmap2::Mmap::map(&file) }.map_err(io("map the file"))?;
    Ok(Bytes::from_owner(mapping))
}

/// Asks for huge pages where whole ones fit into a mapping. Advice: a system that has none, or memory that does not begin with a page, is
/// left as it is.
pub fn prefer_huge_pages(mapping: &[u8]) {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    {
        let start = mapping.as_ptr().cast_mut().cast();
        // SAFETY: the range is borrowed, so it is mapped for the whole call. This advice changes neither contents nor access of any page,
        // only how large the pages are that the system looks for, so it is harmless to whatever else lies on them.
        let _ = unsafe { rustix::mm::madvise(start, mapping.len(), rustix::mm::Advice::LinuxHugepage) };
    }
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let _ = mapping;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_standard_split_name_is_one() {
        let name =
            |text: &str| SplitName::of(Path::new(text)).map(|name| (name.prefix, name.shard, name.count));
        assert_eq!(name("dir/m-x-00002-of-00003.gguf"), Some(("m-x".to_owned(), 1, 3)));
        assert_eq!(name("m-00000-of-00003.gguf"), None);
        assert_eq!(name("m-2-of-3.gguf"), None);
        assert_eq!(name("m-0000x-of-00003.gguf"), None);
        assert_eq!(name("m-00002-of-00003.bin"), None);
        assert_eq!(name("m.gguf"), None);
    }
}
