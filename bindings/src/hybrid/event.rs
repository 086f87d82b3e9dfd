//! What a turn tells, and what it leaves.

use pannier_hybrid as inner;
use pannier_hybrid::confidence::CalibrationOrigin;
use pannier_hybrid::policy::{Blocked, DecisionPoint};

use super::{AnswerRoute, CloudFinish, CloudPayload};
use crate::{FinishReason, GenerationNotice, PannierError, Stats};

/// Where an answer comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, uniffi::Enum)]
pub enum HybridSource {
    /// The device.
    Device,
    /// The cloud.
    Cloud,
    /// Its beginning from the device, the rest from the cloud.
    Both,
}

impl From<inner::Source> for HybridSource {
    fn from(source: inner::Source) -> Self {
        match source {
            inner::Source::Device => Self::Device,
            inner::Source::Cloud => Self::Cloud,
            inner::Source::Both => Self::Both,
        }
    }
}

/// A probability of being right.
#[derive(Debug, Clone, Copy, PartialEq, uniffi::Record)]
pub struct ConfidenceScore {
    /// From 0 to 1.
    pub value: f64,
    /// Whether it was fitted on answers of this model. If not, its size is a guess.
    pub fitted: bool,
}

impl From<inner::event::Confidence> for ConfidenceScore {
    fn from(c: inner::event::Confidence) -> Self {
        Self { value: c.value, fitted: c.origin == CalibrationOrigin::Fitted }
    }
}

/// When a decision fell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, uniffi::Enum)]
pub enum DecisionMoment {
    /// Before any work.
    Admission,
    /// Before the first visible token, or where that would have been.
    FirstCheck,
    /// At the border of a sentence.
    Sentence,
    /// The draft is complete.
    End,
    /// When one side failed.
    Failure,
}

/// Why, without the numbers; `HandOffDecision.explanation` has them in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, uniffi::Enum)]
pub enum DecisionReason {
    /// The policy prefers it.
    Policy,
    /// The app's own rule.
    AppRule,
    /// The class of the task.
    Task,
    /// The prompt is too long for the device.
    PromptTooLong,
    /// Little charge left.
    Battery,
    /// Too hot.
    Heat,
    /// The system needs memory.
    MemoryPressure,
    /// The draft is good enough.
    Confident,
    /// The draft is not good enough.
    Unsure,
    /// The draft is not good enough, but the cloud's answer is not expected to be better.
    NoGain,
    /// The device was too slow.
    Slow,
    /// The device failed.
    EdgeFailed,
    /// The cloud failed.
    CloudFailed,
    /// The cloud judged the draft to be right.
    Verified,
    /// The cloud corrected the draft.
    Corrected,
    /// No cloud is configured.
    NoCloud,
    /// The policy, the conversation, or this turn stays on the device.
    OnDeviceOnly,
    /// The app, or its user, did not consent.
    NoConsent,
    /// The redactor refused.
    RedactionRefused,
    /// No network.
    Offline,
    /// A cost cap is in the way.
    CostCap,
    /// Too many requests in the last minute.
    RateLimit,
    /// The cloud failed repeatedly.
    CircuitOpen,
    /// Something that this version has no word for.
    Other,
}

impl From<&inner::Reason> for DecisionReason {
    fn from(reason: &inner::Reason) -> Self {
        use inner::Reason as R;
        match reason {
            R::Policy => Self::Policy,
            R::AppRule => Self::AppRule,
            R::Task { .. } => Self::Task,
            R::PromptTooLong { .. } => Self::PromptTooLong,
            R::Battery { .. } => Self::Battery,
            R::Heat { .. } => Self::Heat,
            R::MemoryPressure => Self::MemoryPressure,
            R::Confident => Self::Confident,
            R::Unsure => Self::Unsure,
            R::NoGain { .. } => Self::NoGain,
            R::Slow { .. } => Self::Slow,
            R::EdgeFailed { .. } => Self::EdgeFailed,
            R::CloudFailed { .. } => Self::CloudFailed,
            R::Verified { .. } => Self::Verified,
            R::Corrected { .. } => Self::Corrected,
            R::CloudBlocked(blocked) => match blocked {
                Blocked::NoCloud => Self::NoCloud,
                Blocked::OnDeviceOnly => Self::OnDeviceOnly,
                Blocked::NoConsent => Self::NoConsent,
                Blocked::Redaction => Self::RedactionRefused,
                Blocked::Offline => Self::Offline,
                Blocked::RequestCost { .. } | Blocked::DayCost { .. } => Self::CostCap,
                Blocked::Rate { .. } => Self::RateLimit,
                Blocked::CircuitOpen { .. } => Self::CircuitOpen,
                _ => Self::Other,
            },
            _ => Self::Other,
        }
    }
}

/// A decision with its reason and numbers.
#[derive(Debug, Clone, PartialEq, uniffi::Record)]
pub struct HandOffDecision {
    /// When.
    pub moment: DecisionMoment,
    /// Who goes on.
    pub route: AnswerRoute,
    /// Why.
    pub reason: DecisionReason,
    /// Why, in words for a developer. Holds no text of the conversation.
    pub explanation: String,
    /// The score it was based on.
    pub confidence: Option<f64>,
    /// What the score was compared with.
    pub threshold: Option<f64>,
    /// Tokens of the draft so far.
    pub tokens: u64,
    /// Since the turn began.
    pub elapsed_ms: f64,
}

impl From<&inner::Decision> for HandOffDecision {
    fn from(d: &inner::Decision) -> Self {
        Self {
            moment: match d.point {
                DecisionPoint::Admission => DecisionMoment::Admission,
                DecisionPoint::FirstCheck => DecisionMoment::FirstCheck,
                DecisionPoint::Sentence => DecisionMoment::Sentence,
                DecisionPoint::End => DecisionMoment::End,
                DecisionPoint::Failure => DecisionMoment::Failure,
            },
            route: d.route.into(),
            reason: (&d.reason).into(),
            explanation: d.reason.to_string(),
            confidence: d.confidence,
            threshold: d.threshold,
            tokens: d.tokens as u64,
            elapsed_ms: d.elapsed.as_secs_f64() * 1e3,
        }
    }
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, uniffi::Enum)]
pub enum HybridFinish {
    /// As the device says.
    Device {
        /// Why.
        reason: FinishReason,
    },
    /// As the cloud says.
    Cloud {
        /// Why.
        reason: CloudFinish,
    },
}

impl From<inner::HybridFinish> for HybridFinish {
    fn from(finish: inner::HybridFinish) -> Self {
        use inner::cloud::CloudFinish as C;
        match finish {
            inner::HybridFinish::Device(reason) => Self::Device { reason: reason.into() },
            inner::HybridFinish::Cloud(C::Stop) => Self::Cloud { reason: CloudFinish::Stop },
            inner::HybridFinish::Cloud(C::Length) => Self::Cloud { reason: CloudFinish::Length },
            inner::HybridFinish::Cloud(C::Other) => Self::Cloud { reason: CloudFinish::Other },
        }
    }
}

/// What the cloud counted in all requests of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, uniffi::Record)]
pub struct HybridUsage {
    /// Tokens of the requests.
    pub prompt_tokens: u64,
    /// Tokens of the answers.
    pub completion_tokens: u64,
    /// What that cost, in millionths.
    pub cost_micros: u64,
}

/// A finished turn.
#[derive(Debug, Clone, PartialEq, uniffi::Record)]
pub struct HybridAnswer {
    /// The answer.
    pub text: String,
    /// Where it comes from.
    pub source: HybridSource,
    /// How sure the device was of its draft, if it made one.
    pub confidence: Option<ConfidenceScore>,
    /// Why it ended.
    pub finish: HybridFinish,
    /// All decisions, in order.
    pub decisions: Vec<HandOffDecision>,
    /// What the device's generation took, if it ran to its end.
    pub stats: Option<Stats>,
    /// What the cloud counted.
    pub usage: HybridUsage,
    /// From the call to the end.
    pub elapsed_ms: f64,
}

impl From<&inner::HybridCompletion> for HybridAnswer {
    fn from(c: &inner::HybridCompletion) -> Self {
        Self {
            text: c.text.clone(),
            source: c.source.into(),
            confidence: c.confidence.map(Into::into),
            finish: c.finish.into(),
            decisions: c.decisions.iter().map(Into::into).collect(),
            stats: c.edge.as_ref().map(|edge| (&edge.stats).into()),
            usage: HybridUsage {
                prompt_tokens: c.usage.prompt_tokens,
                completion_tokens: c.usage.completion_tokens,
                cost_micros: c.cost,
            },
            elapsed_ms: c.elapsed.as_secs_f64() * 1e3,
        }
    }
}

/// One event of a turn. Exactly one of the last three ends it.
#[derive(Debug, Clone, uniffi::Enum)]
pub enum HybridUpdate {
    /// A decision, with its reason.
    Decision {
        /// The decision.
        decision: HandOffDecision,
    },
    /// Part of the prompt was read on the device.
    Prefill {
        /// Tokens read.
        done: u64,
        /// Tokens to read.
        total: u64,
    },
    /// More of the answer; whole characters only.
    Text {
        /// The new text.
        text: String,
        /// Whose it is.
        source: HybridSource,
        /// How sure the device is of the sentence under way; absent for the cloud's text.
        confidence: Option<ConfidenceScore>,
    },
    /// A sentence of the device's draft is complete, and was shown.
    Sentence {
        /// The sentence.
        text: String,
        /// How sure the device is of it.
        confidence: ConfidenceScore,
    },
    /// Shown text is taken back.
    Discard {
        /// What remains of the answer: show this instead.
        remaining: String,
    },
    /// This will leave the device, if consent is given.
    Outgoing {
        /// Exactly what.
        payload: CloudPayload,
    },
    /// Something of the device's generation that nobody asked for.
    Notice {
        /// What.
        notice: GenerationNotice,
    },
    /// The answer is complete.
    Completed {
        /// The answer.
        answer: HybridAnswer,
    },
    /// There is no answer.
    Failed {
        /// Why.
        error: PannierError,
    },
    /// The turn was cancelled. What was shown is part of the history.
    Cancelled,
}

impl HybridUpdate {
    /// `None` for an event that this version has no word for. `shown` follows the events: positions in bytes mean nothing to languages
    /// that count in other units.
    pub(super) fn convert(event: &inner::HybridEvent<'_>, shown: &mut String) -> Option<Self> {
        use inner::HybridEvent as E;
        Some(match event {
            E::Decision(decision) => Self::Decision { decision: (*decision).into() },
            E::Prefill { done, total } => Self::Prefill { done: *done as u64, total: *total as u64 },
            E::Text { text, source, confidence } => {
                shown.push_str(text);
                Self::Text {
                    text: (*text).to_owned(),
                    source: (*source).into(),
                    confidence: confidence.map(Into::into),
                }
            }
            E::Sentence { start, end, confidence } => Self::Sentence {
                text: shown.get(*start..*end).unwrap_or_default().to_owned(),
                confidence: (*confidence).into(),
            },
            E::Discard { keep } => {
                shown.truncate(*keep);
                Self::Discard { remaining: shown.clone() }
            }
            E::Outgoing(payload) => Self::Outgoing { payload: (*payload).into() },
            E::Notice(notice) => Self::Notice { notice: (*notice).into() },
            E::Completed(completion) => Self::Completed { answer: (*completion).into() },
            E::Failed { error } => Self::Failed { error: (*error).into() },
            E::Cancelled => Self::Cancelled,
            _ => return None,
        })
    }
}

impl From<&inner::HybridError> for PannierError {
    fn from(error: &inner::HybridError) -> Self {
        use inner::HybridError as H;
        match error {
            H::Edge(error) => error.into(),
            H::Busy => Self::Busy { reason: error.to_string() },
            // Both: the cloud was to answer and did not. The decisions tell which of its many reasons it was.
            H::Cloud(_) | H::Blocked(_) => Self::Network { reason: error.to_string() },
            H::Cancelled => Self::Cancelled { reason: error.to_string() },
            // What the app's handler threw may hold anything.
            H::SinkPanicked { .. } => Self::internal("the event handler panicked"),
            _ => Self::internal("an error that this version has no word for"),
        }
    }
}

impl From<inner::HybridError> for PannierError {
    fn from(error: inner::HybridError) -> Self {
        (&error).into()
    }
}

/// Hears the events of a turn, one call per event, on the turn's thread. It may take its time: only its own turn waits.
#[uniffi::export(callback_interface)]
pub trait HybridSink: Send + Sync {
    /// An event. After one of the last three kinds comes no other.
    fn on_update(&self, update: HybridUpdate);
}
