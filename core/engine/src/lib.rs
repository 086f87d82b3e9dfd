//! Pannier: large language models on a phone, inside a memory budget that is planned before loading and kept afterwards.
//!
//! The rooms, and who may use whom: `memory` -> `residency`, `kv` -> `model` -> `speculate` -> `session`, with `sampling` free of all.
//! [`memory`] counts every large allocation, [`residency`] says where the weights live, [`kv`] holds what attention
//! remembers, [`model`] runs forward passes, [`sampling`] picks tokens, [`speculate`] guesses several at once, [`session`] is what apps see, and [`store`] finds
//! and fetches model files. [`lifecycle`] stands on top: models that are loaded and unloaded as an app lives.

mod cancel;
mod error;
pub mod kv;
pub mod lifecycle;
pub mod memory;
pub mod model;
pub mod pack;
pub mod plan;
pub mod pool;
pub mod residency;
pub mod sampling;
pub mod session;
pub mod speculate;
pub mod store;

pub use cancel::CancelFlag;
pub use error::{Error, Result};
pub use kv::{EvictWhen, KvOptions, KvPolicy, KvType, KvTypes};
pub use residency::View;
pub use sampling::{SamplerOptions, TokenInfo};
pub use session::{
    Canceller, ChatMessage, ChatOptions, ChatSession, Completion, DraftOptions, FinishReason,
    GenerationEvent, GenerationHandle, GenerationOptions, GenerationStats, LoadOptions, LoadProgress,
    LoadStage, Model, ModelInfo, Notice, Overflow, Prompt, Role, Session, SessionError, SpeculationStats,
    ViewReason, WeightPrecision,
};
pub use speculate::Speculation;
