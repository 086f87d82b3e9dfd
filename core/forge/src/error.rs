//! What can go wrong in offline work on models.

use crate::encode::EncodeError;
use pannier_gguf::GgmlType;
use std::path::{Path, PathBuf};

/// The result of this crate's calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What is wrong, where, and the limit.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The input, or the file just written, is not a valid GGUF file.
    #[error(transparent)]
    Gguf(#[from] pannier_gguf::Error),
    /// A checkpoint that cannot be converted.
    #[error(transparent)]
    Convert(#[from] crate::convert::ConvertError),
    /// The operating system refused.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// No room for the output. What was written stays in the part file; a rerun continues there.
    #[error(
        "{}: the disk is full, the file needs {needed} bytes; make room and run again to continue, or delete {}",
        path.display(), part.display()
    )]
    DiskFull {
        /// The final name, where nothing was written.
        path: PathBuf,
        /// The part file.
        part: PathBuf,
        /// The size of the complete file.
        needed: u64,
    },
    /// Another process writes the same output.
    #[error("{}: another process is writing this file", part.display())]
    Busy {
        /// The part file.
        part: PathBuf,
    },
    /// The caller asked to stop. What was written stays in the part file; a rerun continues there.
    #[error("cancelled")]
    Cancelled,
    /// The finished file does not read back as it was written.
    #[error("{}: tensor {tensor:?} does not read back as written; is the disk failing?", path.display())]
    Verification {
        /// The part file.
        path: PathBuf,
        /// The first tensor that differs.
        tensor: String,
    },
    /// A weight cannot be encoded.
    #[error("tensor {tensor:?}, row {row}, column {column}: {fault}")]
    Weight {
        /// The tensor.
        tensor: String,
        /// Counted over all its matrices.
        row: u64,
        /// The column.
        column: u64,
        /// What is wrong with it.
        fault: EncodeError,
    },
    /// The input holds a type that cannot be decoded.
    #[error("tensor {tensor:?} has the type {ty}, which cannot be decoded to requantise it")]
    CannotDecode {
        /// The tensor.
        tensor: String,
        /// Its type.
        ty: GgmlType,
    },
    /// The input is a pack, whose rows are interleaved.
    #[error(
        "tensor {tensor:?} has its rows interleaved: this is a pack; give the file that it was made from"
    )]
    Packed {
        /// The first such tensor.
        tensor: String,
    },
    /// A type that we do not write.
    #[error("cannot write {ty} tensors")]
    CannotEncode {
        /// The type.
        ty: GgmlType,
    },
    /// Planes that cannot be made.
    #[error("{what}")]
    Nested {
        /// Why.
        what: &'static str,
    },
    /// A name that is no target type.
    #[error("unknown type {name:?}; known are {known}")]
    UnknownType {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// A `PATTERN=TYPE` that is not one.
    #[error("bad override {given:?}: {why}")]
    BadOverride {
        /// The text.
        given: String,
        /// What is wrong.
        why: String,
    },
    /// The smallest mixture is larger than asked for.
    #[error("cannot reach {wanted} bytes: the smallest mixture takes {smallest}")]
    TargetTooSmall {
        /// The size asked for.
        wanted: u64,
        /// The least possible one.
        smallest: u64,
    },
    /// An importance matrix that is broken.
    #[error("importance matrix {}: {fault}", path.display())]
    Imatrix {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        fault: crate::imatrix::ImatrixError,
    },
    /// An importance matrix made with another model.
    #[error(
        "the importance matrix has {found} values for tensor {tensor:?}, which has {columns} columns and {matrices} matrices; \
         it was made with another model"
    )]
    ImatrixShape {
        /// The tensor.
        tensor: String,
        /// Its row length.
        columns: u64,
        /// Its experts, or 1.
        matrices: u64,
        /// Values in the file.
        found: usize,
    },
    /// The engine cannot run the model, or not further.
    #[error(transparent)]
    Engine(pannier::Error),
    /// A window that no text can be scored in.
    #[error("a window needs {least} to {most} tokens, not {window}")]
    Window {
        /// The length asked for.
        window: usize,
        /// Below, nothing could be scored.
        least: usize,
        /// The model's context.
        most: usize,
    },
    /// A text that is too short to say anything.
    #[error("the text has {tokens} tokens, less than {needed}: use a longer text or a shorter window")]
    TextTooShort {
        /// Its length.
        tokens: usize,
        /// What is needed.
        needed: usize,
    },
    /// Logits from which no probabilities can be computed.
    #[error("the model gave no usable logits: {0}")]
    Logits(#[from] pannier::sampling::SamplingError),
    /// Two models that cannot be compared.
    #[error("the models cannot be compared: one has {ours} token ids, the other {theirs}")]
    OtherVocabulary {
        /// Token ids of the model.
        ours: usize,
        /// Token ids of the reference.
        theirs: usize,
    },
    /// A thread pool could not be made.
    #[error("cannot start {threads} threads: {why}")]
    Threads {
        /// How many.
        threads: usize,
        /// The system's reason.
        why: String,
    },
}

impl From<pannier::Error> for Error {
    fn from(error: pannier::Error) -> Self {
        match error {
            pannier::Error::Cancelled => Error::Cancelled,
            other => Error::Engine(other),
        }
    }
}

impl Error {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
        move |source| Error::Io { action, path: path.to_path_buf(), source }
    }
}
