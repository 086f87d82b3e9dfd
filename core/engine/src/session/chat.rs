//! Conversations.

use std::cell::Cell;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pannier_tokenizer::{ChatMessage, ChatTemplate, LocalTime, RenderInput, Role};
use serde_json::{Map, Value};

use super::clock::utc_now;
use super::core::{self, Outcome, SessionCore, Sink};
use super::overflow::{self, Fitted};
use super::spawn::{GenerationHandle, OwnedSink};
use super::{Completion, FinishReason, GenerationEvent, GenerationOptions, Model, Notice, Overflow};
use crate::Result;
use crate::kv::Evicted;
use crate::model::{Forward, Runner};

/// What stays the same for all turns of a conversation.
#[derive(Debug, Clone, Default)]
pub struct ChatOptions {
    /// The app's instructions, as the first message.
    pub system: Option<String>,
    /// Tools, as a JSON array in the OpenAI format, for templates that know them.
    pub tools: Option<Value>,
    /// Thinking on or off, for templates that know it.
    pub thinking: Option<bool>,
    /// Further variables for the template.
    pub extra: Option<Map<String, Value>>,
    /// The time that templates may show. `None`: when the session was made, in UTC. Fixed for the conversation, so that the
    /// prompt of a later turn begins as the earlier ones did.
    pub now: Option<LocalTime>,
    /// Another template than the file's.
    pub template: Option<Arc<ChatTemplate>>,
    /// What to do when the next turn does not fit into the context.
    pub overflow: Overflow,
}

/// A conversation. Each turn renders the whole history with the model's template; what the new prompt has in common with
/// what was read before is not read again.
///
/// A turn becomes part of the history when it is completed, or cancelled after some text was given out (which the user has
/// seen). A turn that failed, or was cut before the first word, leaves no trace, so it can be repeated.
///
/// The text of special tokens in a message is read as these tokens, as every engine does that renders templates to text:
/// messages from untrusted sources can pretend to be turns.
pub struct ChatSession<F: Forward = Runner> {
    core: Arc<SessionCore<F>>,
    talk: Arc<Talk>,
}

struct Talk {
    template: Arc<ChatTemplate>,
    options: ChatOptions,
    history: Mutex<Vec<ChatMessage>>,
}

impl Talk {
    fn history(&self) -> MutexGuard<'_, Vec<ChatMessage>> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn render(&self, messages: &[ChatMessage]) -> Result<String> {
        let o = &self.options;
        Ok(self.template.render(&RenderInput {
            messages,
            add_generation_prompt: true,
            tools: o.tools.as_ref(),
            thinking: o.thinking,
            now: o.now,
            extra: o.extra.as_ref(),
        })?)
    }

    /// The prompt that answers `next` after as much of the history as fits.
    fn prompt<F: Forward>(
        &self,
        model: &Model<F>,
        next: &[ChatMessage],
        overflow: Overflow,
    ) -> Result<Fitted> {
        let history = self.history().clone();
        // Templates write BOS themselves.
        let encode = |messages: &[ChatMessage]| model.encode_prompt(&self.render(messages)?, false);
        overflow::fit(overflow, model.context(), &history, next, &encode)
    }

    fn commit(&self, next: Vec<ChatMessage>, dropped: usize, outcome: &Outcome<'_>) {
        let answer = match outcome {
            // Cut before the first word: the model has not answered.
            Outcome::Completed(Completion { text, finish_reason, .. })
                if text.is_empty()
                    && matches!(finish_reason, FinishReason::Length | FinishReason::Deadline) =>
            {
                return;
            }
            Outcome::Completed(completion) => completion.text.as_str(),
            Outcome::Cancelled(text) if !text.is_empty() => text,
            Outcome::Cancelled(_) | Outcome::Failed => return,
        };
        let mut history = self.history();
        let head = overflow::head(&history);
        let end = history.len().min(head + dropped);
        history.drain(head..end);
        history.extend(next);
        history.push(ChatMessage::new(Role::Assistant, answer));
    }
}

impl<F: Forward> ChatSession<F> {
    pub(super) fn new(
        core: Arc<SessionCore<F>>,
        template: Arc<ChatTemplate>,
        mut options: ChatOptions,
    ) -> Self {
        options.now.get_or_insert_with(utc_now);
        let system = options.system.as_deref().map(|s| ChatMessage::new(Role::System, s));
        let history = Mutex::new(system.into_iter().collect());
        Self { core, talk: Arc::new(Talk { template, options, history }) }
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &Arc<Model<F>> {
        &self.core.model
    }

    /// Says `text` as the user and generates the answer, telling `sink` on the calling thread.
    ///
    /// # Errors
    /// As for [`Session::generate`](super::Session::generate), and [`Error::Template`](crate::Error::Template) if the template fails or refuses
    /// the conversation.
    pub fn send(&self, text: &str, options: GenerationOptions, sink: &mut Sink<'_>) -> Result<Completion> {
        self.send_messages(vec![ChatMessage::new(Role::User, text)], options, sink)
    }

    /// Adds messages (the user's, results of tools) and generates the answer. With none, the history is answered as it is.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub fn send_messages(
        &self,
        messages: Vec<ChatMessage>,
        options: GenerationOptions,
        sink: &mut Sink<'_>,
    ) -> Result<Completion> {
        let admission = self.core.admit()?;
        turn(&self.talk, admission, messages, options, sink)
    }

    /// Like [`send_messages`](Self::send_messages), on a thread of its own.
    ///
    /// # Errors
    /// As for [`Session::spawn`](super::Session::spawn).
    pub fn spawn(
        &self,
        messages: Vec<ChatMessage>,
        options: GenerationOptions,
        sink: impl FnMut(GenerationEvent<'_>) -> ControlFlow<()> + Send + 'static,
    ) -> Result<GenerationHandle>
    where
        F: 'static,
    {
        let admission = self.core.admit()?;
        let talk = Arc::clone(&self.talk);
        let mut sink: OwnedSink = Box::new(sink);
        GenerationHandle::start(Arc::clone(&admission.control), move || {
            turn(&talk, admission, messages, options, &mut *sink)
        })
    }

    /// The conversation so far, the system message first.
    #[must_use]
    pub fn history(&self) -> Vec<ChatMessage> {
        self.talk.history().clone()
    }

    /// Replaces the conversation: to restore a saved one, or to take back turns.
    ///
    /// # Errors
    /// [`Busy`](super::SessionError::Busy) or [`Closed`](super::SessionError::Closed).
    pub fn set_history(&self, messages: Vec<ChatMessage>) -> Result<()> {
        let _admission = self.core.admit()?;
        *self.talk.history() = messages;
        Ok(())
    }

    /// The prompt that would be sent for these further messages, as text.
    ///
    /// # Errors
    /// [`Error::Template`](crate::Error::Template).
    pub fn render(&self, next: &[ChatMessage]) -> Result<String> {
        let mut messages = self.history();
        messages.extend_from_slice(next);
        self.talk.render(&messages)
    }

    /// How many tokens the prompt for these further messages has, with all of the history.
    ///
    /// # Errors
    /// [`Error::Template`](crate::Error::Template).
    pub fn token_count(&self, next: &[ChatMessage]) -> Result<usize> {
        Ok(self.talk.prompt(&self.core.model, next, Overflow::Fail)?.tokens.len())
    }

    /// Cancels the running generation, if any. Never blocks.
    pub fn cancel(&self) {
        self.core.cancel();
    }

    /// Cancels the running generation, and frees the session's memory as soon as that has ended. Idempotent, never blocks.
    pub fn close(&self) {
        self.core.close();
    }

    /// Gives back the memory of what was read; the history stays.
    ///
    /// # Errors
    /// [`Busy`](super::SessionError::Busy) or [`Closed`](super::SessionError::Closed).
    pub fn forget(&self) -> Result<()> {
        self.core.forget()
    }

    /// How many tokens are kept for the next turn; 0 while a generation runs.
    #[must_use]
    pub fn cached_tokens(&self) -> usize {
        self.core.cached_tokens()
    }

    /// Forgets what the policy of the KV cache does not keep (see [`KvOptions`](crate::kv::KvOptions)), and gives its memory back.
    /// What stays keeps its positions.
    ///
    /// # Errors
    /// [`Busy`](super::SessionError::Busy) or [`Closed`](super::SessionError::Closed); [`Error::OutOfBudget`](crate::Error::OutOfBudget) if pages
    /// that other sessions share cannot be copied.
    pub fn evict(&self) -> Result<Evicted> {
        self.core.evict()
    }

    /// Writes what was read to a file, for [`restore`](Self::restore_cache). The file appears whole or not at all. It holds the
    /// text in a form that this model can read: it is as private as the text itself.
    ///
    /// # Errors
    /// [`NothingRead`](super::SessionError::NothingRead), [`Busy`](super::SessionError::Busy) or [`Closed`](super::SessionError::Closed);
    /// [`Error::Io`](crate::Error::Io).
    pub fn save_cache(&self, path: &Path) -> Result<()> {
        self.core.save(path)
    }

    /// Takes what was read from a file, also one of an earlier process: a prompt that begins with its tokens need not read them again.
    /// Gives the number of tokens.
    ///
    /// # Errors
    /// [`Error::BadCacheFile`](crate::Error::BadCacheFile) if the file is damaged, or was saved with another model or other settings; the session
    /// is as it was then. [`Busy`](super::SessionError::Busy) or [`Closed`](super::SessionError::Closed);
    /// [`Error::Io`](crate::Error::Io), [`Error::OutOfBudget`](crate::Error::OutOfBudget).
    pub fn restore_cache(&self, path: &Path) -> Result<usize> {
        self.core.restore(path)
    }
}

impl<F: Forward> Drop for ChatSession<F> {
    fn drop(&mut self) {
        self.core.close();
    }
}

fn turn<F: Forward>(
    talk: &Talk,
    admission: core::Admission<F>,
    next: Vec<ChatMessage>,
    options: GenerationOptions,
    sink: &mut Sink<'_>,
) -> Result<Completion> {
    let dropped = Cell::new(0);
    let prompt = |model: &Model<F>| -> Result<Vec<u32>> {
        let fitted = talk.prompt(model, &next, talk.options.overflow)?;
        dropped.set(fitted.dropped);
        Ok(fitted.tokens)
    };
    // Cloned, because the prompt is made from it and the history takes it.
    let said = next.clone();
    let mut tell = |event: GenerationEvent<'_>| {
        let started = matches!(event, GenerationEvent::Started { .. });
        match sink(event) {
            ControlFlow::Continue(()) if started && dropped.get() > 0 => {
                sink(GenerationEvent::Notice(Notice::TurnsDropped { messages: dropped.get() }))
            }
            flow => flow,
        }
    };
    core::run(admission, prompt, options, &mut tell, |outcome| talk.commit(said, dropped.get(), &outcome))
}
