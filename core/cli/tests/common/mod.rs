//! Running the built command, and small models for it.

#![allow(dead_code, reason = "each test binary uses a part")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use pannier_gguf::{GgmlType, Writer};
use serde_json::Value as Json;

/// The command that cargo built for this test.
pub fn pannier() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pannier"));
    command.env("PANNIER_MODELS", models());
    command
}

/// The folder of the fetched models.
pub fn models() -> PathBuf {
    pannier::store::ModelStore::user().unwrap().dir().to_owned()
}

/// The real model that these tests use.
pub fn smollm2() -> String {
    let path = models().join("SmolLM2-135M-Instruct.Q4_1.gguf");
    assert!(path.exists(), "{} is missing: run `cargo xtask models`", path.display());
    path.to_str().unwrap().to_owned()
}

pub fn run<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Output {
    pannier().args(args).output().unwrap()
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Runs it, which must work, and gives stdout.
pub fn stdout<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> String {
    let output = run(args);
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// Runs it with `--json`: exactly one object in one line on stdout.
pub fn json<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Json {
    let output = pannier().arg("--json").args(args).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let out = text(&output.stdout);
    assert_eq!(out.lines().count(), 1, "{out}");
    let value: Json = serde_json::from_str(&out).unwrap();
    assert!(value.is_object());
    value
}

pub fn keys(value: &Json) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

/// It failed as it should: non-zero, one line on stderr that has these words, nothing on stdout.
pub fn assert_fails(output: &Output, words: &[&str]) {
    let stderr = text(&output.stderr);
    assert!(!output.status.success(), "it worked");
    assert!(output.status.code().is_some(), "killed by a signal: {stderr}");
    assert_eq!(stderr.lines().count(), 1, "not one line: {stderr}");
    assert!(stderr.starts_with("pannier: "), "{stderr}");
    assert!(!stderr.contains("panicked") && !stderr.contains("internal error"), "{stderr}");
    assert!(!stderr.contains("Err(") && !stderr.contains("Some("), "debug output: {stderr}");
    for word in words {
        assert!(stderr.to_lowercase().contains(&word.to_lowercase()), "`{word}` is not in: {stderr}");
    }
    assert_eq!(text(&output.stdout), "", "output of a failed command");
}

pub const TINY_VOCAB: u64 = 64;

/// Metadata and tensors of a llama with one layer, 32 wide. It has no vocabulary: it runs on ids.
pub fn tiny() -> (Writer, Vec<(&'static str, Vec<u64>)>) {
    let mut writer = Writer::new();
    writer.set("general.architecture", "llama");
    writer.set("llama.block_count", 1u32);
    writer.set("llama.context_length", 64u32);
    writer.set("llama.embedding_length", 32u32);
    writer.set("llama.feed_forward_length", 64u32);
    writer.set("llama.attention.head_count", 2u32);
    writer.set("llama.attention.head_count_kv", 1u32);
    writer.set("llama.attention.layer_norm_rms_epsilon", 1e-5f32);
    writer.set("llama.rope.dimension_count", 16u32);
    writer.set("llama.vocab_size", TINY_VOCAB as u32);
    let tensors = vec![
        ("token_embd.weight", vec![32, TINY_VOCAB]),
        ("blk.0.attn_norm.weight", vec![32]),
        ("blk.0.attn_q.weight", vec![32, 32]),
        ("blk.0.attn_k.weight", vec![32, 16]),
        ("blk.0.attn_v.weight", vec![32, 16]),
        ("blk.0.attn_output.weight", vec![32, 32]),
        ("blk.0.ffn_norm.weight", vec![32]),
        ("blk.0.ffn_gate.weight", vec![32, 64]),
        ("blk.0.ffn_up.weight", vec![32, 64]),
        ("blk.0.ffn_down.weight", vec![64, 32]),
        ("output_norm.weight", vec![32]),
    ];
    (writer, tensors)
}

/// Writes a model of F32 tensors with arbitrary but fixed values.
pub fn write_model(path: &Path, mut writer: Writer, tensors: &[(&str, Vec<u64>)]) {
    for (name, dims) in tensors {
        writer.tensor(*name, dims, GgmlType::F32).unwrap();
    }
    let mut state = 1u32;
    writer
        .write_file::<pannier_gguf::Error>(path, |stream| {
            while let Some((name, bytes)) = stream.due().map(|(n, b)| (n.to_owned(), b)) {
                let norm = name.contains("norm");
                let values: Vec<u8> = (0..bytes / 4)
                    .flat_map(|_| {
                        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        let noise = (state >> 8) as f32 / (1 << 24) as f32 - 0.5;
                        (if norm { 1.0 } else { noise }).to_le_bytes()
                    })
                    .collect();
                stream.write(&name, &values)?;
            }
            Ok(())
        })
        .unwrap();
}

/// The tiny model in a folder.
pub fn tiny_model(dir: &Path) -> PathBuf {
    let (writer, tensors) = tiny();
    let path = dir.join("tiny.gguf");
    write_model(&path, writer, &tensors);
    path
}
