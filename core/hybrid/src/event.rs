//! What a turn tells while it runs, and what it leaves behind.

use std::time::Duration;

use pannier::session::{Completion, FinishReason, Notice};
use serde::Serialize;
use thiserror::Error;

use crate::cloud::{CloudError, CloudFinish, CloudUsage, OutgoingPayload};
use crate::confidence::CalibrationOrigin;
use crate::policy::{Blocked, Decision};

/// Where text comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The device.
    Device,
    /// The cloud.
    Cloud,
    /// Its beginning from the device, the rest from the cloud.
    Both,
}

/// A probability of being right, and what it is worth.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Confidence {
    /// From 0 to 1.
    pub value: f64,
    /// Whether it was calibrated for this model.
    pub origin: CalibrationOrigin,
}

/// One event of a turn. Every turn gives exactly one terminal event, and nothing after it.
///
/// Applying all [`Text`](Self::Text) and [`Discard`](Self::Discard) events in order gives the text of the completion.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum HybridEvent<'a> {
    /// A decision, with its reason.
    Decision(&'a Decision),
    /// Part of the prompt was read on the device.
    Prefill {
        /// Tokens read.
        done: usize,
        /// Tokens to read.
        total: usize,
    },
    /// More of the answer.
    Text {
        /// The new text.
        text: &'a str,
        /// Whose it is.
        source: Source,
        /// How sure the device is of the sentence under way; `None` for the cloud's text.
        confidence: Option<Confidence>,
    },
    /// A sentence of the device's draft is complete, and was shown.
    Sentence {
        /// The sentence, as bytes of the draft.
        start: usize,
        /// Its end.
        end: usize,
        /// How sure the device is of it.
        confidence: Confidence,
    },
    /// Shown text is taken back.
    Discard {
        /// Bytes from the start that stay.
        keep: usize,
    },
    /// This will leave the device, if consent is given.
    Outgoing(&'a OutgoingPayload),
    /// Something of the device's generation that nobody asked for.
    Notice(Notice),
    /// Terminal: the answer is complete.
    Completed(&'a HybridCompletion),
    /// Terminal: there is no answer.
    Failed {
        /// Why.
        error: &'a HybridError,
    },
    /// Terminal: the turn was cancelled. What was shown is part of the history.
    Cancelled,
}

impl HybridEvent<'_> {
    /// Whether this is the last event.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        matches!(self, Self::Completed(_) | Self::Failed { .. } | Self::Cancelled)
    }
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HybridFinish {
    /// As the device says.
    Device(FinishReason),
    /// As the cloud says.
    Cloud(CloudFinish),
}

impl HybridFinish {
    /// The name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Device(reason) => reason.name(),
            Self::Cloud(CloudFinish::Stop) => "stop",
            Self::Cloud(CloudFinish::Length) => "length",
            Self::Cloud(CloudFinish::Other) => "other",
        }
    }
}

/// A finished turn.
#[derive(Debug, Clone, PartialEq)]
pub struct HybridCompletion {
    /// The answer.
    pub text: String,
    /// Where it comes from.
    pub source: Source,
    /// How sure the device was of its draft, if it made one.
    pub confidence: Option<Confidence>,
    /// Why it ended.
    pub finish: HybridFinish,
    /// All decisions, in order.
    pub decisions: Vec<Decision>,
    /// The device's own generation, if it ran to its end.
    pub edge: Option<Completion>,
    /// What the cloud counted, in all requests of the turn.
    pub usage: CloudUsage,
    /// What that cost, in millionths.
    pub cost: u64,
    /// From the call to the end.
    pub elapsed: Duration,
}

/// Why a turn has no answer.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HybridError {
    /// A turn is under way in this conversation. No event is given.
    #[error("the conversation is busy with another turn")]
    Busy,
    /// The device failed, and the cloud could not help.
    #[error(transparent)]
    Edge(#[from] pannier::Error),
    /// The cloud failed, and the device may not help.
    #[error(transparent)]
    Cloud(#[from] CloudError),
    /// Only the cloud may answer, but it may not be asked.
    #[error("the cloud may not be asked: {0}")]
    Blocked(Blocked),
    /// The turn was cancelled.
    #[error("cancelled")]
    Cancelled,
    /// The app's event handler panicked.
    #[error("the event handler panicked: {message}")]
    SinkPanicked {
        /// Its message.
        message: String,
    },
}
