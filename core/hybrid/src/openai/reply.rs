//! What comes back.

use serde::Deserialize;

use crate::cloud::{CloudError, CloudFinish, CloudUsage};

/// A chunk of a stream, or a whole answer: only what we read.
#[derive(Debug, Default, Deserialize)]
struct Wire {
    #[serde(default)]
    choices: Vec<Choice>,
    #[serde(default)]
    usage: Option<Usage>,
    #[serde(default)]
    error: Option<serde_json::Value>,
}

#[derive(Debug, Deserialize)]
struct Choice {
    #[serde(default)]
    index: u64,
    #[serde(default, alias = "message")]
    delta: Option<Delta>,
    #[serde(default)]
    finish_reason: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Delta {
    #[serde(default)]
    content: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Usage {
    #[serde(default)]
    prompt_tokens: Option<u64>,
    #[serde(default)]
    completion_tokens: Option<u64>,
}

/// The state of an answer that is being read.
#[derive(Debug, Default)]
pub(super) struct Reply {
    pub finish: Option<CloudFinish>,
    pub usage: Option<CloudUsage>,
    pub done: bool,
}

impl Reply {
    /// Reads the data of one event, or a whole answer. Gives its text.
    pub fn read(&mut self, data: &str) -> Result<Option<String>, CloudError> {
        if self.done {
            // Some servers go on after the end; nobody asked.
            return Ok(None);
        }
        if data.trim() == "[DONE]" {
            self.done = true;
            return Ok(None);
        }
        let wire: Wire = serde_json::from_str(data).map_err(|_| CloudError::Malformed {
            reason: "a piece of the answer is not the JSON that was agreed".into(),
        })?;
        if let Some(error) = wire.error.filter(|e| !e.is_null()) {
            return Err(CloudError::Status { status: 200, message: message_of(&error), retry_after: None });
        }
        if let Some(usage) = wire.usage {
            self.usage = Some(CloudUsage {
                prompt_tokens: usage.prompt_tokens.unwrap_or(0),
                completion_tokens: usage.completion_tokens.unwrap_or(0),
            });
        }
        let mut text = None;
        for choice in wire.choices.into_iter().filter(|c| c.index == 0) {
            if self.finish.is_none()
                && let Some(content) = choice.delta.and_then(|d| d.content).filter(|c| !c.is_empty())
            {
                text = Some(content);
            }
            match choice.finish_reason.as_deref() {
                None => {}
                Some("stop" | "eos") => self.finish = Some(CloudFinish::Stop),
                Some("length") => self.finish = Some(CloudFinish::Length),
                Some(_) => self.finish = Some(CloudFinish::Other),
            }
        }
        Ok(text)
    }

    /// The stream has ended. Is the answer whole? A finish reason says so, even without `[DONE]`.
    pub fn end(&self) -> Result<CloudFinish, CloudError> {
        match self.finish {
            Some(finish) => Ok(finish),
            None if self.done => Ok(CloudFinish::Other),
            None => Err(CloudError::Truncated),
        }
    }
}

const MAX_MESSAGE: usize = 300;

/// The message of an error body, in one short line.
pub(super) fn message_of(error: &serde_json::Value) -> String {
    let inner = error.get("error").unwrap_or(error);
    let text = inner.get("message").unwrap_or(inner);
    let text = text.as_str().map_or_else(|| text.to_string(), str::to_owned);
    one_line(&text)
}

/// In one line without control characters, shortened.
pub(super) fn one_line(text: &str) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_MESSAGE).collect();
    line.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_and_whole_answers_are_read() {
        let mut reply = Reply::default();
        let first =
            r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#;
        assert_eq!(reply.read(first).unwrap(), None);
        assert_eq!(reply.read(r#"{"choices":[{"delta":{"content":"Hi"}}]}"#).unwrap().as_deref(), Some("Hi"));
        assert_eq!(reply.end(), Err(CloudError::Truncated));
        assert_eq!(reply.read(r#"{"choices":[{"delta":{},"finish_reason":"length"}]}"#).unwrap(), None);
        let usage = r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}}"#;
        assert_eq!(reply.read(usage).unwrap(), None);
        assert_eq!(reply.read("[DONE]").unwrap(), None);
        assert_eq!(reply.read(r#"{"choices":[{"delta":{"content":"again"}}]}"#).unwrap(), None);
        assert_eq!(reply.end(), Ok(CloudFinish::Length));
        assert_eq!(reply.usage, Some(CloudUsage { prompt_tokens: 3, completion_tokens: 4 }));

        let mut whole = Reply::default();
        let body = r#"{"choices":[{"index":0,"message":{"content":"All"},"finish_reason":"stop"}]}"#;
        assert_eq!(whole.read(body).unwrap().as_deref(), Some("All"));
        assert_eq!(whole.end(), Ok(CloudFinish::Stop));
    }

    #[test]
    fn errors_within_a_stream_are_errors() {
        let error = Reply::default().read(r#"{"error":{"message":"over\nloaded"}}"#).unwrap_err();
        assert!(error.to_string().contains("over loaded"), "{error}");
        for bad in ["", "{", "7", "null", r#"{"choices":7}"#, r#"{"choices":[{"delta":{"content":7}}]}"#] {
            assert!(matches!(Reply::default().read(bad), Err(CloudError::Malformed { .. })), "{bad}");
        }
    }
}
