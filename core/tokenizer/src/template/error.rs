//! Why a conversation could not be rendered.

use thiserror::Error;

/// Why a chat template could not be read or rendered. There is never a fallback to another template: a prompt in the
/// wrong format makes a model talk nonsense without any sign of it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The file has no template.
    #[error(
        "this model has no chat template (`tokenizer.chat_template`): it is a base model, or the file lost it. Use raw completion, or pass a template"
    )]
    NoTemplate,
    /// The file has no template of that name.
    #[error("this model has no chat template named `{name}`; it has: {available}")]
    NoVariant {
        /// The name asked for.
        name: String,
        /// The names that exist, with commas.
        available: String,
    },
    /// The template's text can't be used at all.
    #[error("the chat template is {bytes} bytes long; at most {limit} are supported")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The most that is supported.
        limit: usize,
    },
    /// The template is not valid Jinja, or uses a part of it that is not supported.
    #[error("chat template, line {line}: {message}")]
    Syntax {
        /// Line in the template, from 1.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// The template itself refused the conversation with `raise_exception`.
    #[error("the chat template refuses this conversation (line {line}): {message}")]
    Refused {
        /// Line in the template, from 1.
        line: usize,
        /// The template's own words.
        message: String,
    },
    /// The template failed while it was rendered.
    #[error("chat template, line {line}: {message}")]
    Failed {
        /// Line in the template, from 1.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// The template does more work, or makes more text, than a conversation of this size can need.
    #[error("the chat template does too much work at line {line}: stopped after {fuel} steps")]
    TooMuchWork {
        /// Line in the template, from 1.
        line: usize,
        /// The limit.
        fuel: u64,
    },
}
