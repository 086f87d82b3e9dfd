//! How interleaved rows are written in a file: a name, no bytes.
//!
//! A matrix `NAME` whose rows lie interleaved, sixteen at a time, is a tensor `NAME.r16` with the type and shape of its rows. Such a file is valid
//! GGUF. A reader that does not know the convention misses `NAME` and says so, instead of multiplying with mixed rows. Which byte goes where is
//! what the kernels say (`matmul/source.rs` there).

/// What the name of a matrix with interleaved rows ends in.
pub const SUFFIX: &str = ".r16";
/// How many rows lie together.
pub const ROWS: u64 = 16;
