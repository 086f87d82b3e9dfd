//! Conversations that the device and the cloud answer together.
//!
//! ```text
//! admission: privacy, rules, policy                          -> device or cloud
//! device: generate; hold the text until the first check      -> confident: show; unsure: hand over
//!         at each sentence and at the end                    -> go on, or hand over
//! hand over: redact, prepare, bounds, tell the payload, consent, send; the device's generation pauses meanwhile
//!         cloud answers                                      -> the draft is dropped, its generation cancelled
//!         cloud fails at any point                           -> its text is taken back, the draft goes on where it was
//! ```
//! The pause is why a fallback costs nothing: the generation waits in its event handler, holding no lock, with its cache intact.
//! At most one hand-off is tried per turn, so an answer never flaps.

mod call;
mod edge;
mod finish;
mod out;
mod score;
mod turn;
mod verify;
mod watchdog;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pannier::session::{Canceller, ChatMessage, Clock, GenerationOptions, MonotonicClock, Role};

pub use edge::EdgeModel;

use crate::cloud::CloudModel;
use crate::confidence::Calibration;
use crate::event::{HybridCompletion, HybridError, HybridEvent};
use crate::gate::{CloudGate, CloudLimits};
use crate::policy::{AdmissionRules, DeviceProbe, HybridPolicy, UnknownDevice};
use crate::privacy::{Consent, Redactor};

/// An app's event handler.
pub type HybridSink<'s> = dyn FnMut(HybridEvent<'_>) -> ControlFlow<()> + 's;

/// How long the cloud may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CloudPatience {
    /// Until its first text.
    pub first_text: Duration,
    /// Between texts.
    pub between: Duration,
    /// For the whole answer.
    pub whole: Duration,
    /// The most bytes of an answer.
    pub max_bytes: usize,
}

impl Default for CloudPatience {
    fn default() -> Self {
        Self {
            first_text: Duration::from_secs(20),
            between: Duration::from_secs(15),
            whole: Duration::from_secs(180),
            max_bytes: 1 << 20,
        }
    }
}

/// Everything about the cloud. Without one, a conversation stays on the device.
#[derive(Clone)]
pub struct CloudSetup {
    /// Who is asked.
    pub model: Arc<dyn CloudModel>,
    /// Consent, asked for every request.
    pub consent: Arc<dyn Consent>,
    /// Takes out what must stay.
    pub redactor: Option<Arc<dyn Redactor>>,
    /// Bounds of use, shared by the app's conversations.
    pub gate: Arc<CloudGate>,
    /// How long it may take.
    pub patience: CloudPatience,
}

impl CloudSetup {
    /// A cloud with default bounds.
    #[must_use]
    pub fn new(model: Arc<dyn CloudModel>, consent: Arc<dyn Consent>) -> Self {
        Self {
            model,
            consent,
            redactor: None,
            gate: CloudGate::new(CloudLimits::default()),
            patience: CloudPatience::default(),
        }
    }
}

/// What a conversation is made of. The default stays on the device.
#[derive(Clone)]
pub struct HybridParts {
    /// Who answers.
    pub policy: HybridPolicy,
    /// What comes before the policy.
    pub rules: AdmissionRules,
    /// The cloud.
    pub cloud: Option<CloudSetup>,
    /// How scores become probabilities.
    pub calibration: Calibration,
    /// The state of the device.
    pub device: Arc<dyn DeviceProbe>,
    /// The time.
    pub clock: Arc<dyn Clock>,
}

impl Default for HybridParts {
    fn default() -> Self {
        Self {
            policy: HybridPolicy::default(),
            rules: AdmissionRules::default(),
            cloud: None,
            calibration: Calibration::default(),
            device: Arc::new(UnknownDevice),
            clock: Arc::new(MonotonicClock::default()),
        }
    }
}

/// What a turn is asked with.
#[derive(Debug, Clone, Default)]
pub struct TurnOptions {
    /// How the device generates; the limits and stop strings also go to the cloud.
    pub generation: GenerationOptions,
    /// The app's class of the task.
    pub task: Option<String>,
    /// This turn stays on the device.
    pub on_device_only: bool,
}

/// A conversation.
pub struct HybridSession {
    edge: Arc<dyn EdgeModel>,
    parts: HybridParts,
    locked: AtomicBool,
    busy: AtomicBool,
}

/// Frees the conversation when a turn ends, however that is.
struct Busy<'a>(&'a AtomicBool);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl HybridSession {
    /// A conversation on this model of the device, most often a [`ChatSession`](pannier::session::ChatSession).
    #[must_use]
    pub fn new(edge: Arc<dyn EdgeModel>, parts: HybridParts) -> Self {
        Self { edge, parts, locked: AtomicBool::new(false), busy: AtomicBool::new(false) }
    }

    /// From now on, this conversation stays on the device. There is no way back, so that what a user says afterwards can rely on it.
    pub fn lock_to_device(&self) {
        self.locked.store(true, Ordering::Release);
    }

    /// Whether it stays on the device.
    #[must_use]
    pub fn is_locked_to_device(&self) -> bool {
        self.locked.load(Ordering::Acquire)
    }

    /// The conversation so far.
    #[must_use]
    pub fn history(&self) -> Vec<ChatMessage> {
        self.edge.history()
    }

    /// The device's side.
    #[must_use]
    pub fn edge(&self) -> &Arc<dyn EdgeModel> {
        &self.edge
    }

    /// Says `text` as the user and answers, telling `sink` on the calling thread.
    ///
    /// # Errors
    /// As for [`send_messages`](Self::send_messages).
    pub fn send(
        &self,
        text: &str,
        options: TurnOptions,
        sink: &mut HybridSink<'_>,
    ) -> Result<HybridCompletion, HybridError> {
        self.send_messages(vec![ChatMessage::new(Role::User, text)], options, sink)
    }

    /// Adds messages and answers, telling `sink` on the calling thread. A call that is refused ([`HybridError::Busy`]) gives no event; any
    /// other gives exactly one terminal event.
    ///
    /// The answer joins the history when it is complete, or was cancelled after something was shown.
    ///
    /// # Errors
    /// [`HybridError`].
    pub fn send_messages(
        &self,
        messages: Vec<ChatMessage>,
        mut options: TurnOptions,
        sink: &mut HybridSink<'_>,
    ) -> Result<HybridCompletion, HybridError> {
        if self.busy.swap(true, Ordering::AcqRel) {
            return Err(HybridError::Busy);
        }
        let busy = Busy(&self.busy);
        let canceller = options.generation.canceller.get_or_insert_with(Canceller::new).clone();
        let mut out = out::Out::new(sink, canceller, self.parts.clock.now());
        let before = self.edge.history();
        let ending = turn::Turn::new(self, &messages, &options, &before).run(&mut out);
        let ending = out.verdict(ending);
        self.remember(before, messages, &ending, &out);
        // Whoever reacts to the terminal event finds the conversation free.
        drop(busy);
        out.finish(ending)
    }

    /// Brings the history to what the user has seen.
    fn remember(
        &self,
        before: Vec<ChatMessage>,
        messages: Vec<ChatMessage>,
        ending: &Result<finish::Finished, HybridError>,
        out: &out::Out<'_, '_>,
    ) {
        let answer = match ending {
            // The device's session has kept its own answer.
            Ok(finished) if finished.kept_by_edge => return,
            Ok(_) => Some(out.shown()),
            Err(HybridError::Cancelled) => Some(out.shown()).filter(|s| !s.is_empty()),
            Err(_) => None,
        };
        let mut history = before;
        if let Some(answer) = answer {
            history.extend(messages);
            history.push(ChatMessage::new(Role::Assistant, answer));
        }
        // Only a closed session refuses: there is nothing to keep then.
        let _ = self.edge.set_history(history);
    }
}
