//! Offline work on models: convert checkpoints, collect activation statistics, quantise.
//!
//! * [`encode`]: rows of floats to the blocks of every target format.
//! * [`imatrix`]: activation statistics, collected or read, that say which weights matter.
//! * [`quantize()`]: a model to a smaller one, streaming, in parallel, resumable.

mod assemble;
pub mod encode;
mod error;
pub mod imatrix;
mod positional;
mod progress;
pub mod quantize;

pub use error::{Error, Result};
pub use progress::{Progress, Silent};
pub use quantize::{QuantizeOptions, quantize};
