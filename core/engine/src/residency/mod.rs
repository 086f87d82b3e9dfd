//! Where the weights live.
//!
//! A forward pass goes through *units*: the embedding, the attention block and the feed-forward block of each layer, the
//! output head. It acquires one, computes with it, and lets it go; whether the unit's bytes were mapped, pinned or are being
//! read from flash is decided here and visible nowhere else. Norms and biases are small: they are decoded once and stay.

mod directory;
mod layout;
mod mapped;
pub mod policy;
mod replay;
mod trace;

pub use directory::{Admission, ExpertDirectory, ExpertKey};
pub use layout::{Layout, TensorRef, Unit, UnitId, UnitKind, UnitTensor, VectorRef, VectorTensor};
pub use mapped::MappedStore;
pub use replay::{Replayed, replay};
pub use trace::{RouteTrace, RouteVisit, TraceError};

use crate::{Error, Result};
use pannier_gguf::Shard;
use pannier_kernels::Matrix;

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

    /// Whether [`WeightStore::acquire`] would not wait. Experts that are there can be computed while others are being read.
    fn is_ready(&self, unit: UnitId) -> bool {
        let _ = unit;
        true
    }

    /// A router has chosen, for one token: what a cache learns from. `probabilities` has one entry per expert of the layer.
    fn routed(&self, layer: usize, chosen: &[u16], probabilities: &[f32]) {
        let _ = (layer, chosen, probabilities);
    }

    /// A forward pass begins. Called between tokens, so this is where a store changes its size.
    ///
    /// # Errors
    /// The model's file has changed under us.
    fn begin_pass(&self) -> Result<()> {
        Ok(())
    }
}

/// A unit that is there, as long as this lives.
#[derive(Debug)]
pub struct UnitGuard<'a> {
    id: UnitId,
    unit: &'a Unit,
    shards: &'a [Shard],
}

impl UnitGuard<'_> {
    /// A matrix of this unit.
    ///
    /// # Errors
    /// Only for mistakes of the caller: the tensor is of another unit.
    pub fn matrix(&self, tensor: TensorRef) -> Result<Matrix<'_>> {
        if tensor.unit() != self.id {
            return Err(Error::internal(format!("{tensor:?} is not in {:?}", self.unit.kind)));
        }
        let info = self.unit.tensor(tensor)?;
        matrix(info, self.shards)
    }
}

/// A matrix as it lies in the mapping of its file.
fn matrix<'a>(info: &UnitTensor, shards: &'a [Shard]) -> Result<Matrix<'a>> {
    let bytes = shards.get(info.shard).and_then(|shard| {
        let start = usize::try_from(info.offset).ok()?;
        shard.bytes().get(start..start.checked_add(usize::try_from(info.bytes).ok()?)?)
    });
    let bytes =
        bytes.ok_or_else(|| Error::internal(format!("tensor {:?} is outside its file", info.name)))?;
    Matrix::new(info.format, info.rows, info.cols, bytes)
        .map_err(|error| Error::internal(format!("tensor {:?}: {error}", info.name)))
}
