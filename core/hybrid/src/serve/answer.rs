//! One generation on its own thread.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};

use pannier::TokenInfo;
use pannier::model::Forward;
use pannier::session::{Canceller, Completion, GenerationEvent, GenerationOptions, Model, Prompt, Session};
use pannier_tokenizer::{EncodeOptions, RenderInput, Tokenizer};
use serde_json::{Value, json};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::api::ChatRequest;
use super::error::ApiError;

/// What a generation sends to its connection.
#[derive(Debug)]
pub(super) enum Piece {
    Text { text: String, tokens: Vec<TokenInfo> },
    Done(Box<Completion>),
    Failed(ApiError),
}

/// Pieces that may wait for a slow client. Nearly every answer is shorter, so that a client which stops reading holds no slot.
const PIECES: usize = 4096;

/// Sessions that are idle, the last used one last: its cache is the most likely to help.
pub(super) struct Sessions<F: Forward> {
    model: Arc<Model<F>>,
    idle: Mutex<Vec<Session<F>>>,
}

impl<F: Forward> Sessions<F> {
    pub fn new(model: Arc<Model<F>>) -> Self {
        Self { model, idle: Mutex::default() }
    }

    pub fn model(&self) -> &Arc<Model<F>> {
        &self.model
    }

    fn take(&self) -> Session<F> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        idle.unwrap_or_else(|| self.model.session())
    }

    fn give_back(&self, session: Session<F>) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(session);
    }
}

/// A generation under way; dropping it cancels.
pub(super) struct Answer {
    pub pieces: Receiver<Piece>,
    canceller: Canceller,
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.canceller.cancel();
    }
}

/// Starts a generation. `permit` is held until it ends.
pub(super) fn start<F>(
    sessions: &Arc<Sessions<F>>,
    request: ChatRequest,
    permit: impl Send + 'static,
) -> Answer
where
    F: Forward + Send + 'static,
    F::Seq: Send,
{
    let (to, pieces) = channel(PIECES);
    let canceller = Canceller::new();
    let options = GenerationOptions { canceller: Some(canceller.clone()), ..request.options };
    let (messages, continued) = (request.messages, request.continued);
    let sessions = Arc::clone(sessions);
    tokio::task::spawn_blocking(move || {
        let prompt = tokens(sessions.model(), &messages, continued.as_deref());
        let result = prompt.and_then(|prompt| {
            let session = sessions.take();
            let result = session.generate(prompt, options, &mut |event| forward(&to, event));
            sessions.give_back(session);
            result
        });
        let last = match result {
            Ok(completion) => Piece::Done(Box::new(completion)),
            Err(error) => Piece::Failed(ApiError::from_engine(&error)),
        };
        let _ = to.try_send(last);
        drop(permit);
    });
    Answer { pieces, canceller }
}

fn forward(to: &Sender<Piece>, event: GenerationEvent<'_>) -> ControlFlow<()> {
    let GenerationEvent::Text { text, tokens } = event else { return ControlFlow::Continue(()) };
    // Full or closed: the client reads no more.
    match to.try_send(Piece::Text { text: text.to_owned(), tokens: tokens.to_vec() }) {
        Ok(()) => ControlFlow::Continue(()),
        Err(_) => ControlFlow::Break(()),
    }
}

fn tokens<F: Forward>(
    model: &Model<F>,
    messages: &[pannier::session::ChatMessage],
    continued: Option<&str>,
) -> pannier::Result<Prompt> {
    let mut text = model.template()?.render(&RenderInput {
        messages,
        add_generation_prompt: true,
        now: Some(pannier::session::utc_now()),
        ..RenderInput::default()
    })?;
    text.push_str(continued.unwrap_or_default());
    // Templates write BOS themselves.
    let options = EncodeOptions { add_special: false, parse_special: true };
    Ok(Prompt::Tokens(model.tokenizer()?.encode(&text, options)))
}

/// Log-probabilities of tokens, as OpenAI shows them.
pub(super) fn logprobs(tokenizer: &Tokenizer, tokens: &[TokenInfo]) -> Value {
    let entry = |id: u32, logprob: f32| {
        let bytes = tokenizer.decode_token_bytes(id);
        let mut entry = serde_json::Map::new();
        entry.insert("token".into(), json!(String::from_utf8_lossy(&bytes)));
        // JSON has no infinity; this is what OpenAI writes for the impossible.
        entry.insert("logprob".into(), json!(if logprob.is_finite() { logprob } else { -9999.0 }));
        entry.insert("bytes".into(), json!(bytes.as_ref()));
        entry
    };
    let content: Vec<Value> = tokens
        .iter()
        .map(|token| {
            let top: Vec<Value> = token.top.iter().map(|(id, p)| Value::Object(entry(*id, *p))).collect();
            let mut entry = entry(token.id, token.logprob);
            entry.insert("top_logprobs".into(), Value::Array(top));
            Value::Object(entry)
        })
        .collect();
    json!({ "content": content, "refusal": null })
}
