//! Conversations.

use std::ops::ControlFlow;
use std::sync::Arc;

use pannier::Error;
use pannier::sampling::SamplerOptions;
use pannier::session::{
    ChatMessage, ChatOptions, FinishReason, GenerationEvent, GenerationOptions, Model, ModelParts, Role,
    SessionError,
};
use pannier_tokenizer::{ChatTemplate, TemplateError};

use crate::fake::*;

fn quiet(_: GenerationEvent<'_>) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Answers every turn with a letter for each message in the prompt.
fn counting() -> Fake {
    Fake::new(|seq| {
        let messages = seq.iter().filter(|t| **t == START).count();
        // Since the header of the answer: "assistant\n".
        let answered = seq.iter().rev().take_while(|t| **t != START).count() - "assistant\n".len();
        if answered < messages { u32::from(b'a') + answered as u32 } else { END }
    })
}

fn options() -> GenerationOptions {
    GenerationOptions::greedy(100)
}

fn contents(history: &[ChatMessage]) -> Vec<(&'static str, String)> {
    history.iter().map(|m| (m.role.as_str(), m.content.clone())).collect()
}

#[test]
fn turns_become_history_and_are_not_read_again() {
    let model = counting().with_bytes();
    let chat = model.chat(ChatOptions { system: Some("be brief".into()), ..ChatOptions::default() }).unwrap();
    let (first, result) = listen(|sink| chat.send("hello", options(), sink));
    assert_eq!(result.unwrap().text, "abc");
    let (second, result) = listen(|sink| chat.send("again", options(), sink));
    let completion = result.unwrap();
    assert_eq!(
        (completion.text.as_str(), completion.finish_reason),
        ("abcde", FinishReason::Stop { eog: END })
    );
    let history = chat.history();
    assert_eq!(
        contents(&history),
        [
            ("system", "be brief".to_owned()),
            ("user", "hello".to_owned()),
            ("assistant", "abc".to_owned()),
            ("user", "again".to_owned()),
            ("assistant", "abcde".to_owned()),
        ]
    );
    // The second prompt begins with the first one and its answer.
    let read_before = first.started.unwrap().0 + "abc".len();
    assert_eq!(second.started.unwrap().1, read_before);
    // A cold session says the same.
    let cold = model.chat(ChatOptions::default()).unwrap();
    cold.set_history(history[..3].to_vec()).unwrap();
    assert_eq!(cold.send("again", options(), &mut quiet).unwrap().text, "abcde");
    assert_eq!(cold.history(), history);
    // What would be sent can be seen and counted.
    let next = [ChatMessage::new(Role::User, "x")];
    let text = chat.render(&next).unwrap();
    assert!(text.ends_with("<|turn|>user\nx<|end|><|turn|>assistant\n"));
    assert!(chat.token_count(&next).unwrap() > second.started.unwrap().0);
}

#[test]
fn cancelled_turns_keep_what_was_seen_and_failed_ones_leave_no_trace() {
    let model = counting().with_bytes();
    let chat = model.chat(ChatOptions::default()).unwrap();
    // Broken off before any text.
    let result = chat.send("one", options(), &mut |_| ControlFlow::Break(()));
    assert!(matches!(result, Err(Error::Cancelled)));
    assert_eq!(chat.history(), []);
    // Refused by the template.
    let (told, result) = listen(|sink| chat.send("forbidden", options(), sink));
    assert!(matches!(result, Err(Error::Template(TemplateError::Refused { .. }))));
    assert_eq!((told.events, chat.history().len()), (1, 0));
    // Cut before the first word.
    for cut in [
        GenerationOptions { max_tokens: Some(0), ..options() },
        GenerationOptions { deadline: Some(std::time::Duration::ZERO), ..options() },
    ] {
        assert_eq!(chat.send("zero", cut, &mut quiet).unwrap().text, "");
        assert_eq!(chat.history(), []);
    }
    // Broken off after the first letter.
    let mut seen = String::new();
    let result = chat.send("two", options(), &mut |event| {
        if let GenerationEvent::Text { text, .. } = event {
            seen.push_str(text);
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    });
    assert!(matches!(result, Err(Error::Cancelled)));
    assert_eq!(seen, "a");
    assert_eq!(contents(&chat.history()), [("user", "two".to_owned()), ("assistant", "a".to_owned())]);
    assert_eq!(chat.send("three", options(), &mut quiet).unwrap().text, "abcd");
}

#[test]
fn the_history_is_up_to_date_when_the_end_is_told() {
    let model = counting().with_bytes();
    let chat = model.chat(ChatOptions::default()).unwrap();
    let mut at_end = 0;
    chat.send("hi", options(), &mut |event| {
        if event.is_terminal() {
            at_end = chat.history().len();
            chat.set_history(Vec::new()).unwrap();
        } else {
            assert!(matches!(chat.set_history(Vec::new()), Err(Error::Session(SessionError::Busy))));
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!((at_end, chat.history().len()), (2, 0));
}

#[test]
fn a_conversation_longer_than_the_context_is_an_error_with_numbers() {
    let model = Fake { context: 60, ..counting() }.with_bytes();
    let chat = model.chat(ChatOptions::default()).unwrap();
    chat.send("hello", options(), &mut quiet).unwrap();
    let (_, result) = listen(|sink| chat.send("a message that does not fit any more", options(), sink));
    let error = result.unwrap_err();
    assert!(matches!(error, Error::Session(SessionError::PromptTooLong { limit: 60, .. })), "{error}");
    assert_eq!(chat.history().len(), 2);
    // A shorter one does.
    let result = chat.send("b", GenerationOptions { max_tokens: Some(2), ..options() }, &mut quiet);
    assert_eq!(result.unwrap().finish_reason, FinishReason::Length);
}

#[test]
fn chats_on_threads_stop_strings_and_seeds() {
    let model = Fake::babbling().with_bytes();
    let run = |seed| {
        let chat = model.chat(ChatOptions::default()).unwrap();
        let sampler = SamplerOptions { seed: Some(seed), ..SamplerOptions::default() };
        let options = GenerationOptions { sampler, max_tokens: Some(30), ..GenerationOptions::default() };
        let message = vec![ChatMessage::new(Role::User, "hi")];
        let completion = chat.spawn(message, options, quiet).unwrap().join().unwrap();
        assert_eq!(chat.history()[1].content, completion.text);
        completion
    };
    let (a, b, c) = (run(1), run(1), run(2));
    assert_eq!((&a.text, &a.tokens), (&b.text, &b.tokens));
    assert_ne!(a.tokens, c.tokens);
}

#[test]
fn models_that_can_not_chat_say_why() {
    let bare = counting().bare();
    assert!(matches!(bare.chat(ChatOptions::default()), Err(Error::Tokenizer(_))));
    let template = Err(TemplateError::NoTemplate);
    let base = Model::from_parts(ModelParts { template, ..counting().parts() });
    assert!(matches!(base.chat(ChatOptions::default()), Err(Error::Template(TemplateError::NoTemplate))));
    // Unless the app brings one.
    let own = Arc::new(ChatTemplate::new(TEMPLATE, "", "").unwrap());
    let chat = base.chat(ChatOptions { template: Some(own), ..ChatOptions::default() }).unwrap();
    assert_eq!(chat.send("hi", options(), &mut quiet).unwrap().text, "ab");
}

#[test]
fn a_template_may_ask_for_the_date() {
    let model = counting().with_bytes();
    let template = "{{ strftime_now('%Y') }}<|turn|>assistant\n";
    let own = Arc::new(ChatTemplate::new(template, "", "").unwrap());
    let chat = model.chat(ChatOptions { template: Some(own), ..ChatOptions::default() }).unwrap();
    assert!(chat.render(&[]).unwrap().starts_with("20"));
}
