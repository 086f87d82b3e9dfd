//! From the tensor directory of a file to units: every tensor that an architecture needs, with its shape checked.

use super::precision::Role;
use crate::residency::{Layout, TensorRef, UnitId, UnitKind, UnitTensor, VectorRef, VectorTensor};
use crate::{Error, Result};
use pannier_gguf::{Gguf, TensorInfo};
use pannier_kernels::{Format, format};

/// A product that a pass computes: what its activations look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Product {
    /// What for.
    pub role: Role,
    /// Columns of the activations.
    pub cols: usize,
    /// Whether the weights are quantised.
    pub quantised: bool,
}

/// Collects the tensors of a model. Reads the directory only, no weights.
#[derive(Debug)]
pub struct Builder<'a> {
    gguf: &'a Gguf,
    layout: Layout,
    products: Vec<Product>,
}

impl<'a> Builder<'a> {
    /// Nothing collected yet.
    pub fn new(gguf: &'a Gguf) -> Self {
        Builder { gguf, layout: Layout::default(), products: Vec::new() }
    }

    /// What was collected.
    pub fn finish(self) -> (Layout, Vec<Product>) {
        (self.layout, self.products)
    }

    /// The next unit of the pass.
    pub fn unit(&mut self, kind: UnitKind) -> UnitId {
        self.layout.add_unit(kind)
    }

    /// Whether the file has a tensor.
    pub fn has(&self, name: &str) -> bool {
        self.gguf.tensor(name).is_some()
    }

    /// Rows of a tensor whose number no hyperparameter says: the vocabulary.
    ///
    /// # Errors
    /// It is absent, no matrix of `cols` columns, or absurdly long.
    pub fn rows(&self, name: &str, cols: usize) -> Result<usize> {
        let expected = vec![cols as u64, 0];
        let Some(tensor) = self.gguf.tensor(name) else {
            return Err(Error::MissingTensor { name: name.to_owned(), expected });
        };
        match *tensor.dims.as_slice() {
            [found, rows] if found == cols as u64 && rows <= i32::MAX as u64 => Ok(rows as usize),
            _ => Err(Error::TensorShape { name: name.to_owned(), expected, found: tensor.dims.clone() }),
        }
    }

    fn find(&self, name: &str, expected: &[usize]) -> Result<(&'a TensorInfo, &'static Format)> {
        let expected: Vec<u64> = expected.iter().map(|&dim| dim as u64).collect();
        let Some(tensor) = self.gguf.tensor(name) else {
            return Err(Error::MissingTensor { name: name.to_owned(), expected });
        };
        // Trailing dimensions of 1 say nothing.
        let mut dims = tensor.dims.as_slice();
        while let [rest @ .., 1] = dims
            && rest.len() >= expected.len()
        {
            dims = rest;
        }
        if dims != expected {
            return Err(Error::TensorShape { name: name.to_owned(), expected, found: tensor.dims.clone() });
        }
        let format = format(tensor.ty.id()).ok_or_else(|| Error::UnsupportedType {
            tensor: name.to_owned(),
            ty: tensor.ty.name().to_owned(),
        })?;
        Ok((tensor, format))
    }

    /// A matrix of `rows` x `cols` in a unit; `role` is `None` if it is only read by row.
    ///
    /// # Errors
    /// It is absent, has another shape, or a type without kernels.
    pub fn matrix(
        &mut self,
        unit: UnitId,
        name: &str,
        rows: usize,
        cols: usize,
        role: Option<Role>,
    ) -> Result<TensorRef> {
        let (tensor, format) = self.find(name, &[cols, rows])?;
        if let Some(role) = role {
            let product = Product { role, cols, quantised: format.is_quantised() };
            if !self.products.contains(&product) {
                self.products.push(product);
            }
        }
        self.layout.add_matrix(
            unit,
            UnitTensor {
                name: name.to_owned(),
                format,
                rows,
                cols,
                shard: tensor.shard,
                offset: tensor.offset,
                bytes: tensor.bytes,
            },
        )
    }

    /// A vector of `len` values, always resident.
    ///
    /// # Errors
    /// It is absent, has another shape, or a type without kernels.
    pub fn vector(&mut self, name: &str, len: usize) -> Result<VectorRef> {
        let (tensor, format) = self.find(name, &[len])?;
        Ok(self.layout.add_vector(VectorTensor {
            name: name.to_owned(),
            format,
            len,
            shard: tensor.shard,
            offset: tensor.offset,
            bytes: tensor.bytes,
        }))
    }

    /// [`Builder::vector`] if the file has it.
    ///
    /// # Errors
    /// It has another shape, or a type without kernels.
    pub fn maybe_vector(&mut self, name: &str, len: usize) -> Result<Option<VectorRef>> {
        if self.has(name) { self.vector(name, len).map(Some) } else { Ok(None) }
    }
}
