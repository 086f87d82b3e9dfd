//! Any template: it renders or is refused, and never takes the process with it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pannier_tokenizer::{ChatMessage, ChatTemplate, LocalTime, RenderInput, Role, TemplateError};
use serde_json::json;

fuzz_target!(|source: &str| {
    let template = match ChatTemplate::new(source, "<s>", "</s>") {
        Ok(template) => template,
        Err(TemplateError::Syntax { line, .. }) => {
            assert!(line >= 1 && line <= source.lines().count() + 1);
            return;
        }
        Err(_) => return,
    };
    let messages = [
        ChatMessage::new(Role::System, "Be brief."),
        ChatMessage::new(Role::User, " What's 2 * 3?\n"),
        ChatMessage::new(Role::Assistant, "")
            .with("tool_calls", json!([{"function": {"name": "f", "arguments": {"x": 1.5}}}])),
        ChatMessage::new(Role::Tool, "6").with("name", "f"),
    ];
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]);
    let input = RenderInput {
        messages: &messages,
        add_generation_prompt: true,
        tools: Some(&tools),
        thinking: Some(false),
        now: Some(LocalTime { year: 2026, month: 11, day: 29, hour: 13, minute: 5, second: 0 }),
        extra: None,
    };
    let first = template.render(&input);
    assert_eq!(first, template.render(&input));
});
