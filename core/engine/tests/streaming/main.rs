//! Weights that do not fit into the budget: same bits, kept promises, typed failures.

#![allow(clippy::needless_range_loop, reason = "layers are counted")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod dense;
mod experts;
mod faults;
mod packs;
mod plans;
mod tiny;
