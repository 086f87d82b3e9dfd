//! The vocabularies of real models: from GGUF to the public layout, converted back, and compared on text in many languages.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{Weights, write_json, write_shards};
use pannier_forge::{ConvertOptions, Silent, convert};
use pannier_gguf::{GgmlType, Gguf, Metadata};
use pannier_tokenizer::{EncodeOptions, Tokenizer};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const TEXTS: &[&str] = &[
    "The quick brown fox can't jump over 12345 lazy dogs.\n\n\tIt's 3.14!",
    "Der Straßenbahnführer aß Käsespätzle für 7,50 €.",
    "Привет, как дела? Всё хорошо.",
    "東京は日本の首都です。人口は約1400万人。",
    "你好，世界！今天天气很好。",
    "안녕하세요. 만나서 반갑습니다.",
    "مرحبا بالعالم، كيف حالك؟",
    "नमस्ते दुनिया",
    "สวัสดีชาวโลก",
    "👩‍👩‍👧 emoji 🇩🇪 and \u{200d} joiners",
    "fn main() { println!(\"{}\", x as f32 * 2.0); }\r\n",
    "<|im_start|>user\nHi<|im_end|>\n",
    "<start_of_turn>user\nHi<end_of_turn>",
    "  leading and trailing   ",
];

fn model(name: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("PANNIER_MODELS")
        .map(PathBuf::from)
        .or_else(|| Some(dirs::cache_dir()?.join("pannier").join("models")))?;
    Some(folder.join(name)).filter(|path| path.is_file())
}

/// A model of the least size with a vocabulary of this many tokens.
fn frame(folder: &Path, class: &str, tokens: usize) {
    let mut weights = Weights::default();
    weights.add("model.embed_tokens.weight", &[tokens, 4]);
    for (part, shape) in [
        ("input_layernorm", &[4][..]),
        ("self_attn.q_proj", &[4, 4]),
        ("self_attn.k_proj", &[4, 4]),
        ("self_attn.v_proj", &[4, 4]),
        ("self_attn.o_proj", &[4, 4]),
        ("post_attention_layernorm", &[4]),
        ("mlp.gate_proj", &[4, 4]),
        ("mlp.up_proj", &[4, 4]),
        ("mlp.down_proj", &[4, 4]),
    ] {
        weights.add(&format!("model.layers.0.{part}.weight"), shape);
    }
    weights.add("model.norm.weight", &[4]);
    write_shards(folder, &weights);
    let config = json!({
        "architectures": [class], "hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 1,
        "num_attention_heads": 1, "num_key_value_heads": 1, "vocab_size": tokens, "max_position_embeddings": 64,
        "rms_norm_eps": 1e-6, "tie_word_embeddings": true, "head_dim": 4,
    });
    write_json(folder, "config.json", &config);
}

fn special(metadata: &Metadata, key: &str) -> Option<String> {
    let id = metadata.opt_u32(&format!("tokenizer.ggml.{key}_token_id")).unwrap()?;
    Some(metadata.strings("tokenizer.ggml.tokens").unwrap().get(id as usize)?.to_owned())
}

fn settings(metadata: &Metadata) -> Value {
    let mut settings = serde_json::Map::new();
    for (theirs, ours) in
        [("bos_token", "bos"), ("eos_token", "eos"), ("pad_token", "padding"), ("unk_token", "unknown")]
    {
        if let Some(text) = special(metadata, ours) {
            settings.insert(theirs.into(), text.into());
        }
    }
    for key in ["add_bos_token", "add_eos_token"] {
        if let Some(add) = metadata.opt_bool(&format!("tokenizer.ggml.{key}")).unwrap() {
            settings.insert(key.into(), add.into());
        }
    }
    Value::Object(settings)
}

fn convert_and_compare(folder: &Path, original: &Metadata) {
    let output = folder.join("out.gguf");
    let options = ConvertOptions { dtype: GgmlType::F16, ..ConvertOptions::default() };
    convert(folder, &output, &options, &Silent).unwrap();
    let converted = Gguf::open(output).unwrap();
    let converted = converted.metadata();
    for key in ["tokenizer.ggml.model", "tokenizer.ggml.pre"] {
        assert_eq!(converted.str(key).unwrap(), original.str(key).unwrap());
    }
    for key in ["bos", "eos", "padding", "unknown"] {
        assert_eq!(special(converted, key), special(original, key), "{key}");
    }
    let (before, after) =
        (Tokenizer::from_metadata(original).unwrap(), Tokenizer::from_metadata(converted).unwrap());
    assert_eq!(before.vocab_size(), after.vocab_size());
    for text in TEXTS {
        for parse_special in [false, true] {
            let options = EncodeOptions { add_special: true, parse_special };
            assert_eq!(before.encode(text, options), after.encode(text, options), "{text:?}");
        }
    }
}

#[test]
fn byte_pair_vocabularies_come_back() {
    for (name, class, steps) in [
        (
            "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
            "Qwen2ForCausalLM",
            json!([{"type": "Split", "behavior": "Isolated", "pattern": {"Regex":
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"}},
                {"type": "ByteLevel", "use_regex": false}]),
        ),
        (
            "SmolLM2-135M-Instruct.Q4_1.gguf",
            "LlamaForCausalLM",
            json!([{"type": "Digits", "individual_digits": true}, {"type": "ByteLevel", "use_regex": true}]),
        ),
    ] {
        let Some(path) = model(name) else { continue };
        let original = Gguf::open(path).unwrap();
        let metadata = original.metadata();
        let tokens = metadata.strings("tokenizer.ggml.tokens").unwrap();
        let kinds = metadata.i32s("tokenizer.ggml.token_type").unwrap();
        let (mut vocab, mut added) = (serde_json::Map::new(), Vec::new());
        for (id, (text, kind)) in tokens.iter().zip(kinds).enumerate() {
            match kind {
                1 => drop(vocab.insert(text.into(), id.into())),
                3 | 4 => added.push(json!({"id": id, "content": text, "special": kind == 3})),
                _ => {}
            }
        }
        let merges: Vec<&str> = metadata.strings("tokenizer.ggml.merges").unwrap().iter().collect();
        let tokenizer = json!({
            "added_tokens": added,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
            "model": {"type": "BPE", "vocab": vocab, "merges": merges},
        });
        let folder = tempfile::tempdir().unwrap();
        frame(folder.path(), class, tokens.len());
        write_json(folder.path(), "tokenizer.json", &tokenizer);
        write_json(folder.path(), "tokenizer_config.json", &settings(metadata));
        convert_and_compare(folder.path(), metadata);
    }
}

fn varint(mut value: usize, out: &mut Vec<u8>) {
    while value > 127 {
        out.push(value as u8 | 128);
        value >>= 7;
    }
    out.push(value as u8);
}

#[test]
fn a_sentencepiece_vocabulary_comes_back() {
    let Some(path) = model("gemma-3-270m-q4_k_m.gguf") else { return };
    let original = Gguf::open(path).unwrap();
    let metadata = original.metadata();
    let tokens = metadata.strings("tokenizer.ggml.tokens").unwrap();
    let kinds = metadata.i32s("tokenizer.ggml.token_type").unwrap();
    let scores = metadata.f32s("tokenizer.ggml.scores").unwrap();
    let mut file = Vec::new();
    for ((text, kind), score) in tokens.iter().zip(kinds).zip(scores) {
        let mut piece = vec![0x0A];
        varint(text.len(), &mut piece);
        piece.extend(text.as_bytes());
        piece.push(0x15);
        piece.extend(score.to_le_bytes());
        piece.extend([0x18, kind as u8]);
        file.push(0x0A);
        varint(piece.len(), &mut file);
        file.extend(piece);
    }
    let folder = tempfile::tempdir().unwrap();
    frame(folder.path(), "Gemma3ForCausalLM", tokens.len());
    std::fs::write(folder.path().join("tokenizer.model"), file).unwrap();
    write_json(folder.path(), "tokenizer_config.json", &settings(metadata));
    convert_and_compare(folder.path(), metadata);
}
