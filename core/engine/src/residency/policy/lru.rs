//! Least recently used. For comparison: a cyclic pass over more experts than there are slots is its worst case.

use super::{CachePolicy, Visit};

/// Evicts what was used longest ago.
#[derive(Debug, Default)]
pub struct Lru {
    uses: u64,
}

impl CachePolicy for Lru {
    fn name(&self) -> &'static str {
        "lru"
    }

    fn visit(&mut self, visit: &Visit<'_>, scores: &mut [f64]) {
        for &expert in visit.chosen {
            self.uses += 1;
            if let Some(score) = scores.get_mut(usize::from(expert)) {
                *score = self.uses as f64;
            }
        }
    }
}
