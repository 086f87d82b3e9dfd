//! `pannier logits`: what the model thinks comes next, at every position of a text.

use std::path::PathBuf;

use clap::Args;
use pannier::CancelFlag;
use pannier::model::{Forward as _, Outputs};
use pannier::sampling::{LogitStats, SamplingError, top_logprobs};
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
  pannier logits -m smollm2 -p 'The capital of France is'
  pannier logits -m model.gguf --ids 1,8,15 --top 3 --json
  pannier logits -m model.gguf --file text.txt --json

Log-probabilities are natural logarithms over the whole vocabulary. BOS is added if the model wants it; `--ids` are taken
as they are, and need no vocabulary. JSON: positions [{id, top [[id, logprob], …], next_logprob}]; the last position has no
next_logprob.")]
pub struct LogitsArgs {
    #[command(flatten)]
    run: RunArgs,

    #[command(flatten)]
    source: Source,

    /// How many of the most likely tokens to show for each position.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(0..=100))]
    top: u16,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct Source {
    /// The text.
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Option<String>,

    /// Read the text from a file; `-` is stdin.
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,

    /// Token ids, separated by commas.
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    ids: Option<Vec<u32>>,
}

#[derive(Serialize)]
struct Report {
    positions: Vec<Position>,
    kv_type: String,
}

#[derive(Serialize)]
struct Position {
    id: u32,
    top: Vec<(u32, f32)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_logprob: Option<f32>,
}

pub fn run(args: &LogitsArgs, out: &mut Output) -> Result<()> {
    let text = match &args.source.ids {
        Some(_) => None,
        None => Some(input::text(args.source.prompt.as_deref(), args.source.file.as_ref())?),
    };
    let loaded = engine::load(&args.run)?;
    let ids = match (&args.source.ids, text) {
        (Some(ids), _) => ids.clone(),
        (None, text) => {
            let options = EncodeOptions { add_special: true, parse_special: true };
            loaded.tokenizer()?.encode(&text.unwrap_or_default(), options)
        }
    };
    if ids.is_empty() {
        return Err(CliError::failed("the prompt is empty: no token, no position"));
    }
    let top = usize::from(args.top);
    let positions = loaded.with_forward(|forward, cancel| positions(forward, cancel, &ids, top))?;
    if !out.json() {
        out.text(&page(&positions, loaded.tokenizer().ok().map(|t| &**t)))?;
    }
    out.object(&Report { positions, kv_type: args.run.kv_type.to_string() })
}

fn positions(forward: &mut Forward, cancel: &CancelFlag, ids: &[u32], top: usize) -> Result<Vec<Position>> {
    let limit = forward.context();
    if ids.len() > limit {
        return Err(CliError::failed(format!(
            "the prompt has {} tokens, but the context holds {limit}",
            ids.len()
        )));
    }
    let vocab = forward.vocab();
    let bar = output::count_bar(ids.len() as u64, "tokens");
    let mut seq = forward.new_seq()?;
    let mut positions = Vec::with_capacity(ids.len());
    for piece in ids.chunks(engine::logit_rows(vocab)) {
        let logits = forward.step(&mut seq, piece, Outputs::All, cancel)?;
        let done = positions.len();
        let rows: Vec<Result<Position>> = logits
            .par_chunks_exact(vocab)
            .zip(piece.par_iter().enumerate())
            .map(|(row, (i, &id))| position(row, id, ids.get(done + i + 1).copied(), top))
            .collect();
        for row in rows {
            positions.push(row?);
        }
        bar.set_position(positions.len() as u64);
    }
    bar.finish_and_clear();
    Ok(positions)
}

fn position(row: &[f32], id: u32, next: Option<u32>, top: usize) -> Result<Position> {
    let broken = |e: SamplingError| CliError::failed(format!("the model gave no usable logits: {e}"));
    let stats = LogitStats::of(row).map_err(broken)?;
    let next_logprob = match next {
        None => None,
        Some(next) => row.get(next as usize).map(|&logit| stats.logprob(logit) as f32),
    };
    Ok(Position { id, top: top_logprobs(row, top).map_err(broken)?, next_logprob })
}

fn page(positions: &[Position], tokenizer: Option<&pannier_tokenizer::Tokenizer>) -> String {
    let piece = |id: u32| match tokenizer.and_then(|t| t.piece(id)) {
        Some(piece) => format!("{}", piece.escape_debug()),
        None => id.to_string(),
    };
    let mut page = String::new();
    for position in positions {
        let top: Vec<String> =
            position.top.iter().map(|(id, lp)| format!("{} {lp:.3}", piece(*id))).collect();
        let next = position.next_logprob.map(|lp| format!("  next {lp:.3}")).unwrap_or_default();
        page.push_str(&format!("{:>7} {:<16} {}{next}\n", position.id, piece(position.id), top.join(" | ")));
    }
    page
}
