//! How surprised a model is by a text.
//!
//! The text is tokenised once and cut into windows of one length; what is left at the end is not used. In each window the first
//! token is replaced by BOS, if the model adds one, and the second half is scored, so that every scored token has at least half
//! a window before it. The number is comparable with that of llama.cpp's tool.

use super::interval::{Interval, mean_of_windows};
use crate::windows::{check, logit_rows, window};
use crate::{Error, Result};
use pannier::CancelFlag;
use pannier::model::{Forward, Outputs};
use pannier::sampling::LogitStats;
use rayon::prelude::*;

/// How a text is scored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextOptions {
    /// Tokens per window.
    pub window: usize,
    /// The token that every window begins with, if the model adds one.
    pub bos: Option<u32>,
    /// No more windows than this.
    pub limit: Option<usize>,
}

impl Default for TextOptions {
    /// The field's usual window.
    fn default() -> Self {
        TextOptions { window: 512, bos: None, limit: None }
    }
}

/// How well a model predicts a text.
#[derive(Debug, Clone, PartialEq)]
pub struct Perplexity {
    /// exp of the mean negative log-probability; the interval takes windows as independent of each other.
    pub ppl: Interval,
    /// Tokens that were scored.
    pub tokens: u64,
    /// Windows.
    pub windows: usize,
}

/// How many windows a text has.
pub(super) fn windows<F: Forward>(forward: &F, ids: &[u32], options: &TextOptions) -> Result<usize> {
    check(forward, options.window)?;
    let windows = (ids.len() / options.window).min(options.limit.unwrap_or(usize::MAX));
    if windows == 0 {
        return Err(Error::TextTooShort { tokens: ids.len(), needed: options.window });
    }
    Ok(windows)
}

/// Scores `ids`. `progress` gets the windows done, their number, and the perplexity so far.
///
/// # Errors
/// A text shorter than one window, a window longer than the context, [`Error::Cancelled`], and what a forward pass may bring.
pub fn perplexity<F: Forward>(
    forward: &mut F,
    ids: &[u32],
    options: &TextOptions,
    cancel: &CancelFlag,
    progress: &mut dyn FnMut(usize, usize, f64),
) -> Result<Perplexity> {
    let windows = windows(forward, ids, options)?;
    let mut terms: Vec<Vec<f64>> = Vec::with_capacity(windows);
    for index in 0..windows {
        let piece = window(ids, options.window, index, options.bos);
        terms.push(surprises(forward, &piece, cancel)?);
        progress(index + 1, windows, mean_of_windows(&terms).value.exp());
    }
    Ok(summary(&terms))
}

pub(super) fn summary(terms: &[Vec<f64>]) -> Perplexity {
    Perplexity {
        ppl: mean_of_windows(terms).map(f64::exp),
        tokens: terms.iter().map(Vec::len).sum::<usize>() as u64,
        windows: terms.len(),
    }
}

/// Steps of a window's second half: tokens to run, and what comes after each.
pub(super) fn steps(window: &[u32], rows: usize) -> impl Iterator<Item = (&[u32], &[u32])> {
    let first = window.len() / 2;
    // The last token has no successor to score.
    let run = window.get(first..window.len().saturating_sub(1)).unwrap_or_default();
    let next = window.get(first + 1..).unwrap_or_default();
    run.chunks(rows).zip(next.chunks(rows))
}

/// Negative log-probabilities of the tokens of a window's second half.
fn surprises<F: Forward>(forward: &mut F, window: &[u32], cancel: &CancelFlag) -> Result<Vec<f64>> {
    let vocab = forward.vocab();
    let mut seq = forward.new_seq()?;
    let context = window.get(..window.len() / 2).unwrap_or_default();
    forward.step(&mut seq, context, Outputs::None, cancel)?;
    let mut terms = Vec::with_capacity(window.len() / 2);
    for (piece, next) in steps(window, logit_rows(vocab)) {
        let logits = forward.step(&mut seq, piece, Outputs::All, cancel)?;
        let rows: Result<Vec<f64>> = logits
            .par_chunks_exact(vocab)
            .zip(next.par_iter())
            .map(|(row, next)| surprise(&LogitStats::of(row)?, row, *next))
            .collect();
        terms.extend(rows?);
    }
    Ok(terms)
}

pub(super) fn surprise(stats: &LogitStats, row: &[f32], next: u32) -> Result<f64> {
    Ok(-row.get(next as usize).map_or(f64::NEG_INFINITY, |&logit| stats.logprob(logit)))
}
