//! Whole turns: scripted devices, scripted clouds, and a scripted server on loopback.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod decisions;
mod faults;
mod handoff;
mod privacy;
mod script;
mod server;
