//! Speculation: several tokens per pass, and the same text as without.
//!
//! A decode pass moves every weight to make one token. The same pass over a few tokens more costs little where moving is the
//! limit, so guesses are cheap to check:
//!
//! ```text
//! pending = the token drawn last, not fed yet
//! loop:
//!     d[1..k] = a proposer's guess of what follows         k: the governor's choice, 0 is plain decoding
//!     rows    = logits of one pass over pending, d[1..k]
//!     for i in 0..=k:
//!         t = the sampler's draw from rows[i], at its place in the answer
//!         t is a token of the answer
//!         stop if it ends the answer, or i == k, or t != d[i + 1]
//!     forget what the pass fed behind the last token that was right;   pending = t
//! ```
//!
//! # Why draws are compared, and not probabilities
//!
//! Leviathan et al. ("Fast inference from transformers via speculative decoding", 2023) keep a guess with probability
//! `min(1, p / q)` and replace a rejected one from the positive part of `p - q`. That keeps the *distribution*, but the text of a seed
//! then depends on what was guessed. Here the number behind each draw is a pure function of the seed and the token's place in the answer
//! ([`Draws`](crate::sampling::Draws)), so the verifier makes the very draw that plain decoding would make and keeps the guess if it is
//! equal: the *text* is the same, bit for bit, whatever proposed, however long, and whatever the governor decided. Penalties and
//! constraints see the answer's own tokens, one after the other, and never one that was rejected.
//!
//! What this costs: for a guess without a distribution (n-grams) nothing, as both rules keep it with probability `p`. A draft model
//! draws with the same number, from its own distribution, over ids in the same order; how far that is from the best coupling of the two
//! depends on the models, and `examples/speculation.rs` (`coupling`) tells it for a pair.

mod costs;
mod draft_model;
mod error;
mod governor;
mod ngram;
mod odds;
mod proposer;
mod scripted;
mod speculator;
mod verify;
mod vocabulary;

pub use draft_model::{Draft, DraftModel, DraftText};
pub use error::SpeculationError;
pub use governor::{Done, Governor};
pub use ngram::Ngram;
pub use odds::{CLASSES, Odds};
pub use proposer::{Ask, Proposal, Proposer, ProposerFactory};
pub use scripted::Scripted;
pub use speculator::{Round, Speculator};
pub use verify::{Verified, verify};
pub use vocabulary::{Vocabulary, same_vocabulary};

/// The most tokens that are guessed for one pass. Beyond, the last ones are seldom reached, and passes are no longer bounded by
/// what they read.
pub const MAX_DRAFT: usize = 8;

/// Where guesses come from. The text does not depend on it.
#[derive(Clone, Default)]
pub enum Speculation {
    /// Nowhere: one token per pass.
    #[default]
    Off,
    /// From whatever there is and pays at the moment.
    Auto,
    /// From earlier text that ended in the same tokens.
    Ngram,
    /// From the draft model that was loaded with the model.
    Draft,
    /// From a proposer of the app's.
    Custom(ProposerFactory),
}

impl std::fmt::Debug for Speculation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Off => "Off",
            Self::Auto => "Auto",
            Self::Ngram => "Ngram",
            Self::Draft => "Draft",
            Self::Custom(_) => "Custom",
        })
    }
}
