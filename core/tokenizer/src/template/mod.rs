//! Chat templates: a conversation to the prompt that the model was trained on.
//!
//! The template is Jinja and comes with the model file. It is rendered as Hugging Face's `apply_chat_template` does:
//! blocks trimmed, Python's methods, `raise_exception`, `strftime_now`, `break` and `continue`. A template is untrusted:
//! work, memory and depth are limited (see `guard`), and it reads no file, clock or network.

mod error;
mod guard;
mod json;
mod python;
mod time;

pub use error::TemplateError;
pub use time::LocalTime;

use crate::tokenizer::Tokenizer;
use minijinja::{Environment, Error, ErrorKind, Value};
use pannier_gguf::Metadata;
use serde_json::{Map, Value as Json, json};
use std::error::Error as _;

const KEY: &str = "tokenizer.chat_template";

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Instructions of the app.
    System,
    /// The user.
    User,
    /// The model.
    Assistant,
    /// The result of a tool.
    Tool,
}

impl Role {
    /// The name in templates.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatMessage {
    /// Who speaks.
    pub role: Role,
    /// What is said.
    pub content: String,
    /// Further fields that templates read, such as `name`, `tool_calls`, `tool_call_id` or `reasoning_content`.
    pub fields: Map<String, Json>,
}

impl ChatMessage {
    /// A message of text only.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self { role, content: content.into(), fields: Map::new() }
    }

    /// Adds a field.
    #[must_use]
    pub fn with(mut self, field: impl Into<String>, value: impl Into<Json>) -> Self {
        self.fields.insert(field.into(), value.into());
        self
    }
}

/// What a template is given.
#[derive(Debug, Clone, Copy, Default)]
pub struct RenderInput<'a> {
    /// The conversation, oldest first.
    pub messages: &'a [ChatMessage],
    /// Whether to end with the header of the assistant's answer.
    pub add_generation_prompt: bool,
    /// Descriptions of tools, as a JSON array in the OpenAI format.
    pub tools: Option<&'a Json>,
    /// Thinking on or off, for templates that know it (`enable_thinking`, `thinking`).
    pub thinking: Option<bool>,
    /// The time for `strftime_now`. Without it that function does not exist and templates use their own default date.
    pub now: Option<LocalTime>,
    /// Further variables (`reasoning_effort`, `documents`). They can't replace the ones above.
    pub extra: Option<&'a Map<String, Json>>,
}

/// A model's chat template, compiled.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    env: Environment<'static>,
    source: String,
    bos_token: String,
    eos_token: String,
}

/// The name under which the only template is compiled.
const NAME: &str = "chat_template";

impl ChatTemplate {
    /// Compiles a template. `bos_token` and `eos_token` are the texts of these tokens, or empty.
    ///
    /// # Errors
    /// The source is too long, not valid, or nested too deep.
    pub fn new(source: &str, bos_token: &str, eos_token: &str) -> Result<Self, TemplateError> {
        let prepared = guard::prepare(source)?;
        let mut env = Environment::new();
        let mut syntax = minijinja::syntax::SyntaxConfig::builder();
        syntax.trim_blocks(true).lstrip_blocks(true).keep_trailing_newline(true);
        env.set_syntax(syntax.build().map_err(|e| failure(&e, 0))?);
        env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        // Some 30 macro calls deep: types of tools are rendered by macros that call themselves.
        env.set_recursion_limit(240);
        python::install(&mut env);
        env.add_template_owned(NAME, prepared).map_err(|e| failure(&e, 0))?;
        Ok(Self {
            env,
            source: source.to_owned(),
            bos_token: bos_token.to_owned(),
            eos_token: eos_token.to_owned(),
        })
    }

    /// The template of a model file.
    ///
    /// # Errors
    /// [`TemplateError::NoTemplate`] if the file has none; else as [`ChatTemplate::new`].
    pub fn from_metadata(metadata: &Metadata, tokenizer: &Tokenizer) -> Result<Self, TemplateError> {
        let source = metadata.opt_str(KEY).ok().flatten().ok_or(TemplateError::NoTemplate)?;
        Self::with_tokens_of(source, tokenizer)
    }

    /// A named template of a model file, such as `tool_use` or `rag`.
    ///
    /// # Errors
    /// [`TemplateError::NoVariant`] if the file has none of that name; else as [`ChatTemplate::new`].
    pub fn variant_from_metadata(
        metadata: &Metadata,
        tokenizer: &Tokenizer,
        name: &str,
    ) -> Result<Self, TemplateError> {
        let source = metadata.opt_str(&format!("{KEY}.{name}")).ok().flatten().ok_or_else(|| {
            let names: Vec<&str> = Self::variants(metadata).collect();
            let available = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            TemplateError::NoVariant { name: name.to_owned(), available }
        })?;
        Self::with_tokens_of(source, tokenizer)
    }

    /// The names of a file's further templates.
    pub fn variants(metadata: &Metadata) -> impl Iterator<Item = &str> {
        metadata.iter().filter_map(|(key, _)| key.strip_prefix(KEY)?.strip_prefix('.'))
    }

    fn with_tokens_of(source: &str, tokenizer: &Tokenizer) -> Result<Self, TemplateError> {
        let special = tokenizer.special_tokens();
        let text = |id: Option<u32>| id.and_then(|id| tokenizer.piece(id)).unwrap_or("");
        Self::new(source, text(special.bos), text(special.eos))
    }

    /// The template's text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether the template reads a variable that the caller may give, such as `enable_thinking` or `tools`.
    pub fn reads(&self, variable: &str) -> bool {
        self.env.get_template(NAME).is_ok_and(|t| t.undeclared_variables(false).contains(variable))
    }

    /// Renders a conversation.
    ///
    /// # Errors
    /// [`TemplateError::Refused`] if the template rejects the conversation in its own words (roles that do not
    /// alternate, say), [`TemplateError::Failed`] where it is wrong, [`TemplateError::TooMuchWork`] if it does not end.
    pub fn render(&self, input: &RenderInput<'_>) -> Result<String, TemplateError> {
        let context = self.context(input);
        let fuel = fuel_for(&context);
        let mut env = self.env.clone();
        env.set_fuel(Some(fuel));
        let mut context: Vec<(String, Value)> =
            context.iter().map(|(key, value)| (key.clone(), python::from_json(value, 0))).collect();
        if let Some(now) = input.now {
            context.push(("strftime_now".to_owned(), python::strftime_now(now)));
        }
        let context = Value::from_pairs(context);
        let template = env.get_template(NAME).map_err(|e| failure(&e, fuel))?;
        template.render(context).map_err(|e| failure(&e, fuel))
    }

    fn context(&self, input: &RenderInput<'_>) -> Map<String, Json> {
        let mut context = input.extra.cloned().unwrap_or_default();
        let messages: Vec<Json> = input
            .messages
            .iter()
            .map(|message| {
                let mut map = Map::new();
                map.insert("role".to_owned(), message.role.as_str().into());
                map.insert("content".to_owned(), message.content.as_str().into());
                for (key, value) in &message.fields {
                    map.entry(key.as_str()).or_insert_with(|| value.clone());
                }
                Json::Object(map)
            })
            .collect();
        context.insert("messages".to_owned(), Json::Array(messages));
        context.insert("add_generation_prompt".to_owned(), input.add_generation_prompt.into());
        // Always there, as in the reference: templates ask whether they are none.
        context.insert("tools".to_owned(), input.tools.cloned().unwrap_or(Json::Null));
        context.entry("documents").or_insert(Json::Null);
        context.insert("bos_token".to_owned(), json!(self.bos_token));
        context.insert("eos_token".to_owned(), json!(self.eos_token));
        if let Some(thinking) = input.thinking {
            context.insert("enable_thinking".to_owned(), thinking.into());
            context.insert("thinking".to_owned(), thinking.into());
        }
        context
    }
}

/// Steps that a conversation may take: templates need some hundred for a message and copy each text a few times. One
/// step is an instruction or 64 bytes, so this also limits the memory.
fn fuel_for(context: &Map<String, Json>) -> u64 {
    const BASE: u64 = 400_000;
    const PER_VALUE: u64 = 500;
    const BYTES_PER_STEP: u64 = 2;
    fn measure(value: &Json, depth: usize) -> (u64, u64) {
        // Deeper values are refused when the template touches them.
        if depth > 128 {
            return (1, 0);
        }
        let add = |(n, bytes): (u64, u64), (m, more): (u64, u64)| (n + m, bytes + more);
        match value {
            Json::String(text) => (1, text.len() as u64),
            Json::Array(items) => items.iter().map(|v| measure(v, depth + 1)).fold((1, 0), add),
            Json::Object(map) => {
                let keys = map.keys().map(|k| k.len() as u64).sum();
                map.values().map(|v| measure(v, depth + 1)).fold((1, keys), add)
            }
            _ => (1, 0),
        }
    }
    let (values, bytes) = context.values().map(|v| measure(v, 0)).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
    BASE + values.saturating_mul(PER_VALUE) + bytes / BYTES_PER_STEP
}

fn failure(error: &Error, fuel: u64) -> TemplateError {
    let line = error.line().unwrap_or(1);
    let mut source = error.source();
    while let Some(cause) = source {
        if let Some(raised) = cause.downcast_ref::<python::Raised>() {
            return TemplateError::Refused { line, message: raised.0.clone() };
        }
        source = cause.source();
    }
    let message = match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    match error.kind() {
        ErrorKind::OutOfFuel => TemplateError::TooMuchWork { line, fuel },
        ErrorKind::SyntaxError => TemplateError::Syntax { line, message },
        _ => TemplateError::Failed { line, message },
    }
}
