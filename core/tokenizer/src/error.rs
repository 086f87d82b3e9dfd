//! Why a vocabulary can't be used.

use thiserror::Error;

/// Why a tokenizer could not be built from a model's metadata.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The file carries no vocabulary: it can only run on token ids.
    #[error(
        "this model file has no vocabulary (`tokenizer.ggml.model` is {model}); it can be run on token ids only"
    )]
    NoVocabulary {
        /// What the file says: `absent`, `no_vocab` or `none`.
        model: String,
    },
    /// The kind of vocabulary is known by name but not implemented, or unknown.
    #[error(
        "vocabulary type `{model}` ({what}) is not supported; supported are gpt2 (byte-level BPE), llama (SentencePiece BPE) and gemma4"
    )]
    UnsupportedModel {
        /// The value of `tokenizer.ggml.model`.
        model: String,
        /// What kind of vocabulary that is.
        what: &'static str,
    },
    /// The pre-tokenizer's name is unknown. Guessing one would silently give wrong ids.
    #[error(
        "unknown pre-tokenizer `{name}` in `tokenizer.ggml.pre`; known are: {known}. If the model is a relative of one of these, rewrite that key; guessing would give wrong token ids"
    )]
    UnknownPreTokenizer {
        /// The value of `tokenizer.ggml.pre`.
        name: String,
        /// The names that would be accepted.
        known: String,
    },
    /// A key that this kind of vocabulary can't do without is absent.
    #[error("metadata key `{key}` is missing, and a `{model}` vocabulary needs it")]
    MissingKey {
        /// The absent key.
        key: &'static str,
        /// The value of `tokenizer.ggml.model`.
        model: String,
    },
    /// A key has a value of the wrong type.
    #[error("metadata key `{key}` can't be used: {reason}")]
    BadKey {
        /// The key.
        key: &'static str,
        /// The reader's complaint.
        reason: String,
    },
    /// The token list is empty.
    #[error("`tokenizer.ggml.tokens` is empty")]
    EmptyVocabulary,
    /// The token list is longer than an id can count.
    #[error("`tokenizer.ggml.tokens` has {tokens} entries; at most {limit} are supported")]
    TooManyTokens {
        /// Length of the list.
        tokens: usize,
        /// The most that is supported.
        limit: usize,
    },
    /// The merge list is longer than a rank can count.
    #[error("`tokenizer.ggml.merges` has {merges} entries; at most {limit} are supported")]
    TooManyMerges {
        /// Length of the list.
        merges: usize,
        /// The most that is supported.
        limit: usize,
    },
    /// A per-token list is shorter than the token list.
    #[error("`{key}` has {len} entries but `tokenizer.ggml.tokens` has {tokens}")]
    LengthMismatch {
        /// The shorter list.
        key: &'static str,
        /// Its length.
        len: usize,
        /// Length of the token list.
        tokens: usize,
    },
}
