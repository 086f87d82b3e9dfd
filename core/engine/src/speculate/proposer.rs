//! The seam for whatever guesses tokens.

use super::odds::{CLASSES, Odds};
use crate::sampling::Sampler;
use crate::{CancelFlag, Result};
use std::sync::Arc;

/// Guesses what comes next. A wrong guess costs time and nothing else.
pub trait Proposer: Send {
    /// Its name: what is learned about guesses is kept under it.
    fn name(&self) -> &'static str;

    /// How often guesses of each class are right, before anything was seen.
    fn prior(&self) -> [f64; CLASSES];

    /// What a guess is expected to cost, as a share of a plain pass of the model; 0 if next to nothing.
    fn cost(&self) -> f64 {
        0.0
    }

    /// Tokens of a text of `len` tokens that it would have to read before it can guess.
    fn backlog(&self, len: usize) -> usize {
        let _ = len;
        0
    }

    /// Puts its guess into `out`, which is empty; leaves it empty to decline.
    ///
    /// # Errors
    /// [`Cancelled`](crate::Error::Cancelled). After any other error it is not asked again, and the generation goes on without.
    fn propose(&mut self, ask: &Ask<'_>, out: &mut Proposal) -> Result<()>;
}

/// Makes a proposer for each generation.
pub type ProposerFactory = Arc<dyn Fn() -> Box<dyn Proposer> + Send + Sync>;

/// What a proposer is asked.
#[derive(Clone, Copy)]
pub struct Ask<'a> {
    /// Prompt and answer but for the last token.
    pub fed: &'a [u32],
    /// The last token.
    pub pending: u32,
    /// The most tokens to guess; at least 1.
    pub max: usize,
    /// A further token is not worth its cost once all tokens of the guess are right with less than this probability.
    pub floor: f64,
    /// How often this proposer was right so far.
    pub odds: &'a Odds,
    /// The answer's sampler, at the place of the first token to guess. Work on a [`fork`](Sampler::fork).
    pub sampler: &'a Sampler,
    /// Stops the work.
    pub cancel: &'a CancelFlag,
}

impl std::fmt::Debug for Ask<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ask")
            .field("len", &self.len())
            .field("max", &self.max)
            .field("floor", &self.floor)
            .finish_non_exhaustive()
    }
}

impl Ask<'_> {
    /// Tokens of prompt and answer.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "never empty: there is a pending token")]
    pub fn len(&self) -> usize {
        self.fed.len() + 1
    }

    /// A token of prompt and answer.
    #[must_use]
    pub fn token(&self, index: usize) -> Option<u32> {
        if index == self.fed.len() { Some(self.pending) } else { self.fed.get(index).copied() }
    }

    /// The tokens from index `first` on.
    pub fn tokens_from(&self, first: usize) -> impl Iterator<Item = u32> {
        self.fed.get(first..).unwrap_or_default().iter().copied().chain(
            // Beyond the end there is nothing, not the last token again.
            (first < self.len()).then_some(self.pending),
        )
    }
}

/// A guess. The buffers are kept from pass to pass.
#[derive(Debug, Clone, Default)]
pub struct Proposal {
    tokens: Vec<u32>,
    classes: Vec<usize>,
    reach: f64,
    read: usize,
}

impl Proposal {
    /// Adds a token of a class (below [`CLASSES`]): guesses of one class are about equally often right. Answers whether another one
    /// is wanted.
    pub fn push(&mut self, ask: &Ask<'_>, token: u32, class: usize) -> bool {
        if self.tokens.len() >= ask.max {
            return false;
        }
        let class = class.min(CLASSES - 1);
        let before = if self.tokens.is_empty() { 1.0 } else { self.reach };
        let reach = before * ask.odds.chance(class);
        self.tokens.push(token);
        self.classes.push(class);
        self.reach = reach;
        self.tokens.len() < ask.max && reach >= ask.floor
    }

    /// Tells that tokens of the text had to be read first.
    pub fn tell_read(&mut self, tokens: usize) {
        self.read += tokens;
    }

    /// The tokens.
    #[must_use]
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    pub(super) fn classes(&self) -> &[usize] {
        &self.classes
    }

    pub(super) fn read(&self) -> usize {
        self.read
    }

    pub(super) fn clear(&mut self) {
        self.tokens.clear();
        self.classes.clear();
        (self.reach, self.read) = (1.0, 0);
    }
}
