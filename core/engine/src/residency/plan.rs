//! Which weights stay, which are streamed, and through how much memory.
//!
//! ```text
//! everything fits                      -> the mapping of the file, no copies
//! all dense weights fit, experts not   -> dense weights pinned, the rest of the budget is slots for experts
//! dense weights do not fit             -> pin what fits, stream the same rest in every pass
//! ```
//!
//! A pass is a cyclic scan, so what is pinned is as good as what the best policy could keep, and what is streamed is never kept. The
//! streamed tensors are spread evenly over the pass: then reading keeps pace with computing, and no unit needs a large buffer.

use super::extent::{Extents, GAP};
use super::layout::{Layout, Unit, UnitKind};
use crate::Result;

/// What to decide by.
#[derive(Clone, Copy, Debug)]
pub struct ResidencyWish {
    /// Bytes that copies of weights may take; `None` maps the file.
    pub budget: Option<u64>,
    /// Experts that a token uses per layer.
    pub experts_used: usize,
}

/// Where a unit's tensors live.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitPlace {
    /// For each tensor, whether it stays.
    pub pinned: Vec<bool>,
}

/// The decision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResidencyPlan {
    /// Nothing is copied.
    pub mapped: bool,
    /// For each unit of the layout.
    pub places: Vec<UnitPlace>,
    /// Copies of dense weights that stay.
    pub pinned_bytes: u64,
    /// Dense weights that every pass reads.
    pub streamed_bytes: u64,
    /// Buffers that they are read into, and how large each is.
    pub buffers: usize,
    /// See [`ResidencyPlan::buffers`].
    pub buffer_bytes: u64,
    /// Slots for experts, and how large each is.
    pub slots: u32,
    /// See [`ResidencyPlan::slots`].
    pub slot_bytes: u64,
    /// Experts of all layers, and their bytes.
    pub experts: u32,
    /// See [`ResidencyPlan::experts`].
    pub expert_bytes: u64,
    /// All dense weights without the embedding, of which only rows are read.
    pub dense_bytes: u64,
}

/// The budget is too small for any plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortfall {
    /// The least that would do, in bytes.
    pub needed: u64,
}

/// A read below this costs more than its bytes: small tensors are pinned before large ones.
const SMALL: u64 = 1 << 20;

impl ResidencyPlan {
    /// Copies of weights and buffers, in bytes.
    pub fn anonymous_bytes(&self) -> u64 {
        if self.mapped {
            return 0;
        }
        self.pinned_bytes + self.buffers as u64 * self.buffer_bytes + u64::from(self.slots) * self.slot_bytes
    }

    /// Decides. The inner error says how much would do.
    ///
    /// # Errors
    /// Sizes that overflow.
    pub fn new(layout: &Layout, wish: &ResidencyWish) -> Result<Result<ResidencyPlan, Shortfall>> {
        let mut all = Inventory::new(layout)?;
        let Some(budget) = wish.budget else {
            return Ok(Ok(all.finish(ResidencyPlan { mapped: true, ..ResidencyPlan::default() }, true)?));
        };
        let dense = all.whole()?;
        let least_slots = (2 * wish.experts_used.max(4)).min(all.experts as usize) as u64;
        let least_experts = least_slots * all.slot_bytes;
        if dense.saturating_add(least_experts) <= budget {
            let slots = (budget - dense).checked_div(all.slot_bytes).unwrap_or(0).min(u64::from(all.experts));
            let plan = ResidencyPlan { slots: slots as u32, ..ResidencyPlan::default() };
            return Ok(Ok(all.finish(plan, true)?));
        }
        let Some(left) = budget.checked_sub(least_experts) else {
            return Ok(Err(Shortfall { needed: least_experts + all.least_dense() }));
        };
        match all.spread(left) {
            Some((buffers, buffer_bytes)) => {
                let plan = ResidencyPlan {
                    buffers,
                    buffer_bytes,
                    slots: least_slots as u32,
                    ..ResidencyPlan::default()
                };
                Ok(Ok(all.finish(plan, false)?))
            }
            None => Ok(Err(Shortfall { needed: least_experts + all.least_dense() })),
        }
    }
}

/// A dense tensor.
struct Tensor {
    unit: usize,
    slot: usize,
    /// With what alignment and reading over gaps may add.
    bytes: u64,
    is_output: bool,
    pinned: bool,
}

/// The layout, as far as it matters here.
struct Inventory<'a> {
    layout: &'a Layout,
    /// In pass order.
    tensors: Vec<Tensor>,
    experts: u32,
    expert_bytes: u64,
    slot_bytes: u64,
}

impl<'a> Inventory<'a> {
    fn new(layout: &'a Layout) -> Result<Inventory<'a>> {
        let mut all = Inventory { layout, tensors: Vec::new(), experts: 0, expert_bytes: 0, slot_bytes: 0 };
        for (unit, info) in layout.units().iter().enumerate() {
            match info.kind {
                UnitKind::Embedding => {}
                UnitKind::Expert { .. } => {
                    all.experts += 1;
                    all.expert_bytes += info.bytes();
                    all.slot_bytes = all.slot_bytes.max(Extents::of(&info.tensors)?.bytes as u64);
                }
                kind => {
                    for (slot, tensor) in info.tensors.iter().enumerate() {
                        let bytes = Extents::of([tensor])?.bytes as u64 + GAP;
                        let is_output = kind == UnitKind::Output;
                        all.tensors.push(Tensor { unit, slot, bytes, is_output, pinned: false });
                    }
                }
            }
        }
        Ok(all)
    }

    /// Bytes of all dense weights, pinned.
    fn whole(&self) -> Result<u64> {
        let dense = |unit: &&Unit| !matches!(unit.kind, UnitKind::Embedding | UnitKind::Expert { .. });
        let units = self.layout.units().iter().filter(dense);
        units.map(|unit| Extents::of(&unit.tensors).map(|extents| extents.bytes as u64)).sum()
    }

    /// The least that dense weights can be streamed with: what is always pinned, and two buffers.
    fn least_dense(&mut self) -> u64 {
        let always: u64 = self.tensors.iter().filter(|t| t.is_output).map(|t| t.bytes).sum();
        self.pin_evenly(0);
        always + 2 * self.largest_part()
    }

    /// Bytes of the largest streamed part of a unit.
    fn largest_part(&self) -> u64 {
        let mut parts = vec![0u64; self.layout.units().len()];
        for tensor in self.tensors.iter().filter(|tensor| !tensor.pinned) {
            if let Some(part) = parts.get_mut(tensor.unit) {
                *part += tensor.bytes;
            }
        }
        parts.into_iter().max().unwrap_or(0)
    }

    /// Pins as much as fits in `budget` beside the buffers; number and size of those, or `None` if it cannot be done.
    fn spread(&mut self, budget: u64) -> Option<(usize, u64)> {
        // More pinned means smaller parts, smaller buffers, and so more to pin: from the smallest pinned set upwards.
        let mut room = 0;
        let mut best = None;
        for _ in 0..8 {
            let pinned = self.pin_evenly(room);
            let part = self.largest_part();
            // Three buffers let two reads be under way; but not at the price of a large share of what could be pinned.
            let buffers = if 3 * part <= budget / 6 { 3 } else { 2 };
            let Some(next) = budget.checked_sub(buffers as u64 * part).filter(|&next| pinned <= next) else {
                break;
            };
            best = Some((room, buffers, part));
            if next <= room {
                break;
            }
            room = next;
        }
        let (room, buffers, part) = best?;
        let mut pinned = self.pin_evenly(room);
        // What even spreading left over, largest first.
        let limit = budget - buffers as u64 * part;
        let mut rest: Vec<usize> = (0..self.tensors.len()).filter(|&i| !self.tensors[i].pinned).collect();
        rest.sort_by_key(|&i| std::cmp::Reverse(self.tensors[i].bytes));
        for index in rest {
            if let Some(tensor) = self.tensors.get_mut(index).filter(|tensor| pinned + tensor.bytes <= limit)
            {
                tensor.pinned = true;
                pinned += tensor.bytes;
            }
        }
        Some((buffers, self.largest_part()))
    }

    /// Pins about `room` bytes, spread evenly over the pass; how many it were.
    fn pin_evenly(&mut self, room: u64) -> u64 {
        let mut pinned = 0;
        // The output head is the largest tensor of many models, and a buffer for it would cost as much as keeping it.
        for tensor in &mut self.tensors {
            tensor.pinned = tensor.is_output;
            pinned += if tensor.pinned { tensor.bytes } else { 0 };
        }
        for tensor in self.tensors.iter_mut().filter(|tensor| !tensor.pinned && tensor.bytes < SMALL) {
            if pinned + tensor.bytes <= room {
                tensor.pinned = true;
                pinned += tensor.bytes;
            }
        }
        let open: u64 = self.tensors.iter().filter(|tensor| !tensor.pinned).map(|tensor| tensor.bytes).sum();
        let room = room.saturating_sub(pinned);
        let share = room as f64 / open.max(1) as f64;
        let (mut seen, mut taken) = (0f64, 0u64);
        for tensor in self.tensors.iter_mut().filter(|tensor| !tensor.pinned) {
            seen += tensor.bytes as f64 * share;
            // Half a tensor ahead of the line is as near as half behind it.
            if (taken as f64) + tensor.bytes as f64 / 2.0 <= seen && taken + tensor.bytes <= room {
                tensor.pinned = true;
                taken += tensor.bytes;
            }
        }
        pinned + taken
    }

    fn finish(&mut self, mut plan: ResidencyPlan, all_pinned: bool) -> Result<ResidencyPlan> {
        let units = self.layout.units();
        plan.places = units.iter().map(|unit| UnitPlace { pinned: vec![true; unit.tensors.len()] }).collect();
        for tensor in self.tensors.iter().filter(|tensor| !tensor.pinned && !all_pinned) {
            if let Some(place) =
                plan.places.get_mut(tensor.unit).and_then(|unit| unit.pinned.get_mut(tensor.slot))
            {
                *place = false;
            }
        }
        // Exactly what will be read.
        for (unit, place) in units.iter().zip(&plan.places) {
            if matches!(unit.kind, UnitKind::Embedding | UnitKind::Expert { .. }) {
                continue;
            }
            let part = |wanted: bool| {
                let of = unit.tensors.iter().zip(&place.pinned).filter(move |(_, is)| **is == wanted);
                Extents::of(of.map(|(tensor, _)| tensor)).map(|extents| extents.bytes as u64)
            };
            plan.pinned_bytes += part(true)?;
            plan.streamed_bytes += part(false)?;
        }
        plan.dense_bytes = plan.pinned_bytes + plan.streamed_bytes;
        plan.experts = self.experts;
        plan.expert_bytes = self.expert_bytes;
        plan.slot_bytes = self.slot_bytes;
        Ok(plan)
    }
}

/// The units with streamed parts, in pass order.
pub(super) fn streamed_units(plan: &ResidencyPlan) -> Vec<usize> {
    let has = |place: &UnitPlace| place.pinned.iter().any(|pinned| !pinned);
    plan.places.iter().enumerate().filter(|(_, place)| has(place)).map(|(unit, _)| unit).collect()
}
