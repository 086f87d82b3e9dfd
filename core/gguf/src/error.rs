//! Everything that can be wrong with a file, one variant per fault.

use crate::GgmlType;
use std::path::PathBuf;

/// The result of this crate's calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What is wrong, where, and the limit.
///
/// Names and keys come from an untrusted file: they are shortened, and shown quoted and escaped, so that a message is
/// always one line. Offsets are in bytes from the start of the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    // ---- the file as a whole
    /// Any of the other faults, in a named file. [`Error::fault`] looks through it.
    #[error("{}: {fault}", path.display())]
    InFile {
        /// The file with the fault.
        path: PathBuf,
        /// The fault.
        fault: Box<Error>,
    },
    /// There is no such file.
    #[error("no such file")]
    NotFound,
    /// The path leads to something that is not a regular file.
    #[error("is a {kind}, not a file")]
    NotAFile {
        /// What it is instead.
        kind: &'static str,
    },
    /// The operating system refused.
    #[error("cannot {action}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The file has no bytes.
    #[error("the file is empty")]
    Empty,
    /// The file does not start with the GGUF magic.
    #[error("not a GGUF file: looks like {looks_like}")]
    NotGguf {
        /// What the first bytes look like.
        looks_like: String,
    },
    /// The file was written for a big-endian machine.
    #[error("big-endian GGUF files are not supported; convert the model to little-endian")]
    BigEndian,
    /// Version 1, or one that is not known yet.
    #[error("GGUF version {version} is not supported; versions 2 and 3 are")]
    UnsupportedVersion {
        /// The version in the header.
        version: u32,
    },

    // ---- the header and the metadata
    /// The file ends inside the header, the metadata or the tensor directory.
    #[error(
        "truncated: {what} needs {needed} bytes at offset {offset}, but only {available} are left in the file"
    )]
    TruncatedHeader {
        /// Which key or tensor description is cut.
        what: String,
        /// Where its bytes start.
        offset: u64,
        /// How many it needs.
        needed: u64,
        /// How many the file still has.
        available: u64,
    },
    /// A count that the rest of the file cannot hold.
    #[error(
        "{what} claims {count} entries of at least {entry_bytes} bytes at offset {offset}, but only {available} bytes are left in the file"
    )]
    CountTooLarge {
        /// What is counted.
        what: String,
        /// The claimed count.
        count: u64,
        /// The least bytes one entry takes in the file.
        entry_bytes: u64,
        /// Where the entries start.
        offset: u64,
        /// How many bytes the file still has.
        available: u64,
    },
    /// The directory would need more memory than any real model's does.
    #[error("{what} brings the memory for metadata above the limit of {limit} bytes")]
    MetadataTooLarge {
        /// What went over the limit.
        what: String,
        /// The limit.
        limit: u64,
    },
    /// The directory holds more text than any real model's does.
    #[error("{what} brings the text in the metadata above the limit of {limit} bytes")]
    TextTooLarge {
        /// What went over the limit.
        what: String,
        /// The limit.
        limit: u64,
    },
    /// A key or name longer than the format allows.
    #[error("{what} is {len} bytes long at offset {offset}; the limit is {limit}")]
    NameTooLong {
        /// Which key or name.
        what: String,
        /// Its length in bytes.
        len: u64,
        /// Where it is.
        offset: u64,
        /// The limit.
        limit: u64,
    },
    /// Text that is not UTF-8.
    #[error("{what} is not valid UTF-8 at offset {offset}")]
    InvalidUtf8 {
        /// Which key, value or name.
        what: String,
        /// Where the first bad byte is.
        offset: u64,
    },
    /// A value type id that the format does not define.
    #[error("key {key:?} has the unknown value type {id}")]
    UnknownValueType {
        /// The key.
        key: String,
        /// The id.
        id: u32,
    },
    /// A boolean that is neither 0 nor 1.
    #[error("key {key:?} holds a boolean with the value {value}; only 0 and 1 are valid")]
    InvalidBool {
        /// The key.
        key: String,
        /// The byte.
        value: u8,
    },
    /// Arrays of arrays, too deep.
    #[error("key {key:?} nests arrays deeper than {limit}")]
    NestingTooDeep {
        /// The key.
        key: String,
        /// The limit.
        limit: usize,
    },
    /// A key that appears twice.
    #[error("key {key:?} appears twice")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// `general.alignment` is not a usable power of two.
    #[error("general.alignment is {value}; it must be a power of two up to {limit}")]
    BadAlignment {
        /// The value.
        value: u64,
        /// The limit.
        limit: u64,
    },

    // ---- the tensor directory
    /// A tensor name that appears twice.
    #[error("tensor {name:?} appears twice")]
    DuplicateTensor {
        /// The name.
        name: String,
    },
    /// A tensor without dimensions, or with too many.
    #[error("tensor {name:?} has {dims} dimensions; it must have 1 to {limit}")]
    BadRank {
        /// The tensor.
        name: String,
        /// How many dimensions it claims.
        dims: u64,
        /// The limit.
        limit: u64,
    },
    /// A dimension of length zero.
    #[error("tensor {name:?} has dimension {dim} of length 0")]
    ZeroDimension {
        /// The tensor.
        name: String,
        /// The index of the dimension.
        dim: usize,
    },
    /// Element or byte count beyond 64 bits.
    #[error("tensor {name:?} has the dimensions {dims:?}: its size overflows 64 bits")]
    TensorTooLarge {
        /// The tensor.
        name: String,
        /// Its dimensions.
        dims: Vec<u64>,
    },
    /// A tensor element type id that was never assigned.
    #[error("tensor {name:?} has the unknown element type {id}")]
    UnknownTensorType {
        /// The tensor.
        name: String,
        /// The id.
        id: u32,
    },
    /// Rows that are not whole blocks.
    #[error(
        "tensor {name:?} has rows of {row} elements, not a multiple of the {block}-element blocks of {ty}"
    )]
    PartialBlock {
        /// The tensor.
        name: String,
        /// Its first dimension.
        row: u64,
        /// Elements per block.
        block: u64,
        /// Its type.
        ty: GgmlType,
    },
    /// A tensor offset off the alignment.
    #[error("tensor {name:?} is at data offset {offset}, not a multiple of the alignment {alignment}")]
    MisalignedTensor {
        /// The tensor.
        name: String,
        /// Its offset from the start of the data section.
        offset: u64,
        /// The file's alignment.
        alignment: u64,
    },
    /// Offset plus size beyond 64 bits.
    #[error("tensor {name:?}: data offset {offset} plus {bytes} bytes overflows 64 bits")]
    TensorOutOfRange {
        /// The tensor.
        name: String,
        /// Its offset from the start of the data section.
        offset: u64,
        /// Its size.
        bytes: u64,
    },
    /// The file ends inside, or before, a tensor's data.
    #[error(
        "truncated: tensor {name:?} is cut by {} bytes (it needs {needed} bytes at offset {offset}, {available} are there; \
         {more} more tensors are missing whole); download the file again",
        needed - available
    )]
    TruncatedTensor {
        /// The first tensor, in file order, that is cut.
        name: String,
        /// Where its data starts.
        offset: u64,
        /// How many bytes it needs.
        needed: u64,
        /// How many of them the file has.
        available: u64,
        /// How many tensors after it have no byte at all or are cut too.
        more: usize,
    },
    /// Two tensors that share some bytes but not all.
    #[error("tensors {first:?} and {second:?} overlap at offset {offset}")]
    OverlappingTensors {
        /// The tensor that starts first.
        first: String,
        /// The tensor that starts inside it.
        second: String,
        /// Where the second one starts.
        offset: u64,
    },
    /// A [`crate::TensorInfo`] that does not belong to this file.
    #[error("tensor {name:?} does not belong to this file")]
    ForeignTensor {
        /// Its name.
        name: String,
    },

    // ---- split files
    /// The metadata says the file is one of several, but its name does not say where the others are.
    #[error("is shard {shard} of {count} but is not named like '…-{:05}-of-{:05}.gguf'; give split files their original names", shard + 1, count)]
    SplitName {
        /// The shard's index, from 0.
        shard: u64,
        /// How many shards the model has.
        count: u64,
    },
    /// A sibling is not there.
    #[error("shard {} of {count} is missing", shard + 1)]
    MissingShard {
        /// The shard's index, from 0.
        shard: u64,
        /// How many shards the model has.
        count: u64,
    },
    /// A shard disagrees with its place in the set.
    #[error("split file: {key} is {found}, expected {expected}")]
    SplitMismatch {
        /// The key that disagrees.
        key: &'static str,
        /// What the shard says.
        found: u64,
        /// What the set needs.
        expected: u64,
    },

    // ---- asking for metadata
    /// A required key is absent.
    #[error("the metadata has no key {key:?}")]
    MissingKey {
        /// The key.
        key: String,
    },
    /// A key has another type than asked for.
    #[error("key {key:?} is {found}, expected {expected}")]
    WrongType {
        /// The key.
        key: String,
        /// The type in the file.
        found: &'static str,
        /// The type asked for.
        expected: &'static str,
    },
    /// A number that does not fit the type asked for.
    #[error("key {key:?} has the value {value}, which does not fit {expected}")]
    OutOfRange {
        /// The key.
        key: String,
        /// The value.
        value: String,
        /// The type asked for.
        expected: &'static str,
    },

    // ---- writing
    /// Tensor data came for another tensor than the next declared one.
    #[error(
        "data for tensor {found:?} came when {expected:?} was due; write tensors in the order they were declared"
    )]
    WrongTensorOrder {
        /// The tensor whose data came.
        found: String,
        /// The tensor that was due, or "nothing".
        expected: String,
    },
    /// More data than the tensor was declared with.
    #[error("tensor {name:?} was declared with {declared} bytes but got at least {got}")]
    TooMuchTensorData {
        /// The tensor.
        name: String,
        /// Its declared size.
        declared: u64,
        /// What came.
        got: u64,
    },
    /// The writer was finished before all data came.
    #[error("tensor {name:?} was declared with {declared} bytes but got only {got}")]
    MissingTensorData {
        /// The tensor.
        name: String,
        /// Its declared size.
        declared: u64,
        /// What came.
        got: u64,
    },
}

impl Error {
    /// The fault itself, without the file it was found in.
    pub fn fault(&self) -> &Error {
        match self {
            Error::InFile { fault, .. } => fault.fault(),
            other => other,
        }
    }

    /// The same, with the file it is about.
    #[must_use]
    pub fn in_file(self, path: &std::path::Path) -> Error {
        match self {
            already @ Error::InFile { .. } => already,
            fault => Error::InFile { path: path.to_path_buf(), fault: Box::new(fault) },
        }
    }
}

/// A name from the file, short enough for a message.
pub(crate) fn shown(name: &str) -> String {
    const LIMIT: usize = 120;
    match name.char_indices().nth(LIMIT) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}
