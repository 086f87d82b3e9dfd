//! The built-in client for OpenAI-compatible servers: a vendor's, a company's own gateway, vLLM, llama.cpp, or `pannier serve`.
//!
//! * HTTPS is required, except for loopback. Redirects are not followed: they would carry the key elsewhere.
//! * Keys are [`Secret`]s: neither `Debug` nor an error shows them.
//! * Failures before the first text are retried (429, 5xx, no connection), with full jitter and heed to `Retry-After`.
//! * Cancelling drops the request's task, and with it its connection.

mod body;
mod client;
mod reply;
mod retry;
mod sse;

pub use client::OpenAiClient;

use std::fmt;
use std::time::Duration;

use serde_json::{Map, Value};

/// A key. Never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a key.
    #[must_use]
    pub fn new(key: impl Into<String>) -> Self {
        Self(key.into())
    }

    fn reveal(&self) -> &str {
        &self.0
    }

    /// Whether `other` is the key. Takes the same time wherever they differ.
    #[cfg(feature = "serve")]
    pub(crate) fn equals(&self, other: &str) -> bool {
        let (a, b) = (self.0.as_bytes(), other.as_bytes());
        let differ = a.iter().zip(b).fold(0, |sum, (a, b)| sum | (a ^ b));
        a.len() == b.len() && std::hint::black_box(differ) == 0
    }

    /// The text without the key, should it be in there: some servers repeat it in their errors.
    fn scrub(&self, text: &str) -> String {
        if self.0.is_empty() { text.to_owned() } else { text.replace(&self.0, "…") }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// How a server is told to continue an answer instead of beginning one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Continuation {
    /// A last message of the assistant, and the fields of vLLM (`continue_final_message`); other servers ignore unknown fields or
    /// continue anyway.
    #[default]
    Fields,
    /// Only a last message of the assistant, for servers that refuse unknown fields.
    Bare,
    /// A sentence that asks for it, for servers that begin anew after any message.
    Asked,
}

/// A server and how to talk to it.
#[derive(Debug, Clone)]
pub struct OpenAiConfig {
    /// The address up to and including `/v1`.
    pub base_url: String,
    /// The name of the model there.
    pub model: String,
    /// The key, sent as a bearer token.
    pub key: Option<Secret>,
    /// Further headers, for gateways. Their values are treated as secrets.
    pub headers: Vec<(String, Secret)>,
    /// Further fields of the request body.
    pub extra: Map<String, Value>,
    /// How answers are continued.
    pub continuation: Continuation,
    /// For one connection.
    pub connect_timeout: Duration,
    /// From the request to the headers of the reply.
    pub header_timeout: Duration,
    /// Between two pieces of the reply.
    pub read_timeout: Duration,
    /// How often a failed request is sent again.
    pub retries: u32,
    /// The most to wait before a retry. A server that wants more is believed: the request fails.
    pub max_retry_wait: Duration,
}

impl OpenAiConfig {
    /// A server with default patience.
    #[must_use]
    pub fn new(base_url: impl Into<String>, model: impl Into<String>) -> Self {
        Self {
            base_url: base_url.into(),
            model: model.into(),
            key: None,
            headers: Vec::new(),
            extra: Map::new(),
            continuation: Continuation::default(),
            connect_timeout: Duration::from_secs(10),
            header_timeout: Duration::from_secs(30),
            read_timeout: Duration::from_secs(30),
            retries: 2,
            max_retry_wait: Duration::from_secs(5),
        }
    }

    /// With this key.
    #[must_use]
    pub fn with_key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(Secret::new(key));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        let mut config = OpenAiConfig::new("https://example.com/v1", "m").with_key("sk-123");
        config.headers.push(("x-gateway".into(), Secret::new("tok-9")));
        let shown = format!("{config:?}");
        assert!(!shown.contains("sk-123") && !shown.contains("tok-9"), "{shown}");
        assert_eq!(Secret::new("sk-1").scrub("bad key sk-1!"), "bad key …!");
    }
}
