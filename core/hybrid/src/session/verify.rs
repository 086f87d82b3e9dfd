//! Asking the cloud to judge a draft.

use pannier::session::{ChatMessage, Role};
use serde::Deserialize;

use crate::cloud::CloudError;

/// The cloud's opinion.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Verdict {
    /// That the draft is right.
    pub confidence: f64,
    /// A better answer, if there is one.
    pub corrected: Option<String>,
}

#[derive(Deserialize)]
struct Wire {
    confidence: f64,
    #[serde(default, alias = "answer", alias = "text", alias = "correction")]
    corrected: Option<String>,
}

const QUESTION: &str = "Judge your last answer. Reply with one JSON object and nothing else: \
{\"confidence\": NUMBER, \"corrected\": TEXT}. NUMBER, from 0 to 1, is the probability that the answer is correct and complete. \
TEXT is a corrected answer in full, or null if none is needed.";

/// The conversation with the draft and the question about it.
pub(super) fn ask(mut messages: Vec<ChatMessage>, draft: &str) -> Vec<ChatMessage> {
    messages.push(ChatMessage::new(Role::Assistant, draft));
    messages.push(ChatMessage::new(Role::User, QUESTION));
    messages
}

/// Reads the reply. Models put objects into fences and sentences; the outermost braces count.
pub(super) fn read(reply: &str) -> Result<Verdict, CloudError> {
    let malformed = |reason: &str| CloudError::Malformed { reason: format!("no verdict: {reason}") };
    let (start, end) = reply.find('{').zip(reply.rfind('}')).ok_or_else(|| malformed("no JSON object"))?;
    let object = reply.get(start..=end).ok_or_else(|| malformed("no JSON object"))?;
    let wire: Wire = serde_json::from_str(object).map_err(|_| malformed("not the agreed JSON object"))?;
    if !(0.0..=1.0).contains(&wire.confidence) {
        return Err(malformed("the confidence is not between 0 and 1"));
    }
    let corrected = wire.corrected.filter(|t| !t.trim().is_empty());
    Ok(Verdict { confidence: wire.confidence, corrected })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_are_read_from_what_models_write() {
        let read = |s: &str| super::read(s).map(|v| (v.confidence, v.corrected));
        assert_eq!(read(r#"{"confidence": 0.9, "corrected": null}"#), Ok((0.9, None)));
        assert_eq!(
            read("Sure:\n```json\n{\"confidence\":0.2,\"answer\":\"{x}\"}\n```"),
            Ok((0.2, Some("{x}".into())))
        );
        assert_eq!(read(r#"{"confidence": 1, "corrected": "  "}"#), Ok((1.0, None)));
        for bad in ["", "yes", "{}", "}{", r#"{"confidence": 7}"#, r#"{"confidence": "high"}"#] {
            assert!(matches!(read(bad), Err(CloudError::Malformed { .. })), "{bad}");
        }
    }
}
