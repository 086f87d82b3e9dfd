//! `cargo xtask test`: the tests, with the models they need.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::catalogue::CATALOGUE;
use crate::{Result, android, arm64, models, sh, swift};

/// Tests that take long look for this variable with the value `full`.
const VARIABLE: &str = "PANNIER_TEST";

pub fn run(mut args: lexopt::Parser) -> Result {
    let (mut full, mut arm64, mut instructions) = (false, false, false);
    let mut other = None;
    let mut rest = Vec::new();
    while let Some(arg) = args.next().map_err(|e| e.to_string())? {
        match arg {
            lexopt::Arg::Long("full") => full = true,
            lexopt::Arg::Long("arm64") => arm64 = true,
            lexopt::Arg::Long("instructions") => instructions = true,
            lexopt::Arg::Long(language @ ("kotlin" | "swift" | "swift-tsan")) => {
                other = Some(language.to_owned());
            }
            // What follows `--`, for cargo test.
            lexopt::Arg::Value(value) => rest.push(value),
            other => return Err(other.unexpected().to_string()),
        }
    }
    if arm64 {
        return arm64::run(arm64::Options { full, instructions, rest });
    }
    if instructions {
        return Err("--instructions counts those of arm64: add --arm64".into());
    }
    if full {
        models::fetch_all(CATALOGUE.iter().map(|e| e.name))?;
    } else {
        models::fetch_all(models::FAST.iter().copied())?;
    }

    match other.as_deref() {
        Some("kotlin") => return android::test_jvm(full),
        Some(language) => return swift::test(full, language == "swift-tsan"),
        None => {}
    }

    let mut command = sh::cargo(["test", "--workspace"]);
    if full {
        command.env(VARIABLE, "full").args(["--features", "pannier/long-tests"]);
    }
    command.args(rest).env("PANNIER_MODELS", models::dir()?);
    let counts = run_counted(&mut command)?;
    // Cargo prints one summary per binary, and the last one is often that of an empty set of examples.
    println!("\n{} passed, {} failed", counts.passed, counts.failed);
    if counts.passed == 0 { Err("no test was run".into()) } else { Ok(()) }
}

/// Runs `cargo test`, shows what it prints, and adds its summaries up.
pub fn run_counted(command: &mut Command) -> Result<Counts> {
    let start = Instant::now();
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(|e| format!("cannot run cargo: {e}"))?;
    let mut counts = Counts::default();
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).lines().map_while(std::result::Result::ok) {
            println!("{line}");
            counts.add(&line);
        }
    }
    let status = child.wait().map_err(|e| format!("cargo test: {e}"))?;
    eprintln!("== tests: {:.1} s", start.elapsed().as_secs_f32());
    if !status.success() {
        return Err(format!(
            "cargo test failed ({status}); {} passed, {} failed",
            counts.passed, counts.failed
        ));
    }
    Ok(counts)
}

#[derive(Default, Debug, PartialEq, Eq)]
pub struct Counts {
    pub passed: u64,
    pub failed: u64,
}

impl Counts {
    /// Adds those of another run.
    pub fn join(&mut self, other: Counts) {
        self.passed += other.passed;
        self.failed += other.failed;
    }

    /// Adds `test result: ok. 3 passed; 0 failed; …`.
    fn add(&mut self, line: &str) {
        let Some(summary) = line.strip_prefix("test result: ") else { return };
        let number = |what: &str| {
            summary
                .split([';', '.'])
                .find_map(|piece| piece.trim().strip_suffix(what)?.trim().parse::<u64>().ok())
                .unwrap_or(0)
        };
        self.passed += number("passed");
        self.failed += number("failed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_are_added_up() {
        let mut counts = Counts::default();
        counts.add(
            "test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s",
        );
        counts.add("test result: FAILED. 3 passed; 2 failed; 0 ignored");
        counts.add("test something ... ok");
        assert_eq!(counts, Counts { passed: 15, failed: 2 });
    }
}
