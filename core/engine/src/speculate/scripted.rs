//! Guesses of known quality: for tests, and for measuring what a proposer of some quality would bring.

use super::odds::CLASSES;
use super::proposer::{Ask, Proposal, Proposer};
use crate::Result;
use crate::sampling::{Draws, Lane};
use std::sync::Arc;

/// Knows the text and tells it wrongly now and then, as a pure function of the seed and the place.
#[derive(Debug, Clone)]
pub struct Scripted {
    text: Arc<[u32]>,
    vocab: u32,
    right: f64,
    draws: Draws,
}

impl Scripted {
    /// `text`: prompt and answer. Each guess is right with probability `right`, whatever the others are.
    #[must_use]
    pub fn new(text: Arc<[u32]>, vocab: usize, right: f64, seed: u64) -> Self {
        let vocab = u32::try_from(vocab).unwrap_or(u32::MAX).max(1);
        Self { text, vocab, right, draws: Draws::new(seed) }
    }
}

impl Proposer for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn prior(&self) -> [f64; CLASSES] {
        [self.right; CLASSES]
    }

    fn propose(&mut self, ask: &Ask<'_>, out: &mut Proposal) -> Result<()> {
        for place in ask.len()..ask.len() + ask.max {
            let Some(&token) = self.text.get(place) else { break };
            let right = self.draws.uniform(Lane::Draft, place as u64) < self.right;
            let token = if right { token } else { (token + 1) % self.vocab };
            if !out.push(ask, token, 0) {
                break;
            }
        }
        Ok(())
    }
}
