//! Experts and recurrent layers on small random models: the same bits however they are run.

#![allow(clippy::type_complexity, reason = "tables of cases")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod experts;
mod gemma4;
mod recurrent;
mod tiny;
