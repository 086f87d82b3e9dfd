//! A cache policy on a recorded trace: what it would have hit.

use super::directory::{ExpertDirectory, ExpertKey};
use super::policy::{Belady, CachePolicy, ExpertGrid, Visit, by_name};
use super::trace::RouteTrace;

/// What a replay found. Decode is counted; prefill only warms the cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Replayed {
    /// Slots the cache had; all are as large as the largest expert.
    pub slots: u32,
    /// Tokens decoded.
    pub tokens: u64,
    /// Experts used while decoding.
    pub uses: u64,
    /// Those of them that were in the cache.
    pub hits: u64,
    /// Bytes read for the others.
    pub missed_bytes: u64,
    /// One pass uses more experts than there are slots: a cache that evicts what was used longest ago hits nothing then.
    pub smaller_than_pass: bool,
}

impl Replayed {
    /// The share of uses that hit.
    pub fn hit_rate(&self) -> f64 {
        self.hits as f64 / self.uses.max(1) as f64
    }

    /// Bytes read per decoded token.
    pub fn flash_bytes_per_token(&self) -> f64 {
        self.missed_bytes as f64 / self.tokens.max(1) as f64
    }
}

/// Replays `trace` through one global cache of `cache_bytes`. `None` when there is no policy of that name (`belady` is one here).
pub fn replay(trace: &RouteTrace, cache_bytes: u64, policy: &str) -> Option<Replayed> {
    let grid = ExpertGrid { layers: trace.layers, experts: trace.experts };
    let policy: Box<dyn CachePolicy> = match policy {
        "belady" => {
            let visits = trace.visits.iter().map(|visit| (visit.layer, visit.chosen.as_slice()));
            Box::new(Belady::new(grid, visits))
        }
        name => by_name(name, grid)?,
    };
    let largest = trace.expert_bytes.iter().copied().max().unwrap_or(0).max(1);
    let all = (grid.layers * grid.experts) as u64;
    let slots = (cache_bytes / largest).min(all) as u32;
    let mut directory = ExpertDirectory::new(grid, slots, policy);
    let mut out = Replayed {
        slots,
        tokens: 0,
        uses: 0,
        hits: 0,
        missed_bytes: 0,
        smaller_than_pass: u64::from(slots) < (trace.used * trace.layers) as u64,
    };
    let mut probabilities = vec![0f32; grid.experts];
    let mut token = None;
    for visit in &trace.visits {
        if visit.decode && token != Some((visit.turn, visit.step)) {
            token = Some((visit.turn, visit.step));
            out.tokens += 1;
        }
        // A cut can be told only where the chosen experts' probabilities are there too.
        let known = visit.chosen.iter().all(|expert| visit.near.iter().any(|(near, _)| near == expert));
        if known {
            probabilities.fill(0.0);
            for &(expert, p) in &visit.near {
                if let Some(slot) = probabilities.get_mut(usize::from(expert)) {
                    *slot = p;
                }
            }
        }
        directory.visit(&Visit {
            layer: visit.layer,
            chosen: &visit.chosen,
            probabilities: known.then_some(probabilities.as_slice()),
        });
        // As in a running model: nobody of this visit leaves before its computation, hits and misses alike.
        let key = |&expert: &u16| ExpertKey { layer: visit.layer as u32, expert: u32::from(expert) };
        visit.chosen.iter().for_each(|expert| directory.pin(key(expert)));
        for expert in &visit.chosen {
            let hit = directory.slot(key(expert)).is_some();
            if !hit {
                directory.admit(key(expert));
            }
            if visit.decode {
                out.uses += 1;
                out.hits += u64::from(hit);
                if !hit {
                    out.missed_bytes += trace.expert_bytes.get(visit.layer).copied().unwrap_or(0);
                }
            }
        }
        visit.chosen.iter().for_each(|expert| directory.unpin(key(expert)));
    }
    Some(out)
}
