//! Conversations as text.

use pannier_tokenizer::{ChatMessage, Role};
use serde_json::{Map, Value, json};

use super::LifecycleError;
use crate::{Error, Result};

/// The longest saved conversation that is read: far above any context.
pub const MAX_SAVED_BYTES: usize = 64 << 20;
const VERSION: u64 = 1;
const ROLES: [Role; 4] = [Role::System, Role::User, Role::Assistant, Role::Tool];

pub(super) fn write(messages: &[ChatMessage]) -> String {
    let messages: Vec<Value> = messages
        .iter()
        .map(|m| {
            let mut object = Map::new();
            object.insert("role".into(), m.role.as_str().into());
            object.insert("content".into(), m.content.as_str().into());
            if !m.fields.is_empty() {
                object.insert("fields".into(), Value::Object(m.fields.clone()));
            }
            Value::Object(object)
        })
        .collect();
    json!({ "version": VERSION, "messages": messages }).to_string()
}

pub(super) fn read(text: &str) -> Result<Vec<ChatMessage>> {
    let bad = |reason: String| Error::from(LifecycleError::BadSave { reason });
    if text.len() > MAX_SAVED_BYTES {
        return Err(bad(format!("{} bytes, above the limit of {MAX_SAVED_BYTES}", text.len())));
    }
    // The parser's message may quote the text; its place is enough.
    let value: Value = serde_json::from_str(text)
        .map_err(|e| bad(format!("no JSON at line {}, column {}", e.line(), e.column())))?;
    if value.get("version").and_then(Value::as_u64) != Some(VERSION) {
        return Err(bad(format!("its version is not {VERSION}")));
    }
    let messages = value.get("messages").and_then(Value::as_array);
    let messages = messages.ok_or_else(|| bad("`messages` is missing".into()))?;
    messages
        .iter()
        .enumerate()
        .map(|(i, m)| {
            let role = m.get("role").and_then(Value::as_str);
            let role = ROLES.into_iter().find(|r| Some(r.as_str()) == role);
            let role = role.ok_or_else(|| bad(format!("message {i} has no known role")))?;
            let content = m.get("content").and_then(Value::as_str);
            let content = content.ok_or_else(|| bad(format!("message {i} has no content")))?;
            let mut message = ChatMessage::new(role, content);
            match m.get("fields") {
                None => {}
                Some(Value::Object(fields)) => message.fields = fields.clone(),
                Some(_) => return Err(bad(format!("the fields of message {i} are no object"))),
            }
            Ok(message)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_comes_back() {
        let messages = vec![
            ChatMessage::new(Role::System, "Be brief.\n\"quoted\""),
            ChatMessage::new(Role::User, "👩‍👩‍👧 漢字").with("name", "Ada"),
            ChatMessage::new(Role::Assistant, ""),
            ChatMessage::new(Role::Tool, "{}"),
        ];
        assert_eq!(read(&write(&messages)).unwrap(), messages);
        assert_eq!(read(&write(&[])).unwrap(), []);
    }

    #[test]
    fn what_is_no_conversation_is_refused_without_quoting_it() {
        for text in [
            "",
            "secret",
            "[]",
            "{\"version\":2,\"messages\":[]}",
            "{\"version\":1}",
            "{\"version\":1,\"messages\":[{\"role\":\"secret\",\"content\":\"\"}]}",
            "{\"version\":1,\"messages\":[{\"role\":\"user\"}]}",
            "{\"version\":1,\"messages\":[{\"role\":\"user\",\"content\":\"secret\",\"fields\":3}]}",
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.starts_with("not a saved conversation"), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
