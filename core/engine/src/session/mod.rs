//! What apps see: models, sessions, generations.
//!
//! A [`Model`] is shared by its sessions, which take turns, one forward pass at a time and in the order of asking. Each
//! session keeps what it has read. A generation tells its progress in [`GenerationEvent`]s and ends in exactly one terminal
//! event. Events are delivered while no lock is held: a slow handler delays its own generation only.
//!
//! A [`Session`] continues prompts; a [`ChatSession`] keeps a conversation and renders it with the model's chat template.

mod answer;
mod chat;
mod clock;
mod control;
mod core;
mod decode;
mod draft;
mod error;
mod event;
mod generate;
mod load;
mod model;
mod options;
mod overflow;
mod precision;
mod raw;
mod reuse;
mod spawn;
mod stop;
mod text;
mod turnstile;

pub use chat::{ChatOptions, ChatSession};
pub use clock::{Clock, MonotonicClock, utc_now};
pub use control::Canceller;
pub use core::Sink;
pub use draft::DraftOptions;
pub use error::SessionError;
pub use event::{Completion, FinishReason, GenerationEvent, GenerationStats, Notice, SpeculationStats};
pub use load::{LoadOptions, LoadProgress, LoadStage};
pub use model::{Model, ModelInfo, ModelParts};
pub use options::{GenerationOptions, Prompt};
pub use overflow::Overflow;
pub use pannier_tokenizer::{ChatMessage, LocalTime, Role};
pub use precision::{ViewReason, WeightPrecision};
pub use raw::Session;
pub use spawn::GenerationHandle;
pub use stop::{MAX_STOP_BYTES, MAX_STOP_STRINGS};
