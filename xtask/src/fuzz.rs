//! `cargo xtask fuzz`: every fuzz target for a while, from the committed seeds.
//!
//! Needs a nightly toolchain and `cargo fuzz`. Without nightly it says so and does nothing: the same targets' seeds are
//! also run by ordinary tests.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{Result, sh};

pub fn run(mut args: lexopt::Parser) -> Result {
    let mut seconds = 60u32;
    while let Some(arg) = args.next().map_err(|e| e.to_string())? {
        match arg {
            lexopt::Arg::Long("seconds") => {
                let value = args.value().map_err(|e| e.to_string())?;
                seconds = value.to_string_lossy().parse().map_err(|_| "--seconds takes a number")?;
            }
            other => return Err(other.unexpected().to_string()),
        }
    }
    if !works(nightly("rustc").arg("--version")) {
        eprintln!("== fuzzing: skipped, there is no nightly toolchain");
        return Ok(());
    }
    if !works(nightly("cargo").args(["fuzz", "--version"])) {
        sh::run(
            "installing cargo fuzz",
            sh::cargo(["install", "--quiet", "--locked", "cargo-fuzz"]).env_remove("RUSTFLAGS"),
        )?;
    }
    for target in targets()? {
        let what = format!("fuzzing {} for {seconds} s", target.name);
        let corpus = target.dir.join("corpus").join(&target.name);
        let seeds = target.dir.join("seeds").join(&target.name);
        std::fs::create_dir_all(&corpus).map_err(|e| format!("{}: {e}", corpus.display()))?;
        let mut command = nightly("cargo");
        command.current_dir(sh::root()).args(["fuzz", "run", "--fuzz-dir"]).arg(&target.dir);
        command.arg(&target.name).arg(&corpus);
        if seeds.is_dir() {
            command.arg(&seeds);
        }
        command.arg("--").arg(format!("-max_total_time={seconds}"));
        // One line per new input is noise; what is found is printed anyway.
        command.args(["-max_len=65536", "-verbosity=0", "-print_final_stats=1"]);
        sh::run(&what, &mut command)?;
    }
    Ok(())
}

struct Target {
    dir: PathBuf,
    name: String,
}

/// `core/*/fuzz/fuzz_targets/*.rs`.
fn targets() -> Result<Vec<Target>> {
    let list = |dir: &Path| -> Vec<PathBuf> {
        std::fs::read_dir(dir).map(|all| all.flatten().map(|e| e.path()).collect()).unwrap_or_default()
    };
    let mut targets = Vec::new();
    for room in list(&sh::root().join("core")) {
        let dir = room.join("fuzz");
        for file in list(&dir.join("fuzz_targets")) {
            if let (Some(stem), Some("rs")) = (file.file_stem(), file.extension().and_then(|e| e.to_str())) {
                targets.push(Target { dir: dir.clone(), name: stem.to_string_lossy().into_owned() });
            }
        }
    }
    targets.sort_by(|a, b| (&a.dir, &a.name).cmp(&(&b.dir, &b.name)));
    if targets.is_empty() { Err("no fuzz target found".into()) } else { Ok(targets) }
}

/// A program of the nightly toolchain. We run under another one, which says so in the environment.
fn nightly(program: &str) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", program]);
    for variable in ["RUSTUP_TOOLCHAIN", "CARGO", "RUSTC", "RUSTDOC", "CARGO_TARGET_DIR"] {
        command.env_remove(variable);
    }
    command
}

fn works(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|s| s.success())
}
