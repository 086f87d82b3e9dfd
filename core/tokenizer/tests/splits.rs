//! Every pre-tokenizer's word borders, against ids that the reference engine computed.
//!
//! The vocabulary is made here: all bytes, all pairs of bytes, and a merge for each pair in a scrambled order. Within a
//! word bytes pair up by that order, so a border that is off by one character changes the ids.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use common::{ids, json};
use pannier_gguf::Metadata;
use pannier_tokenizer::{DecodeOptions, EncodeOptions, Tokenizer};

fn byte_char(byte: u8) -> String {
    let code = match byte {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => u32::from(byte),
        0..=0x20 => 0x100 + u32::from(byte),
        0x7F..=0xA0 => 0x121 + u32::from(byte) - 0x7F,
        0xAD => 0x143,
    };
    char::from_u32(code).unwrap().to_string()
}

fn pairs(pre: &str) -> Metadata {
    let bytes: Vec<String> = (0..=255).map(byte_char).collect();
    let mut order: Vec<usize> = (0..1 << 16).collect();
    let mut state = 12345u64;
    for i in (1..order.len()).rev() {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        order.swap(i, (state >> 33) as usize % (i + 1));
    }
    let mut tokens = bytes.clone();
    let mut merges = Vec::new();
    for pair in order {
        let (left, right) = (&bytes[pair / 256], &bytes[pair % 256]);
        tokens.push(format!("{left}{right}"));
        merges.push(format!("{left} {right}"));
    }
    let mut metadata = Metadata::new();
    metadata.insert("tokenizer.ggml.model", "gpt2");
    metadata.insert("tokenizer.ggml.pre", pre);
    metadata.insert("tokenizer.ggml.tokens", tokens);
    metadata.insert("tokenizer.ggml.merges", merges);
    metadata
}

#[test]
fn word_borders_are_the_references() {
    let golden = json("splits.json");
    let strings: Vec<&str> =
        golden["strings"].as_array().unwrap().iter().map(|s| s.as_str().unwrap()).collect();
    let names = golden["ids"].as_object().unwrap();
    for name in ["default", "gpt-2", "llama-bpe", "smollm", "qwen2", "tekken", "gpt-4o", "deepseek-llm"] {
        assert!(names.contains_key(name));
    }
    for (name, expected) in names {
        let tokenizer = Tokenizer::from_metadata(&pairs(name)).unwrap();
        for (text, expected) in strings.iter().zip(expected.as_array().unwrap()) {
            let options = EncodeOptions { add_special: false, parse_special: false };
            let got = tokenizer.encode(text, options);
            assert_eq!(got, ids(expected), "{name} {text:?}");
            assert_eq!(tokenizer.decode(&got, DecodeOptions::default()), *text, "{name}");
        }
    }
}
