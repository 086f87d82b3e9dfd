//! The tensor element types of GGUF, in one table.
//!
//! Source: the `ggml_type` enumeration and block structs of the GGUF/ggml format documents. Ids are never reused, so the
//! types that were withdrawn stay here: an old file then fails with a name a person can search for.

use std::fmt;

/// A tensor element type that has a known name and block size.
///
/// It is the raw `u32` id of the file; one can only be made from an id in the table, so the sizes are always known.
/// Whether the engine can *compute* with a type is the kernels' business, not this crate's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GgmlType(u32);

/// One line of the table: name, elements in one block, bytes of one block.
struct Row {
    id: u32,
    name: &'static str,
    elements: u64,
    bytes: u64,
}

macro_rules! ggml_types {
    ($($(#[$doc:meta])* $konst:ident = $id:literal, $name:literal, $elements:literal => $bytes:literal;)*) => {
        #[allow(missing_docs, reason = "the names are the format's own")]
        impl GgmlType {
            $($(#[$doc])* pub const $konst: GgmlType = GgmlType($id);)*
        }
        const TABLE: &[Row] = &[$(Row { id: $id, name: $name, elements: $elements, bytes: $bytes }),*];
    };
}

// id, name, elements per block => bytes per block.
ggml_types! {
    F32 = 0, "F32", 1 => 4;
    F16 = 1, "F16", 1 => 2;
    Q4_0 = 2, "Q4_0", 32 => 18;
    Q4_1 = 3, "Q4_1", 32 => 20;
    /// Withdrawn before GGUF existed.
    Q4_2 = 4, "Q4_2", 16 => 10;
    /// Withdrawn before GGUF existed.
    Q4_3 = 5, "Q4_3", 16 => 12;
    Q5_0 = 6, "Q5_0", 32 => 22;
    Q5_1 = 7, "Q5_1", 32 => 24;
    Q8_0 = 8, "Q8_0", 32 => 34;
    Q8_1 = 9, "Q8_1", 32 => 36;
    Q2_K = 10, "Q2_K", 256 => 84;
    Q3_K = 11, "Q3_K", 256 => 110;
    Q4_K = 12, "Q4_K", 256 => 144;
    Q5_K = 13, "Q5_K", 256 => 176;
    Q6_K = 14, "Q6_K", 256 => 210;
    Q8_K = 15, "Q8_K", 256 => 292;
    IQ2_XXS = 16, "IQ2_XXS", 256 => 66;
    IQ2_XS = 17, "IQ2_XS", 256 => 74;
    IQ3_XXS = 18, "IQ3_XXS", 256 => 98;
    IQ1_S = 19, "IQ1_S", 256 => 50;
    IQ4_NL = 20, "IQ4_NL", 32 => 18;
    IQ3_S = 21, "IQ3_S", 256 => 110;
    IQ2_S = 22, "IQ2_S", 256 => 82;
    IQ4_XS = 23, "IQ4_XS", 256 => 136;
    I8 = 24, "I8", 1 => 1;
    I16 = 25, "I16", 1 => 2;
    I32 = 26, "I32", 1 => 4;
    I64 = 27, "I64", 1 => 8;
    F64 = 28, "F64", 1 => 8;
    IQ1_M = 29, "IQ1_M", 256 => 56;
    BF16 = 30, "BF16", 1 => 2;
    /// Q4_0 with four rows interleaved; withdrawn from files, runtimes repack on load instead.
    Q4_0_4_4 = 31, "Q4_0_4_4", 32 => 18;
    /// See [`GgmlType::Q4_0_4_4`].
    Q4_0_4_8 = 32, "Q4_0_4_8", 32 => 18;
    /// See [`GgmlType::Q4_0_4_4`].
    Q4_0_8_8 = 33, "Q4_0_8_8", 32 => 18;
    TQ1_0 = 34, "TQ1_0", 256 => 54;
    TQ2_0 = 35, "TQ2_0", 256 => 66;
    /// IQ4_NL with rows interleaved; withdrawn from files.
    IQ4_NL_4_4 = 36, "IQ4_NL_4_4", 32 => 18;
    /// See [`GgmlType::IQ4_NL_4_4`].
    IQ4_NL_4_8 = 37, "IQ4_NL_4_8", 32 => 18;
    /// See [`GgmlType::IQ4_NL_4_4`].
    IQ4_NL_8_8 = 38, "IQ4_NL_8_8", 32 => 18;
    MXFP4 = 39, "MXFP4", 32 => 17;
    NVFP4 = 40, "NVFP4", 64 => 36;
    Q1_0 = 41, "Q1_0", 128 => 18;
    Q2_0 = 42, "Q2_0", 64 => 18;
}

impl GgmlType {
    /// The type with this id, if the id was ever assigned.
    pub fn from_id(id: u32) -> Option<GgmlType> {
        TABLE.get(id as usize).map(|row| GgmlType(row.id))
    }

    /// The type with this name, whatever the case of its letters (`q4_k` and `Q4_K` are one).
    pub fn from_name(name: &str) -> Option<GgmlType> {
        TABLE.iter().find(|row| row.name.eq_ignore_ascii_case(name)).map(|row| GgmlType(row.id))
    }

    /// Every type, by rising id.
    pub fn all() -> impl Iterator<Item = GgmlType> {
        TABLE.iter().map(|row| GgmlType(row.id))
    }

    // The ids are dense from 0, so a `GgmlType` is its own index (a test holds the table to that). The fallback keeps
    // the indexing total without a panic.
    fn row(self) -> &'static Row {
        TABLE.get(self.0 as usize).unwrap_or(&TABLE[0])
    }

    /// The raw id in the file.
    pub fn id(self) -> u32 {
        self.0
    }

    /// The format's name of the type, such as `Q4_K`.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Elements in one block; the first dimension of a tensor is a multiple of it. Never 0.
    pub fn block_elements(self) -> u64 {
        self.row().elements
    }

    /// Bytes of one block. Never 0.
    pub fn block_bytes(self) -> u64 {
        self.row().bytes
    }

    /// Bytes of one row of `elements`, or `None` when the row is not whole blocks or overflows.
    pub fn row_bytes(self, elements: u64) -> Option<u64> {
        if !elements.is_multiple_of(self.block_elements()) {
            return None;
        }
        (elements / self.block_elements()).checked_mul(self.block_bytes())
    }

    /// Bits per weight.
    pub fn bits_per_weight(self) -> f64 {
        self.block_bytes() as f64 * 8.0 / self.block_elements() as f64
    }
}

impl fmt::Display for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Debug for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_dense_so_an_id_is_its_row() {
        for (index, row) in TABLE.iter().enumerate() {
            assert_eq!(row.id as usize, index, "{}", row.name);
            assert!(row.elements > 0 && row.bytes > 0);
        }
    }

    #[test]
    fn names_and_ids_lead_back_to_the_type() {
        for ty in GgmlType::all() {
            assert_eq!(GgmlType::from_id(ty.id()), Some(ty));
            assert_eq!(GgmlType::from_name(&ty.name().to_lowercase()), Some(ty));
        }
        assert_eq!(GgmlType::from_id(43), None);
        assert_eq!(GgmlType::from_id(u32::MAX), None);
    }

    #[test]
    fn row_sizes_are_the_formats() {
        assert_eq!(GgmlType::Q4_K.row_bytes(512), Some(288));
        assert_eq!(GgmlType::Q4_K.row_bytes(500), None);
        assert_eq!(GgmlType::Q8_0.row_bytes(64), Some(68));
        assert_eq!(GgmlType::F32.row_bytes(u64::MAX), None);
        assert_eq!(GgmlType::MXFP4.bits_per_weight(), 4.25);
    }
}
