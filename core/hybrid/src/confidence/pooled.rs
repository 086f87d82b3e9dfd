//! The weights of the default calibration: chosen by judgement, not fitted to answers yet.

use super::features::FEATURES;
use super::logistic::Logistic;

const N: usize = FEATURES.len();

const MEAN: [f64; N] = [
    -0.25, -0.9, -0.7, -1.5, -0.4, 0.8, 0.5, 0.75, 0.5, 1.2, 0.8, 0.2, 1.7, 0.02, 0.8, 0.0, 1.0, -0.3, -0.6,
    -0.3, -0.6, 0.7, 2.5, 1.0, 1.5, 0.1,
];
const SCALE: [f64; N] = [
    0.3, 1.0, 0.8, 2.0, 0.6, 0.2, 0.35, 0.3, 0.5, 1.0, 0.9, 0.2, 0.8, 0.1, 0.4, 2.0, 1.0, 0.5, 0.8, 0.6, 1.2,
    0.7, 0.8, 1.0, 1.5, 0.1,
];
/// What the question looks like has no weight: how hard long numbers are differs from model to model.
const WEIGHTS: [f64; N] = [
    0.3, 0.3, 0.2, 0.3, 0.1, 0.2, 0.3, 0.1, -0.1, -0.2, -0.1, -0.2, -0.2, -0.1, 0.2, 0.4, 0.0, 0.3, 0.1, 0.2,
    0.2, -0.1, 0.0, 0.0, 0.0, 0.0,
];
const BIAS: f64 = 0.0;

pub(super) fn logistic() -> Logistic {
    Logistic { mean: MEAN, scale: SCALE, weights: WEIGHTS, bias: BIAS }
}
