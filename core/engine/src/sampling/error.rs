//! Why no token could be drawn.

use thiserror::Error;

/// Why sampler options were refused, or why no token could be drawn from some logits.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum SamplingError {
    /// An option is outside of its range.
    #[error("sampling option `{option}` is {value}, but must be {range}")]
    InvalidOption {
        /// Name of the option.
        option: &'static str,
        /// The refused value.
        value: String,
        /// What is allowed.
        range: &'static str,
    },
    /// A token id that the vocabulary does not have.
    #[error("`{option}` names token {id}, but the vocabulary has {vocab} tokens")]
    UnknownToken {
        /// Where the id was given.
        option: &'static str,
        /// The id.
        id: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// The row of logits has the wrong length.
    #[error("the model gave {found} logits for a vocabulary of {vocab} tokens")]
    WrongLength {
        /// Length of the row.
        found: usize,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// A logit is not a number or infinitely large. A broken file or an overflow in the model; no token can be trusted.
    #[error("the logit of token {id} is {value} {stage}; no token can be chosen")]
    NotFinite {
        /// The first such token.
        id: u32,
        /// `NaN` or `inf`.
        value: f32,
        /// `from the model`, or which adjustment made it so.
        stage: &'static str,
    },
    /// Every token is banned.
    #[error("no token is left to choose from: all {vocab} are banned by the logit bias or a constraint")]
    NothingLeft {
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// A hook failed.
    #[error(transparent)]
    Hook(#[from] crate::sampling::HookError),
}
