//! An app's own answers, with labels.

use std::io::BufRead;

use pannier::CancelFlag;
use pannier::model::{Forward, Outputs};
use pannier::sampling::LogitStats;
use pannier::session::{ChatMessage, ChatOptions, FinishReason, Model, Role};
use pannier_tokenizer::EncodeOptions;
use serde::Deserialize;
use thiserror::Error;

use super::questions::{Question, Task};
use crate::confidence::{Features, Observed, TokenKind, TokenScore, p_true};

/// One line of a file of labels. Either what a right answer is, and the model answers; or an answer that the model gave, and whether it was right.
#[derive(Debug, Clone, PartialEq)]
pub struct Labelled {
    /// The question.
    pub prompt: String,
    /// What is known about it.
    pub label: Label,
}

/// What is known about a question.
#[derive(Debug, Clone, PartialEq)]
pub enum Label {
    /// What is right; alternatives are separated by `|`. A number is compared with the last one of the answer, words must be in it.
    Expected {
        /// The right answer.
        expected: String,
    },
    /// An answer of this model, and a verdict on it.
    Answer {
        /// The answer.
        answer: String,
        /// Whether it was right.
        right: bool,
    },
}

/// Why labels cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LabelError {
    /// The file cannot be read.
    #[error("cannot read the labels: {0}")]
    Io(#[from] std::io::Error),
    /// A line is none.
    #[error(
        "line {line} of the labels is neither {{\"prompt\", \"expected\"}} nor {{\"prompt\", \"answer\", \"right\"}}: {reason}"
    )]
    Line {
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
}

/// Reads labels, one JSON object a line.
///
/// # Errors
/// [`LabelError`].
pub fn read_labels(from: impl BufRead) -> Result<Vec<Labelled>, LabelError> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Wire {
        prompt: String,
        expected: Option<String>,
        answer: Option<String>,
        right: Option<bool>,
    }
    let mut out = Vec::new();
    for (at, line) in from.lines().enumerate() {
        let line = line?;
        if line.trim().is_empty() {
            continue;
        }
        let wrong = |reason: String| LabelError::Line { line: at + 1, reason };
        let wire: Wire = serde_json::from_str(&line).map_err(|e| wrong(e.to_string()))?;
        let label = match (wire.expected, wire.answer, wire.right) {
            (Some(expected), None, None) if !expected.trim().is_empty() => Label::Expected { expected },
            (None, Some(answer), Some(right)) if !answer.is_empty() => Label::Answer { answer, right },
            _ => return Err(wrong("the wrong keys, or an empty text".into())),
        };
        out.push(Labelled { prompt: wire.prompt, label });
    }
    Ok(out)
}

impl Labelled {
    /// The question, if the model is to answer it.
    #[must_use]
    pub fn question(&self, id: usize) -> Option<Question> {
        let Label::Expected { expected } = &self.label else { return None };
        Some(Question {
            id,
            task: Task::Own,
            level: 1,
            prompt: self.prompt.clone(),
            expected: expected.clone(),
            decoys: Vec::new(),
        })
    }
}

/// Reads answers that were given before, as the model would have read its own: the features and the verdict of each. `each` is told how
/// many are done. Labels without an answer are passed over, and answers without a token.
///
/// # Errors
/// What the model gives.
pub fn score_answers<F: Forward>(
    model: &std::sync::Arc<Model<F>>,
    system: Option<&str>,
    labels: &[Labelled],
    ask: bool,
    mut each: impl FnMut(usize),
) -> pannier::Result<Vec<(Features, bool)>> {
    let tokenizer = model.tokenizer()?;
    let chat = model.chat(ChatOptions { system: system.map(str::to_owned), ..ChatOptions::default() })?;
    let beginning = chat.history();
    let mut out = Vec::new();
    for (done, label) in labels.iter().enumerate() {
        let Label::Answer { answer, right } = &label.label else { continue };
        let question = ChatMessage::new(Role::User, label.prompt.as_str());
        // Templates write BOS themselves.
        let prompt = chat.render(std::slice::from_ref(&question))?;
        let prompt = tokenizer.encode(&prompt, EncodeOptions { add_special: false, parse_special: true });
        let tokens = tokenizer.encode(answer, EncodeOptions { add_special: false, parse_special: false });
        let mut seen = Observed::answer_to(&label.prompt);
        for score in forced(model, &prompt, &tokens)? {
            let text = tokenizer.decode_token_bytes(score.id);
            seen.push(TokenScore { kind: TokenKind::of(&String::from_utf8_lossy(&text)), ..score });
        }
        seen.finish(FinishReason::Stop { eog: 0 });
        if ask {
            let mut history = beginning.clone();
            history.extend([question, ChatMessage::new(Role::Assistant, answer.as_str())]);
            chat.set_history(history)?;
            if let Some(p) = p_true(&chat)? {
                seen.set_p_true(p);
            }
            chat.set_history(beginning.clone())?;
        }
        out.extend(seen.features().map(|f| (f, *right)));
        each(done + 1);
    }
    Ok(out)
}

/// The scores that `answer` has behind `prompt`.
#[allow(clippy::cast_possible_truncation)] // f32 is enough for a score
fn forced<F: Forward>(model: &Model<F>, prompt: &[u32], answer: &[u32]) -> pannier::Result<Vec<TokenScore>> {
    let Some((last, beginning)) = prompt.split_last() else { return Ok(Vec::new()) };
    let cancel = CancelFlag::new();
    model.with_forward(&cancel, |forward| {
        let vocab = forward.vocab();
        let mut seq = forward.new_seq()?;
        forward.step(&mut seq, beginning, Outputs::None, &cancel)?;
        let mut scores = Vec::with_capacity(answer.len());
        // The row behind each token tells of the next one.
        let mut token = *last;
        for &next in answer {
            let row = forward.step(&mut seq, &[token], Outputs::Last, &cancel)?;
            let row = row.get(..vocab).unwrap_or(row);
            let stats = LogitStats::of(row)?;
            let logprob = row.get(next as usize).map_or(f64::NEG_INFINITY, |logit| stats.logprob(*logit));
            scores.push(TokenScore {
                id: next,
                kind: TokenKind::Other,
                logprob: logprob as f32,
                margin: stats.margin() as f32,
                entropy: stats.entropy() as f32,
            });
            token = next;
        }
        Ok(scores)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_of_two_kinds() {
        let text = "{\"prompt\": \"2 + 2?\", \"expected\": \"4|four\"}\n\n{\"prompt\": \"Hi\", \"answer\": \"Hello\", \"right\": true}\n";
        let labels = read_labels(text.as_bytes()).unwrap();
        assert_eq!(labels.len(), 2);
        let question = labels[0].question(7).unwrap();
        assert!(question.is_right("It is 4.") && question.is_right("four") && !question.is_right("5"));
        assert!(labels[1].question(0).is_none());
        for bad in [
            "{\"prompt\": \"x\"}",
            "{\"prompt\": \"x\", \"answer\": \"y\"}",
            "{\"prompt\": \"x\", \"expected\": \"\"}",
            "{\"prompt\": \"x\", \"expected\": \"y\", \"right\": true}",
            "{\"prompt\": \"x\", \"expcted\": \"y\"}",
            "[]",
        ] {
            let error = read_labels(bad.as_bytes()).unwrap_err();
            assert!(matches!(error, LabelError::Line { line: 1, .. }), "{bad}: {error}");
        }
    }
}
