//! The named mixtures a model is quantised to.

use crate::{Error, Result};
use pannier_gguf::GgmlType;

/// A target: the type most tensors get, and rules for the others (see `mixture`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileType {
    /// The field's name, such as `Q4_K_M`.
    pub name: &'static str,
    /// `general.file_type` of such files.
    pub id: u32,
    /// What most tensors become.
    pub base: GgmlType,
    pub(super) mix: Mix,
}

/// Which tensors get more bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mix {
    /// None but the output.
    Plain,
    Small,
    Medium,
    Large,
    /// The 4-bit types with uneven levels.
    Uneven,
}

const fn file_type(name: &'static str, id: u32, base: GgmlType, mix: Mix) -> FileType {
    FileType { name, id, base, mix }
}

/// All of them. A new mixture is one line here and its rules in `mixture`.
static FILE_TYPES: &[FileType] = &[
    file_type("F32", 0, GgmlType::F32, Mix::Plain),
    file_type("F16", 1, GgmlType::F16, Mix::Plain),
    file_type("BF16", 32, GgmlType::BF16, Mix::Plain),
    file_type("Q8_0", 7, GgmlType::Q8_0, Mix::Plain),
    file_type("Q6_K", 18, GgmlType::Q6_K, Mix::Plain),
    file_type("Q5_K_M", 17, GgmlType::Q5_K, Mix::Medium),
    file_type("Q5_K_S", 16, GgmlType::Q5_K, Mix::Small),
    file_type("Q5_1", 9, GgmlType::Q5_1, Mix::Plain),
    file_type("Q5_0", 8, GgmlType::Q5_0, Mix::Plain),
    file_type("Q4_K_M", 15, GgmlType::Q4_K, Mix::Medium),
    file_type("Q4_K_S", 14, GgmlType::Q4_K, Mix::Small),
    file_type("Q4_1", 3, GgmlType::Q4_1, Mix::Plain),
    file_type("Q4_0", 2, GgmlType::Q4_0, Mix::Plain),
    file_type("IQ4_NL", 25, GgmlType::IQ4_NL, Mix::Uneven),
    file_type("IQ4_XS", 30, GgmlType::IQ4_XS, Mix::Uneven),
    file_type("Q3_K_L", 13, GgmlType::Q3_K, Mix::Large),
    file_type("Q3_K_M", 12, GgmlType::Q3_K, Mix::Medium),
    file_type("Q3_K_S", 11, GgmlType::Q3_K, Mix::Small),
    file_type("Q2_K", 10, GgmlType::Q2_K, Mix::Medium),
];

impl FileType {
    /// Every target, from most to fewest bits.
    pub fn all() -> &'static [FileType] {
        FILE_TYPES
    }

    /// The target of this name, whatever the case; `Q4_K`, `Q5_K` and `Q3_K` are their medium mixtures.
    ///
    /// # Errors
    /// [`Error::UnknownType`], listing the names.
    pub fn parse(name: &str) -> Result<FileType> {
        let name = name.trim();
        let matches = |candidate: &&FileType| {
            candidate.name.eq_ignore_ascii_case(name)
                || candidate.name.strip_suffix("_M").is_some_and(|short| short.eq_ignore_ascii_case(name))
        };
        FILE_TYPES.iter().find(matches).copied().ok_or_else(|| Error::UnknownType {
            name: name.chars().take(40).collect(),
            known: FILE_TYPES.iter().map(|ty| ty.name).collect::<Vec<_>>().join(", "),
        })
    }
}
