//! P(True): the model's own opinion of its answer (Kadavath et al., "Language Models (Mostly) Know What They Know", 2022).

use std::ops::ControlFlow;

use pannier::model::Forward;
use pannier::session::{ChatMessage, ChatSession, GenerationOptions, Role};

const QUESTION: &str = "Is this answer correct? Reply with Yes or No.";

/// The probability that the model says yes when asked whether its last answer is right. Costs one short prefill behind what
/// the session has read; the conversation stays as it was. `None` if neither word is among the likely ones.
///
/// # Errors
/// What the session gives.
pub fn p_true<F: Forward>(chat: &ChatSession<F>) -> pannier::Result<Option<f64>> {
    let before = chat.history();
    let mut options = GenerationOptions::greedy(1);
    options.sampler.top_logprobs = 20;
    let asked = chat.send_messages(vec![ChatMessage::new(Role::User, QUESTION)], options, &mut |_| {
        ControlFlow::Continue(())
    });
    chat.set_history(before)?;
    let completion = asked?;
    let tokenizer = chat.model().tokenizer()?;
    let (mut yes, mut no) = (0.0, 0.0);
    for (id, logprob) in completion.tokens.first().map(|t| t.top.as_slice()).unwrap_or_default() {
        let piece = tokenizer.piece(*id).unwrap_or_default();
        let word: String = piece.chars().filter(|c| c.is_ascii_alphabetic()).collect();
        let p = f64::from(*logprob).exp();
        match word.to_ascii_lowercase().as_str() {
            "yes" | "true" | "correct" => yes += p,
            "no" | "false" | "incorrect" => no += p,
            _ => {}
        }
    }
    Ok((yes + no > 0.0).then(|| yes / (yes + no)))
}
