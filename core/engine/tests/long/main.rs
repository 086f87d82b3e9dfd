//! Tests that take minutes, or gigabytes of disk. They are built only with the feature `long-tests`: a run without it does not claim them.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod churn;
mod download;
