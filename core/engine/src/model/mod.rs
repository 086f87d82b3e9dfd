//! Forward passes: what an architecture is, and how one is run.

mod forward;

pub use forward::{Forward, Outputs};
