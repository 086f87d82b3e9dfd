//! A small model, the same in nested precision, and how tests run both.

use super::Noise;
use half::f16;
use pannier::memory::Accountant;
use pannier::model::{Blueprint, Forward, ModelOptions, Outputs, Runner, RunnerOptions};
use pannier::residency::{ResidencyPlan, ResidencyWish, StreamOptions, View};
use pannier::session::{GenerationEvent, GenerationOptions, Model, Notice, Prompt};
use pannier::{CancelFlag, LoadOptions, ViewReason, WeightPrecision};
use pannier_forge::quantize::FileType;
use pannier_forge::{QuantizeOptions, Silent, quantize};
use pannier_gguf::{GgmlType, Gguf, Writer, nested as names};
use pannier_kernels::{Serial, nested};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub const VOCAB: u64 = 320;
pub const LAYERS: u64 = 5;
pub const EMBD: u64 = 256;
pub const FFN: u64 = 1024;
pub const EXPERTS: u64 = 4;

/// A small llama of f16 matrices, dense or with experts.
pub fn model(path: &Path, experts: bool) {
    let mut writer = Writer::new();
    writer.set("general.architecture", "llama");
    for (key, value) in [
        ("context_length", 1024u32),
        ("embedding_length", EMBD as u32),
        ("block_count", LAYERS as u32),
        ("feed_forward_length", FFN as u32),
        ("attention.head_count", 8),
        ("attention.head_count_kv", 2),
        ("rope.dimension_count", 32),
    ] {
        writer.set(format!("llama.{key}"), value);
    }
    if experts {
        writer.set("llama.expert_count", EXPERTS as u32);
        writer.set("llama.expert_used_count", 2u32);
    }
    writer.set("llama.attention.layer_norm_rms_epsilon", 1e-5f32);
    let mut tensors: Vec<(String, Vec<u64>, GgmlType)> =
        vec![("token_embd.weight".into(), vec![EMBD, VOCAB], GgmlType::F16)];
    for layer in 0..LAYERS {
        let mut add = |name: &str, dims: &[u64], ty| {
            tensors.push((format!("blk.{layer}.{name}.weight"), dims.to_vec(), ty));
        };
        add("attn_norm", &[EMBD], GgmlType::F32);
        add("attn_q", &[EMBD, EMBD], GgmlType::F16);
        add("attn_k", &[EMBD, 64], GgmlType::F16);
        add("attn_v", &[EMBD, 64], GgmlType::F16);
        add("attn_output", &[EMBD, EMBD], GgmlType::F16);
        add("ffn_norm", &[EMBD], GgmlType::F32);
        if experts {
            add("ffn_gate_inp", &[EMBD, EXPERTS], GgmlType::F32);
            add("ffn_gate_exps", &[EMBD, FFN, EXPERTS], GgmlType::F16);
            add("ffn_up_exps", &[EMBD, FFN, EXPERTS], GgmlType::F16);
            add("ffn_down_exps", &[FFN, EMBD, EXPERTS], GgmlType::F16);
        } else {
            add("ffn_gate", &[EMBD, FFN], GgmlType::F16);
            add("ffn_up", &[EMBD, FFN], GgmlType::F16);
            add("ffn_down", &[FFN, EMBD], GgmlType::F16);
        }
    }
    tensors.push(("output_norm.weight".into(), vec![EMBD], GgmlType::F32));
    tensors.push(("output.weight".into(), vec![EMBD, VOCAB], GgmlType::F16));
    for (name, dims, ty) in &tensors {
        writer.tensor(name.clone(), dims, *ty).unwrap();
    }
    let mut noise = Noise(1);
    let write = |out: &mut pannier_gguf::TensorStream<_>| -> Result<(), pannier_gguf::Error> {
        for (name, dims, ty) in &tensors {
            let values = (0..dims.iter().product()).map(|_| noise.next(0.1));
            let bytes: Vec<u8> = match (*ty, name.contains("norm")) {
                (_, true) => values.flat_map(|_| 1f32.to_le_bytes()).collect(),
                (GgmlType::F32, _) => values.flat_map(|x| x.to_le_bytes()).collect(),
                _ => values.flat_map(|x| f16::from_f32(x).to_le_bytes()).collect(),
            };
            out.write(name, &bytes)?;
        }
        Ok(())
    };
    writer.write_file(path, write).unwrap();
}

pub struct Fixture {
    pub folder: tempfile::TempDir,
    pub input: PathBuf,
    pub nested: PathBuf,
}

pub fn options() -> QuantizeOptions {
    QuantizeOptions { nested: true, threads: 2, ..QuantizeOptions::new(FileType::parse("Q5_K_S").unwrap()) }
}

pub fn fixture(experts: bool) -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    let (input, nested) = (folder.path().join("in.gguf"), folder.path().join("nested.gguf"));
    model(&input, experts);
    quantize(&input, &nested, &options(), &Silent).unwrap();
    Fixture { folder, input, nested }
}

/// Writes a file with other tensors: each is asked for its name, shape, type and bytes, or left out.
pub type Stored = (String, Vec<u64>, GgmlType, Vec<u8>);
pub fn rewritten(from: &Path, to: &Path, version: Option<u32>, change: impl Fn(Stored) -> Option<Stored>) {
    let gguf = Gguf::open(from).unwrap();
    let tensors: Vec<Stored> = gguf
        .tensors()
        .iter()
        .map(|t| (t.name.clone(), t.dims.clone(), t.ty, gguf.tensor_data(t).unwrap().to_vec()))
        .filter_map(change)
        .collect();
    let mut writer = Writer::with_metadata(gguf.metadata().clone());
    writer.metadata_mut().remove(names::VERSION_KEY);
    if let Some(version) = version {
        writer.set(names::VERSION_KEY, version);
    }
    for (name, dims, ty, _) in &tensors {
        writer.tensor(name.clone(), dims, *ty).unwrap();
    }
    writer
        .write_file(to, |out| -> Result<(), pannier_gguf::Error> {
            tensors.iter().try_for_each(|(name, _, _, data)| out.write(name, data))
        })
        .unwrap();
}

/// The same model with whole blocks of Q5_K: what the full view must be bit for bit.
pub fn joined(from: &Path, to: &Path) {
    let gguf = Gguf::open(from).unwrap();
    rewritten(from, to, None, |(name, dims, ty, data)| {
        if name.ends_with(names::FINE) {
            return None;
        }
        let Some(whole) = name.strip_suffix(names::LOW) else { return Some((name, dims, ty, data)) };
        let fine = gguf.tensor(&format!("{whole}{}", names::FINE)).unwrap();
        let fine = gguf.tensor_data(fine).unwrap().as_chunks::<{ nested::FINE_BYTES }>().0;
        let low = data.as_chunks::<{ nested::LOW_BYTES }>().0;
        let blocks: Vec<u8> = low.iter().zip(fine).flat_map(|(low, fine)| nested::join(low, fine)).collect();
        let mut dims = dims;
        dims[0] = dims[0] / nested::LOW_BYTES as u64 * nested::BLOCK as u64;
        Some((whole.to_owned(), dims, GgmlType::Q5_K, blocks))
    });
}

pub fn blueprint(path: &Path, view: View) -> Result<Blueprint, pannier::Error> {
    let options = ModelOptions { view, ..ModelOptions::default() };
    Blueprint::read(Arc::new(Gguf::open(path)?), &options)
}

pub fn residency(path: &Path, view: View, budget: Option<u64>) -> ResidencyPlan {
    let model = blueprint(path, view).unwrap();
    let wish = ResidencyWish { budget, experts_used: model.experts_used() };
    ResidencyPlan::new(model.layout(), &wish).unwrap().unwrap()
}

pub fn runner_with(path: &Path, view: View, plan: ResidencyPlan, stream: &StreamOptions) -> Runner {
    let accountant = Accountant::new(None);
    let loaded = blueprint(path, view).unwrap().load(plan, stream, &accountant).unwrap();
    let options = RunnerOptions { chunk: 16, ..RunnerOptions::default() };
    Runner::new(Arc::new(loaded), Arc::new(Serial), &options, &accountant).unwrap()
}

pub fn runner(path: &Path, view: View) -> Runner {
    runner_with(path, view, residency(path, view, None), &StreamOptions::default())
}

pub fn ids(n: usize) -> Vec<u32> {
    (0..n).map(|i| ((i * i + 7 * i + 1) % VOCAB as usize) as u32).collect()
}

/// Bits of all logits of a text that is read in two steps and then token by token.
pub fn logits(runner: &mut Runner) -> Vec<u32> {
    let mut seq = runner.new_seq().unwrap();
    let mut out = Vec::new();
    let text = ids(28);
    for step in [&text[..24], &text[24..25], &text[25..26], &text[26..]] {
        let row = runner.step(&mut seq, step, Outputs::Last, &CancelFlag::new()).unwrap();
        assert!(row.iter().all(|x| x.is_finite()));
        out.extend(row.iter().map(|x| x.to_bits()));
    }
    out
}

pub fn load(path: &Path, weight_precision: WeightPrecision) -> Arc<Model> {
    let options = LoadOptions { weight_precision, threads: Some(1), ..LoadOptions::default() };
    Model::load(path, &options, &mut |_| {}).unwrap()
}

/// Tokens, the view at the end, and what was told about views.
pub fn answer(
    session: &pannier::Session,
    prompt: &[u32],
    weight_precision: Option<WeightPrecision>,
) -> (Vec<u32>, View, Vec<(View, ViewReason)>) {
    let options = GenerationOptions { weight_precision, ..GenerationOptions::greedy(20) };
    let mut told = Vec::new();
    let done = session
        .generate(Prompt::from(prompt), options, &mut |event| {
            if let GenerationEvent::Notice(Notice::View { view, reason }) = event {
                told.push((view, reason));
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    (done.ids().collect(), done.stats.view, told)
}
