//! Everything fits: weights are the clean pages of the mapped file, without a copy.

use super::vectors::Vectors;
use super::{
    CurrentView, FileSource, Layout, TensorRef, UnitGuard, UnitId, VectorRef, View, WeightStore, matrix,
};
use crate::memory::Accountant;
use crate::{Error, Result};
use pannier_gguf::Gguf;
use std::sync::Arc;

/// The weights of a mapped file.
#[derive(Debug)]
pub struct MappedStore {
    gguf: Arc<Gguf>,
    layout: Layout,
    vectors: Vectors,
    view: CurrentView,
    /// Watches the files; `None` for a model made from bytes.
    files: Option<FileSource>,
}

impl MappedStore {
    /// Decodes the small tensors; the matrices are not touched.
    ///
    /// # Errors
    /// [`Error::OutOfBudget`], [`Error::OutOfMemory`].
    pub fn new(gguf: Arc<Gguf>, layout: Layout, accountant: &Accountant) -> Result<MappedStore> {
        // Before the first page of data is touched: what is read by then stays in small pages.
        gguf.expect_reuse();
        let vectors = Vectors::new(&gguf, &layout, accountant)?;
        let files = FileSource::watch(&gguf)?;
        let view = CurrentView::of(&layout);
        Ok(MappedStore { gguf, layout, vectors, view, files })
    }
}

impl WeightStore for MappedStore {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn acquire(&self, unit: UnitId) -> Result<UnitGuard<'_>> {
        Ok(UnitGuard::mapped((unit, self.layout.unit(unit)?, self.view.get()), self.gguf.shards()))
    }

    fn row(&self, tensor: TensorRef, row: usize, out: &mut [f32]) -> Result<()> {
        let info = self.layout.unit(tensor.unit())?.tensor(tensor)?;
        let matrix = matrix(info, self.view.get(), self.gguf.shards())?;
        if row >= matrix.rows() || out.len() != matrix.cols() {
            return Err(Error::internal(format!("row {row} of tensor {:?}", info.name)));
        }
        matrix.decode_row(row, out);
        Ok(())
    }

    fn vector(&self, vector: VectorRef) -> Result<&[f32]> {
        self.vectors.get(vector)
    }

    fn set_view(&self, view: View) {
        self.view.set(view);
    }

    /// A file that another process truncates takes the mapped pages away, and touching them would stop this process. Looking
    /// before each pass does not close that window, but makes it one pass long; streaming has none.
    fn begin_pass(&self) -> Result<()> {
        self.files.as_ref().map_or(Ok(()), FileSource::check)
    }
}
