//! Converting a checkpoint in the Hugging Face layout to GGUF.
//!
//! ```text
//! config.json            -> architecture, hyperparameters            (arch)
//! tokenizer files        -> vocabulary, special tokens, template     (vocab)
//! *.safetensors headers  -> one recipe per output tensor             (tensors, recipe)
//! recipes                -> pieces, read and encoded in parallel     (assemble)
//! ```
//! Weights are read piece by piece at the place where the recipe says they are, so memory does not depend on the model's size.

mod arch;
mod checkpoint;
mod config;
mod recipe;
mod tensors;
mod vocab;

use crate::assemble::{Assembly, Target};
use crate::encode::{EncodeError, encoder};
use crate::{Error, Progress, Result};
use checkpoint::Checkpoint;
use config::Config;
use pannier_gguf::{GgmlType, Metadata};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3;

/// How to convert.
#[derive(Debug, Clone)]
pub struct ConvertOptions {
    /// The type of matrices: F32, F16, BF16 or Q8_0. Norms, biases and routers are always F32.
    pub dtype: GgmlType,
    /// The model's name in the file; otherwise that of the folder.
    pub name: Option<String>,
    /// Threads; 0 is one per core.
    pub threads: usize,
}

impl Default for ConvertOptions {
    fn default() -> Self {
        ConvertOptions { dtype: GgmlType::F16, name: None, threads: 0 }
    }
}

/// Something that may make the result worse than the checkpoint, and what to do about it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Warning {
    /// The way the tokenizer cuts words is not one that is known.
    UnknownPreTokenizer {
        /// What its file says.
        found: String,
    },
    /// There is no chat template.
    NoChatTemplate,
    /// The output matrix is stored although it equals the embedding.
    TiedOutput,
    /// Bf16 weights become f16: small ones lose bits, large ones would overflow.
    NarrowerRange,
    /// There are no tokenizer files; the model runs on token ids only.
    NoTokenizer,
    /// The vocabulary has fewer tokens than the embedding has rows; the rest is filled with placeholders.
    PaddedVocabulary {
        /// How many placeholders.
        tokens: u64,
    },
    /// Scores were made from the order of merges, because `tokenizer.model` is not there.
    ScoresFromMerges,
    /// Tensors that the architecture does not use, such as those of an image encoder, were left out.
    LeftOut {
        /// How many.
        tensors: usize,
        /// One of them.
        example: String,
    },
}

impl std::fmt::Display for Warning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Warning::UnknownPreTokenizer { found } => write!(
                f,
                "the pre-tokenizer is not known ({found}); `default` is used, which may give wrong token ids: compare with the \
                 original tokenizer before use"
            ),
            Warning::NoChatTemplate => f.write_str(
                "there is no chat template; if this is a chat model, add chat_template.jinja to the folder and convert again",
            ),
            Warning::TiedOutput => f.write_str(
                "config.json says that output and embedding are tied, so lm_head was left out",
            ),
            Warning::NarrowerRange => f.write_str(
                "bf16 weights become f16, which has a smaller range; --dtype bf16 keeps them exactly",
            ),
            Warning::NoTokenizer => {
                f.write_str("there are no tokenizer files; the model will only run on token ids")
            }
            Warning::PaddedVocabulary { tokens } => {
                write!(f, "the embedding has {tokens} rows more than the tokenizer has tokens; they get placeholders")
            }
            Warning::ScoresFromMerges => f.write_str(
                "tokenizer.model is missing; scores were made from the order of merges, add the file for the original ones",
            ),
            Warning::LeftOut { tensors, example } => {
                write!(f, "{tensors} tensors that a text model does not use were left out (such as {example})")
            }
        }
    }
}

/// What is wrong with a checkpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConvertError {
    /// A file that must be there.
    #[error("{}: {what} is missing", folder.display())]
    Missing {
        /// The checkpoint's folder.
        folder: PathBuf,
        /// The file.
        what: String,
    },
    /// A file that is not JSON, or not of the expected form.
    #[error("{}: {why}", path.display())]
    BadFile {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// A hyperparameter that is missing or of a wrong kind.
    #[error("config.json: {key:?} {why}")]
    BadConfig {
        /// The key.
        key: String,
        /// What is wrong.
        why: String,
    },
    /// A model that we cannot convert.
    #[error("architecture {found:?} is not supported; supported are {known}")]
    UnknownArchitecture {
        /// What config.json says.
        found: String,
        /// What there is.
        known: String,
    },
    /// A tensor that the architecture needs.
    #[error("tensor {name:?} is missing from the checkpoint")]
    MissingTensor {
        /// Its name in the checkpoint.
        name: String,
    },
    /// A tensor that the architecture does not know.
    #[error("tensor {name:?} is not part of a {architecture} model; is config.json from another model?")]
    UnknownTensor {
        /// Its name in the checkpoint.
        name: String,
        /// The architecture.
        architecture: &'static str,
    },
    /// A tensor of another shape than config.json says.
    #[error("tensor {name:?} has the shape {found:?}, {expected} was expected")]
    BadShape {
        /// Its name in the checkpoint.
        name: String,
        /// Its shape there.
        found: Vec<u64>,
        /// What should be.
        expected: String,
    },
    /// A tensor of an element type that is not handled.
    #[error("tensor {name:?} has the element type {dtype}, which cannot be converted")]
    BadDtype {
        /// Its name in the checkpoint.
        name: String,
        /// The type in the file.
        dtype: String,
    },
    /// A weight beyond the range of f16.
    #[error(
        "tensor {tensor:?}, row {row}, column {column}: {value} does not fit {ty}; convert with --dtype bf16 instead"
    )]
    Overflow {
        /// The tensor.
        tensor: String,
        /// Its row.
        row: u64,
        /// Its column.
        column: u64,
        /// The weight.
        value: f32,
        /// The type asked for.
        ty: GgmlType,
    },
    /// A type that checkpoints are not converted to.
    #[error("cannot convert to {ty}; choose f32, f16, bf16 or q8_0, then quantize")]
    BadTarget {
        /// The type asked for.
        ty: GgmlType,
    },
}

/// The result of [`convert`].
#[derive(Debug, Clone, PartialEq)]
pub struct ConvertReport {
    /// Bytes of the file.
    pub bytes: u64,
    /// `general.architecture`.
    pub architecture: String,
    /// How many tensors.
    pub tensors: usize,
    /// What the user should know.
    pub warnings: Vec<Warning>,
}

/// Converts the checkpoint in `folder` to the GGUF file `output`.
///
/// The output appears under its name when it is complete and has been read back; until then it is `OUTPUT.part`, which a rerun
/// with the same checkpoint and options continues.
///
/// # Errors
/// Files that are missing or broken, an unknown architecture, tensors that are missing or of a wrong shape, weights that do not
/// fit the type, a full disk, or a stop.
pub fn convert(
    folder: impl AsRef<Path>,
    output: impl AsRef<Path>,
    options: &ConvertOptions,
    progress: &dyn Progress,
) -> Result<ConvertReport> {
    let folder = folder.as_ref();
    let Some(file_type) = file_type(options.dtype) else {
        return Err(ConvertError::BadTarget { ty: options.dtype }.into());
    };
    let config = Config::read(folder)?;
    let checkpoint = Checkpoint::open(folder)?;
    let mut warnings = Vec::new();
    let architecture = arch::find(&config)?;
    let mut metadata = Metadata::new();
    metadata.insert("general.architecture", architecture.name);
    metadata.insert("general.type", "model");
    let named = options.name.clone().or_else(|| {
        let folder = std::path::absolute(folder).ok()?;
        Some(folder.file_name()?.to_str()?.to_owned())
    });
    metadata.insert("general.name", named.unwrap_or_else(|| architecture.name.to_owned()));
    metadata.insert("general.file_type", file_type);
    metadata.insert("general.quantization_version", 2u32);
    arch::write_hyperparameters(architecture, &config, &mut metadata)?;
    let recipes = tensors::recipes(architecture, &config, &checkpoint, options.dtype, &mut warnings)?;
    vocab::write(folder, &config, &mut metadata, &mut warnings)?;
    if options.dtype == GgmlType::F16
        && checkpoint.tensors().any(|tensor| tensor.dtype == checkpoint::Dtype::BF16)
    {
        warnings.push(Warning::NarrowerRange);
    }
    let targets: Vec<Target> = recipes
        .iter()
        .map(|recipe| Target::whole(recipe.name.clone(), recipe.dims.clone(), recipe.ty))
        .collect();
    let (architecture, tensors) = (architecture.name.to_owned(), targets.len());
    let assembly = Assembly {
        path: output.as_ref(),
        metadata,
        targets,
        fingerprint: fingerprint(&checkpoint)?,
        threads: options.threads,
        progress,
    };
    let bytes = assembly.run(|piece, out| {
        let Some(recipe) = recipes.get(piece.tensor) else { return Ok(()) };
        if recipe.ty == GgmlType::MXFP4 {
            return recipe.repack_mxfp4(&checkpoint, piece.first, out);
        }
        let mut weights = vec![0f32; piece.count];
        recipe.read(&checkpoint, piece.first, &mut weights)?;
        let Some(encoder) = encoder(recipe.ty) else { return Err(Error::CannotEncode { ty: recipe.ty }) };
        encoder.encode_weighted(&weights, None, out).map_err(|fault| {
            let columns = recipe.dims.first().copied().unwrap_or(1).max(1);
            let place = |index: usize| {
                let element = piece.first + index as u64;
                (element / columns, element % columns)
            };
            let tensor = recipe.name.clone();
            match fault {
                EncodeError::TooLarge { index, value, ty } => {
                    let (row, column) = place(index);
                    ConvertError::Overflow { tensor, row, column, value, ty }.into()
                }
                EncodeError::NotFinite { index, .. } => {
                    let (row, column) = place(index);
                    Error::Weight { tensor, row, column, fault }
                }
                fault => Error::Weight { tensor, row: 0, column: 0, fault },
            }
        })
    })?;
    Ok(ConvertReport { bytes, architecture, tensors, warnings })
}

/// `general.file_type` of a converted file.
fn file_type(ty: GgmlType) -> Option<u32> {
    match ty {
        GgmlType::F32 => Some(0),
        GgmlType::F16 => Some(1),
        GgmlType::Q8_0 => Some(7),
        GgmlType::BF16 => Some(32),
        _ => None,
    }
}

fn fingerprint(checkpoint: &Checkpoint) -> Result<u64> {
    let mut hash = Xxh3::new();
    hash.update(env!("CARGO_PKG_VERSION").as_bytes());
    for path in checkpoint.paths() {
        let metadata = std::fs::metadata(path).map_err(Error::io("look at", path))?;
        let modified =
            metadata.modified().ok().and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
        hash.update(&metadata.len().to_le_bytes());
        hash.update(&modified.unwrap_or_default().as_nanos().to_le_bytes());
        hash.update(path.as_os_str().as_encoded_bytes());
    }
    Ok(hash.digest())
}
