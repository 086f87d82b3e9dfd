//! Sixteen lanes, and the transcendental functions built on them.
//!
//! Every vector kernel of this crate that works on `f32` is written once, over [`Lanes`]: sixteen `f32` values and the few operations
//! that IEEE 754 rounds in only one way (add, multiply, fused multiply-add, compare, bit moves). An ISA supplies the lanes, not the
//! algorithm, so two ISAs cannot disagree in a bit: they run the same operations in the same order, only a different number of
//! registers wide. A new ISA is one file in `isa/` that implements the two traits and fills its table with `fill_table!`.
//!
//! [`Arith`] is the lane-wise half; [`Single`] implements it for one value, which is how the scalar functions of [`scalar`] get the
//! bits of the wide ones.

mod functions;
mod lanes;
pub mod scalar;

pub(crate) use functions::{exp, gelu_tanh, sigmoid, silu, tanh};
pub(crate) use lanes::{Arith, LANES, Lanes, ScalarLanes, Single, load_part, load_part_f16, store_part};

#[cfg(test)]
mod tests;
