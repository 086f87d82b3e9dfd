//! From tokens to text events: whole characters, stop strings, and which tokens belong to which text.

use std::sync::Arc;

use pannier_tokenizer::{DecodeOptions, StreamDecoder, Tokenizer, TokenizerError};

use super::stop::{Found, StopMatcher};
use crate::Result;
use crate::sampling::TokenInfo;

/// The text of one answer as it grows.
pub(super) struct TextStream {
    decoder: Option<StreamDecoder<Arc<Tokenizer>>>,
    matcher: StopMatcher,
    /// What the next event will say.
    ready: String,
    /// Tokens since the last event.
    pending: Vec<TokenInfo>,
    /// Everything that was given out.
    text: String,
}

impl TextStream {
    pub fn new(tokenizer: &Result<Arc<Tokenizer>, TokenizerError>, stop: &[String]) -> Result<Self> {
        let tokenizer = match tokenizer {
            Ok(tokenizer) => Some(tokenizer),
            Err(_) if stop.is_empty() => None,
            Err(error) => return Err(error.clone().into()),
        };
        // The answer goes on from the prompt, so a leading space is the model's own.
        let options = DecodeOptions { continuation: true, ..DecodeOptions::default() };
        Ok(Self {
            decoder: tokenizer.map(|t| StreamDecoder::new(Arc::clone(t), options)),
            matcher: StopMatcher::new(stop)?,
            ready: String::new(),
            pending: Vec::new(),
            text: String::new(),
        })
    }

    /// Takes a token. If a stop string is complete, the text ends before it.
    pub fn push(&mut self, token: TokenInfo) -> Option<Found> {
        let id = token.id;
        self.pending.push(token);
        let part = self.decoder.as_mut().and_then(|d| d.push(id)).unwrap_or_default();
        let found = self.matcher.push(part, &mut self.ready);
        if found.is_some() {
            // Bytes of a character behind the stop string are of no interest.
            self.decoder = None;
        }
        found
    }

    /// The next event, if there is anything to say.
    pub fn take(&mut self) -> Option<(String, Vec<TokenInfo>)> {
        let silent = self.ready.is_empty() && (self.decoder.is_some() || self.pending.is_empty());
        if silent {
            return None;
        }
        self.text.push_str(&self.ready);
        Some((std::mem::take(&mut self.ready), std::mem::take(&mut self.pending)))
    }

    /// The answer ends; held-back text is let go. If the model ended it (`whole`), bytes that never became a character are
    /// shown as U+FFFD; if it was cut, they are left out, and `true` says so.
    pub fn finish(&mut self, whole: bool) -> bool {
        let mut cut = false;
        if let Some(decoder) = &mut self.decoder {
            if whole {
                let rest = decoder.finish().unwrap_or_default();
                if self.matcher.push(rest, &mut self.ready).is_some() {
                    return false;
                }
            } else {
                cut = decoder.is_waiting();
            }
        }
        self.matcher.finish(&mut self.ready);
        cut
    }

    /// All text given out so far.
    pub fn text(&self) -> &str {
        &self.text
    }
}
