//! Checkpoints to GGUF.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{Weights, byte_level_tokenizer, noise, safetensors, tensor, write_json, write_shards};
use pannier_forge::convert::{ConvertError, ConvertReport, Warning};
use pannier_forge::{ConvertOptions, Error, Silent, convert};
use pannier_gguf::{GgmlType, Gguf};
use pannier_kernels::format;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::path::Path;

const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const WIDTH: usize = 64;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD: usize = WIDTH / HEADS;
const INNER: usize = 96;
const VOCAB: usize = 264;

fn config(class: &str, more: Value) -> Value {
    let mut config = json!({
        "architectures": [class], "hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": 2,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "vocab_size": VOCAB,
        "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false,
        "bos_token_id": 258, "eos_token_id": [3, 4],
    });
    for (key, value) in more.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

fn attention(weights: &mut Weights, layer: usize) {
    let name = |part: &str| format!("model.layers.{layer}.{part}.weight");
    weights.add(&name("input_layernorm"), &[WIDTH]);
    weights.add(&name("self_attn.q_proj"), &[WIDTH, WIDTH]);
    weights.add(&name("self_attn.k_proj"), &[KV_HEADS * HEAD, WIDTH]);
    weights.add(&name("self_attn.v_proj"), &[KV_HEADS * HEAD, WIDTH]);
    weights.add(&name("self_attn.o_proj"), &[WIDTH, WIDTH]);
    weights.add(&name("post_attention_layernorm"), &[WIDTH]);
}

fn dense() -> Weights {
    let mut weights = Weights::default();
    weights.add("model.embed_tokens.weight", &[VOCAB, WIDTH]);
    for layer in 0..2 {
        attention(&mut weights, layer);
        for part in ["gate", "up"] {
            weights.add(&format!("model.layers.{layer}.mlp.{part}_proj.weight"), &[INNER, WIDTH]);
        }
        weights.add(&format!("model.layers.{layer}.mlp.down_proj.weight"), &[WIDTH, INNER]);
    }
    weights.add("model.norm.weight", &[WIDTH]);
    weights.add("lm_head.weight", &[VOCAB, WIDTH]);
    weights
}

struct Made {
    folder: tempfile::TempDir,
}

impl Made {
    fn new(config: &Value, weights: &Weights) -> Made {
        let folder = tempfile::tempdir().unwrap();
        write_json(folder.path(), "config.json", config);
        write_shards(folder.path(), weights);
        write_json(folder.path(), "tokenizer.json", &byte_level_tokenizer(LLAMA3, true));
        Made { folder }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn convert(&self, dtype: GgmlType) -> Result<(Gguf, ConvertReport), Error> {
        let output = self.path().join("out.gguf");
        let options = ConvertOptions { dtype, ..ConvertOptions::default() };
        let report = convert(self.path(), &output, &options, &Silent)?;
        Ok((Gguf::open(output)?, report))
    }

    fn fails(&self) -> Error {
        let error = self.convert(GgmlType::F16).map(|(_, report)| report).unwrap_err();
        assert!(!self.path().join("out.gguf").exists());
        assert!(!error.to_string().contains('\n'), "{error}");
        error
    }
}

fn values(model: &Gguf, name: &str) -> Vec<f32> {
    let tensor = model.tensor(name).unwrap_or_else(|| panic!("{name}"));
    let mut out = vec![0f32; tensor.dims.iter().product::<u64>() as usize];
    format(tensor.ty.id()).unwrap().decode_row(model.tensor_data(tensor).unwrap(), &mut out);
    out
}

// ---- a plain llama in f32, with either way of rotating

fn times(matrix: &[f32], x: &[f32]) -> Vec<f32> {
    matrix.chunks(x.len()).map(|row| row.iter().zip(x).map(|(a, b)| a * b).sum()).collect()
}

fn norm(x: &[f32], weight: &[f32]) -> Vec<f32> {
    let mean = x.iter().map(|x| x * x).sum::<f32>() / x.len() as f32;
    x.iter().zip(weight).map(|(x, w)| x / (mean + 1e-5).sqrt() * w).collect()
}

/// Rotates the pairs (i, i + half), as the checkpoint means it, or (2i, 2i + 1), as GGUF does for this architecture.
fn rotate(x: &mut [f32], position: usize, interleaved: bool) {
    for head in x.chunks_mut(HEAD) {
        for i in 0..HEAD / 2 {
            let angle = position as f32 / 10000f32.powf(2.0 * i as f32 / HEAD as f32);
            let (a, b) = if interleaved { (2 * i, 2 * i + 1) } else { (i, i + HEAD / 2) };
            let (x0, x1) = (head[a], head[b]);
            head[a] = x0 * angle.cos() - x1 * angle.sin();
            head[b] = x0 * angle.sin() + x1 * angle.cos();
        }
    }
}

fn llama(ids: &[usize], interleaved: bool, weight: &dyn Fn(&str) -> Vec<f32>) -> Vec<f32> {
    let embedding = weight("token_embd.weight");
    let mut xs: Vec<Vec<f32>> = ids.iter().map(|id| embedding[id * WIDTH..][..WIDTH].to_vec()).collect();
    for layer in 0..2 {
        let w = |part: &str| weight(&format!("blk.{layer}.{part}.weight"));
        let (mut keys, mut all_values) = (Vec::new(), Vec::new());
        for (position, x) in xs.iter_mut().enumerate() {
            let h = norm(x, &w("attn_norm"));
            let (mut q, mut k) = (times(&w("attn_q"), &h), times(&w("attn_k"), &h));
            rotate(&mut q, position, interleaved);
            rotate(&mut k, position, interleaved);
            keys.push(k);
            all_values.push(times(&w("attn_v"), &h));
            let mut mixed = vec![0f32; WIDTH];
            for head in 0..HEADS {
                let kv = head / (HEADS / KV_HEADS) * HEAD;
                let q = &q[head * HEAD..][..HEAD];
                let scores: Vec<f32> = keys
                    .iter()
                    .map(|k| times(&k[kv..][..HEAD], q)[0] / (HEAD as f32).sqrt())
                    .map(f32::exp)
                    .collect();
                let total: f32 = scores.iter().sum();
                for (score, v) in scores.iter().zip(&all_values) {
                    for i in 0..HEAD {
                        mixed[head * HEAD + i] += score / total * v[kv + i];
                    }
                }
            }
            x.iter_mut().zip(times(&w("attn_output"), &mixed)).for_each(|(x, y)| *x += y);
            let h = norm(x, &w("ffn_norm"));
            let gate = times(&w("ffn_gate"), &h);
            let inner: Vec<f32> =
                gate.iter().zip(times(&w("ffn_up"), &h)).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
            x.iter_mut().zip(times(&w("ffn_down"), &inner)).for_each(|(x, y)| *x += y);
        }
    }
    times(&weight("output.weight"), &norm(xs.last().unwrap(), &weight("output_norm.weight")))
}

/// The checkpoint's name for a tensor of the output.
fn theirs(name: &str) -> String {
    let fixed = [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output_norm.weight", "model.norm.weight"),
        ("output.weight", "lm_head.weight"),
    ];
    if let Some((_, theirs)) = fixed.iter().find(|(ours, _)| *ours == name) {
        return (*theirs).to_owned();
    }
    let name = name.replace("blk.", "model.layers.");
    [
        ("attn_norm", "input_layernorm"),
        ("attn_output", "self_attn.o_proj"),
        ("attn_q", "self_attn.q_proj"),
        ("attn_k", "self_attn.k_proj"),
        ("attn_v", "self_attn.v_proj"),
        ("ffn_norm", "post_attention_layernorm"),
        ("ffn_gate", "mlp.gate_proj"),
        ("ffn_up", "mlp.up_proj"),
        ("ffn_down", "mlp.down_proj"),
    ]
    .iter()
    .fold(name, |name, (ours, theirs)| name.replace(ours, theirs))
}

#[test]
fn a_llama_checkpoint_gives_the_same_logits() {
    let weights = dense();
    let made = Made::new(&config("LlamaForCausalLM", json!({})), &weights);
    let ids = [258, 104, 101, 7, 7, 200];
    let expected = llama(&ids, false, &|name| weights.get(&theirs(name)).to_vec());
    for dtype in [GgmlType::F32, GgmlType::BF16] {
        let (model, report) = made.convert(dtype).unwrap();
        assert_eq!(report.architecture, "llama");
        let logits = llama(&ids, true, &|name| values(&model, name));
        let largest = expected.iter().fold(0f32, |a, b| a.max(b.abs()));
        for (ours, theirs) in logits.iter().zip(&expected) {
            assert!((ours - theirs).abs() < 1e-4 * largest, "{ours} {theirs}");
        }
        assert_eq!(model.tensor("blk.0.attn_q.weight").unwrap().ty, dtype);
        assert_eq!(model.tensor("blk.0.attn_norm.weight").unwrap().ty, GgmlType::F32);
    }
    // Rotating the wrong way would not give them: the permutation is needed.
    let (model, _) = made.convert(GgmlType::F32).unwrap();
    let wrong = llama(&ids, false, &|name| values(&model, name));
    let largest = expected.iter().fold(0f32, |a, b| a.max(b.abs()));
    assert!(wrong.iter().zip(&expected).any(|(a, b)| (a - b).abs() > 1e-3 * largest));
}

#[test]
fn hyperparameters_and_vocabulary_are_written() {
    let more = json!({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 256}});
    let made = Made::new(&config("LlamaForCausalLM", more), &dense());
    std::fs::write(made.path().join("chat_template.jinja"), "{{ messages[0].content }}").unwrap();
    write_json(
        made.path(),
        "tokenizer_config.json",
        &json!({"bos_token": "<|start|>", "pad_token": {"content": "<tool>"}}),
    );
    let (model, report) = made.convert(GgmlType::F16).unwrap();
    let metadata = model.metadata();
    let count = |key: &str| metadata.u32(key).unwrap();
    assert_eq!(metadata.str("general.architecture").unwrap(), "llama");
    assert_eq!(count("general.file_type"), 1);
    assert_eq!(count("llama.block_count"), 2);
    assert_eq!(count("llama.embedding_length"), WIDTH as u32);
    assert_eq!(count("llama.feed_forward_length"), INNER as u32);
    assert_eq!(count("llama.attention.head_count_kv"), KV_HEADS as u32);
    assert_eq!(count("llama.rope.dimension_count"), HEAD as u32);
    assert_eq!(metadata.f32("llama.rope.freq_base").unwrap(), 10000.0);
    assert_eq!(metadata.str("tokenizer.ggml.pre").unwrap(), "llama-bpe");
    assert_eq!(count("tokenizer.ggml.bos_token_id"), 258);
    assert_eq!(count("tokenizer.ggml.eos_token_id"), 3);
    assert_eq!(count("tokenizer.ggml.padding_token_id"), 259);
    assert!(metadata.bool("tokenizer.ggml.add_bos_token").unwrap());
    assert_eq!(metadata.str("tokenizer.chat_template").unwrap(), "{{ messages[0].content }}");
    let tokens = metadata.strings("tokenizer.ggml.tokens").unwrap();
    assert_eq!(tokens.len(), VOCAB);
    assert_eq!(metadata.i32s("tokenizer.ggml.token_type").unwrap()[255..], [1, 1, 1, 3, 4, 5, 5, 5, 5]);
    let factors = values(&model, "rope_freqs.weight");
    assert_eq!((factors.len(), factors[0], factors[HEAD / 2 - 1]), (HEAD / 2, 1.0, 8.0));
    assert!(report.warnings.contains(&Warning::PaddedVocabulary { tokens: 4 }));
    assert!(report.warnings.contains(&Warning::NarrowerRange));
    assert!(!report.warnings.contains(&Warning::NoChatTemplate));
    let tokenizer = pannier_tokenizer::Tokenizer::from_metadata(metadata).unwrap();
    assert_eq!(
        tokenizer.encode("hello", Default::default()).last(),
        Some(&tokenizer.id_of_piece("o").unwrap())
    );
    assert!(tokenizer.encode("hello", Default::default()).contains(&257));
}

#[test]
fn pre_tokenizers_are_recognised_by_their_steps() {
    let made = Made::new(&config("Qwen2ForCausalLM", json!({})), &dense());
    let pre = |tokenizer: &Value| {
        write_json(made.path(), "tokenizer.json", tokenizer);
        let (model, report) = made.convert(GgmlType::F16).unwrap();
        let unknown = report.warnings.iter().any(|w| matches!(w, Warning::UnknownPreTokenizer { .. }));
        (model.metadata().str("tokenizer.ggml.pre").unwrap().to_owned(), unknown)
    };
    assert_eq!(pre(&byte_level_tokenizer(QWEN2, false)), ("qwen2".to_owned(), false));
    assert_eq!(pre(&byte_level_tokenizer(LLAMA3, true)), ("llama-bpe".to_owned(), false));
    let mut plain = byte_level_tokenizer(QWEN2, false);
    plain["pre_tokenizer"] = json!({"type": "ByteLevel", "add_prefix_space": false});
    assert_eq!(pre(&plain), ("gpt-2".to_owned(), false));
    plain["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": true}, {"type": "ByteLevel", "use_regex": true}]});
    assert_eq!(pre(&plain), ("smollm".to_owned(), false));
    assert_eq!(pre(&byte_level_tokenizer("[a-z]+", false)), ("default".to_owned(), true));
}

#[test]
fn tied_outputs_are_left_out_and_missing_ones_missed() {
    let tied = config("Qwen2ForCausalLM", json!({"tie_word_embeddings": true}));
    let (model, report) = Made::new(&tied, &dense()).convert(GgmlType::F16).unwrap();
    assert!(model.tensor("output.weight").is_none());
    assert!(report.warnings.contains(&Warning::TiedOutput));
    assert!(report.warnings.contains(&Warning::NoChatTemplate));
    let mut headless = dense();
    headless.0.pop();
    let missing = Made::new(&config("Qwen2ForCausalLM", json!({})), &headless).fails();
    assert!(matches!(missing, Error::Convert(ConvertError::MissingTensor { .. })), "{missing}");
}

#[test]
fn experts_are_stacked() {
    let mut weights = Weights::default();
    weights.add("model.embed_tokens.weight", &[VOCAB, WIDTH]);
    for layer in 0..2 {
        attention(&mut weights, layer);
        weights.add(&format!("model.layers.{layer}.mlp.gate.weight"), &[12, WIDTH]);
        for expert in 0..12 {
            for part in ["gate", "up"] {
                weights.add(
                    &format!("model.layers.{layer}.mlp.experts.{expert}.{part}_proj.weight"),
                    &[32, WIDTH],
                );
            }
            weights.add(&format!("model.layers.{layer}.mlp.experts.{expert}.down_proj.weight"), &[WIDTH, 32]);
        }
    }
    weights.add("model.norm.weight", &[WIDTH]);
    weights.add("lm_head.weight", &[VOCAB, WIDTH]);
    let more =
        json!({"num_experts": 12, "num_experts_per_tok": 4, "moe_intermediate_size": 32, "head_dim": HEAD});
    let made = Made::new(&config("Qwen3MoeForCausalLM", more.clone()), &weights);
    let (model, _) = made.convert(GgmlType::BF16).unwrap();
    assert_eq!(model.tensor("blk.1.ffn_up_exps.weight").unwrap().dims, [WIDTH as u64, 32, 12]);
    assert_eq!(model.tensor("blk.1.ffn_gate_inp.weight").unwrap().ty, GgmlType::F32);
    assert_eq!(model.metadata().u32("qwen3moe.expert_count").unwrap(), 12);
    assert_eq!(model.metadata().u32("qwen3moe.expert_feed_forward_length").unwrap(), 32);
    let stacked = values(&model, "blk.1.ffn_down_exps.weight");
    for expert in 0..12 {
        let name = format!("model.layers.1.mlp.experts.{expert}.down_proj.weight");
        assert_eq!(stacked[expert * 32 * WIDTH..][..32 * WIDTH], *weights.get(&name), "{name}");
    }
    weights.0.retain(|tensor| !tensor.name.contains("layers.1.mlp.experts.7.up"));
    let missing = Made::new(&config("Qwen3MoeForCausalLM", more), &weights).fails();
    assert!(missing.to_string().contains("expert 7"), "{missing}");
}

#[test]
fn gemma_norms_gain_one_and_its_vocabulary_comes_from_the_model_file() {
    let mut weights = dense();
    weights.0.pop();
    for layer in 0..2 {
        for part in ["pre_feedforward_layernorm", "post_feedforward_layernorm"] {
            weights.add(&format!("model.layers.{layer}.{part}.weight"), &[WIDTH]);
        }
        for part in ["q_norm", "k_norm"] {
            weights.add(&format!("model.layers.{layer}.self_attn.{part}.weight"), &[HEAD]);
        }
    }
    for tensor in &mut weights.0 {
        tensor.name = tensor.name.replace("model.", "language_model.model.");
    }
    weights.add("vision_tower.vision_model.embeddings.weight", &[4, 4]);
    let text = config(
        "x",
        json!({"head_dim": HEAD, "sliding_window": 128, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": true}),
    );
    let whole = json!({"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text});
    let made = Made::new(&whole, &weights);
    std::fs::remove_file(made.path().join("tokenizer.json")).unwrap();
    std::fs::write(made.path().join("tokenizer.model"), sentencepiece()).unwrap();
    let (model, report) = made.convert(GgmlType::F32).unwrap();
    let norm = values(&model, "blk.1.post_ffw_norm.weight");
    let source = weights.get("language_model.model.layers.1.post_feedforward_layernorm.weight");
    assert!(norm.iter().zip(source).all(|(ours, theirs)| *ours == theirs + 1.0));
    assert_eq!(
        values(&model, "blk.0.attn_q.weight"),
        weights.get("language_model.model.layers.0.self_attn.q_proj.weight")
    );
    assert!(
        model.tensor("blk.0.post_attention_norm.weight").is_some()
            && model.tensor("blk.0.attn_q_norm.weight").is_some()
    );
    assert!(report.warnings.iter().any(|w| matches!(w, Warning::LeftOut { tensors: 1, .. })));
    let metadata = model.metadata();
    assert_eq!(metadata.u32("gemma3.attention.sliding_window").unwrap(), 128);
    assert_eq!(metadata.str("tokenizer.ggml.model").unwrap(), "llama");
    assert_eq!(metadata.strings("tokenizer.ggml.tokens").unwrap().get(3), Some("▁hello"));
    assert_eq!(metadata.f32s("tokenizer.ggml.scores").unwrap()[3], -1.5);
    assert_eq!(metadata.i32s("tokenizer.ggml.token_type").unwrap()[..6], [2, 3, 3, 1, 6, 4]);
    assert!(!metadata.bool("tokenizer.ggml.add_space_prefix").unwrap());
}

fn sentencepiece() -> Vec<u8> {
    let pieces: [(&str, f32, u8); 6] = [
        ("<unk>", 0.0, 2),
        ("<s>", 0.0, 3),
        ("</s>", 0.0, 3),
        ("▁hello", -1.5, 1),
        ("<0x0A>", 0.0, 6),
        ("\n\n", 0.0, 4),
    ];
    let mut out = Vec::new();
    for (text, score, kind) in pieces {
        let mut piece = vec![0x0A, text.len() as u8];
        piece.extend(text.as_bytes());
        piece.push(0x15);
        piece.extend(score.to_le_bytes());
        piece.extend([0x18, kind]);
        out.extend([0x0A, piece.len() as u8]);
        out.extend(piece);
    }
    out.extend([0x1A, 2, 0x18, 0]);
    out
}

/// Everything of a gpt-oss layer but the weights of the experts.
fn gpt_oss_frame(experts: usize) -> Weights {
    let mut weights = Weights::default();
    weights.add("model.embed_tokens.weight", &[VOCAB, WIDTH]);
    for layer in 0..2 {
        attention(&mut weights, layer);
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        weights.add(&name("self_attn.sinks"), &[HEADS]);
        weights.add(&name("mlp.router.weight"), &[experts, WIDTH]);
        weights.add(&name("mlp.router.bias"), &[experts]);
        weights.add(&name("mlp.experts.gate_up_proj_bias"), &[experts, 2 * INNER]);
        weights.add(&name("mlp.experts.down_proj_bias"), &[experts, WIDTH]);
    }
    weights.add("model.norm.weight", &[WIDTH]);
    weights.add("lm_head.weight", &[VOCAB, WIDTH]);
    weights
}

fn gpt_oss_config(experts: usize) -> Value {
    config(
        "GptOssForCausalLM",
        json!({"num_local_experts": experts, "num_experts_per_tok": 2, "sliding_window": 128}),
    )
}

#[test]
fn gpt_oss_blocks_are_repacked() {
    const LEVELS: [f32; 16] =
        [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];
    let experts = 3;
    let mut weights = gpt_oss_frame(experts);
    for layer in 0..2 {
        for (part, rows, columns) in [("gate_up_proj", 2 * INNER, WIDTH), ("down_proj", WIDTH, INNER)] {
            let blocks = columns / 32;
            let bytes = |seed: u64, count: usize| -> Vec<f32> {
                noise(seed, count).iter().map(|x| ((x * 1e5) as i32 & 255) as f32).collect()
            };
            let name = |kind: &str| format!("model.layers.{layer}.mlp.experts.{part}_{kind}");
            let packed = bytes((layer * 7 + rows) as u64, experts * rows * blocks * 16);
            let scales: Vec<f32> =
                bytes(rows as u64, experts * rows * blocks).iter().map(|x| 118.0 + x % 10.0).collect();
            weights.0.push(tensor(&name("blocks"), &[experts, rows, blocks, 16], "U8", packed));
            weights.0.push(tensor(&name("scales"), &[experts, rows, blocks], "U8", scales));
        }
    }
    let made = Made::new(&gpt_oss_config(experts), &weights);
    let (model, _) = made.convert(GgmlType::F16).unwrap();
    for (ours, part, rows, columns, start, step) in [
        ("gate", "gate_up_proj", 2 * INNER, WIDTH, 0, 2),
        ("up", "gate_up_proj", 2 * INNER, WIDTH, 1, 2),
        ("down", "down_proj", WIDTH, INNER, 0, 1),
    ] {
        let name = format!("blk.1.ffn_{ours}_exps.weight");
        assert_eq!(model.tensor(&name).unwrap().ty, GgmlType::MXFP4);
        let decoded = values(&model, &name);
        let packed = weights.get(&format!("model.layers.1.mlp.experts.{part}_blocks"));
        let scales = weights.get(&format!("model.layers.1.mlp.experts.{part}_scales"));
        let out_rows = rows / step;
        for (index, value) in decoded.iter().enumerate() {
            let (column, row) = (index % columns, index / columns);
            let source = row / out_rows * rows + start + row % out_rows * step;
            let element = source * columns + column;
            let nibble = packed[element / 2] as usize >> (4 * (element % 2)) & 15;
            let expected = LEVELS[nibble] * 2f32.powi(scales[element / 32] as i32 - 127);
            assert_eq!(*value, expected, "{name} {row} {column}");
        }
    }
    let bias = values(&model, "blk.0.ffn_up_exps.bias");
    let source = weights.get("model.layers.0.mlp.experts.gate_up_proj_bias");
    assert!(bias.iter().enumerate().all(|(i, x)| *x == source[2 * i + 1]));
    assert_eq!(model.tensor("blk.0.ffn_up_exps.bias").unwrap().dims, [INNER as u64, 3]);
    assert_eq!(values(&model, "blk.1.attn_sinks.weight"), weights.get("model.layers.1.self_attn.sinks"));
    assert_eq!(model.metadata().u32("gpt-oss.expert_used_count").unwrap(), 2);
}

#[test]
fn gpt_oss_in_bf16_is_transposed() {
    let experts = 2;
    let mut weights = gpt_oss_frame(experts);
    for layer in 0..2 {
        weights.add(&format!("model.layers.{layer}.mlp.experts.gate_up_proj"), &[experts, WIDTH, 2 * INNER]);
        weights.add(&format!("model.layers.{layer}.mlp.experts.down_proj"), &[experts, INNER, WIDTH]);
    }
    let made = Made::new(&gpt_oss_config(experts), &weights);
    let (model, _) = made.convert(GgmlType::BF16).unwrap();
    let up = values(&model, "blk.0.ffn_up_exps.weight");
    let source = weights.get("model.layers.0.mlp.experts.gate_up_proj");
    for (index, value) in up.iter().enumerate() {
        let (column, row, expert) = (index % WIDTH, index / WIDTH % INNER, index / WIDTH / INNER);
        assert_eq!(*value, source[(expert * WIDTH + column) * 2 * INNER + 2 * row + 1]);
    }
    let down = values(&model, "blk.1.ffn_down_exps.weight");
    let source = weights.get("model.layers.1.mlp.experts.down_proj");
    for (index, value) in down.iter().enumerate() {
        let (column, row, expert) = (index % INNER, index / INNER % WIDTH, index / INNER / WIDTH);
        assert_eq!(*value, source[(expert * INNER + column) * WIDTH + row]);
    }
}

#[test]
fn linear_attention_heads_are_tiled() {
    let (keys, heads, key_dim, dim, inner) = (2usize, 4usize, 8usize, 16usize, 24usize);
    let mut weights = Weights::default();
    weights.add("model.language_model.embed_tokens.weight", &[VOCAB, WIDTH]);
    for layer in 0..2 {
        let name = |part: &str| format!("model.language_model.layers.{layer}.{part}");
        weights.add(&name("input_layernorm.weight"), &[WIDTH]);
        weights.add(&name("post_attention_layernorm.weight"), &[WIDTH]);
        weights.add(&name("linear_attn.in_proj_qkv.weight"), &[2 * keys * key_dim + heads * dim, WIDTH]);
        weights.add(&name("linear_attn.in_proj_z.weight"), &[heads * dim, WIDTH]);
        weights.add(&name("linear_attn.in_proj_a.weight"), &[heads, WIDTH]);
        weights.add(&name("linear_attn.in_proj_b.weight"), &[heads, WIDTH]);
        weights.add(&name("linear_attn.conv1d.weight"), &[2 * keys * key_dim + heads * dim, 1, 4]);
        weights.add(&name("linear_attn.A_log"), &[heads]);
        weights.add(&name("linear_attn.dt_bias"), &[heads]);
        weights.add(&name("linear_attn.norm.weight"), &[dim]);
        weights.add(&name("linear_attn.out_proj.weight"), &[WIDTH, heads * dim]);
        weights.add(&name("mlp.gate.weight"), &[3, WIDTH]);
        weights.add(&name("mlp.shared_expert_gate.weight"), &[1, WIDTH]);
        weights.add(&name("mlp.experts.gate_up_proj"), &[3, 2 * inner, WIDTH]);
        weights.add(&name("mlp.experts.down_proj"), &[3, WIDTH, inner]);
    }
    weights.add("model.language_model.norm.weight", &[WIDTH]);
    weights.add("lm_head.weight", &[VOCAB, WIDTH]);
    weights.add("mtp.fc.weight", &[4, 4]);
    let text = config(
        "x",
        json!({"linear_num_key_heads": keys, "linear_num_value_heads": heads,
        "linear_key_head_dim": key_dim, "linear_value_head_dim": dim, "linear_conv_kernel_dim": 4, "head_dim": HEAD,
        "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": inner,
        "rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [11, 11, 10]}}),
    );
    let made = Made::new(
        &json!({"architectures": ["Qwen3_5MoeForConditionalGeneration"], "text_config": text}),
        &weights,
    );
    let (model, _) = made.convert(GgmlType::F32).unwrap();
    let source = |part: &str| weights.get(&format!("model.language_model.layers.1.{part}"));
    // Value heads 0 1 (of key 0) 2 3 (of key 1) become 0 2 1 3.
    let order = [0, 2, 1, 3];
    let decay = values(&model, "blk.1.ssm_a");
    let logs = source("linear_attn.A_log");
    assert!((0..heads).all(|head| (decay[head] + logs[order[head]].exp()).abs() < 1e-6));
    let bias = values(&model, "blk.1.ssm_dt.bias");
    assert!((0..heads).all(|head| bias[head] == source("linear_attn.dt_bias")[order[head]]));
    let (qkv, from) = (values(&model, "blk.1.attn_qkv.weight"), 2 * keys * key_dim);
    assert_eq!(qkv[..from * WIDTH], source("linear_attn.in_proj_qkv.weight")[..from * WIDTH]);
    let out = values(&model, "blk.1.ssm_out.weight");
    for (head, &source_head) in order.iter().enumerate().take(heads) {
        let (ours, theirs) = ((from + head * dim) * WIDTH, (from + source_head * dim) * WIDTH);
        assert_eq!(
            qkv[ours..][..dim * WIDTH],
            source("linear_attn.in_proj_qkv.weight")[theirs..][..dim * WIDTH]
        );
        for row in 0..WIDTH {
            let (ours, theirs) = (row * heads * dim + head * dim, row * heads * dim + source_head * dim);
            assert_eq!(out[ours..][..dim], source("linear_attn.out_proj.weight")[theirs..][..dim]);
        }
    }
    assert_eq!(model.tensor("blk.1.ssm_conv1d.weight").unwrap().dims, [4, (from + heads * dim) as u64]);
    assert_eq!(values(&model, "blk.1.ssm_norm.weight"), source("linear_attn.norm.weight"));
    assert_eq!(values(&model, "blk.1.attn_norm.weight")[0], source("input_layernorm.weight")[0] + 1.0);
    let (gate, up) =
        (values(&model, "blk.1.ffn_gate_exps.weight"), values(&model, "blk.1.ffn_up_exps.weight"));
    let fused = source("mlp.experts.gate_up_proj");
    for expert in 0..3 {
        let (ours, theirs) = (expert * inner * WIDTH, 2 * expert * inner * WIDTH);
        assert_eq!(gate[ours..][..inner * WIDTH], fused[theirs..][..inner * WIDTH]);
        assert_eq!(up[ours..][..inner * WIDTH], fused[theirs + inner * WIDTH..][..inner * WIDTH]);
    }
    let metadata = model.metadata();
    assert_eq!(metadata.i32s("qwen35moe.rope.dimension_sections").unwrap(), [11, 11, 10, 0]);
    assert_eq!(metadata.u32("qwen35moe.ssm.inner_size").unwrap(), (heads * dim) as u32);
    assert_eq!(metadata.u32("qwen35moe.rope.dimension_count").unwrap(), HEAD as u32 / 4);
}

#[test]
fn weights_beyond_f16_are_named_with_advice() {
    let mut weights = dense();
    let large = weights.0.iter_mut().find(|t| t.name.contains("layers.1.mlp.up_proj")).unwrap();
    large.values[5 * WIDTH + 9] = 70000.0;
    *large = tensor(&large.name.clone(), &[INNER, WIDTH], "BF16", large.values.clone());
    let made = Made::new(&config("Qwen2ForCausalLM", json!({})), &weights);
    let error = made.fails();
    assert!(matches!(error, Error::Convert(ConvertError::Overflow { row: 5, column: 9, .. })), "{error}");
    assert!(error.to_string().contains("bf16"));
    made.convert(GgmlType::BF16).unwrap();
}

#[test]
fn broken_checkpoints_are_refused() {
    let make = || Made::new(&config("LlamaForCausalLM", json!({})), &dense());
    let bad = |change: &dyn Fn(&Path)| {
        let made = make();
        change(made.path());
        made.fails()
    };
    let shard = "model-00002-of-00002.safetensors";
    let error = bad(&|p| std::fs::remove_file(p.join("config.json")).unwrap());
    assert!(matches!(error, Error::Convert(ConvertError::Missing { .. })), "{error}");
    let error = bad(&|p| std::fs::remove_file(p.join(shard)).unwrap());
    assert!(matches!(error, Error::Convert(ConvertError::Missing { .. })), "{error}");
    let error = bad(&|p| write_json(p, "config.json", &config("FalconForCausalLM", json!({}))));
    assert!(matches!(error, Error::Convert(ConvertError::UnknownArchitecture { .. })), "{error}");
    for (key, value) in [
        ("hidden_size", json!(-1)),
        ("num_hidden_layers", json!("two")),
        ("num_attention_heads", json!(0)),
        ("num_key_value_heads", json!(7)),
        ("vocab_size", json!(4_000_000_000u32)),
        ("rms_norm_eps", json!("x")),
        ("num_hidden_layers", json!(3)),
    ] {
        let error = bad(&|p| write_json(p, "config.json", &config("LlamaForCausalLM", json!({key: value}))));
        assert!(matches!(error, Error::Convert(_)), "{key}: {error}");
    }
    for cut in [0, 5, 9, 200, 20000] {
        let error = bad(&|p| {
            let bytes = std::fs::read(p.join(shard)).unwrap();
            std::fs::write(p.join(shard), &bytes[..cut]).unwrap();
        });
        assert!(matches!(error, Error::Convert(ConvertError::BadFile { .. })), "{cut}: {error}");
    }
    let stranger = bad(&|p| {
        let mut weights = dense();
        weights.add("model.layers.0.self_attn.surprise.weight", &[2, 2]);
        write_shards(p, &weights);
    });
    assert!(matches!(stranger, Error::Convert(ConvertError::UnknownTensor { .. })), "{stranger}");
    let error = bad(&|p| std::fs::write(p.join("tokenizer.json"), "{").unwrap());
    assert!(matches!(error, Error::Convert(ConvertError::BadFile { .. })), "{error}");
    let made = make();
    assert!(matches!(made.convert(GgmlType::Q4_K), Err(Error::Convert(ConvertError::BadTarget { .. }))));
    std::fs::remove_file(made.path().join("tokenizer.json")).unwrap();
    let (_, report) = made.convert(GgmlType::Q8_0).unwrap();
    assert!(report.warnings.contains(&Warning::NoTokenizer));
}

#[test]
fn a_shard_name_cannot_lead_out_of_the_folder() {
    let made = Made::new(&config("LlamaForCausalLM", json!({})), &dense());
    let index = json!({"weight_map": {"model.norm.weight": "../secret.safetensors"}});
    write_json(made.path(), "model.safetensors.index.json", &index);
    assert!(matches!(made.fails(), Error::Convert(ConvertError::Missing { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn changed_headers_and_model_files_are_read_or_refused(place in 0usize..600, value in any::<u8>(), spm in any::<bool>()) {
        let folder = tempfile::tempdir().unwrap();
        write_json(folder.path(), "config.json", &config("LlamaForCausalLM", json!({"num_hidden_layers": 2})));
        let mut bytes = safetensors(&dense().0);
        let mut model = sentencepiece();
        if spm {
            let at = place % model.len();
            model[at] = value;
        } else {
            bytes[place] = value;
        }
        std::fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
        std::fs::write(folder.path().join("tokenizer.model"), model).unwrap();
        let _ = convert(folder.path(), folder.path().join("out.gguf"), &ConvertOptions::default(), &Silent);
    }
}
