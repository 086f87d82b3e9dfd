//! Which matrices get two planes.
//!
//! Those that the mixture gives Q5_K: their blocks can be taken apart. What it keeps higher is kept for both views, once, for the reasons that it is
//! kept higher; so are embeddings, of which a pass reads a few rows, and what the user has chosen a type for.

use super::mixture::{Role, quantisable};
use super::{PlannedTensor, QuantizeOptions};
use crate::{Error, Result};
use pannier_gguf::nested::VERSION_KEY;
use pannier_gguf::{GgmlType, Gguf};
use pannier_kernels::nested::{FINE_BYTES, WHOLE_BYTES};

/// For every tensor.
pub(super) fn choose(input: &Gguf, types: &[GgmlType], options: &QuantizeOptions) -> Result<Vec<bool>> {
    if input.metadata().get(VERSION_KEY).is_some() {
        return Err(Error::Nested {
            what: "the input is in nested precision already; start from the original model",
        });
    }
    if !options.nested {
        return Ok(vec![false; types.len()]);
    }
    if options.target.base != GgmlType::Q5_K {
        return Err(Error::Nested {
            what: "nested precision is made of Q5_K blocks: the type must be Q5_K_S or Q5_K_M",
        });
    }
    let nested: Vec<bool> = input
        .tensors()
        .iter()
        .zip(types)
        .map(|(tensor, ty)| {
            *ty == GgmlType::Q5_K
                && quantisable(tensor)
                && !matches!(Role::of(&tensor.name), Role::Embedding | Role::Output)
                && !options.overrides.iter().any(|given| given.matches(&tensor.name))
        })
        .collect();
    if nested.contains(&true) {
        Ok(nested)
    } else {
        Err(Error::Nested { what: "no matrix of this model has rows of whole blocks of 256 weights" })
    }
}

/// The type that a search for scales should try. Of the two views of a matrix the low one has sixteen times the error, so scales are for three bits.
pub(super) fn stand_in(planned: &PlannedTensor) -> GgmlType {
    if planned.nested { GgmlType::Q3_K } else { planned.to }
}

/// Bytes of the fine plane of a matrix that has so many in both.
pub(super) fn fine_bytes(bytes: u64) -> u64 {
    bytes / WHOLE_BYTES as u64 * FINE_BYTES as u64
}
