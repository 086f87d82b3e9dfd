//! Checkpoints in the public layout, built on the spot.

#![allow(dead_code, clippy::unwrap_used, reason = "each test uses a part; a test fails by panicking")]

pub mod nested;

use half::{bf16, f16};
use serde_json::{Value, json};
use std::path::Path;

/// Repeatable numbers of about weight size.
pub fn noise(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let next = |state: &mut u64| {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    // Exact in bf16, so that every conversion is exact, too.
    (0..count).map(|_| bf16::from_f32((next(&mut state) + next(&mut state)) * 0.25).to_f32()).collect()
}

/// Numbers that look like weights: a sum of uniform ones, repeatable.
pub struct Noise(pub u64);

impl Noise {
    /// Within about `scale`.
    pub fn next(&mut self, scale: f32) -> f32 {
        let mut sum = 0f32;
        for _ in 0..4 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            sum += (self.0 >> 40) as f32 / (1u64 << 24) as f32 - 0.5;
        }
        sum * scale
    }
}

#[derive(Debug, Clone)]
pub struct Tensor {
    pub name: String,
    pub dtype: &'static str,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
    pub values: Vec<f32>,
}

pub fn tensor(name: &str, shape: &[usize], dtype: &'static str, values: Vec<f32>) -> Tensor {
    assert_eq!(values.len(), shape.iter().product::<usize>(), "{name}");
    let bytes = match dtype {
        "F32" => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
        "F16" => values.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect(),
        "BF16" => values.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect(),
        "U8" => values.iter().map(|x| *x as u8).collect(),
        other => panic!("{other}"),
    };
    Tensor { name: name.into(), dtype, shape: shape.to_vec(), bytes, values }
}

/// All tensors of a checkpoint, filled with noise.
#[derive(Default)]
pub struct Weights(pub Vec<Tensor>);

impl Weights {
    pub fn add(&mut self, name: &str, shape: &[usize]) {
        let values = noise(self.0.len() as u64 + 7, shape.iter().product());
        self.0.push(tensor(name, shape, "BF16", values));
    }

    pub fn get(&self, name: &str) -> &[f32] {
        &self.0.iter().find(|tensor| tensor.name == name).unwrap_or_else(|| panic!("{name}")).values
    }
}

pub fn safetensors(tensors: &[Tensor]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    header.insert("__metadata__".into(), json!({"format": "pt"}));
    let mut at = 0;
    for tensor in tensors {
        let end = at + tensor.bytes.len();
        let entry = json!({"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [at, end]});
        header.insert(tensor.name.clone(), entry);
        at = end;
    }
    let mut header = Value::Object(header).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header);
    tensors.iter().for_each(|tensor| out.extend(&tensor.bytes));
    out
}

/// Writes the weights as two shards with an index.
pub fn write_shards(folder: &Path, weights: &Weights) {
    let (first, second) = weights.0.split_at(weights.0.len() / 2);
    let mut map = serde_json::Map::new();
    for (index, part) in [first, second].into_iter().enumerate() {
        let name = format!("model-{:05}-of-00002.safetensors", index + 1);
        std::fs::write(folder.join(&name), safetensors(part)).unwrap();
        for tensor in part {
            map.insert(tensor.name.clone(), name.clone().into());
        }
    }
    let index = json!({"metadata": {}, "weight_map": map});
    std::fs::write(folder.join("model.safetensors.index.json"), index.to_string()).unwrap();
}

pub fn write_json(folder: &Path, name: &str, value: &Value) {
    std::fs::write(folder.join(name), value.to_string()).unwrap();
}

/// The byte-level alphabet: each byte as a printable character.
pub fn byte_alphabet() -> Vec<char> {
    let plain = |byte: u32| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let mut next = 256;
    (0..256u32)
        .map(|byte| {
            let code = if plain(byte) {
                byte
            } else {
                next += 1;
                next - 1
            };
            char::from_u32(code).unwrap()
        })
        .collect()
}

/// A byte-level BPE tokenizer of 256 bytes, two merges and two markers.
pub fn byte_level_tokenizer(regex: &str, ignore_merges: bool) -> Value {
    let mut vocab = serde_json::Map::new();
    for (id, c) in byte_alphabet().into_iter().enumerate() {
        vocab.insert(c.to_string(), id.into());
    }
    vocab.insert("he".into(), 256.into());
    vocab.insert("hel".into(), 257.into());
    json!({
        "added_tokens": [
            {"id": 258, "content": "<|start|>", "special": true},
            {"id": 259, "content": "<tool>", "special": false},
        ],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false},
        ]},
        "post_processor": {"type": "Sequence", "processors": [
            {"type": "ByteLevel"},
            {"type": "TemplateProcessing", "single": [
                {"SpecialToken": {"id": "<|start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
            ]},
        ]},
        "model": {"type": "BPE", "ignore_merges": ignore_merges, "vocab": vocab, "merges": [["h", "e"], "he l"]},
    })
}
