//! Asking a model, and keeping what it said.

use std::io::{BufRead, Write};
use std::ops::ControlFlow;

use pannier::model::Forward;
use pannier::session::{ChatMessage, ChatOptions, FinishReason, GenerationOptions, Model, Role};
use pannier::speculate::Speculation;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::questions::Question;
use crate::confidence::{Observed, TokenKind, TokenScore};

/// How questions are asked.
#[derive(Debug, Clone)]
pub struct AnswerOptions {
    /// The instructions.
    pub system: String,
    /// Questions and answers that show the form.
    pub examples: Vec<(String, String)>,
    /// At most this many tokens.
    pub max_tokens: usize,
    /// An answer ends before the first of these.
    pub stop: Vec<String>,
    /// Also ask the model whether it is right.
    pub p_true: bool,
}

impl Default for AnswerOptions {
    fn default() -> Self {
        let examples = [
            ("What is 2 + 1?", "2 + 1 is 3."),
            ("What is the capital of Ireland?", "The capital of Ireland is Dublin."),
            ("Write \"pot\" backwards.", "The word \"pot\" backwards is \"top\"."),
            ("What does this Python program print?\nprint(4 - 2)", "The program prints 2."),
        ];
        Self {
            // As assistants speak. In a sentence, most tokens say nothing about the result, as in any longer answer.
            system: "Answer in one short sentence.".into(),
            examples: examples.map(|(q, a)| (q.to_owned(), a.to_owned())).into(),
            max_tokens: 32,
            // What comes after the first line is talk.
            stop: vec!["\n".into()],
            p_true: false,
        }
    }
}

/// An answer with the scores of its tokens: one line of a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The question's place in the list.
    pub id: usize,
    /// What the model said.
    pub answer: String,
    /// Whether that is right.
    pub right: bool,
    /// Whether the model ended by itself.
    pub ended: bool,
    /// Probability of "yes" to whether it is right.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p_true: Option<f64>,
    /// `[id, log-probability, margin, entropy]` of each token.
    pub tokens: Vec<(u32, f32, f32, f32)>,
    /// The text of each token.
    #[serde(default)]
    pub pieces: Vec<String>,
}

impl Record {
    /// The scores of this answer to `prompt`, for features.
    #[must_use]
    pub fn observed(&self, prompt: &str) -> Observed {
        let mut seen = Observed::answer_to(prompt);
        for (at, &(id, logprob, margin, entropy)) in self.tokens.iter().enumerate() {
            let kind = TokenKind::of(self.pieces.get(at).map_or("", String::as_str));
            seen.push(TokenScore { id, kind, logprob, margin, entropy });
        }
        seen.finish(if self.ended { FinishReason::Stop { eog: 0 } } else { FinishReason::Length });
        if let Some(p) = self.p_true {
            seen.set_p_true(p);
        }
        seen
    }
}

/// Asks one question after the other, in a conversation of its own each; the shared beginning is read once. `each` is told every
/// answer, and breaks off.
///
/// # Errors
/// What the model gives.
pub fn answer_all<F: Forward>(
    model: &std::sync::Arc<Model<F>>,
    questions: &[Question],
    options: &AnswerOptions,
    mut each: impl FnMut(&Question, Record) -> ControlFlow<()>,
) -> pannier::Result<()> {
    let tokenizer = model.tokenizer()?;
    let chat = model.chat(ChatOptions {
        system: Some(options.system.clone()).filter(|s| !s.is_empty()),
        ..ChatOptions::default()
    })?;
    let mut beginning = chat.history();
    for (question, answer) in &options.examples {
        beginning.push(ChatMessage::new(Role::User, question.as_str()));
        beginning.push(ChatMessage::new(Role::Assistant, answer.as_str()));
    }
    for question in questions {
        chat.set_history(beginning.clone())?;
        // Answers quote their questions; guesses change no bit of them.
        let generation = GenerationOptions {
            stop: options.stop.clone(),
            speculation: Some(Speculation::Auto),
            ..GenerationOptions::greedy(options.max_tokens)
        };
        let completion = chat.send(&question.prompt, generation, &mut |_| ControlFlow::Continue(()))?;
        let p_true = if options.p_true { crate::confidence::p_true(&chat)? } else { None };
        let round = |x: f32| (x * 1e4).round() / 1e4;
        let record = Record {
            id: question.id,
            right: question.is_right(&completion.text),
            ended: matches!(
                completion.finish_reason,
                FinishReason::Stop { .. } | FinishReason::StopString { .. }
            ),
            p_true: p_true.map(|p| (p * 1e6).round() / 1e6),
            pieces: completion
                .tokens
                .iter()
                .map(|t| String::from_utf8_lossy(&tokenizer.decode_token_bytes(t.id)).into_owned())
                .collect(),
            tokens: completion
                .tokens
                .iter()
                .map(|t| (t.id, round(t.logprob), round(t.margin), round(t.entropy)))
                .collect(),
            answer: completion.text,
        };
        if each(question, record).is_break() {
            return Ok(());
        }
    }
    Ok(())
}

/// Why recorded answers cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The file cannot be read or written.
    #[error("cannot read or write the answers: {0}")]
    Io(#[from] std::io::Error),
    /// A line is no record.
    #[error("line {line} of the answers: {source}")]
    Line {
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        source: serde_json::Error,
    },
}

/// Reads records, one a line.
///
/// # Errors
/// [`RecordError`].
pub fn read_records(from: impl BufRead) -> Result<Vec<Record>, RecordError> {
    let mut out = Vec::new();
    for (at, line) in from.lines().enumerate() {
        let line = line?;
        if !line.trim().is_empty() {
            out.push(
                serde_json::from_str(&line).map_err(|source| RecordError::Line { line: at + 1, source })?,
            );
        }
    }
    Ok(out)
}

/// Writes one line.
///
/// # Errors
/// [`RecordError`].
pub fn write_record(to: &mut impl Write, record: &Record) -> Result<(), RecordError> {
    let mut line = serde_json::to_string(record).map_err(|source| RecordError::Line { line: 0, source })?;
    line.push('\n');
    to.write_all(line.as_bytes())?;
    Ok(to.flush()?)
}
