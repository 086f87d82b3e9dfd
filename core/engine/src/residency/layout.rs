//! Units in the order in which a pass needs them, and the tensors in them.

use crate::{Error, Result};
use pannier_kernels::Format;

/// A unit, as an index into the pass-ordered list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UnitId(u32);

impl UnitId {
    /// The index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A matrix of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TensorRef {
    unit: UnitId,
    slot: u32,
}

impl TensorRef {
    /// The unit it is in.
    pub fn unit(self) -> UnitId {
        self.unit
    }

    pub(super) fn slot(self) -> usize {
        self.slot as usize
    }
}

/// A small tensor that is decoded once and stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VectorRef(u32);

impl VectorRef {
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

/// What a unit is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnitKind {
    /// Token embeddings; read by row, never whole.
    Embedding,
    /// Everything but the feed-forward part of a layer.
    Attention {
        /// The layer.
        layer: usize,
    },
    /// The feed-forward part of a layer.
    Ffn {
        /// The layer.
        layer: usize,
    },
    /// One expert of a layer: gate, up and down.
    Expert {
        /// The layer.
        layer: usize,
        /// The expert.
        expert: usize,
    },
    /// The output head.
    Output,
}

/// A matrix in a file.
#[derive(Clone, Debug)]
pub struct UnitTensor {
    /// Its name.
    pub name: String,
    /// Its block format; of a matrix with two planes, that of the first alone.
    pub format: &'static Format,
    /// Rows (outputs).
    pub rows: usize,
    /// Columns (inputs).
    pub cols: usize,
    /// Which file of a split model it is in.
    pub shard: usize,
    /// Where its data starts, in bytes from the start of that file.
    pub offset: u64,
    /// How many bytes it has, without a second plane.
    pub bytes: u64,
    /// The second plane, if there is one and it may be used.
    pub fine: Option<FinePlane>,
}

/// The second plane of a matrix in nested precision.
#[derive(Clone, Copy, Debug)]
pub struct FinePlane {
    /// The block format of both planes together.
    pub format: &'static Format,
    /// Which file of a split model it is in.
    pub shard: usize,
    /// Where its data starts, in bytes from the start of that file.
    pub offset: u64,
    /// How many bytes it has.
    pub bytes: u64,
}

/// Which planes of a model's matrices a pass uses. Matrices with one plane are the same in both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum View {
    /// Only the first: about three bits per weight.
    Low,
    /// All: about five.
    #[default]
    Full,
}

impl std::fmt::Display for View {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            View::Low => "low",
            View::Full => "full",
        })
    }
}

impl UnitTensor {
    /// Bytes of the planes that a view uses.
    pub fn bytes_in(&self, view: View) -> u64 {
        self.bytes + self.fine_in(view).map_or(0, |fine| fine.bytes)
    }

    /// The block format that a view has.
    pub fn format_in(&self, view: View) -> &'static Format {
        self.fine_in(view).map_or(self.format, |fine| fine.format)
    }

    /// The second plane, if a view uses it.
    pub fn fine_in(&self, view: View) -> Option<FinePlane> {
        self.fine.filter(|_| view == View::Full)
    }
}

/// A vector in a file.
#[derive(Clone, Debug)]
pub struct VectorTensor {
    /// Its name.
    pub name: String,
    /// Its block format.
    pub format: &'static Format,
    /// Its length.
    pub len: usize,
    /// Which file of a split model it is in.
    pub shard: usize,
    /// Where its data starts, in bytes from the start of that file.
    pub offset: u64,
    /// How many bytes it has.
    pub bytes: u64,
}

/// Tensors that are used, and so read, together.
#[derive(Clone, Debug)]
pub struct Unit {
    /// What for.
    pub kind: UnitKind,
    /// Its matrices.
    pub tensors: Vec<UnitTensor>,
}

impl Unit {
    /// Bytes of all its matrices, in all planes.
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.bytes_in(View::Full)).sum()
    }

    pub(crate) fn tensor(&self, tensor: TensorRef) -> Result<&UnitTensor> {
        self.tensors
            .get(tensor.slot as usize)
            .ok_or_else(|| Error::internal(format!("no {tensor:?} in {:?}", self.kind)))
    }
}

/// All weights of a model, without their bytes.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    units: Vec<Unit>,
    vectors: Vec<VectorTensor>,
}

impl Layout {
    /// The units, in pass order.
    pub fn units(&self) -> &[Unit] {
        &self.units
    }

    /// Their ids, in pass order.
    pub fn ids(&self) -> impl Iterator<Item = UnitId> + use<> {
        (0..self.units.len() as u32).map(UnitId)
    }

    /// Bytes of the matrices of all units.
    pub fn bytes(&self) -> u64 {
        self.units.iter().map(Unit::bytes).sum()
    }

    /// Whether some matrix is stored in planes, of which a low view sees the first only.
    pub fn has_planes(&self) -> bool {
        self.units.iter().flat_map(|unit| &unit.tensors).any(|tensor| !tensor.format.is_in_files())
    }

    /// Whether some matrix has a second plane.
    pub fn is_nested(&self) -> bool {
        self.fine_bytes() > 0
    }

    /// Bytes of all second planes.
    pub fn fine_bytes(&self) -> u64 {
        let tensors = self.units.iter().flat_map(|unit| &unit.tensors);
        tensors.filter_map(|tensor| tensor.fine).map(|fine| fine.bytes).sum()
    }

    /// The small tensors.
    pub fn vectors(&self) -> &[VectorTensor] {
        &self.vectors
    }

    /// A unit.
    ///
    /// # Errors
    /// Only for mistakes of the caller.
    pub fn unit(&self, id: UnitId) -> Result<&Unit> {
        self.units.get(id.index()).ok_or_else(|| Error::internal(format!("no {id:?}")))
    }

    /// A matrix.
    ///
    /// # Errors
    /// Only for mistakes of the caller.
    pub fn tensor(&self, tensor: TensorRef) -> Result<&UnitTensor> {
        self.unit(tensor.unit)?.tensor(tensor)
    }

    /// Adds a unit at the end of the pass.
    pub fn add_unit(&mut self, kind: UnitKind) -> UnitId {
        self.units.push(Unit { kind, tensors: Vec::new() });
        UnitId((self.units.len() - 1) as u32)
    }

    /// Adds a matrix to a unit.
    ///
    /// # Errors
    /// Only for mistakes of the caller: there is no such unit.
    pub fn add_matrix(&mut self, unit: UnitId, tensor: UnitTensor) -> Result<TensorRef> {
        let tensors = &mut self
            .units
            .get_mut(unit.index())
            .ok_or_else(|| Error::internal(format!("no {unit:?}")))?
            .tensors;
        tensors.push(tensor);
        Ok(TensorRef { unit, slot: (tensors.len() - 1) as u32 })
    }

    /// Adds a small tensor.
    pub fn add_vector(&mut self, tensor: VectorTensor) -> VectorRef {
        self.vectors.push(tensor);
        VectorRef((self.vectors.len() - 1) as u32)
    }
}
