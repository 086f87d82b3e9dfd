//! `cargo xtask bindgen`: the Kotlin and Swift sides of the bindings, generated from the library itself.
//!
//! The result is not committed: it is ten thousand lines that follow from `bindings/`, and it must fit the library that it is used
//! with to the letter (checksums are compared when an app starts).

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Result;
use crate::sh::{cargo, root, run, target_dir};

/// Where the Kotlin build looks for it.
pub fn kotlin_dir() -> PathBuf {
    root().join("android").join("src").join("main").join("uniffi")
}

pub fn run_command(mut args: lexopt::Parser) -> Result {
    if let Some(other) = args.next().map_err(|e| e.to_string())? {
        return Err(other.unexpected().to_string());
    }
    let library = build_library()?;
    kotlin(&library)?;
    swift(&library)
}

/// Builds the library for this machine in the dev profile; answers where it is.
pub fn build_library() -> Result<PathBuf> {
    run(
        "building the bindings",
        &mut cargo(["build", "--quiet", "-p", "pannier-ffi", "-p", "pannier-bindgen"]),
    )?;
    Ok(library_path())
}

/// Where cargo puts the library for this machine.
pub fn library_path() -> PathBuf {
    let name = format!("{}pannier_ffi{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    target_dir().join("debug").join(name)
}

/// Writes the Kotlin side of this library.
pub fn kotlin(library: &Path) -> Result {
    let out = kotlin_dir();
    if out.exists() {
        std::fs::remove_dir_all(&out).map_err(|e| format!("cannot empty {}: {e}", out.display()))?;
    }
    let tool = target_dir().join("debug").join(format!("uniffi-bindgen{}", std::env::consts::EXE_SUFFIX));
    let mut command = Command::new(tool);
    command
        .current_dir(root())
        .args(["generate", "--no-format", "--language", "kotlin", "--config", "uniffi.toml", "--out-dir"])
        .arg(&out)
        .arg(library);
    run("generating Kotlin", &mut command)
}

/// Writes the Swift side of this library: sources, the C header, and the module map.
pub fn swift(library: &Path) -> Result {
    let tool =
        target_dir().join("debug").join(format!("uniffi-bindgen-swift{}", std::env::consts::EXE_SUFFIX));
    let sources = root().join("ios/Sources");
    let (bindings, ffi) = (sources.join("PannierBindings"), sources.join("PannierFFI"));
    for folder in [&bindings, &ffi] {
        if folder.exists() {
            std::fs::remove_dir_all(folder).map_err(|e| format!("cannot empty {}: {e}", folder.display()))?;
        }
        std::fs::create_dir_all(folder).map_err(|e| format!("cannot make {}: {e}", folder.display()))?;
    }
    let steps: [(&[&str], &Path); 2] = [
        (&["--swift-sources"], &bindings),
        (
            &[
                "--headers",
                "--modulemap",
                "--module-name",
                "PannierFFI",
                "--modulemap-filename",
                "module.modulemap",
            ],
            &ffi,
        ),
    ];
    for (what, to) in steps {
        let mut command = Command::new(&tool);
        command.current_dir(root()).args(["--config", "uniffi.toml"]).args(what).arg(library).arg(to);
        run("generating Swift", &mut command)?;
    }
    Ok(())
}
