//! Whatever is given to the command: one clear line, non-zero exit, no panic.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests, too")]

mod common;

use std::path::{Path, PathBuf};

use common::{assert_fails, pannier, run, smollm2, tiny, tiny_model, write_model};
use pannier_gguf::GgmlType;

/// Every command that reads a model, with arguments that are fine otherwise.
fn commands(model: &str, text: &str) -> Vec<Vec<String>> {
    let lines = [
        format!("inspect {model}"),
        format!("tokenize -m {model} hello"),
        format!("run -m {model} -p hello -n 4"),
        format!("logits -m {model} -p hello"),
        format!("logits -m {model} --ids 1,2,3"),
        format!("chat -m {model} -p hello -n 4"),
        format!("bench -m {model} --prompt 4 --gen 4 --reps 1"),
        format!("perplexity -m {model} --file {text} --ctx 32"),
        format!("evaluate -m {model} --questions 1"),
        format!("calibrate -m {model} --file {text} --ctx 32 -o {text}.imatrix"),
    ];
    lines.iter().map(|l| l.split(' ').map(str::to_owned).collect()).collect()
}

/// Those that run the model.
fn running(model: &str, text: &str) -> Vec<Vec<String>> {
    commands(model, text).split_off(2)
}

struct Folder {
    dir: tempfile::TempDir,
}

impl Folder {
    fn new() -> Self {
        let folder = Folder { dir: tempfile::tempdir().unwrap() };
        std::fs::write(folder.path("prose.txt"), "It was a dark and stormy night. ".repeat(50)).unwrap();
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn str(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn all(&self, model: &str, words: &[&str]) {
        for args in commands(&self.str(model), &self.str("prose.txt")) {
            assert_fails(&run(&args), words);
            // `--json` changes nothing about failures.
            assert_fails(&pannier().arg("--json").args(&args).output().unwrap(), words);
        }
    }

    fn all_running(&self, model: &str, words: &[&str]) {
        for args in running(&self.str(model), &self.str("prose.txt")) {
            // Without a vocabulary, text fails earlier; what reads ids must name the real reason.
            let by_ids = args.iter().any(|a| a == "--ids" || a == "bench");
            assert_fails(&run(&args), if by_ids { words } else { &[] });
        }
    }
}

#[test]
fn no_file() {
    let folder = Folder::new();
    folder.all("no.gguf", &["no.gguf", "No such file"]);
    let output = run(["run", "-m", "no-such-model", "-p", "x"]);
    assert_fails(&output, &["no-such-model", "known models", "pannier pull"]);
    let output = pannier()
        .env("PANNIER_MODELS", folder.path("empty"))
        .args(["run", "-m", "smollm2", "-p", "x"])
        .output()
        .unwrap();
    assert_fails(&output, &["not on this machine", "pannier pull"]);
}

#[test]
fn a_directory() {
    let folder = Folder::new();
    std::fs::create_dir(folder.path("dir.gguf")).unwrap();
    folder.all("dir.gguf", &["dir.gguf", "directory"]);
}

#[test]
fn a_text_file() {
    Folder::new().all("prose.txt", &["prose.txt", "not a GGUF file"]);
}

#[test]
fn an_empty_file() {
    let folder = Folder::new();
    std::fs::write(folder.path("empty.gguf"), b"").unwrap();
    folder.all("empty.gguf", &["empty"]);
}

#[test]
fn a_truncated_file() {
    let folder = Folder::new();
    let whole = std::fs::read(tiny_model(folder.dir.path())).unwrap();
    for keep in [3, 4, 11, 24, 100, 400, whole.len() / 2, whole.len() - 1] {
        std::fs::write(folder.path("cut.gguf"), &whole[..keep]).unwrap();
        for args in commands(&folder.str("cut.gguf"), &folder.str("prose.txt")) {
            assert_fails(&run(&args), &["cut.gguf"]);
        }
    }
    // Half of the tensors: the message names the first one that is cut.
    folder.all("cut.gguf", &["truncated", "tensor", "bytes"]);

    let real = std::fs::File::open(smollm2()).unwrap();
    let mut cut = std::fs::File::create(folder.path("real.gguf")).unwrap();
    std::io::copy(&mut std::io::Read::take(real, 20_000_000), &mut cut).unwrap();
    folder.all("real.gguf", &["truncated", "token_embd.weight"]);
}

#[test]
fn an_unknown_architecture() {
    let folder = Folder::new();
    let (mut writer, tensors) = tiny();
    writer.set("general.architecture", "perceptron-9000");
    write_model(&folder.path("odd.gguf"), writer, &tensors);
    folder.all_running("odd.gguf", &["perceptron-9000", "not supported", "llama"]);

    let (mut writer, tensors) = tiny();
    writer.metadata_mut().remove("general.architecture");
    write_model(&folder.path("unnamed.gguf"), writer, &tensors);
    folder.all_running("unnamed.gguf", &["general.architecture"]);
}

#[test]
fn an_unsupported_tensor_type() {
    let folder = Folder::new();
    let (mut writer, mut tensors) = tiny();
    // A row of one block, which this type has 256 elements in.
    writer.set("llama.feed_forward_length", 256u32);
    for (name, dims) in &mut tensors {
        match *name {
            "blk.0.ffn_gate.weight" | "blk.0.ffn_up.weight" => dims[1] = 256,
            "blk.0.ffn_down.weight" => dims[0] = 256,
            _ => {}
        }
    }
    let odd = tensors.iter().position(|(name, _)| *name == "blk.0.ffn_down.weight").unwrap();
    let (name, dims) = tensors.remove(odd);
    writer.tensor(name, &dims, GgmlType::IQ1_S).unwrap();
    write_model(&folder.path("iq1.gguf"), writer, &tensors);
    folder.all_running("iq1.gguf", &["blk.0.ffn_down.weight", "IQ1_S", "not supported"]);
}

#[test]
fn a_missing_or_misshaped_tensor() {
    let folder = Folder::new();
    let (writer, mut tensors) = tiny();
    tensors.retain(|(name, _)| *name != "blk.0.attn_k.weight");
    write_model(&folder.path("missing.gguf"), writer, &tensors);
    folder.all_running("missing.gguf", &["blk.0.attn_k.weight", "missing"]);

    let (writer, mut tensors) = tiny();
    for (name, dims) in &mut tensors {
        if *name == "blk.0.attn_q.weight" {
            dims[1] = 31;
        }
    }
    write_model(&folder.path("shape.gguf"), writer, &tensors);
    folder.all_running("shape.gguf", &["blk.0.attn_q.weight", "31"]);
}

#[test]
fn nonsense_hyperparameters() {
    let folder = Folder::new();
    for (key, value) in [
        ("llama.block_count", 0u32),
        ("llama.block_count", u32::MAX),
        ("llama.embedding_length", 0),
        ("llama.attention.head_count", 0),
        ("llama.attention.head_count", u32::MAX),
        ("llama.attention.head_count_kv", 0),
        ("llama.attention.head_count_kv", 3),
        ("llama.context_length", 0),
    ] {
        let (mut writer, tensors) = tiny();
        writer.set(key, value);
        write_model(&folder.path("odd.gguf"), writer, &tensors);
        for args in running(&folder.str("odd.gguf"), &folder.str("prose.txt")) {
            assert_fails(&run(&args), &[]);
        }
    }
}

#[test]
fn an_empty_prompt() {
    let model = smollm2();
    assert_fails(&run(["run", "-m", &model, "-p", ""]), &["prompt is empty"]);
    assert_fails(&run(["chat", "-m", &model, "-p", ""]), &["prompt is empty"]);
    assert_fails(&run(["logits", "-m", &model, "-p", ""]), &["prompt is empty"]);
    let folder = Folder::new();
    std::fs::write(folder.path("nothing.txt"), "").unwrap();
    let nothing = folder.str("nothing.txt");
    assert_fails(&run(["run", "-m", &model, "--file", &nothing]), &["prompt is empty"]);
    assert_fails(&run(["perplexity", "-m", &model, "--file", &nothing]), &["0 tokens"]);
}

#[test]
fn a_prompt_longer_than_the_context() {
    let model = smollm2();
    let folder = Folder::new();
    let long = folder.str("prose.txt");
    assert_fails(&run(["run", "-m", &model, "--ctx", "64", "--file", &long]), &["tokens", "context", "64"]);
    assert_fails(
        &run(["logits", "-m", &model, "--ctx", "64", "--file", &long]),
        &["tokens", "context", "64"],
    );
    let text = std::fs::read_to_string(&long).unwrap();
    assert_fails(&run(["chat", "-m", &model, "--ctx", "64", "-p", &text]), &["tokens", "context", "64"]);
    let tiny = tiny_model(folder.dir.path());
    let ids = vec!["1"; 65].join(",");
    assert_fails(
        &run(["logits", "-m", tiny.to_str().unwrap(), "--ids", &ids]),
        &["65 tokens", "context", "64"],
    );
}

#[test]
fn invalid_utf8_in_a_file() {
    let folder = Folder::new();
    std::fs::write(folder.path("latin1.txt"), b"caf\xe9 au lait").unwrap();
    let (model, file) = (smollm2(), folder.str("latin1.txt"));
    for command in ["run", "logits", "tokenize", "perplexity", "calibrate"] {
        let mut args = vec![command, "-m", &model, "--file", &file];
        let out = folder.str("out.gguf");
        if command == "calibrate" {
            args.extend(["-o", &out]);
        }
        let output = run(args);
        assert_fails(&output, &["latin1.txt", "UTF-8", "0xe9", "offset 3"]);
    }
}

#[test]
fn text_files_that_are_none() {
    let folder = Folder::new();
    let (model, dir) = (smollm2(), folder.dir.path().to_str().unwrap().to_owned());
    assert_fails(&run(["run", "-m", &model, "--file", &folder.str("no.txt")]), &["no.txt"]);
    assert_fails(&run(["run", "-m", &model, "--file", &dir]), &["directory"]);
}

#[test]
fn ids_outside_of_the_vocabulary() {
    let folder = Folder::new();
    let tiny = tiny_model(folder.dir.path());
    let output = run(["logits", "-m", tiny.to_str().unwrap(), "--ids", "1,64"]);
    assert_fails(&output, &["64", "vocabulary"]);
    let output = run(["run", "-m", tiny.to_str().unwrap(), "-p", "x"]);
    assert_fails(&output, &["vocabulary"]);
    let output = run(["chat", "-m", tiny.to_str().unwrap(), "-p", "x"]);
    assert_fails(&output, &[]);
}

#[test]
fn a_budget_that_cannot_work() {
    let output = run(["run", "-m", &smollm2(), "-p", "x", "--budget-mb", "1"]);
    assert_fails(&output, &["does not fit", "least budget", "the budget is 1 mb"]);
}

#[test]
fn wrong_command_lines() {
    for args in [
        &["fly"][..],
        &["run"],
        &["run", "-m"],
        &["run", "-p", "x", "-n", "many"],
        &["run", "-p", "x", "--file", "y"],
        &["run", "-p", "x", "-t", "0"],
        &["run", "-p", "x", "--wings"],
        &["logits", "--ids", "1,two"],
        &["logits", "--ids", "1", "-p", "x"],
        &["logits", "--ids", "-5"],
        &["tokenize"],
        &["pull"],
        &["pull", "--list", "smollm2"],
        &["bench", "--reps", "0"],
        &["perplexity"],
        &["calibrate", "--file", "x"],
        &["evaluate", "--task", "poetry"],
        &["evaluate", "--questions", "0"],
    ] {
        let output = run(args);
        assert_fails(&output, &["--help"]);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn sampling_options_out_of_range() {
    let model = smollm2();
    for (option, value) in [
        ("--temp", "-1"),
        ("--temp", "NaN"),
        ("--top-p", "0"),
        ("--top-p", "1.5"),
        ("--min-p", "-0.1"),
        ("--repetition-penalty", "0"),
    ] {
        let option = format!("{option}={value}");
        assert_fails(&run(["run", "-m", &model, "-p", "x", "-n", "2", &option]), &["must be"]);
    }
}

#[test]
fn pulling_nonsense() {
    let folder = Folder::new();
    let pull = |args: &[&str]| {
        pannier().env("PANNIER_MODELS", folder.path("store")).arg("pull").args(args).output().unwrap()
    };
    assert_fails(&pull(&["no-such-model"]), &["no-such-model", "known models"]);
    assert_fails(&pull(&["ftp://example.org/x.gguf"]), &["https"]);
    assert_fails(&pull(&["http://example.org/x.gguf"]), &["https", "--sha256"]);
    assert_fails(&pull(&["https://example.org/x.gguf", "--sha256", "abc"]), &["SHA-256"]);
    assert!(!Path::new(&folder.str("store")).exists(), "nothing was made");
}
