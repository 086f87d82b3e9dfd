//! A model file, ready to run.

use super::arch;
use super::builder::{Builder, Collected, Product, RouterRef};
use super::hyper::Hyper;
use super::precision::Role;
use super::spec::{Architecture, ModelSpec};
use crate::memory::Accountant;
use crate::residency::{self, Layout, ResidencyPlan, StreamOptions, TensorRef, View, WeightStore};
use crate::{Error, Result};
use pannier_gguf::Gguf;
use std::sync::Arc;

/// How a model is loaded.
#[derive(Clone, Copy, Debug, Default)]
pub struct ModelOptions {
    /// The longest sequence; the context of the training if absent. Some architectures choose their positions by it.
    pub context: Option<usize>,
    /// The planes to use of a file in nested precision: the low view leaves the fine planes alone, the full view can be switched to low.
    pub view: View,
}

/// What a file says about its model, before a weight is read: what a plan is made from.
#[derive(Debug)]
pub struct Blueprint {
    gguf: Arc<Gguf>,
    arch: Box<dyn Architecture>,
    products: Vec<Product>,
    roles: Vec<(TensorRef, Role)>,
    routers: Vec<RouterRef>,
    layout: Layout,
    experts_used: usize,
    view: View,
}

impl Blueprint {
    /// Reads the hyperparameters and checks every tensor's shape.
    ///
    /// # Errors
    /// An architecture, type or variant that is not supported, a key or tensor that is missing or wrong.
    pub fn read(gguf: Arc<Gguf>, options: &ModelOptions) -> Result<Blueprint> {
        let name = gguf.metadata().str("general.architecture")?;
        let entry = arch::find(name).ok_or_else(|| Error::UnsupportedArchitecture {
            name: name.to_owned(),
            supported: arch::supported(),
        })?;
        if options.context == Some(0) {
            return Err(Error::ContextFull { needed: 1, limit: 0 });
        }
        let hyper = Hyper::new(gguf.metadata(), name, options.context);
        let used = gguf.metadata().opt_u64(&format!("{name}.expert_used_count"))?.unwrap_or(0);
        let mut builder = Builder::new(&gguf, options.view);
        let arch = (entry.build)(&hyper, &mut builder)?;
        let Collected { layout, products, roles, routers } = builder.finish();
        if options.view == View::Low && !layout.has_planes() {
            let what = "the low view of a file that is not in nested precision (`pannier quantize --nested` makes one)";
            return Err(Error::Unsupported { what: what.into() });
        }
        let experts_used = usize::try_from(used).unwrap_or(usize::MAX);
        Ok(Blueprint { gguf, arch, products, roles, routers, layout, experts_used, view: options.view })
    }

    /// Sizes.
    pub fn spec(&self) -> &ModelSpec {
        self.arch.spec()
    }

    /// All products of a pass, each kind once.
    pub fn products(&self) -> &[Product] {
        &self.products
    }

    /// What each matrix that a pass multiplies with is for.
    pub fn roles(&self) -> &[(TensorRef, Role)] {
        &self.roles
    }

    /// All weights.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Experts that a token uses per layer; 0 for a dense model.
    pub fn experts_used(&self) -> usize {
        self.experts_used
    }

    /// The view that it was read for.
    pub fn view(&self) -> View {
        self.view
    }

    /// The file.
    pub fn gguf(&self) -> &Arc<Gguf> {
        &self.gguf
    }

    /// Loads the model as `plan` says.
    ///
    /// # Errors
    /// [`Error::OutOfBudget`], [`Error::OutOfMemory`], and what reading may bring.
    pub fn load(
        self,
        plan: ResidencyPlan,
        stream: &StreamOptions,
        accountant: &Accountant,
    ) -> Result<LoadedModel> {
        let weights = residency::open(Arc::clone(&self.gguf), self.layout, plan, stream, accountant)?;
        Ok(LoadedModel {
            arch: self.arch,
            products: self.products,
            routers: self.routers,
            weights,
            gguf: self.gguf,
            view: self.view,
        })
    }
}

/// A model's architecture and weights, shared by all that run it.
#[derive(Debug)]
pub struct LoadedModel {
    arch: Box<dyn Architecture>,
    products: Vec<Product>,
    routers: Vec<RouterRef>,
    weights: Box<dyn WeightStore>,
    gguf: Arc<Gguf>,
    view: View,
}

impl LoadedModel {
    /// Reads the hyperparameters, checks every tensor's shape, and decodes the small ones. The weights stay in the mapping.
    ///
    /// # Errors
    /// Those of [`Blueprint::read`], and [`Error::OutOfBudget`].
    pub fn new(gguf: Arc<Gguf>, options: &ModelOptions, accountant: &Accountant) -> Result<LoadedModel> {
        let plan = ResidencyPlan { mapped: true, ..ResidencyPlan::default() };
        Blueprint::read(gguf, options)?.load(plan, &StreamOptions::default(), accountant)
    }

    /// Sizes.
    pub fn spec(&self) -> &ModelSpec {
        self.arch.spec()
    }

    /// The view that it was read for.
    pub fn view(&self) -> View {
        self.view
    }

    /// The file.
    pub fn gguf(&self) -> &Arc<Gguf> {
        &self.gguf
    }

    /// All products of a pass, each kind once.
    pub fn products(&self) -> &[Product] {
        &self.products
    }

    /// The forward pass.
    pub fn arch(&self) -> &dyn Architecture {
        &*self.arch
    }

    /// All routers, by ascending layer.
    pub(super) fn routers(&self) -> &[RouterRef] {
        &self.routers
    }

    /// The weights.
    pub fn weights(&self) -> &dyn WeightStore {
        &*self.weights
    }
}
