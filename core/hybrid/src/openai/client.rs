//! The client: one task per request, on a runtime of its own.

use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use reqwest::header::{
    ACCEPT, AUTHORIZATION, CONTENT_TYPE, DATE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER,
};
use reqwest::{Response, Url};
use tokio::runtime::Runtime;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::reply::{Reply, message_of, one_line};
use super::retry;
use super::sse::Sse;
use super::{OpenAiConfig, body};
use crate::cloud::{CloudCall, CloudError, CloudEvent, CloudModel, CloudRequest, CloudSink, OutgoingPayload};

/// The most of an error's body that is read.
const MAX_ERROR_BODY: usize = 16 << 10;
/// The most of a whole answer, from a server that does not stream.
const MAX_BODY: usize = 4 << 20;

/// A client of one server and model.
///
/// Threads, TLS and sockets are made by the first request: a client that is never allowed to send has none.
pub struct OpenAiClient {
    config: Arc<OpenAiConfig>,
    url: Url,
    engine: OnceLock<Result<Engine, CloudError>>,
    running: Arc<AtomicUsize>,
}

struct Engine {
    http: reqwest::Client,
    /// `Some` until dropped.
    runtime: Option<Runtime>,
}

impl Drop for Engine {
    fn drop(&mut self) {
        // An ordinary drop waits for tasks, and panics on an async thread.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl OpenAiClient {
    /// Checks the address. Opens nothing.
    ///
    /// # Errors
    /// [`CloudError::Address`].
    pub fn new(config: OpenAiConfig) -> Result<Self, CloudError> {
        let url = endpoint(&config.base_url)?;
        headers(&config)?;
        Ok(Self { config: Arc::new(config), url, engine: OnceLock::new(), running: Arc::default() })
    }

    /// How many requests are under way.
    #[must_use]
    pub fn running(&self) -> usize {
        self.running.load(Ordering::Acquire)
    }

    fn engine(&self) -> Result<&Engine, CloudError> {
        self.engine.get_or_init(|| engine(&self.config, &self.url)).as_ref().map_err(Clone::clone)
    }
}

fn engine(config: &OpenAiConfig, url: &Url) -> Result<Engine, CloudError> {
    let failed = |reason: String| CloudError::Unreachable { reason };
    let tls = pannier::store::tls_client_config().map_err(|e| failed(e.to_string()))?;
    let mut http = reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(config.connect_timeout)
        // Phones change networks: a kept connection is often dead when it is needed, and costs a retry then.
        .pool_max_idle_per_host(0)
        .default_headers(headers(config)?)
        .user_agent(concat!("pannier/", env!("CARGO_PKG_VERSION")));
    if is_loopback(url) {
        // A proxy cannot know what our loopback is.
        http = http.no_proxy();
    }
    let http = http.build().map_err(|e| failed(reason(e)))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("pannier-cloud")
        .enable_all()
        .build()
        .map_err(|e| failed(e.to_string()))?;
    Ok(Engine { http, runtime: Some(runtime) })
}

/// The address of the completions, checked.
fn endpoint(base: &str) -> Result<Url, CloudError> {
    let refused = |reason: &str| CloudError::Address { reason: reason.to_owned() };
    let text = format!("{}/chat/completions", base.trim_end_matches('/'));
    let url = Url::parse(&text).map_err(|e| refused(&e.to_string()))?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(refused("it holds a user or password; use a key or a header"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(refused("it ends in a query or fragment"));
    }
    match url.scheme() {
        "https" => Ok(url),
        "http" if is_loopback(&url) => Ok(url),
        "http" => Err(refused("it is not HTTPS, which only loopback may do without")),
        other => Err(refused(&format!("its scheme is {other:?}, not https"))),
    }
}

fn is_loopback(url: &Url) -> bool {
    let Some(host) = url.host_str() else { return false };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn headers(config: &OpenAiConfig) -> Result<HeaderMap, CloudError> {
    let refused = |what: &str| CloudError::Address { reason: format!("{what} cannot be sent as a header") };
    let mut out = HeaderMap::new();
    let mut secret = |name: HeaderName, value: &str, what: &str| {
        let mut value = HeaderValue::from_str(value).map_err(|_| refused(what))?;
        value.set_sensitive(true);
        out.insert(name, value);
        Ok(())
    };
    if let Some(key) = &config.key {
        secret(AUTHORIZATION, &format!("Bearer {}", key.reveal()), "the key")?;
    }
    for (name, value) in &config.headers {
        let parsed = HeaderName::from_bytes(name.as_bytes()).map_err(|_| refused(name))?;
        secret(parsed, value.reveal(), name)?;
    }
    Ok(out)
}

/// Counts a request as long as its task lives.
struct Running(Arc<AtomicUsize>);

impl Running {
    fn new(counter: &Arc<AtomicUsize>) -> Self {
        counter.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(counter))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

struct Call(AbortHandle);

impl CloudCall for Call {
    fn cancel(&self) {
        // The task is dropped at its next await, with its connection.
        self.0.abort();
    }
}

impl CloudModel for OpenAiClient {
    fn name(&self) -> String {
        self.config.model.clone()
    }

    fn prepare(&self, request: &CloudRequest) -> Result<OutgoingPayload, CloudError> {
        Ok(OutgoingPayload { destination: self.url.to_string(), body: body::body(&self.config, request) })
    }

    fn send(&self, payload: &OutgoingPayload, sink: CloudSink) -> Result<Box<dyn CloudCall>, CloudError> {
        let engine = self.engine()?;
        let Some(runtime) = &engine.runtime else {
            return Err(CloudError::Unreachable { reason: "the client is closed".into() });
        };
        let request = Request {
            http: engine.http.clone(),
            url: self.url.clone(),
            body: payload.body.clone(),
            config: Arc::clone(&self.config),
        };
        let running = Running::new(&self.running);
        let task = runtime.spawn(async move {
            let _running = running;
            request.run(&sink).await;
        });
        Ok(Box::new(Call(task.abort_handle())))
    }
}

struct Request {
    http: reqwest::Client,
    url: Url,
    body: String,
    config: Arc<OpenAiConfig>,
}

impl Request {
    async fn run(&self, sink: &CloudSink) {
        let mut attempt = 0;
        let error = loop {
            let mut told = false;
            match self.once(sink, &mut told).await {
                Ok(()) => return,
                // Text was given out: a second answer would be another one.
                Err(error) if told || attempt >= self.config.retries || !retry::is_transient(&error) => {
                    break error;
                }
                Err(error) => {
                    match retry::wait(&error, attempt, self.config.max_retry_wait, retry::random()) {
                        Some(wait) => tokio::time::sleep(wait).await,
                        None => break error,
                    }
                }
            }
            if !sink.is_open() {
                return;
            }
            attempt += 1;
        };
        sink.push(CloudEvent::Failed(self.scrub(error)));
    }

    /// One attempt. `told`: some text was given out.
    async fn once(&self, sink: &CloudSink, told: &mut bool) -> Result<(), CloudError> {
        let send = self
            .http
            .post(self.url.clone())
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "text/event-stream, application/json")
            .body(self.body.clone())
            .send();
        let limit = self.config.header_timeout;
        let mut response = match timeout(limit, send).await {
            Ok(Ok(response)) => response,
            Ok(Err(e)) => return Err(unreachable(e)),
            Err(_) => return Err(CloudError::TimedOut { what: "no reply", after: limit }),
        };
        if !response.status().is_success() {
            return Err(self.refusal(response).await);
        }
        let kind = response.headers().get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
        let streams = !kind.starts_with("application/json");
        let mut reply = Reply::default();
        let give = |text: Option<String>, told: &mut bool| match text {
            Some(text) => {
                *told = true;
                sink.push(CloudEvent::Text(text))
            }
            None => sink.is_open(),
        };
        if streams {
            let mut sse = Sse::default();
            let mut events = Vec::new();
            while let Some(bytes) = self.chunk(&mut response).await? {
                sse.push(&bytes, &mut events)?;
                for event in events.drain(..) {
                    if !give(reply.read(&event)?, told) {
                        return Ok(());
                    }
                }
                if reply.done {
                    break;
                }
            }
        } else {
            let mut whole = Vec::new();
            while let Some(bytes) = self.chunk(&mut response).await? {
                if whole.len().saturating_add(bytes.len()) > MAX_BODY {
                    return Err(CloudError::TooLong { limit: MAX_BODY });
                }
                whole.extend_from_slice(&bytes);
            }
            let whole = String::from_utf8(whole)
                .map_err(|_| CloudError::Malformed { reason: "the answer is not UTF-8".into() })?;
            if !give(reply.read(&whole)?, told) {
                return Ok(());
            }
        }
        sink.push(CloudEvent::Done { finish: reply.end()?, usage: reply.usage });
        Ok(())
    }

    async fn chunk(&self, response: &mut Response) -> Result<Option<Vec<u8>>, CloudError> {
        let limit = self.config.read_timeout;
        match timeout(limit, response.chunk()).await {
            Ok(Ok(bytes)) => Ok(bytes.map(|b| b.to_vec())),
            // A connection that breaks in the middle of a body, however it does.
            Ok(Err(_)) => Err(CloudError::Truncated),
            Err(_) => Err(CloudError::TimedOut { what: "no further bytes", after: limit }),
        }
    }

    /// Why the server refused.
    async fn refusal(&self, mut response: Response) -> CloudError {
        let status = response.status().as_u16();
        let header = |name| response.headers().get(name).and_then(|v| v.to_str().ok());
        let ours = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let now = header(DATE).and_then(retry::http_date).unwrap_or_else(ours);
        let retry_after = header(RETRY_AFTER).and_then(|value| retry::retry_after(value, now));
        let mut text = Vec::new();
        while text.len() < MAX_ERROR_BODY {
            match self.chunk(&mut response).await {
                Ok(Some(bytes)) => text.extend_from_slice(&bytes),
                // The status says enough.
                Ok(None) | Err(_) => break,
            }
        }
        let text = String::from_utf8_lossy(&text);
        let message = match serde_json::from_str::<serde_json::Value>(&text) {
            Ok(value) => message_of(&value),
            Err(_) => one_line(&text),
        };
        CloudError::Status { status, message, retry_after }
    }

    fn scrub(&self, error: CloudError) -> CloudError {
        match error {
            CloudError::Status { status, mut message, retry_after } => {
                for secret in self.config.key.iter().chain(self.config.headers.iter().map(|(_, s)| s)) {
                    message = secret.scrub(&message);
                }
                CloudError::Status { status, message, retry_after }
            }
            other => other,
        }
    }
}

fn unreachable(error: reqwest::Error) -> CloudError {
    if error.is_timeout() {
        return CloudError::Unreachable { reason: "no connection in time".into() };
    }
    CloudError::Unreachable { reason: reason(error) }
}

/// An error with its causes in one line, without the address.
fn reason(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text.push_str(": ");
            text.push_str(&inner_text);
        }
        cause = inner.source();
    }
    one_line(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_https_and_loopback_addresses_are_used() {
        for good in [
            "https://api.example.com/v1",
            "http://127.0.0.1:8080/v1/",
            "http://localhost/v1",
            "http://[::1]:9/v1",
        ] {
            assert!(endpoint(good).unwrap().path().ends_with("/v1/chat/completions"), "{good}");
        }
        for bad in [
            "http://example.com/v1",
            "http://127.0.0.1.example.com/v1",
            "http://localhost.example.com/v1",
            "http://192.168.0.2/v1",
            "ftp://localhost/v1",
            "https://user:pass@example.com/v1",
            "https://example.com/v1?key=1",
            "example.com",
            "",
        ] {
            let error = endpoint(bad).unwrap_err();
            assert!(
                matches!(error, CloudError::Address { .. }) && !error.to_string().contains("pass@"),
                "{bad}"
            );
        }
    }

    #[test]
    fn a_key_that_is_no_header_is_refused_without_showing_it() {
        let error = OpenAiClient::new(OpenAiConfig::new("https://example.com/v1", "m").with_key("a\nb"));
        assert_eq!(
            error.err().map(|e| e.to_string()).unwrap(),
            "the cloud address is refused: the key cannot be sent as a header"
        );
    }
}
