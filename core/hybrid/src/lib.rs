//! Answer on the device, and ask a cloud model only when it is worth it and allowed.
//!
//! [`confidence`] says how likely an answer is right, from the generation itself. [`policy`] decides with reasons, [`HybridSession`]
//! acts on it: one conversation, one stream of [`HybridEvent`]s, exactly one terminal event, whoever answers. [`CloudModel`] is the
//! seam to the cloud, [`openai`] the built-in client, [`gate`] the bounds of its use, [`privacy`] what must happen before anything
//! leaves. `serve` is the same engine as an OpenAI-compatible server, for development. [`eval`] is how confidence is measured.
//!
//! Off by default: without a configured cloud, a policy that allows it, and consent to the very payload, no socket is opened.

pub mod cloud;
pub mod confidence;
pub mod eval;
pub mod event;
pub mod gate;
pub mod openai;
pub mod policy;
pub mod privacy;
#[cfg(feature = "serve")]
pub mod serve;
pub mod session;

pub use cloud::{CloudCall, CloudError, CloudEvent, CloudModel, CloudRequest, CloudSink, OutgoingPayload};
pub use event::{HybridCompletion, HybridError, HybridEvent, HybridFinish, Source};
pub use gate::{CloudGate, CloudLimits};
pub use policy::{Decision, EdgeFirst, HandOffStyle, HybridPolicy, Reason, Route};
pub use session::{CloudPatience, CloudSetup, EdgeModel, HybridParts, HybridSession, TurnOptions};
