//! One pass of a generation: the tokens that are fed, and those that are drawn from it.

use super::answer::{Answer, Drawn};
use super::core::Cache;
use super::{Clock, SpeculationStats};
use crate::model::{Forward, Outputs};
use crate::speculate::{Done, Round, Speculator, Verified, verify};
use crate::{CancelFlag, Error, Result};

/// What a pass works with besides the model.
pub(super) struct Decode<'p, 'g, S> {
    pub cache: &'p mut Cache<S>,
    pub answer: &'p mut Answer,
    pub clock: &'p dyn Clock,
    pub cancel: &'p CancelFlag,
    pub speculator: Option<&'p mut Speculator<'g>>,
    pub stats: &'p mut SpeculationStats,
    pub context: usize,
}

impl<S> Decode<'_, '_, S> {
    /// Feeds tokens; draws from the last row if `sample`.
    pub fn plain<F: Forward<Seq = S>>(
        self,
        forward: &mut F,
        tokens: &[u32],
        sample: bool,
    ) -> Result<Option<Drawn>> {
        let outputs = if sample { Outputs::Last } else { Outputs::None };
        let logits = forward.step(&mut self.cache.seq, tokens, outputs, self.cancel)?;
        // The tokens are in the sequence now, whatever sampling says.
        self.cache.tokens.extend_from_slice(tokens);
        if sample { self.answer.draw(logits, self.cache.tokens.len()).map(Some) } else { Ok(None) }
    }

    /// Feeds the last token and what is guessed to follow; draws as long as the guess is right. Gives the last draw.
    pub fn guessing<F: Forward<Seq = S>>(self, forward: &mut F, pending: u32) -> Result<Option<Drawn>> {
        let Self { cache, answer, clock, cancel, speculator, stats, context } = self;
        let Some(speculator) = speculator else { return Err(Error::internal("nobody to guess")) };
        let now = || clock.now();
        let (fed, left) = (cache.tokens.len(), answer.left());
        let room =
            context.saturating_sub(fed + 1).min(left.map_or(usize::MAX, |left| left.saturating_sub(1)));
        let room = room.min(forward.undo());
        let sampler = &answer.sampler;
        speculator.propose(&Round { fed: &cache.tokens, pending, room, left, sampler, cancel, now: &now })?;
        let mut tokens = vec![pending];
        tokens.extend_from_slice(speculator.draft());
        let begun = now();
        let outputs = |tokens: &[u32]| if tokens.len() > 1 { Outputs::All } else { Outputs::Last };
        let logits = match forward.step(&mut cache.seq, &tokens, outputs(&tokens), cancel) {
            // What one token has room for is done without guesses, as it would have been from the start.
            Err(Error::OutOfBudget { .. } | Error::OutOfMemory { .. }) if tokens.len() > 1 => {
                speculator.stop();
                tokens.truncate(1);
                forward.step(&mut cache.seq, &tokens, outputs(&tokens), cancel)?
            }
            stepped => stepped?,
        };
        cache.tokens.extend_from_slice(&tokens);
        let draft = tokens.get(1..).unwrap_or_default();
        let vocab = logits.len() / tokens.len();
        let verified = verify(logits, vocab, draft, |index, row| {
            let drawn = answer.draw(row, fed + 1 + index)?;
            Ok::<_, Error>((drawn, drawn.id, drawn.ended.is_some()))
        });
        let (rows, right, result) = match verified {
            Ok(Verified { rows, right, last }) => (rows, right, Ok(Some(last))),
            Err((rows, error)) => (rows, rows - 1, Err(error)),
        };
        if rows < tokens.len() {
            forward.truncate(&mut cache.seq, fed + rows)?;
            cache.tokens.truncate(fed + rows);
        }
        speculator.learn(Done { rows, right, pass: now().saturating_sub(begun) });
        stats.proposed_tokens += draft.len();
        stats.accepted_tokens += right;
        result
    }
}
