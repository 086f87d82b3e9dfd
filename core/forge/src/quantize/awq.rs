//! Activation-aware scales (Lin et al., "AWQ: Activation-aware Weight Quantization", 2023), folded into the file.
//!
//! ```text
//! W x = (W diag(s)) (x / s):   quantise W diag(s), and let whoever makes x divide by s
//!     attn_norm  -> q, k, v        its weights / s
//!     ffn_norm   -> gate, up       its weights / s
//!     v          -> attn_output    rows of v (and its bias) / s; heads that share values share s
//!     up         -> down           rows of up (and its bias) / s: act(gate) * up is linear in up
//! s = E|x|^a, for the a on a grid of 20 with the least error of the products, on a sample of rows
//! ```
//! A column with large activations gets more of its block's resolution, and the file needs no reader that knows of it. The error of
//! a product is taken as Σ E[x²] (w - w')², as if columns were uncorrelated; that is what the statistics hold. The search for
//! where to clip is that of the block encoders: each of their candidates is a range, shorter or longer than that of the
//! block, and the one with the least weighted error wins.

use super::source::Source;
use crate::encode::{Importance, encoder};
use crate::imatrix::{Entry, Imatrix};
use crate::{Error, Progress, Result};
use pannier_gguf::{GgmlType, Gguf, TensorInfo};
use pannier_kernels::format;
use rayon::prelude::*;
use std::collections::HashMap;

/// Exponents that are tried: 0, 1/20, … 19/20.
const GRID: usize = 20;
/// Rows per matrix that the error is measured on, spread over it.
const SAMPLES: u64 = 48;

/// Factors on a tensor's weights before they are encoded.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Factors {
    /// Per column; empty for none.
    pub columns: Vec<f32>,
    /// Per row; empty for none.
    pub rows: Vec<f32>,
}

impl Factors {
    /// Scales a run of weights that starts at element `first` of a tensor with rows of `columns`.
    pub fn apply(&self, first: u64, columns: u64, weights: &mut [f32]) {
        let columns = columns.max(1);
        for (at, weight) in (first..).zip(weights) {
            let column = self.columns.get((at % columns) as usize).copied().unwrap_or(1.0);
            let row = self.rows.get((at / columns) as usize).copied().unwrap_or(1.0);
            *weight *= column * row;
        }
    }
}

/// What the search found.
#[derive(Debug, Clone, Default)]
pub(super) struct Scaling {
    /// By the index of the tensor.
    pub factors: HashMap<usize, Factors>,
    /// Groups of matrices that share an input and could be scaled.
    pub groups: usize,
    /// Those where scaling helps.
    pub scaled: usize,
    /// Error of their products with the chosen scales, over that without.
    pub error_ratio: f64,
}

/// Matrices that share an input, and the tensors that make it.
struct Group {
    matrices: Vec<usize>,
    /// Vectors whose values are divided by s.
    vectors: Vec<usize>,
    /// A matrix whose rows are divided by s.
    producer: Option<usize>,
    /// For each column of the matrices, which of the scales it has: heads may share values.
    of_column: Option<Vec<usize>>,
}

/// Names in a layer that leave no doubt about what reads which norm. A layer with any other matrix is left alone: something else
/// might read the same input and would see it divided.
const KNOWN: &[&str] = &[
    "attn_norm",
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_qkv",
    "attn_output",
    "attn_q_norm",
    "attn_k_norm",
    "attn_sinks",
    "attn_post_norm",
    "post_attention_norm",
    "ffn_norm",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
    "ffn_post_norm",
    "post_ffw_norm",
    "ffn_gate_inp",
    "ffn_gate_exps",
    "ffn_up_exps",
    "ffn_down_exps",
    "ffn_gate_inp_shexp",
    "ffn_gate_shexp",
    "ffn_up_shexp",
    "ffn_down_shexp",
    "exp_probs_b",
];

/// Architectures that norm values before attention: what is divided there does not come out divided.
const NORM_VALUES: &[&str] = &["gemma4"];

/// The groups of one layer.
fn groups(
    layer: u64,
    find: &impl Fn(&str) -> Option<usize>,
    tensors: &[TensorInfo],
    names: &[&str],
) -> Vec<Group> {
    let prefix = format!("blk.{layer}.");
    let unknown = |name: &&str| {
        let part = name.strip_prefix(&*prefix).and_then(|rest| rest.split('.').next());
        part.is_some_and(|part| !KNOWN.contains(&part))
    };
    if names.iter().any(unknown) {
        return Vec::new();
    }
    let weight = |part: &str| find(&format!("{prefix}{part}.weight"));
    let bias = |part: &str| find(&format!("{prefix}{part}.bias"));
    let dims = |index: usize| tensors.get(index).map(|tensor| tensor.dims.as_slice()).unwrap_or_default();
    let mut groups = Vec::new();
    let mut after_norm = |norm: &str, parts: &[&str]| {
        let matrices: Vec<usize> = parts.iter().filter_map(|part| weight(part)).collect();
        // A norm with a bias would need it divided, too; none of our architectures has one.
        if let (Some(norm_weight), None, false) = (weight(norm), bias(norm), matrices.is_empty()) {
            groups.push(Group { matrices, vectors: vec![norm_weight], producer: None, of_column: None });
        }
    };
    after_norm("attn_norm", &["attn_q", "attn_k", "attn_v", "attn_qkv"]);
    if weight("ffn_gate_inp").is_none() {
        after_norm("ffn_norm", &["ffn_gate", "ffn_up"]);
    }
    if let (Some(up), Some(down), Some(_)) = (weight("ffn_up"), weight("ffn_down"), weight("ffn_gate"))
        && let ([_, outputs], [columns, _]) = (dims(up), dims(down))
        && outputs == columns
    {
        let vectors = bias("ffn_up").into_iter().collect();
        groups.push(Group { matrices: vec![down], vectors, producer: Some(up), of_column: None });
    }
    groups
}

/// Values and the columns of the output projection that read them: head h reads the values of head h / group.
fn values_group(
    layer: u64,
    find: &impl Fn(&str) -> Option<usize>,
    tensors: &[TensorInfo],
    heads: (u64, u64),
) -> Option<Group> {
    let name = |part: &str| find(&format!("blk.{layer}.{part}"));
    let (v, out) = (name("attn_v.weight")?, name("attn_output.weight")?);
    let (heads, kv_heads) = heads;
    let (rows, columns) = (*tensors.get(v)?.dims.get(1)?, *tensors.get(out)?.dims.first()?);
    let whole = heads > 0 && kv_heads > 0 && heads.is_multiple_of(kv_heads);
    let (group, dim) = (heads.checked_div(kv_heads)?, rows.checked_div(kv_heads)?);
    if !whole || dim == 0 || dim * kv_heads != rows || dim * heads != columns {
        return None;
    }
    let of_column = (0..columns).map(|c| ((c / dim / group) * dim + c % dim) as usize).collect();
    let vectors = name("attn_v.bias").into_iter().collect();
    Some(Group { matrices: vec![out], vectors, producer: Some(v), of_column: Some(of_column) })
}

/// Searches the scales of all groups. `types` are those that the tensors will have.
pub(super) fn search(
    model: &Gguf,
    types: &[GgmlType],
    imatrix: &Imatrix,
    progress: &dyn Progress,
) -> Result<Scaling> {
    let tensors = model.tensors();
    let index: HashMap<&str, usize> =
        tensors.iter().enumerate().map(|(index, tensor)| (tensor.name.as_str(), index)).collect();
    let find = |name: &str| index.get(name).copied();
    let architecture = model.metadata().opt_str("general.architecture")?.unwrap_or_default();
    let count = |key: &str, layer: usize| -> Result<u64> {
        let value = model.metadata().opt_u32_or_u32s(&format!("{architecture}.{key}"))?;
        Ok(value.and_then(|value| value.get(layer).or_else(|| value.get(0))).unwrap_or(0).into())
    };
    let layers = count("block_count", 0)?;
    let mut all = Vec::new();
    for layer in 0..layers {
        let prefix = format!("blk.{layer}.");
        let names: Vec<&str> = index.keys().copied().filter(|name| name.starts_with(&prefix)).collect();
        let found = groups(layer, &find, tensors, &names);
        if !found.is_empty() {
            let heads = count("attention.head_count", layer as usize)?;
            let kv_heads = match count("attention.head_count_kv", layer as usize)? {
                0 => heads,
                kv_heads => kv_heads,
            };
            if !NORM_VALUES.contains(&architecture) {
                all.extend(values_group(layer, &find, tensors, (heads, kv_heads)));
            }
        }
        all.extend(found);
    }
    let source = Source::new(model)?;
    let found: Vec<Option<(usize, Found)>> = all
        .par_iter()
        .enumerate()
        .with_max_len(1)
        .map(|(place, group)| {
            if progress.cancelled() {
                return Err(Error::Cancelled);
            }
            Ok(best(group, tensors, types, imatrix, &source)?.map(|found| (place, found)))
        })
        .collect::<Result<_>>()?;
    let mut scaling = Scaling::default();
    let (mut before, mut after) = (0f64, 0f64);
    for (place, found) in found.into_iter().flatten() {
        let Some(group) = all.get(place) else { continue };
        scaling.groups += 1;
        before += found.plain;
        after += found.least;
        if found.scales.is_empty() {
            continue;
        }
        scaling.scaled += 1;
        let inverse: Vec<f32> = found.scales.iter().map(|s| 1.0 / s).collect();
        for matrix in &group.matrices {
            let columns = match &group.of_column {
                None => found.scales.clone(),
                Some(map) => map.iter().map(|i| found.scales.get(*i).copied().unwrap_or(1.0)).collect(),
            };
            scaling.factors.entry(*matrix).or_default().columns = columns;
        }
        for vector in &group.vectors {
            scaling.factors.entry(*vector).or_default().columns = inverse.clone();
        }
        if let Some(producer) = group.producer {
            scaling.factors.entry(producer).or_default().rows = inverse;
        }
    }
    scaling.error_ratio = if before > 0.0 { after / before } else { 1.0 };
    Ok(scaling)
}

/// The best scales of one group.
struct Found {
    /// Relative error without scales, summed over the matrices.
    plain: f64,
    /// The same with the best ones.
    least: f64,
    /// Empty if none are better.
    scales: Vec<f32>,
}

fn best(
    group: &Group,
    tensors: &[TensorInfo],
    types: &[GgmlType],
    imatrix: &Imatrix,
    source: &Source<'_>,
) -> Result<Option<Found>> {
    // Everything that is scaled has to be decoded and encoded again.
    let mut everything = group.matrices.iter().chain(&group.vectors).chain(&group.producer);
    let can_scale = |index: &usize| {
        let (tensor, ty) = (tensors.get(*index), types.get(*index));
        tensor.is_some_and(|tensor| format(tensor.ty.id()).is_some() && tensor.dims.len() <= 2)
            && ty.is_some_and(|ty| encoder(*ty).is_some())
    };
    let entry = group.matrices.iter().filter_map(|index| imatrix.get(&tensors.get(*index)?.name)).next();
    let (Some(entry), true) = (entry, everything.all(can_scale)) else { return Ok(None) };
    let (Some(squares), 1) = (entry.mean_squares(0), entry.counts().len()) else { return Ok(None) };
    let magnitudes = scales_base(entry, &squares, group.of_column.as_deref());
    let mut samples = Vec::new();
    for index in &group.matrices {
        let (Some(tensor), Some(ty)) = (tensors.get(*index), types.get(*index)) else { continue };
        if ty.block_elements() > 1 {
            if tensor.dims.first() != Some(&(squares.len() as u64)) {
                return Ok(None);
            }
            samples.push((sample(tensor, source)?, *ty, tensor));
        }
    }
    if samples.is_empty() {
        return Ok(None);
    }
    let mut found = Found { plain: 0.0, least: f64::INFINITY, scales: Vec::new() };
    for step in 0..GRID {
        let scales = scales(&magnitudes, step as f32 / GRID as f32);
        let columns: Vec<f32> = match &group.of_column {
            None => scales.clone(),
            Some(map) => map.iter().map(|i| scales.get(*i).copied().unwrap_or(1.0)).collect(),
        };
        let mut error = 0f64;
        for (rows, ty, tensor) in &samples {
            error += relative_error(rows, *ty, &columns, &squares, tensor)?;
        }
        if step == 0 {
            found.plain = error;
        }
        if error < found.least {
            found.least = error;
            found.scales = if step == 0 { Vec::new() } else { scales };
        }
    }
    Ok(Some(found))
}

/// E|x| of each scale: of its column, or the mean over the columns that share it. From root mean squares where the file has no magnitudes.
fn scales_base(entry: &Entry, squares: &[f32], of_column: Option<&[usize]>) -> Vec<f32> {
    let magnitudes = entry.mean_magnitudes(0).unwrap_or_else(|| squares.iter().map(|x| x.sqrt()).collect());
    let Some(map) = of_column else { return magnitudes };
    let len = map.iter().max().map_or(0, |last| last + 1);
    let (mut sums, mut counts) = (vec![0f32; len], vec![0f32; len]);
    for (scale, x) in map.iter().zip(&magnitudes) {
        if let (Some(sum), Some(count)) = (sums.get_mut(*scale), counts.get_mut(*scale)) {
            *sum += x;
            *count += 1.0;
        }
    }
    sums.iter().zip(&counts).map(|(sum, count)| sum / count.max(1.0)).collect()
}

/// s = E|x|^a, so that the geometric mean of the largest and the smallest is 1; columns that never were active count as weak ones.
fn scales(magnitudes: &[f32], exponent: f32) -> Vec<f32> {
    let mean = magnitudes.iter().sum::<f32>() / magnitudes.len().max(1) as f32;
    let floor = (mean * 1e-4).max(f32::MIN_POSITIVE);
    let raw: Vec<f32> = magnitudes.iter().map(|x| libm::powf(x.max(floor), exponent)).collect();
    let (low, high) = raw.iter().fold((f32::MAX, f32::MIN), |(low, high), s| (low.min(*s), high.max(*s)));
    let middle = (low * high).sqrt();
    if !(middle.is_finite() && middle > 0.0) {
        return vec![1.0; magnitudes.len()];
    }
    raw.iter().map(|s| s / middle).collect()
}

/// Some whole rows of a matrix.
fn sample(tensor: &TensorInfo, source: &Source<'_>) -> Result<Vec<Vec<f32>>> {
    let columns = tensor.dims.first().copied().unwrap_or(0);
    let rows: u64 = tensor.dims.iter().skip(1).product();
    let taken = rows.min(SAMPLES);
    (0..taken)
        .map(|place| {
            let mut row = vec![0f32; usize::try_from(columns).unwrap_or(0)];
            source.decode(tensor, place * rows / taken.max(1) * columns, &mut row)?;
            Ok(row)
        })
        .collect()
}

/// Σ E[x²] (w - Q(w s) / s)² / Σ E[x²] w² over the sample.
fn relative_error(
    rows: &[Vec<f32>],
    ty: GgmlType,
    scales: &[f32],
    squares: &[f32],
    tensor: &TensorInfo,
) -> Result<f64> {
    let (Some(encoder), Some(format)) = (encoder(ty), format(ty.id())) else { return Ok(0.0) };
    let seen: Vec<f32> = squares.iter().zip(scales).map(|(x, s)| x / (s * s)).collect();
    let fault = |column: usize, value: f32| Error::Imatrix {
        path: Default::default(),
        fault: crate::imatrix::ImatrixError::Value {
            name: tensor.name.clone(),
            fault: crate::encode::ImportanceError { column, value },
        },
    };
    let importance = Importance::new(&seen).map_err(|found| fault(found.column, found.value))?;
    let (mut error, mut energy) = (0f64, 0f64);
    for (place, row) in rows.iter().enumerate() {
        let scaled: Vec<f32> = row.iter().zip(scales).map(|(w, s)| w * s).collect();
        let mut bytes = vec![0; row.len() / ty.block_elements() as usize * ty.block_bytes() as usize];
        let mut decoded = vec![0f32; row.len()];
        encoder.encode_row(&scaled, Some(&importance), &mut bytes).map_err(|fault| Error::Weight {
            tensor: tensor.name.clone(),
            row: place as u64,
            column: 0,
            fault,
        })?;
        format.decode_row(&bytes, &mut decoded);
        for (((w, q), s), x) in row.iter().zip(&decoded).zip(scales).zip(squares) {
            error += f64::from(*x) * f64::from(w - q / s).powi(2);
            energy += f64::from(*x) * f64::from(*w).powi(2);
        }
    }
    Ok(if energy > 0.0 { error / energy } else { 0.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_have_the_shape_of_the_formula() {
        let s = scales(&[1.0, 4.0, 16.0], 0.5);
        assert_eq!(s, [0.5, 1.0, 2.0]);
        assert_eq!(scales(&[1.0, 4.0, 16.0], 0.0), [1.0; 3]);
        assert_eq!(scales(&[0.0; 3], 0.7), [1.0; 3]);
        assert!(scales(&[0.0, 1.0], 0.95).iter().all(|s| s.is_finite() && *s > 0.0));
    }

    #[test]
    fn factors_go_by_row_and_column() {
        let factors = Factors { columns: vec![1.0, 2.0, 3.0], rows: vec![1.0, 10.0] };
        let mut weights = [1.0; 4];
        factors.apply(2, 3, &mut weights);
        assert_eq!(weights, [3.0, 10.0, 20.0, 30.0]);
    }

    #[test]
    fn shared_values_share_a_scale() {
        let tensor = |name: &str, dims: &[u64]| TensorInfo {
            name: name.into(),
            dims: dims.to_vec(),
            ty: GgmlType::F32,
            shard: 0,
            offset: 0,
            bytes: 0,
        };
        // Four heads of two values, two of them for each head of values.
        let tensors = [tensor("blk.0.attn_v.weight", &[8, 4]), tensor("blk.0.attn_output.weight", &[8, 8])];
        let find = |name: &str| tensors.iter().position(|tensor| tensor.name == name);
        let group = values_group(0, &find, &tensors, (4, 2)).map(|group| group.of_column);
        assert_eq!(group, Some(Some(vec![0, 1, 0, 1, 2, 3, 2, 3])));
        assert!(values_group(0, &find, &tensors, (3, 2)).is_none());
        assert!(values_group(0, &find, &tensors, (0, 0)).is_none());
    }
}
