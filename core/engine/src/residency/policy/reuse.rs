//! The default: how likely is it that the layer's next visit uses this expert?
//!
//! ```text
//! after a visit, for each expert of the layer:
//!     cell = (visits since its last use, how often it was used lately, how near the router's cut it was)
//!     score = share of experts which, in the same cell, were used one visit later (measured so far, on all layers)
//! ```
//!
//! Which mixture of recency and frequency predicts reuse best differs between models (and between a chat and a long answer),
//! so it is measured while running instead of fixed: six thousand observations per token fill the table within a few tokens. Until
//! then, and in cells that are rarely seen, fading counts stand in for what was not measured yet.
//!
//! Measured as hits on the recorded traces at 1000, 2000, 3000 and 4000 MiB (`nextvisit` in brackets): Qwen3-30B-A3B .44 .62 .73 .81
//! (.41 .60 .72 .81), GPT-OSS-120B .27 .40 .49 .55 (.25 .39 .48 .54).

use super::{CachePolicy, ExpertGrid, Visit, sooner_is_dearer};

/// Evicts what is least likely to be used when its layer runs next.
#[derive(Debug)]
pub struct Reuse {
    experts: usize,
    /// Of each expert of each layer.
    seen: Vec<Seen>,
    /// Visits of each layer.
    visits: Vec<u32>,
    cells: Vec<Cell>,
    slow: f32,
    fast: f32,
}

/// What is known of one expert.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// The layer's visit that used it last; 0 for none.
    last: u32,
    /// Uses, fading slowly and fast; both as a share of the most they can become, so between 0 and 1.
    slow: f32,
    fast: f32,
    /// The bucket of the router's probability at the last visit.
    near: u8,
}

/// What was measured of one cell.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    seen: f32,
    used: f32,
}

const AGES: usize = 10;
const COUNTS: usize = 24;
const NEARS: usize = 6;
/// In tokens. The slow count tells favourites, the fast one what the text is about right now.
const SLOW_HALF_LIFE: f32 = 16.0;
const FAST_HALF_LIFE: f32 = 4.0;
/// How many observations the guess from counts is worth.
const GUESS: f32 = 20.0;
/// Cells forget half when they have seen this many, so that they follow the text.
const MEMORY: f32 = 4000.0;

fn age_bucket(visits: u32) -> usize {
    // Widening: what happened two or three visits ago differs more than what happened twenty or thirty ago.
    const UP_TO: [u32; AGES - 1] = [1, 2, 3, 5, 8, 13, 22, 40, 80];
    UP_TO.iter().position(|&limit| visits <= limit).unwrap_or(AGES - 1)
}

/// Two buckets per doubling, from 2^-12 to 1.
fn count_bucket(share: f32) -> usize {
    // The exponent and the first bit of the mantissa are that bucket; a logarithm would cost more than all the rest here.
    const ONE: u32 = 127 << 1;
    let half_octave = (share.max(0.0) + 1e-4).to_bits() >> 22;
    (half_octave + COUNTS as u32).saturating_sub(ONE).min(COUNTS as u32 - 1) as usize
}

/// How near the cut an expert was that the router did not choose. 0 where that is not known, and for the chosen.
fn near_bucket(probability: f32, cut: f32) -> u8 {
    match probability / cut {
        r if r >= 0.7 => 5,
        r if r >= 0.4 => 4,
        r if r >= 0.2 => 3,
        r if r >= 0.08 => 2,
        r if r >= 0.0 => 1,
        _ => 0,
    }
}

impl Reuse {
    /// Knows nothing yet.
    pub fn new(grid: ExpertGrid) -> Reuse {
        Reuse {
            experts: grid.experts,
            seen: vec![Seen::default(); grid.layers.saturating_mul(grid.experts)],
            visits: vec![0; grid.layers],
            cells: vec![Cell::default(); AGES * COUNTS * NEARS],
            slow: (-1.0 / SLOW_HALF_LIFE).exp2(),
            fast: (-1.0 / FAST_HALF_LIFE).exp2(),
        }
    }
}

fn cell_of(seen: &Seen, visit: u32) -> usize {
    let age = if seen.last == 0 { AGES - 1 } else { age_bucket(visit - seen.last) };
    (age * COUNTS + count_bucket(seen.slow)) * NEARS + usize::from(seen.near)
}

impl CachePolicy for Reuse {
    fn name(&self) -> &'static str {
        "reuse"
    }

    fn visit(&mut self, visit: &Visit<'_>, scores: &mut [f64]) {
        let first = visit.layer * self.experts;
        let (Some(layer), Some(visits)) =
            (self.seen.get_mut(first..first + self.experts), self.visits.get_mut(visit.layer))
        else {
            return;
        };
        // Overflow would need months of tokens; ages are then wrong once, nothing else.
        *visits = visits.wrapping_add(1).max(1);
        let now = *visits;
        let cut = visit.probabilities.map(|all| {
            let chosen = visit.chosen.iter().filter_map(|&expert| all.get(usize::from(expert)));
            chosen.fold(f32::INFINITY, |least, &p| least.min(p))
        });
        let mut is_chosen = Bits::default();
        visit.chosen.iter().for_each(|&expert| is_chosen.set(expert));

        for (expert, (seen, score)) in layer.iter_mut().zip(scores).enumerate() {
            let chosen = is_chosen.get(expert);
            // What the last visit promised, against what happened.
            if let Some(cell) = self.cells.get_mut(cell_of(seen, now.max(seen.last))) {
                cell.seen += 1.0;
                cell.used += f32::from(u8::from(chosen));
                if cell.seen > MEMORY {
                    cell.seen *= 0.5;
                    cell.used *= 0.5;
                }
            }
            seen.slow *= self.slow;
            seen.fast *= self.fast;
            if chosen {
                seen.slow += 1.0 - self.slow;
                seen.fast += 1.0 - self.fast;
                seen.last = now;
            }
            seen.near = match (cut, visit.probabilities.and_then(|all| all.get(expert))) {
                (Some(cut), Some(&probability)) if !chosen => near_bucket(probability, cut),
                _ => 0,
            };
            let guess = 0.5 * (seen.slow + seen.fast);
            let cell = self.cells.get(cell_of(seen, now.saturating_add(1))).copied().unwrap_or_default();
            *score = f64::from((cell.used + GUESS * guess) / (cell.seen + GUESS));
        }
    }

    fn nearness(&self, distance: usize, layers: usize) -> f64 {
        sooner_is_dearer(distance, layers)
    }
}

/// A small set of expert numbers.
#[derive(Default)]
struct Bits([u64; 16]);

impl Bits {
    fn set(&mut self, expert: u16) {
        if let Some(word) = self.0.get_mut(usize::from(expert / 64)) {
            *word |= 1 << (expert % 64);
        }
    }

    fn get(&self, expert: usize) -> bool {
        self.0.get(expert / 64).is_some_and(|word| word >> (expert % 64) & 1 == 1)
    }
}
