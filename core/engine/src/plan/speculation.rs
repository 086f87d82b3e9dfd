//! What guessing tokens is expected to bring.
//!
//! ```text
//! T(n)   time of a pass over n tokens = max(memory + (experts + stalls) U(n), flash + missed U(n), n compute)
//! U(n)   experts that n tokens touch, in those of one = (1 - (1 - s)^n) / s    with a token using the share s of them
//! E(n)   tokens that a pass with n guesses gives = 1 + p + ... + p^n           with a guess being right with probability p
//! speed  E(n) / (T(n + 1) + n d)                                               with d for a guess of a draft model
//! ```
//!
//! U(n) is that of independent choices: neighbouring tokens choose more alike, so it errs on the side of caution.

use crate::speculate::MAX_DRAFT;

/// How often guesses are right in texts that quote, edit or follow a pattern; in free prose n-grams are seldom found, and cost nothing then.
pub const GUESSES_RIGHT: f64 = 0.7;

/// Times of a pass, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct PassTimes {
    /// Reading dense weights and the KV cache from memory: the same for one token and for some.
    pub memory: f64,
    /// Reading the experts of one token from memory.
    pub experts: f64,
    /// The share of a layer's experts that a token uses; 0 without experts.
    pub share: f64,
    /// Reading dense weights from flash.
    pub flash: f64,
    /// Waiting for the experts of one token.
    pub stalls: f64,
    /// Reading those of them that are not there from flash, were nothing else to do.
    pub missed: f64,
    /// The arithmetic of one token.
    pub compute: f64,
}

impl PassTimes {
    fn of(&self, tokens: usize) -> f64 {
        let n = tokens as f64;
        let union = if self.share > 0.0 { (1.0 - (1.0 - self.share).powf(n)) / self.share } else { 1.0 };
        let memory = self.memory + (self.experts + self.stalls) * union;
        memory.max(self.flash + self.missed * union).max(n * self.compute)
    }

    /// The best length for guesses that are right with probability `right` and cost `guess` seconds each.
    pub fn forecast(&self, right: f64, guess: f64) -> Forecast {
        let plain = self.of(1);
        let mut best =
            Forecast { draft_len: 0, tokens_per_pass: 1.0, decode_tok_s: 1.0 / plain.max(1e-9), gain: 1.0 };
        let (mut reach, mut tokens) = (1.0, 1.0);
        for len in 1..=MAX_DRAFT {
            reach *= right;
            tokens += reach;
            let time = self.of(len + 1) + len as f64 * guess;
            let gain = tokens * plain / time.max(1e-9);
            if gain > best.gain {
                best = Forecast {
                    draft_len: len,
                    tokens_per_pass: tokens,
                    decode_tok_s: tokens / time.max(1e-9),
                    gain,
                };
            }
        }
        best
    }
}

/// What guessing is expected to bring, at the best length.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Forecast {
    /// Tokens to guess for a pass; 0 if guessing does not pay.
    pub draft_len: usize,
    /// Tokens that a pass gives.
    pub tokens_per_pass: f64,
    /// Tokens per second.
    pub decode_tok_s: f64,
    /// How many times as fast as one token per pass.
    pub gain: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streamed_dense_models_gain_most_and_arithmetic_bounds_the_rest() {
        let resident = PassTimes { memory: 0.1, compute: 0.02, ..PassTimes::default() };
        let streamed = PassTimes { flash: 2.0, ..resident };
        let (a, b) = (resident.forecast(0.7, 0.0), streamed.forecast(0.7, 0.0));
        assert!(a.gain > 1.8 && a.draft_len >= 4, "{a:?}");
        assert!(b.gain > a.gain && b.draft_len == MAX_DRAFT, "{b:?}");
        // (1 - 0.7^9) / 0.3
        assert!((b.gain - 3.199).abs() < 0.01, "{b:?}");
        let computing = PassTimes { compute: 0.1, ..resident };
        assert_eq!(computing.forecast(0.7, 0.0).draft_len, 0);
        // A draft model half as large as the model brings little.
        assert!(resident.forecast(0.7, 0.05).gain < 1.3);
    }

    #[test]
    fn experts_that_are_missed_make_width_dear() {
        let missed =
            PassTimes { memory: 0.02, experts: 0.02, share: 1.0 / 16.0, stalls: 0.3, ..PassTimes::default() };
        let forecast = missed.forecast(0.7, 0.0);
        assert!(forecast.gain < 1.05, "{forecast:?}");
        let cached = PassTimes { stalls: 0.0, ..missed };
        assert!(cached.forecast(0.7, 0.0).gain > forecast.gain);
    }
}
