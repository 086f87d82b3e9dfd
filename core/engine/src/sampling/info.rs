//! What the model thought of a token, before any penalty, filter or temperature.

use super::math::{exp, exp_sums};
use super::select::{Candidate, top_k};
use super::{Draws, SamplingError};

/// A token of the answer with the model's own opinion of it. All probabilities are those of the raw softmax.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenInfo {
    /// The token.
    pub id: u32,
    /// Natural logarithm of its probability.
    pub logprob: f32,
    /// Probability of the most likely token minus that of the second: 0 is a coin toss, 1 is certain.
    pub margin: f32,
    /// Entropy of the distribution in nats.
    pub entropy: f32,
    /// The most likely tokens with their log-probabilities, best first; as many as were asked for.
    pub top: Vec<(u32, f32)>,
}

/// Sums over one row of logits, from which every [`TokenInfo`] of that row follows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogitStats {
    /// The highest-ranked token.
    pub best: u32,
    /// Its logit.
    pub max: f32,
    second: f32,
    z: f64,
    ln_z: f64,
    entropy: f64,
}

impl LogitStats {
    /// Two passes over the row.
    ///
    /// # Errors
    /// [`SamplingError::NotFinite`] if a logit is NaN or plus infinity, [`SamplingError::NothingLeft`] if all are minus infinity.
    pub fn of(logits: &[f32]) -> Result<Self, SamplingError> {
        let (best, max, second) = top_two(logits, "from the model")?;
        let (z, s) = exp_sums(logits, max);
        let ln_z = libm::log(z);
        Ok(Self { best, max, second, z, ln_z, entropy: ln_z - s / z })
    }

    /// Log-probability of a token with this logit.
    #[must_use]
    pub fn logprob(&self, logit: f32) -> f64 {
        (f64::from(logit) - f64::from(self.max)) - self.ln_z
    }

    /// Entropy in nats.
    #[must_use]
    pub fn entropy(&self) -> f64 {
        // Rounding may leave a hair below 0 when one token has all the mass.
        self.entropy.max(0.0)
    }

    /// Probability of the first minus probability of the second.
    #[must_use]
    pub fn margin(&self) -> f64 {
        (1.0 - exp(f64::from(self.second) - f64::from(self.max))) / self.z
    }

    /// What is reported for the chosen token.
    #[must_use]
    #[allow(clippy::cast_possible_truncation)] // f32 is enough for a report
    pub fn token(&self, id: u32, logit: f32) -> TokenInfo {
        TokenInfo {
            id,
            logprob: self.logprob(logit) as f32,
            margin: self.margin() as f32,
            entropy: self.entropy() as f32,
            top: Vec::new(),
        }
    }
}

/// The `n` most likely tokens of a row with their log-probabilities, best first.
///
/// # Errors
/// As for [`LogitStats::of`].
#[allow(clippy::cast_possible_truncation)]
pub fn top_logprobs(logits: &[f32], n: usize) -> Result<Vec<(u32, f32)>, SamplingError> {
    let stats = LogitStats::of(logits)?;
    let mut ranked = Vec::new();
    top_k(logits, n, &mut ranked);
    Ok(ranked.iter().map(|c: &Candidate| (c.id, stats.logprob(c.logit) as f32)).collect())
}

/// `(id of the highest-ranked token, its logit, the second logit)`; also the check that the row can be used at all.
pub(super) fn top_two(logits: &[f32], stage: &'static str) -> Result<(u32, f32, f32), SamplingError> {
    let mut best = 0u32;
    let mut max = f32::NEG_INFINITY;
    let mut second = f32::NEG_INFINITY;
    // Blocks of 64: branch-free maxima, in lanes, decide whether a block needs a closer look, and few do.
    for (block, start) in logits.chunks(64).zip((0u32..).step_by(64)) {
        let mut lanes = [f32::NEG_INFINITY; 16];
        let mut usable = true;
        let (parts, rest) = block.as_chunks::<16>();
        for part in parts {
            for (high, &x) in lanes.iter_mut().zip(part) {
                *high = if x > *high { x } else { *high };
                usable &= x < f32::INFINITY; // false for NaN too
            }
        }
        for (high, &x) in lanes.iter_mut().zip(rest) {
            *high = if x > *high { x } else { *high };
            usable &= x < f32::INFINITY;
        }
        if !usable {
            let mut bad = (start..).zip(block).filter(|(_, x)| x.is_nan() || **x == f32::INFINITY);
            if let Some((id, &value)) = bad.next() {
                return Err(SamplingError::NotFinite { id, value, stage });
            }
        }
        let high = lanes.iter().fold(f32::NEG_INFINITY, |high, &x| if x > high { x } else { high });
        if high > second {
            for (id, &x) in (start..).zip(block) {
                if x > max {
                    second = max;
                    max = x;
                    best = id;
                } else if x > second {
                    second = x;
                }
            }
        }
    }
    if max == f32::NEG_INFINITY {
        return Err(SamplingError::NothingLeft { vocab: logits.len() });
    }
    Ok((best, max, second))
}

/// A seed that differs from run to run, for apps that did not choose one. Not for secrets.
#[must_use]
pub fn fresh_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    // The standard library keys its hash maps from the system's random source; a hash of nothing is a number of that source.
    let raw = std::collections::hash_map::RandomState::new().build_hasher().finish();
    Draws::new(raw).bits(super::Lane::Token, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stats_equal_the_textbook() {
        let logits: Vec<f32> = (0..777).map(|i| ((i * 131) % 97) as f32 * 0.11 - 3.0).collect();
        let z: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
        let p: Vec<f64> = logits.iter().map(|&x| f64::from(x).exp() / z).collect();
        let entropy: f64 = -p.iter().map(|p| p * p.ln()).sum::<f64>();
        let mut sorted = p.clone();
        sorted.sort_by(|a, b| b.total_cmp(a));
        let stats = LogitStats::of(&logits).unwrap();
        assert!((stats.entropy() - entropy).abs() < 1e-6);
        assert!((stats.margin() - (sorted[0] - sorted[1])).abs() < 1e-7);
        assert!((stats.logprob(logits[5]) - p[5].ln()).abs() < 2e-7);
        let top = top_logprobs(&logits, 3).unwrap();
        assert!((f64::from(top[2].1) - sorted[2].ln()).abs() < 1e-6);
        assert_eq!(top[0].0, stats.best);
    }

    #[test]
    fn unusable_rows_are_named() {
        let mut row = vec![0.5f32; 200];
        row[130] = f32::NAN;
        assert!(matches!(LogitStats::of(&row), Err(SamplingError::NotFinite { id: 130, .. })));
        row[130] = f32::INFINITY;
        assert!(matches!(LogitStats::of(&row), Err(SamplingError::NotFinite { id: 130, .. })));
        row[130] = f32::NEG_INFINITY;
        assert!(LogitStats::of(&row).is_ok());
        assert_eq!(LogitStats::of(&[f32::NEG_INFINITY; 9]), Err(SamplingError::NothingLeft { vocab: 9 }));
        assert_eq!(LogitStats::of(&[]), Err(SamplingError::NothingLeft { vocab: 0 }));
    }

    #[test]
    fn one_possible_token_is_certain() {
        let stats = LogitStats::of(&[f32::NEG_INFINITY, 3.0]).unwrap();
        assert_eq!((stats.best, stats.margin(), stats.entropy(), stats.logprob(3.0)), (1, 1.0, 0.0, 0.0));
    }

    #[test]
    fn ties_go_to_the_lowest_id() {
        assert_eq!(top_two(&[1.0, 4.0, 4.0, 2.0], "").unwrap(), (1, 4.0, 4.0));
    }
}
