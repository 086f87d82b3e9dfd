//! Policies for dense weights, on paper: a pass is a cyclic scan of the same units, so what a policy would read is arithmetic, and no
//! recording is needed. For comparison with what the plan does, which is [`ScanPolicy::Pinned`].

use super::{Layout, UnitKind};
use std::collections::VecDeque;

/// What stays in memory from pass to pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanPolicy {
    /// The same units always; the others are never kept.
    Pinned,
    /// What was used last. A scan over more than fits evicts each unit just before it is needed again.
    Lru,
    /// Whatever chance leaves.
    Random,
}

impl ScanPolicy {
    /// All, by the names of options and reports; the first is what a model runs with.
    pub const ALL: [(&'static str, ScanPolicy); 3] =
        [("pinned", ScanPolicy::Pinned), ("lru", ScanPolicy::Lru), ("random", ScanPolicy::Random)];

    /// The policy of this name.
    pub fn by_name(name: &str) -> Option<ScanPolicy> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|&(_, policy)| policy)
    }
}

/// What scans would read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scanned {
    /// Units of a pass.
    pub units: usize,
    /// Bytes of a pass.
    pub bytes: u64,
    /// Bytes read per pass, once the first has filled the memory.
    pub read_per_pass: f64,
}

impl Scanned {
    /// The share of bytes that were there.
    pub fn hit_rate(&self) -> f64 {
        1.0 - self.read_per_pass / self.bytes.max(1) as f64
    }
}

/// Passes that are counted.
const PASSES: usize = 200;

/// Scans the dense units of a model through `memory` bytes.
pub fn scan(layout: &Layout, memory: u64, policy: ScanPolicy) -> Scanned {
    let dense = layout
        .units()
        .iter()
        .filter(|unit| !matches!(unit.kind, UnitKind::Embedding | UnitKind::Expert { .. }));
    scan_units(&dense.map(super::Unit::bytes).collect::<Vec<u64>>(), memory, policy)
}

fn scan_units(sizes: &[u64], memory: u64, policy: ScanPolicy) -> Scanned {
    let bytes = sizes.iter().sum();
    let mut out = Scanned { units: sizes.len(), bytes, read_per_pass: 0.0 };
    // Oldest first.
    let mut present: VecDeque<usize> = VecDeque::new();
    let (mut used, mut read, mut state) = (0u64, 0u64, 0x9e37_79b9_7f4a_7c15u64);
    for pass in 0..=PASSES {
        for (unit, &size) in sizes.iter().enumerate() {
            if let Some(at) = present.iter().position(|&there| there == unit) {
                if policy == ScanPolicy::Lru {
                    present.remove(at);
                    present.push_back(unit);
                }
                continue;
            }
            // The first pass fills the memory.
            read += if pass > 0 { size } else { 0 };
            if policy == ScanPolicy::Pinned {
                if used + size <= memory {
                    present.push_back(unit);
                    used += size;
                }
                continue;
            }
            while used + size > memory {
                let victim = if policy == ScanPolicy::Lru {
                    0
                } else {
                    state ^= state >> 12;
                    state ^= state << 25;
                    state ^= state >> 27;
                    (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % present.len().max(1)
                };
                let Some(gone) = present.remove(victim) else { break };
                used -= sizes.get(gone).copied().unwrap_or(0);
            }
            if used + size <= memory {
                present.push_back(unit);
                used += size;
            }
        }
    }
    out.read_per_pass = read as f64 / PASSES as f64;
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_is_the_worst_case_of_lru_and_pinning_is_within_a_unit_of_the_best() {
        let sizes = [10u64; 20];
        let rate = |memory, policy| scan_units(&sizes, memory, policy).hit_rate();
        assert_eq!(rate(100, ScanPolicy::Lru), 0.0);
        assert_eq!(rate(190, ScanPolicy::Lru), 0.0);
        assert_eq!(rate(100, ScanPolicy::Pinned), 0.5);
        assert_eq!(rate(199, ScanPolicy::Pinned), 0.95);
        let random = rate(100, ScanPolicy::Random);
        assert!(random > 0.15 && random < 0.5, "{random}");
        for (_, policy) in ScanPolicy::ALL {
            assert_eq!(rate(200, policy), 1.0, "{policy:?}");
            assert_eq!(rate(5, policy), 0.0, "{policy:?}");
        }
    }
}
