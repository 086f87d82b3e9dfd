//! Any text on a vocabulary that has all bytes, and any vocabulary.
//!
//! The input's first byte chooses the kind of vocabulary. From the byte 0xFF on, if there is one, it is the list of
//! further pieces, one a line; those with a space are merges.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pannier_gguf::Metadata;
use pannier_tokenizer::{DecodeOptions, EncodeOptions, StreamDecoder, Tokenizer};

const PRE: &[&str] = &[
    "default",
    "gpt-2",
    "llama-bpe",
    "smollm",
    "qwen2",
    "qwen35",
    "tekken",
    "gpt-4o",
    "deepseek-llm",
    "deepseek-coder",
    "deepseek-v3",
    "falcon",
    "poro-chat",
    "viking",
    "minicpm5",
    "laguna",
    "tiny_aya",
    "granite-embed-multi-97m",
];

fn byte_char(byte: u8) -> char {
    let code = match byte {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => u32::from(byte),
        0..=0x20 => 0x100 + u32::from(byte),
        0x7F..=0xA0 => 0x121 + u32::from(byte) - 0x7F,
        0xAD => 0x143,
    };
    char::from_u32(code).expect("the alphabet is of characters")
}

fn metadata(kind: u8, lines: &str) -> Metadata {
    let mut metadata = Metadata::new();
    let model = ["gpt2", "gpt2", "llama", "gemma4"][usize::from(kind & 3)];
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>", "<|im_end|>", "  "].map(str::to_owned).to_vec();
    let mut types = vec![2, 3, 3, 3, 4];
    if model == "gpt2" {
        tokens.extend((0..=255).map(|b| byte_char(b).to_string()));
        types.extend([1; 256]);
    } else {
        tokens.extend((0..=255u8).map(|b| format!("<0x{b:02X}>")));
        types.extend([6; 256]);
    }
    let mut merges = Vec::new();
    for line in lines.lines() {
        match line.split_once(' ') {
            Some((left, right)) => {
                merges.push(line.to_owned());
                tokens.push(format!("{left}{right}"));
            }
            None => tokens.push(line.to_owned()),
        }
        types.push(i32::from(line.len() as u8 % 8).max(1));
    }
    let scores: Vec<f32> = (0..tokens.len()).map(|i| -(i as f32)).collect();
    metadata.insert("tokenizer.ggml.model", model);
    metadata.insert("tokenizer.ggml.pre", PRE[usize::from(kind >> 2) % PRE.len()]);
    metadata.insert("tokenizer.ggml.tokens", tokens);
    metadata.insert("tokenizer.ggml.token_type", types);
    metadata.insert("tokenizer.ggml.scores", scores);
    metadata.insert("tokenizer.ggml.merges", merges);
    metadata.insert("tokenizer.ggml.add_space_prefix", kind & 0x80 != 0);
    metadata
}

fuzz_target!(|data: &[u8]| {
    let Some((&kind, rest)) = data.split_first() else { return };
    let (text, lines) = match rest.iter().position(|b| *b == 0xFF) {
        Some(at) => (&rest[..at], &rest[at + 1..]),
        None => (rest, &[][..]),
    };
    let text = String::from_utf8_lossy(text);
    let lines = String::from_utf8_lossy(lines);
    let tokenizer = Tokenizer::from_metadata(&metadata(kind, &lines)).expect("the lists agree in length");
    for parse_special in [false, true] {
        let ids = tokenizer.encode(&text, EncodeOptions { add_special: true, parse_special });
        assert!(ids.iter().all(|id| (*id as usize) < tokenizer.vocab_size()));
        let options = DecodeOptions { skip_special: false, continuation: !parse_special };
        let whole = tokenizer.decode(&ids, options);
        let mut stream = StreamDecoder::new(&tokenizer, options);
        let mut parts = String::new();
        for id in &ids {
            parts.push_str(stream.push(*id).unwrap_or_default());
        }
        parts.push_str(stream.finish().unwrap_or_default());
        assert_eq!(parts, whole);
    }
    // Only pieces that are written as they are read can come back.
    if lines.is_empty() && tokenizer.model() == "gpt2" {
        let ids = tokenizer.encode(&text, EncodeOptions { add_special: false, parse_special: false });
        assert_eq!(tokenizer.decode(&ids, DecodeOptions { skip_special: false, continuation: false }), text);
    }
});
