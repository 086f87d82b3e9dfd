//! Block formats of GGUF. One file each, one line in [`LIST`] each.
//!
//! A format says how to bring 32 weights into the canonical form [`Block32`]; decoding, the scalar dot product and the
//! panels of the fast kernels follow from that. An instruction set may unpack a format faster, with equal results.

mod bf16;
mod f16;
mod f32;
mod iq4_nl;
mod iq4_xs;
mod mxfp4;
pub mod nested;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;

use crate::isa::StripFn;
use crate::matmul;
use crate::matmul::float::LoadFloats;
use crate::matmul::simd::{Shape, Simd, Unpack};
use crate::matmul::source::{INTERLEAVED, Interleaved, Rows, interleave, row_of};

/// Makes the list of formats, and for an instruction set the list of its kernels.
macro_rules! formats {
    ($($kind:ident $module:ident::$name:ident,)*) => {
        /// Number of formats; kernel tables have one entry for each.
        pub(crate) const COUNT: usize = [$(stringify!($name)),*].len();
        static LIST: [Format; COUNT] = number([$($kind::<$module::$name>()),*]);

        /// The kernels of an instruction set, for both precisions.
        pub(crate) fn strips<V: Simd>() -> [[StripFn; 2]; COUNT] {
            [$(formats!(@strip $kind $module::$name)),*]
        }
    };
    (@strip float $module:ident::$name:ident) => {
        [matmul::float::strip::<V, <$module::$name as FloatFormat>::Load>; 2]
    };
    (@strip quantised $module:ident::$name:ident) => {
        [
            matmul::strip::strip::<V, $module::$name, Rows, false>,
            matmul::strip::strip::<V, $module::$name, Rows, true>,
        ]
    };
    (@strip interleaved $module:ident::$name:ident) => {
        [
            matmul::strip::strip::<V, $module::$name, Interleaved<$module::$name>, false>,
            matmul::strip::strip::<V, $module::$name, Interleaved<$module::$name>, true>,
        ]
    };
}

// All formats. Add one: its file, its `mod`, and its line here.
formats! {
    float f32::F32,
    float f16::F16,
    float bf16::Bf16,
    quantised q4_0::Q4_0,
    quantised q4_1::Q4_1,
    quantised q5_0::Q5_0,
    quantised q5_1::Q5_1,
    quantised q8_0::Q8_0,
    quantised q2_k::Q2K,
    quantised q3_k::Q3K,
    quantised q4_k::Q4K,
    quantised q5_k::Q5K,
    quantised q6_k::Q6K,
    quantised iq4_nl::Iq4Nl,
    quantised iq4_xs::Iq4Xs,
    quantised mxfp4::Mxfp4,
    quantised nested::NestedLow,
    quantised nested::NestedFull,
    // The same, for packs: sixteen rows interleaved.
    interleaved q4_0::Q4_0,
    interleaved q4_1::Q4_1,
    interleaved q5_0::Q5_0,
    interleaved q5_1::Q5_1,
    interleaved q8_0::Q8_0,
    interleaved q2_k::Q2K,
    interleaved q3_k::Q3K,
    interleaved q4_k::Q4K,
    interleaved q5_k::Q5K,
    interleaved q6_k::Q6K,
    interleaved iq4_nl::Iq4Nl,
    interleaved iq4_xs::Iq4Xs,
}

/// Numbers from here on are no types of GGUF: formats that are made of other tensors.
const PRIVATE: u32 = 1 << 31;
/// From here on, formats of GGUF with their rows interleaved.
const INTERLEAVED_FORMATS: u32 = PRIVATE + (1 << 30);

/// 32 weights in canonical form: `w[k] = d * s[k / 16] * q[k] + m[k / 16]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Block32 {
    /// The integers.
    pub q: [i8; 32],
    /// Integer-valued scale of each half; 1 where the format has none.
    pub s: [f32; 2],
    /// Scale.
    pub d: f32,
    /// Offset of each half; 0 where the format has none.
    pub m: [f32; 2],
}

/// What a quantised format's file provides. The oracle reads [`BlockFormat::unpack32`], all else [`Unpack`].
pub(crate) trait BlockFormat: Unpack {
    /// Type number in GGUF.
    const ID: u32;
    /// The field's name.
    const NAME: &'static str;
    /// Weights per block.
    const BLOCK: usize;
    /// Weights `32 b .. 32 b + 32` of a row. The second plane of the row is empty for formats that have none.
    fn unpack32(row: &[u8], fine: &[u8], b: usize) -> Block32;
}

/// What a float format's file provides.
pub(crate) trait FloatFormat {
    /// Type number in GGUF.
    const ID: u32;
    /// The field's name.
    const NAME: &'static str;
    /// Bytes per weight.
    const BYTES: usize;
    /// The same for sixteen weights at a time.
    type Load: LoadFloats;

    /// Weights of a row as f32, exactly.
    fn decode(row: &[u8], out: &mut [::core::primitive::f32]);
}

/// Canonical-form access to a quantised format.
#[derive(Debug)]
pub(crate) struct Quantised {
    pub unpack32: fn(&[u8], &[u8], usize) -> Block32,
    /// Offsets per 32 weights: 0, 1 or 2.
    pub mins: usize,
    /// See [`Unpack::LONE_HALF`].
    lone_half: Option<usize>,
}

#[derive(Debug)]
pub(crate) enum Codec {
    Float(fn(&[u8], &mut [::core::primitive::f32])),
    Quantised(Quantised),
}

/// A block format: how weights lie in a GGUF file.
#[derive(Debug)]
pub struct Format {
    /// Type number in GGUF; of formats that are no type of GGUF, a number that no file can have.
    pub id: u32,
    /// The field's name, such as `Q4_K`.
    pub name: &'static str,
    /// Weights per block.
    pub block: usize,
    /// Bytes per block, in all planes.
    pub bytes: usize,
    /// How many of them are in a second plane: 0, except for [`nested`] precision.
    pub fine: usize,
    /// How many rows lie interleaved: 1, or 16 for formats of packs. The name is then that of the format of the rows.
    pub interleaved: usize,
    /// Position in the list of formats, which kernel tables are indexed by.
    pub(crate) index: usize,
    pub(crate) codec: Codec,
}

impl Format {
    /// Bytes of a row of `cols` weights, in all planes; `None` if that is no whole number of blocks, or overflows.
    pub fn row_bytes(&self, cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(self.block) {
            return None;
        }
        (cols / self.block).checked_mul(self.bytes)
    }

    /// Whether activations should be rounded to half precision too. The field multiplies F16 weights so; their files are compared,
    /// and judged, by it.
    pub fn takes_halves(&self) -> bool {
        self.id == <f16::F16 as FloatFormat>::ID
    }

    /// Whether weights are small integers with shared scales (else plain floats).
    pub fn is_quantised(&self) -> bool {
        matches!(self.codec, Codec::Quantised(_))
    }

    /// Bits per weight.
    pub fn bits_per_weight(&self) -> ::core::primitive::f32 {
        self.bytes as ::core::primitive::f32 * 8.0 / self.block as ::core::primitive::f32
    }

    /// Whether it is a type of GGUF.
    pub fn is_in_files(&self) -> bool {
        self.id < PRIVATE
    }

    /// Decodes the first `out.len()` weights of a row; of a format with two planes, the row of the first and then that of the second.
    /// Weights that `row` is too short for become 0.
    pub fn decode_row(&self, row: &[u8], out: &mut [::core::primitive::f32]) {
        match &self.codec {
            Codec::Float(decode) => {
                let n = (row.len() / self.bytes).min(out.len());
                decode(row, &mut out[..n]);
                out[n..].fill(0.0);
            }
            Codec::Quantised(q) => {
                let blocks = row.len() / self.bytes;
                let weights = blocks * self.block;
                let (row, fine) = row.split_at(blocks * (self.bytes - self.fine));
                for (b, out) in out.chunks_mut(32).enumerate() {
                    if (b + 1) * 32 > weights {
                        out.fill(0.0);
                        continue;
                    }
                    let x = (q.unpack32)(row, fine, b);
                    for (k, o) in out.iter_mut().enumerate() {
                        *o = x.d * x.s[k / 16] * ::core::primitive::f32::from(x.q[k]) + x.m[k / 16];
                    }
                }
            }
        }
    }

    /// The same weights with sixteen rows interleaved, if there are kernels for that.
    pub fn with_rows_interleaved(&self) -> Option<&'static Format> {
        if self.interleaved > 1 { None } else { format(INTERLEAVED_FORMATS.checked_add(self.id)?) }
    }

    /// Interleaves sixteen rows of this format, for [`Format::with_rows_interleaved`].
    ///
    /// # Panics
    /// If `rows` is not sixteen rows of whole blocks, or `out` has another length.
    pub fn interleave(&self, rows: &[u8], out: &mut [u8]) {
        assert!(rows.len().is_multiple_of(INTERLEAVED * self.bytes), "sixteen rows of whole blocks");
        assert_eq!(rows.len(), out.len(), "bytes of interleaved rows");
        interleave(self.bytes, self.lone_half(), rows, out);
    }

    /// Row `r` of sixteen interleaved ones.
    ///
    /// # Panics
    /// If `sixteen` is not sixteen rows of whole blocks, or `r` is none of them.
    pub fn row_of_sixteen(&self, sixteen: &[u8], r: usize) -> Vec<u8> {
        assert!(
            sixteen.len().is_multiple_of(INTERLEAVED * self.bytes) && r < INTERLEAVED,
            "row {r} of sixteen"
        );
        row_of(self.bytes, self.lone_half(), sixteen, r)
    }

    fn lone_half(&self) -> Option<usize> {
        self.quantised().and_then(|q| q.lone_half)
    }

    /// The canonical form, for formats that have one.
    pub(crate) fn quantised(&self) -> Option<&Quantised> {
        match &self.codec {
            Codec::Quantised(q) => Some(q),
            Codec::Float(_) => None,
        }
    }
}

/// The two views of nested precision: the low plane alone, and both planes.
pub fn nested_formats() -> (&'static Format, &'static Format) {
    let named = |name| LIST.iter().find(|f| f.name == name).unwrap_or(&LIST[0]);
    (named(<nested::NestedLow as BlockFormat>::NAME), named(<nested::NestedFull as BlockFormat>::NAME))
}

/// The format with this GGUF type number, if the kernels know it.
pub fn format(ggml_id: u32) -> Option<&'static Format> {
    LIST.iter().find(|f| f.id == ggml_id)
}

/// All formats that the kernels know.
pub fn formats() -> &'static [Format] {
    &LIST
}

const fn quantised<F: BlockFormat>() -> Format {
    assert!(F::BLOCK == 32 * F::BLOCKS);
    let mins = <F::Shape as Shape>::MINS;
    let codec = Codec::Quantised(Quantised { unpack32: F::unpack32, mins, lone_half: F::LONE_HALF });
    let (bytes, fine) = (F::BYTES + F::FINE, F::FINE);
    Format { id: F::ID, name: F::NAME, block: F::BLOCK, bytes, fine, interleaved: 1, index: 0, codec }
}

const fn interleaved<F: BlockFormat>() -> Format {
    Format { id: INTERLEAVED_FORMATS + F::ID, interleaved: INTERLEAVED, ..quantised::<F>() }
}

const fn float<F: FloatFormat>() -> Format {
    let codec = Codec::Float(F::decode);
    Format { id: F::ID, name: F::NAME, block: 1, bytes: F::BYTES, fine: 0, interleaved: 1, index: 0, codec }
}

const fn number(mut list: [Format; COUNT]) -> [Format; COUNT] {
    let mut i = 0;
    while i < COUNT {
        list[i].index = i;
        i += 1;
    }
    list
}

/// The half float at byte `at`.
#[inline]
fn half_at(bytes: &[u8], at: usize) -> ::core::primitive::f32 {
    half::f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// 16 bytes of nibbles: low ones are the first 16 values, high ones the next 16.
#[inline]
fn nibbles(qs: &[u8], value: impl Fn(u8) -> i8) -> [i8; 32] {
    let mut q = [0; 32];
    for (k, &byte) in qs[..16].iter().enumerate() {
        q[k] = value(byte & 15);
        q[k + 16] = value(byte >> 4);
    }
    q
}
