//! The answer as it grows: draws, text, and when it ends.

use std::sync::Arc;

use pannier_tokenizer::Tokenizer;

use super::text::TextStream;
use super::{FinishReason, GenerationOptions, Model};
use crate::Result;
use crate::model::Forward;
use crate::sampling::{Sampler, TokenInfo};

/// A token that was drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Drawn {
    pub id: u32,
    /// It is the last one.
    pub ended: Option<FinishReason>,
}

/// One answer. Everything that a token means for it is decided here, so that it does not matter how many tokens a pass gives.
pub(super) struct Answer {
    pub sampler: Sampler,
    pub text: TextStream,
    /// Without the end-of-generation token.
    pub tokens: Vec<TokenInfo>,
    /// Tokens drawn, the end-of-generation token included.
    pub drawn: usize,
    /// Knows the tokens that end an answer, if they are to end it.
    ends: Option<Arc<Tokenizer>>,
    max_tokens: Option<usize>,
    context: usize,
}

impl Answer {
    /// `prompt` is for the penalties.
    pub fn new<F: Forward>(
        model: &Model<F>,
        options: &mut GenerationOptions,
        prompt: &[u32],
    ) -> Result<Self> {
        let mut sampler = Sampler::new(options.sampler.clone(), model.vocab)?;
        for hook in options.hooks.drain(..) {
            sampler.add_hook(hook);
        }
        sampler.observe(prompt);
        Ok(Self {
            sampler,
            text: TextStream::new(&model.tokenizer, &options.stop)?,
            tokens: Vec::new(),
            drawn: 0,
            ends: model.tokenizer.as_ref().ok().filter(|_| !options.ignore_eog).cloned(),
            max_tokens: options.max_tokens,
            context: model.context,
        })
    }

    /// Tokens that it may still get, if that is limited.
    pub fn left(&self) -> Option<usize> {
        self.max_tokens.map(|max| max.saturating_sub(self.drawn))
    }

    /// Draws the next token; `fed` tokens are in the sequence.
    pub fn draw(&mut self, logits: &[f32], fed: usize) -> Result<Drawn> {
        let token = self.sampler.sample(logits)?;
        self.drawn += 1;
        let id = token.id;
        if self.ends.as_ref().is_some_and(|t| t.is_eog(id)) {
            return Ok(Drawn { id, ended: Some(FinishReason::Stop { eog: id }) });
        }
        self.tokens.push(token.clone());
        let found = self.text.push(token);
        let ended = if let Some(found) = found {
            Some(FinishReason::StopString { index: found.index })
        } else if self.left() == Some(0) {
            Some(FinishReason::Length)
        } else if fed >= self.context {
            Some(FinishReason::ContextFull)
        } else {
            None
        };
        Ok(Drawn { id, ended })
    }
}
