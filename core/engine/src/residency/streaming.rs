//! Weights larger than the budget: part of them stays, the rest comes from flash while the pass computes.
//!
//! ```text
//! dense     a ring of buffers. The reader thread fills the next empty one with the next streamed part of the cyclic pass; acquire
//!           takes the buffer of its unit, and letting go empties it. Nothing streamed is ever kept: see `plan.rs`.
//! experts   slots of one size. A router's choice is told by `hint`; lanes read what is absent into the slots of the least
//!           valuable experts while those that are there are being computed.
//! ```
//!
//! One mutex guards the state of both; it is held for microseconds, never while reading. A buffer that is being read into belongs
//! to its lane, one that is there is shared by `Arc`: no unsafe code, and a lane can never write what a product reads.

mod experts;
mod guesses;
mod ring;

use super::extent::{Extents, Slab};
use super::plan::{ResidencyPlan, streamed_units};
use super::policy::{self, ExpertGrid, Visit};
use super::source::{FileSource, WeightSource, read_needed};
use super::vectors::Vectors;
use super::{
    CurrentView, FlashStats, Layout, TensorRef, UnitGuard, UnitId, UnitKind, VectorRef, View, WeightStore,
};
use crate::memory::{Accountant, Category, Reservation};
use crate::{Error, Result};
use experts::ExpertCache;
use pannier_gguf::Gguf;
use ring::Ring;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

/// How a store streams.
#[derive(Clone, Debug)]
pub struct StreamOptions {
    /// Which experts to keep: a name of [`policy::POLICIES`].
    pub policy: &'static str,
    /// Reads experts ahead of their use. Off for comparison: each is read when it is acquired.
    pub prefetch: bool,
    /// Also reads, on idle lanes, what the next layer's router would choose by what this one saw; turns itself off while it does not
    /// pay.
    pub guess: bool,
    /// Threads that read experts.
    pub lanes: usize,
    /// Where weights are read from; the model's files if absent.
    pub source: Option<Arc<dyn WeightSource>>,
}

impl Default for StreamOptions {
    fn default() -> Self {
        // Two lanes saturate a phone's flash; with experts of a megabyte or two, gaps between reads cost more, so three.
        Self { policy: policy::POLICIES[0].name, prefetch: true, guess: false, lanes: 3, source: None }
    }
}

/// The weights of a model, of which a part is in memory.
#[derive(Debug)]
pub struct StreamingStore {
    layout: Layout,
    vectors: Vectors,
    view: CurrentView,
    plan: ResidencyPlan,
    units: Vec<UnitState>,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// As it was asked for.
    prefetch: bool,
    guesses: bool,
    _pinned: Reservation,
}

/// What does not change after loading.
#[derive(Debug, Default)]
struct UnitState {
    pinned: Option<Arc<Slab>>,
    /// For each tensor, in which part and where in it.
    places: Vec<Place>,
    moving: Moving,
}

/// Where a unit's other part comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Moving {
    /// There is none.
    #[default]
    Nothing,
    /// Buffers of the ring; which of its turns.
    Ring(usize),
    /// A slot of the cache.
    Cache(super::ExpertKey),
}

/// Where a tensor is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub pinned: bool,
    /// Of each plane.
    pub at: [usize; 2],
}

/// What lanes and callers share.
#[derive(Debug)]
struct Shared {
    source: Arc<dyn WeightSource>,
    state: Mutex<State>,
    /// Something has arrived, or failed.
    arrived: Condvar,
    /// There is something to read, or room to read it into.
    work: Condvar,
    stop: AtomicBool,
    counters: Counters,
}

#[derive(Debug)]
struct State {
    ring: Ring,
    experts: ExpertCache,
}

#[derive(Debug, Default)]
struct Counters {
    bytes: AtomicU64,
    reads: AtomicU64,
    expert_uses: AtomicU64,
    expert_misses: AtomicU64,
    waited_nanos: AtomicU64,
    passes: AtomicU64,
}

/// A failed read, kept until somebody asks for what it was to bring.
#[derive(Debug)]
enum Failure {
    Io { kind: std::io::ErrorKind, text: String, path: std::path::PathBuf },
    Other(String),
}

impl Failure {
    fn of(error: &Error) -> Failure {
        match error {
            Error::Io { path, source, .. } => {
                Failure::Io { kind: source.kind(), text: source.to_string(), path: path.clone() }
            }
            other => Failure::Other(other.to_string()),
        }
    }

    fn error(self) -> Error {
        match self {
            Failure::Io { kind, text, path } => {
                Error::Io { action: "read", path, source: std::io::Error::new(kind, text) }
            }
            Failure::Other(what) => Error::internal(what),
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, on: &Condvar, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        on.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, extents: &Extents, slab: &mut Slab, view: View) -> Result<(), Failure> {
        extents.read(&*self.source, slab, view).map_err(|error| Failure::of(&error))?;
        self.counters.bytes.fetch_add(extents.bytes_in(view) as u64, Ordering::Relaxed);
        self.counters.reads.fetch_add(extents.reads(view) as u64, Ordering::Relaxed);
        Ok(())
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

impl StreamingStore {
    /// Reads what is pinned, and starts the lanes. `plan` is that of `layout`.
    ///
    /// # Errors
    /// [`Error::OutOfBudget`], [`Error::OutOfMemory`], and what reading may bring.
    pub fn new(
        gguf: &Gguf,
        layout: Layout,
        plan: ResidencyPlan,
        options: &StreamOptions,
        accountant: &Accountant,
    ) -> Result<StreamingStore> {
        let held = accountant.reserve(Category::Weights, plan.pinned_bytes)?;
        let buffers = accountant.reserve(Category::Cache, plan.buffers as u64 * plan.buffer_bytes)?;
        let slots = accountant.reserve(Category::Cache, u64::from(plan.slots) * plan.slot_bytes)?;
        let source: Arc<dyn WeightSource> = match &options.source {
            Some(source) => Arc::clone(source),
            None => Arc::new(FileSource::open(gguf)?),
        };
        let vectors = Vectors::read(&*source, &layout, accountant)?;

        let turns = streamed_units(&plan);
        let mut ring_reads = Vec::with_capacity(turns.len());
        let mut expert_reads = Vec::new();
        let grid = grid_of(&layout);
        let mut units = Vec::with_capacity(layout.units().len());
        for (index, unit) in layout.units().iter().enumerate() {
            let mut state = UnitState::default();
            match unit.kind {
                // Read by row.
                UnitKind::Embedding => {}
                UnitKind::Expert { layer, expert } => {
                    let extents = Extents::of(&unit.tensors)?;
                    let at = |&at: &[usize; 2]| Place { pinned: false, at };
                    state.places = extents.at.iter().map(at).collect();
                    let key = grid
                        .key(layer, expert)
                        .ok_or_else(|| Error::internal("an expert out of the grid"))?;
                    state.moving = Moving::Cache(key);
                    expert_reads.push((key, extents));
                }
                _ => {
                    let pinned: &[bool] = plan.places.get(index).map_or(&[], |place| &place.pinned);
                    let part = |wanted: bool| {
                        let of = unit.tensors.iter().zip(pinned).filter(move |(_, is)| **is == wanted);
                        Extents::of(of.map(|(tensor, _)| tensor))
                    };
                    let (stays, moves) = (part(true)?, part(false)?);
                    let (mut stay, mut move_) = (stays.at.iter(), moves.at.iter());
                    state.places = pinned
                        .iter()
                        .map(|&pinned| Place {
                            pinned,
                            at: *if pinned { stay.next() } else { move_.next() }.unwrap_or(&[0; 2]),
                        })
                        .collect();
                    if stays.bytes > 0 {
                        let mut slab = Slab::new(stays.bytes, Category::Weights)?;
                        stays.read(&*source, &mut slab, View::Full)?;
                        state.pinned = Some(Arc::new(slab));
                    }
                    if moves.bytes > 0 {
                        state.moving = Moving::Ring(ring_reads.len());
                        ring_reads.push(moves);
                    }
                }
            }
            units.push(state);
        }

        let cells = ExpertGrid { layers: grid.layers.len(), experts: grid.experts };
        let policy = policy::by_name(options.policy, cells)
            .ok_or_else(|| Error::Unsupported { what: format!("the cache policy {:?}", options.policy) })?;
        let shared = Arc::new(Shared {
            source,
            state: Mutex::new(State {
                ring: Ring::new(ring_reads, plan.buffers, plan.buffer_bytes, buffers)?,
                experts: ExpertCache::new(
                    cells,
                    grid.layers,
                    expert_reads,
                    plan.slots,
                    plan.slot_bytes,
                    policy,
                    slots,
                ),
            }),
            arrived: Condvar::new(),
            work: Condvar::new(),
            stop: AtomicBool::new(false),
            counters: Counters::default(),
        });
        {
            let mut state = shared.lock();
            state.experts.prefetch = options.prefetch;
            state.experts.guesses.allow(options.guess && options.prefetch);
        }
        let mut store = StreamingStore {
            view: CurrentView::of(&layout),
            layout,
            vectors,
            plan,
            units,
            shared,
            threads: Vec::new(),
            prefetch: options.prefetch,
            guesses: options.guess && options.prefetch,
            _pinned: held,
        };
        if !turns.is_empty() {
            store.spawn("flash reader", ring::read_ahead)?;
        }
        if store.plan.slots > 0 {
            for _ in 0..options.lanes.clamp(1, 8) {
                store.spawn("flash lane", experts::read_missing)?;
            }
        }
        Ok(store)
    }

    fn spawn(&mut self, name: &str, work: fn(&Shared)) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || work(&shared));
        self.threads.push(thread.map_err(|error| Error::internal(format!("cannot start a lane: {error}")))?);
        Ok(())
    }

    /// A guard has let its unit go.
    pub(super) fn release(&self, id: UnitId) {
        match self.units.get(id.index()).map(|unit| unit.moving) {
            Some(Moving::Ring(turn)) => self.shared.lock().ring.release(turn),
            Some(Moving::Cache(key)) => self.shared.lock().experts.release(key),
            Some(Moving::Nothing) | None => return,
        }
        self.shared.work.notify_all();
    }

    fn unit(&self, unit: UnitId) -> Result<&UnitState> {
        self.units.get(unit.index()).ok_or_else(|| Error::internal(format!("no {unit:?}")))
    }
}

impl Drop for StreamingStore {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        // Under the lock, so that no lane is between looking at the flag and going to sleep.
        drop(self.shared.lock());
        self.shared.work.notify_all();
        // At most one read long.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

impl WeightStore for StreamingStore {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn acquire(&self, id: UnitId) -> Result<UnitGuard<'_>> {
        let unit = self.unit(id)?;
        let moving = match unit.moving {
            Moving::Nothing => None,
            Moving::Ring(turn) => Some(ring::take(&self.shared, turn)?),
            Moving::Cache(key) => Some(experts::take(&self.shared, key)?),
        };
        Ok(UnitGuard::held(
            (id, self.layout.unit(id)?, self.view.get()),
            unit.pinned.clone(),
            moving,
            &unit.places,
            self,
        ))
    }

    fn row(&self, tensor: TensorRef, row: usize, out: &mut [f32]) -> Result<()> {
        let info = self.layout.unit(tensor.unit())?.tensor(tensor)?;
        let wrong = || Error::internal(format!("row {row} of tensor {:?}", info.name));
        if row >= info.rows || out.len() != info.cols {
            return Err(wrong());
        }
        let view = self.view.get();
        let format = info.format_in(view);
        // Of interleaved rows, all that lie together are read.
        let together = format.interleaved;
        let mut data = vec![0u8; format.row_bytes(info.cols).ok_or_else(wrong)? * together];
        let planes = [(info.shard, info.offset, info.bytes)];
        let fine = info.fine_in(view).map(|fine| (fine.shard, fine.offset, fine.bytes));
        let mut rest = data.as_mut_slice();
        for (shard, offset, bytes) in planes.into_iter().chain(fine) {
            let bytes = bytes / info.rows as u64 * together as u64;
            let (part, tail) = rest.split_at_mut_checked(bytes as usize).ok_or_else(wrong)?;
            let at = offset + (row / together) as u64 * bytes;
            read_needed(&*self.shared.source, shard, at, part, part.len())?;
            rest = tail;
        }
        if together > 1 {
            data = format.row_of_sixteen(&data, row % together);
        }
        format.decode_row(&data, out);
        Ok(())
    }

    fn vector(&self, vector: VectorRef) -> Result<&[f32]> {
        self.vectors.get(vector)
    }

    fn hint(&self, upcoming: &[UnitId]) {
        let keys = upcoming.iter().filter_map(|&unit| match self.units.get(unit.index())?.moving {
            Moving::Cache(key) => Some(key),
            _ => None,
        });
        self.shared.lock().experts.hint(keys);
        self.shared.work.notify_all();
    }

    fn wants_guesses(&self) -> bool {
        self.guesses && self.shared.lock().experts.wants_guesses()
    }

    fn guess(&self, probable: &[UnitId]) {
        let keys = probable.iter().filter_map(|&unit| match self.units.get(unit.index())?.moving {
            Moving::Cache(key) => Some(key),
            _ => None,
        });
        if self.shared.lock().experts.guess(keys) {
            self.shared.work.notify_all();
        }
    }

    fn is_ready(&self, unit: UnitId) -> bool {
        match self.units.get(unit.index()).map(|unit| unit.moving) {
            Some(Moving::Ring(turn)) => self.shared.lock().ring.is_ready(turn),
            Some(Moving::Cache(key)) => self.shared.lock().experts.is_ready(key),
            Some(Moving::Nothing) | None => true,
        }
    }

    fn routed(&self, layer: usize, chosen: &[u16], probabilities: &[f32]) {
        let probabilities = (!probabilities.is_empty()).then_some(probabilities);
        self.shared.lock().experts.routed(|layer| Visit { layer, chosen, probabilities }, layer);
    }

    fn set_view(&self, view: View) {
        if self.view.set(view) {
            self.shared.lock().ring.set_view(self.view.get());
            self.shared.work.notify_all();
        }
    }

    fn begin_pass(&self) -> Result<()> {
        self.shared.source.check()?;
        self.shared.counters.passes.fetch_add(1, Ordering::Relaxed);
        self.shared.lock().experts.settle()
    }

    fn plan(&self) -> Option<&ResidencyPlan> {
        Some(&self.plan)
    }

    /// Never smaller than one layer needs, nor larger than planned.
    fn resize_cache(&self, bytes: u64) -> u64 {
        self.shared.lock().experts.resize(bytes)
    }

    fn read_ahead(&self, on: bool) {
        self.shared.lock().experts.prefetch = on && self.prefetch;
    }

    fn cache_bytes(&self) -> u64 {
        self.shared.lock().experts.bytes()
    }

    fn flash(&self) -> FlashStats {
        let Counters { bytes, reads, expert_uses, expert_misses, waited_nanos, passes } =
            &self.shared.counters;
        let (guesses, right_guesses) = self.shared.lock().experts.guesses.counts();
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        FlashStats {
            bytes: get(bytes),
            reads: get(reads),
            expert_uses: get(expert_uses),
            expert_misses: get(expert_misses),
            guesses,
            right_guesses,
            waited_nanos: get(waited_nanos),
            passes: get(passes),
        }
    }
}

/// Time that a caller waits is time that reading was not hidden.
struct Waited<'a>(&'a Counters, Instant);

impl<'a> Waited<'a> {
    fn begin(shared: &'a Shared) -> Self {
        Waited(&shared.counters, Instant::now())
    }
}

impl Drop for Waited<'_> {
    fn drop(&mut self) {
        let nanos = u64::try_from(self.1.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.0.waited_nanos.fetch_add(nanos, Ordering::Relaxed);
    }
}

/// The layers that have experts, in order.
struct Grid {
    layers: Vec<usize>,
    experts: usize,
}

impl Grid {
    fn key(&self, layer: usize, expert: usize) -> Option<super::ExpertKey> {
        let layer = self.layers.binary_search(&layer).ok()?;
        Some(super::ExpertKey { layer: u32::try_from(layer).ok()?, expert: u32::try_from(expert).ok()? })
    }
}

fn grid_of(layout: &Layout) -> Grid {
    let mut grid = Grid { layers: Vec::new(), experts: 0 };
    for unit in layout.units() {
        if let UnitKind::Expert { layer, expert } = unit.kind {
            grid.layers.push(layer);
            grid.experts = grid.experts.max(expert + 1);
        }
    }
    grid.layers.sort_unstable();
    grid.layers.dedup();
    grid
}
