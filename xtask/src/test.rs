//! `cargo xtask test`: the tests, with the models they need.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Instant;

use crate::catalogue::CATALOGUE;
use crate::{Result, clients, models, sh};

/// Tests that take long look for this variable with the value `full`.
const VARIABLE: &str = "PANNIER_TEST";

pub fn run(mut args: lexopt::Parser) -> Result {
    let mut full = false;
    let mut rest = Vec::new();
    while let Some(arg) = args.next().map_err(|e| e.to_string())? {
        match arg {
            lexopt::Arg::Long("full") => full = true,
            // What follows `--`, for cargo test.
            lexopt::Arg::Value(value) => rest.push(value),
            other => return Err(other.unexpected().to_string()),
        }
    }
    if full {
        models::fetch_all(CATALOGUE.iter().map(|e| e.name))?;
    } else {
        models::fetch_all(models::FAST.iter().copied())?;
    }

    let start = Instant::now();
    let mut command = sh::cargo(["test", "--workspace"]);
    command.args(rest).env("PANNIER_MODELS", models::dir()?).stdout(Stdio::piped());
    if full {
        command.env(VARIABLE, "full");
    }
    let mut child = command.spawn().map_err(|e| format!("cannot run cargo: {e}"))?;
    let mut counts = Counts::default();
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).lines().map_while(std::result::Result::ok) {
            println!("{line}");
            counts.add(&line);
        }
    }
    let status = child.wait().map_err(|e| format!("cargo test: {e}"))?;
    eprintln!("== tests: {:.1} s", start.elapsed().as_secs_f32());
    // Cargo prints one summary per binary, and the last one is often that of an empty set of examples.
    println!("\n{} passed, {} failed", counts.passed, counts.failed);
    if !status.success() {
        return Err(format!("cargo test failed ({status})"));
    }
    if counts.passed == 0 {
        return Err("no test was run".into());
    }
    if full { clients::run() } else { Ok(()) }
}

#[derive(Default, Debug, PartialEq, Eq)]
struct Counts {
    passed: u64,
    failed: u64,
}

impl Counts {
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
