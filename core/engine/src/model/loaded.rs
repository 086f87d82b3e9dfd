//! A model file, ready to run.

use super::arch;
use super::builder::{Builder, Product};
use super::hyper::Hyper;
use super::spec::{Architecture, ModelSpec};
use crate::memory::Accountant;
use crate::residency::{MappedStore, WeightStore};
use crate::{Error, Result};
use pannier_gguf::Gguf;
use std::sync::Arc;

/// How a model is loaded.
#[derive(Clone, Copy, Debug, Default)]
pub struct ModelOptions {
    /// The longest sequence; the context of the training if absent. Some architectures choose their positions by it.
    pub context: Option<usize>,
}

/// A model's architecture and weights, shared by all that run it.
#[derive(Debug)]
pub struct LoadedModel {
    arch: Box<dyn Architecture>,
    products: Vec<Product>,
    weights: Box<dyn WeightStore>,
}

impl LoadedModel {
    /// Reads the hyperparameters, checks every tensor's shape, and decodes the small ones. The weights stay in the mapping.
    ///
    /// # Errors
    /// An architecture, type or variant that is not supported, a key or tensor that is missing or wrong,
    /// [`Error::OutOfBudget`].
    pub fn new(gguf: Arc<Gguf>, options: &ModelOptions, accountant: &Accountant) -> Result<LoadedModel> {
        let name = gguf.metadata().str("general.architecture")?;
        let entry = arch::find(name).ok_or_else(|| Error::UnsupportedArchitecture {
            name: name.to_owned(),
            supported: arch::supported(),
        })?;
        if options.context == Some(0) {
            return Err(Error::ContextFull { needed: 1, limit: 0 });
        }
        let hyper = Hyper::new(gguf.metadata(), name, options.context);
        let mut builder = Builder::new(&gguf);
        let arch = (entry.build)(&hyper, &mut builder)?;
        let (layout, products) = builder.finish();
        let weights = Box::new(MappedStore::new(Arc::clone(&gguf), layout, accountant)?);
        Ok(LoadedModel { arch, products, weights })
    }

    /// Sizes.
    pub fn spec(&self) -> &ModelSpec {
        self.arch.spec()
    }

    /// All products of a pass, each kind once.
    pub fn products(&self) -> &[Product] {
        &self.products
    }

    /// The forward pass.
    pub fn arch(&self) -> &dyn Architecture {
        &*self.arch
    }

    /// The weights.
    pub fn weights(&self) -> &dyn WeightStore {
        &*self.weights
    }
}
