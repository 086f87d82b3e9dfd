//! The weights of the default calibration: chosen by judgement, not fitted to answers yet.

use super::features::FEATURES;
use super::logistic::Logistic;

const N: usize = FEATURES.len();

const MEAN: [f64; N] =
    [-0.25, -0.9, -0.7, -1.5, -0.4, 0.8, 0.5, 0.75, 0.5, 1.2, 0.8, 0.2, 1.7, 0.02, 0.8, 0.5, 0.0];
const SCALE: [f64; N] =
    [0.3, 1.0, 0.8, 2.0, 0.6, 0.2, 0.35, 0.3, 0.5, 1.0, 0.9, 0.2, 0.8, 0.1, 0.4, 1.0, 1.0];
const WEIGHTS: [f64; N] =
    [0.3, 0.4, 0.3, 0.4, 0.2, 0.2, 0.3, 0.2, -0.1, -0.2, -0.2, -0.2, -0.2, -0.1, 0.2, 0.0, 0.0];
const BIAS: f64 = 0.0;

pub(super) fn logistic() -> Logistic {
    Logistic { mean: MEAN, scale: SCALE, weights: WEIGHTS, bias: BIAS }
}
