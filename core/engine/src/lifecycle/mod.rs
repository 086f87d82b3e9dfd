//! Models over the life of an app: loaded when needed, unloaded when not, under one budget.
//!
//! ```text
//! ModelHost       one budget for all models; least recently used ones make room; idle, background, pressure
//!   ManagedModel  a file that is loaded on first use, and again after it was unloaded; its state can be watched
//!     ManagedChat a conversation that outlives the loaded model
//! ```
//!
//! The session room works on models that are loaded. This room decides when they are, and hides it: a chat whose model was
//! unloaded meanwhile loads it again on its next turn.

mod chat;
mod error;
mod estimate;
mod guard;
mod host;
mod kind;
mod message;
mod model;
mod saved;
mod state;

pub use chat::{ChatRun, ManagedChat};
pub use error::LifecycleError;
pub use estimate::plan_file;
pub use host::{HostOptions, Loader, MemoryUse, ModelHost};
pub use kind::ErrorKind;
pub use message::{public_message, public_store_message};
pub use model::{ManagedModel, ModelSource};
pub use saved::MAX_SAVED_BYTES;
pub use state::{ModelState, Watch};
