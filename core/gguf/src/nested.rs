//! How nested precision is written in a file: names and keys, no bytes.
//!
//! A matrix `NAME` of two planes is two tensors of type I8, `NAME.low` and `NAME.fine`, whose rows are the rows of the matrix in blocks of that
//! plane. Such a file is valid GGUF. A reader that does not know the convention misses `NAME` and says so, instead of multiplying with half of
//! a matrix. All fine planes lie behind everything else, so that the low view is the front of the file.

/// Says that the file has planes, and of which version; `u32`.
pub const VERSION_KEY: &str = "pannier.nested.version";
/// The version that this code writes, and the only one that it reads.
pub const VERSION: u32 = 1;
/// What the name of a low plane ends in.
pub const LOW: &str = ".low";
/// What the name of a fine plane ends in.
pub const FINE: &str = ".fine";
