//! Ways to read fewer experts than the model asks for. They change answers, so all are off unless somebody turns them on, and whoever
//! does is told in the model's notes.

use super::spec::{Gating, MoeSpec};

/// What may be left out of a mixture of experts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ExpertShortcuts {
    /// Use at most so many experts per token instead of what the model was trained with.
    pub at_most: Option<usize>,
    /// While decoding, leave out an expert that is not in memory and whose weight is below this; never the one with the largest weight.
    pub drop_below: f32,
    /// Take an expert that is in memory before one that is not, unless the latter is likelier by more than this share (0.1: by a tenth).
    pub prefer_present: f32,
}

impl ExpertShortcuts {
    /// Whether nothing is left out.
    pub fn is_exact(&self) -> bool {
        *self == ExpertShortcuts::default()
    }

    /// The experts that a token uses.
    pub fn used(&self, spec: &MoeSpec) -> usize {
        self.at_most.map_or(spec.used, |most| most.clamp(1, spec.used))
    }

    /// What is switched on, for people; `None` if nothing is.
    pub fn describe(&self) -> Option<String> {
        let mut parts = Vec::new();
        if let Some(most) = self.at_most {
            parts.push(format!("at most {most} experts per token"));
        }
        if self.drop_below > 0.0 {
            parts.push(format!("absent experts of a weight below {} are left out", self.drop_below));
        }
        if self.prefer_present > 0.0 {
            parts.push(format!(
                "experts in memory are preferred by up to {:.0}%",
                100.0 * self.prefer_present
            ));
        }
        (!parts.is_empty()).then(|| format!("answers differ from the model's own: {}", parts.join("; ")))
    }

    /// Raises the scores of those that are in memory, for the choice only.
    pub(super) fn lift(&self, gating: Gating, scores: &mut [f32], present: impl Fn(usize) -> bool) {
        let factor = 1.0 + self.prefer_present.clamp(0.0, 1.0);
        for (expert, score) in scores.iter_mut().enumerate() {
            if present(expert) {
                match gating {
                    // Logits: a sum where probabilities have a product.
                    Gating::SoftmaxOfChosen => *score += pannier_kernels::scalar::ln(factor),
                    Gating::Softmax | Gating::Sigmoid => *score *= factor,
                }
            }
        }
    }

    /// Which of a token's experts stay, moved to the front; how many they are. `present` tells whether an expert is in memory.
    pub(super) fn keep(
        &self,
        chosen: &mut [u16],
        weights: &mut [f32],
        present: impl Fn(u16) -> bool,
    ) -> usize {
        if self.drop_below <= 0.0 {
            return chosen.len();
        }
        let first = (0..weights.len()).max_by(|&a, &b| weights[a].total_cmp(&weights[b]).then(b.cmp(&a)));
        let mut kept = 0;
        for at in 0..chosen.len() {
            let stays = Some(at) == first || weights[at] >= self.drop_below || present(chosen[at]);
            if stays {
                (chosen[kept], weights[kept]) = (chosen[at], weights[at]);
                kept += 1;
            }
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_out_unless_asked_for() {
        let exact = ExpertShortcuts::default();
        assert!(exact.is_exact() && exact.describe().is_none());
        let (mut chosen, mut weights) = ([3, 1, 2], [0.5, 0.3, 0.2]);
        assert_eq!(exact.keep(&mut chosen, &mut weights, |_| false), 3);
        let mut scores = [0.5, 0.25];
        exact.lift(Gating::Softmax, &mut scores, |_| true);
        assert_eq!(scores, [0.5, 0.25]);
    }

    #[test]
    fn light_experts_that_are_absent_go_and_the_heaviest_stays() {
        let some = ExpertShortcuts { drop_below: 0.4, ..ExpertShortcuts::default() };
        let (mut chosen, mut weights) = ([3, 1, 2, 7], [0.1, 0.39, 0.35, 0.38]);
        assert_eq!(some.keep(&mut chosen, &mut weights, |expert| expert == 2), 2);
        assert_eq!((&chosen[..2], &weights[..2]), (&[1, 2][..], &[0.39, 0.35][..]));
        assert!(some.describe().unwrap().contains("below 0.4"));
    }

    #[test]
    fn the_preference_is_bounded() {
        let some = ExpertShortcuts { prefer_present: 0.5, ..ExpertShortcuts::default() };
        let mut scores = [0.4, 0.3, 0.2];
        some.lift(Gating::Softmax, &mut scores, |expert| expert > 0);
        assert!(scores[1] > scores[0] && scores[2] < scores[0], "{scores:?}");
        let wild = ExpertShortcuts { prefer_present: 1e9, ..some };
        let mut scores = [0.9, 0.3];
        wild.lift(Gating::Softmax, &mut scores, |expert| expert == 1);
        assert!(scores[0] > scores[1], "never more than twice: {scores:?}");
    }
}
