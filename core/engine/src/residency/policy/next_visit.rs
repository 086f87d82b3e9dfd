//! Fading counts, weighted by the time to the layer's next visit.

use super::{CachePolicy, Visit, lfu, sooner_is_dearer};

/// Evicts what was used least often; a use counts half after 8 tokens, and twice as much in the layer that runs next as in
/// the one that just ran.
#[derive(Debug, Default)]
pub struct NextVisitLfu;

const HALF_LIFE: f64 = 8.0;

impl CachePolicy for NextVisitLfu {
    fn name(&self) -> &'static str {
        "nextvisit"
    }

    fn visit(&mut self, visit: &Visit<'_>, scores: &mut [f64]) {
        lfu::count(visit, scores, HALF_LIFE);
    }

    fn nearness(&self, distance: usize, layers: usize) -> f64 {
        sooner_is_dearer(distance, layers)
    }
}
