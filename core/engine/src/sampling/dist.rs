//! Probabilities over the few tokens that are left, and the arithmetic of lossless speculation on them.

/// A distribution over tokens: ids ascending, probabilities positive, sum 1 (within rounding).
///
/// Ascending ids, not descending probability: the draft's and the target's distributions then share one order, and one
/// uniform number gives both the same token most of the time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Distribution {
    pub(super) ids: Vec<u32>,
    pub(super) probs: Vec<f64>,
}

impl Distribution {
    /// All of the mass on one token.
    #[must_use]
    pub fn certain(id: u32) -> Self {
        Self { ids: vec![id], probs: vec![1.0] }
    }

    /// The tokens that can be drawn, ascending.
    #[must_use]
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Their probabilities, in the same order.
    #[must_use]
    pub fn probs(&self) -> &[f64] {
        &self.probs
    }

    /// Pairs of token and probability.
    pub fn iter(&self) -> impl Iterator<Item = (u32, f64)> {
        self.ids.iter().copied().zip(self.probs.iter().copied())
    }

    /// Probability of a token; 0 if it was filtered out.
    #[must_use]
    pub fn prob(&self, id: u32) -> f64 {
        self.ids.binary_search(&id).ok().and_then(|i| self.probs.get(i)).copied().unwrap_or(0.0)
    }

    /// The token that a uniform number in `[0, 1)` stands for; `None` if the distribution is empty.
    #[must_use]
    pub fn pick(&self, uniform: f64) -> Option<u32> {
        let mut rest = uniform * self.probs.iter().sum::<f64>();
        for (id, p) in self.iter() {
            if rest < p {
                return Some(id);
            }
            rest -= p;
        }
        // Rounding can leave a crumb behind the last token.
        self.iter().filter(|(_, p)| *p > 0.0).last().map(|(id, _)| id)
    }

    pub(super) fn clear(&mut self) {
        self.ids.clear();
        self.probs.clear();
    }

    /// Divides by the sum. `false` if there is no mass.
    pub(super) fn normalise(&mut self) -> bool {
        let sum: f64 = self.probs.iter().sum();
        if !(sum > 0.0 && sum.is_finite()) {
            return false;
        }
        for p in &mut self.probs {
            *p /= sum;
        }
        true
    }

    /// The positive part of `self - other`, normalised: what a rejected draft token is replaced from (Leviathan et al.,
    /// "Fast inference from transformers via speculative decoding", 2023). `None` if the two are equal, when nothing can
    /// have been rejected.
    #[must_use]
    pub fn residual(&self, other: &Self) -> Option<Self> {
        let mut out = Self::default();
        for (id, p) in self.iter() {
            let rest = p - other.prob(id);
            if rest > 0.0 {
                out.ids.push(id);
                out.probs.push(rest);
            }
        }
        out.normalise().then_some(out)
    }
}

/// Whether a token drafted from `draft` is kept as a draw from `target`: with probability `min(1, p / q)`, decided by a
/// uniform number in `[0, 1)`.
#[must_use]
pub fn accept_draft(target: &Distribution, draft: &Distribution, token: u32, uniform: f64) -> bool {
    // No division: q = 0 (a token the draft could not have drawn) is kept if the target could have drawn it.
    let (p, q) = (target.prob(token), draft.prob(token));
    p > 0.0 && uniform * q < p
}

#[cfg(test)]
mod tests {
    use super::super::{Draws, Lane};
    use super::*;

    fn dist(pairs: &[(u32, f64)]) -> Distribution {
        Distribution { ids: pairs.iter().map(|p| p.0).collect(), probs: pairs.iter().map(|p| p.1).collect() }
    }

    #[test]
    fn picks_follow_the_cumulative_sum() {
        let d = dist(&[(3, 0.25), (7, 0.5), (9, 0.25)]);
        let got: Vec<_> =
            [0.0, 0.249, 0.25, 0.74, 0.75, 0.999_999].iter().map(|&u| d.pick(u).unwrap()).collect();
        assert_eq!(got, [3, 3, 7, 7, 9, 9]);
        assert_eq!(Distribution::default().pick(0.5), None);
    }

    #[test]
    fn accepting_and_resampling_gives_the_target() {
        // Chi-square over the drafted-then-corrected tokens: 3 degrees of freedom, 16.3 has probability 0.001.
        let p = dist(&[(0, 0.5), (1, 0.2), (2, 0.2), (5, 0.1)]);
        let q = dist(&[(0, 0.1), (1, 0.6), (4, 0.2), (5, 0.1)]);
        let residual = p.residual(&q).unwrap();
        assert_eq!(residual.ids(), [0, 2]);
        let (draws, n) = (Draws::new(11), 40_000u32);
        let mut counts = std::collections::BTreeMap::new();
        for i in 0..u64::from(n) {
            let drafted = q.pick(draws.uniform(Lane::Draft, i)).unwrap();
            let token = if accept_draft(&p, &q, drafted, draws.uniform(Lane::Accept, i)) {
                drafted
            } else {
                residual.pick(draws.uniform(Lane::Residual, i)).unwrap()
            };
            *counts.entry(token).or_insert(0u32) += 1;
        }
        let chi: f64 = p
            .iter()
            .map(|(id, p)| {
                let want = p * f64::from(n);
                (f64::from(counts.get(&id).copied().unwrap_or(0)) - want).powi(2) / want
            })
            .sum();
        assert!(chi < 16.3, "{chi} {counts:?}");
        assert!(!counts.contains_key(&4));
        assert_eq!(p.residual(&p), None);
    }
}
