//! Least frequently used, with fading counts. For comparison.

use super::{CachePolicy, Visit};

/// Evicts what was used least often; a use counts half after 16 tokens.
#[derive(Debug, Default)]
pub struct Lfu;

const HALF_LIFE: f64 = 16.0;

/// Counts uses that fade: every visit multiplies what was counted by `2^(-1 / half_life)`.
pub(super) fn count(visit: &Visit<'_>, scores: &mut [f64], half_life: f64) {
    let fade = (-1.0 / half_life).exp2();
    scores.iter_mut().for_each(|score| *score *= fade);
    for &expert in visit.chosen {
        if let Some(score) = scores.get_mut(usize::from(expert)) {
            *score += 1.0;
        }
    }
}

impl CachePolicy for Lfu {
    fn name(&self) -> &'static str {
        "lfu"
    }

    fn visit(&mut self, visit: &Visit<'_>, scores: &mut [f64]) {
        count(visit, scores, HALF_LIFE);
    }
}
