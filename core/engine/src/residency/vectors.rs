//! Norms, biases, tables of factors: small, needed in every pass, decoded once.

use super::source::{WeightSource, read_needed};
use super::{Layout, VectorRef, VectorTensor};
use crate::memory::{Accountant, Category, Reservation, zeroed};
use crate::{Error, Result};
use pannier_gguf::Gguf;

/// All small tensors of a model as floats.
#[derive(Debug)]
pub(super) struct Vectors {
    /// One after the other.
    values: Vec<f32>,
    /// Where each of them starts; one entry more than there are tensors.
    starts: Vec<usize>,
    _held: Reservation,
}

impl Vectors {
    /// Decodes them from the mapping of the file.
    pub fn new(gguf: &Gguf, layout: &Layout, accountant: &Accountant) -> Result<Vectors> {
        Self::decode(layout, accountant, |vector, decode| {
            let bytes = gguf.shard(vector.shard).and_then(|shard| {
                let start = usize::try_from(vector.offset).ok()?;
                shard.bytes().get(start..start.checked_add(usize::try_from(vector.bytes).ok()?)?)
            });
            decode(bytes.unwrap_or_default())
        })
    }

    /// Reads and decodes them. Touching their pages in the mapping would make the system read megabytes around each.
    pub fn read(source: &dyn WeightSource, layout: &Layout, accountant: &Accountant) -> Result<Vectors> {
        let mut buffer = Vec::new();
        Self::decode(layout, accountant, |vector, decode| {
            let bytes =
                usize::try_from(vector.bytes).map_err(|_| Error::internal("sizes of vectors overflow"))?;
            buffer.resize(bytes, 0);
            read_needed(source, vector.shard, vector.offset, &mut buffer, bytes)?;
            decode(&buffer)
        })
    }

    fn decode(
        layout: &Layout,
        accountant: &Accountant,
        mut fetch: impl FnMut(&VectorTensor, &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>,
    ) -> Result<Vectors> {
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
            fetch(vector, &mut |bytes| {
                if vector.format.row_bytes(vector.len) != Some(bytes.len()) {
                    return Err(Error::internal(format!("tensor {:?} is outside its file", vector.name)));
                }
                vector.format.decode_row(bytes, out);
                Ok(())
            })?;
        }
        Ok(Vectors { values, starts, _held: held })
    }

    pub fn get(&self, vector: VectorRef) -> Result<&[f32]> {
        let index = vector.index();
        self.starts
            .get(index)
            .zip(self.starts.get(index + 1))
            .and_then(|(&start, &end)| self.values.get(start..end))
            .ok_or_else(|| Error::internal(format!("no {vector:?}")))
    }
}
