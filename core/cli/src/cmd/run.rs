//! `pannier run`: continues a text as it is, without a chat template.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use crate::args::{RunArgs, SamplingArgs, SpeculationArgs};
use crate::engine::{self, Stats};
use crate::error::{CliError, Result};
use crate::input;
use crate::output::Output;

#[derive(Args)]
#[command(after_help = "\
Examples:
  pannier run -m smollm2 -p 'Once upon a time' -n 40
  pannier run -m model.gguf --file prompt.txt -n 200 --temp 0.8 --seed 7
  pannier run -m large.gguf --draft small.gguf --ngram --file code.txt
  pannier run -m model.gguf -p '<|im_start|>user
Hello<|im_end|>
<|im_start|>assistant
' --json

The text of special tokens is read as these tokens; BOS is added if the model wants it. To chat, use `pannier chat`.
JSON: ids, text, finish_reason (stop, stop_string, length, context_full), stats.")]
pub struct CompletionArgs {
    #[command(flatten)]
    run: RunArgs,

    /// The text to continue.
    #[arg(
        short,
        long,
        value_name = "TEXT",
        required_unless_present = "file",
        conflicts_with = "file",
        allow_hyphen_values = true
    )]
    prompt: Option<String>,

    /// Read the text from a file; `-` is stdin.
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,

    /// At most this many tokens.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 128)]
    max_tokens: usize,

    /// 0 always takes the most likely token; 1 draws from the model's own distribution.
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    temp: f32,

    #[command(flatten)]
    sampling: SamplingArgs,

    #[command(flatten)]
    speculation: SpeculationArgs,
}

#[derive(Serialize)]
struct Report {
    ids: Vec<u32>,
    text: String,
    finish_reason: &'static str,
    stats: Stats,
}

pub fn run(args: &CompletionArgs, out: &mut Output) -> Result<()> {
    let prompt = input::text(args.prompt.as_deref(), args.file.as_ref())?;
    if prompt.is_empty() {
        return Err(CliError::failed("the prompt is empty: there is nothing to continue"));
    }
    let loaded = engine::load_speculating(&args.run, &args.speculation)?;
    let options = args.speculation.apply(args.sampling.options(args.temp, Some(args.max_tokens)));
    let session = loaded.model.session();
    let answer = engine::generate(out, options, |options, sink| session.generate(prompt, options, sink))?;
    let stats = Stats::new(&answer.completion.stats, answer.completion.seed, &loaded);
    if !out.json() {
        out.line("")?;
        engine::closing_note(&answer.completion, &stats);
    }
    out.object(&Report {
        ids: answer.completion.ids().collect(),
        finish_reason: answer.completion.finish_reason.name(),
        text: answer.completion.text,
        stats,
    })
}
