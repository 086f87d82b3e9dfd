//! Where the weights live.
//!
//! A forward pass goes through *units*: the embedding, the attention block and the feed-forward block of each layer, the
//! output head. It acquires one, computes with it, and lets it go; whether the unit's bytes were mapped, pinned or are being
//! read from flash is decided here and visible nowhere else. Norms and biases are small: they are decoded once and stay.

mod directory;
mod extent;
mod layout;
mod mapped;
mod open;
mod plan;
pub mod policy;
mod replay;
mod scan;
mod source;
mod streaming;
mod trace;
mod vectors;

pub use directory::{Admission, ExpertDirectory, ExpertKey};
pub use layout::{
    FinePlane, Layout, TensorRef, Unit, UnitId, UnitKind, UnitTensor, VectorRef, VectorTensor, View,
};
pub use mapped::MappedStore;
pub use open::open;
pub use plan::{ResidencyPlan, ResidencyWish, Shortfall, UnitPlace};
pub use replay::{Replayed, replay};
pub use scan::{ScanPolicy, Scanned, scan};
pub use source::{FileSource, WeightSource};
pub use streaming::{StreamOptions, StreamingStore};
pub use trace::{RouteTrace, RouteVisit, TraceError};

use crate::{Error, Result};
pub(crate) use extent::{Extents, Slab};
use pannier_gguf::Shard;
use pannier_kernels::Matrix;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use streaming::Place;

/// Gives out the weights of one model.
pub trait WeightStore: Send + Sync + std::fmt::Debug {
    /// All units and vectors.
    fn layout(&self) -> &Layout;

    /// The bytes of a unit; blocks until they are there. The guard keeps them.
    ///
    /// # Errors
    /// What reading may bring.
    fn acquire(&self, unit: UnitId) -> Result<UnitGuard<'_>>;

    /// Decodes one row of a matrix; for embeddings, of which a step reads few rows.
    ///
    /// # Errors
    /// What reading may bring.
    fn row(&self, tensor: TensorRef, row: usize, out: &mut [f32]) -> Result<()>;

    /// A norm, a bias, a table of factors: always resident.
    ///
    /// # Errors
    /// Only for mistakes of the caller.
    fn vector(&self, vector: VectorRef) -> Result<&[f32]>;

    /// Tells which units come next, in this order: those that are not there are read meanwhile. Replaces what was told before.
    /// The mapping of a file needs no telling.
    fn hint(&self, upcoming: &[UnitId]) {
        let _ = upcoming;
    }

    /// Whether [`WeightStore::guess`] may be of use now.
    fn wants_guesses(&self) -> bool {
        false
    }

    /// Tells which units will probably come after those of the last hint. They are read when there is nothing else to read.
    fn guess(&self, probable: &[UnitId]) {
        let _ = probable;
    }

    /// Whether [`WeightStore::acquire`] would not wait. Experts that are there can be computed while others are being read.
    fn is_ready(&self, unit: UnitId) -> bool {
        let _ = unit;
        true
    }

    /// A router has chosen, for one token: what a cache learns from. `probabilities` has one entry per expert of the layer.
    fn routed(&self, layer: usize, chosen: &[u16], probabilities: &[f32]) {
        let _ = (layer, chosen, probabilities);
    }

    /// The planes that units have from now on, of a model in nested precision. Called between passes.
    /// Without the fine planes there is one view, which is both.
    fn set_view(&self, view: View) {
        let _ = view;
    }

    /// A forward pass begins. Called between tokens, so this is where a store changes its size.
    ///
    /// # Errors
    /// The model's file has changed under us.
    fn begin_pass(&self) -> Result<()> {
        Ok(())
    }

    /// What was read so far.
    fn flash(&self) -> FlashStats {
        FlashStats::default()
    }

    /// Asks for an expert cache of this size, from the next pass on; the size that it will have.
    fn resize_cache(&self, bytes: u64) -> u64 {
        let _ = bytes;
        0
    }

    /// Whether experts are read before they are acquired, from the next hint on. What every pass reads is read ahead always.
    fn read_ahead(&self, on: bool) {
        let _ = on;
    }

    /// Bytes of the expert cache.
    fn cache_bytes(&self) -> u64 {
        0
    }

    /// What was decided when loading.
    fn plan(&self) -> Option<&ResidencyPlan> {
        None
    }
}

/// What was read while running, since the model was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlashStats {
    /// Bytes read.
    pub bytes: u64,
    /// Reads.
    pub reads: u64,
    /// Experts acquired.
    pub expert_uses: u64,
    /// Experts read because they were needed.
    pub expert_misses: u64,
    /// Experts read because they would probably be needed, and those of them that then were.
    pub guesses: u64,
    /// See [`FlashStats::guesses`].
    pub right_guesses: u64,
    /// How long computing waited for reading.
    pub waited_nanos: u64,
    /// Forward passes begun.
    pub passes: u64,
}

impl FlashStats {
    /// What happened since `before`.
    #[must_use]
    pub fn since(&self, before: &FlashStats) -> FlashStats {
        FlashStats {
            bytes: self.bytes.saturating_sub(before.bytes),
            reads: self.reads.saturating_sub(before.reads),
            expert_uses: self.expert_uses.saturating_sub(before.expert_uses),
            expert_misses: self.expert_misses.saturating_sub(before.expert_misses),
            guesses: self.guesses.saturating_sub(before.guesses),
            right_guesses: self.right_guesses.saturating_sub(before.right_guesses),
            waited_nanos: self.waited_nanos.saturating_sub(before.waited_nanos),
            passes: self.passes.saturating_sub(before.passes),
        }
    }

    /// Both together.
    #[must_use]
    pub fn plus(&self, other: &FlashStats) -> FlashStats {
        FlashStats {
            bytes: self.bytes + other.bytes,
            reads: self.reads + other.reads,
            expert_uses: self.expert_uses + other.expert_uses,
            expert_misses: self.expert_misses + other.expert_misses,
            guesses: self.guesses + other.guesses,
            right_guesses: self.right_guesses + other.right_guesses,
            waited_nanos: self.waited_nanos + other.waited_nanos,
            passes: self.passes + other.passes,
        }
    }

    /// The share of expert uses that needed no read; `None` without experts.
    pub fn expert_hit_rate(&self) -> Option<f64> {
        (self.expert_uses > 0)
            .then(|| 1.0 - self.expert_misses.min(self.expert_uses) as f64 / self.expert_uses as f64)
    }
}

/// A unit that is there, as long as this lives.
pub struct UnitGuard<'a> {
    id: UnitId,
    unit: &'a Unit,
    view: View,
    bytes: UnitBytes<'a>,
}

enum UnitBytes<'a> {
    Mapped(&'a [Shard]),
    Held {
        pinned: Option<Arc<Slab>>,
        moving: Option<Arc<Slab>>,
        /// One for each tensor of the unit.
        places: &'a [Place],
        /// Learns when the moving part is let go.
        store: &'a StreamingStore,
    },
}

impl<'a> UnitGuard<'a> {
    fn mapped((id, unit, view): (UnitId, &'a Unit, View), shards: &'a [Shard]) -> Self {
        UnitGuard { id, unit, view, bytes: UnitBytes::Mapped(shards) }
    }

    fn held(
        (id, unit, view): (UnitId, &'a Unit, View),
        pinned: Option<Arc<Slab>>,
        moving: Option<Arc<Slab>>,
        places: &'a [Place],
        store: &'a StreamingStore,
    ) -> Self {
        UnitGuard { id, unit, view, bytes: UnitBytes::Held { pinned, moving, places, store } }
    }

    /// A matrix of this unit.
    ///
    /// # Errors
    /// Only for mistakes of the caller: the tensor is of another unit.
    pub fn matrix(&self, tensor: TensorRef) -> Result<Matrix<'_>> {
        if tensor.unit() != self.id {
            return Err(Error::internal(format!("{tensor:?} is not in {:?}", self.unit.kind)));
        }
        let info = self.unit.tensor(tensor)?;
        let (pinned, moving, places) = match &self.bytes {
            UnitBytes::Mapped(shards) => return matrix(info, self.view, shards),
            UnitBytes::Held { pinned, moving, places, .. } => (pinned, moving, places),
        };
        let bytes = places.get(tensor.slot()).and_then(|place| {
            let slab = if place.pinned { pinned } else { moving }.as_ref()?.bytes();
            let part = |at: usize, bytes: u64| slab.get(at..at.checked_add(usize::try_from(bytes).ok()?)?);
            let fine = info.fine_in(self.view).map_or(Some(&[][..]), |fine| part(place.at[1], fine.bytes))?;
            Some((part(place.at[0], info.bytes)?, fine))
        });
        let bytes = bytes.ok_or_else(|| Error::internal(format!("tensor {:?} is in no slab", info.name)))?;
        planes(info, self.view, bytes)
    }
}

impl Drop for UnitGuard<'_> {
    fn drop(&mut self) {
        if let UnitBytes::Held { moving, store, .. } = &mut self.bytes
            && moving.take().is_some()
        {
            // After the handle is gone: whoever gets the slab next must be its only owner.
            store.release(self.id);
        }
    }
}

impl std::fmt::Debug for UnitGuard<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UnitGuard")
            .field("id", &self.id)
            .field("kind", &self.unit.kind)
            .finish_non_exhaustive()
    }
}

/// A matrix as it lies in the mapping of its file.
fn matrix<'a>(info: &UnitTensor, view: View, shards: &'a [Shard]) -> Result<Matrix<'a>> {
    let part = |shard: usize, offset: u64, bytes: u64| {
        let start = usize::try_from(offset).ok()?;
        shards.get(shard)?.bytes().get(start..start.checked_add(usize::try_from(bytes).ok()?)?)
    };
    let low = part(info.shard, info.offset, info.bytes);
    let fine = info.fine_in(view).map_or(Some(&[][..]), |fine| part(fine.shard, fine.offset, fine.bytes));
    let bytes = low.zip(fine);
    planes(
        info,
        view,
        bytes.ok_or_else(|| Error::internal(format!("tensor {:?} is outside its file", info.name)))?,
    )
}

/// A matrix of these planes.
fn planes<'a>(info: &UnitTensor, view: View, (low, fine): (&'a [u8], &'a [u8])) -> Result<Matrix<'a>> {
    Matrix::planes(info.format_in(view), info.rows, info.cols, low, fine)
        .map_err(|error| Error::internal(format!("tensor {:?}: {error}", info.name)))
}

/// The view that a store's units have now.
#[derive(Debug)]
struct CurrentView {
    low: AtomicBool,
    /// Whether the fine planes are there.
    nested: bool,
}

impl CurrentView {
    /// Full, unless the fine planes were left out.
    fn of(layout: &Layout) -> CurrentView {
        CurrentView { low: AtomicBool::new(false), nested: layout.is_nested() }
    }

    fn get(&self) -> View {
        if self.low.load(Ordering::Relaxed) { View::Low } else { View::Full }
    }

    /// Whether it was another before. Without fine planes there is nothing to choose: what is there is all.
    fn set(&self, view: View) -> bool {
        let low = self.nested && view == View::Low;
        self.low.swap(low, Ordering::Relaxed) != low
    }
}
