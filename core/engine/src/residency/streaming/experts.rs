//! The cache of experts.

use super::guesses::Guesses;
use super::ring::fill;
use super::{Failure, Shared, Waited};
use crate::memory::{Category, Reservation};
use crate::residency::extent::{Extents, Slab};
use crate::residency::policy::{CachePolicy, ExpertGrid, Visit};
use crate::residency::{ExpertDirectory, ExpertKey, View};
use crate::{Error, Result};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Slots for experts, and who waits for what.
#[derive(Debug)]
pub(super) struct ExpertCache {
    /// The model's layer of each layer of the directory.
    layers: Vec<usize>,
    directory: ExpertDirectory,
    slots: Vec<Slot>,
    slot_bytes: u64,
    reads: HashMap<ExpertKey, Arc<Extents>>,
    /// Somebody waits for these.
    urgent: VecDeque<ExpertKey>,
    /// Somebody will need these, in this order.
    hinted: VecDeque<ExpertKey>,
    /// Read or kept because of a hint, and not used yet: they must not be evicted by the next of the same hint.
    promised: Vec<ExpertKey>,
    failed: HashMap<ExpertKey, Failure>,
    /// Reads experts before they are acquired.
    pub prefetch: bool,
    pub guesses: Guesses,
    held: Reservation,
    /// How many slots there should be, and how many there may ever be.
    wanted: u32,
    most: u32,
    least: u32,
    /// Slots that exist.
    live: u32,
}

#[derive(Debug, Default)]
struct Slot {
    /// Away while a lane fills it; made when the slot is used for the first time.
    slab: Option<Arc<Slab>>,
    /// What is in it and may be used.
    ready: Option<ExpertKey>,
}

impl ExpertCache {
    pub fn new(
        grid: ExpertGrid,
        layers: Vec<usize>,
        reads: Vec<(ExpertKey, Extents)>,
        slots: u32,
        slot_bytes: u64,
        policy: Box<dyn CachePolicy>,
        held: Reservation,
    ) -> Self {
        ExpertCache {
            layers,
            directory: ExpertDirectory::new(grid, slots, policy),
            slots: (0..slots).map(|_| Slot::default()).collect(),
            slot_bytes,
            reads: reads.into_iter().map(|(key, extents)| (key, Arc::new(extents))).collect(),
            urgent: VecDeque::new(),
            hinted: VecDeque::new(),
            promised: Vec::new(),
            failed: HashMap::new(),
            prefetch: true,
            guesses: Guesses::default(),
            held,
            wanted: slots,
            most: slots,
            least: slots.min(8),
            live: slots,
        }
    }

    pub fn bytes(&self) -> u64 {
        u64::from(self.live) * self.slot_bytes
    }

    pub fn resize(&mut self, bytes: u64) -> u64 {
        let slots = bytes.checked_div(self.slot_bytes).unwrap_or(0);
        self.wanted = u32::try_from(slots).unwrap_or(u32::MAX).clamp(self.least.min(self.most), self.most);
        u64::from(self.wanted) * self.slot_bytes
    }

    /// Between passes, when nothing is pinned: makes the cache as large as it should be.
    pub fn settle(&mut self) -> Result<()> {
        self.break_promises();
        self.guesses.pass_begins();
        // What failed for a pass that has ended is tried anew.
        self.failed.clear();
        while self.live > self.wanted {
            // A slot that is being filled cannot go now; the next pass tries again.
            let Some(slot) = self.directory.retire_slot() else { break };
            if let Some(slot) = self.slots.get_mut(slot as usize) {
                *slot = Slot::default();
            }
            self.live -= 1;
            self.held.shrink(self.slot_bytes);
        }
        while self.live < self.wanted {
            // Somebody else may have taken the memory meanwhile: then the cache stays small.
            if self.held.grow(self.slot_bytes).is_err() {
                break;
            }
            // The numbers of retired slots are those that nobody has.
            let free = (0..self.most).find(|&slot| !self.directory.has_slot(slot));
            let Some(slot) = free else {
                self.held.shrink(self.slot_bytes);
                break;
            };
            self.directory.add_slot(slot);
            self.live += 1;
        }
        Ok(())
    }

    pub fn routed<'a>(&mut self, visit: impl Fn(usize) -> Visit<'a>, layer: usize) {
        if let Ok(layer) = self.layers.binary_search(&layer) {
            self.directory.visit(&visit(layer));
        }
    }

    fn break_promises(&mut self) {
        for key in std::mem::take(&mut self.promised) {
            self.directory.unpin(key);
        }
    }

    pub fn wants_guesses(&self) -> bool {
        self.prefetch && self.guesses.is_on()
    }

    /// What will probably come; whether there is something to read now.
    pub fn guess(&mut self, keys: impl Iterator<Item = ExpertKey>) -> bool {
        let directory = &self.directory;
        self.guesses.set(keys.filter(|&key| directory.slot(key).is_none()))
    }

    pub fn hint(&mut self, keys: impl Iterator<Item = ExpertKey>) {
        self.break_promises();
        self.hinted.clear();
        if !self.prefetch {
            return;
        }
        let keys: Vec<ExpertKey> = keys.collect();
        self.guesses.judge(&keys);
        for key in keys {
            if self.directory.slot(key).is_some() {
                // Those that are there must survive until their turn.
                self.directory.pin(key);
                self.promised.push(key);
            } else {
                self.hinted.push_back(key);
            }
        }
    }

    fn ready_slot(&self, key: ExpertKey) -> Option<&Slot> {
        let slot = self.slots.get(self.directory.slot(key)? as usize)?;
        (slot.ready == Some(key)).then_some(slot)
    }

    pub fn is_ready(&self, key: ExpertKey) -> bool {
        self.ready_slot(key).is_some()
    }

    pub fn release(&mut self, key: ExpertKey) {
        self.directory.unpin(key);
    }

    fn keep_promise(&mut self, key: ExpertKey) {
        if let Some(at) = self.promised.iter().position(|&promised| promised == key) {
            self.promised.swap_remove(at);
            self.directory.unpin(key);
        }
    }

    /// What to read next, into which slot. The expert is pinned until the read has ended.
    fn job(&mut self) -> Option<Job> {
        loop {
            let (key, why) = match (self.urgent.front(), self.hinted.front()) {
                (Some(&key), _) => (key, Why::Urgent),
                (None, Some(&key)) => (key, Why::Hinted),
                (None, None) => (self.guesses.next()?, Why::Guessed),
            };
            if self.directory.slot(key).is_some() {
                // Another lane was faster.
                self.begun(why);
                continue;
            }
            let admission = match self.directory.admit(key) {
                Some(admission) => admission,
                None if why == Why::Urgent && !self.promised.is_empty() => {
                    // What somebody waits for goes before what is needed last.
                    if let Some(last) = self.promised.pop() {
                        self.directory.unpin(last);
                        self.hinted.push_back(last);
                    }
                    continue;
                }
                // All slots are in use: a release wakes us.
                None => return None,
            };
            self.begun(why);
            let extents = Arc::clone(self.reads.get(&key)?);
            let index = admission.slot as usize;
            let slot = self.slots.get_mut(index)?;
            slot.ready = None;
            let slab = match slot.slab.take() {
                Some(slab) => Ok(slab),
                None => Slab::new(self.slot_bytes as usize, Category::Cache).map(Arc::new),
            };
            match slab {
                Ok(slab) => {
                    self.directory.pin(key);
                    match why {
                        Why::Urgent => {}
                        Why::Hinted => {
                            self.directory.pin(key);
                            self.promised.push(key);
                        }
                        Why::Guessed => self.guesses.was_read(key),
                    }
                    return Some(Job { key, index, slab, extents, why });
                }
                Err(error) => {
                    self.directory.remove(key);
                    if why != Why::Guessed {
                        self.failed.insert(key, Failure::of(&error));
                    }
                }
            }
        }
    }

    /// The first of a queue is being read.
    fn begun(&mut self, why: Why) {
        match why {
            Why::Urgent => drop(self.urgent.pop_front()),
            Why::Hinted => drop(self.hinted.pop_front()),
            // Taken out when it was looked at.
            Why::Guessed => {}
        }
    }

    fn finished(
        &mut self,
        key: ExpertKey,
        index: usize,
        slab: Arc<Slab>,
        result: Result<(), Failure>,
        why: Why,
    ) {
        self.directory.unpin(key);
        if let Some(slot) = self.slots.get_mut(index) {
            slot.slab = Some(slab);
            slot.ready = result.is_ok().then_some(key);
        }
        if let Err(failure) = result {
            self.keep_promise(key);
            self.directory.remove(key);
            // Who needs what was only guessed reads it again, and gets the error if that fails too.
            if why != Why::Guessed {
                self.failed.insert(key, failure);
            }
        }
    }
}

/// Why an expert is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// Somebody waits for it.
    Urgent,
    /// A router has chosen it.
    Hinted,
    /// The next router probably will.
    Guessed,
}

/// A read.
struct Job {
    key: ExpertKey,
    index: usize,
    slab: Arc<Slab>,
    extents: Arc<Extents>,
    why: Why,
}

/// An expert; waits until it is there.
pub(super) fn take(shared: &Shared, key: ExpertKey) -> Result<Arc<Slab>> {
    shared.counters.expert_uses.fetch_add(1, Ordering::Relaxed);
    let mut state = shared.lock();
    let mut waited = None;
    loop {
        let cache = &mut state.experts;
        if let Some(slab) = cache.ready_slot(key).map(|slot| slot.slab.clone()) {
            let slab = slab.ok_or_else(|| Error::internal("a ready slot without its slab"))?;
            cache.directory.pin(key);
            cache.keep_promise(key);
            return Ok(slab);
        }
        if let Some(failure) = cache.failed.remove(&key) {
            return Err(failure.error());
        }
        if cache.directory.slot(key).is_none() && !cache.urgent.contains(&key) {
            cache.urgent.push_back(key);
            shared.work.notify_all();
        }
        waited.get_or_insert_with(|| Waited::begin(shared));
        state = shared.wait(&shared.arrived, state);
    }
}

/// A lane.
pub(super) fn read_missing(shared: &Shared) {
    let mut state = shared.lock();
    while !shared.stopped() {
        let Some(Job { key, index, slab, extents, why }) = state.experts.job() else {
            // A failure to get memory may have been noted: somebody may wait for it.
            shared.arrived.notify_all();
            state = shared.wait(&shared.work, state);
            continue;
        };
        drop(state);
        if why != Why::Guessed {
            shared.counters.expert_misses.fetch_add(1, Ordering::Relaxed);
        }
        // All planes, whatever the view: an expert stays, and the next token may be another session's.
        let (slab, result) = fill(shared, slab, &extents, View::Full);
        state = shared.lock();
        state.experts.finished(key, index, slab, result, why);
        shared.arrived.notify_all();
    }
}
