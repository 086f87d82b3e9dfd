//! The limit: evict what is needed again last. Knows the future, so it exists for recorded traces only.

use super::{CachePolicy, ExpertGrid, Visit};
use std::collections::VecDeque;

/// Evicts what is used again latest.
#[derive(Debug)]
pub struct Belady {
    experts: usize,
    /// For each expert, at which visits (of all layers) it will be used.
    future: Vec<VecDeque<u64>>,
}

impl Belady {
    /// From all visits that will come, in order: layer and chosen experts.
    pub fn new<'a>(grid: ExpertGrid, visits: impl Iterator<Item = (usize, &'a [u16])>) -> Belady {
        let mut future = vec![VecDeque::new(); grid.layers.saturating_mul(grid.experts)];
        for (time, (layer, chosen)) in visits.enumerate() {
            for &expert in chosen {
                if let Some(uses) = future.get_mut(layer * grid.experts + usize::from(expert)) {
                    uses.push_back(time as u64);
                }
            }
        }
        Belady { experts: grid.experts, future }
    }
}

impl CachePolicy for Belady {
    fn name(&self) -> &'static str {
        "belady"
    }

    fn visit(&mut self, visit: &Visit<'_>, scores: &mut [f64]) {
        for &expert in visit.chosen {
            let Some(uses) = self.future.get_mut(visit.layer * self.experts + usize::from(expert)) else {
                continue;
            };
            uses.pop_front();
            if let Some(score) = scores.get_mut(usize::from(expert)) {
                *score = uses.front().map_or(f64::MIN, |&time| -(time as f64));
            }
        }
    }
}
