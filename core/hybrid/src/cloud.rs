//! What a cloud model is to us: something that takes a payload and pushes text.
//!
//! [`CloudModel`] has no `async` in it, so that Kotlin and Swift can implement it: many apps have their own gateway, with their own
//! tokens. [`OpenAiClient`](crate::openai::OpenAiClient) is the built-in one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use pannier::session::ChatMessage;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// What is asked of the cloud, after redaction.
#[derive(Debug, Clone, PartialEq)]
pub struct CloudRequest {
    /// The conversation, oldest first.
    pub messages: Vec<ChatMessage>,
    /// The last message is the beginning of the answer: to be continued, not answered.
    pub continue_final: bool,
    /// At most this many tokens.
    pub max_tokens: Option<u32>,
    /// Sampling temperature.
    pub temperature: Option<f32>,
    /// Seed, for servers that know it.
    pub seed: Option<u64>,
    /// The answer ends before the first of these.
    pub stop: Vec<String>,
}

/// Exactly what leaves the device, for apps that show or log it, and for their consent hook. Keys are not part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutgoingPayload {
    /// Where to: an address without user, password and query.
    pub destination: String,
    /// The body, byte for byte.
    pub body: String,
}

/// What the cloud counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloudUsage {
    /// Tokens of the request.
    pub prompt_tokens: u64,
    /// Tokens of the answer.
    pub completion_tokens: u64,
}

/// Why a cloud answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CloudFinish {
    /// The model ended it, or a stop string did.
    Stop,
    /// The limit of tokens.
    Length,
    /// Something else, such as a content filter.
    Other,
}

/// What a cloud model pushes.
#[derive(Debug)]
pub enum CloudEvent {
    /// More of the answer.
    Text(String),
    /// The answer is complete. Terminal.
    Done {
        /// Why it ended.
        finish: CloudFinish,
        /// What it took, if the server tells.
        usage: Option<CloudUsage>,
    },
    /// There will be no more. Terminal.
    Failed(CloudError),
}

/// What went wrong between us and the cloud. Messages carry neither keys nor prompts.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum CloudError {
    /// The address may not be used.
    #[error("the cloud address is refused: {reason}")]
    Address {
        /// Why.
        reason: String,
    },
    /// No connection, or it broke.
    #[error("the cloud cannot be reached: {reason}")]
    Unreachable {
        /// Why.
        reason: String,
    },
    /// Nothing came in time.
    #[error("the cloud gave {what} for {after:?}")]
    TimedOut {
        /// What was waited for.
        what: &'static str,
        /// How long.
        after: Duration,
    },
    /// The server refused.
    #[error("the cloud answered {status}: {message}")]
    Status {
        /// The HTTP status.
        status: u16,
        /// The server's message, shortened.
        message: String,
        /// When to come back, if it says so.
        retry_after: Option<Duration>,
    },
    /// What came is not what was agreed.
    #[error("the cloud's answer is malformed: {reason}")]
    Malformed {
        /// What is wrong with it.
        reason: String,
    },
    /// The stream ended in the middle.
    #[error("the cloud's answer ended in the middle")]
    Truncated,
    /// More than anyone would want.
    #[error("the cloud's answer is longer than {limit} bytes")]
    TooLong {
        /// The limit.
        limit: usize,
    },
    /// An app's own cloud model says so.
    #[error("the cloud model failed: {reason}")]
    Foreign {
        /// Its words.
        reason: String,
    },
}

/// A cloud model. Called from the thread of the generation.
pub trait CloudModel: Send + Sync {
    /// The name, for events.
    fn name(&self) -> String;

    /// What would be sent for this request. Opens nothing.
    ///
    /// # Errors
    /// [`CloudError`].
    fn prepare(&self, request: &CloudRequest) -> Result<OutgoingPayload, CloudError>;

    /// Sends a prepared payload and returns at once; the answer is pushed into `sink`, from any thread, and ends with one terminal
    /// event. What is pushed after that is ignored.
    ///
    /// # Errors
    /// [`CloudError`].
    fn send(&self, payload: &OutgoingPayload, sink: CloudSink) -> Result<Box<dyn CloudCall>, CloudError>;
}

/// A request under way.
pub trait CloudCall: Send {
    /// Nobody waits for the answer any more: closes the connection. Never blocks; also called after the end.
    fn cancel(&self);
}

/// Where an answer is pushed. Clones push to the same place.
#[derive(Debug, Clone)]
pub struct CloudSink {
    to: Sender<CloudEvent>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    open: AtomicBool,
    bytes: AtomicUsize,
    limit: usize,
}

/// The other end of a [`CloudSink`].
pub(crate) struct CloudInbox {
    pub events: Receiver<CloudEvent>,
    shared: Arc<Shared>,
}

impl Drop for CloudInbox {
    fn drop(&mut self) {
        self.shared.open.store(false, Ordering::Release);
    }
}

impl CloudSink {
    /// A sink that takes at most `limit` bytes of text: a server that never ends must not fill the memory.
    pub(crate) fn new(limit: usize) -> (Self, CloudInbox) {
        let (to, events) = channel();
        let shared = Arc::new(Shared { open: AtomicBool::new(true), bytes: AtomicUsize::new(0), limit });
        (Self { to, shared: Arc::clone(&shared) }, CloudInbox { events, shared })
    }

    /// Pushes an event. `false`: nobody listens (any more), stop sending.
    pub fn push(&self, event: CloudEvent) -> bool {
        if !self.is_open() {
            return false;
        }
        if let CloudEvent::Text(text) = &event {
            let before = self.shared.bytes.fetch_add(text.len(), Ordering::AcqRel);
            if before.saturating_add(text.len()) > self.shared.limit {
                self.shared.open.store(false, Ordering::Release);
                let _ = self.to.send(CloudEvent::Failed(CloudError::TooLong { limit: self.shared.limit }));
                return false;
            }
        } else {
            self.shared.open.store(false, Ordering::Release);
        }
        self.to.send(event).is_ok()
    }

    /// Whether anyone listens.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.shared.open.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sink_takes_one_end_and_a_limit() {
        let (sink, inbox) = CloudSink::new(10);
        assert!(sink.push(CloudEvent::Text("12345".into())));
        assert!(sink.push(CloudEvent::Done { finish: CloudFinish::Stop, usage: None }));
        assert!(!sink.push(CloudEvent::Text("x".into())) && !sink.is_open());
        assert_eq!(inbox.events.try_iter().count(), 2);

        let (sink, inbox) = CloudSink::new(10);
        assert!(!sink.push(CloudEvent::Text("12345678901".into())));
        assert!(matches!(inbox.events.try_recv(), Ok(CloudEvent::Failed(CloudError::TooLong { limit: 10 }))));

        let (sink, inbox) = CloudSink::new(10);
        drop(inbox);
        assert!(!sink.push(CloudEvent::Text("x".into())));
    }
}
