//! The models of the standard table, and what a token of each has to read.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::engines::json;
use crate::{Result, models, sh, synth};

/// Catalogue names, and the formats they are measured in besides their own.
const STANDARD: &[(&str, &[&str])] = &[
    ("smollm2-135m-instruct", &["Q4_0", "Q8_0"]),
    ("gemma-3-270m", &[]),
    ("qwen2.5-coder-0.5b-instruct", &["Q4_0", "Q8_0"]),
    ("qwen2.5-coder-1.5b-instruct", &["Q4_0", "Q8_0"]),
];

/// A file to measure.
pub struct Subject {
    pub name: String,
    pub path: PathBuf,
    /// What ours reads: the same file, or its pack.
    pub ours: PathBuf,
    /// Weights that a decoded token reads.
    pub weights: u64,
    /// Keys and values of one token of context.
    pub kv_per_token: u64,
    pub context: u64,
}

/// The standard models; what is missing is fetched, requantised or made up.
pub fn standard(pannier: &Path) -> Result<Vec<Subject>> {
    let cache = dirs::cache_dir().ok_or("this system names no cache directory")?.join("pannier");
    let derived = cache.join("bench");
    std::fs::create_dir_all(&derived).map_err(|e| format!("cannot create {}: {e}", derived.display()))?;
    let mut all = Vec::new();
    for (name, formats) in STANDARD {
        let file = models::fetch(models::find(name)?, Some(pannier))?;
        all.push(Subject::open(pannier, &file)?);
        for format in *formats {
            // Speed does not ask how good the weights are, so they may be rounded twice.
            let path = derived.join(format!("{name}.{format}.gguf"));
            if !path.exists() {
                let mut quantize = Command::new(pannier);
                quantize.arg("quantize").arg(&file).arg(&path).arg(format);
                sh::run(&format!("{name} in {format}"), quantize.stdout(std::process::Stdio::null()))?;
            }
            all.push(Subject::open(pannier, &path)?);
        }
    }
    let made = cache.join("synth/1.1b-q4_k_m.gguf");
    if !made.exists() {
        synth::make("1.1b", "Q4_K_M", &made)?;
    }
    all.push(Subject::open(pannier, &made)?);
    Ok(all)
}

impl Subject {
    /// A file, or a catalogue name.
    pub fn find(pannier: &Path, name: &str) -> Result<Subject> {
        if Path::new(name).is_file() {
            return Self::open(pannier, Path::new(name));
        }
        Self::open(pannier, &models::fetch(models::find(name)?, Some(pannier))?)
    }

    fn open(pannier: &Path, path: &Path) -> Result<Subject> {
        let report = json(Command::new(pannier).arg("inspect").arg(path).arg("--json"))?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let path = std::path::absolute(path).map_err(|e| e.to_string())?;
        Ok(Subject {
            name,
            ours: path.clone(),
            path,
            weights: weights_per_token(&report),
            kv_per_token: kv_per_token(&report),
            context: report["context_length"].as_u64().unwrap_or(u64::MAX),
        })
    }

    /// Lets ours read a pack of the file, which is made in the cache unless it is there.
    pub fn pack(&mut self, pannier: &Path) -> Result {
        let cache = dirs::cache_dir().ok_or("this system names no cache directory")?.join("pannier/bench");
        std::fs::create_dir_all(&cache).map_err(|e| format!("cannot create {}: {e}", cache.display()))?;
        self.ours = cache.join(format!("{}.pack.gguf", self.name));
        let mut pack = Command::new(pannier);
        pack.arg("pack").arg(&self.path).arg(&self.ours);
        sh::run(&format!("the pack of {}", self.name), pack.stdout(std::process::Stdio::null()))
    }

    /// Bytes that a token reads when `context` tokens are before it.
    pub fn bytes(&self, context: usize) -> f64 {
        self.weights as f64 + self.kv_per_token as f64 * context as f64
    }
}

/// All matrices, once; of experts those that are used; of an embedding that is not the output head too, one row: nothing.
fn weights_per_token(report: &Value) -> u64 {
    let tensors = report["tensors"].as_array().map(Vec::as_slice).unwrap_or_default();
    let named = |name: &str| tensors.iter().any(|t| t["name"] == name);
    let key = |key: &str| number(report, key).unwrap_or(1);
    let (used, experts) = (key("expert_used_count"), key("expert_count").max(1));
    let has_head = named("output.weight");
    tensors
        .iter()
        .map(|tensor| {
            let name = tensor["name"].as_str().unwrap_or_default();
            let bytes = tensor["bytes"].as_u64().unwrap_or(0);
            match name {
                "token_embd.weight" if has_head => 0,
                _ if name.contains("_exps.") => bytes / experts * used,
                _ => bytes,
            }
        })
        .sum()
}

/// In f16, over all layers. A sliding window reads less in the long run.
fn kv_per_token(report: &Value) -> u64 {
    let key = |key: &str| number(report, key);
    let heads = key("attention.head_count").unwrap_or(1).max(1);
    let dim = key("embedding_length").unwrap_or(0) / heads;
    let kv_heads = key("attention.head_count_kv").unwrap_or(heads);
    let (k, v) = (key("attention.key_length").unwrap_or(dim), key("attention.value_length").unwrap_or(dim));
    2 * key("block_count").unwrap_or(0) * kv_heads * (k + v)
}

/// A number in the metadata of the architecture.
fn number(report: &Value, key: &str) -> Option<u64> {
    let architecture = report["architecture"].as_str()?;
    report["metadata"][format!("{architecture}.{key}")].as_u64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn bytes_of_a_token() {
        let tensor = |name: &str, bytes: u64| json!({"name": name, "bytes": bytes});
        let mut report = json!({
            "architecture": "llama",
            "metadata": {
                "llama.block_count": 2, "llama.embedding_length": 64, "llama.attention.head_count": 4,
                "llama.attention.head_count_kv": 2, "llama.expert_count": 8, "llama.expert_used_count": 2,
            },
            "tensors": [tensor("token_embd.weight", 1000), tensor("blk.0.ffn_up_exps.weight", 800), tensor("blk.0.attn_q.weight", 50)],
        });
        assert_eq!(weights_per_token(&report), 1000 + 200 + 50);
        report["tensors"][0]["name"] = "output.weight".into();
        report["tensors"][1] = tensor("token_embd.weight", 900);
        assert_eq!(weights_per_token(&report), 1000 + 50);
        assert_eq!(kv_per_token(&report), 2 * 2 * 2 * 32);
    }
}
