//! The speculation of one generation: whom to ask, what to use, and what to learn from it.

use super::governor::{Done, Effort, Governor, Ledger, Outlook};
use super::proposer::{Ask, Proposal, Proposer};
use super::{MAX_DRAFT, Speculation, SpeculationError};
use crate::sampling::Sampler;
use crate::{CancelFlag, Error, Result};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Where an answer is when its next tokens are guessed.
#[derive(Clone, Copy)]
pub struct Round<'a> {
    /// Prompt and answer but for the last token.
    pub fed: &'a [u32],
    /// The last token.
    pub pending: u32,
    /// The most tokens that a guess may have: room in the context, and tokens that the answer may still get behind the next one.
    pub room: usize,
    /// Tokens that the answer may still get, if that is known.
    pub left: Option<usize>,
    /// The answer's sampler.
    pub sampler: &'a Sampler,
    /// Stops the work.
    pub cancel: &'a CancelFlag,
    /// The time.
    pub now: &'a dyn Fn() -> Duration,
}

impl std::fmt::Debug for Round<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Round")
            .field("fed", &self.fed.len())
            .field("room", &self.room)
            .finish_non_exhaustive()
    }
}

/// An answer of unknown length is expected to go on for this many tokens.
const USUAL: usize = 200;

/// Guesses for one generation.
pub struct Speculator<'a> {
    proposers: Vec<Box<dyn Proposer + 'a>>,
    governor: &'a Mutex<Governor>,
    fixed: Option<usize>,
    /// The guess in use, and one that is being made.
    best: Proposal,
    other: Proposal,
    used: Option<(&'static str, usize)>,
    efforts: Vec<Effort>,
    ledger: Ledger,
}

impl std::fmt::Debug for Speculator<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = self.proposers.iter().map(|p| p.name()).collect();
        f.debug_struct("Speculator")
            .field("proposers", &names)
            .field("fixed", &self.fixed)
            .finish_non_exhaustive()
    }
}

impl<'a> Speculator<'a> {
    /// With these proposers; asked in this order. `fixed`: guesses always have so many tokens, whether it pays or not.
    ///
    /// # Errors
    /// [`SpeculationError::DraftTooLong`].
    pub fn new(
        proposers: Vec<Box<dyn Proposer + 'a>>,
        governor: &'a Mutex<Governor>,
        fixed: Option<usize>,
    ) -> Result<Self, SpeculationError> {
        if let Some(len) = fixed.filter(|&len| len > MAX_DRAFT) {
            return Err(SpeculationError::DraftTooLong { len, limit: MAX_DRAFT });
        }
        Ok(Self {
            proposers,
            governor,
            fixed,
            best: Proposal::default(),
            other: Proposal::default(),
            used: None,
            efforts: Vec::new(),
            ledger: Ledger::default(),
        })
    }

    /// Guesses. The tokens are in [`draft`](Self::draft) then; there may be none.
    ///
    /// # Errors
    /// [`Error::Cancelled`]. A proposer that fails otherwise is not asked again.
    pub fn propose(&mut self, round: &Round<'_>) -> Result<()> {
        self.best.clear();
        self.efforts.clear();
        self.used = None;
        let at = Outlook {
            room: round.room.min(self.fixed.unwrap_or(MAX_DRAFT)),
            left: round.left.unwrap_or(USUAL),
            len: round.fed.len() + 1,
        };
        if at.room == 0 {
            return Ok(());
        }
        let mut governor = self.governor.lock().unwrap_or_else(PoisonError::into_inner);
        let mut speed = 0.0;
        let mut failed = None;
        for (index, who) in self.proposers.iter_mut().enumerate() {
            let (max, floor, hoped) = match self.fixed {
                Some(_) => (at.room, 0.0, f64::INFINITY),
                None => match governor.terms(who.as_ref(), at, &mut self.ledger) {
                    Some(terms) => (terms.max, terms.floor, terms.speed),
                    None => continue,
                },
            };
            if hoped <= speed || (self.fixed.is_some() && self.used.is_some()) {
                continue;
            }
            let odds = governor.odds(who.as_ref());
            let &Round { fed, pending, sampler, cancel, .. } = round;
            let ask = Ask { fed, pending, max, floor, odds: &odds, sampler, cancel };
            self.other.clear();
            let begun = (round.now)();
            let result = who.propose(&ask, &mut self.other);
            let time = (round.now)().saturating_sub(begun);
            match result {
                Ok(()) => {}
                Err(Error::Cancelled) => return Err(Error::Cancelled),
                Err(_) => {
                    failed = Some(index);
                    continue;
                }
            }
            let (tokens, read) = (self.other.tokens().len(), self.other.read());
            self.efforts.push(Effort { name: who.name(), tokens, read, time });
            let (len, expected) = match self.fixed {
                Some(_) => (tokens, f64::INFINITY),
                None => governor.choose(who.as_ref(), &self.other),
            };
            if len > 0 && expected > speed {
                speed = expected;
                std::mem::swap(&mut self.best, &mut self.other);
                self.used = Some((who.name(), len));
            }
        }
        drop(governor);
        if let Some(index) = failed {
            self.proposers.remove(index);
        }
        Ok(())
    }

    /// The guess to check.
    #[must_use]
    pub fn draft(&self) -> &[u32] {
        let len = self.used.map_or(0, |(_, len)| len);
        self.best.tokens().get(..len).unwrap_or_default()
    }

    /// The guess cannot be checked: a plain pass instead, and no more guesses.
    pub fn stop(&mut self) {
        self.used = None;
        self.proposers.clear();
    }

    /// The pass is done.
    pub fn learn(&mut self, done: Done) {
        let used = self.used.take();
        let used = used.map(|(name, len)| (name, self.best.classes().get(..len).unwrap_or_default()));
        let mut governor = self.governor.lock().unwrap_or_else(PoisonError::into_inner);
        governor.learn(&mut self.ledger, &self.efforts, used, done);
    }
}

impl Speculation {
    /// Whether n-grams are to be looked for.
    pub(crate) fn wants_ngram(&self) -> bool {
        matches!(self, Self::Auto | Self::Ngram)
    }

    /// Whether a draft model is to be asked if there is one.
    pub(crate) fn wants_draft(&self) -> bool {
        matches!(self, Self::Auto | Self::Draft)
    }
}
