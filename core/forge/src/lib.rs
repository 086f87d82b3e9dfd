//! Offline work on models: convert checkpoints, collect activation statistics, quantise.
//!
//! * [`encode`]: rows of floats to the blocks of every target format.

pub mod encode;
