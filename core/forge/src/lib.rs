//! Offline work on models: convert checkpoints, collect activation statistics, quantise.
//!
//! * [`convert()`]: a checkpoint in the Hugging Face layout to GGUF.
//! * [`encode`]: rows of floats to the blocks of every target format.
//! * [`imatrix`]: activation statistics, read and written, that say which weights matter.
//! * [`calibrate()`]: runs a model over a text and collects them.
//! * [`quantize()`]: a model to a smaller one, streaming, in parallel, resumable.
//! * [`judge`]: how good a model still is: perplexity, distance to another model, tasks.

mod assemble;
mod calibrate;
pub mod convert;
pub mod encode;
mod error;
pub mod imatrix;
pub mod judge;
mod positional;
mod progress;
pub mod quantize;
mod windows;

pub use calibrate::{CalibrateOptions, Calibration, calibrate};
pub use convert::{ConvertOptions, convert};
pub use error::{Error, Result};
pub use progress::{Progress, Silent};
pub use quantize::{QuantizeOptions, quantize};
