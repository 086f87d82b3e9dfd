//! Ids to text, one at a time, in whole characters.

use crate::tokenizer::{DecodeOptions, Tokenizer};
use std::borrow::Borrow;

/// Decodes a stream of ids. What it returns is always whole characters: bytes of a character that is not yet complete
/// wait for the next token. All returned parts together are what [`Tokenizer::decode`] gives for the whole.
///
/// `T` is whatever gives a tokenizer: `&Tokenizer` or `Arc<Tokenizer>`.
#[derive(Debug)]
pub struct StreamDecoder<T> {
    tokenizer: T,
    skip_special: bool,
    /// The next text loses the space in front.
    strip_space: bool,
    /// Bytes of a character that is not complete.
    pending: Vec<u8>,
    ready: String,
}

impl<T: Borrow<Tokenizer>> StreamDecoder<T> {
    /// A decoder at the start of a text, or behind text if it is a [`DecodeOptions::continuation`].
    pub fn new(tokenizer: T, options: DecodeOptions) -> Self {
        let strip_space = !options.continuation && tokenizer.borrow().adds_space_prefix();
        Self {
            tokenizer,
            skip_special: options.skip_special,
            strip_space,
            pending: Vec::new(),
            ready: String::new(),
        }
    }

    /// Takes the next token and gives the characters that are complete now, if any.
    ///
    /// Bytes that can't become UTF-8 are given as U+FFFD as soon as that is known.
    pub fn push(&mut self, id: u32) -> Option<&str> {
        self.ready.clear();
        let tokenizer = self.tokenizer.borrow();
        if !(self.skip_special && tokenizer.is_control(id)) {
            let bytes = tokenizer.decode_token_bytes(id);
            let mut bytes = bytes.as_ref();
            if self.strip_space && !bytes.is_empty() {
                bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
                self.strip_space = false;
            }
            self.pending.extend_from_slice(bytes);
        }
        self.take_complete();
        (!self.ready.is_empty()).then_some(self.ready.as_str())
    }

    /// Ends the text: an incomplete character is given as U+FFFD. The decoder is as new afterwards, but goes on from
    /// the text so far.
    pub fn finish(&mut self) -> Option<&str> {
        self.ready.clear();
        if !self.pending.is_empty() {
            self.pending.clear();
            self.ready.push(char::REPLACEMENT_CHARACTER);
        }
        (!self.ready.is_empty()).then_some(self.ready.as_str())
    }

    /// Whether bytes of an incomplete character are waiting.
    pub fn is_waiting(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Moves what is decided, valid or not, from `pending` to `ready`.
    fn take_complete(&mut self) {
        let mut done = 0;
        for chunk in self.pending.utf8_chunks() {
            self.ready.push_str(chunk.valid());
            done += chunk.valid().len();
            let invalid = chunk.invalid();
            let at_end = done + invalid.len() == self.pending.len();
            if invalid.is_empty() || (at_end && is_incomplete(invalid)) {
                break;
            }
            self.ready.push(char::REPLACEMENT_CHARACTER);
            done += invalid.len();
        }
        self.pending.drain(..done);
    }
}

/// Whether more bytes could make these a character.
fn is_incomplete(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|e| e.error_len().is_none())
}
