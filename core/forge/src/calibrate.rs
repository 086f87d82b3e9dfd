//! Activation statistics of a model over a text.

use crate::imatrix::{Collector, Imatrix};
use crate::windows::{check, logit_rows, window};
use crate::{Error, Result};
use pannier::CancelFlag;
use pannier::model::{Forward, Outputs, Runner};
use std::sync::Arc;

/// How a text is run through the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CalibrateOptions {
    /// Tokens per window. Statistics hardly depend on it; long windows cost attention.
    pub window: usize,
    /// No more windows than this.
    pub limit: Option<usize>,
    /// The token that every window begins with, if the model adds one.
    pub bos: Option<u32>,
    /// Also collect what enters the output matrix.
    pub output: bool,
}

impl Default for CalibrateOptions {
    fn default() -> Self {
        CalibrateOptions { window: 512, limit: None, bos: None, output: true }
    }
}

/// What was collected, and from how much.
#[derive(Debug, Clone, PartialEq)]
pub struct Calibration {
    /// The statistics.
    pub imatrix: Imatrix,
    /// Tokens that were run.
    pub tokens: u64,
}

/// A last window with fewer tokens says too little to start a pass for, unless it is the only one.
const SHORTEST: usize = 32;

/// Runs `ids` through the model and sums up what enters each weight matrix. `progress` gets the windows done and their number.
///
/// # Errors
/// A window longer than the context, an empty text, [`Error::Cancelled`], and what a forward pass may bring.
pub fn calibrate(
    runner: &mut Runner,
    ids: &[u32],
    options: &CalibrateOptions,
    cancel: &CancelFlag,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Calibration> {
    check(runner, options.window)?;
    let mut windows = ids.len().div_ceil(options.window);
    let last = ids.len() - windows.saturating_sub(1) * options.window;
    if windows > 1 && last < SHORTEST {
        windows -= 1;
    }
    let windows = windows.min(options.limit.unwrap_or(usize::MAX));
    if windows == 0 {
        return Err(Error::TextTooShort { tokens: ids.len(), needed: 1 });
    }
    let collector = Arc::new(Collector::new());
    runner.observe_activations(Some(collector.clone()));
    let ran = run(runner, ids, windows, options, cancel, progress);
    // Whatever happened: nobody else wants to be observed.
    runner.observe_activations(None);
    let tokens = ran?;
    let mut imatrix = collector.imatrix();
    if !options.output {
        imatrix.retain(|name| !matches!(name, "output.weight" | "token_embd.weight"));
    }
    imatrix.chunks = u32::try_from(windows).unwrap_or(u32::MAX);
    imatrix.chunk_tokens = u32::try_from(options.window).unwrap_or(u32::MAX);
    Ok(Calibration { imatrix, tokens })
}

fn run(
    runner: &mut Runner,
    ids: &[u32],
    windows: usize,
    options: &CalibrateOptions,
    cancel: &CancelFlag,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<u64> {
    let rows = logit_rows(runner.vocab());
    let mut tokens = 0;
    for index in 0..windows {
        progress(index, windows);
        let piece = window(ids, options.window, index, options.bos);
        let mut seq = runner.new_seq()?;
        // Logits of every row: the last layer computes nothing for rows without, and would see no text.
        for piece in piece.chunks(rows) {
            runner.step(&mut seq, piece, Outputs::All, cancel)?;
        }
        tokens += piece.len() as u64;
    }
    progress(windows, windows);
    Ok(tokens)
}
