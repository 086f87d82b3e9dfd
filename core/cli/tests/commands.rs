//! What the commands print: the keys of `--json` are a promise to scripts.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests, too")]

mod common;

use std::io::{Read, Write};
use std::process::Stdio;

use common::{json, keys, pannier, smollm2, stdout, text, tiny_model};

const STATS: &[&str] = &[
    "prompt_tokens",
    "cached_tokens",
    "generated_tokens",
    "ttft_ms",
    "prefill_tok_s",
    "decode_tok_s",
    "prefill_ms",
    "decode_ms",
    "total_ms",
    "load_ms",
    "peak_anon_bytes",
    "threads",
    "seed",
    "proposed_tokens",
    "accepted_tokens",
    "acceptance_rate",
    "tokens_per_pass",
    "flash_bytes_per_token",
    "kv_type",
    "kv_policy",
    "evicted",
    "kv_read_share",
    "precision",
];

/// A model of this size says nonsense to many questions; to this one it does not.
const FRANCE: &str = "What is the capital \nof France?";

#[test]
fn help_teaches() {
    let top = stdout(["--help"]);
    let commands = [
        "pull",
        "inspect",
        "tokenize",
        "run",
        "logits",
        "chat",
        "serve",
        "fit-confidence",
        "bench",
        "perplexity",
        "calibrate",
        "evaluate",
    ];
    for command in commands {
        assert!(top.contains(&format!("\n  {command} ")), "{command} is not in the help");
        let help = stdout([command, "--help"]);
        assert!(help.contains("Examples:\n  pannier ") && help.contains("JSON"), "{help}");
        assert!(help.contains("--json"), "{help}");
    }
    assert!(stdout(["--version"]).starts_with("pannier "));
}

#[test]
fn inspect_shows_the_file() {
    let r = json(["inspect", &smollm2()]);
    for key in ["architecture", "tensors", "types", "template", "layers", "parameters", "bytes", "metadata"] {
        assert!(r.get(key).is_some(), "{key}");
    }
    assert_eq!(r["architecture"], "llama");
    assert_eq!(r["bytes"], 98_362_432);
    assert_eq!(r["layers"].as_array().unwrap().len(), 30);
    assert_eq!(r["types"]["Q4_1"]["tensors"], 210);
    assert!(r["template"].as_str().unwrap().contains("<|im_start|>"));
    assert_eq!(r["metadata"]["llama.block_count"], 30);
    let sum: u64 = r["layers"].as_array().unwrap().iter().map(|l| l["bytes"].as_u64().unwrap()).sum();
    let tensors: u64 = r["tensors"].as_array().unwrap().iter().map(|t| t["bytes"].as_u64().unwrap()).sum();
    assert_eq!(sum + r["other_bytes"].as_u64().unwrap(), tensors);
    let page = stdout(["inspect", &smollm2()]);
    assert!(page.contains("llama") && page.contains("Q4_1") && page.contains("0-29"), "{page}");
    assert!(stdout(["inspect", "--all", &smollm2()]).contains("blk.29.ffn_down.weight"));
}

#[test]
fn tokenize_gives_ids_and_pieces() {
    let r = json(["tokenize", "-m", &smollm2(), "Hello, world<|im_end|>"]);
    assert_eq!(keys(&r), ["ids", "pieces"]);
    assert_eq!(r["ids"], serde_json::json!([19556, 28, 905, 2]));
    assert_eq!(r["pieces"][3], "<|im_end|>");
    let mut child = pannier()
        .args(["--json", "tokenize", "-m", &smollm2(), "--no-special", "--file", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"Hello, world").unwrap();
    let piped: serde_json::Value = serde_json::from_slice(&child.wait_with_output().unwrap().stdout).unwrap();
    assert_eq!(piped["ids"], serde_json::json!([19556, 28, 905]));
    // Text that looks like an option.
    assert!(
        !json(["tokenize", "-m", &smollm2(), "--", "--no-special"])["ids"].as_array().unwrap().is_empty()
    );
}

#[test]
fn run_is_repeatable_and_does_not_depend_on_threads() {
    let model = smollm2();
    let once = |more: &[&str]| {
        let mut args = vec!["run", "-m", &model, "-p", "Once upon a time", "-n", "12"];
        args.extend_from_slice(more);
        json(args)
    };
    let r = once(&["--temp", "0", "-t", "1"]);
    assert_eq!(keys(&r), ["ids", "text", "finish_reason", "stats"]);
    assert_eq!(keys(&r["stats"]), STATS);
    assert_eq!(r["finish_reason"], "length");
    // The reference engine's tokens.
    assert_eq!(
        r["ids"],
        serde_json::json!([28, 260, 2240, 282, 23324, 27108, 436, 253, 15114, 39228, 28, 351])
    );
    assert!(r["stats"]["peak_anon_bytes"].as_u64().unwrap() > 0);
    assert_eq!(r["stats"]["threads"], 1);
    assert_eq!(once(&["-t", "2"])["ids"], r["ids"]);
    let drawn = once(&["--temp", "1", "--seed", "7", "-t", "2"]);
    assert_eq!(drawn["ids"], once(&["--temp", "1", "--seed", "7", "-t", "1"])["ids"]);
    assert_eq!(drawn["stats"]["seed"], 7);
    assert_ne!(drawn["ids"], once(&["--temp", "1", "--seed", "8"])["ids"]);
    let stopped = once(&["--stop", " city"]);
    assert_eq!(
        (stopped["finish_reason"].as_str(), stopped["text"].as_str().unwrap().contains("city")),
        (Some("stop_string"), false)
    );

    let plain = stdout(["run", "-m", &model, "-p", "Once upon a time", "-n", "12"]);
    assert_eq!(plain, format!("{}\n", r["text"].as_str().unwrap()));
}

#[test]
fn guessing_changes_the_speed_and_not_the_answer() {
    let model = smollm2();
    let once = |more: &[&str]| {
        let text = "red, green, blue, red, green, blue, red, green, blue,";
        let mut args = vec!["run", "-m", &model, "-p", text, "-n", "24", "-t", "2"];
        args.extend_from_slice(more);
        json(args)
    };
    let plain = once(&[]);
    assert_eq!(plain["stats"]["proposed_tokens"], 0);
    assert_eq!(plain["stats"]["acceptance_rate"], serde_json::Value::Null);
    // The model drafts for itself: every guess is right.
    let ways: [&[&str]; 4] = [
        &["--ngram", "--draft-len", "5"],
        &["--draft", &model, "--draft-len", "3"],
        &["--draft", &model, "--ngram"],
        &["--speculate", "auto"],
    ];
    for way in ways {
        let r = once(way);
        assert_eq!(r["ids"], plain["ids"], "{way:?}");
        assert_eq!(r["text"], plain["text"], "{way:?}");
    }
    let guessed = once(ways[0]);
    assert!(guessed["stats"]["accepted_tokens"].as_u64().unwrap() > 5, "{guessed}");
    assert!(guessed["stats"]["tokens_per_pass"].as_f64().unwrap() > 1.2, "{guessed}");
    assert_eq!(once(ways[1])["stats"]["acceptance_rate"], 1.0);
    let off = once(&["--ngram", "--draft", "no such file", "--speculate", "off"]);
    assert_eq!((&off["ids"], &off["stats"]["proposed_tokens"]), (&plain["ids"], &serde_json::json!(0)));
    let drawn = |more: &[&str]| once(&[&["--temp", "1", "--seed", "7"][..], more].concat())["ids"].clone();
    assert_eq!(drawn(&["--ngram", "--draft-len", "4"]), drawn(&[]));
    let bench = ["bench", "-m", &model, "--prompt", "32", "--gen", "16", "--reps", "1", "--draft", &model];
    let r = json([&bench[..], &["--draft-len", "2"]].concat());
    assert_eq!(r["acceptance_rate"], 1.0);
    assert!(r["decode_tok_s"].as_f64().unwrap() > 0.0);
}

#[test]
fn logits_for_every_position() {
    let r = json(["logits", "-m", &smollm2(), "-p", "The capital of France is", "--top", "3"]);
    assert_eq!(keys(&r), ["positions", "kv_type"]);
    let positions = r["positions"].as_array().unwrap();
    let (last, others) = positions.split_last().unwrap();
    assert_eq!(keys(last), ["id", "top"]);
    for position in others {
        assert_eq!(keys(position), ["id", "top", "next_logprob"]);
    }
    for position in positions {
        let top: Vec<f64> =
            position["top"].as_array().unwrap().iter().map(|t| t[1].as_f64().unwrap()).collect();
        assert_eq!(top.len(), 3);
        assert!(top.is_sorted_by(|a, b| a >= b) && top.iter().map(|lp| lp.exp()).sum::<f64>() <= 1.0 + 1e-6);
    }
    let paris = json(["tokenize", "-m", &smollm2(), " Paris"])["ids"][0].clone();
    assert!(last["top"].as_array().unwrap().iter().any(|t| t[0] == paris), "{last}");
    // The same ids, given as ids.
    let ids: Vec<String> = positions.iter().map(|p| p["id"].to_string()).collect();
    assert_eq!(json(["logits", "-m", &smollm2(), "--ids", &ids.join(","), "--top", "3"]), r);
}

#[test]
fn a_model_without_a_vocabulary_runs_on_ids() {
    let dir = tempfile::tempdir().unwrap();
    let model = tiny_model(dir.path());
    let model = model.to_str().unwrap();
    let r = json(["logits", "-m", model, "--ids", "1,8,15,22", "--top", "64"]);
    for position in r["positions"].as_array().unwrap() {
        let mass: f64 =
            position["top"].as_array().unwrap().iter().map(|t| t[1].as_f64().unwrap().exp()).sum();
        assert!((mass - 1.0).abs() < 1e-4, "{mass}");
    }
    assert_eq!(
        json(["bench", "-m", model, "--prompt", "8", "--gen", "4", "--reps", "1"])["expert_hit_rate"],
        serde_json::Value::Null
    );
    assert!(stdout(["inspect", model]).contains("none"));
}

#[test]
fn chat_answers_one_question() {
    let r = json(["chat", "-m", &smollm2(), "-p", FRANCE, "--temp", "0", "-n", "24"]);
    assert_eq!(keys(&r), ["text", "source", "confidence", "events", "stats"]);
    assert!(r["text"].as_str().unwrap().contains("Paris"), "{}", r["text"]);
    assert_eq!(r["source"], "device");
    assert!((0.0..=1.0).contains(&r["confidence"].as_f64().unwrap()));
    assert_eq!(keys(&r["stats"]), STATS);
    let events = r["events"].as_array().unwrap();
    assert_eq!(events.first().unwrap()["event"], "started");
    assert_eq!(events.last().unwrap()["event"], "completed");
    let pirate = json([
        "chat",
        "-m",
        &smollm2(),
        "--system",
        "You are a pirate.",
        "-p",
        "Hi",
        "--temp",
        "0",
        "-n",
        "4",
    ]);
    assert!(pirate["stats"]["prompt_tokens"].as_u64() > Some(10));
}

#[test]
fn chat_reads_turns_from_a_pipe() {
    let mut child = pannier()
        .args(["chat", "-m", &smollm2(), "--temp", "0", "-n", "16"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let question = FRANCE.replace('\n', "\\\n");
    let turns = format!("{question}\n/help\n\n/reset\n{question}\n/quit\nnever read\n");
    child.stdin.take().unwrap().write_all(turns.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let answers = text(&output.stdout);
    // Forgotten in between, so the same answer again.
    assert_eq!(answers.matches("capital of France is Paris").count(), 2, "{answers}");
    assert!(text(&output.stderr).contains("/quit"), "the help");
    assert!(!answers.contains("> "), "no prompt in a pipe");
}

#[test]
fn bench_has_all_figures() {
    let r = json(["bench", "-m", &smollm2(), "--prompt", "32", "--gen", "8", "--reps", "2", "-t", "2"]);
    assert_eq!(
        keys(&r),
        [
            "prefill_tok_s",
            "decode_tok_s",
            "ttft_ms",
            "load_ms",
            "peak_anon_bytes",
            "peak_rss_bytes",
            "flash_bytes_per_token",
            "expert_hit_rate",
            "reads_per_token",
            "waited_ms_per_token",
            "major_faults_per_token",
            "threads",
            "isa",
            "tokens_per_pass",
            "acceptance_rate",
            "kv_type",
            "kv_policy"
        ]
    );
    assert_eq!(r["tokens_per_pass"], serde_json::Value::Null);
    for key in ["prefill_tok_s", "decode_tok_s", "ttft_ms", "load_ms"] {
        assert!(r[key].as_f64().unwrap() > 0.0, "{key}: {}", r[key]);
    }
    assert_eq!(r["threads"], 2);
    assert!(!r["isa"].as_str().unwrap().is_empty());
}

#[test]
fn perplexity_scores_the_second_halves() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("prose.txt");
    std::fs::write(&file, "The quick brown fox jumps over the lazy dog. ".repeat(20)).unwrap();
    let r = json(["perplexity", "-m", &smollm2(), "--file", file.to_str().unwrap(), "--ctx", "64"]);
    assert_eq!(keys(&r), ["ppl", "ppl_low", "ppl_high", "tokens", "kv_type", "kv_policy", "windows"]);
    let windows = json(["tokenize", "-m", &smollm2(), "--file", file.to_str().unwrap()])["ids"]
        .as_array()
        .unwrap()
        .len()
        / 64;
    assert_eq!(r["tokens"].as_u64().unwrap(), windows as u64 * 31);
    let ppl = r["ppl"].as_f64().unwrap();
    assert!(ppl > 1.0 && ppl < 2.0, "a text that repeats itself is no surprise: {ppl}");
    assert!(r["ppl_low"].as_f64().unwrap() < ppl && ppl < r["ppl_high"].as_f64().unwrap());
    let itself = ["--against", &smollm2(), "--ctx", "64", "--windows", "1"];
    let r =
        json(["perplexity", "-m", &smollm2(), "--file", file.to_str().unwrap()].into_iter().chain(itself));
    assert_eq!((r["windows"].as_u64(), r["against"]["kl_mean"].as_f64()), (Some(1), Some(0.0)));
    assert_eq!((r["against"]["same_top"].as_f64(), r["against"]["ratio"].as_f64()), (Some(1.0), Some(1.0)));
}

#[test]
fn statistics_go_into_a_file_that_quantize_reads() {
    let dir = tempfile::tempdir().unwrap();
    let (text, statistics) = (dir.path().join("words.txt"), dir.path().join("imatrix.gguf"));
    std::fs::write(&text, "The quick brown fox jumps over the lazy dog. ".repeat(20)).unwrap();
    let (model, statistics) = (smollm2(), statistics.to_str().unwrap());
    let args = ["calibrate", "-m", &model, "--file", text.to_str().unwrap(), "--ctx", "64", "-o", statistics];
    let r = json(args.into_iter().chain(["--windows", "2"]));
    let expected = ["bytes", "tokens", "windows", "tensors", "experts", "unseen_experts", "rare_experts"];
    assert_eq!(keys(&r), expected);
    assert_eq!(
        (r["tokens"].as_u64(), r["windows"].as_u64(), r["tensors"].as_u64()),
        (Some(128), Some(2), Some(211))
    );
    let out = dir.path().join("q.gguf");
    let args = [
        "quantize",
        &model,
        out.to_str().unwrap(),
        "Q4_0",
        "--imatrix",
        statistics,
        "--method",
        "awq",
        "--plan",
    ];
    let plan = json(args);
    assert!(
        plan["notices"].as_array().unwrap().iter().all(|n| !n.as_str().unwrap().contains("no entry")),
        "{plan}"
    );
}

#[test]
fn tasks_have_scores() {
    let model = smollm2();
    let args = ["evaluate", "-m", &model, "--questions", "2", "--task", "copying", "--task", "arithmetic"];
    let r = json(args);
    assert_eq!(keys(&r), ["tasks", "score"]);
    let tasks = r["tasks"].as_array().unwrap();
    assert_eq!(
        tasks.iter().map(|t| t["task"].as_str().unwrap()).collect::<Vec<_>>(),
        ["arithmetic", "copying"]
    );
    assert_eq!(keys(&tasks[0]), ["task", "correct", "total", "score", "low", "high", "wrong"]);
    assert_eq!(tasks[0]["total"], 2);
}

#[test]
fn the_list_of_models() {
    let r = json(["pull", "--list"]);
    assert_eq!(keys(&r), ["directory", "models"]);
    assert_eq!(r["models"][0]["name"], "smollm2-135m-instruct");
    assert_eq!(r["models"][0]["here"], true);
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let mut child = pannier()
        .args(["run", "-m", &smollm2(), "-p", "Once upon a time", "-n", "2000"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut some = [0u8; 8];
    child.stdout.take().unwrap().read_exact(&mut some).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(141));
    assert_eq!(text(&output.stderr), "");
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_an_answer_cleanly() {
    let mut child = pannier()
        .args(["run", "-m", &smollm2(), "-p", "Once upon a time", "-n", "2000"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut some = [0u8; 8];
    child.stdout.as_mut().unwrap().read_exact(&mut some).unwrap();
    let status = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(status.success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert_eq!(text(&output.stderr), "pannier: interrupted\n");
    assert!(text(&output.stdout).len() < 20_000, "it did not run to its end");
}

#[test]
fn dense_weights_are_replayed_without_a_trace() {
    let rate = |policy: &str| {
        let r = json(["replay", &smollm2(), "--cache-mb", "40", "--policy", policy]);
        (r["hit_rate"].as_f64().unwrap(), r["flash_bytes_per_token"].as_f64().unwrap())
    };
    let ((pinned, read), (lru, all), (random, _)) = (rate("pinned"), rate("lru"), rate("random"));
    assert!(lru == 0.0 && random < pinned && pinned > 0.3, "{pinned} {random} {lru}");
    assert!(
        (read + f64::from(40 << 20) - all).abs() < 3e6,
        "pinned reads what is not pinned: {read} of {all}"
    );
}
