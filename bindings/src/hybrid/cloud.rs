//! The cloud's side: the built-in client, or an app's own transport.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pannier::session::ChatMessage;
use pannier_hybrid::cloud as inner;
use pannier_hybrid::gate::{Ledger, Price};
use pannier_hybrid::openai::{Continuation, OpenAiClient, OpenAiConfig, Secret};
use pannier_hybrid::privacy::{Consent, Redactor, Refused};
use pannier_hybrid::{CloudGate, CloudLimits, CloudPatience, CloudSetup};

use crate::chat::to_engine;
use crate::{Message, PannierError};

/// What is asked of the cloud, after redaction.
#[derive(Debug, Clone, PartialEq, uniffi::Record)]
pub struct CloudPrompt {
    /// The conversation, oldest first.
    pub messages: Vec<Message>,
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

impl From<&inner::CloudRequest> for CloudPrompt {
    fn from(r: &inner::CloudRequest) -> Self {
        Self {
            messages: r.messages.iter().cloned().map(Into::into).collect(),
            continue_final: r.continue_final,
            max_tokens: r.max_tokens,
            temperature: r.temperature,
            seed: r.seed,
            stop: r.stop.clone(),
        }
    }
}

/// Exactly what leaves the device. Keys are not part of it.
#[derive(Debug, Clone, PartialEq, Eq, uniffi::Record)]
pub struct CloudPayload {
    /// Where to.
    pub destination: String,
    /// The body, to the byte.
    pub body: String,
}

impl From<&inner::OutgoingPayload> for CloudPayload {
    fn from(p: &inner::OutgoingPayload) -> Self {
        Self { destination: p.destination.clone(), body: p.body.clone() }
    }
}

/// What the cloud counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, uniffi::Record)]
pub struct CloudUsage {
    /// Tokens of the request.
    pub prompt_tokens: u64,
    /// Tokens of the answer.
    pub completion_tokens: u64,
}

/// Why a cloud answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, uniffi::Enum)]
pub enum CloudFinish {
    /// The model ended it, or a stop string did.
    Stop,
    /// The limit of tokens.
    Length,
    /// Something else, such as a content filter.
    Other,
}

/// Why an app's own transport failed. Reasons carry neither keys nor prompts: they are told in events.
#[derive(Debug, Clone, thiserror::Error, uniffi::Error)]
pub enum CloudFault {
    /// No connection, or it broke.
    #[error("{reason}")]
    Unreachable {
        /// Why.
        reason: String,
    },
    /// The server refused.
    #[error("{status}: {reason}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The server's words.
        reason: String,
        /// When to come back, if it says so.
        retry_after_ms: Option<u64>,
    },
    /// What came is not what was agreed.
    #[error("{reason}")]
    Malformed {
        /// What is wrong.
        reason: String,
    },
    /// Anything else.
    #[error("{reason}")]
    Other {
        /// What.
        reason: String,
    },
}

/// An exception that the other side did not declare. Its words may hold anything, so they stay out.
impl From<uniffi::UnexpectedUniFFICallbackError> for CloudFault {
    fn from(_: uniffi::UnexpectedUniFFICallbackError) -> Self {
        Self::Other { reason: "the app's transport threw an undeclared exception".into() }
    }
}

impl From<CloudFault> for inner::CloudError {
    fn from(fault: CloudFault) -> Self {
        match fault {
            CloudFault::Unreachable { reason } => Self::Unreachable { reason },
            CloudFault::Refused { status, reason, retry_after_ms } => Self::Status {
                status,
                message: reason,
                retry_after: retry_after_ms.map(Duration::from_millis),
            },
            CloudFault::Malformed { reason } => Self::Malformed { reason },
            CloudFault::Other { reason } => Self::Foreign { reason },
        }
    }
}

/// Where an app's own transport puts the answer. May be used from any thread; what comes after the end is ignored.
#[derive(Debug, uniffi::Object)]
pub struct CloudReply {
    sink: inner::CloudSink,
}

#[uniffi::export]
impl CloudReply {
    /// More of the answer. `false`: nobody listens any more, stop.
    pub fn text(&self, text: String) -> bool {
        self.sink.push(inner::CloudEvent::Text(text))
    }

    /// The answer is complete.
    pub fn done(&self, finish: CloudFinish, usage: Option<CloudUsage>) {
        let finish = match finish {
            CloudFinish::Stop => inner::CloudFinish::Stop,
            CloudFinish::Length => inner::CloudFinish::Length,
            CloudFinish::Other => inner::CloudFinish::Other,
        };
        let usage = usage.map(|u| inner::CloudUsage {
            prompt_tokens: u.prompt_tokens,
            completion_tokens: u.completion_tokens,
        });
        self.sink.push(inner::CloudEvent::Done { finish, usage });
    }

    /// There will be no more.
    pub fn failed(&self, fault: CloudFault) {
        self.sink.push(inner::CloudEvent::Failed(fault.into()));
    }

    /// Whether somebody still listens.
    pub fn is_open(&self) -> bool {
        self.sink.is_open()
    }
}

/// A way to a cloud model that is the app's own: its gateway, its tokens.
#[uniffi::export(callback_interface)]
pub trait CloudTransport: Send + Sync {
    /// The model's name, for events.
    fn name(&self) -> String;

    /// What would be sent for this prompt. Opens nothing.
    fn prepare(&self, prompt: CloudPrompt) -> Result<CloudPayload, CloudFault>;

    /// Sends a prepared payload and returns at once; the answer goes to `reply`. `call` names the request for `cancel`.
    fn send(&self, call: u64, payload: CloudPayload, reply: Arc<CloudReply>) -> Result<(), CloudFault>;

    /// Nobody waits for this request any more: close its connection. Never blocks; also called after the end.
    fn cancel(&self, call: u64);
}

struct ForeignCloud {
    transport: Arc<dyn CloudTransport>,
    calls: AtomicU64,
}

struct ForeignCall {
    transport: Arc<dyn CloudTransport>,
    call: u64,
}

impl inner::CloudCall for ForeignCall {
    fn cancel(&self) {
        self.transport.cancel(self.call);
    }
}

impl inner::CloudModel for ForeignCloud {
    fn name(&self) -> String {
        self.transport.name()
    }

    fn prepare(&self, request: &inner::CloudRequest) -> Result<inner::OutgoingPayload, inner::CloudError> {
        let payload = self.transport.prepare(request.into())?;
        Ok(inner::OutgoingPayload { destination: payload.destination, body: payload.body })
    }

    fn send(
        &self,
        payload: &inner::OutgoingPayload,
        sink: inner::CloudSink,
    ) -> Result<Box<dyn inner::CloudCall>, inner::CloudError> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        self.transport.send(call, payload.into(), Arc::new(CloudReply { sink }))?;
        Ok(Box::new(ForeignCall { transport: Arc::clone(&self.transport), call }))
    }
}

/// The app's, or its user's, consent to send something.
#[uniffi::export(callback_interface)]
pub trait CloudConsent: Send + Sync {
    /// Whether exactly this may be sent. Called for every request, after redaction, on the turn's thread, which waits: an app may ask
    /// its user here.
    fn allows(&self, payload: CloudPayload) -> bool;
}

struct ForeignConsent(Box<dyn CloudConsent>);

impl Consent for ForeignConsent {
    fn allows(&self, payload: &inner::OutgoingPayload) -> bool {
        self.0.allows(payload.into())
    }
}

/// Takes out what must stay on the device.
#[uniffi::export(callback_interface)]
pub trait CloudRedactor: Send + Sync {
    /// The messages as they may leave; absent: they may not, and the cloud is not asked. The conversation keeps the originals.
    fn redact(&self, messages: Vec<Message>) -> Option<Vec<Message>>;
}

struct ForeignRedactor(Box<dyn CloudRedactor>);

impl Redactor for ForeignRedactor {
    fn redact(&self, messages: &mut Vec<ChatMessage>) -> Result<(), Refused> {
        let theirs = std::mem::take(messages).into_iter().map(Into::into).collect();
        *messages = self.0.redact(theirs).and_then(|m| to_engine(m).ok()).ok_or(Refused)?;
        Ok(())
    }
}

/// Bounds of cloud use, in millionths of the app's currency. What is absent is unbounded.
#[derive(Debug, Clone, PartialEq, Eq, uniffi::Record)]
pub struct CloudBounds {
    /// Price of a million tokens of requests.
    #[uniffi(default = 0)]
    pub prompt_price_micros: u64,
    /// Price of a million tokens of answers.
    #[uniffi(default = 0)]
    pub completion_price_micros: u64,
    /// The most a request may cost.
    #[uniffi(default = None)]
    pub max_per_request_micros: Option<u64>,
    /// The most that all requests of a day (UTC) may cost.
    #[uniffi(default = None)]
    pub max_per_day_micros: Option<u64>,
    /// The most requests per minute.
    #[uniffi(default = None)]
    pub max_per_minute: Option<u32>,
    /// This many failures in a row open the circuit.
    #[uniffi(default = 3)]
    pub failures_to_open: u32,
    /// How long it stays open at first.
    #[uniffi(default = 30000)]
    pub open_for_ms: u64,
}

/// What was spent, for apps that keep it over restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, uniffi::Record)]
pub struct CloudLedger {
    /// Days since 1970, UTC.
    pub day: u64,
    /// Spent on that day, in millionths.
    pub spent_micros: u64,
}

/// Keeps the bounds; one for all conversations of an app.
#[derive(uniffi::Object)]
pub struct CloudBudget {
    gate: Arc<CloudGate>,
}

#[uniffi::export]
impl CloudBudget {
    /// With these bounds.
    #[uniffi::constructor]
    pub fn new(bounds: CloudBounds) -> Arc<Self> {
        let limits = CloudLimits {
            price: Price {
                prompt_micros: bounds.prompt_price_micros,
                completion_micros: bounds.completion_price_micros,
            },
            max_per_request: bounds.max_per_request_micros,
            max_per_day: bounds.max_per_day_micros,
            max_per_minute: bounds.max_per_minute,
            failures_to_open: bounds.failures_to_open,
            open_for: Duration::from_millis(bounds.open_for_ms),
        };
        Arc::new(Self { gate: CloudGate::new(limits) })
    }

    /// What was spent.
    pub fn ledger(&self) -> CloudLedger {
        let Ledger { day, spent } = self.gate.ledger();
        CloudLedger { day, spent_micros: spent }
    }

    /// Takes up a kept ledger.
    pub fn restore(&self, ledger: CloudLedger) {
        self.gate.restore(Ledger { day: ledger.day, spent: ledger.spent_micros });
    }
}

/// A header of every request. Its value is treated as a secret.
#[derive(Clone, uniffi::Record)]
pub struct CloudHeader {
    /// The header's name.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// How a server is told to continue an answer instead of beginning one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, uniffi::Enum)]
pub enum CloudContinuation {
    /// By the fields that vLLM knows.
    Fields,
    /// By a last message of the assistant only.
    Bare,
    /// By asking for it in words.
    Asked,
}

/// An OpenAI-compatible server and how to talk to it.
#[derive(Clone, uniffi::Record)]
pub struct CloudEndpoint {
    /// The address up to and including `/v1`. HTTPS, except on loopback.
    pub base_url: String,
    /// The name of the model there.
    pub model: String,
    /// The key, sent as a bearer token.
    #[uniffi(default = None)]
    pub key: Option<String>,
    /// Further headers.
    #[uniffi(default = [])]
    pub headers: Vec<CloudHeader>,
    /// Further fields of the request, as a JSON object.
    #[uniffi(default = None)]
    pub extra_json: Option<String>,
    /// How answers are continued.
    pub continuation: CloudContinuation,
    /// How often a failed request is sent again.
    #[uniffi(default = 2)]
    pub retries: u32,
}

impl CloudEndpoint {
    fn into_config(self) -> Result<OpenAiConfig, PannierError> {
        let mut config = OpenAiConfig::new(self.base_url, self.model);
        config.key = self.key.map(Secret::new);
        config.headers = self.headers.into_iter().map(|h| (h.name, Secret::new(h.value))).collect();
        if let Some(json) = self.extra_json {
            config.extra = crate::chat::parse(&json, "further fields of a request")?;
        }
        config.continuation = match self.continuation {
            CloudContinuation::Fields => Continuation::Fields,
            CloudContinuation::Bare => Continuation::Bare,
            CloudContinuation::Asked => Continuation::Asked,
        };
        config.retries = self.retries;
        Ok(config)
    }
}

/// How long the cloud may take, in milliseconds.
#[derive(Debug, Clone, PartialEq, Eq, uniffi::Record)]
pub struct CloudWaits {
    /// Until its first text.
    #[uniffi(default = 20000)]
    pub first_text_ms: u64,
    /// Between texts.
    #[uniffi(default = 15000)]
    pub between_ms: u64,
    /// For the whole answer.
    #[uniffi(default = 180000)]
    pub whole_ms: u64,
}

/// A cloud with consent and bounds. Making one opens no connection.
#[derive(uniffi::Object)]
pub struct HybridCloud {
    setup: CloudSetup,
}

#[uniffi::export]
impl HybridCloud {
    /// By the built-in client.
    #[uniffi::constructor]
    pub fn open_ai(
        endpoint: CloudEndpoint,
        consent: Box<dyn CloudConsent>,
        redactor: Option<Box<dyn CloudRedactor>>,
        budget: Arc<CloudBudget>,
        waits: CloudWaits,
    ) -> Result<Arc<Self>, PannierError> {
        let client = OpenAiClient::new(endpoint.into_config()?)
            .map_err(|e| PannierError::InvalidArgument { reason: e.to_string() })?;
        Ok(Self::with(Arc::new(client), consent, redactor, &budget, &waits))
    }

    /// By the app's own transport.
    #[uniffi::constructor]
    pub fn custom(
        transport: Box<dyn CloudTransport>,
        consent: Box<dyn CloudConsent>,
        redactor: Option<Box<dyn CloudRedactor>>,
        budget: Arc<CloudBudget>,
        waits: CloudWaits,
    ) -> Arc<Self> {
        let cloud = ForeignCloud { transport: transport.into(), calls: AtomicU64::new(0) };
        Self::with(Arc::new(cloud), consent, redactor, &budget, &waits)
    }
}

impl HybridCloud {
    fn with(
        model: Arc<dyn inner::CloudModel>,
        consent: Box<dyn CloudConsent>,
        redactor: Option<Box<dyn CloudRedactor>>,
        budget: &CloudBudget,
        waits: &CloudWaits,
    ) -> Arc<Self> {
        let mut setup = CloudSetup::new(model, Arc::new(ForeignConsent(consent)));
        setup.redactor = redactor.map(|r| Arc::new(ForeignRedactor(r)) as Arc<dyn Redactor>);
        setup.gate = Arc::clone(&budget.gate);
        setup.patience = CloudPatience {
            first_text: Duration::from_millis(waits.first_text_ms),
            between: Duration::from_millis(waits.between_ms),
            whole: Duration::from_millis(waits.whole_ms),
            ..CloudPatience::default()
        };
        Arc::new(Self { setup })
    }

    pub(super) fn setup(&self) -> CloudSetup {
        self.setup.clone()
    }
}
