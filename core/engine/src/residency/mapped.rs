//! Everything fits: weights are the clean pages of the mapped file, without a copy.

use super::{Layout, TensorRef, UnitGuard, UnitId, VectorRef, WeightStore, matrix};
use crate::memory::{Accountant, Category, Reservation, zeroed};
use crate::{Error, Result};
use pannier_gguf::Gguf;
use std::sync::Arc;

/// The weights of a mapped file.
#[derive(Debug)]
pub struct MappedStore {
    gguf: Arc<Gguf>,
    layout: Layout,
    /// All small tensors, one after the other.
    values: Vec<f32>,
    /// Where each of them starts; one entry more than there are tensors.
    starts: Vec<usize>,
    _held: Reservation,
}

impl MappedStore {
    /// Decodes the small tensors; the matrices are not touched.
    ///
    /// # Errors
    /// [`Error::OutOfBudget`], [`Error::OutOfMemory`].
    pub fn new(gguf: Arc<Gguf>, layout: Layout, accountant: &Accountant) -> Result<MappedStore> {
        let mut starts = Vec::with_capacity(layout.vectors().len() + 1);
        let mut len = 0usize;
        starts.push(0);
        for vector in layout.vectors() {
            len = len.checked_add(vector.len).ok_or_else(|| Error::internal("sizes of vectors overflow"))?;
            starts.push(len);
        }
        let held = accountant.reserve(Category::Weights, (len as u64).saturating_mul(4))?;
        let mut values = zeroed::<f32>(len, Category::Weights)?;
        let mut rest = values.as_mut_slice();
        for vector in layout.vectors() {
            let (out, tail) = rest.split_at_mut(vector.len);
            rest = tail;
            let bytes = gguf.shard(vector.shard).and_then(|shard| {
                let start = usize::try_from(vector.offset).ok()?;
                shard.bytes().get(start..start.checked_add(usize::try_from(vector.bytes).ok()?)?)
            });
            match bytes {
                Some(bytes) if vector.format.row_bytes(vector.len) == Some(bytes.len()) => {
                    vector.format.decode_row(bytes, out);
                }
                _ => return Err(Error::internal(format!("tensor {:?} is outside its file", vector.name))),
            }
        }
        Ok(MappedStore { gguf, layout, values, starts, _held: held })
    }
}

impl WeightStore for MappedStore {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn acquire(&self, unit: UnitId) -> Result<UnitGuard<'_>> {
        Ok(UnitGuard { id: unit, unit: self.layout.unit(unit)?, shards: self.gguf.shards() })
    }

    fn row(&self, tensor: TensorRef, row: usize, out: &mut [f32]) -> Result<()> {
        let info = self.layout.unit(tensor.unit())?.tensor(tensor)?;
        let matrix = matrix(info, self.gguf.shards())?;
        if row >= matrix.rows() || out.len() != matrix.cols() {
            return Err(Error::internal(format!("row {row} of tensor {:?}", info.name)));
        }
        matrix.format().decode_row(matrix.row(row), out);
        Ok(())
    }

    fn vector(&self, vector: VectorRef) -> Result<&[f32]> {
        let index = vector.index();
        self.starts
            .get(index)
            .zip(self.starts.get(index + 1))
            .and_then(|(&start, &end)| self.values.get(start..end))
            .ok_or_else(|| Error::internal(format!("no {vector:?}")))
    }
}
