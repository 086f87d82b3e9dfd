//! Block formats and SIMD kernels, chosen once at run time, all with one reduction order.
//!
//! * [`format`] looks a GGUF block format up; [`Matrix`] is a view of its bytes, which stay as they lie in the file.
//! * [`Activations`] holds token rows, rounded to 8 or 16 bits in groups of 16 (or left as f32).
//! * [`Kernels`] is the table of functions for one instruction set; [`Kernels::matmul`] multiplies.
//!
//! Every instruction set gives the bits of the scalar oracle; `ARCHITECTURE.md` states the order of every reduction.

mod act;
mod attention;
mod fanout;
mod formats;
mod isa;
mod math;
mod matmul;
mod matrix;
mod parallel;
mod recurrent;
mod rope;
mod vecops;

pub use act::{ActRows, Activations, Need};
pub use attention::{
    AttentionJob, AttentionScratch, AttentionShape, FreshKeys, KvFormat, KvLayout, KvPages, LEAST_PAGES,
    ObserveJob, PAGE_TOKENS, hadamard_in_place,
};
pub use fanout::{FanOut, Hooks, for_each_piece};
pub use formats::{Format, format, formats, nested, nested_formats};
pub use isa::{Isa, Kernels};
pub use math::scalar;
pub use matmul::{Job, Precision};
pub use matrix::{Matrix, ShapeError};
pub use parallel::{Parallel, Serial};
pub use recurrent::{ConvJob, DeltaJob, DeltaShape, KeyHeads};
pub use rope::{MAX_ROT, RopeError, RopeSpec, RopeStyle, RopeTable, Yarn, sections_are_plain};
