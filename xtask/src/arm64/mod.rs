//! `cargo xtask test --arm64`: the kernels and the engine on the three levels of Arm processors, under an emulator.
//!
//! ```text
//! cortex-a53   Armv8.0   NEON
//! cortex-a76   Armv8.2   NEON, dot products
//! max          Armv9     NEON, dot products, 8-bit matrix products
//! ```
//!
//! An emulator shows that results are right, and how many instructions they took; it says nothing about time.

mod count;
mod cross;
mod tally;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use crate::test::{Counts, run_counted};
use crate::{Result, models, sh};

pub use cross::{Cross, setup};

const TARGET: &str = "aarch64-unknown-linux-gnu";

/// The emulator's name of a processor, and the kernels that must be chosen on it.
const LEVELS: [(&str, &str); 3] =
    [("cortex-a53", "Neon"), ("cortex-a76", "NeonDotprod"), ("max", "NeonI8mm")];

/// A kernel test compares what it detects with this variable.
const EXPECTED: &str = "PANNIER_EXPECT_ISA";

/// Tests that are left out under the emulator unless asked for: a real model, hundreds of tokens, a dozen times.
const SLOW: &str = "threads_and_chunks_change_no_bit_of_a_real_model";

/// What to do.
#[derive(Default)]
pub struct Options {
    /// Also the slow tests, and all of the engine's.
    pub full: bool,
    /// Count the instructions of a decoded token instead of testing.
    pub instructions: bool,
    /// For cargo test, or names of models to count with.
    pub rest: Vec<OsString>,
}

pub fn run(options: Options) -> Result {
    let cross = Cross::ensure()?;
    if options.instructions {
        return count::run(&cross, &options.rest);
    }
    let suites: &[&[&str]] = if options.full {
        &[&["--package", "pannier-kernels"], &["--package", "pannier"]]
    } else {
        &[
            &["--package", "pannier-kernels"],
            &["--package", "pannier", "--test", "golden_tiny", "--test", "same_bits"],
        ]
    };
    if options.full {
        models::fetch_all(models::FAST.iter().copied())?;
    }
    for suite in suites {
        let mut build = cargo(&cross, ["test", "--release", "--no-run", "--quiet"]);
        sh::run(&format!("building the tests for arm64: {}", suite.join(" ")), build.args(*suite))?;
    }
    let mut total = Counts::default();
    for (cpu, isa) in LEVELS {
        for suite in suites {
            eprintln!("== {cpu}: {}", suite.join(" "));
            let mut command = cargo(&cross, ["test", "--release", "--quiet"]);
            command.args(*suite).env("QCPU", cpu).env(EXPECTED, isa).env("PANNIER_MODELS", models::dir()?);
            command.arg("--").args(&options.rest);
            if !options.full {
                command.args(["--skip", SLOW]);
            }
            total.join(run_counted(&mut command)?);
        }
    }
    println!("\narm64: {} passed, {} failed, on {} processors", total.passed, total.failed, LEVELS.len());
    if !options.full {
        println!("not run: {SLOW} and the engine's other tests (--full runs them)");
    }
    if total.failed > 0 || total.passed == 0 { Err("tests for arm64 failed".into()) } else { Ok(()) }
}

/// Cargo for the target, with the cross compiler and the emulator. All is built for release, because emulated checks take minutes, but not
/// optimised at link time, which takes as long as all else: what counts is one crate.
fn cargo<const N: usize>(cross: &Cross, args: [&str; N]) -> Command {
    let mut command = sh::cargo(args);
    command.args(["--target", TARGET]);
    command
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("RUSTC", cross.bin("rustc"))
        .env("RUSTDOC", cross.bin("rustdoc"))
        .env("CARGO_TARGET_DIR", target_dir())
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", cross.bin("aarch64-linux-gnu-gcc"))
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", cross.bin("run-aarch64"))
        .env("CC_aarch64_unknown_linux_gnu", cross.bin("aarch64-linux-gnu-gcc"));
    command
}

/// A folder of its own: the compiler is another one.
fn target_dir() -> PathBuf {
    sh::target_dir().join("arm64")
}
