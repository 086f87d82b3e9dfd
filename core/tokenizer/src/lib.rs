//! Vocabularies, encoding, streaming decoding and chat templates.
//!
//! A [`Tokenizer`] is read from a model file's metadata and gives the ids that llama.cpp gives for the same file.
//! [`StreamDecoder`] turns generated ids into whole characters. [`ChatTemplate`] renders a conversation into the prompt
//! that the model was trained on.

mod bpe;
mod error;
mod hash;
mod known;
mod special;
mod split;
mod spm;
mod stream;
mod table;
mod template;
mod tokenizer;
mod unicode;
mod unicode_table;
mod vocab;

pub use error::TokenizerError;
pub use stream::StreamDecoder;
pub use template::{ChatMessage, ChatTemplate, LocalTime, RenderInput, Role, TemplateError};
pub use tokenizer::{DecodeOptions, EncodeOptions, Tokenizer};
pub use vocab::{SpecialTokens, TokenType};
