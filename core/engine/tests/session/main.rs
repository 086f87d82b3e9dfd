//! Sessions on scripted models: what is told, when it ends, and what is left afterwards.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod cancel;
mod chat;
mod fake;
mod limits;
mod prefix;
mod pressure;
mod real;
mod sharing;
mod text;
