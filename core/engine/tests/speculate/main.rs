//! Guessed tokens change the speed of an answer and nothing else.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

#[path = "../session/fake.rs"]
#[allow(dead_code, reason = "shared with the tests of sessions")]
mod fake;
#[path = "../golden_support/mod.rs"]
mod golden_support;

mod chance;
mod governor;
mod models;
mod rules;
mod same_text;
