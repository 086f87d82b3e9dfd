//! Requests: from JSON to what the engine takes, refusing what it cannot do instead of ignoring it.

use std::collections::BTreeMap;

use pannier::sampling::SamplerOptions;
use pannier::session::{ChatMessage, GenerationOptions, Role};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::error::ApiError;

/// As OpenAI documents it.
const MAX_TOP_LOGPROBS: usize = 20;

#[derive(Debug, Deserialize)]
pub(super) struct WireRequest {
    #[serde(default)]
    pub model: Option<String>,
    messages: Vec<WireMessage>,
    #[serde(default)]
    max_tokens: Option<usize>,
    #[serde(default)]
    max_completion_tokens: Option<usize>,
    #[serde(default)]
    temperature: Option<f32>,
    #[serde(default)]
    top_p: Option<f32>,
    #[serde(default)]
    top_k: Option<usize>,
    #[serde(default)]
    min_p: Option<f32>,
    #[serde(default)]
    frequency_penalty: Option<f32>,
    #[serde(default)]
    presence_penalty: Option<f32>,
    #[serde(default)]
    logit_bias: Option<BTreeMap<String, f32>>,
    #[serde(default)]
    seed: Option<i64>,
    #[serde(default)]
    stop: Option<Stop>,
    #[serde(default)]
    stream: Option<bool>,
    #[serde(default)]
    stream_options: Option<StreamOptions>,
    #[serde(default)]
    logprobs: Option<bool>,
    #[serde(default)]
    top_logprobs: Option<usize>,
    #[serde(default)]
    n: Option<u32>,
    #[serde(default)]
    continue_final_message: Option<bool>,
    #[serde(default)]
    tools: Option<Vec<Value>>,
    #[serde(default)]
    response_format: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Stop {
    One(String),
    Many(Vec<String>),
}

#[derive(Debug, Default, Deserialize)]
struct StreamOptions {
    #[serde(default)]
    include_usage: bool,
}

#[derive(Debug, Deserialize)]
struct WireMessage {
    role: String,
    #[serde(default)]
    content: Option<Content>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Debug, Deserialize)]
struct Part {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    text: Option<String>,
}

/// A checked request.
#[derive(Debug)]
pub(super) struct ChatRequest {
    pub messages: Vec<ChatMessage>,
    /// The last message is continued.
    pub continued: Option<String>,
    pub options: GenerationOptions,
    pub stream: bool,
    pub include_usage: bool,
    /// Whether to report log-probabilities.
    pub logprobs: bool,
}

pub(super) fn parse(body: &[u8]) -> Result<WireRequest, ApiError> {
    serde_json::from_slice(body)
        .map_err(|e| ApiError::invalid(None, format!("the request is not usable: {e}")))
}

impl WireRequest {
    pub fn check(self) -> Result<ChatRequest, ApiError> {
        if self.n.is_some_and(|n| n != 1) {
            return Err(ApiError::invalid(Some("n"), "only one answer per request is supported"));
        }
        if self.tools.is_some_and(|t| !t.is_empty()) {
            return Err(ApiError::invalid(Some("tools"), "tools are not supported"));
        }
        let format = self.response_format.as_ref().and_then(|f| f.get("type")).and_then(Value::as_str);
        if format.is_some_and(|f| f != "text") {
            return Err(ApiError::invalid(Some("response_format"), "only the format \"text\" is supported"));
        }
        let mut messages =
            self.messages.into_iter().map(WireMessage::message).collect::<Result<Vec<_>, _>>()?;
        if messages.is_empty() {
            return Err(ApiError::invalid(Some("messages"), "there is no message"));
        }
        let continued = if self.continue_final_message == Some(true) {
            match messages.pop() {
                Some(last) if last.role == Role::Assistant && !messages.is_empty() => Some(last.content),
                _ => {
                    return Err(ApiError::invalid(
                        Some("continue_final_message"),
                        "the last message must be the assistant's, behind others",
                    ));
                }
            }
        } else {
            None
        };
        let logprobs = self.logprobs == Some(true);
        let top_logprobs = self.top_logprobs.unwrap_or(0);
        if top_logprobs > MAX_TOP_LOGPROBS {
            return Err(ApiError::invalid(Some("top_logprobs"), format!("at most {MAX_TOP_LOGPROBS}")));
        }
        if top_logprobs > 0 && !logprobs {
            return Err(ApiError::invalid(Some("top_logprobs"), "needs \"logprobs\": true"));
        }
        let mut logit_bias = BTreeMap::new();
        for (id, bias) in self.logit_bias.unwrap_or_default() {
            let id = id
                .parse()
                .map_err(|_| ApiError::invalid(Some("logit_bias"), format!("{id:?} is no token id")))?;
            logit_bias.insert(id, bias);
        }
        // OpenAI's defaults are the model's own distribution; every option that narrows it has to be asked for.
        let sampler = SamplerOptions {
            temperature: self.temperature.unwrap_or(1.0),
            top_p: self.top_p.unwrap_or(1.0),
            top_k: self.top_k.unwrap_or(0),
            min_p: self.min_p.unwrap_or(0.0),
            frequency_penalty: self.frequency_penalty.unwrap_or(0.0),
            presence_penalty: self.presence_penalty.unwrap_or(0.0),
            penalty_window: usize::MAX,
            logit_bias,
            seed: self.seed.map(i64::cast_unsigned),
            top_logprobs: if logprobs { top_logprobs } else { 0 },
            ..SamplerOptions::default()
        };
        let stop = match self.stop {
            None => Vec::new(),
            Some(Stop::One(stop)) => vec![stop],
            Some(Stop::Many(stop)) => stop,
        };
        Ok(ChatRequest {
            messages,
            continued,
            options: GenerationOptions {
                max_tokens: self.max_completion_tokens.or(self.max_tokens),
                stop,
                sampler,
                ..GenerationOptions::default()
            },
            stream: self.stream == Some(true),
            include_usage: self.stream_options.unwrap_or_default().include_usage,
            logprobs,
        })
    }
}

impl WireMessage {
    fn message(self) -> Result<ChatMessage, ApiError> {
        let role = match self.role.as_str() {
            "system" | "developer" => Role::System,
            "user" => Role::User,
            "assistant" => Role::Assistant,
            "tool" => Role::Tool,
            other => {
                return Err(ApiError::invalid(Some("messages"), format!("the role {other:?} is not known")));
            }
        };
        let content = match self.content {
            None => String::new(),
            Some(Content::Text(text)) => text,
            Some(Content::Parts(parts)) => {
                let mut all = String::new();
                for part in parts {
                    match part.text {
                        Some(text) if part.kind == "text" => all.push_str(&text),
                        _ => {
                            return Err(ApiError::invalid(
                                Some("messages"),
                                format!("parts of the type {:?} are not supported", part.kind),
                            ));
                        }
                    }
                }
                all
            }
        };
        let mut message = ChatMessage::new(role, content);
        message.fields = self.rest;
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(body: Value) -> Result<ChatRequest, ApiError> {
        parse(body.to_string().as_bytes())?.check()
    }

    #[test]
    fn requests_become_options() {
        let request = check(json!({
            "model": "m", "stream": true, "stream_options": {"include_usage": true}, "seed": -1, "stop": "\n",
            "max_tokens": 9, "max_completion_tokens": 7, "temperature": 0, "logprobs": true, "top_logprobs": 2,
            "logit_bias": {"5": -100}, "user": "ignored",
            "messages": [
                {"role": "developer", "content": "be brief"},
                {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                {"role": "assistant", "content": "so"},
            ],
            "continue_final_message": true,
        }))
        .unwrap();
        assert_eq!(request.messages.len(), 2);
        assert_eq!((request.messages[0].role, request.messages[1].content.as_str()), (Role::System, "ab"));
        assert_eq!(request.continued.as_deref(), Some("so"));
        assert_eq!((request.options.max_tokens, request.options.sampler.seed), (Some(7), Some(u64::MAX)));
        assert!(request.stream && request.include_usage && request.logprobs);
        assert_eq!(request.options.sampler.logit_bias[&5], -100.0);
    }

    #[test]
    fn what_cannot_be_done_is_refused_by_name() {
        let hi = json!([{"role": "user", "content": "hi"}]);
        for (body, param) in [
            (json!({"messages": hi, "n": 2}), "n"),
            (json!({"messages": hi, "tools": [{}]}), "tools"),
            (json!({"messages": hi, "response_format": {"type": "json_object"}}), "response_format"),
            (json!({"messages": []}), "messages"),
            (json!({"messages": [{"role": "wizard", "content": "x"}]}), "messages"),
            (json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}), "messages"),
            (json!({"messages": hi, "continue_final_message": true}), "continue_final_message"),
            (json!({"messages": hi, "top_logprobs": 3}), "top_logprobs"),
            (json!({"messages": hi, "logprobs": true, "top_logprobs": 21}), "top_logprobs"),
            (json!({"messages": hi, "logit_bias": {"x": 1}}), "logit_bias"),
        ] {
            let error = check(body.clone()).err().unwrap_or_else(|| panic!("{body}"));
            assert_eq!(error.body()["error"]["param"], param, "{body}");
        }
        for body in [json!({}), json!([]), json!({"messages": "hi"}), json!({"messages": hi, "seed": "x"})] {
            assert!(check(body).is_err());
        }
    }
}
