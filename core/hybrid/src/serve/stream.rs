//! Answers as JSON: whole, and in pieces.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use hyper::body::Frame;
use pannier::session::{Completion, FinishReason};
use pannier_tokenizer::Tokenizer;
use serde_json::{Value, json};
use tokio::sync::mpsc::Sender;

use super::answer::{Answer, Piece, logprobs};
use super::error::ApiError;

/// What all parts of one answer share.
pub(super) struct Head {
    id: String,
    created: u64,
    model: String,
    tokenizer: Arc<Tokenizer>,
    logprobs: bool,
    include_usage: bool,
}

static COUNT: AtomicU64 = AtomicU64::new(0);

pub(super) fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

impl Head {
    pub fn new(model: &str, tokenizer: Arc<Tokenizer>, logprobs: bool, include_usage: bool) -> Self {
        let created = unix_time();
        let id = format!("chatcmpl-{created}-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        Self { id, created, model: model.to_owned(), tokenizer, logprobs, include_usage }
    }

    /// A whole answer.
    pub async fn whole(&self, mut answer: Answer) -> Result<Value, ApiError> {
        while let Some(piece) = answer.pieces.recv().await {
            match piece {
                Piece::Text { .. } => {}
                Piece::Failed(error) => return Err(error),
                Piece::Done(completion) => {
                    let logprobs = if self.logprobs {
                        logprobs(&self.tokenizer, &completion.tokens)
                    } else {
                        Value::Null
                    };
                    return Ok(json!({
                        "id": self.id,
                        "object": "chat.completion",
                        "created": self.created,
                        "model": self.model,
                        "choices": [{
                            "index": 0,
                            "message": { "role": "assistant", "content": completion.text, "refusal": null },
                            "logprobs": logprobs,
                            "finish_reason": finish_reason(completion.finish_reason),
                        }],
                        "usage": usage(&completion),
                    }));
                }
            }
        }
        Err(ApiError::closing())
    }

    fn chunk(&self, delta: Value, logprobs: Value, finish: Value) -> Value {
        json!({
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
            "choices": [{ "index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish }],
        })
    }

    /// Sends an answer in pieces; gives up when the client is gone.
    pub async fn stream(
        self,
        first: Piece,
        mut answer: Answer,
        to: Sender<Result<Frame<Bytes>, std::io::Error>>,
    ) {
        let send = async |value: Value| {
            let event = Bytes::from(format!("data: {value}\n\n"));
            to.send(Ok(Frame::data(event))).await.is_ok()
        };
        let role = self.chunk(json!({ "role": "assistant", "content": "" }), Value::Null, Value::Null);
        if !send(role).await {
            return;
        }
        let mut next = Some(first);
        loop {
            let piece = match next.take() {
                Some(piece) => Some(piece),
                None => tokio::select! {
                    piece = answer.pieces.recv() => piece,
                    // The client went away between two pieces.
                    () = to.closed() => return,
                },
            };
            match piece {
                Some(Piece::Text { text, tokens }) => {
                    let logprobs =
                        if self.logprobs { logprobs(&self.tokenizer, &tokens) } else { Value::Null };
                    if !send(self.chunk(json!({ "content": text }), logprobs, Value::Null)).await {
                        return;
                    }
                }
                Some(Piece::Done(completion)) => {
                    let finish = json!(finish_reason(completion.finish_reason));
                    let mut alive = send(self.chunk(json!({}), Value::Null, finish)).await;
                    if alive && self.include_usage {
                        let mut last = self.chunk(Value::Null, Value::Null, Value::Null);
                        if let Some(object) = last.as_object_mut() {
                            object.insert("choices".into(), json!([]));
                            object.insert("usage".into(), usage(&completion));
                        }
                        alive = send(last).await;
                    }
                    if alive {
                        let _ = to.send(Ok(Frame::data(Bytes::from_static(b"data: [DONE]\n\n")))).await;
                    }
                    return;
                }
                Some(Piece::Failed(error)) => {
                    let _ = send(error.body()).await;
                    return;
                }
                None => {
                    let _ = send(ApiError::closing().body()).await;
                    return;
                }
            }
        }
    }
}

fn finish_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop { .. } | FinishReason::StopString { .. } => "stop",
        _ => "length",
    }
}

fn usage(completion: &Completion) -> Value {
    let (prompt, answer) = (completion.stats.prompt_tokens, completion.tokens.len());
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": prompt + answer,
        "prompt_tokens_details": { "cached_tokens": completion.stats.cached_tokens },
    })
}
