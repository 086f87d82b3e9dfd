//! The engine for Kotlin and Swift. No logic lives here: types are converted, calls are forwarded, errors are mapped.
//!
//! * Objects are newtypes of the engine's handles: [`Engine`], [`Model`], [`Chat`], [`HybridChat`], [`Store`].
//! * What takes time is `async`: it runs on a thread of its own and needs no runtime on the other side.
//! * What happens meanwhile is told to a callback interface, one call per event, on that thread, while no lock is held.
//! * A panic is our bug. It is caught, and becomes [`PannierError::Internal`].
//!
//! Hand-written Kotlin (`android/`) and Swift (`ios/`) give each language its own idiom on top of the generated code.

#![allow(
    clippy::result_large_err,
    reason = "the error carries the plan across the border by value; it is built once per failed call"
)]

mod border;
mod chat;
mod engine;
mod error;
mod event;
mod hybrid;
mod model;
mod options;
mod plan;
mod store;

pub use border::CancelHandle;
pub use chat::{Chat, ChatConfig, Message, MessageRole};
pub use engine::{Engine, EngineConfig, MemoryReport, PressureLevel};
pub use error::PannierError;
pub use event::{
    Answer, AnswerSource, FinishReason, GenerationEvent, GenerationNotice, GenerationSettings, Stats,
    TokenChoice, TokenReport, TokenSink,
};
pub use hybrid::{
    AdmissionFacts, AdmissionRule, AnswerRoute, CalibrationReport, CloudBounds, CloudBudget, CloudConsent,
    CloudContinuation, CloudEndpoint, CloudFault, CloudFinish, CloudHeader, CloudLedger, CloudPayload,
    CloudPrompt, CloudRedactor, CloudReply, CloudTransport, CloudUsage, CloudWaits, ConfidenceScore,
    DecisionMoment, DecisionReason, DeviceCondition, DeviceProbe, EdgeFirstSettings, HandOffDecision,
    HandOffPolicy, HandOffRules, HandOffStyle, HybridAnswer, HybridChat, HybridCloud, HybridConfig,
    HybridFinish, HybridSink, HybridSource, HybridUpdate, HybridUsage, ThermalLevel, TurnSettings,
};
pub use model::{LoadSink, Model, ModelConfig, ModelDetails, ModelLifeState, StateObserver, StateWatch};
pub use options::{
    ContextOverflow, EvictWhen, EvictionReport, KvConfig, KvPolicy, KvType, PrecisionChoice,
    SpeculationChoice, WeightView, WeightViewReason,
};
pub use plan::{PlanReport, SpeculationForecast};
pub use store::{DownloadSink, DownloadUpdate, KnownModel, ModelFile, Store};

uniffi::setup_scaffolding!("pannier_ffi");

/// The version of the engine.
#[uniffi::export]
pub fn engine_version() -> String {
    env!("CARGO_PKG_VERSION").to_owned()
}
