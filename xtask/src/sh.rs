//! Running other programs, and where things are.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::Result;

/// The top of the repository.
pub fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Cargo, the one that runs us, at the top of the repository.
pub fn cargo<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root()).args(args);
    command
}

/// Runs a command with our terminal; says what and how long.
pub fn run(what: &str, command: &mut Command) -> Result {
    let start = Instant::now();
    eprintln!("== {what}");
    let status = command.status().map_err(|e| format!("{what}: cannot start: {e}"))?;
    eprintln!("== {what}: {:.1} s", start.elapsed().as_secs_f32());
    if status.success() { Ok(()) } else { Err(format!("{what} failed ({status})")) }
}

/// Where cargo puts what it builds.
pub fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// The `pannier` command, built with this profile (`dev` or `release`).
pub fn pannier(profile: &str) -> Result<PathBuf> {
    let what = format!("building pannier ({profile})");
    run(&what, &mut cargo(["build", "--quiet", "--package", "pannier-cli", "--profile", profile]))?;
    let folder = if profile == "dev" { "debug" } else { profile };
    Ok(target_dir().join(folder).join(format!("pannier{}", std::env::consts::EXE_SUFFIX)))
}
