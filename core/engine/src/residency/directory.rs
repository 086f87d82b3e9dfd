//! Which expert is in which slot of the cache, and which one goes next. No bytes here: the same code serves the cache of a
//! running model and the replay of a recorded trace.

use super::policy::{CachePolicy, ExpertGrid, Visit};

/// An expert of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExpertKey {
    /// The layer, counted among those with experts.
    pub layer: u32,
    /// The expert.
    pub expert: u32,
}

/// Where an expert that was not there goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// The slot it gets.
    pub slot: u32,
    /// Who had to leave it.
    pub evicted: Option<ExpertKey>,
}

/// The slots of an expert cache.
pub struct ExpertDirectory {
    grid: ExpertGrid,
    policy: Box<dyn CachePolicy>,
    scores: Vec<f64>,
    /// The slot of each expert, or [`NOWHERE`].
    slot_of: Vec<u32>,
    /// Experts that must not go now.
    pins: Vec<u16>,
    layers: Vec<LayerState>,
    free: Vec<u32>,
    used: usize,
    current: usize,
}

#[derive(Default)]
struct LayerState {
    /// Experts that have slots.
    present: Vec<u32>,
    lowest: Lowest,
}

/// The present, unpinned expert with the lowest score.
#[derive(Clone, Copy, Default)]
enum Lowest {
    #[default]
    Unknown,
    Nobody,
    Expert(u32, f64),
}

const NOWHERE: u32 = u32::MAX;

impl ExpertDirectory {
    /// `slots` empty slots.
    pub fn new(grid: ExpertGrid, slots: u32, policy: Box<dyn CachePolicy>) -> Self {
        let all = grid.layers.saturating_mul(grid.experts);
        Self {
            grid,
            policy,
            scores: vec![0.0; all],
            slot_of: vec![NOWHERE; all],
            pins: vec![0; all],
            layers: (0..grid.layers).map(|_| LayerState::default()).collect(),
            free: (0..slots).rev().collect(),
            used: 0,
            current: 0,
        }
    }

    /// The policy's name.
    pub fn policy(&self) -> &'static str {
        self.policy.name()
    }

    /// Experts present.
    pub fn len(&self) -> usize {
        self.used
    }

    /// Whether none is present.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    fn index(&self, key: ExpertKey) -> Option<usize> {
        ((key.layer as usize) < self.grid.layers && (key.expert as usize) < self.grid.experts)
            .then(|| key.layer as usize * self.grid.experts + key.expert as usize)
    }

    /// A layer's router has chosen.
    pub fn visit(&mut self, visit: &Visit<'_>) {
        let first = visit.layer * self.grid.experts;
        let Some(scores) = self.scores.get_mut(first..first + self.grid.experts) else { return };
        self.policy.visit(visit, scores);
        self.current = visit.layer;
        self.forget_lowest(visit.layer);
    }

    fn forget_lowest(&mut self, layer: usize) {
        if let Some(state) = self.layers.get_mut(layer) {
            state.lowest = Lowest::Unknown;
        }
    }

    /// The slot of an expert.
    pub fn slot(&self, key: ExpertKey) -> Option<u32> {
        self.slot_of.get(self.index(key)?).copied().filter(|&slot| slot != NOWHERE)
    }

    /// Keeps an expert from being evicted until it was unpinned as often.
    pub fn pin(&mut self, key: ExpertKey) {
        if let Some(pins) = self.index(key).and_then(|index| self.pins.get_mut(index)) {
            *pins = pins.saturating_add(1);
            self.forget_lowest(key.layer as usize);
        }
    }

    /// Takes one pin back.
    pub fn unpin(&mut self, key: ExpertKey) {
        if let Some(pins) = self.index(key).and_then(|index| self.pins.get_mut(index)) {
            *pins = pins.saturating_sub(1);
            self.forget_lowest(key.layer as usize);
        }
    }

    /// Gives an absent expert a slot; `None` when every slot is pinned (or the expert is none, or present).
    pub fn admit(&mut self, key: ExpertKey) -> Option<Admission> {
        let index = self.index(key)?;
        if self.slot_of.get(index) != Some(&NOWHERE) {
            return None;
        }
        let (slot, evicted) = match self.free.pop() {
            Some(slot) => (slot, None),
            None => {
                let victim = self.victim()?;
                (self.take_out(victim)?, Some(victim))
            }
        };
        *self.slot_of.get_mut(index)? = slot;
        self.layers.get_mut(key.layer as usize)?.present.push(key.expert);
        self.forget_lowest(key.layer as usize);
        self.used += 1;
        Some(Admission { slot, evicted })
    }

    /// Takes an expert out, pinned or not; its slot is free for others. For contents that turned out to be unusable.
    pub fn remove(&mut self, key: ExpertKey) {
        if let Some(slot) = self.take_out(key) {
            self.free.push(slot);
        }
    }

    /// Takes one slot away for good: a free one, or that of the least valuable expert. `None` when all are pinned.
    pub fn retire_slot(&mut self) -> Option<u32> {
        if let Some(slot) = self.free.pop() {
            return Some(slot);
        }
        let victim = self.victim()?;
        self.take_out(victim)
    }

    /// Whether a slot is free or in use, and not retired.
    pub fn has_slot(&self, slot: u32) -> bool {
        self.free.contains(&slot) || self.slot_of.contains(&slot)
    }

    /// Adds a slot.
    pub fn add_slot(&mut self, slot: u32) {
        self.free.push(slot);
    }

    fn take_out(&mut self, key: ExpertKey) -> Option<u32> {
        let index = self.index(key)?;
        let slot = std::mem::replace(self.slot_of.get_mut(index)?, NOWHERE);
        if slot == NOWHERE {
            return None;
        }
        let state = self.layers.get_mut(key.layer as usize)?;
        state.present.retain(|&expert| expert != key.expert);
        state.lowest = Lowest::Unknown;
        self.used -= 1;
        Some(slot)
    }

    fn victim(&mut self) -> Option<ExpertKey> {
        let Self { grid, policy, scores, pins, layers, current, .. } = self;
        let mut best: Option<(f64, ExpertKey)> = None;
        for (layer, state) in layers.iter_mut().enumerate() {
            if let Lowest::Unknown = state.lowest {
                state.lowest = lowest(layer * grid.experts, &state.present, scores, pins);
            }
            let Lowest::Expert(expert, score) = state.lowest else { continue };
            let distance = match (layer + grid.layers - *current) % grid.layers {
                0 => grid.layers,
                distance => distance,
            };
            // Scores may be negative (times of next use): then nearness is 1 and changes nothing.
            let value = score * policy.nearness(distance, grid.layers);
            if best.is_none_or(|(least, _)| value < least) {
                best = Some((value, ExpertKey { layer: layer as u32, expert }));
            }
        }
        best.map(|(_, key)| key)
    }
}

fn lowest(first: usize, present: &[u32], scores: &[f64], pins: &[u16]) -> Lowest {
    let mut lowest = Lowest::Nobody;
    for &expert in present {
        let index = first + expert as usize;
        if pins.get(index).is_some_and(|&pins| pins > 0) {
            continue;
        }
        let score = scores.get(index).copied().unwrap_or(0.0);
        if !matches!(lowest, Lowest::Expert(_, least) if least <= score) {
            lowest = Lowest::Expert(expert, score);
        }
    }
    lowest
}

impl std::fmt::Debug for ExpertDirectory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExpertDirectory")
            .field("grid", &self.grid)
            .field("policy", &self.policy())
            .field("present", &self.used)
            .field("free", &self.free.len())
            .finish_non_exhaustive()
    }
}
