//! `pannier perplexity`: how surprised a model is by a text.
//!
//! The text is tokenised once and cut into windows of the context's length; what is left at the end is not used. In each
//! window the first token is replaced by BOS, if the model adds one, and the second half is scored, so that every scored
//! token has at least half a window before it. The number is comparable with that of llama.cpp's tool.

use std::path::PathBuf;

use clap::Args;
use pannier::CancelFlag;
use pannier::model::{Forward as _, Outputs};
use pannier::sampling::LogitStats;
use pannier_tokenizer::EncodeOptions;
use rayon::prelude::*;
use serde::Serialize;

use crate::args::RunArgs;
use crate::engine::{self, Forward};
use crate::error::{CliError, Result};
use crate::input;
use crate::output::{self, Output};

#[derive(Args)]
#[command(after_help = "\
Examples:
  pannier perplexity -m smollm2 --file prose.txt
  pannier perplexity -m model.gguf --file prose.txt --ctx 1024 --json

Lower is better; numbers compare only for the same text, window and tokenizer. JSON: ppl, tokens (how many were
scored), kv_type.")]
pub struct PerplexityArgs {
    #[command(flatten)]
    run: RunArgs,

    /// The text; `-` is stdin.
    #[arg(long, value_name = "PATH")]
    file: PathBuf,
}

/// Window, where `--ctx` says nothing: the field's usual one.
const WINDOW: u32 = 512;

#[derive(Serialize)]
struct Report {
    ppl: f64,
    tokens: u64,
    kv_type: String,
}

pub fn run(args: &PerplexityArgs, out: &mut Output) -> Result<()> {
    let text = input::text_file(&args.file)?;
    let mut run = args.run.clone();
    let window = *run.ctx.get_or_insert(WINDOW) as usize;
    if window < 4 {
        return Err(CliError::failed("a window needs at least 4 tokens"));
    }
    let loaded = engine::load(&run)?;
    let tokenizer = loaded.tokenizer()?;
    let bos = tokenizer.special_tokens().bos.filter(|_| tokenizer.add_bos());
    let ids = tokenizer.encode(&text, EncodeOptions { add_special: true, parse_special: true });
    let windows = ids.len() / window;
    if windows == 0 {
        return Err(CliError::failed(format!(
            "the text has {} tokens, less than one window of {window}: pass a longer text or a smaller --ctx",
            ids.len()
        )));
    }

    let bar = output::count_bar(windows as u64, "windows");
    let (sum, tokens) = loaded.with_forward(|forward, cancel| {
        let (mut sum, mut tokens) = (0f64, 0u64);
        for piece in ids.chunks_exact(window) {
            let mut piece = piece.to_vec();
            if let (Some(bos), Some(first)) = (bos, piece.first_mut()) {
                *first = bos;
            }
            let (nll, scored) = score(forward, &piece, cancel)?;
            sum += nll;
            tokens += scored;
            bar.inc(1);
            bar.set_prefix(format!("ppl {:.4}", (sum / tokens.max(1) as f64).exp()));
        }
        Ok((sum, tokens))
    })?;
    bar.finish_and_clear();
    let ppl = (sum / tokens.max(1) as f64).exp();
    out.line(&format!("perplexity {ppl:.4} over {tokens} tokens, windows of {window}"))?;
    out.object(&Report { ppl, tokens, kv_type: run.kv_type.to_string() })
}

/// Sum of negative log-probabilities of the window's second half, and how many there are.
fn score(forward: &mut Forward, window: &[u32], cancel: &CancelFlag) -> Result<(f64, u64)> {
    let vocab = forward.vocab();
    let first = window.len() / 2;
    let (context, rest) = window.split_at(first);
    // The last token has no successor to score.
    let rest = rest.get(..rest.len().saturating_sub(1)).unwrap_or_default();
    let mut seq = forward.new_seq()?;
    forward.step(&mut seq, context, Outputs::None, cancel)?;
    let (mut sum, mut done) = (0f64, first);
    for piece in rest.chunks(engine::logit_rows(vocab)) {
        let logits = forward.step(&mut seq, piece, Outputs::All, cancel)?;
        let next = window.get(done + 1..).unwrap_or_default();
        let terms: Vec<Result<f64>> = logits
            .par_chunks_exact(vocab)
            .zip(next.par_iter())
            .take(piece.len())
            .map(|(row, &next)| {
                let stats = LogitStats::of(row)
                    .map_err(|e| CliError::failed(format!("the model gave no usable logits: {e}")))?;
                Ok(-row.get(next as usize).map_or(f64::NEG_INFINITY, |&logit| stats.logprob(logit)))
            })
            .collect();
        // In order, so that the sum does not depend on the threads.
        for term in terms {
            sum += term?;
        }
        done += piece.len();
    }
    Ok((sum, rest.len() as u64))
}
