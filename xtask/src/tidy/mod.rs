//! `cargo xtask tidy`: the repository's own rules, those that no compiler knows.
//!
//! * layering: which crate may use which, and which room of the engine which (ARCHITECTURE.md)
//! * `unsafe` only where it is allowed, each with its SAFETY comment
//! * nothing of one machine in a file: paths, registries
//! * files of bearable length that say what they are for; no leftovers

mod layers;
mod readme;
mod text;

use std::path::Path;
use std::process::Command;

use crate::{Result, sh};

pub fn run(mut args: lexopt::Parser) -> Result {
    if let Some(arg) = args.next().map_err(|e| e.to_string())? {
        return Err(arg.unexpected().to_string());
    }
    check()
}

/// One offence: file, line (0 for the whole file), what.
type Finding = (String, usize, String);

pub fn check() -> Result {
    let files = files()?;
    let mut findings: Vec<Finding> = Vec::new();
    for name in &files {
        let path = sh::root().join(name);
        // Deleted but not yet committed.
        let Ok(bytes) = std::fs::read(&path) else { continue };
        text::size(name, bytes.len(), &mut findings);
        let Ok(content) = String::from_utf8(bytes) else { continue };
        text::check(name, &content, &mut findings);
        layers::check(name, &content, &mut findings);
    }
    readme::check_files(sh::root(), &mut findings);
    findings.sort();
    for (file, line, what) in &findings {
        match line {
            0 => println!("{file}: {what}"),
            _ => println!("{file}:{line}: {what}"),
        }
    }
    if findings.is_empty() {
        eprintln!("== tidy: {} files, nothing to complain about", files.len());
        Ok(())
    } else {
        Err(format!("tidy found {} offences", findings.len()))
    }
}

/// All files that are or could be committed.
fn files() -> Result<Vec<String>> {
    let output = Command::new("git")
        .current_dir(sh::root())
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .output()
        .map_err(|e| format!("cannot run git: {e}"))?;
    if !output.status.success() {
        return Err("git ls-files failed: this is no git checkout".into());
    }
    let names = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut names: Vec<String> = names.split('\0').filter(|n| !n.is_empty()).map(str::to_owned).collect();
    names.sort();
    names.dedup();
    Ok(names)
}

/// Whether the file is a test, where more is allowed.
fn is_test(name: &str) -> bool {
    let path = Path::new(name);
    let in_tests =
        path.components().any(|c| matches!(c.as_os_str().to_str(), Some("tests" | "benches" | "fuzz")));
    in_tests || path.file_stem().is_some_and(|s| s == "tests")
}
