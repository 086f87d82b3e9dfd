//! The device's side, as conversations see it.

use pannier::lifecycle::ManagedChat;
use pannier::model::Forward;
use pannier::session::{ChatMessage, ChatSession, Completion, GenerationOptions, Sink};

use crate::confidence::TokenKind;

/// A model on the device that keeps a conversation: [`ChatSession`], or [`ManagedChat`] where models come and go; tests have scripts.
pub trait EdgeModel: Send + Sync {
    /// The conversation so far.
    fn history(&self) -> Vec<ChatMessage>;

    /// Replaces the conversation.
    ///
    /// # Errors
    /// A generation runs, or the session is closed.
    fn set_history(&self, messages: Vec<ChatMessage>) -> pannier::Result<()>;

    /// Tokens of the prompt for these further messages.
    ///
    /// # Errors
    /// The template refuses them.
    fn token_count(&self, next: &[ChatMessage]) -> pannier::Result<usize>;

    /// The most tokens of prompt and answer.
    fn context(&self) -> usize;

    /// Answers these further messages. The sink may take its time: the generation waits.
    ///
    /// # Errors
    /// As for [`ChatSession::send_messages`].
    fn generate(
        &self,
        messages: Vec<ChatMessage>,
        options: GenerationOptions,
        sink: &mut Sink<'_>,
    ) -> pannier::Result<Completion>;

    /// Cancels the generation under way. Never blocks.
    fn cancel(&self);

    /// What a token is made of; the confidence wants to know. Costs little: it is asked once per token.
    fn token_kind(&self, id: u32) -> TokenKind {
        let _ = id;
        TokenKind::Other
    }

    /// What probability the model gives to its last answer being right; `None` if it cannot tell.
    ///
    /// # Errors
    /// As for [`generate`](Self::generate).
    fn p_true(&self) -> pannier::Result<Option<f64>> {
        Ok(None)
    }
}

fn kind<F: Forward>(session: &ChatSession<F>, id: u32) -> TokenKind {
    let Ok(tokenizer) = session.model().tokenizer() else { return TokenKind::default() };
    TokenKind::of(&String::from_utf8_lossy(&tokenizer.decode_token_bytes(id)))
}

impl<F: Forward + Send> EdgeModel for ChatSession<F>
where
    F::Seq: Send,
{
    fn history(&self) -> Vec<ChatMessage> {
        ChatSession::history(self)
    }

    fn set_history(&self, messages: Vec<ChatMessage>) -> pannier::Result<()> {
        ChatSession::set_history(self, messages)
    }

    fn token_count(&self, next: &[ChatMessage]) -> pannier::Result<usize> {
        ChatSession::token_count(self, next)
    }

    fn context(&self) -> usize {
        self.model().context()
    }

    fn generate(
        &self,
        messages: Vec<ChatMessage>,
        options: GenerationOptions,
        sink: &mut Sink<'_>,
    ) -> pannier::Result<Completion> {
        self.send_messages(messages, options, sink)
    }

    fn cancel(&self) {
        ChatSession::cancel(self);
    }

    fn token_kind(&self, id: u32) -> TokenKind {
        kind(self, id)
    }

    fn p_true(&self) -> pannier::Result<Option<f64>> {
        crate::confidence::p_true(self)
    }
}

/// The model is loaded when the device has to answer, not before.
impl<F: Forward + Send + 'static> EdgeModel for ManagedChat<F>
where
    F::Seq: Send,
{
    fn history(&self) -> Vec<ChatMessage> {
        ManagedChat::history(self)
    }

    fn set_history(&self, messages: Vec<ChatMessage>) -> pannier::Result<()> {
        ManagedChat::set_history(self, messages)
    }

    fn token_count(&self, next: &[ChatMessage]) -> pannier::Result<usize> {
        ManagedChat::token_count(self, next)
    }

    fn context(&self) -> usize {
        // Counting tokens has loaded it. While it is not loaded nobody has counted, and nothing is too long.
        self.with_session(|session| session.model().context()).unwrap_or(usize::MAX)
    }

    fn generate(
        &self,
        messages: Vec<ChatMessage>,
        options: GenerationOptions,
        sink: &mut Sink<'_>,
    ) -> pannier::Result<Completion> {
        self.send(&messages, options, sink)
    }

    fn cancel(&self) {
        // Not the conversation's own `cancel`: that would use up the canceller of the whole turn.
        self.with_session(ChatSession::cancel);
    }

    fn token_kind(&self, id: u32) -> TokenKind {
        self.with_session(|session| kind(session, id)).unwrap_or_default()
    }

    fn p_true(&self) -> pannier::Result<Option<f64>> {
        self.with_session(crate::confidence::p_true).unwrap_or(Ok(None))
    }
}
