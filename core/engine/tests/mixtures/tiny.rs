//! Small random models, made in memory tensor by tensor, so that tests can lay the same weights out in other ways.

use pannier::CancelFlag;
use pannier::memory::Accountant;
use pannier::model::{Forward, LoadedModel, ModelOptions, ModelSequence, Outputs, Runner, RunnerOptions};
use pannier::pool::Pool;
use pannier_gguf::{GgmlType, Gguf, Value, Writer};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

pub const VOCAB: usize = 96;
pub const EMBD: u64 = 64;
pub const FF: u64 = 96;
pub const EXPERTS: u64 = 8;

/// xorshift*: the same bytes everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// In -1..1.
    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / 8_388_608.0 - 1.0
    }
}

#[derive(Clone, Debug)]
pub struct Tensor {
    pub dims: Vec<u64>,
    pub ty: GgmlType,
    pub data: Vec<u8>,
}

impl Tensor {
    pub fn row_bytes(&self) -> usize {
        self.data.len() / self.dims[1..].iter().product::<u64>() as usize
    }

    pub fn rows(&self, first: usize, count: usize) -> &[u8] {
        &self.data[first * self.row_bytes()..(first + count) * self.row_bytes()]
    }

    /// A matrix of other rows.
    pub fn of_rows(&self, data: Vec<u8>) -> Tensor {
        let rows = (data.len() / self.row_bytes()) as u64;
        Tensor { dims: vec![self.dims[0], rows], ty: self.ty, data }
    }
}

#[derive(Clone, Debug)]
pub struct Tiny {
    arch: &'static str,
    keys: Vec<(String, Value)>,
    pub tensors: BTreeMap<String, Tensor>,
    random: u64,
}

impl Tiny {
    pub fn new(arch: &'static str, layers: u32) -> Tiny {
        let mut tiny = Tiny { arch, keys: Vec::new(), tensors: BTreeMap::new(), random: 42 };
        for (key, value) in [
            ("context_length", 256),
            ("embedding_length", EMBD as u32),
            ("block_count", layers),
            ("feed_forward_length", FF as u32),
            ("attention.head_count", 4),
            ("attention.head_count_kv", 2),
            ("attention.key_length", 16),
            ("attention.value_length", 16),
            ("rope.dimension_count", 8),
        ] {
            tiny.key(key, value);
        }
        tiny.key("attention.layer_norm_rms_epsilon", 1e-5f32);
        tiny.matrix("token_embd.weight", &[EMBD, VOCAB as u64]);
        tiny.ones("output_norm.weight", EMBD);
        tiny
    }

    pub fn key(&mut self, key: &str, value: impl Into<Value>) {
        self.raw_key(&format!("{}.{key}", self.arch), value);
    }

    pub fn without(mut self, key: &str) -> Tiny {
        let key = format!("{}.{key}", self.arch);
        self.keys.retain(|(other, _)| *other != key);
        self
    }

    /// Without the architecture before it.
    pub fn raw_key(&mut self, key: &str, value: impl Into<Value>) {
        let key = key.to_owned();
        self.keys.retain(|(other, _)| *other != key);
        self.keys.push((key, value.into()));
    }

    pub fn matrix(&mut self, name: &str, dims: &[u64]) {
        let mut random = Random(self.random);
        let mut data = Vec::new();
        for _ in 0..dims.iter().product::<u64>() / 32 {
            // Q8_0: about 0.002 a step.
            data.extend_from_slice(&(0x1800u16 + (random.next() & 0xff) as u16).to_le_bytes());
            (0..4).for_each(|_| data.extend_from_slice(&random.next().to_le_bytes()));
        }
        self.random = random.next();
        let tensor = Tensor { dims: dims.to_vec(), ty: GgmlType::Q8_0, data };
        self.tensors.insert(name.to_owned(), tensor);
    }

    /// The routed experts in F16, whatever else the model is in.
    pub fn with_half_experts(self) -> Tiny {
        self.in_halves(|name| name.contains("_exps."))
    }

    /// Some of the quantised matrices in F16.
    pub fn in_halves(mut self, wanted: impl Fn(&str) -> bool) -> Tiny {
        let mut random = Random(self.random);
        let quantised = self.tensors.iter_mut().filter(|(_, tensor)| tensor.ty == GgmlType::Q8_0);
        for (_, tensor) in quantised.filter(|(name, _)| wanted(name)) {
            tensor.ty = GgmlType::F16;
            // Any sign and mantissa; 2^-6 to 2^-4.
            let half = |_| (random.next() as u16 & 0x87ff | 0x2400).to_le_bytes();
            tensor.data = (0..tensor.dims.iter().product::<u64>()).flat_map(half).collect();
        }
        self
    }

    pub fn floats(&mut self, name: &str, dims: &[u64], mut value: impl FnMut(f32) -> f32) {
        let mut random = Random(self.random);
        let data =
            (0..dims.iter().product::<u64>()).flat_map(|_| value(random.unit()).to_le_bytes()).collect();
        self.random = random.next();
        self.tensors.insert(name.to_owned(), Tensor { dims: dims.to_vec(), ty: GgmlType::F32, data });
    }

    pub fn ones(&mut self, name: &str, len: u64) {
        self.floats(name, &[len], |_| 1.0);
    }

    fn attention(&mut self, layer: u32, q: u64, norms: bool) {
        self.ones(&format!("blk.{layer}.attn_norm.weight"), EMBD);
        for (part, dims) in [("q", [EMBD, q]), ("k", [EMBD, 32]), ("v", [EMBD, 32]), ("output", [64, EMBD])] {
            self.matrix(&format!("blk.{layer}.attn_{part}.weight"), &dims);
        }
        for part in ["q", "k"].iter().filter(|_| norms) {
            self.ones(&format!("blk.{layer}.attn_{part}_norm.weight"), 16);
        }
    }

    fn experts(&mut self, layer: u32) {
        self.key("expert_count", EXPERTS as u32);
        self.key("expert_used_count", 3u32);
        self.key("expert_feed_forward_length", FF as u32);
        self.floats(&format!("blk.{layer}.ffn_gate_inp.weight"), &[EMBD, EXPERTS], |x| x);
        for (part, dims) in
            [("gate", [EMBD, FF, EXPERTS]), ("up", [EMBD, FF, EXPERTS]), ("down", [FF, EMBD, EXPERTS])]
        {
            self.matrix(&format!("blk.{layer}.ffn_{part}_exps.weight"), &dims);
        }
    }

    fn shared_expert(&mut self, layer: u32) {
        self.key("expert_shared_feed_forward_length", FF as u32);
        self.floats(&format!("blk.{layer}.ffn_gate_inp_shexp.weight"), &[EMBD], |x| x);
        for (part, dims) in [("gate", [EMBD, FF]), ("up", [EMBD, FF]), ("down", [FF, EMBD])] {
            self.matrix(&format!("blk.{layer}.ffn_{part}_shexp.weight"), &dims);
        }
    }

    /// Two heads of keys, four of values, of 16.
    fn delta(&mut self, layer: u32) {
        for (key, value) in [
            ("conv_kernel", 4u32),
            ("state_size", 16),
            ("group_count", 2),
            ("time_step_rank", 4),
            ("inner_size", 64),
        ] {
            self.key(&format!("ssm.{key}"), value);
        }
        let name = |part: &str| format!("blk.{layer}.{part}");
        self.ones(&name("attn_norm.weight"), EMBD);
        for (part, dims) in [
            ("attn_qkv", [EMBD, 128]),
            ("attn_gate", [EMBD, 64]),
            ("ssm_alpha", [EMBD, 4]),
            ("ssm_beta", [EMBD, 4]),
            ("ssm_out", [64, EMBD]),
        ] {
            self.matrix(&name(&format!("{part}.weight")), &dims);
        }
        self.floats(&name("ssm_conv1d.weight"), &[4, 128], |x| x);
        self.floats(&name("ssm_dt.bias"), &[4], |x| x);
        self.floats(&name("ssm_a"), &[4], |x| -0.3 - 0.2 * x);
        self.ones(&name("ssm_norm.weight"), 16);
    }

    /// A llama without experts.
    pub fn dense() -> Tiny {
        let mut tiny = Tiny::new("llama", 1);
        tiny.attention(0, 64, false);
        tiny.ones("blk.0.ffn_norm.weight", EMBD);
        for (part, dims) in [("gate", [EMBD, FF]), ("up", [EMBD, FF]), ("down", [FF, EMBD])] {
            tiny.matrix(&format!("blk.0.ffn_{part}.weight"), &dims);
        }
        tiny
    }

    /// A llama with experts.
    pub fn mixtral() -> Tiny {
        let mut tiny = Tiny::new("llama", 3);
        for layer in 0..3 {
            tiny.attention(layer, 64, false);
            tiny.ones(&format!("blk.{layer}.ffn_norm.weight"), EMBD);
            tiny.experts(layer);
        }
        tiny
    }

    /// A hybrid: two delta nets, then attention, then another delta net.
    pub fn qwen3next() -> Tiny {
        let mut tiny = Tiny::new("qwen3next", 4);
        tiny.key("attention.recurrent_layers", vec![1u32, 1, 0, 1]);
        for layer in 0..4 {
            if layer == 2 {
                tiny.attention(layer, 128, true);
            } else {
                tiny.delta(layer);
            }
            tiny.ones(&format!("blk.{layer}.post_attention_norm.weight"), EMBD);
            tiny.experts(layer);
            tiny.shared_expert(layer);
        }
        tiny
    }

    /// A hybrid of convolutions and attention, the first layer dense.
    pub fn lfm2moe() -> Tiny {
        let mut tiny = Tiny::new("lfm2moe", 3);
        tiny.key("attention.head_count_kv", vec![0u32, 2, 0]);
        tiny.key("shortconv.l_cache", 3u32);
        tiny.key("leading_dense_block_count", 1u32);
        tiny.key("expert_gating_func", 2u32);
        for layer in 0..3 {
            if layer == 1 {
                tiny.attention(layer, 64, true);
            } else {
                tiny.ones(&format!("blk.{layer}.attn_norm.weight"), EMBD);
                tiny.matrix(&format!("blk.{layer}.shortconv.in_proj.weight"), &[EMBD, 3 * EMBD]);
                tiny.matrix(&format!("blk.{layer}.shortconv.out_proj.weight"), &[EMBD, EMBD]);
                tiny.floats(&format!("blk.{layer}.shortconv.conv.weight"), &[3, EMBD], |x| x);
            }
            tiny.ones(&format!("blk.{layer}.ffn_norm.weight"), EMBD);
            if layer == 0 {
                for (part, dims) in [("gate", [EMBD, FF]), ("up", [EMBD, FF]), ("down", [FF, EMBD])] {
                    tiny.matrix(&format!("blk.{layer}.ffn_{part}.weight"), &dims);
                }
            } else {
                tiny.experts(layer);
                tiny.floats(&format!("blk.{layer}.exp_probs_b.bias"), &[EXPERTS], |x| 0.1 * x);
            }
        }
        tiny
    }

    pub fn write(&self, path: &Path) {
        let mut writer = Writer::new();
        writer.set("general.architecture", self.arch);
        writer.set("tokenizer.ggml.model", "none");
        for (key, value) in &self.keys {
            writer.set(key, value.clone());
        }
        for (name, tensor) in &self.tensors {
            writer.tensor(name, &tensor.dims, tensor.ty).unwrap();
        }
        writer
            .write_file(path, |out| -> Result<(), pannier_gguf::Error> {
                self.tensors.iter().try_for_each(|(name, tensor)| out.write(name, &tensor.data))
            })
            .unwrap();
    }

    pub fn load(&self) -> Arc<LoadedModel> {
        self.try_load().unwrap()
    }

    pub fn try_load(&self) -> Result<Arc<LoadedModel>, pannier::Error> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.gguf");
        self.write(&path);
        let gguf = Arc::new(Gguf::open(&path).unwrap());
        LoadedModel::new(gguf, &ModelOptions::default(), &Accountant::new(None)).map(Arc::new)
    }
}

pub fn runner(model: &Arc<LoadedModel>, chunk: usize, threads: usize) -> Runner {
    let options = RunnerOptions { chunk, ..RunnerOptions::default() };
    Runner::new(Arc::clone(model), Arc::new(Pool::new(threads)), &options, &Accountant::new(None)).unwrap()
}

pub fn text(n: u32) -> Vec<u32> {
    (0..n).map(|i| (i * i + 7 * i + 1) % VOCAB as u32).collect()
}

pub fn step(runner: &mut Runner, seq: &mut ModelSequence, tokens: &[u32]) -> Vec<u32> {
    let logits = runner.step(seq, tokens, Outputs::All, &CancelFlag::new()).unwrap();
    assert!(logits.iter().all(|logit| logit.is_finite()));
    logits.iter().map(|logit| logit.to_bits()).collect()
}

/// Bits of the logits of all tokens, in one step.
pub fn all(runner: &mut Runner, tokens: &[u32]) -> Vec<u32> {
    let mut seq = runner.new_seq().unwrap();
    step(runner, &mut seq, tokens)
}

/// Bits of the logits, in steps of the given sizes.
pub fn in_steps(runner: &mut Runner, tokens: &[u32], sizes: &[usize]) -> Vec<u32> {
    let mut seq = runner.new_seq().unwrap();
    let (mut at, mut out) = (0, Vec::new());
    for &size in sizes.iter().cycle() {
        let end = tokens.len().min(at + size);
        out.extend(step(runner, &mut seq, &tokens[at..end]));
        at = end;
        if at == tokens.len() {
            return out;
        }
    }
    out
}
