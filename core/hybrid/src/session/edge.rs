//! The device's side, as conversations see it.

use pannier::model::Forward;
use pannier::session::{ChatMessage, ChatSession, Completion, GenerationOptions, Sink};

/// A model on the device that keeps a conversation. [`ChatSession`] is the one; tests have scripts.
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

    /// What probability the model gives to its last answer being right; `None` if it cannot tell.
    ///
    /// # Errors
    /// As for [`generate`](Self::generate).
    fn p_true(&self) -> pannier::Result<Option<f64>> {
        Ok(None)
    }
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

    fn p_true(&self) -> pannier::Result<Option<f64>> {
        crate::confidence::p_true(self)
    }
}
