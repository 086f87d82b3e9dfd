//! Files in nested precision on the command line: packs, precisions that are not there, prompts of nothing, a full disk.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod common;

use std::path::{Path, PathBuf};

use common::{assert_fails, json, pannier, run, smollm2, tiny, write_model};
use serde_json::Value as Json;

/// A model whose rows are whole blocks of 256. It has no vocabulary: it runs on ids.
fn wide(dir: &Path) -> PathBuf {
    let (mut writer, mut tensors) = tiny();
    writer.set("llama.embedding_length", 256u32);
    writer.set("llama.feed_forward_length", 512u32);
    writer.set("llama.rope.dimension_count", 128u32);
    for (_, dims) in &mut tensors {
        for dim in dims.iter_mut() {
            // The vocabulary is 64 too, and comes second.
            *dim = match *dim {
                32 => 256,
                16 => 128,
                64 => 512,
                other => other,
            };
        }
    }
    tensors[0].1[1] = common::TINY_VOCAB;
    let path = dir.join("wide.gguf");
    write_model(&path, writer, &tensors);
    path
}

fn str(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn nested(input: &str, out: &Path) -> Json {
    json(["quantize", "--nested", input, str(out), "-t", "2"])
}

/// What the command says of the logits behind these ids.
fn logits(model: &Path, precision: &str, more: &[&str]) -> Json {
    let args = ["logits", "-m", str(model), "--ids", "1,2,3,4,5,6,7,8", "--precision", precision];
    json(args.iter().chain(more))["positions"].clone()
}

#[test]
fn a_pack_of_two_views_has_the_bits_of_both() {
    let dir = tempfile::tempdir().unwrap();
    let (file, pack) = (dir.path().join("nested.gguf"), dir.path().join("nested.pack.gguf"));
    let report = nested(str(&wide(dir.path())), &file);
    assert!(report["low_bytes"].as_u64().unwrap() < report["bytes"].as_u64().unwrap());
    json(["pack", str(&file), str(&pack)]);
    let (low, full) = (logits(&file, "low", &[]), logits(&file, "full", &[]));
    assert_ne!(low, full);
    for (precision, want) in [("low", &low), ("full", &full)] {
        assert_eq!(&logits(&pack, precision, &[]), want, "{precision}");
        assert_eq!(&logits(&pack, precision, &["--budget-mb", "64"]), want, "{precision}, with a budget");
    }
}

#[test]
fn a_file_that_ends_in_its_fine_planes_is_refused_with_each_precision() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("nested.gguf");
    nested(str(&wide(dir.path())), &file);
    let whole = std::fs::read(&file).unwrap();
    for cut in [1, 5000, 100_000] {
        std::fs::write(&file, &whole[..whole.len() - cut]).unwrap();
        for precision in ["low", "full", "auto"] {
            let output = run(["logits", "-m", str(&file), "--ids", "1,2", "--precision", precision]);
            assert_fails(&output, &["nested.gguf", "truncated", ".fine"]);
        }
        assert_fails(&run(["pack", str(&file), str(&dir.path().join("pack.gguf"))]), &["truncated"]);
        assert_fails(&run(["inspect", str(&file)]), &["truncated"]);
    }
}

#[test]
fn a_precision_that_is_not_there_is_one_clear_line() {
    let dir = tempfile::tempdir().unwrap();
    let plain = wide(dir.path());
    for command in ["logits", "bench"] {
        let rest: &[&str] = if command == "logits" {
            &["--ids", "1,2"]
        } else {
            &["--prompt", "4", "--gen", "4", "--reps", "1"]
        };
        let low = [&[command, "-m", str(&plain), "--precision", "low"], rest].concat();
        assert_fails(&run(&low), &["wide.gguf", "low view", "not in nested precision"]);
        for precision in ["full", "auto"] {
            let fine = [&[command, "-m", str(&plain), "--precision", precision], rest].concat();
            json(&fine);
        }
        let unknown = [&[command, "-m", str(&plain), "--precision", "fine"], rest].concat();
        let output = run(&unknown);
        assert!(!output.status.success());
        assert!(common::text(&output.stderr).contains("low, full and auto"));
    }
}

#[test]
fn a_disk_that_fills_up_leaves_no_nested_file_and_a_rerun_completes() {
    let dir = tempfile::tempdir().unwrap();
    let (plain, out, want) = (wide(dir.path()), dir.path().join("out.gguf"), dir.path().join("want.gguf"));
    nested(str(&plain), &want);
    let bytes = std::fs::metadata(&want).unwrap().len();
    // In blocks of 1024: in the header, in the low planes, in the fine ones at the very end.
    for room in [1, bytes / 2048, bytes / 1024 - 1] {
        // Files of at most so many bytes, and no signal when one would get larger: what a full disk is to a program.
        let script = format!("trap '' XFSZ; ulimit -f {room}; exec \"$@\"");
        let output = std::process::Command::new("bash")
            .args(["-c", &script, "bash", env!("CARGO_BIN_EXE_pannier")])
            .args(["quantize", "--nested", str(&plain), str(&out), "-t", "2"])
            .output()
            .unwrap();
        assert_fails(&output, &["out.gguf"]);
        assert!(!out.exists(), "a half-written file has the final name");
    }
    nested(str(&plain), &out);
    assert!(std::fs::read(&out).unwrap() == std::fs::read(&want).unwrap(), "the bytes differ");
}

#[test]
fn prompts_of_nothing_and_answers_of_a_real_model() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("smol.gguf");
    nested(&smollm2(), &file);
    let mut answers = Vec::new();
    for precision in ["low", "full", "auto"] {
        let with = |command: &str, prompt: &str| {
            let args = [command, "-m", str(&file), "-p", prompt, "-n", "24", "--precision", precision];
            pannier().arg("--json").args(args).args(["--temp", "0"]).output().unwrap()
        };
        assert_fails(&with("run", ""), &["prompt is empty"]);
        let output = with("chat", "Name three colours.");
        assert!(output.status.success(), "{}", common::text(&output.stderr));
        let said: Json = serde_json::from_slice(&output.stdout).unwrap();
        assert!(!said["text"].as_str().unwrap().is_empty());
        if precision != "auto" {
            assert_eq!(said["stats"]["precision"], precision);
        }
        answers.push(said["text"].clone());
    }
    assert_ne!(answers[0], answers[1], "both views say the same");
}
