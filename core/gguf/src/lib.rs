//! GGUF files: untrusted bytes to metadata and a tensor directory, and back.
//!
//! [`Gguf::open`] maps a file (or all shards of a split one), checks everything that can be checked without reading the
//! tensors, and gives [`Metadata`] and [`TensorInfo`]s. [`Writer`] makes files. No maths happens here, and the only
//! `unsafe` is the mapping.
//!
//! The format: versions 2 and 3, little-endian, as the public GGUF specification describes it. A file is taken to be
//! hostile: every length, count and offset is checked before it is used, the memory for a directory is limited, and each
//! fault has its own [`Error`].

mod cursor;
mod error;
mod file;
pub mod interleaved;
mod metadata;
pub mod nested;
mod parse;
mod sniff;
mod types;
mod value;
mod writer;

pub use error::{Error, Result};
pub use file::{Gguf, Shard, prefer_huge_pages};
pub use metadata::{Metadata, OneOrMany};
pub use parse::TensorInfo;
pub use types::GgmlType;
pub use value::{Array, Nested, Packed, Scalar, StrArray, Value};
pub use writer::{TensorStream, Writer};
