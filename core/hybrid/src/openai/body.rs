//! What is sent.

use pannier::session::{ChatMessage, Role};
use serde_json::{Map, Value, json};

use super::{Continuation, OpenAiConfig};
use crate::cloud::CloudRequest;

/// The body of a request, always streaming.
pub(super) fn body(config: &OpenAiConfig, request: &CloudRequest) -> String {
    let mut messages: Vec<Value> = request.messages.iter().map(message).collect();
    let mut body = Map::new();
    body.insert("model".into(), json!(config.model));
    if request.continue_final && config.continuation == Continuation::Asked {
        messages.push(message(&ChatMessage::new(
            Role::User,
            "Continue your last answer exactly where it ends. Do not repeat any of it.",
        )));
    }
    body.insert("messages".into(), Value::Array(messages));
    body.insert("stream".into(), json!(true));
    body.insert("stream_options".into(), json!({ "include_usage": true }));
    if request.continue_final && config.continuation == Continuation::Fields {
        body.insert("continue_final_message".into(), json!(true));
        body.insert("add_generation_prompt".into(), json!(false));
    }
    if let Some(n) = request.max_tokens {
        body.insert("max_tokens".into(), json!(n));
    }
    if let Some(t) = request.temperature {
        // 0.8f32 is 0.800000011920929 as f64: nobody wants to see that in a payload.
        body.insert("temperature".into(), json!((f64::from(t) * 1e4).round() / 1e4));
    }
    if let Some(seed) = request.seed {
        // Several servers read a signed number.
        body.insert("seed".into(), json!(seed & (u64::MAX >> 1)));
    }
    if !request.stop.is_empty() {
        body.insert("stop".into(), json!(request.stop));
    }
    for (name, value) in &config.extra {
        body.insert(name.clone(), value.clone());
    }
    Value::Object(body).to_string()
}

fn message(message: &ChatMessage) -> Value {
    let mut out = Map::new();
    out.insert("role".into(), json!(message.role.as_str()));
    out.insert("content".into(), json!(message.content));
    for (name, value) in &message.fields {
        // What a device's template thinks is not part of the protocol.
        if matches!(name.as_str(), "name" | "tool_calls" | "tool_call_id") {
            out.insert(name.clone(), value.clone());
        }
    }
    Value::Object(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_body_says_what_is_asked() {
        let config = OpenAiConfig::new("https://example.com/v1", "big");
        let request = CloudRequest {
            messages: vec![
                ChatMessage::new(Role::User, "hi").with("reasoning_content", "private"),
                ChatMessage::new(Role::Assistant, "Hel"),
            ],
            continue_final: true,
            max_tokens: Some(7),
            temperature: Some(0.8),
            seed: Some(u64::MAX),
            stop: vec!["\n".into()],
        };
        let got: Value = serde_json::from_str(&body(&config, &request)).unwrap();
        assert_eq!(
            got,
            json!({
                "model": "big",
                "messages": [
                    { "role": "user", "content": "hi" },
                    { "role": "assistant", "content": "Hel" },
                ],
                "stream": true,
                "stream_options": { "include_usage": true },
                "continue_final_message": true,
                "add_generation_prompt": false,
                "max_tokens": 7,
                "temperature": 0.8,
                "seed": i64::MAX,
                "stop": ["\n"],
            })
        );
    }
}
