//! Swift on this machine: the user's own, or one in a folder of its own (xtask/cross/setup-swift, 2.6 GB, once).

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::sh::{root, run, target_dir};
use crate::{Result, bindgen, models};

/// A Swift command in a folder of the repository. It finds the library that cargo built, and the models.
pub fn command(folder: &Path, args: &[&str]) -> Result<Command> {
    let (target, models) = (target_dir(), models::dir()?);
    // Not everything that Swift does needs models.
    std::fs::create_dir_all(&models).map_err(|e| format!("cannot make {}: {e}", models.display()))?;
    let (target, models) = (whole(&target)?, whole(&models)?);
    let library = target.join("debug");
    let mut command = if on_path("swift") {
        let mut command = Command::new(args.first().copied().unwrap_or("swift"));
        command.current_dir(folder).args(args.iter().skip(1));
        command
    } else {
        set_up()?;
        // The whole repository is seen inside: packages refer to each other.
        let mut command = Command::new(root().join("xtask/cross/in-swift"));
        let inside = "cd \"$0\"; exec \"$@\"";
        command.arg(whole(root())?).args(["sh", "-ec", inside]).arg(whole(folder)?).args(args);
        // So is all that cargo and xtask made, wherever that is.
        command.env("PANNIER_SWIFT_BIND", format!("{}:{}", target.display(), models.display()));
        command
    };
    command.env("LIBRARY_PATH", &library).env("LD_LIBRARY_PATH", &library).env("PANNIER_MODELS", &models);
    Ok(command)
}

fn on_path(name: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(name).is_file()))
}

fn whole(path: &Path) -> Result<PathBuf> {
    std::fs::canonicalize(path).map_err(|e| format!("{}: {e}", path.display()))
}

fn set_up() -> Result {
    let ready = std::env::var_os("PANNIER_SWIFT")
        .map(PathBuf::from)
        .or_else(|| dirs::cache_dir().map(|d| d.join("pannier/swift")))
        // The one in usr/bin is a link that means something inside only.
        .is_some_and(|d| d.join("usr/libexec/swift/bin/swift").exists());
    if ready {
        return Ok(());
    }
    run("setting up Swift", &mut Command::new(root().join("xtask/cross/setup-swift")))
}

/// Builds the library and its Swift side, and runs the Swift tests and samples.
pub fn test(full: bool, sanitize: bool) -> Result {
    let library = bindgen::build_library()?;
    bindgen::swift(&library)?;
    let ios = root().join("ios");
    let mut tests = vec!["swift", "test"];
    if sanitize {
        // A folder of its own, so that the usual build stays.
        tests.extend(["--sanitize=thread", "--scratch-path", ".build/tsan"]);
    }
    let mut command = command(&ios, &tests)?;
    // One arena of the allocator: with one per thread, what it keeps for later hides what the tests of memory look for.
    command.env("MALLOC_ARENA_MAX", "1").env("PANNIER_NESTED", whole(&models::nested()?)?);
    if full {
        command.env("PANNIER_TEST", "full");
    }
    run("testing the Swift library", &mut command)?;
    if sanitize {
        return Ok(());
    }
    no_warnings(&ios)?;
    let samples = root().join("sample-apps");
    let strict = ["swift", "test", "-Xswiftc", "-warnings-as-errors"];
    run("testing the iOS sample", &mut self::command(&samples.join("ios-chat"), &strict)?)?;
    chat(&samples.join("swift-chat"))?;
    for file in ["ChatApp.swift", "ChatView.swift"] {
        let mut parse =
            self::command(&samples.join("ios-chat/App"), &["swiftc", "-swift-version", "6", "-parse", file])?;
        run(&format!("parsing {file}"), &mut parse)?;
    }
    Ok(())
}

/// The terminal sample, asked one question. At temperature 0: another seed may give another capital.
fn chat(folder: &Path) -> Result {
    run("building the terminal sample", &mut command(folder, &["swift", "build"])?)?;
    let models = whole(&models::dir()?)?;
    let models = models.to_string_lossy();
    let mut chat = command(folder, &[".build/debug/swift-chat", &models, "smollm2-135m-instruct", "0"])?;
    chat.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut child = chat.spawn().map_err(|e| format!("swift-chat: {e}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        use std::io::Write;
        stdin.write_all(b"Name the capital of France.\n\n").map_err(|e| format!("swift-chat: {e}"))?;
    }
    let output = child.wait_with_output().map_err(|e| format!("swift-chat: {e}"))?;
    let answer = String::from_utf8_lossy(&output.stdout);
    eprintln!("== swift-chat: {}", answer.trim());
    if output.status.success() && answer.contains("Paris") {
        Ok(())
    } else {
        Err(format!("swift-chat does not know the capital of France ({})", output.status))
    }
}

/// Compiles what is only for Apple's systems against stubs, and all of the hand-written part with warnings as errors.
fn no_warnings(ios: &Path) -> Result {
    let mut build = command(
        ios,
        &[
            "swift",
            "build",
            "--target",
            "Pannier",
            "--scratch-path",
            ".build/stubs",
            "-Xswiftc",
            "-warnings-as-errors",
        ],
    )?;
    build.env("PANNIER_STUBS", "1");
    run("compiling the part for UIKit against stubs", &mut build)
}
