//! Which tensors of the output come from which of the checkpoint.

use super::arch::Architecture;
use super::checkpoint::{Checkpoint, Dtype, Tensor};
use super::config::{Config, bad};
use super::recipe::{Change, From, Order, Recipe, Rows, check_numbers};
use super::{ConvertError, Warning};
use crate::Result;
use pannier_gguf::GgmlType;
use std::collections::{BTreeMap, BTreeSet};

/// Names inside a layer that mean the same everywhere.
const LAYER_NAMES: &[(&str, &str)] = &[
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.qkv_proj", "attn_qkv"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.gate_up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("mlp.gate", "ffn_gate_inp"),
    ("mlp.router", "ffn_gate_inp"),
    ("block_sparse_moe.gate", "ffn_gate_inp"),
    ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
    ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
    ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
    ("linear_attn.in_proj_qkv", "attn_qkv"),
    ("linear_attn.in_proj_z", "attn_gate"),
    ("linear_attn.in_proj_a", "ssm_alpha"),
    ("linear_attn.in_proj_b", "ssm_beta"),
    ("linear_attn.conv1d", "ssm_conv1d"),
    ("linear_attn.norm", "ssm_norm"),
    ("linear_attn.out_proj", "ssm_out"),
];

/// Parts of a multimodal or speculative model that the text model does not use.
const LEFT_OUT: &[&str] = &[
    "vision_tower.",
    "multi_modal_projector.",
    "visual.",
    "vision_model.",
    "audio_tower.",
    "mtp.",
    "model.mtp.",
];

/// Where a tensor of the checkpoint belongs.
enum Place<'a> {
    /// `blk.N.REST` or a name of its own.
    Layer(u64, &'a str),
    Global(&'static str),
    LeftOut,
    Unused,
    Unknown,
}

fn place(name: &str) -> Place<'_> {
    let plain = name
        .strip_prefix("language_model.")
        .or_else(|| name.strip_prefix("model.language_model."))
        .unwrap_or(name);
    let plain = plain.strip_prefix("model.").unwrap_or(plain);
    if LEFT_OUT.iter().any(|part| name.starts_with(part) || plain.starts_with(part)) {
        return Place::LeftOut;
    }
    match plain {
        "embed_tokens.weight" => return Place::Global("token_embd.weight"),
        "norm.weight" => return Place::Global("output_norm.weight"),
        "lm_head.weight" => return Place::Global("output.weight"),
        _ => {}
    }
    if plain.ends_with("rotary_emb.inv_freq") || plain.ends_with(".masked_bias") {
        return Place::Unused;
    }
    let layer = plain.strip_prefix("layers.").and_then(|rest| rest.split_once('.'));
    match layer.and_then(|(layer, rest)| Some((layer.parse().ok()?, rest))) {
        Some((layer, rest)) => Place::Layer(layer, rest),
        None => Place::Unknown,
    }
}

/// Order of tensors within a layer of the output: as a forward pass meets them.
const LAYER_ORDER: &[&str] = &[
    "attn_norm",
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_qkv",
    "attn_gate",
    "attn_q_norm",
    "attn_k_norm",
    "attn_sinks",
    "ssm_",
    "attn_output",
    "post_attention_norm",
    "ffn_norm",
    "ffn_gate_inp",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
    "post_ffw_norm",
];

struct Builder<'a> {
    architecture: &'static Architecture,
    config: &'a Config,
    dtype: GgmlType,
    /// By layer (the embedding is before all, the output behind), place in it, and name.
    recipes: BTreeMap<(u64, usize, String), Recipe>,
}

/// The recipes of all output tensors, in file order.
pub(super) fn recipes(
    architecture: &'static Architecture,
    config: &Config,
    checkpoint: &Checkpoint,
    dtype: GgmlType,
    warnings: &mut Vec<Warning>,
) -> Result<Vec<Recipe>> {
    let layers = config.size(&["num_hidden_layers", "n_layer"])?;
    let tied = architecture.always_tied || config.flag("tie_word_embeddings");
    let mut builder = Builder { architecture, config, dtype, recipes: BTreeMap::new() };
    // Experts that are tensors of their own: (layer, name in the output) -> expert -> tensor.
    let mut experts: BTreeMap<(u64, &'static str), BTreeMap<u64, &Tensor>> = BTreeMap::new();
    let mut left_out: Vec<&str> = Vec::new();
    for tensor in checkpoint.tensors() {
        match place(&tensor.name) {
            Place::LeftOut => left_out.push(&tensor.name),
            Place::Unused => {}
            Place::Unknown => return Err(builder.unknown(tensor)),
            Place::Global("output.weight") if tied => warnings.push(Warning::TiedOutput),
            Place::Global(name) => builder.matrix(tensor, name.to_owned(), Order::Same)?,
            // Layers beyond the last are for speculation.
            Place::Layer(layer, _) if layer >= layers => left_out.push(&tensor.name),
            Place::Layer(layer, rest) => match expert(rest) {
                Some((index, part)) => {
                    experts.entry((layer, part)).or_default().insert(index, tensor);
                }
                None => builder.layer(checkpoint, tensor, layer, rest)?,
            },
        }
    }
    for ((layer, part), tensors) in experts {
        builder.stack(layer, part, &tensors)?;
    }
    builder.rope_factors()?;
    builder.check(layers, tied)?;
    if let Some(example) = left_out.first() {
        warnings.push(Warning::LeftOut { tensors: left_out.len(), example: (*example).to_owned() });
    }
    Ok(builder.recipes.into_values().collect())
}

/// `mlp.experts.7.up_proj.weight` and Mixtral's names for the same.
fn expert(rest: &str) -> Option<(u64, &'static str)> {
    let rest =
        rest.strip_prefix("mlp.experts.").or_else(|| rest.strip_prefix("block_sparse_moe.experts."))?;
    let (index, part) = rest.split_once('.')?;
    let part = match part {
        "gate_proj.weight" | "w1.weight" => "ffn_gate_exps.weight",
        "down_proj.weight" | "w2.weight" => "ffn_down_exps.weight",
        "up_proj.weight" | "w3.weight" => "ffn_up_exps.weight",
        _ => return None,
    };
    Some((index.parse().ok()?, part))
}

impl Builder<'_> {
    fn unknown(&self, tensor: &Tensor) -> crate::Error {
        ConvertError::UnknownTensor { name: tensor.name.clone(), architecture: self.architecture.name }.into()
    }

    fn shape(tensor: &Tensor, expected: impl Into<String>) -> crate::Error {
        ConvertError::BadShape {
            name: tensor.name.clone(),
            found: tensor.shape.clone(),
            expected: expected.into(),
        }
        .into()
    }

    /// The type of a tensor in the output: what is small or decides is F32, matrices are what was asked for.
    fn type_of(&self, name: &str, dims: &[u64]) -> GgmlType {
        let kept = dims.iter().filter(|dim| **dim > 1).count() < 2
            || !name.ends_with(".weight")
            || ["_norm.", "ffn_gate_inp", "ssm_conv1d", "rope_"].iter().any(|part| name.contains(part));
        let columns = dims.first().copied().unwrap_or(1);
        match self.dtype {
            _ if kept => GgmlType::F32,
            dtype if columns.is_multiple_of(dtype.block_elements()) => dtype,
            _ => GgmlType::F16,
        }
    }

    fn add(&mut self, name: String, dims: Vec<u64>, from: From, change: Change) -> Result<()> {
        let (layer, place) = match name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
            Some((layer, rest)) => {
                let place =
                    LAYER_ORDER.iter().position(|part| rest.starts_with(part)).unwrap_or(LAYER_ORDER.len());
                (layer.parse::<u64>().unwrap_or(0) + 1, place)
            }
            None if name == "token_embd.weight" || name.starts_with("rope_") => (0, 0),
            None => (u64::MAX, usize::from(name == "output.weight")),
        };
        let ty = match &from {
            From::Mxfp4 { .. } => GgmlType::MXFP4,
            _ => self.type_of(&name, &dims),
        };
        let recipe = Recipe { name: name.clone(), dims, ty, from, change };
        if self.recipes.insert((layer, place, name.clone()), recipe).is_some() {
            return Err(ConvertError::UnknownTensor { name, architecture: self.architecture.name }.into());
        }
        Ok(())
    }

    /// A tensor of one or two dimensions.
    fn matrix(&mut self, tensor: &Tensor, name: String, order: Order) -> Result<()> {
        check_numbers(tensor)?;
        // Dimensions of length 1 in front or between (one output, one channel) say nothing.
        let last = tensor.shape.len().saturating_sub(1);
        let kept = tensor.shape.iter().enumerate().filter(|(i, dim)| **dim != 1 || *i == last);
        let shape: Vec<u64> = kept.map(|(_, dim)| *dim).collect();
        let norm = name.ends_with("norm.weight") && !name.ends_with("ssm_norm.weight");
        let change = if norm && self.architecture.norms_minus_one { Change::AddOne } else { Change::None };
        let (rows, columns, dims) = match shape.as_slice() {
            // A vector can be reordered like a matrix of one column.
            [length] => (*length, 1, vec![*length]),
            [rows, columns] => (*rows, *columns, vec![*columns, *rows]),
            _ => return Err(Self::shape(tensor, "a vector or a matrix")),
        };
        if rows == 0 || columns == 0 {
            return Err(Self::shape(tensor, "no empty dimension"));
        }
        if let Order::Interleave { dim } = order
            && (!rows.is_multiple_of(dim) || !dim.is_multiple_of(2))
        {
            return Err(Self::shape(tensor, format!("rows in heads of {dim}")));
        }
        let rows = Rows {
            sources: vec![tensor.clone()],
            columns,
            rows,
            source_rows: rows,
            order,
            column_order: Order::Same,
        };
        self.add(name, dims, From::Rows(rows), change)
    }

    fn layer(&mut self, checkpoint: &Checkpoint, tensor: &Tensor, layer: u64, rest: &str) -> Result<()> {
        let named = |name: &str| format!("blk.{layer}.{name}");
        match rest {
            "self_attn.sinks" => return self.matrix(tensor, named("attn_sinks.weight"), Order::Same),
            "post_attention_layernorm.weight" => {
                let behind = self.architecture.norm_behind_attention;
                let name = if behind { "post_attention_norm.weight" } else { "ffn_norm.weight" };
                return self.matrix(tensor, named(name), Order::Same);
            }
            "linear_attn.A_log" => return self.tiled(tensor, named("ssm_a"), 1, Change::NegativeExp),
            "linear_attn.dt_bias" => return self.tiled(tensor, named("ssm_dt.bias"), 1, Change::None),
            _ => {}
        }
        if let Some(part) = rest.strip_prefix("mlp.experts.") {
            return self.fused_experts(checkpoint, tensor, layer, part);
        }
        let (stem, kind) = rest.rsplit_once('.').ok_or_else(|| self.unknown(tensor))?;
        let known = LAYER_NAMES.iter().find(|(theirs, _)| *theirs == stem);
        let Some((_, ours)) = known.filter(|_| matches!(kind, "weight" | "bias")) else {
            return Err(self.unknown(tensor));
        };
        let name = named(&format!("{ours}.{kind}"));
        let value_dim = || self.config.size(&["linear_value_head_dim"]);
        match stem {
            "self_attn.q_proj" | "self_attn.k_proj" if self.architecture.interleave => {
                let heads: &[&str] = if stem == "self_attn.q_proj" {
                    &["num_attention_heads"]
                } else {
                    &["num_key_value_heads", "num_attention_heads"]
                };
                let (heads, rows) = (self.config.size(heads)?, tensor.shape.first().copied().unwrap_or(0));
                if !rows.is_multiple_of(heads) || rows == 0 {
                    return Err(Self::shape(tensor, format!("rows in {heads} heads")));
                }
                self.matrix(tensor, name, Order::Interleave { dim: rows / heads })
            }
            "linear_attn.in_proj_qkv" | "linear_attn.in_proj_z" | "linear_attn.conv1d" => {
                let dim = value_dim()?;
                self.tiled(tensor, name, dim, Change::None)
            }
            "linear_attn.in_proj_a" | "linear_attn.in_proj_b" => self.tiled(tensor, name, 1, Change::None),
            "linear_attn.out_proj" => {
                let dim = value_dim()?;
                self.tiled(tensor, name, dim, Change::None)
            }
            _ => self.matrix(tensor, name, Order::Same),
        }
    }

    /// A tensor of linear attention whose value heads change places. In `out_proj` they are columns; in fused tensors they stand
    /// behind queries and keys.
    fn tiled(&mut self, tensor: &Tensor, name: String, dim: u64, change: Change) -> Result<()> {
        let keys = self.config.size(&["linear_num_key_heads"])?;
        let values = self.config.size(&["linear_num_value_heads"])?;
        let key_dim = self.config.size(&["linear_key_head_dim"])?;
        let fused = name.contains("attn_qkv") || name.contains("ssm_conv1d");
        let from = if fused { 2 * keys * key_dim } else { 0 };
        if !values.is_multiple_of(keys) {
            return Err(bad("linear_num_value_heads", format!("is {values}, not a multiple of {keys}")));
        }
        let order = Order::Tile { from, keys, per_key: values / keys, dim };
        let columns = name.contains("ssm_out");
        let along = if columns { tensor.shape.last() } else { tensor.shape.first() };
        if along != Some(&(from + values * dim)) {
            return Err(Self::shape(tensor, format!("{} along the heads", from + values * dim)));
        }
        self.matrix(tensor, name.clone(), if columns { Order::Same } else { order })?;
        for recipe in self.recipes.values_mut().filter(|recipe| recipe.name == name) {
            if change != Change::None {
                recipe.change = change;
            }
            if let (From::Rows(rows), true) = (&mut recipe.from, columns) {
                rows.column_order = order;
            }
        }
        Ok(())
    }

    /// All experts of a layer in one tensor.
    fn fused_experts(
        &mut self,
        checkpoint: &Checkpoint,
        tensor: &Tensor,
        layer: u64,
        part: &str,
    ) -> Result<()> {
        let named = |name: &str| format!("blk.{layer}.{name}");
        let part = part.strip_suffix(".weight").unwrap_or(part);
        let oss = self.architecture.name == "gpt-oss";
        // Which rows of the fused gate-and-up matrix belong to the gate, and which to the other.
        let halves = |rows: u64| -> [(&'static str, Order); 2] {
            if oss {
                [("gate", Order::Strided { start: 0, step: 2 }), ("up", Order::Strided { start: 1, step: 2 })]
            } else {
                [("gate", Order::Same), ("up", Order::Strided { start: rows / 2, step: 1 })]
            }
        };
        let odd = |rows: u64| rows == 0 || !rows.is_multiple_of(2);
        match (part, tensor.shape.as_slice()) {
            ("gate_up_proj_scales" | "down_proj_scales", _) => Ok(()),
            ("gate_up_proj_blocks" | "down_proj_blocks", [experts, rows, blocks, 16]) => {
                let scales_name = tensor.name.replace("_blocks", "_scales");
                let missing = ConvertError::MissingTensor { name: scales_name.clone() };
                let scales = checkpoint.get(&scales_name).ok_or(missing)?;
                let bytes = [tensor, scales].into_iter().all(|t| t.dtype == Dtype::U8);
                if scales.shape != [*experts, *rows, *blocks] || !bytes || experts * rows * blocks == 0 {
                    return Err(Self::shape(scales, format!("{:?} bytes", [experts, rows, blocks])));
                }
                let columns = blocks.saturating_mul(32);
                let fused = part.starts_with("gate_up");
                if fused && odd(*rows) {
                    return Err(Self::shape(tensor, "an even number of rows"));
                }
                let parts = if fused { halves(*rows).to_vec() } else { vec![("down", Order::Same)] };
                for (which, order) in parts {
                    let out_rows = if fused { rows / 2 } else { *rows };
                    let rows = Rows {
                        sources: vec![tensor.clone()],
                        columns,
                        rows: out_rows,
                        source_rows: *rows,
                        order,
                        column_order: Order::Same,
                    };
                    let from = From::Mxfp4 { blocks: tensor.clone(), scales: scales.clone(), rows };
                    let dims = vec![columns, out_rows, *experts];
                    self.add(named(&format!("ffn_{which}_exps.weight")), dims, from, Change::None)?;
                }
                Ok(())
            }
            ("gate_up_proj_bias", [experts, rows]) if !odd(*rows) && *experts > 0 => {
                check_numbers(tensor)?;
                for (which, order) in halves(*rows) {
                    let from = From::Rows(Rows {
                        sources: vec![tensor.clone()],
                        columns: 1,
                        rows: rows / 2,
                        source_rows: *rows,
                        order,
                        column_order: Order::Same,
                    });
                    let dims = vec![rows / 2, *experts];
                    self.add(named(&format!("ffn_{which}_exps.bias")), dims, from, Change::None)?;
                }
                Ok(())
            }
            ("down_proj_bias", [_, _]) => self.matrix(tensor, named("ffn_down_exps.bias"), Order::Same),
            ("gate_up_proj" | "down_proj", [experts, a, b]) if experts * a * b > 0 => {
                check_numbers(tensor)?;
                // gpt-oss keeps inputs as rows.
                let (rows, columns) = if oss { (*b, *a) } else { (*a, *b) };
                let fused = part == "gate_up_proj";
                if fused && odd(rows) {
                    return Err(Self::shape(tensor, "an even number of outputs"));
                }
                let parts = if fused { halves(rows).to_vec() } else { vec![("down", Order::Same)] };
                for (which, order) in parts {
                    let out_rows = if fused { rows / 2 } else { rows };
                    let source = Rows {
                        sources: vec![tensor.clone()],
                        columns,
                        rows: out_rows,
                        source_rows: rows,
                        order,
                        column_order: Order::Same,
                    };
                    let from = if oss { From::Columns(source) } else { From::Rows(source) };
                    let dims = vec![columns, out_rows, *experts];
                    self.add(named(&format!("ffn_{which}_exps.weight")), dims, from, Change::None)?;
                }
                Ok(())
            }
            _ => Err(self.unknown(tensor)),
        }
    }

    /// Experts that are tensors of their own.
    fn stack(&mut self, layer: u64, part: &str, tensors: &BTreeMap<u64, &Tensor>) -> Result<()> {
        let experts = self.config.size(&["num_local_experts", "num_experts"])?;
        let Some(first) = tensors.values().next() else { return Ok(()) };
        let [rows, columns] = first.shape.as_slice() else { return Err(Self::shape(first, "a matrix")) };
        let mut sources = Vec::new();
        for expert in 0..experts {
            let missing =
                || ConvertError::MissingTensor { name: format!("expert {expert} of blk.{layer}.{part}") };
            let tensor = tensors.get(&expert).ok_or_else(missing)?;
            check_numbers(tensor)?;
            if tensor.shape != first.shape || rows * columns == 0 {
                return Err(Self::shape(tensor, format!("{:?} like the other experts", first.shape)));
            }
            sources.push((*tensor).clone());
        }
        if tensors.len() as u64 != experts {
            return Err(bad("num_experts", format!("is {experts}, but layer {layer} has {}", tensors.len())));
        }
        let rows = Rows {
            sources,
            columns: *columns,
            rows: *rows,
            source_rows: *rows,
            order: Order::Same,
            column_order: Order::Same,
        };
        let dims = vec![rows.columns, rows.rows, experts];
        self.add(format!("blk.{layer}.{part}"), dims, From::Rows(rows), Change::None)
    }

    /// Per-frequency factors of rotary embedding, for the models that have them.
    fn rope_factors(&mut self) -> Result<()> {
        let (config, architecture) = (self.config, self.architecture);
        let mut add = |name: &str, values: Vec<f32>| {
            let dims = vec![values.len() as u64];
            self.add(name.to_owned(), dims, From::Values(values), Change::None)
        };
        if config.rope_type() == "llama3" {
            let width = config.head_dim()?;
            let theta = f64::from(config.rope_theta()?.unwrap_or(10_000.0));
            let number = |key: &str, otherwise: f32| -> Result<f64> {
                Ok(f64::from(config.rope_float(key)?.unwrap_or(otherwise)))
            };
            let (factor, low, high) =
                (number("factor", 8.0)?, number("low_freq_factor", 1.0)?, number("high_freq_factor", 4.0)?);
            let original = number("original_max_position_embeddings", 8192.0)?;
            if high <= low || low <= 0.0 || width > 1 << 16 {
                return Err(bad("rope_scaling", format!("has frequency factors {low} to {high}")));
            }
            // Slow frequencies are stretched, fast ones are not, those between partly (Llama 3.1).
            let factors = (0..width / 2).map(|i| {
                let wavelength = 2.0 * std::f64::consts::PI * libm::pow(theta, 2.0 * i as f64 / width as f64);
                let turns = original / wavelength;
                let smooth = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                (1.0 / ((1.0 - smooth) / factor + smooth)) as f32
            });
            return add("rope_freqs.weight", factors.collect());
        }
        if architecture.name == "phi3"
            && let (Some(long), Some(short)) =
                (config.rope_floats("long_factor")?, config.rope_floats("short_factor")?)
        {
            if long.len() != short.len() || long.is_empty() {
                let why = format!("has {} long and {} short factors", long.len(), short.len());
                return Err(bad("rope_scaling", why));
            }
            add("rope_factors_long.weight", long)?;
            add("rope_factors_short.weight", short)?;
        }
        Ok(())
    }

    /// Whether everything is there.
    fn check(&self, layers: u64, tied: bool) -> Result<()> {
        let names: BTreeSet<&str> = self.recipes.values().map(|recipe| recipe.name.as_str()).collect();
        let need = |ours: String, theirs: String| -> Result<()> {
            if names.contains(ours.as_str()) {
                Ok(())
            } else {
                Err(ConvertError::MissingTensor { name: theirs }.into())
            }
        };
        need("token_embd.weight".into(), "model.embed_tokens.weight".into())?;
        need("output_norm.weight".into(), "model.norm.weight".into())?;
        if !tied && !names.contains("output.weight") && self.config.get("tie_word_embeddings").is_some() {
            return Err(ConvertError::MissingTensor { name: "lm_head.weight".into() }.into());
        }
        for layer in 0..layers {
            need(
                format!("blk.{layer}.attn_norm.weight"),
                format!("model.layers.{layer}.input_layernorm.weight"),
            )?;
            let down = ["ffn_down.weight", "ffn_down_exps.weight"];
            if !down.iter().any(|down| names.contains(format!("blk.{layer}.{down}").as_str())) {
                let name = format!("model.layers.{layer}.mlp.down_proj.weight");
                return Err(ConvertError::MissingTensor { name }.into());
            }
        }
        Ok(())
    }
}
