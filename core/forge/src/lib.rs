//! Offline work on models: convert checkpoints, collect activation statistics, quantise.
//!
//! * [`convert()`]: a checkpoint in the Hugging Face layout to GGUF.
//! * [`encode`]: rows of floats to the blocks of every target format.
//! * [`imatrix`]: activation statistics, collected or read, that say which weights matter.
//! * [`quantize()`]: a model to a smaller one, streaming, in parallel, resumable.

mod assemble;
pub mod convert;
pub mod encode;
mod error;
pub mod imatrix;
mod positional;
mod progress;
pub mod quantize;

pub use convert::{ConvertOptions, convert};
pub use error::{Error, Result};
pub use progress::{Progress, Silent};
pub use quantize::{QuantizeOptions, quantize};
