//! What the integration tests share: the real models and small helpers.
#![allow(dead_code, reason = "each test uses its part")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use pannier_gguf::Gguf;
use pannier_tokenizer::Tokenizer;
use std::path::PathBuf;

/// The reference's name of each real model and its file.
pub const MODELS: &[(&str, &str)] = &[
    ("smollm2-135m-instruct-q4_1", "SmolLM2-135M-Instruct.Q4_1.gguf"),
    ("gemma-3-270m-q4_k_m", "gemma-3-270m-q4_k_m.gguf"),
    ("qwen2.5-coder-0.5b", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"),
];

/// Opens a real model; a missing one is a failure, not a skip.
pub fn open(file: &str) -> Gguf {
    let folder = match std::env::var_os("PANNIER_MODELS") {
        Some(folder) => PathBuf::from(folder),
        None => {
            let cache = std::env::var_os("XDG_CACHE_HOME")
                .map(PathBuf::from)
                .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")));
            cache.expect("neither PANNIER_MODELS nor HOME is set").join("pannier").join("models")
        }
    };
    let path = folder.join(file);
    assert!(
        path.is_file(),
        "the model file {} is missing: fetch the models or point PANNIER_MODELS to their folder",
        path.display()
    );
    Gguf::open(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The tokenizer of a real model, by the reference's name.
pub fn tokenizer(model: &str) -> Tokenizer {
    let (_, file) = MODELS.iter().find(|(name, _)| *name == model).expect("known model");
    Tokenizer::from_metadata(open(file).metadata()).unwrap_or_else(|e| panic!("{file}: {e}"))
}

/// A file of `tests/data`.
pub fn data(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests").join("data").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A JSON file of `tests/data`.
pub fn json(name: &str) -> serde_json::Value {
    serde_json::from_str(&data(name)).expect("valid JSON")
}

/// A JSON array of ids.
pub fn ids(value: &serde_json::Value) -> Vec<u32> {
    value.as_array().expect("an array").iter().map(|id| id.as_u64().expect("an id") as u32).collect()
}
