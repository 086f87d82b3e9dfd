//! Gemma 4: heads of two lengths, layers that borrow keys, embeddings per layer, experts beside a dense block.

use crate::tiny::{EMBD, EXPERTS, FF, Tiny, VOCAB, all, in_steps, runner, step, text};
use pannier::kv::KvTypes;
use pannier::memory::Accountant;
use pannier::model::{Blueprint, Forward, LoadedModel, ModelOptions, Outputs, Runner, RunnerOptions};
use pannier::pack::pack;
use pannier::residency::{ResidencyPlan, ResidencyWish, StreamOptions};
use pannier::{CancelFlag, Error, KvOptions, KvPolicy};
use pannier_gguf::Gguf;
use pannier_kernels::Serial;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// Values of a layer's own embedding.
const OWN: u64 = 32;

impl Tiny {
    /// As E2B: of five layers two are global, and the last two borrow their keys.
    pub fn gemma4() -> Tiny {
        let mut tiny = Tiny::gemma4_base(&[true, true, false, true, false], &[2; 5]);
        tiny.key("attention.shared_kv_layers", 2u32);
        tiny.key("embedding_length_per_layer_input", OWN as u32);
        let ff = [FF, FF, FF, 2 * FF, 2 * FF];
        tiny.key("feed_forward_length", ff.map(|ff: u64| ff as u32).to_vec());
        tiny.matrix("per_layer_token_embd.weight", &[5 * OWN, VOCAB as u64]);
        tiny.matrix("per_layer_model_proj.weight", &[EMBD, 5 * OWN]);
        tiny.norm("per_layer_proj_norm.weight", OWN);
        for (layer, ff) in (0..5).zip(ff) {
            let name = |part: &str| format!("blk.{layer}.{part}.weight");
            let dim = if [2, 4].contains(&layer) { 64 } else { 32 };
            let own = if layer < 3 { 2 * dim } else { 0 };
            tiny.gemma4_attention(layer, dim, own, own);
            tiny.gemma4_dense(layer, ff);
            tiny.matrix(&name("inp_gate"), &[EMBD, OWN]);
            tiny.matrix(&name("proj"), &[OWN, EMBD]);
            tiny.norm(&name("post_norm"), EMBD);
            tiny.floats(&name("layer_output_scale"), &[1], |x| 0.8 + 0.2 * x);
        }
        tiny
    }

    /// As 26B-A4B: experts, and in global layers fewer keys, which are the values too.
    pub fn gemma4_experts() -> Tiny {
        let mut tiny = Tiny::gemma4_base(&[true, false, true], &[2, 1, 2]);
        tiny.key("attention.shared_kv_layers", 0u32);
        tiny.key("embedding_length_per_layer_input", 0u32);
        tiny.key("expert_count", EXPERTS as u32);
        tiny.key("expert_used_count", 3u32);
        tiny.key("expert_feed_forward_length", 64u32);
        for layer in 0..3 {
            let name = |part: &str| format!("blk.{layer}.{part}");
            let (dim, keys, values) = if layer == 1 { (64, 64, 0) } else { (32, 64, 64) };
            tiny.gemma4_attention(layer, dim, keys, values);
            tiny.gemma4_dense(layer, FF);
            tiny.floats(&name("ffn_gate_inp.weight"), &[EMBD, EXPERTS], |x| x);
            tiny.floats(&name("ffn_gate_inp.scale"), &[EMBD], |x| 6.0 + x);
            tiny.matrix(&name("ffn_gate_up_exps.weight"), &[EMBD, 128, EXPERTS]);
            tiny.matrix(&name("ffn_down_exps.weight"), &[64, EMBD, EXPERTS]);
            tiny.floats(&name("ffn_down_exps.scale"), &[EXPERTS], |x| 1.0 + 0.5 * x);
            for norm in ["post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2"] {
                tiny.norm(&name(&format!("{norm}.weight")), EMBD);
            }
        }
        tiny
    }

    /// Keys that all have, and rotations of the first quarter of global heads.
    fn gemma4_base(local: &[bool], kv_heads: &[u32]) -> Tiny {
        let mut tiny = Tiny::new("gemma4", local.len() as u32);
        tiny.key("vocab_size", VOCAB as u32);
        tiny.key("attention.sliding_window", 24u32);
        tiny.key("attention.sliding_window_pattern", local.to_vec());
        tiny.key("attention.head_count_kv", kv_heads.to_vec());
        for (key, value) in [
            ("attention.key_length", 64),
            ("attention.value_length", 64),
            ("attention.key_length_swa", 32),
            ("attention.value_length_swa", 32),
            ("rope.dimension_count", 64),
            ("rope.dimension_count_swa", 32u32),
        ] {
            tiny.key(key, value);
        }
        tiny.key("rope.freq_base", 1e6f32);
        tiny.key("rope.freq_base_swa", 1e4f32);
        tiny.key("final_logit_softcapping", 30f32);
        let mut pair = 0;
        tiny.floats("rope_freqs.weight", &[32], |_| {
            pair += 1;
            if pair <= 8 { 1.0 } else { 1e30 }
        });
        tiny.norm("output_norm.weight", EMBD);
        tiny
    }

    fn norm(&mut self, name: &str, len: u64) {
        self.floats(name, &[len], |x| 1.0 + 0.3 * x);
    }

    /// Heads of length `dim`; `keys` and `values`: their width, 0 without.
    fn gemma4_attention(&mut self, layer: usize, dim: u64, keys: u64, values: u64) {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        self.norm(&name("attn_norm"), EMBD);
        self.norm(&name("post_attention_norm"), EMBD);
        self.norm(&name("attn_q_norm"), dim);
        self.matrix(&name("attn_q"), &[EMBD, 4 * dim]);
        self.matrix(&name("attn_output"), &[4 * dim, EMBD]);
        if keys > 0 {
            self.matrix(&name("attn_k"), &[EMBD, keys]);
            self.norm(&name("attn_k_norm"), dim);
        }
        if values > 0 {
            self.matrix(&name("attn_v"), &[EMBD, values]);
        }
    }

    fn gemma4_dense(&mut self, layer: usize, ff: u64) {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        self.norm(&name("ffn_norm"), EMBD);
        self.norm(&name("post_ffw_norm"), EMBD);
        for (part, dims) in [("gate", [EMBD, ff]), ("up", [EMBD, ff]), ("down", [ff, EMBD])] {
            self.matrix(&name(&format!("ffn_{part}")), &dims);
        }
    }
}

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/peer").join(format!("{name}.json"))
}

/// What llama.cpp gives for the same file, to be made anew with `PANNIER_UPDATE_PEER=PYTHON`, an interpreter that has llama-cpp-python.
fn reference(name: &str, tiny: &Tiny, ids: &[u32]) -> Vec<f64> {
    if let Some(python) = std::env::var_os("PANNIER_UPDATE_PEER") {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.gguf");
        tiny.write(&path);
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../xtask/peer/llama_cpp_quantize.py");
        let list = ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let output =
            Command::new(python).arg(script).arg("score").arg(&path).args(["1", &list]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        std::fs::write(data(name), output.stdout).unwrap();
    }
    let text = std::fs::read_to_string(data(name)).unwrap();
    let all: Value = serde_json::from_str(&text).unwrap();
    all["logprobs"].as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
}

/// In halves activations are hardly rounded, so every log-probability has to be that of the reference engine.
#[test]
fn log_probabilities_are_those_of_the_reference() {
    for (name, tiny) in [("gemma4", Tiny::gemma4()), ("gemma4-experts", Tiny::gemma4_experts())] {
        let tiny = tiny.in_halves(|_| true);
        let ids = text(64);
        let wanted = reference(name, &tiny, &ids);
        assert_eq!(wanted.len(), ids.len() - 1);
        let bits = all(&mut runner(&tiny.load(), 512, 1), &ids);
        let errors: Vec<f64> = bits
            .chunks_exact(VOCAB)
            .zip(&ids[1..])
            .zip(wanted)
            .map(|((row, &next), wanted)| {
                let row: Vec<f64> = row.iter().map(|&bits| f64::from(f32::from_bits(bits))).collect();
                let sum: f64 = row.iter().map(|logit| logit.exp()).sum();
                (row[next as usize] - sum.ln() - wanted).abs()
            })
            .collect();
        let most = errors.iter().copied().fold(0.0, f64::max);
        let mean = errors.iter().sum::<f64>() / errors.len() as f64;
        println!("{name}: mean {mean:.5}, max {most:.5}");
        assert!(most <= 0.01 && mean <= 0.002, "{name}: mean {mean}, max {most}");
    }
}

#[test]
fn layers_that_borrow_keys_store_none() {
    let model = Tiny::gemma4().load();
    let spec = model.spec();
    let borrows: Vec<_> = spec.attention.iter().map(|layer| layer.borrows).collect();
    assert_eq!(borrows, [None, None, None, Some(1), Some(2)]);
    assert_eq!((spec.kv(KvTypes::F16).len(), spec.storing_layers()), (3, 3));
    // All that is behind the layers with keys is left out for tokens whose logits nobody reads, and changes nothing.
    let mut runner = runner(&model, 16, 2);
    let tokens = text(50);
    let wanted = all(&mut runner, &tokens);
    let mut seq = runner.new_seq().unwrap();
    let last = runner.step(&mut seq, &tokens, Outputs::Last, &CancelFlag::new()).unwrap();
    let last: Vec<u32> = last.iter().map(|logit| logit.to_bits()).collect();
    assert_eq!(last, wanted[49 * VOCAB..]);
}

/// The tables are read by row wherever weights live, and passes that end behind the last layer with keys leave the ring in order.
#[test]
fn streamed_layers_give_the_same_bits() {
    let tiny = Tiny::gemma4();
    let folder = tempfile::tempdir().unwrap();
    let (path, packed) = (folder.path().join("tiny.gguf"), folder.path().join("tiny.pack"));
    tiny.write(&path);
    pack(&Gguf::open(&path).unwrap(), &packed, &mut |_, _| {}).unwrap();
    let tokens = text(60);
    let wanted = all(&mut runner(&tiny.load(), 512, 1), &tokens);
    for path in [&path, &packed] {
        let read = || Blueprint::read(Arc::new(Gguf::open(path).unwrap()), &ModelOptions::default()).unwrap();
        let plan = |budget| {
            let wish = ResidencyWish { budget: Some(budget), experts_used: 0 };
            ResidencyPlan::new(read().layout(), &wish).unwrap()
        };
        let least = plan(1).unwrap_err().needed;
        for budget in [least, least + (64 << 10)] {
            let plan = plan(budget).unwrap();
            assert!(plan.streamed_bytes > 0, "{plan:?}");
            let accountant = Accountant::new(None);
            let model = read().load(plan, &StreamOptions::default(), &accountant).unwrap();
            let options = RunnerOptions { chunk: 16, ..RunnerOptions::default() };
            let mut runner = Runner::new(Arc::new(model), Arc::new(Serial), &options, &accountant).unwrap();
            assert_eq!(in_steps(&mut runner, &tokens, &[20, 1, 1, 30, 4]), wanted, "{budget}");
            let mut seq = runner.new_seq().unwrap();
            let last = runner.step(&mut seq, &tokens, Outputs::Last, &CancelFlag::new()).unwrap();
            let last: Vec<u32> = last.iter().map(|logit| logit.to_bits()).collect();
            assert_eq!(last, wanted[59 * VOCAB..], "{budget}");
        }
    }
}

#[test]
fn suppressed_tokens_never_come_out() {
    let mut tiny = Tiny::gemma4();
    let wanted = all(&mut runner(&tiny.load(), 512, 1), &text(8));
    tiny.raw_key("tokenizer.ggml.suppress_tokens", vec![5i32, 90]);
    let mut runner = runner(&tiny.load(), 512, 1);
    let mut seq = runner.new_seq().unwrap();
    let logits = runner.step(&mut seq, &text(8), Outputs::All, &CancelFlag::new()).unwrap();
    for (at, (logit, wanted)) in logits.iter().zip(wanted).enumerate() {
        let wanted = if [5, 90].contains(&(at % VOCAB)) { f32::NEG_INFINITY.to_bits() } else { wanted };
        assert_eq!(logit.to_bits(), wanted, "{at}");
    }
    tiny.raw_key("tokenizer.ggml.suppress_tokens", vec![96i32]);
    assert!(tiny.try_load().unwrap_err().to_string().contains("no such token"));
}

/// Borrowed keys are read as their owner keeps them: with every element type the bits do not depend on how a text is cut.
#[test]
fn every_kv_type_gives_the_same_bits_in_any_batch() {
    let (model, tokens) = (Tiny::gemma4().load(), text(90));
    for name in KvTypes::names() {
        let run = |chunk: usize, sizes: &[usize]| {
            let kv = KvOptions { types: name.parse().unwrap(), ..KvOptions::default() };
            in_steps(&mut with(&model, chunk, kv), &tokens, sizes)
        };
        let wanted = run(512, &[90]);
        for (chunk, sizes) in [(512, &[1usize][..]), (16, &[90]), (512, &[40, 1, 1, 3]), (7, &[33, 5])] {
            assert_eq!(run(chunk, sizes), wanted, "{name}, {chunk}, {sizes:?}");
        }
    }
}

/// What is forgotten is forgotten for all that read it; a policy that keeps more than there is changes nothing.
#[test]
fn policies_forget_for_those_that_borrow_too() {
    let (model, tokens) = (Tiny::gemma4().load(), text(150));
    let next = |policy: &str| {
        let policy: KvPolicy = policy.parse().unwrap();
        let mut runner = with(&model, 512, KvOptions { policy, ..KvOptions::default() });
        let mut seq = runner.new_seq().unwrap();
        runner.step(&mut seq, &tokens, Outputs::Last, &CancelFlag::new()).unwrap();
        for token in 0..20 {
            runner.step(&mut seq, &[token], Outputs::Last, &CancelFlag::new()).unwrap();
        }
        let kept = runner.evict(&mut seq).unwrap().kept;
        (kept, step(&mut runner, &mut seq, &[9]))
    };
    let wanted = next("all").1;
    assert_eq!(next("heavy:2:20:500").1, wanted);
    for (policy, keeps) in [("window:40", 40), ("sinks:4:40", 44), ("heavy:4:20:20", 44)] {
        let (kept, bits) = next(policy);
        assert!(kept == keeps && bits != wanted, "{policy}: {kept}");
    }
    assert!(next("pages:128").1.iter().all(|&bits| f32::from_bits(bits).is_finite()));
}

fn with(model: &Arc<LoadedModel>, chunk: usize, kv: KvOptions) -> Runner {
    let options = RunnerOptions { chunk, kv, ..RunnerOptions::default() };
    Runner::new(Arc::clone(model), Arc::new(Serial), &options, &Accountant::new(None)).unwrap()
}

#[test]
fn impossible_sharing_is_refused() {
    for (key, value, says) in [
        ("attention.shared_kv_layers", 5u32, "no layer with keys of its own"),
        ("attention.shared_kv_layers", 3, "same kind"),
        ("attention.head_count_kv", 3, "divide"),
        ("attention.key_length_swa", 33, "this length"),
        ("attention.head_count", 0, "head"),
        ("attention.sliding_window", 0, "at least 1"),
        ("embedding_length_per_layer_input", 1 << 20, "too wide"),
        ("embedding_length_per_layer_input", 31, "per_layer_token_embd"),
    ] {
        let mut tiny = Tiny::gemma4();
        tiny.key(key, value);
        let error = tiny.try_load().unwrap_err();
        assert!(!matches!(error, Error::Internal { .. }), "{error}");
        assert!(error.to_string().contains(says), "{key} {value}: {error}");
    }
    for key in ["attention.sliding_window_pattern", "attention.sliding_window"] {
        let error = Tiny::gemma4().without(key).try_load().unwrap_err().to_string();
        assert!(error.contains(key), "{error}");
    }
}
