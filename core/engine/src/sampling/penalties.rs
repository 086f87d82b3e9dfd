//! The window of recent tokens and what it costs to repeat them.

use std::collections::{HashMap, VecDeque};

use super::SamplerOptions;

/// Counts of the tokens in a sliding window.
#[derive(Debug, Clone, Default)]
pub struct Window {
    limit: usize,
    recent: VecDeque<u32>,
    counts: HashMap<u32, u32>,
}

impl Window {
    /// An empty window of at most `limit` tokens.
    pub fn new(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Adds tokens, dropping the oldest beyond the limit.
    pub fn extend(&mut self, tokens: &[u32]) {
        let skip = tokens.len().saturating_sub(self.limit);
        for &token in tokens.iter().skip(skip) {
            if self.recent.len() == self.limit
                && let Some(old) = self.recent.pop_front()
                && let Some(count) = self.counts.get_mut(&old)
            {
                *count -= 1;
                if *count == 0 {
                    self.counts.remove(&old);
                }
            }
            self.recent.push_back(token);
            *self.counts.entry(token).or_insert(0) += 1;
        }
    }

    /// Applies the three penalties. Each token's logit depends on its own count only, so the map's order does not matter.
    #[allow(clippy::cast_precision_loss)] // a count beyond 2^24 does not exist in a context
    pub fn apply(&self, options: &SamplerOptions, logits: &mut [f32]) {
        let r = options.repetition_penalty;
        for (&id, &count) in &self.counts {
            let Some(x) = usize::try_from(id).ok().and_then(|i| logits.get_mut(i)) else { continue };
            // Dividing a negative logit would favour the token.
            *x = if *x > 0.0 { *x / r } else { *x * r };
            *x -= count as f32 * options.frequency_penalty + options.presence_penalty;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn naive(tokens: &[u32], o: &SamplerOptions, logits: &[f32]) -> Vec<f32> {
        let window = &tokens[tokens.len().saturating_sub(o.penalty_window)..];
        let mut out = logits.to_vec();
        for (id, x) in out.iter_mut().enumerate() {
            let n = window.iter().filter(|&&t| t as usize == id).count();
            if n == 0 {
                continue;
            }
            *x = if *x > 0.0 { *x / o.repetition_penalty } else { *x * o.repetition_penalty };
            *x -= n as f32 * o.frequency_penalty + o.presence_penalty;
        }
        out
    }

    proptest! {
        #[test]
        fn penalties_equal_the_naive_ones(
            tokens in prop::collection::vec(0u32..12, 0..60), split in 0usize..60, window in 0usize..40,
            r in 0.5f32..2.0, f in -1.0f32..1.0, p in -1.0f32..1.0,
            logits in prop::collection::vec(-10.0f32..10.0, 12),
        ) {
            let o = SamplerOptions {
                repetition_penalty: r, frequency_penalty: f, presence_penalty: p, penalty_window: window,
                ..SamplerOptions::default()
            };
            let mut w = Window::new(window);
            let split = split.min(tokens.len());
            w.extend(&tokens[..split]);
            for t in &tokens[split..] {
                w.extend(&[*t]);
            }
            let mut got = logits.clone();
            w.apply(&o, &mut got);
            prop_assert_eq!(got, naive(&tokens, &o, &logits));
        }
    }
}
