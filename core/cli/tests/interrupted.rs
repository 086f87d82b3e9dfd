//! Work that ends before its time: a killed process, a full disk. Nothing half-written has the final name, and a rerun completes.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod common;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{assert_fails, json, pannier, smollm2};

fn quantised(model: &str, out: &Path) -> u64 {
    json(["quantize", model, out.to_str().unwrap(), "Q8_0", "-t", "1"])["bytes"].as_u64().unwrap()
}

#[test]
fn a_killed_process_leaves_a_part_that_a_rerun_completes() {
    let dir = tempfile::tempdir().unwrap();
    let (model, whole, out) = (smollm2(), dir.path().join("whole.gguf"), dir.path().join("out.gguf"));
    let bytes = quantised(&model, &whole);
    let mut child = pannier()
        .args(["quantize", &model, out.to_str().unwrap(), "Q8_0", "-t", "1"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // Killed (not asked to stop) as soon as it has finished some pieces of about 500.
    let state = dir.path().join("out.gguf.part.state");
    let pieces = || std::fs::read_to_string(&state).map_or(0, |text| text.lines().count());
    let start = Instant::now();
    while pieces() < 20 {
        assert!(child.try_wait().unwrap().is_none(), "it was done before it could be killed");
        assert!(start.elapsed() < Duration::from_secs(120), "nothing was written");
        std::thread::yield_now();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let done = pieces();
    assert!(!out.exists(), "a half-written file has the final name");
    assert!(dir.path().join("out.gguf.part").exists() && done >= 20);
    assert_eq!(quantised(&model, &out), bytes);
    assert!(std::fs::read(&out).unwrap() == std::fs::read(&whole).unwrap(), "the bytes differ");
    let left = std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(left, 2, "something is left over");
}

#[test]
fn a_file_that_does_not_fit_is_one_clear_line() {
    let dir = tempfile::tempdir().unwrap();
    let (model, out) = (smollm2(), dir.path().join("out.gguf"));
    // Files of at most 20 MB, and no signal when one would get larger: what a full disk is to a program.
    let script = "trap '' XFSZ; ulimit -f 20000; exec \"$@\"";
    let output = Command::new("bash")
        .args(["-c", script, "bash", env!("CARGO_BIN_EXE_pannier")])
        .args(["quantize", &model, out.to_str().unwrap(), "Q8_0"])
        .output()
        .unwrap();
    assert_fails(&output, &["out.gguf"]);
    assert!(!out.exists());
    assert!(quantised(&model, &out) > 100_000_000);
}

#[test]
fn statistics_that_cannot_be_written_leave_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("words.txt");
    std::fs::write(&text, "The quick brown fox jumps over the lazy dog. ".repeat(10)).unwrap();
    let out = dir.path().join("no-such-folder/imatrix.gguf");
    let output = pannier()
        .args(["calibrate", "-m", &smollm2(), "--file", text.to_str().unwrap(), "-o", out.to_str().unwrap()])
        .output()
        .unwrap();
    assert_fails(&output, &["imatrix.gguf"]);
    let output = Command::new("bash")
        .args(["-c", "trap '' XFSZ; ulimit -f 100; exec \"$@\"", "bash", env!("CARGO_BIN_EXE_pannier")])
        .args(["calibrate", "-m", &smollm2(), "--file", text.to_str().unwrap(), "--ctx", "64", "-o"])
        .arg(dir.path().join("imatrix.gguf"))
        .output()
        .unwrap();
    assert_fails(&output, &["imatrix.gguf"]);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "something is left over");
}
