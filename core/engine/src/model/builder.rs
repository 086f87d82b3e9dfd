//! From the tensor directory of a file to units: every tensor that an architecture needs, with its shape checked.

use super::blocks::Linear;
use super::precision::Role;
use crate::residency::{
    FinePlane, Layout, TensorRef, UnitId, UnitKind, UnitTensor, VectorRef, VectorTensor, View,
};
use crate::{Error, Result};
use pannier_gguf::interleaved::SUFFIX;
use pannier_gguf::nested::{FINE, LOW, VERSION, VERSION_KEY};
use pannier_gguf::{GgmlType, Gguf, TensorInfo};
use pannier_kernels::{Format, format, nested, nested_formats};

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

/// A tensor with a matrix per expert.
#[derive(Debug)]
pub(super) struct Stack {
    /// All matrices, as if they were one.
    whole: UnitTensor,
    count: u64,
}

/// Collects the tensors of a model. Reads the directory only, no weights.
#[derive(Debug)]
pub struct Builder<'a> {
    gguf: &'a Gguf,
    view: View,
    layout: Layout,
    products: Vec<Product>,
    roles: Vec<(TensorRef, Role)>,
    routers: Vec<RouterRef>,
}

/// The router of a layer, for those who want to know before the pass is there.
#[derive(Clone, Debug)]
pub(super) struct RouterRef {
    pub layer: usize,
    /// Where its weights are.
    pub unit: UnitId,
    pub router: Linear,
    /// Experts of a token.
    pub used: usize,
    /// The units of the experts.
    pub experts: Vec<UnitId>,
}

/// All that a builder has collected.
#[derive(Debug, Default)]
pub(super) struct Collected {
    pub layout: Layout,
    /// Each kind of product once.
    pub products: Vec<Product>,
    /// What each matrix that is multiplied with is for.
    pub roles: Vec<(TensorRef, Role)>,
    /// By ascending layer.
    pub routers: Vec<RouterRef>,
}

impl<'a> Builder<'a> {
    /// Nothing collected yet. Of matrices with two planes, the second is not looked at if the view needs none.
    pub fn new(gguf: &'a Gguf, view: View) -> Self {
        Builder {
            gguf,
            view,
            layout: Layout::default(),
            products: Vec::new(),
            roles: Vec::new(),
            routers: Vec::new(),
        }
    }

    /// What was collected.
    pub(super) fn finish(self) -> Collected {
        let mut routers = self.routers;
        routers.sort_by_key(|router| router.layer);
        Collected { layout: self.layout, products: self.products, roles: self.roles, routers }
    }

    /// A layer has a router.
    pub(super) fn add_router(&mut self, router: RouterRef) {
        self.routers.push(router);
    }

    /// The next unit of the pass.
    pub fn unit(&mut self, kind: UnitKind) -> UnitId {
        self.layout.add_unit(kind)
    }

    /// Whether the file has a tensor: as it is, with its rows interleaved, or in planes.
    pub fn has(&self, name: &str) -> bool {
        self.gguf.tensor(name).is_some()
            || [SUFFIX, LOW].iter().any(|suffix| self.gguf.tensor(&format!("{name}{suffix}")).is_some())
    }

    /// Rows of a tensor whose number no hyperparameter says: the vocabulary.
    ///
    /// # Errors
    /// It is absent, no matrix of `cols` columns, or absurdly long.
    pub fn rows(&self, name: &str, cols: usize) -> Result<usize> {
        let expected = vec![cols as u64, 0];
        let Some(tensor) = self.gguf.tensor(name).or_else(|| self.gguf.tensor(&format!("{name}{SUFFIX}")))
        else {
            return Err(Error::MissingTensor { name: name.to_owned(), expected });
        };
        match *tensor.dims.as_slice() {
            [found, rows] if found == cols as u64 && rows <= i32::MAX as u64 => Ok(rows as usize),
            _ => Err(Error::TensorShape { name: name.to_owned(), expected, found: tensor.dims.clone() }),
        }
    }

    /// A tensor of this shape, whatever its type.
    fn shaped(&self, name: &str, expected: &[usize]) -> Result<&'a TensorInfo> {
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
        Ok(tensor)
    }

    fn find(&self, name: &str, expected: &[usize]) -> Result<(&'a TensorInfo, &'static Format)> {
        let tensor = self.shaped(name, expected)?;
        let format = format(tensor.ty.id()).ok_or_else(|| Error::UnsupportedType {
            tensor: name.to_owned(),
            ty: tensor.ty.name().to_owned(),
        })?;
        Ok((tensor, format))
    }

    /// A matrix, or `dims[2]` of them: as it is, with its rows interleaved, or in planes.
    fn find_matrix(&self, name: &str, dims: &[usize]) -> Result<UnitTensor> {
        let (cols, rows) = (dims.first().copied().unwrap_or(0), dims.get(1).copied().unwrap_or(1));
        let interleaved = format!("{name}{SUFFIX}");
        if self.gguf.tensor(name).is_none() && self.gguf.tensor(&interleaved).is_some() {
            let (tensor, format) = self.find(&interleaved, dims)?;
            let format =
                format.with_rows_interleaved().filter(|format| rows.is_multiple_of(format.interleaved));
            let Some(format) = format else {
                let what = format!("tensor {interleaved:?}: {rows} interleaved rows of {}", tensor.ty.name());
                return Err(Error::Unsupported { what });
            };
            let TensorInfo { shard, offset, bytes, .. } = *tensor;
            let name = name.to_owned();
            return Ok(UnitTensor { name, format, rows, cols, shard, offset, bytes, fine: None });
        }
        let low_name = format!("{name}{LOW}");
        if self.gguf.tensor(name).is_some() || self.gguf.tensor(&low_name).is_none() {
            let (tensor, format) = self.find(name, dims)?;
            let TensorInfo { shard, offset, bytes, .. } = *tensor;
            let name = name.to_owned();
            return Ok(UnitTensor { name, format, rows, cols, shard, offset, bytes, fine: None });
        }
        let version = self.gguf.metadata().opt_u64(VERSION_KEY)?;
        if version != Some(u64::from(VERSION)) {
            let version = version.map_or("no".to_owned(), |version| format!("{version} as its"));
            let what = format!("nested precision with {version} version");
            return Err(Error::Unsupported { what });
        }
        let low = self.plane(&low_name, dims, nested::LOW_BYTES)?;
        let (low_format, full_format) = nested_formats();
        let fine = match self.view {
            View::Low => None,
            View::Full => {
                let fine = self.plane(&format!("{name}{FINE}"), dims, nested::FINE_BYTES)?;
                let TensorInfo { shard, offset, bytes, .. } = *fine;
                Some(FinePlane { format: full_format, shard, offset, bytes })
            }
        };
        Ok(UnitTensor {
            name: name.to_owned(),
            format: low_format,
            rows,
            cols,
            shard: low.shard,
            offset: low.offset,
            bytes: low.bytes,
            fine,
        })
    }

    /// One plane, whose rows have so many bytes per block.
    fn plane(&self, name: &str, dims: &[usize], bytes: usize) -> Result<&'a TensorInfo> {
        let mut dims = dims.to_vec();
        if let Some(cols) = dims.first_mut() {
            if !cols.is_multiple_of(nested::BLOCK) {
                let what = format!("tensor {name:?}: a plane of rows of {cols} weights");
                return Err(Error::Unsupported { what });
            }
            *cols = (*cols / nested::BLOCK).saturating_mul(bytes);
        }
        let tensor = self.shaped(name, &dims)?;
        if tensor.ty != GgmlType::I8 {
            let ty = tensor.ty.name().to_owned();
            return Err(Error::UnsupportedType { tensor: name.to_owned(), ty });
        }
        Ok(tensor)
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
        let tensor = self.find_matrix(name, &[cols, rows])?;
        self.note(role, cols, tensor.format);
        let added = self.layout.add_matrix(unit, tensor)?;
        self.roles.extend(role.map(|role| (added, role)));
        Ok(added)
    }

    /// The block format of a matrix that was collected.
    ///
    /// # Errors
    /// Only for mistakes of the caller.
    pub(super) fn format_of(&self, tensor: TensorRef) -> Result<&'static Format> {
        Ok(self.layout.tensor(tensor)?.format)
    }

    fn note(&mut self, role: Option<Role>, cols: usize, format: &'static Format) {
        if let Some(role) = role {
            let product = Product { role, cols, quantised: format.is_quantised() };
            if !self.products.contains(&product) {
                self.products.push(product);
            }
        }
    }

    /// A tensor that holds one matrix of `rows` x `cols` for each of `count` experts.
    ///
    /// # Errors
    /// It is absent, has another shape, or a type without kernels.
    pub(super) fn stack(&mut self, name: &str, rows: usize, cols: usize, count: usize) -> Result<Stack> {
        let whole = self.find_matrix(name, &[cols, rows, count])?;
        Ok(Stack { whole, count: (count as u64).max(1) })
    }

    /// The matrix of one expert, in its unit.
    ///
    /// # Errors
    /// Only for mistakes of the caller.
    pub(super) fn layer_of(
        &mut self,
        unit: UnitId,
        stack: &Stack,
        index: usize,
        role: Role,
    ) -> Result<TensorRef> {
        let Stack { whole, count } = stack;
        self.note(Some(role), whole.cols, whole.format);
        // The reader has checked that the bytes follow from the shape, so they divide evenly.
        let part = |offset: u64, bytes: u64| -> Result<(u64, u64)> {
            let bytes = bytes / count;
            let offset = (index as u64).checked_mul(bytes).and_then(|at| at.checked_add(offset));
            Ok((offset.ok_or_else(|| Error::internal("offset of an expert overflows"))?, bytes))
        };
        let mut tensor = whole.clone();
        (tensor.offset, tensor.bytes) = part(whole.offset, whole.bytes)?;
        if let Some(fine) = &mut tensor.fine {
            (fine.offset, fine.bytes) = part(fine.offset, fine.bytes)?;
        }
        let added = self.layout.add_matrix(unit, tensor)?;
        self.roles.push((added, role));
        Ok(added)
    }

    /// A vector of `len` values, always resident.
    ///
    /// # Errors
    /// It is absent, has another shape, or a type without kernels.
    pub fn vector(&mut self, name: &str, len: usize) -> Result<VectorRef> {
        self.small(name, &[len])
    }

    /// A small tensor of any shape as one vector, fastest dimension first, always resident.
    ///
    /// # Errors
    /// It is absent, has another shape, or a type without kernels.
    pub fn small(&mut self, name: &str, dims: &[usize]) -> Result<VectorRef> {
        let (tensor, format) = self.find(name, dims)?;
        let len = dims.iter().product();
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
