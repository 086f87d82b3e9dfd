//! What happens when the next turn does not fit into the context.

use pannier_tokenizer::{ChatMessage, Role};

use crate::Result;

/// The choice, and it is always told: as an error, or with [`Notice::TurnsDropped`](super::Notice::TurnsDropped).
///
/// A third way needs no choice here: with an eviction policy that acts by itself ([`EvictWhen::Above`](crate::kv::EvictWhen)) memory
/// does not bound the context, which can be as long as the model was trained for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Overflow {
    /// The turn fails with [`PromptTooLong`](super::SessionError::PromptTooLong); the history stays as it is.
    #[default]
    Fail,
    /// The oldest turns (what the user said together with all that answered it) leave the history, so that the prompt and an answer of
    /// this many tokens fit. System messages at the beginning stay, and so does what is said now. The rest of the history is read
    /// again; so that this does not happen with every turn, a quarter of the room is made free.
    DropOldest {
        /// Tokens for the answer.
        reserve: usize,
    },
}

/// A prompt, and how many messages (behind the system messages) are not in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fitted {
    pub tokens: Vec<u32>,
    pub dropped: usize,
}

/// How many system messages a history begins with.
pub(super) fn head(history: &[ChatMessage]) -> usize {
    history.iter().take_while(|message| message.role == Role::System).count()
}

/// The prompt for a history and what is said now. `encode` renders messages to tokens.
pub(super) fn fit(
    overflow: Overflow,
    context: usize,
    history: &[ChatMessage],
    next: &[ChatMessage],
    encode: &dyn Fn(&[ChatMessage]) -> Result<Vec<u32>>,
) -> Result<Fitted> {
    let head = head(history);
    let without = |dropped: usize| -> Result<Vec<u32>> {
        let (system, turns) = history.split_at(head);
        let turns = turns.get(dropped..).unwrap_or_default();
        encode(&[system, turns, next].concat())
    };
    let tokens = without(0)?;
    let Overflow::DropOldest { reserve } = overflow else { return Ok(Fitted { tokens, dropped: 0 }) };
    let room = context.saturating_sub(reserve);
    if tokens.len() <= room {
        return Ok(Fitted { tokens, dropped: 0 });
    }
    // Where turns begin, behind the first one: what may be cut before.
    let turns = history.get(head..).unwrap_or_default();
    let begins = turns.iter().enumerate().skip(1).filter(|(_, message)| message.role == Role::User);
    let cuts: Vec<usize> = begins.map(|(at, _)| at).chain([turns.len()]).collect();
    let mut fitted = Fitted { tokens, dropped: 0 };
    for cut in cuts {
        if fitted.tokens.len() <= room - room / 4 {
            break;
        }
        fitted = Fitted { tokens: without(cut)?, dropped: cut };
    }
    Ok(fitted)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A token per word.
    fn encode(messages: &[ChatMessage]) -> Result<Vec<u32>> {
        Ok(messages.iter().flat_map(|m| m.content.split(' ').map(|word| word.len() as u32)).collect())
    }

    fn message(role: Role, words: usize) -> ChatMessage {
        ChatMessage::new(role, vec!["word"; words].join(" "))
    }

    #[test]
    fn the_oldest_turns_go_in_pairs_and_the_system_stays() {
        let mut history = vec![message(Role::System, 5)];
        for _ in 0..4 {
            history.push(message(Role::User, 10));
            history.push(message(Role::Assistant, 10));
        }
        // A turn with a tool in between goes as a whole.
        history.insert(3, message(Role::Tool, 1));
        let next = [message(Role::User, 5)];
        let fit = |overflow, context| fit(overflow, context, &history, &next, &encode).unwrap();
        assert_eq!((fit(Overflow::Fail, 50).tokens.len(), fit(Overflow::Fail, 50).dropped), (91, 0));
        let drop = Overflow::DropOldest { reserve: 20 };
        assert_eq!(fit(drop, 111).dropped, 0);
        // 90 are free, 91 needed: two turns go, so that a quarter is free.
        let fitted = fit(drop, 110);
        assert_eq!((fitted.tokens.len(), fitted.dropped), (50, 5));
        // At most all of the history goes; whether what is said now fits is for others to say.
        let fitted = fit(drop, 25);
        assert_eq!((fitted.tokens.len(), fitted.dropped), (10, 9));
    }
}
