//! Vector operations for this instruction set.

use crate::vecops::VecTable;

pub(crate) static TABLE: VecTable = VecTable {};
