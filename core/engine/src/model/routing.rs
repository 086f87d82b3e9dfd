//! Which experts a token goes to, and with which weights.

use super::spec::{Gating, MoeSpec};
use pannier_kernels::Kernels;

/// The smallest normal half float: what sums of weights are kept above, as in the reference engine.
const LEAST_SUM: f32 = 6.103_515_6e-5;

/// Sees every choice of a router: for recording traces.
///
/// It is called on the thread of the forward pass, layer by layer, for each token in the order of the text.
pub trait RouteObserver: Send + Sync + std::fmt::Debug {
    /// A token was routed.
    fn routed(&self, route: &Route<'_>);
}

/// One token at one layer.
#[derive(Clone, Copy, Debug)]
pub struct Route<'a> {
    /// The layer.
    pub layer: usize,
    /// The token's position in its sequence.
    pub position: usize,
    /// Tokens that the pass computes together: more than one in prefill.
    pub batch: usize,
    /// The chosen experts, by falling score (slot by slot).
    pub chosen: &'a [u16],
    /// Their weights.
    pub weights: &'a [f32],
    /// What the router gives each expert of the layer, before the choice.
    pub probabilities: &'a [f32],
}

/// Chooses experts for one token. `scores` holds the router's logits, and afterwards the probabilities; `ranked` and `biased` are working
/// memory. `lift` may change a copy of the scores for the choice (see `ExpertShortcuts`).
pub(super) fn choose(
    kernels: &Kernels,
    spec: &MoeSpec,
    choice_bias: Option<&[f32]>,
    lift: &dyn Fn(&mut [f32]),
    scores: &mut [f32],
    (chosen, weights): (&mut [u16], &mut [f32]),
    (ranked, biased): (&mut Vec<(u32, f32)>, &mut Vec<f32>),
) {
    match spec.gating {
        Gating::Softmax => kernels.softmax_in_place(scores),
        Gating::Sigmoid => kernels.sigmoid_in_place(scores),
        Gating::SoftmaxOfChosen => {}
    }
    biased.clear();
    biased.extend_from_slice(scores);
    lift(biased);
    if let Some(bias) = choice_bias {
        kernels.add_in_place(biased, bias);
    }
    kernels.top_k(biased, spec.used, ranked);
    // Of weights that are not numbers (a broken file) too few are found; any experts do then, but as many as there should be.
    for expert in 0..spec.experts as u32 {
        if ranked.len() >= spec.used {
            break;
        }
        if ranked.iter().all(|&(other, _)| other != expert) {
            ranked.push((expert, f32::NAN));
        }
    }
    for ((chosen, weight), &(expert, _)) in chosen.iter_mut().zip(weights.iter_mut()).zip(ranked.iter()) {
        *chosen = expert as u16;
        *weight = scores.get(expert as usize).copied().unwrap_or(0.0);
    }
    if spec.gating == Gating::SoftmaxOfChosen {
        kernels.softmax_in_place(weights);
        kernels.softmax_in_place(scores);
    }
    if spec.normalise {
        let sum = weights.iter().sum::<f32>().max(LEAST_SUM);
        weights.iter_mut().for_each(|weight| *weight /= sum);
    }
    if spec.scale != 1.0 {
        kernels.scale_in_place(weights, spec.scale);
    }
}

/// One token's use of one expert.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Use {
    pub expert: u16,
    pub weight: f32,
    /// Index among the uses of all tokens, ordered by expert and then by token.
    pub row: u32,
}

/// The uses of some tokens, in the order of experts.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// Per token, by ascending expert.
    pub uses: Vec<Use>,
    /// Where each expert's uses begin; one more than there are experts.
    pub starts: Vec<u32>,
    /// The token of each use, in the order of experts.
    pub tokens: Vec<u32>,
    /// Experts that are used, ascending.
    pub used: Vec<u16>,
}

impl Groups {
    /// Orders what was chosen: `used` experts per token.
    pub fn arrange(&mut self, experts: usize, used: usize, chosen: &[u16], weights: &[f32]) {
        self.uses.clear();
        self.uses.extend(chosen.iter().zip(weights).map(|(&expert, &weight)| Use { expert, weight, row: 0 }));
        self.starts.clear();
        self.starts.resize(experts + 2, 0);
        for expert in chosen {
            // Two places further: after the sums, one further is where the next use of the expert goes.
            if let Some(count) = self.starts.get_mut(usize::from(*expert) + 2) {
                *count += 1;
            }
        }
        for i in 1..self.starts.len() {
            self.starts[i] += self.starts[i - 1];
        }
        self.tokens.clear();
        self.tokens.resize(chosen.len(), 0);
        for (token, uses) in self.uses.chunks_exact_mut(used.max(1)).enumerate() {
            uses.sort_unstable_by_key(|one| one.expert);
            for one in uses {
                let Some(next) = self.starts.get_mut(usize::from(one.expert) + 1) else { continue };
                one.row = *next;
                *next += 1;
                if let Some(place) = self.tokens.get_mut(one.row as usize) {
                    *place = token as u32;
                }
            }
        }
        self.starts.truncate(experts + 1);
        self.used.clear();
        let counts = self.starts.windows(2).enumerate();
        self.used.extend(
            counts
                .filter_map(|(expert, w)| matches!(w, [start, end] if start < end).then_some(expert as u16)),
        );
    }

    /// The uses of one expert.
    pub fn of(&self, expert: u16) -> std::ops::Range<usize> {
        let at = |i: usize| self.starts.get(i).map_or(0, |&start| start as usize);
        at(usize::from(expert))..at(usize::from(expert) + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::super::spec::ExpertActivation;
    use super::*;

    fn spec(gating: Gating, normalise: bool) -> MoeSpec {
        let activation = ExpertActivation::Silu;
        MoeSpec { experts: 4, used: 2, ff: 8, gating, normalise, scale: 1.0, activation }
    }

    fn chosen(spec: &MoeSpec, bias: Option<&[f32]>, logits: &[f32]) -> (Vec<u16>, Vec<f32>, Vec<f32>) {
        let (mut scores, mut experts, mut weights) =
            (logits.to_vec(), vec![9; spec.used], vec![0.0; spec.used]);
        let (mut ranked, mut biased) = (Vec::new(), Vec::new());
        let kernels = Kernels::detect();
        choose(
            kernels,
            spec,
            bias,
            &|_| {},
            &mut scores,
            (&mut experts, &mut weights),
            (&mut ranked, &mut biased),
        );
        (experts, weights, scores)
    }

    fn near(a: &[f32], b: &[f64]) {
        assert!(
            a.len() == b.len() && a.iter().zip(b).all(|(&a, b)| (f64::from(a) - b).abs() < 1e-6),
            "{a:?} {b:?}"
        );
    }

    #[test]
    fn the_four_rules_of_weights() {
        let logits = [0.0, 2.0, 1.0, -1.0];
        let e = |x: f64| x.exp();
        let total = e(0.0) + e(2.0) + e(1.0) + e(-1.0);
        let (experts, weights, probabilities) = chosen(&spec(Gating::Softmax, false), None, &logits);
        assert_eq!(experts, [1, 2]);
        near(&weights, &[e(2.0) / total, e(1.0) / total]);
        near(&probabilities, &[1.0 / total, e(2.0) / total, e(1.0) / total, e(-1.0) / total]);
        let of_two = [e(2.0) / (e(2.0) + e(1.0)), e(1.0) / (e(2.0) + e(1.0))];
        near(&chosen(&spec(Gating::Softmax, true), None, &logits).1, &of_two);
        near(&chosen(&spec(Gating::SoftmaxOfChosen, false), None, &logits).1, &of_two);
        let sigmoid = |x: f64| 1.0 / (1.0 + e(-x));
        // The bias changes who is chosen, not the weights.
        let (experts, weights, _) =
            chosen(&spec(Gating::Sigmoid, false), Some(&[0.0, 0.0, 0.0, 9.0]), &logits);
        assert_eq!(experts, [3, 1]);
        near(&weights, &[sigmoid(-1.0), sigmoid(2.0)]);
    }

    #[test]
    fn logits_that_are_no_numbers_still_choose() {
        let (experts, ..) = chosen(&spec(Gating::Softmax, true), None, &[f32::NAN; 4]);
        assert_eq!(experts, [0, 1]);
    }

    #[test]
    fn uses_are_ordered_by_expert_and_token() {
        let mut groups = Groups::default();
        groups.arrange(5, 2, &[3, 1, 0, 3, 3, 4], &[0.1, 0.2, 0.3, 0.4, 0.5, 0.6]);
        assert_eq!(groups.used, [0, 1, 3, 4]);
        assert_eq!((groups.of(0), groups.of(1), groups.of(2), groups.of(3)), (0..1, 1..2, 2..2, 2..5));
        assert_eq!(groups.tokens, [1, 0, 0, 1, 2, 2]);
        let row = |i: usize| (groups.uses[i].expert, groups.uses[i].row);
        assert_eq!(
            [row(0), row(1), row(2), row(3), row(4), row(5)],
            [(1, 1), (3, 2), (0, 0), (3, 3), (3, 4), (4, 5)]
        );
        assert_eq!(groups.uses[0].weight, 0.2);
    }
}
