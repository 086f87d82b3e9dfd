//! Rows of floats to quantised blocks.
//!
//! One [`Encoder`] per target type, from [`encoder`]. Without an importance vector the older formats (Q8_0, Q4_0, Q4_1, Q5_0,
//! Q5_1) follow the format's reference encoder byte for byte; the others minimise the squared error of each block, the smallest ones weighted by
//! magnitude. With an importance vector, every format except Q8_0 minimises the squared error weighted by it.
//!
//! Results do not depend on the machine: all sums have one order and nothing is fused.

mod affine;
mod float;
mod importance;
mod iq4;
mod legacy;
mod pack;
mod q2k;
mod q3k;
mod q45k;
mod q6k;
mod scaled;

pub use importance::{Importance, ImportanceError};

use pannier_gguf::GgmlType;

/// The largest magnitude that every format can hold: beyond it an f16 scale would become infinite.
pub const MAX_MAGNITUDE: f32 = 65504.0;

/// Why a row cannot be encoded.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// A weight is NaN or infinite: the model is damaged, or overflowed when it was converted.
    #[error("weight {index} of the row is {value}")]
    NotFinite {
        /// Its place in the row.
        index: usize,
        /// What it is.
        value: f32,
    },
    /// A weight is beyond what the format's scales can express.
    #[error("weight {index} of the row is {value}, beyond the ±{MAX_MAGNITUDE} that {ty} can hold")]
    TooLarge {
        /// Its place in the row.
        index: usize,
        /// What it is.
        value: f32,
        /// The target type.
        ty: GgmlType,
    },
    /// The row is not whole blocks.
    #[error("a row of {row} weights is not whole blocks of {block} weights of {ty}")]
    PartialBlock {
        /// Weights in the row.
        row: usize,
        /// Weights per block.
        block: usize,
        /// The target type.
        ty: GgmlType,
    },
    /// The output has another size than the encoded row.
    #[error("the encoded row takes {needed} bytes of {ty}, the output has {available}")]
    OutputSize {
        /// Bytes needed.
        needed: usize,
        /// Bytes given.
        available: usize,
        /// The target type.
        ty: GgmlType,
    },
    /// The importance vector belongs to rows of another length.
    #[error("the row has {row} weights, its importance vector {importance}")]
    ImportanceSize {
        /// Weights in the row.
        row: usize,
        /// Length of the vector.
        importance: usize,
    },
}

/// The encoder of one type.
#[derive(Debug, Clone, Copy)]
pub struct Encoder {
    ty: GgmlType,
    limit: f32,
    uses_importance: bool,
    encode: EncodeFn,
}

/// Whole blocks to their bytes. `importance` is as long as the row.
type EncodeFn = fn(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]);

const fn quantised(ty: GgmlType, encode: EncodeFn) -> Encoder {
    Encoder { ty, limit: MAX_MAGNITUDE, uses_importance: true, encode }
}

/// All encoders. A new target format is one file and one line here.
static ENCODERS: &[Encoder] = &[
    Encoder { ty: GgmlType::F32, limit: f32::INFINITY, uses_importance: false, encode: float::f32 },
    Encoder { ty: GgmlType::F16, limit: MAX_MAGNITUDE, uses_importance: false, encode: float::f16 },
    Encoder { ty: GgmlType::BF16, limit: 3.3e38, uses_importance: false, encode: float::bf16 },
    Encoder { ty: GgmlType::Q8_0, limit: MAX_MAGNITUDE, uses_importance: false, encode: legacy::q8_0 },
    quantised(GgmlType::Q4_0, legacy::q4_0),
    quantised(GgmlType::Q4_1, legacy::q4_1),
    quantised(GgmlType::Q5_0, legacy::q5_0),
    quantised(GgmlType::Q5_1, legacy::q5_1),
    quantised(GgmlType::Q2_K, q2k::q2_k),
    quantised(GgmlType::Q3_K, q3k::q3_k),
    quantised(GgmlType::Q4_K, q45k::q4_k),
    quantised(GgmlType::Q5_K, q45k::q5_k),
    quantised(GgmlType::Q6_K, q6k::q6_k),
    quantised(GgmlType::IQ4_NL, iq4::iq4_nl),
    quantised(GgmlType::IQ4_XS, iq4::iq4_xs),
];

/// The encoder of both planes of nested precision: for a run of blocks first all of the low plane, then all of the fine one. The blocks are
/// Q5_K, with scales that suit both views.
pub(crate) static NESTED: Encoder = quantised(GgmlType::Q5_K, q45k::nested);

/// The encoder of `ty`, if it is a type we write.
pub fn encoder(ty: GgmlType) -> Option<&'static Encoder> {
    ENCODERS.iter().find(|encoder| encoder.ty == ty)
}

/// Every encoder, for listings and tests.
pub fn encoders() -> &'static [Encoder] {
    ENCODERS
}

impl Encoder {
    /// The type it writes.
    pub fn ty(&self) -> GgmlType {
        self.ty
    }

    /// Whether an importance vector changes the result.
    pub fn uses_importance(&self) -> bool {
        self.uses_importance
    }

    /// Encodes one row.
    ///
    /// # Errors
    /// Sizes that do not fit each other, a weight that is not finite, or one that the type cannot hold.
    pub fn encode_row(
        &self,
        row: &[f32],
        importance: Option<&Importance>,
        out: &mut [u8],
    ) -> Result<(), EncodeError> {
        self.encode_weighted(row, importance.map(Importance::weights), out)
    }

    /// [`Encoder::encode_row`] for a run of blocks with one importance (as [`Importance`] makes them) per weight.
    pub(crate) fn encode_weighted(
        &self,
        row: &[f32],
        importance: Option<&[f32]>,
        out: &mut [u8],
    ) -> Result<(), EncodeError> {
        let ty = self.ty;
        let block = ty.block_elements() as usize;
        if !row.len().is_multiple_of(block) {
            return Err(EncodeError::PartialBlock { row: row.len(), block, ty });
        }
        // A row in memory has fewer encoded bytes than decoded ones, or as many: no overflow.
        let needed = row.len() / block * ty.block_bytes() as usize;
        if out.len() != needed {
            return Err(EncodeError::OutputSize { needed, available: out.len(), ty });
        }
        if let Some(importance) = importance.filter(|importance| importance.len() != row.len()) {
            return Err(EncodeError::ImportanceSize { row: row.len(), importance: importance.len() });
        }
        // Not `> limit`: NaN must not pass.
        if let Some(index) = row.iter().position(|weight| !(weight.abs() <= self.limit && weight.is_finite()))
        {
            let value = row.get(index).copied().unwrap_or(f32::NAN);
            return Err(if value.is_finite() {
                EncodeError::TooLarge { index, value, ty }
            } else {
                EncodeError::NotFinite { index, value }
            });
        }
        (self.encode)(row, importance, out);
        Ok(())
    }
}
