//! Small random models in real files, and runs of them.

use pannier::CancelFlag;
use pannier::memory::Accountant;
use pannier::model::{Blueprint, Forward, ModelOptions, Outputs, Runner, RunnerOptions};
use pannier::plan::{DeviceProfile, Plan, PlanWish};
use pannier::residency::{FlashStats, ResidencyPlan, ResidencyWish, StreamOptions};
use pannier_gguf::{GgmlType, Gguf, Writer};
use pannier_kernels::Serial;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub const VOCAB: u64 = 320;
pub const LAYERS: u64 = 5;
const EMBD: u64 = 256;
const FFN: u64 = 704;

/// xorshift*: the same bytes everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

/// Random Q8_0 blocks: an f16 scale and 32 signed bytes.
fn q8_0(elements: u64, random: &mut Random) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..elements / 32 {
        // About 0.001, so that products of 256 stay near 1.
        out.extend_from_slice(&(0x1400u16 + (random.next() & 0xff) as u16).to_le_bytes());
        (0..4).for_each(|_| out.extend_from_slice(&random.next().to_le_bytes()));
    }
    out
}

/// A llama of five layers; a dense one, or with experts.
pub fn model(folder: &Path) -> PathBuf {
    let mut writer = Writer::new();
    writer.set("general.architecture", "llama");
    for (key, value) in [
        ("context_length", 256u32),
        ("embedding_length", EMBD as u32),
        ("block_count", LAYERS as u32),
        ("feed_forward_length", FFN as u32),
        ("attention.head_count", 8),
        ("attention.head_count_kv", 2),
        ("rope.dimension_count", 32),
    ] {
        writer.set(format!("llama.{key}"), value);
    }
    writer.set("llama.attention.layer_norm_rms_epsilon", 1e-5f32);
    let mut tensors: Vec<(String, Vec<u64>, GgmlType)> =
        vec![("token_embd.weight".into(), vec![EMBD, VOCAB], GgmlType::Q8_0)];
    for layer in 0..LAYERS {
        let mut add = |name: &str, dims: &[u64], ty| {
            tensors.push((format!("blk.{layer}.{name}.weight"), dims.to_vec(), ty))
        };
        add("attn_norm", &[EMBD], GgmlType::F32);
        add("attn_q", &[EMBD, EMBD], GgmlType::Q8_0);
        add("attn_k", &[EMBD, 64], GgmlType::Q8_0);
        add("attn_v", &[EMBD, 64], GgmlType::Q8_0);
        add("attn_output", &[EMBD, EMBD], GgmlType::Q8_0);
        add("ffn_norm", &[EMBD], GgmlType::F32);
        add("ffn_gate", &[EMBD, FFN], GgmlType::Q8_0);
        add("ffn_up", &[EMBD, FFN], GgmlType::Q8_0);
        add("ffn_down", &[FFN, EMBD], GgmlType::Q8_0);
    }
    tensors.push(("output_norm.weight".into(), vec![EMBD], GgmlType::F32));
    tensors.push(("output.weight".into(), vec![EMBD, VOCAB], GgmlType::Q8_0));
    for (name, dims, ty) in &tensors {
        writer.tensor(name, dims, *ty).unwrap();
    }
    let path = folder.join("tiny.gguf");
    let mut random = Random(7);
    writer
        .write_file(&path, |out| -> Result<(), pannier_gguf::Error> {
            for (name, dims, ty) in &tensors {
                let elements = dims.iter().product();
                let data = match *ty {
                    GgmlType::F32 => (0..elements).flat_map(|_| 1f32.to_le_bytes()).collect(),
                    _ => q8_0(elements, &mut random),
                };
                out.write(name, &data)?;
            }
            Ok(())
        })
        .unwrap();
    path
}

pub fn blueprint(path: &Path) -> Blueprint {
    Blueprint::read(Arc::new(Gguf::open(path).unwrap()), &ModelOptions::default()).unwrap()
}

/// All dense weights, as copies.
pub fn dense_bytes(path: &Path) -> u64 {
    let wish = ResidencyWish { budget: Some(u64::MAX / 2), experts_used: 0 };
    ResidencyPlan::new(blueprint(path).layout(), &wish).unwrap().unwrap().pinned_bytes
}

pub fn residency(path: &Path, budget: Option<u64>) -> ResidencyPlan {
    let model = blueprint(path);
    let wish = ResidencyWish { budget, experts_used: model.experts_used() };
    ResidencyPlan::new(model.layout(), &wish).unwrap().unwrap()
}

pub fn runner(path: &Path, budget: Option<u64>, stream: &StreamOptions) -> Result<Runner, pannier::Error> {
    let plan = residency(path, budget);
    let accountant = Accountant::new(None);
    let loaded = blueprint(path).load(plan, stream, &accountant)?;
    let options = RunnerOptions { chunk: 16, ..RunnerOptions::default() };
    Runner::new(Arc::new(loaded), Arc::new(Serial), &options, &accountant)
}

/// Bits of all logits: a prompt of 24 tokens (two chunks), then 6 tokens one by one.
pub fn logits(runner: &mut Runner) -> Result<Vec<u32>, pannier::Error> {
    let cancel = CancelFlag::default();
    let mut seq = runner.new_seq()?;
    let prompt: Vec<u32> = (0..24u32).map(|i| (7 * i + 1) % VOCAB as u32).collect();
    let mut out = Vec::new();
    let bits = |logits: &[f32], out: &mut Vec<u32>| out.extend(logits.iter().map(|x| x.to_bits()));
    bits(runner.step(&mut seq, &prompt, Outputs::Last, &cancel)?, &mut out);
    for token in 0..6u32 {
        bits(runner.step(&mut seq, &[token * 31 + 5], Outputs::Last, &cancel)?, &mut out);
    }
    assert!(out.iter().all(|&bits| f32::from_bits(bits).is_finite()));
    Ok(out)
}

pub fn flash(runner: &Runner) -> FlashStats {
    runner.model().weights().flash()
}

pub fn plan(path: &Path, budget: u64) -> Plan {
    let wish = PlanWish { budget: Some(budget), chunk: Some(16), threads: 1, ..PlanWish::default() };
    Plan::new(&blueprint(path), &DeviceProfile::custom(1 << 30, 1e9, 4e10, 100.0), &wish).unwrap()
}
