//! Logistic regression, small enough to read.
//!
//! ```text
//! standardise each feature to mean 0, deviation 1
//! repeat:  p = sigmoid(X w);  w += (X' diag(p(1-p)) X + ridge)^-1 (X'(y - p) - ridge w)      Newton's method
//! ```
//! The ridge keeps weights finite when the classes can be separated, and features that say the same thing from pulling
//! against each other. How strong it is, and how far to trust the result, is found by cross-fitting ([`Logistic::fit_tuned`]):
//!
//! ```text
//! for each ridge:  each fifth of the answers is scored by a fit on the other four
//! the ridge with the best log loss there;  Platt's scaling, p = sigmoid(a z + b), of these scores
//! a fit on all answers, with its weights times a and its constant times a, plus b
//! ```

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
    pub fn fit(answers: &[(Features, bool)], options: FitOptions) -> Result<Self, FitError> {
        enough(answers)?;
        Self::fit_any(answers, options)
    }

    #[allow(clippy::cast_precision_loss)] // counts are small
    fn fit_any(answers: &[(Features, bool)], options: FitOptions) -> Result<Self, FitError> {
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

    /// Fits with the ridge and the scaling that cross-fitting finds. The order of the answers decides who is scored by whom, and nothing
    /// is random.
    ///
    /// # Errors
    /// [`FitError`].
    pub fn fit_tuned(answers: &[(Features, bool)]) -> Result<Self, FitError> {
        enough(answers)?;
        let mut best: Option<(f64, f64, Scored)> = None;
        for ridge in RIDGES {
            let scored = cross_fit(answers, ridge)?;
            let loss = scored.iter().map(|(z, y)| log_loss(*z, *y)).sum::<f64>();
            if best.as_ref().is_none_or(|(least, _, _)| loss < *least) {
                best = Some((loss, ridge, scored));
            }
        }
        let (ridge, scored) = best.map(|(_, ridge, scored)| (ridge, scored)).unwrap_or_default();
        let (a, b) = platt(&scored);
        let mut all = Self::fit(answers, FitOptions { ridge, ..FitOptions::default() })?;
        for w in &mut all.weights {
            *w *= a;
        }
        all.bias = all.bias * a + b;
        Ok(all)
    }

    /// The probability that an answer with these features is right.
    #[must_use]
    pub fn probability(&self, features: &Features) -> f64 {
        sigmoid(self.log_odds(features))
    }

    fn log_odds(&self, features: &Features) -> f64 {
        let row = self.row(features);
        row.iter().zip(self.weights.iter().chain([&self.bias])).map(|(x, w)| x * w).sum()
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

fn enough(answers: &[(Features, bool)]) -> Result<(), FitError> {
    let right = answers.iter().filter(|(_, y)| *y).count();
    let wrong = answers.len() - right;
    if right < LEAST || wrong < LEAST { Err(FitError::TooFew { right, wrong, least: LEAST }) } else { Ok(()) }
}

/// Candidates for the ridge, in answers.
const RIDGES: [f64; 6] = [1.0, 4.0, 16.0, 64.0, 256.0, 1024.0];
/// Parts that are scored by the others.
const FOLDS: usize = 5;

/// For each answer its log-odds, and whether it was right.
type Scored = Vec<(f64, bool)>;

/// The log-odds of each answer by a fit that has not seen it. Every fifth answer is left out together: files are often sorted, and neighbours
/// alike.
fn cross_fit(answers: &[(Features, bool)], ridge: f64) -> Result<Scored, FitError> {
    let mut scored = Vec::with_capacity(answers.len());
    for fold in 0..FOLDS {
        let (out, rest): (Vec<_>, Vec<_>) = answers.iter().enumerate().partition(|(i, _)| i % FOLDS == fold);
        let rest: Vec<(Features, bool)> = rest.into_iter().map(|(_, a)| a.clone()).collect();
        let fitted = Logistic::fit_any(&rest, FitOptions { ridge, ..FitOptions::default() })?;
        scored.extend(out.into_iter().map(|(_, (f, y))| (fitted.log_odds(f), *y)));
    }
    Ok(scored)
}

/// `-ln p` of what happened.
fn log_loss(z: f64, y: bool) -> f64 {
    let signed = if y { -z } else { z };
    // ln(1 + e^x) without overflow.
    signed.max(0.0) + (-signed.abs()).exp().ln_1p()
}

/// `(a, b)` of Platt's scaling, with his smoothed targets ("Probabilistic Outputs for Support Vector Machines", 1999), by Newton's method.
#[allow(clippy::cast_precision_loss)] // counts are small
fn platt(scored: &[(f64, bool)]) -> (f64, f64) {
    let right = scored.iter().filter(|(_, y)| *y).count() as f64;
    let wrong = scored.len() as f64 - right;
    let targets = [1.0 / (wrong + 2.0), (right + 1.0) / (right + 2.0)];
    let (mut a, mut b) = (1.0, 0.0);
    for _ in 0..50 {
        // The scaling is drawn a little towards (1, 0), which keeps it finite.
        let (mut ga, mut gb, mut haa, mut hab, mut hbb) = (1.0 - a, -b, 1.0, 0.0, 1.0);
        for (z, y) in scored {
            let p = sigmoid(a * z + b);
            let (v, miss) = (p * (1.0 - p), targets[usize::from(*y)] - p);
            ga += z * miss;
            gb += miss;
            haa += v * z * z;
            hab += v * z;
            hbb += v;
        }
        let det = haa * hbb - hab * hab;
        let (da, db) = ((hbb * ga - hab * gb) / det, (haa * gb - hab * ga) / det);
        a += da.clamp(-1.0, 1.0);
        b += db.clamp(-1.0, 1.0);
        if da.abs() + db.abs() < 1e-9 {
            break;
        }
    }
    // A negative slope would turn the order around: then the scores carry nothing.
    (a.max(0.0), b)
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

    /// The same among many features that say nothing.
    fn noisy(n: usize, seed: u64) -> Vec<(Features, bool)> {
        let mut draw = Draw::new(seed + 1000);
        let mut answers = simulated(n, seed);
        for (f, _) in &mut answers {
            for x in &mut f.0[2..20] {
                *x = draw.unit() * 4.0 - 2.0;
            }
        }
        answers
    }

    #[test]
    fn tuning_keeps_few_answers_from_being_overfitted() {
        let fresh = noisy(20_000, 6);
        let judge = |model: &Logistic| {
            let scored: Vec<(f64, bool)> = fresh.iter().map(|(f, y)| (model.probability(f), *y)).collect();
            let loss = fresh.iter().map(|(f, y)| log_loss(model.log_odds(f), *y)).sum::<f64>();
            (loss / fresh.len() as f64, crate::confidence::expected_calibration_error(&scored, 10))
        };
        let loose = FitOptions { ridge: 1e-3, ..FitOptions::default() };
        // Summed over ten draws: in about one of ten, chance favours the loose fit.
        let (mut tuned, mut tuned_ece, mut loosely, mut loose_ece) = (0.0, 0.0, 0.0, 0.0);
        for few in (20..30).map(|seed| noisy(150, seed)) {
            let (loss, ece) = judge(&Logistic::fit_tuned(&few).unwrap());
            (tuned, tuned_ece) = (tuned + loss, tuned_ece + ece);
            let (loss, ece) = judge(&Logistic::fit(&few, loose).unwrap());
            (loosely, loose_ece) = (loosely + loss, loose_ece + ece);
        }
        let (best, _) = judge(&Logistic::fit(&noisy(20_000, 7), FitOptions::default()).unwrap());
        assert!(tuned < loosely && 10.0 * best < tuned, "{tuned} {loosely} {best}");
        assert!(tuned_ece < loose_ece, "{tuned_ece} {loose_ece}");
        let known: Vec<(f64, bool)> =
            simulated(5000, 8).iter().map(|(f, y)| (3.0 * (2.0 * f.0[0] - f.0[1]), *y)).collect();
        let (a, b) = platt(&known);
        assert!((a - 1.0 / 3.0).abs() < 0.03 && (b - 0.3).abs() < 0.12, "{a} {b}");
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
