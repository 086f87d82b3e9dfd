//! Logistic regression, small enough to read.
//!
//! ```text
//! standardise each feature to mean 0, deviation 1
//! repeat:  p = sigmoid(X w);  w += (X' diag(p(1-p)) X + ridge)^-1 (X'(y - p) - ridge w)      Newton's method
//! ```
//! The ridge keeps weights finite when the classes can be separated, and features that say the same thing from pulling
//! against each other.

use thiserror::Error;

use super::features::{FEATURES, Features};

const N: usize = FEATURES.len();
/// Features and the constant term.
const M: usize = N + 1;

/// How to fit.
#[derive(Debug, Clone, Copy)]
pub struct FitOptions {
    /// Strength of the penalty on the squares of the weights, in answers.
    pub ridge: f64,
    /// The most Newton steps; ten are usual.
    pub max_steps: usize,
}

impl Default for FitOptions {
    fn default() -> Self {
        Self { ridge: 2.0, max_steps: 50 }
    }
}

/// Why nothing could be fitted.
#[derive(Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum FitError {
    /// Too little to learn from.
    #[error(
        "{right} right and {wrong} wrong answers are too few to fit on: at least {least} of each are needed"
    )]
    TooFew {
        /// Right answers.
        right: usize,
        /// Wrong answers.
        wrong: usize,
        /// The least of each.
        least: usize,
    },
    /// The steps did not settle.
    #[error("the fit did not converge in {steps} steps")]
    NoConvergence {
        /// Steps taken.
        steps: usize,
    },
}

/// The least answers of each kind.
const LEAST: usize = 20;

/// A fitted model: probability of being right from features.
#[derive(Debug, Clone, PartialEq)]
pub struct Logistic {
    pub(super) mean: [f64; N],
    pub(super) scale: [f64; N],
    pub(super) weights: [f64; N],
    pub(super) bias: f64,
}

impl Logistic {
    /// Fits on answers that were judged.
    ///
    /// # Errors
    /// [`FitError`].
    #[allow(clippy::cast_precision_loss)] // counts are small
    pub fn fit(answers: &[(Features, bool)], options: FitOptions) -> Result<Self, FitError> {
        let right = answers.iter().filter(|(_, y)| *y).count();
        let wrong = answers.len() - right;
        if right < LEAST || wrong < LEAST {
            return Err(FitError::TooFew { right, wrong, least: LEAST });
        }
        let n = answers.len() as f64;
        let mut mean = [0.0; N];
        let mut scale = [0.0; N];
        for (f, _) in answers {
            for (m, x) in mean.iter_mut().zip(f.0) {
                *m += x / n;
            }
        }
        for (f, _) in answers {
            for ((s, x), m) in scale.iter_mut().zip(f.0).zip(mean) {
                *s += (x - m) * (x - m) / n;
            }
        }
        for s in &mut scale {
            // A feature that never changes carries nothing: any scale does, and the ridge keeps its weight at 0.
            *s = if *s > 1e-12 { s.sqrt() } else { 1.0 };
        }
        let unit = Self { mean, scale, weights: [0.0; N], bias: 0.0 };
        let rows: Vec<([f64; M], f64)> =
            answers.iter().map(|(f, y)| (unit.row(f), if *y { 1.0 } else { 0.0 })).collect();
        let mut w = [0.0; M];
        for _ in 0..options.max_steps {
            let step = newton_step(&rows, &w, options.ridge);
            let mut size: f64 = 0.0;
            for (w, s) in w.iter_mut().zip(step) {
                // Far from the optimum, Newton's method overshoots.
                let s = s.clamp(-4.0, 4.0);
                *w += s;
                size = size.max(s.abs());
            }
            if size < 1e-8 {
                let (weights, bias) = split(w);
                return Ok(Self { weights, bias, ..unit });
            }
        }
        Err(FitError::NoConvergence { steps: options.max_steps })
    }

    /// The probability that an answer with these features is right.
    #[must_use]
    pub fn probability(&self, features: &Features) -> f64 {
        let row = self.row(features);
        let z: f64 = row.iter().zip(self.weights.iter().chain([&self.bias])).map(|(x, w)| x * w).sum();
        sigmoid(z)
    }

    /// Standardised features, then 1. Beyond four deviations nothing was seen when fitting: no extrapolation.
    fn row(&self, features: &Features) -> [f64; M] {
        let mut row = [1.0; M];
        for (((r, x), m), s) in row.iter_mut().zip(features.0).zip(self.mean).zip(self.scale) {
            *r = ((x - m) / s).clamp(-4.0, 4.0);
        }
        row
    }
}

fn split(w: [f64; M]) -> ([f64; N], f64) {
    let mut weights = [0.0; N];
    for (to, from) in weights.iter_mut().zip(w) {
        *to = from;
    }
    (weights, w.last().copied().unwrap_or(0.0))
}

fn sigmoid(z: f64) -> f64 {
    1.0 / (1.0 + (-z).exp())
}

/// Solves `(X' diag(p(1-p)) X + ridge) step = X'(y - p) - ridge w`. The constant term is not penalised.
fn newton_step(rows: &[([f64; M], f64)], w: &[f64; M], ridge: f64) -> [f64; M] {
    let mut hessian = [[0.0; M]; M];
    let mut gradient = [0.0; M];
    for (x, y) in rows {
        let p = sigmoid(x.iter().zip(w).map(|(x, w)| x * w).sum());
        let v = p * (1.0 - p);
        for ((line, g), xi) in hessian.iter_mut().zip(&mut gradient).zip(x) {
            *g += xi * (y - p);
            for (h, xj) in line.iter_mut().zip(x) {
                *h += v * xi * xj;
            }
        }
    }
    for (i, ((line, g), w)) in hessian.iter_mut().zip(&mut gradient).zip(w).enumerate() {
        let penalty = if i < N { ridge } else { 1e-9 };
        *g -= penalty * w;
        if let Some(h) = line.get_mut(i) {
            *h += penalty;
        }
    }
    solve(hessian, gradient)
}

/// Gaussian elimination with pivots; the matrix is positive definite.
#[allow(clippy::needless_range_loop, reason = "row operations read best with indices, all below M")]
fn solve(mut a: [[f64; M]; M], mut b: [f64; M]) -> [f64; M] {
    for k in 0..M {
        let pivot = (k..M).max_by(|&i, &j| a[i][k].abs().total_cmp(&a[j][k].abs())).unwrap_or(k);
        a.swap(k, pivot);
        b.swap(k, pivot);
        if a[k][k].abs() < 1e-300 {
            continue;
        }
        for i in k + 1..M {
            let factor = a[i][k] / a[k][k];
            for j in k..M {
                a[i][j] -= factor * a[k][j];
            }
            b[i] -= factor * b[k];
        }
    }
    for k in (0..M).rev() {
        let known: f64 = (k + 1..M).map(|j| a[k][j] * b[j]).sum();
        b[k] = if a[k][k].abs() < 1e-300 { 0.0 } else { (b[k] - known) / a[k][k] };
    }
    b
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::Draw;

    /// Answers whose chance to be right is known: `sigmoid(2 x0 - x1 + 0.3)`.
    fn simulated(n: usize, seed: u64) -> Vec<(Features, bool)> {
        let mut draw = Draw::new(seed);
        (0..n)
            .map(|_| {
                let mut f = [0.0; N];
                f[0] = draw.unit() * 4.0 - 2.0;
                f[1] = draw.unit() * 4.0 - 2.0;
                let p = sigmoid(2.0 * f[0] - f[1] + 0.3);
                (Features(f), draw.unit() < p)
            })
            .collect()
    }

    #[test]
    fn known_weights_are_found_again() {
        let model = Logistic::fit(&simulated(20_000, 1), FitOptions::default()).unwrap();
        assert!((model.weights[0] / model.scale[0] - 2.0).abs() < 0.1, "{model:?}");
        assert!((model.weights[1] / model.scale[1] + 1.0).abs() < 0.1, "{model:?}");
        assert!(model.weights[5].abs() < 1e-6, "a constant feature gets no weight");
        let fresh = simulated(20_000, 2);
        let scored: Vec<(f64, bool)> = fresh.iter().map(|(f, y)| (model.probability(f), *y)).collect();
        assert!(crate::confidence::expected_calibration_error(&scored, 10) < 0.02);
    }

    #[test]
    fn separable_answers_give_finite_weights() {
        let answers: Vec<_> = (0..100)
            .map(|i| {
                let mut f = [0.0; N];
                f[0] = f64::from(i);
                (Features(f), i >= 50)
            })
            .collect();
        let model = Logistic::fit(&answers, FitOptions::default()).unwrap();
        assert!(model.weights.iter().all(|w| w.is_finite()) && model.probability(&answers[99].0) > 0.9);
    }

    #[test]
    fn one_sided_answers_are_refused() {
        let answers: Vec<_> = simulated(500, 3).into_iter().map(|(f, _)| (f, true)).collect();
        let error = Logistic::fit(&answers, FitOptions::default()).unwrap_err();
        assert_eq!(error, FitError::TooFew { right: 500, wrong: 0, least: LEAST });
    }
}
