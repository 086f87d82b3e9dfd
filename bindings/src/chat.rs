//! Conversations.

use std::ops::ControlFlow;
use std::sync::Arc;

use pannier::lifecycle::ManagedChat;
use pannier::session::{ChatMessage, ChatOptions, Role};
use tokio::sync::oneshot;

use crate::border::{CancelOnDrop, guarded, on_thread};
use crate::{
    Answer, CancelHandle, ContextOverflow, EvictionReport, GenerationEvent, GenerationSettings, PannierError,
    TokenSink,
};

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, uniffi::Enum)]
pub enum MessageRole {
    /// Instructions of the app.
    System,
    /// The user.
    User,
    /// The model.
    Assistant,
    /// The result of a tool.
    Tool,
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, uniffi::Record)]
pub struct Message {
    /// Who speaks.
    pub role: MessageRole,
    /// What is said.
    pub content: String,
    /// Further fields for the template, as a JSON object; absent: none.
    #[uniffi(default = None)]
    pub fields_json: Option<String>,
}

impl Message {
    fn into_engine(self) -> Result<ChatMessage, PannierError> {
        let role = match self.role {
            MessageRole::System => Role::System,
            MessageRole::User => Role::User,
            MessageRole::Assistant => Role::Assistant,
            MessageRole::Tool => Role::Tool,
        };
        let mut message = ChatMessage::new(role, self.content);
        if let Some(json) = self.fields_json {
            message.fields = parse(&json, "fields of a message")?;
        }
        Ok(message)
    }
}

impl From<ChatMessage> for Message {
    fn from(message: ChatMessage) -> Self {
        let role = match message.role {
            Role::System => MessageRole::System,
            Role::User => MessageRole::User,
            Role::Assistant => MessageRole::Assistant,
            Role::Tool => MessageRole::Tool,
        };
        let fields_json =
            (!message.fields.is_empty()).then(|| serde_json::Value::Object(message.fields).to_string());
        Self { role, content: message.content, fields_json }
    }
}

/// The parser's own message may quote the text, so it is left out.
pub(crate) fn parse<T: serde::de::DeserializeOwned>(json: &str, what: &str) -> Result<T, PannierError> {
    serde_json::from_str(json).map_err(|e| PannierError::InvalidArgument {
        reason: format!("{what}: no such JSON at line {}, column {}", e.line(), e.column()),
    })
}

pub(crate) fn to_engine(messages: Vec<Message>) -> Result<Vec<ChatMessage>, PannierError> {
    messages.into_iter().map(Message::into_engine).collect()
}

/// What stays the same for all turns of a conversation.
#[derive(Debug, Clone, Default, uniffi::Record)]
pub struct ChatConfig {
    /// The app's instructions, as the first message.
    #[uniffi(default = None)]
    pub system: Option<String>,
    /// Tools, as a JSON array in the OpenAI format, for templates that know them.
    #[uniffi(default = None)]
    pub tools_json: Option<String>,
    /// Thinking on or off, for templates that know it.
    #[uniffi(default = None)]
    pub thinking: Option<bool>,
    /// Where the conversation is written when the app goes to the background.
    #[uniffi(default = None)]
    pub checkpoint_path: Option<String>,
    /// What happens when the next turn does not fit into the context; absent: it fails.
    #[uniffi(default = None)]
    pub overflow: Option<ContextOverflow>,
}

impl ChatConfig {
    pub(crate) fn into_options(self) -> Result<ChatOptions, PannierError> {
        let tools = self.tools_json.as_deref().map(|json| parse(json, "tools")).transpose()?;
        Ok(ChatOptions {
            system: self.system,
            tools,
            thinking: self.thinking,
            overflow: self.overflow.map(Into::into).unwrap_or_default(),
            ..ChatOptions::default()
        })
    }
}

/// A conversation. It outlives the loaded model.
#[derive(Debug, uniffi::Object)]
pub struct Chat {
    pub(crate) inner: Arc<ManagedChat>,
}

impl Chat {
    pub(crate) fn new(inner: ManagedChat) -> Arc<Self> {
        Arc::new(Self { inner: Arc::new(inner) })
    }
}

#[uniffi::export]
impl Chat {
    /// Adds messages and generates the answer. Loads the model if need be. Returns after the terminal event.
    ///
    /// A call that is refused (`Busy`, `Closed`, `InvalidArgument` of a message) gives no event. Any other gives exactly one terminal event.
    /// Dropping the future cancels; so does `cancel`.
    pub async fn send(
        &self,
        messages: Vec<Message>,
        settings: GenerationSettings,
        sink: Box<dyn TokenSink>,
        cancel: Arc<CancelHandle>,
    ) -> Result<Answer, PannierError> {
        let messages = to_engine(messages)?;
        let options = settings.into_options(&cancel);
        let (done, result) = oneshot::channel();
        let on_event = move |event: pannier::session::GenerationEvent<'_>| {
            if let Some(event) = GenerationEvent::convert(&event) {
                sink.on_event(event);
            }
            ControlFlow::Continue(())
        };
        let on_end = move |result: Result<pannier::session::Completion, pannier::Error>| {
            // The receiver is gone when the caller was cancelled.
            let _ = done.send(result);
        };
        guarded(|| self.inner.spawn(messages, options, on_event, on_end))?;
        let armed = CancelOnDrop(Some(cancel));
        let result = result.await;
        armed.disarm();
        match result {
            Ok(Ok(completion)) => Ok((&completion).into()),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(PannierError::internal("the thread of a generation was lost")),
        }
    }

    /// The conversation so far, the system message first.
    pub fn history(&self) -> Vec<Message> {
        self.inner.history().into_iter().map(Into::into).collect()
    }

    /// Replaces the conversation.
    pub fn set_history(&self, messages: Vec<Message>) -> Result<(), PannierError> {
        let messages = to_engine(messages)?;
        guarded(|| self.inner.set_history(messages))
    }

    /// The conversation as text, for `restore`.
    pub fn save(&self) -> String {
        self.inner.save()
    }

    /// Replaces the conversation by a saved one.
    pub fn restore(&self, saved: String) -> Result<(), PannierError> {
        guarded(|| self.inner.restore(&saved))
    }

    /// How many tokens the prompt for these further messages has. Loads the model if need be.
    pub async fn token_count(&self, next: Vec<Message>) -> Result<u64, PannierError> {
        let next = to_engine(next)?;
        let chat = Arc::clone(&self.inner);
        on_thread(move || Ok(chat.token_count(&next)? as u64)).await
    }

    /// How many tokens need not be read again for the next turn.
    pub fn cached_tokens(&self) -> u64 {
        self.inner.cached_tokens() as u64
    }

    /// Writes what was read to a file, for `restore_cache`. It is as private as the conversation itself.
    pub async fn save_cache(&self, path: String) -> Result<(), PannierError> {
        let chat = Arc::clone(&self.inner);
        on_thread(move || Ok(chat.save_cache(path.as_ref())?)).await
    }

    /// Takes what was read from a file; gives the number of tokens. The conversation stays as it is. Loads the model if need be.
    pub async fn restore_cache(&self, path: String) -> Result<u64, PannierError> {
        let chat = Arc::clone(&self.inner);
        on_thread(move || Ok(chat.restore_cache(path.as_ref())? as u64)).await
    }

    /// Forgets what the policy of the KV cache does not keep.
    pub async fn evict(&self) -> Result<EvictionReport, PannierError> {
        let chat = Arc::clone(&self.inner);
        on_thread(move || {
            let evicted = chat.evict()?;
            Ok(EvictionReport { gone: evicted.gone as u64, kept: evicted.kept as u64 })
        })
        .await
    }

    /// Gives back the memory of what was read; the history stays.
    pub fn forget(&self) {
        self.inner.forget();
    }

    /// Cancels the running turn, if any. Never blocks.
    pub fn cancel(&self) {
        self.inner.cancel();
    }

    /// Cancels the running turn and frees the conversation's memory. Idempotent, never blocks.
    pub fn shutdown(&self) {
        self.inner.close();
    }
}
