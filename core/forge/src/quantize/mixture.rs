//! Which tensor gets which type.
//!
//! The customary mixtures give more bits where an error costs most: the output matrix, the values of attention, the second
//! matrix of the feed-forward block, and of these the first and last layers. The rules are those that files of these names have
//! followed since 2023, so a name means here what it means elsewhere.

use super::Override;
use super::types::{FileType, Mix};
use pannier_gguf::{GgmlType, Metadata, TensorInfo};

/// What a tensor is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Embedding,
    Output,
    Query,
    Key,
    Value,
    /// Query, key and value in one.
    Fused,
    AttentionOutput,
    Down,
    Other,
}

impl Role {
    pub fn of(name: &str) -> Role {
        let within = |part: &str| name.contains(part);
        match name {
            "output.weight" => Role::Output,
            "token_embd.weight" | "per_layer_token_embd.weight" => Role::Embedding,
            _ if within("attn_qkv.weight") => Role::Fused,
            _ if within("attn_kv_b.weight") || within("attn_v.weight") => Role::Value,
            _ if within("attn_k.weight") => Role::Key,
            _ if within("attn_q.weight") => Role::Query,
            _ if within("attn_output.weight") => Role::AttentionOutput,
            _ if within("ffn_down") => Role::Down,
            _ => Role::Other,
        }
    }

    /// The projections of attention, which `keep_f16_attention` protects.
    pub fn is_attention(self) -> bool {
        matches!(self, Role::Query | Role::Key | Role::Value | Role::Fused | Role::AttentionOutput)
    }
}

/// Parts of names of matrices that stay as they are: small, and used where errors decide rather than add up (routers, filters,
/// positions).
const KEPT: &[&str] = &[
    "_norm.weight",
    "ffn_gate_inp",
    "exp_probs",
    "altup",
    "laurel",
    "per_layer_model_proj",
    "position_embd",
    "token_types",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "indexer.k_proj.weight",
    "indexer.q_proj.weight",
    "attn_rel_b.weight",
    "time_mix_",
];

/// Whether a tensor is a matrix that may be quantised.
pub(super) fn quantisable(tensor: &TensorInfo) -> bool {
    let dims = tensor.dims.iter().rposition(|dim| *dim > 1).map_or(0, |last| last + 1);
    let float_or_quantised =
        !matches!(tensor.ty, GgmlType::I8 | GgmlType::I16 | GgmlType::I32 | GgmlType::I64 | GgmlType::F64);
    dims >= 2
        && float_or_quantised
        && tensor.name.ends_with("weight")
        && !KEPT.iter().any(|part| tensor.name.contains(part))
}

/// The layer in `blk.N.…`.
fn layer(name: &str) -> Option<u64> {
    name.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}

/// What the rules need to know of a model.
#[derive(Debug, Clone, Copy)]
struct Shape {
    layers: u64,
    /// Query heads per key head.
    group: u64,
    experts: u64,
    /// No output matrix: the embedding serves as one.
    tied: bool,
    /// Layers with a value (or fused) matrix.
    values: u64,
    imatrix: bool,
    is_llama: bool,
}

impl Shape {
    fn of(metadata: &Metadata, tensors: &[TensorInfo], imatrix: bool) -> pannier_gguf::Result<Shape> {
        let architecture = metadata.opt_str("general.architecture")?.unwrap_or_default();
        let count = |key: &str| -> pannier_gguf::Result<u64> {
            let value = metadata.opt_u32_or_u32s(&format!("{architecture}.{key}"))?;
            Ok(value.and_then(|value| value.get(0)).unwrap_or(0).into())
        };
        let heads = count("attention.head_count")?;
        let kv_heads = match count("attention.head_count_kv")? {
            0 => heads,
            kv_heads => kv_heads,
        };
        let is_value = |tensor: &&TensorInfo| matches!(Role::of(&tensor.name), Role::Value | Role::Fused);
        Ok(Shape {
            layers: count("block_count")?,
            group: heads.checked_div(kv_heads).unwrap_or(0),
            experts: count("expert_count")?,
            tied: !tensors.iter().any(|tensor| tensor.name == "output.weight"),
            values: tensors.iter().filter(is_value).count() as u64,
            imatrix,
            is_llama: architecture == "llama",
        })
    }
}

/// Layers where the medium mixtures spend more: the first and the last eighth, and every third between.
fn more_bits(layer: u64, layers: u64) -> bool {
    let eighth = layers / 8;
    layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2
}

/// Places among the layers.
struct Place {
    /// Which of the value matrices.
    value: u64,
    /// Which layer, of the feed-forward matrices.
    down: u64,
}

fn rule(target: FileType, role: Role, place: &Place, shape: &Shape) -> GgmlType {
    use GgmlType as T;
    let base = target.base;
    let (mix, first_eighth) = (target.mix, place.down < shape.layers / 8);
    let eight_experts = shape.experts == 8;
    match role {
        Role::Output => output(base),
        Role::Embedding if shape.tied => output(base),
        Role::Value | Role::Fused => {
            let more = more_bits(place.value, shape.values);
            let ty = match (base, mix) {
                (T::Q2_K, _) => {
                    if shape.group >= 4 {
                        T::Q4_K
                    } else {
                        T::Q3_K
                    }
                }
                (T::Q3_K, Mix::Medium) => {
                    if place.value < 2 {
                        T::Q5_K
                    } else {
                        T::Q4_K
                    }
                }
                (T::Q3_K, Mix::Large) => T::Q5_K,
                (_, Mix::Uneven) if shape.group >= 4 => T::Q5_K,
                (T::Q4_K | T::Q5_K, Mix::Medium) if more => T::Q6_K,
                (T::Q4_K, Mix::Small) if place.value < 4 => T::Q5_K,
                _ => base,
            };
            // With 80 layers, eight heads share the values: a small matrix, and a cheap gain.
            let wide = shape.is_llama && shape.layers == 80 && matches!(ty, T::Q3_K | T::Q4_K);
            match ty {
                _ if eight_experts && base.block_elements() > 1 => T::Q8_0,
                _ if wide => T::Q5_K,
                ty => ty,
            }
        }
        Role::Key if eight_experts && base.block_elements() > 1 => T::Q8_0,
        Role::Down => match (base, mix) {
            (T::Q2_K, _) => T::Q3_K,
            (T::Q3_K, Mix::Medium) => {
                if place.down < shape.layers / 16 {
                    T::Q5_K
                } else {
                    T::Q4_K
                }
            }
            (T::Q3_K, Mix::Large) => T::Q5_K,
            (T::Q4_K | T::Q5_K, Mix::Medium) if more_bits(place.down, shape.layers) => T::Q6_K,
            (T::Q4_K, Mix::Small) | (_, Mix::Uneven)
                if first_eighth && (mix == Mix::Small || !shape.imatrix) =>
            {
                T::Q5_K
            }
            // A weighted 4-bit fit without minimum can go wrong in the first of these matrices.
            (T::Q4_0, _) if first_eighth && shape.imatrix => T::Q4_1,
            (T::Q5_0, _) if first_eighth && shape.imatrix => T::Q5_1,
            _ => base,
        },
        Role::AttentionOutput if eight_experts => match (base, mix) {
            (T::Q2_K, _) | (T::Q3_K, Mix::Small | Mix::Medium) | (T::Q4_K, _) | (_, Mix::Uneven) => T::Q5_K,
            _ => base,
        },
        Role::AttentionOutput => match (base, mix) {
            (T::Q2_K, _) => T::Q3_K,
            (T::Q3_K, Mix::Medium) => T::Q4_K,
            (T::Q3_K, Mix::Large) => T::Q5_K,
            _ => base,
        },
        _ => base,
    }
}

fn output(base: GgmlType) -> GgmlType {
    if base == GgmlType::Q8_0 || base.block_elements() == 1 { base } else { GgmlType::Q6_K }
}

/// The type for rows that are not whole blocks of `ty`: one with blocks of 32 and a few more bits, else f16.
pub(super) fn that_fits(ty: GgmlType, columns: u64) -> GgmlType {
    use GgmlType as T;
    if columns.is_multiple_of(ty.block_elements()) {
        return ty;
    }
    let smaller = match ty {
        T::Q2_K | T::Q3_K => T::Q4_0,
        T::IQ4_XS => T::IQ4_NL,
        T::Q4_K => T::Q5_0,
        T::Q5_K => T::Q5_1,
        _ => T::Q8_0,
    };
    if columns.is_multiple_of(smaller.block_elements()) { smaller } else { T::F16 }
}

/// The customary type of every tensor, in the order of `tensors`.
pub(super) fn choose(
    metadata: &Metadata,
    tensors: &[TensorInfo],
    target: FileType,
    imatrix: bool,
    pure: bool,
    overrides: &[Override],
    keep_f16_attention: bool,
) -> pannier_gguf::Result<Vec<GgmlType>> {
    let shape = Shape::of(metadata, tensors, imatrix)?;
    // Places count by layer, not by position in the file.
    let mut order: Vec<usize> = (0..tensors.len()).collect();
    let key = |index: &usize| tensors.get(*index).map(|tensor| (layer(&tensor.name), tensor.name.as_str()));
    order.sort_by(|a, b| key(a).cmp(&key(b)));
    let mut types: Vec<GgmlType> = tensors.iter().map(|tensor| tensor.ty).collect();
    let (mut values, mut downs) = (0, 0);
    for index in order {
        let (Some(tensor), Some(ty)) = (tensors.get(index), types.get_mut(index)) else { continue };
        if !quantisable(tensor) {
            continue;
        }
        let columns = tensor.dims.first().copied().unwrap_or(0);
        let role = Role::of(&tensor.name);
        let layer = layer(&tensor.name).filter(|_| shape.experts > 1);
        let place = Place { value: values, down: layer.unwrap_or(downs) };
        values += u64::from(matches!(role, Role::Value | Role::Fused));
        downs += u64::from(role == Role::Down);
        if let Some(given) = overrides.iter().find(|given| given.matches(&tensor.name)) {
            *ty = that_fits(given.ty(), columns);
        } else if keep_f16_attention && role.is_attention() {
            // More bits than the input has would be bytes without information.
            if tensor.ty.bits_per_weight() > 16.0 || tensor.ty == GgmlType::BF16 {
                *ty = GgmlType::F16;
            }
        } else if tensor.ty == GgmlType::MXFP4 && target.base.bits_per_weight() >= 4.0 {
            // Trained in this format: anything else of this size is larger or worse.
        } else if pure {
            *ty = that_fits(target.base, columns);
        } else if matches!(role, Role::Output) || role == Role::Embedding && shape.tied {
            let whole = columns.is_multiple_of(target.base.block_elements());
            let wanted = if whole { rule(target, role, &place, &shape) } else { GgmlType::Q8_0 };
            *ty = that_fits(wanted, columns);
        } else {
            *ty = that_fits(rule(target, role, &place, &shape), columns);
        }
    }
    Ok(types)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_and_layers_come_from_names() {
        assert_eq!(Role::of("blk.3.attn_v.weight"), Role::Value);
        assert_eq!(Role::of("blk.3.ffn_down_exps.weight"), Role::Down);
        assert_eq!(Role::of("output.weight"), Role::Output);
        assert_eq!(Role::of("output_norm.weight"), Role::Other);
        assert_eq!(layer("blk.17.attn_v.weight"), Some(17));
        assert_eq!(layer("blk.x.attn_v.weight"), None);
        assert_eq!(layer("token_embd.weight"), None);
    }

    #[test]
    fn every_type_has_a_stand_in_for_odd_rows() {
        for target in FileType::all() {
            for columns in [1, 31, 32, 100, 576, 896, 1536] {
                let ty = that_fits(target.base, columns);
                assert!(columns.is_multiple_of(ty.block_elements()), "{} {columns}", target.name);
            }
        }
        assert_eq!(that_fits(GgmlType::Q4_K, 896), GgmlType::Q5_0);
        assert_eq!(that_fits(GgmlType::Q6_K, 576), GgmlType::Q8_0);
    }
}
