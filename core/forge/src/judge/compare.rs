//! How far a model's predictions are from those of another one, say the original before it was quantised.
//!
//! Perplexity can stay while answers change: errors that make some tokens likelier and others less likely cancel in it. The
//! divergence does not cancel.

use super::interval::{Interval, mean_of_windows, share};
use super::perplexity::{Perplexity, TextOptions, steps, summary, surprise, windows};
use crate::windows::{check, logit_rows, window};
use crate::{Error, Result};
use pannier::CancelFlag;
use pannier::model::{Forward, Outputs};
use pannier::sampling::LogitStats;
use rayon::prelude::*;

/// A model beside a reference, token by token of the same text.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// Of the model.
    pub model: Perplexity,
    /// Of the reference.
    pub reference: Perplexity,
    /// Perplexity of the model divided by that of the reference. Its interval is from the differences per window, and so far
    /// narrower than those of the two.
    pub ratio: Interval,
    /// Mean Kullback-Leibler divergence of the model's distribution from the reference's, in nats: Σ p log(p / q) with p of
    /// the reference.
    pub kl_mean: Interval,
    /// Half of the tokens have less.
    pub kl_median: f64,
    /// One token in a hundred has more.
    pub kl_p99: f64,
    /// Share of tokens where both find the same token the most likely one.
    pub same_top: Interval,
}

/// Of one scored token.
struct Row {
    ours: f64,
    theirs: f64,
    kl: f64,
    same_top: bool,
}

/// Scores `ids` with both models. `progress` gets the windows done, their number, and the mean divergence so far.
///
/// # Errors
/// Different vocabularies, a text shorter than one window, a window longer than a context, [`Error::Cancelled`], and what a
/// forward pass may bring.
pub fn compare<F: Forward, G: Forward>(
    model: &mut F,
    reference: &mut G,
    ids: &[u32],
    options: &TextOptions,
    cancel: &CancelFlag,
    progress: &mut dyn FnMut(usize, usize, f64),
) -> Result<Comparison> {
    if model.vocab() != reference.vocab() {
        return Err(Error::OtherVocabulary { ours: model.vocab(), theirs: reference.vocab() });
    }
    let windows = windows(model, ids, options)?;
    check(reference, options.window)?;
    let mut rows: Vec<Vec<Row>> = Vec::with_capacity(windows);
    let mut kl: Vec<Vec<f64>> = Vec::with_capacity(windows);
    for index in 0..windows {
        let piece = window(ids, options.window, index, options.bos);
        let scored = both(model, reference, &piece, cancel)?;
        kl.push(scored.iter().map(|row| row.kl).collect());
        rows.push(scored);
        progress(index + 1, windows, mean_of_windows(&kl).value);
    }
    let terms = |of: fn(&Row) -> f64| -> Vec<Vec<f64>> {
        rows.iter().map(|rows| rows.iter().map(of).collect()).collect()
    };
    let mut all: Vec<f64> = kl.iter().flatten().copied().collect();
    all.sort_by(f64::total_cmp);
    let quantile = |q: f64| all.get((q * all.len() as f64) as usize).or(all.last()).copied().unwrap_or(0.0);
    let same = rows.iter().flatten().filter(|row| row.same_top).count();
    Ok(Comparison {
        model: summary(&terms(|row| row.ours)),
        reference: summary(&terms(|row| row.theirs)),
        ratio: mean_of_windows(&terms(|row| row.ours - row.theirs)).map(f64::exp),
        kl_mean: mean_of_windows(&kl),
        kl_median: quantile(0.5),
        kl_p99: quantile(0.99),
        same_top: share(same, all.len()),
    })
}

fn both<F: Forward, G: Forward>(
    model: &mut F,
    reference: &mut G,
    window: &[u32],
    cancel: &CancelFlag,
) -> Result<Vec<Row>> {
    let vocab = model.vocab();
    let (mut ours, mut theirs) = (model.new_seq()?, reference.new_seq()?);
    let context = window.get(..window.len() / 2).unwrap_or_default();
    model.step(&mut ours, context, Outputs::None, cancel)?;
    reference.step(&mut theirs, context, Outputs::None, cancel)?;
    let mut rows = Vec::with_capacity(window.len() / 2);
    for (piece, next) in steps(window, logit_rows(vocab)) {
        let q = model.step(&mut ours, piece, Outputs::All, cancel)?;
        let p = reference.step(&mut theirs, piece, Outputs::All, cancel)?;
        let scored: Result<Vec<Row>> = q
            .par_chunks_exact(vocab)
            .zip(p.par_chunks_exact(vocab))
            .zip(next.par_iter())
            .map(|((q, p), next)| row(q, p, *next))
            .collect();
        rows.extend(scored?);
    }
    Ok(rows)
}

fn row(q: &[f32], p: &[f32], next: u32) -> Result<Row> {
    let (of_q, of_p) = (LogitStats::of(q)?, LogitStats::of(p)?);
    let mut kl = 0f64;
    for (&q, &p) in q.iter().zip(p) {
        let (log_q, log_p) = (of_q.logprob(q), of_p.logprob(p));
        // What the reference excludes adds nothing; below e^-80 nothing that f64 would see.
        if log_p > -80.0 {
            kl += libm::exp(log_p) * (log_p - log_q);
        }
    }
    Ok(Row {
        ours: surprise(&of_q, q, next)?,
        theirs: surprise(&of_p, p, next)?,
        // Rounding may leave a hair below 0 for equal distributions.
        kl: kl.max(0.0),
        same_top: of_q.best == of_p.best,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_divergence_is_that_of_its_definition() {
        let ln = |p: [f64; 3]| p.map(|p: f64| p.ln() as f32 + 5.0);
        let (p, q) = ([0.5f64, 0.3, 0.2], [0.2f64, 0.5, 0.3]);
        let expected: f64 = p.iter().zip(q).map(|(p, q)| p * (p / q).ln()).sum();
        let found = row(&ln(q), &ln(p), 2).unwrap_or(Row { ours: 0.0, theirs: 0.0, kl: 0.0, same_top: true });
        assert!((found.kl - expected).abs() < 1e-6, "{} {expected}", found.kl);
        assert!((found.ours + 0.3f64.ln()).abs() < 1e-6 && (found.theirs + 0.2f64.ln()).abs() < 1e-6);
        assert!(!found.same_top);
    }
}
