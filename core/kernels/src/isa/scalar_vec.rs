//! Vector operations in plain Rust.

use crate::math::ScalarLanes;
use crate::vecops::fill_table;

fill_table!(ScalarLanes);
