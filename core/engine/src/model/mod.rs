//! Forward passes: what an architecture is, and how one is run.
//!
//! * [`LoadedModel`] turns a GGUF file into an [`Architecture`] (hyperparameters and handles to weights) and a store of weights.
//! * [`Runner`] has the buffers, the KV cache and the threads to run it; sessions see it as [`Forward`].
//! * A new architecture is one file in `arch/` and one line in its list. It reads its keys through [`Hyper`], names its tensors to
//!   the [`Builder`], and writes its forward pass in the words of [`Pass`].

mod activations;
pub mod arch;
mod blocks;
mod builder;
mod experts;
mod forward;
mod hyper;
mod loaded;
mod pass;
mod per_layer;
mod precision;
mod recorder;
mod recurrent;
mod reuse;
mod routing;
mod runner;
mod scratch;
mod shortcuts;
mod spec;
mod state;

pub use activations::{ActivationObserver, MatrixInput};
pub use blocks::{Attention, Embedding, Ffn, Head, Linear};
pub use builder::{Builder, Product};
pub use experts::Moe;
pub use forward::{Forward, Outputs, PromptSteps};
pub use hyper::{Dims, Hyper, RopeScaling};
pub use loaded::{Blueprint, LoadedModel, ModelOptions};
pub use pass::Pass;
pub use per_layer::{PerLayerBlock, PerLayerInputs};
pub use precision::{PrecisionTable, Role};
pub use recorder::RouteRecorder;
pub use recurrent::{DeltaNet, ShortConv};
pub use routing::{Route, RouteObserver};
pub use runner::{Runner, RunnerOptions};
pub use scratch::ScratchPlan;
pub use shortcuts::ExpertShortcuts;
pub use spec::{
    Architecture, AttentionSpec, ExpertActivation, Gating, ModelSpec, MoeSpec, RecurrentSpec, RopeConfig,
};
pub use state::ModelSequence;
