//! Guesses from the text itself: what followed the last time that it ended in the same tokens (Saxena, "Prompt lookup
//! decoding", 2023; Yang et al., "Inference with reference", 2023).
//!
//! Summaries quote, edited code repeats what was not edited, answers name what was asked. The index is that of LZ77 compressors:
//!
//! ```text
//! head[hash(a, b)]   where the pair of tokens a b was last seen
//! prev[i]            where a pair with the hash of the one that ends at i was seen before
//! a guess: walk back from the last pair; the place with the longest common past wins, the latest among equals
//! ```

use super::odds::CLASSES;
use super::proposer::{Ask, Proposal, Proposer};
use crate::Result;

/// Buckets of the table: 64 KiB.
const BUCKETS: usize = 1 << 14;
const NONE: u32 = u32::MAX;
/// Places that are looked at: more would find a longer past only in texts that repeat themselves without end.
const PLACES: usize = 64;
/// A common past of this many tokens is as good as any longer one.
const LONG: usize = 32;

/// Looks for repetitions in one text.
#[derive(Debug)]
pub struct Ngram {
    tokens: Vec<u32>,
    prev: Vec<u32>,
    head: Vec<u32>,
}

impl Default for Ngram {
    fn default() -> Self {
        Self { tokens: Vec::new(), prev: Vec::new(), head: vec![NONE; BUCKETS] }
    }
}

fn bucket(a: u32, b: u32) -> usize {
    let key = (u64::from(a) << 32 | u64::from(b)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (key >> 50) as usize % BUCKETS
}

/// Guesses by the length of the common past.
fn class(past: usize) -> usize {
    match past {
        0..=2 => 0,
        3 => 1,
        4 => 2,
        5..=6 => 3,
        7..=9 => 4,
        10..=15 => 5,
        16..=31 => 6,
        _ => 7,
    }
}

impl Ngram {
    /// Bytes that it takes for a text of so many tokens, at most.
    #[must_use]
    pub fn bytes(tokens: usize) -> u64 {
        // Vectors grow by doubling.
        4 * BUCKETS as u64 + 16 * tokens as u64
    }

    fn add(&mut self, token: u32) {
        let end = self.tokens.len();
        self.tokens.push(token);
        let mut earlier = NONE;
        if let Some(&before) = end.checked_sub(1).and_then(|i| self.tokens.get(i))
            && let Some(head) = self.head.get_mut(bucket(before, token))
            && let Ok(end) = u32::try_from(end)
        {
            earlier = std::mem::replace(head, end);
        }
        self.prev.push(earlier);
    }

    fn follow(&mut self, ask: &Ask<'_>) {
        let known = self.tokens.len();
        // Within a generation a text only grows; its last tokens tell a mistake of the caller.
        let last = known.saturating_sub(LONG);
        let same = known <= ask.len()
            && self.tokens.iter().skip(last).copied().eq(ask.tokens_from(last).take(known - last));
        if !same {
            *self = Self::default();
        }
        for token in ask.tokens_from(self.tokens.len()) {
            self.add(token);
        }
    }

    /// How many tokens before and at `place` are those before and at the end.
    fn past(&self, place: usize) -> usize {
        let here = self.tokens.get(..=place).unwrap_or_default().iter().rev();
        here.zip(self.tokens.iter().rev()).take(LONG).take_while(|(a, b)| a == b).count()
    }

    /// Where the best repetition ends, and its length.
    fn find(&self) -> Option<(usize, usize)> {
        let mut best: Option<(usize, usize)> = None;
        let mut at = *self.prev.last()?;
        for _ in 0..PLACES {
            let Ok(place) = usize::try_from(at) else { break };
            let Some(&earlier) = self.prev.get(place) else { break };
            let past = self.past(place);
            if past >= 2 && best.is_none_or(|(_, longest)| past > longest) {
                best = Some((place, past));
                if past == LONG {
                    break;
                }
            }
            at = earlier;
        }
        best
    }
}

impl Proposer for Ngram {
    fn name(&self) -> &'static str {
        "ngram"
    }

    fn prior(&self) -> [f64; CLASSES] {
        [0.3, 0.45, 0.5, 0.6, 0.7, 0.75, 0.85, 0.9]
    }

    fn propose(&mut self, ask: &Ask<'_>, out: &mut Proposal) -> Result<()> {
        self.follow(ask);
        let Some((place, past)) = self.find() else { return Ok(()) };
        let len = self.tokens.len();
        for i in 0..ask.max {
            let from = place + 1 + i;
            // A text that repeats itself with a short period goes on in its own guess.
            let token = match from.checked_sub(len) {
                None => self.tokens.get(from).copied(),
                Some(own) => out.tokens().get(own).copied(),
            };
            let Some(token) = token else { break };
            if !out.push(ask, token, class(past + i)) {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CancelFlag;
    use crate::sampling::{Sampler, SamplerOptions};
    use crate::speculate::Odds;
    use proptest::prelude::*;

    fn guess(ngram: &mut Ngram, text: &[u32], max: usize) -> Vec<u32> {
        let (&pending, fed) = text.split_last().unwrap();
        let sampler = Sampler::new(SamplerOptions::greedy(), 100).unwrap();
        let odds = Odds::new(ngram.prior());
        let cancel = CancelFlag::new();
        let ask = Ask { fed, pending, max, floor: 0.0, odds: &odds, sampler: &sampler, cancel: &cancel };
        let mut out = Proposal::default();
        ngram.propose(&ask, &mut out).unwrap();
        out.tokens().to_vec()
    }

    /// Looks at every place.
    fn naive(text: &[u32], max: usize) -> Vec<u32> {
        let n = text.len();
        let past =
            |end: usize| (0..LONG).take_while(|&i| i <= end && text[end - i] == text[n - 1 - i]).count();
        // The longest, the latest among equals.
        let best = (0..n - 1).filter(|&end| past(end) >= 2).max_by_key(|&end| (past(end), end));
        let Some(place) = best else { return Vec::new() };
        let mut all = text.to_vec();
        (0..max).for_each(|i| all.push(all[place + 1 + i]));
        all.split_off(n)
    }

    proptest! {
        #[test]
        fn guesses_are_those_of_a_search_of_everything(
            text in prop::collection::vec(0u32..4, 2..60), first in 1usize..60, max in 1usize..9,
        ) {
            // One index that follows the text as it grows.
            let mut ngram = Ngram::default();
            for len in first.min(text.len())..=text.len() {
                prop_assert_eq!(guess(&mut ngram, &text[..len], max), naive(&text[..len], max));
            }
        }
    }

    #[test]
    fn a_text_without_repetitions_is_declined() {
        let text: Vec<u32> = (0..90).collect();
        assert!(guess(&mut Ngram::default(), &text, 8).is_empty());
        assert!(guess(&mut Ngram::default(), &[7], 8).is_empty());
        // A repetition goes on in its own guess.
        assert_eq!(guess(&mut Ngram::default(), &[1, 2, 1, 2], 5), [1, 2, 1, 2, 1]);
    }
}
