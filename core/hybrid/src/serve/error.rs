//! Refusals, in the form that OpenAI's clients read.

use hyper::StatusCode;
use pannier::session::SessionError;
use serde_json::{Value, json};

/// A refusal.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ApiError {
    pub status: StatusCode,
    kind: &'static str,
    code: Option<&'static str>,
    param: Option<&'static str>,
    message: String,
    pub retry_after: Option<u32>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, code: None, param: None, message: message.into(), retry_after: None }
    }

    /// The request is wrong.
    pub fn invalid(param: Option<&'static str>, message: impl Into<String>) -> Self {
        Self { param, ..Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message) }
    }

    pub fn with_status(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }

    pub fn unknown_model(name: &str) -> Self {
        Self {
            code: Some("model_not_found"),
            param: Some("model"),
            ..Self::new(
                StatusCode::NOT_FOUND,
                "invalid_request_error",
                format!("the model {name:?} is not served here"),
            )
        }
    }

    pub fn unauthorized() -> Self {
        Self {
            code: Some("invalid_api_key"),
            ..Self::new(StatusCode::UNAUTHORIZED, "authentication_error", "the key is missing or wrong")
        }
    }

    pub fn busy(waiting: usize) -> Self {
        Self {
            code: Some("queue_full"),
            retry_after: Some(1),
            ..Self::new(
                StatusCode::TOO_MANY_REQUESTS,
                "rate_limit_error",
                format!("{waiting} requests are waiting already"),
            )
        }
    }

    pub fn closing() -> Self {
        Self {
            code: Some("shutting_down"),
            retry_after: Some(5),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", "the server is shutting down")
        }
    }

    /// What the engine says.
    pub fn from_engine(error: &pannier::Error) -> Self {
        use pannier::Error as E;
        match error {
            E::Session(SessionError::PromptTooLong { .. }) => Self {
                code: Some("context_length_exceeded"),
                ..Self::invalid(Some("messages"), error.to_string())
            },
            E::Session(SessionError::InvalidOption { .. } | SessionError::EmptyPrompt)
            | E::Template(_)
            | E::Sampling(_) => Self::invalid(None, error.to_string()),
            E::Session(SessionError::Closed { .. }) | E::Cancelled => Self::closing(),
            other => Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", other.to_string()),
        }
    }

    pub fn body(&self) -> Value {
        json!({ "error": { "message": self.message, "type": self.kind, "param": self.param, "code": self.code } })
    }
}
