//! Golden values: where they are, and how far a model of ours is from them.
#![allow(dead_code, reason = "each test uses a part of it")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use pannier::CancelFlag;
use pannier::kv::{KvOptions, KvTypes};
use pannier::memory::Accountant;
use pannier::model::{Forward, LoadedModel, ModelOptions, Outputs, PrecisionTable, Runner, RunnerOptions};
use pannier::pool::Pool;
use pannier_gguf::Gguf;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub const REAL: [(&str, &str); 3] = [
    ("smollm2-135m-instruct-q4_1", "SmolLM2-135M-Instruct.Q4_1.gguf"),
    ("gemma-3-270m-q4_k_m", "gemma-3-270m-q4_k_m.gguf"),
    ("qwen2.5-coder-0.5b", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"),
];

pub const FORMATS: [&str; 15] = [
    "BF16",
    "F16",
    "IQ4_NL",
    "IQ4_XS",
    "MXFP4_MOE",
    "Q2_K",
    "Q3_K_M",
    "Q4_0",
    "Q4_1",
    "Q4_K_M",
    "Q5_0",
    "Q5_1",
    "Q5_K_M",
    "Q6_K",
    "Q8_0",
];

pub const DENSE: [&str; 8] = ["gemma2", "gemma3", "llama", "phi3", "qwen2", "qwen3", "qwen35", "smollm3"];

pub const MOE: [&str; 8] =
    ["gpt-oss", "lfm2moe", "llama", "olmoe", "qwen2moe", "qwen35moe", "qwen3moe", "qwen3next"];

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/golden")
}

pub fn json(name: &str) -> Value {
    let path = data().join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap()
}

pub fn text(name: &str) -> String {
    std::fs::read_to_string(data().join(name)).unwrap()
}

/// A tiny model. Few of them are in the repository; the others are looked for in the folder `PANNIER_GOLDEN`, or in
/// `shared/golden` beside the checkout. Where there is neither, the test fails: what was not run must not look passed.
pub fn tiny(name: &str) -> PathBuf {
    let own = data().join("tiny").join(name);
    if own.exists() {
        return own;
    }
    let folder = match std::env::var_os("PANNIER_GOLDEN") {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/golden"),
    };
    let path = folder.join("tiny").join(name);
    assert!(
        path.exists(),
        "{} is missing: set PANNIER_GOLDEN to the folder with the golden values",
        path.display()
    );
    path
}

/// A real model, from `PANNIER_MODELS` or the user's cache directory.
pub fn real(file: &str) -> PathBuf {
    let folder = match std::env::var_os("PANNIER_MODELS").filter(|folder| !folder.is_empty()) {
        Some(folder) => PathBuf::from(folder),
        None => dirs::cache_dir().expect("a cache directory").join("pannier/models"),
    };
    let path = folder.join(file);
    assert!(
        path.exists(),
        "{} is missing: run `cargo xtask test`, which fetches it, or set PANNIER_MODELS",
        path.display()
    );
    path
}

#[derive(Clone, Copy)]
pub struct Setup {
    pub threads: usize,
    pub chunk: usize,
    pub precision: Option<PrecisionTable>,
    pub kv: KvTypes,
}

impl Default for Setup {
    fn default() -> Self {
        Setup { threads: 2, chunk: 512, precision: None, kv: KvTypes::F16 }
    }
}

pub fn open(path: &Path) -> Arc<LoadedModel> {
    let gguf = Arc::new(Gguf::open(path).unwrap());
    Arc::new(LoadedModel::new(gguf, &ModelOptions::default(), &Accountant::new(None)).unwrap())
}

pub fn runner(model: &Arc<LoadedModel>, setup: Setup) -> Runner {
    let kv = KvOptions { types: setup.kv, ..KvOptions::default() };
    let options =
        RunnerOptions { chunk: setup.chunk, precision: setup.precision, kv, ..RunnerOptions::default() };
    Runner::new(Arc::clone(model), Arc::new(Pool::new(setup.threads)), &options, &Accountant::new(None))
        .unwrap()
}

pub fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// Log-probabilities of one row.
pub struct Row {
    pub top: usize,
    logits: Vec<f32>,
    norm: f64,
}

impl Row {
    pub fn new(logits: &[f32]) -> Row {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|&l| f64::from(l - max).exp()).sum();
        let top = logits.iter().position(|&l| l == max).expect("a finite logit");
        Row { top, logits: logits.to_vec(), norm: f64::from(max) + sum.ln() }
    }

    pub fn logprob(&self, id: u32) -> f64 {
        f64::from(self.logits[id as usize]) - self.norm
    }
}

/// Calls `each` with every position's log-probabilities.
pub fn rows(runner: &mut Runner, ids: &[u32], mut each: impl FnMut(usize, Row)) {
    let mut seq = runner.new_seq().unwrap();
    let vocab = runner.vocab();
    // Few rows of logits at a time: a vocabulary of 262 144 ids is 1 MB per row.
    for (index, tokens) in ids.chunks(64).enumerate() {
        let logits = runner.step(&mut seq, tokens, Outputs::All, &CancelFlag::new()).unwrap();
        for (row, logits) in logits.chunks_exact(vocab).enumerate() {
            each(64 * index + row, Row::new(logits));
        }
    }
}

/// Distance to golden positions, with the meaning of `reference_error` in the files.
#[derive(Clone, Copy, Debug)]
pub struct Distance {
    pub top1: f64,
    pub mean: f64,
    pub max: f64,
    /// Of all log-probabilities in the files, the five best included.
    pub mean_all: f64,
    pub max_all: f64,
}

pub fn distance(runner: &mut Runner, ids: &[u32], positions: &Value) -> Distance {
    let positions = positions.as_array().unwrap();
    assert_eq!(positions.len(), ids.len());
    let (mut agreed, mut next, mut all) = (0usize, Vec::new(), Vec::new());
    rows(runner, ids, |i, row| {
        let position = &positions[i];
        assert_eq!(position["id"].as_u64(), Some(u64::from(ids[i])));
        let top = position["top"].as_array().unwrap();
        let top: Vec<(u32, f64)> =
            top.iter().map(|pair| (pair[0].as_u64().unwrap() as u32, pair[1].as_f64().unwrap())).collect();
        agreed += usize::from(row.top == top[0].0 as usize);
        all.extend(top.iter().map(|&(id, logprob)| (row.logprob(id) - logprob).abs()));
        if let (Some(logprob), Some(&id)) = (position["next_logprob"].as_f64(), ids.get(i + 1)) {
            next.push((row.logprob(id) - logprob).abs());
        }
    });
    all.extend(&next);
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let max = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    Distance {
        top1: agreed as f64 / ids.len() as f64,
        mean: mean(&next),
        max: max(&next),
        mean_all: mean(&all),
        max_all: max(&all),
    }
}

/// Greedy continuation.
pub fn greedy(runner: &mut Runner, prompt: &[u32], n: usize) -> Vec<u32> {
    let mut seq = runner.new_seq().unwrap();
    let (mut out, mut tokens) = (Vec::new(), prompt.to_vec());
    while out.len() < n {
        let logits = runner.step(&mut seq, &tokens, Outputs::Last, &CancelFlag::new()).unwrap();
        let id = Row::new(logits).top as u32;
        out.push(id);
        tokens = vec![id];
    }
    out
}

pub fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Perplexity as the golden README defines it: windows of `ctx`, the first token of each replaced by BOS if the model adds one,
/// the second half scored.
pub fn perplexity(runner: &mut Runner, ids: &[u32], ctx: usize, bos: Option<u32>) -> f64 {
    let (mut sum, mut count) = (0.0, 0usize);
    for window in ids.chunks_exact(ctx) {
        let mut window = window.to_vec();
        if let Some(bos) = bos {
            window[0] = bos;
        }
        let mut seq = runner.new_seq().unwrap();
        let half = ctx / 2;
        runner.step(&mut seq, &window[..half], Outputs::None, &CancelFlag::new()).unwrap();
        let vocab = runner.vocab();
        for start in (half..ctx).step_by(64) {
            let end = (start + 64).min(ctx);
            let logits =
                runner.step(&mut seq, &window[start..end], Outputs::All, &CancelFlag::new()).unwrap();
            for (i, logits) in (start..end).zip(logits.chunks_exact(vocab)) {
                if let Some(&next) = window.get(i + 1) {
                    sum -= Row::new(logits).logprob(next);
                    count += 1;
                }
            }
        }
    }
    (sum / count as f64).exp()
}
