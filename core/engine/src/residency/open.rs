//! One call from a decision to a store.

use super::{Layout, MappedStore, ResidencyPlan, StreamOptions, StreamingStore, WeightStore};
use crate::Result;
use crate::memory::Accountant;
use pannier_gguf::Gguf;
use std::sync::Arc;

/// The store that a plan asks for.
///
/// # Errors
/// Those of the stores.
pub fn open(
    gguf: Arc<Gguf>,
    layout: Layout,
    plan: ResidencyPlan,
    options: &StreamOptions,
    accountant: &Accountant,
) -> Result<Box<dyn WeightStore>> {
    if plan.mapped {
        Ok(Box::new(MappedStore::new(gguf, layout, accountant)?))
    } else {
        Ok(Box::new(StreamingStore::new(&gguf, layout, plan, options, accountant)?))
    }
}
