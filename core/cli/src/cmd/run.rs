//! `pannier run`: continues a text as it is, without a chat template.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use pannier::model::RouteRecorder;
use pannier::session::GenerationEvent;
use serde::Serialize;

use crate::args::{RunArgs, SamplingArgs, SpeculationArgs};
use crate::engine::{self, Loaded, Stats};
use crate::error::{CliError, Result};
use crate::input;
use crate::output::Output;

#[derive(Args)]
#[command(after_help = "\
Examples:
  pannier run -m smollm2 -p 'Once upon a time' -n 40
  pannier run -m model.gguf --file prompt.txt -n 200 --temp 0.8 --seed 7
  pannier run -m large.gguf --draft small.gguf --ngram --file code.txt
  pannier run -m moe.gguf -p 'Once upon a time' -n 200 --trace-routes trace.csv
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

    /// Record which experts were chosen, token by token, for `pannier replay`.
    #[arg(long, value_name = "FILE")]
    trace_routes: Option<PathBuf>,
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
    let recorder = args.trace_routes.as_deref().map(|path| record(&loaded, path)).transpose()?;
    let session = loaded.model.session();
    let answer = engine::generate(out, options, |options, sink| {
        session.generate(prompt, options, &mut |event| {
            if let (GenerationEvent::Started { prompt_tokens, .. }, Some(recorder)) = (&event, &recorder) {
                recorder.begin_turn(*prompt_tokens);
            }
            sink(event)
        })
    })?;
    if let (Some(recorder), Some(path)) = (&recorder, &args.trace_routes) {
        recorder.finish().map_err(|e| CliError::io("write", path, &e))?;
    }
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

/// Lets the model's routers tell their choices to a file.
fn record(loaded: &Loaded, path: &Path) -> Result<Arc<RouteRecorder>> {
    loaded.with_forward(|forward, _| {
        // Before the file: what was there stays when there is nothing to record.
        if forward.model().spec().moe.is_none() {
            return Err(CliError::failed(format!(
                "{} has no experts: there are no routes to record",
                loaded.name
            )));
        }
        let file = File::create(path).map_err(|e| CliError::io("create", path, &e))?;
        let recorder = RouteRecorder::new(forward.model(), Box::new(BufWriter::new(file)));
        let recorder = Arc::new(recorder.ok_or_else(|| CliError::failed("a model without experts"))?);
        forward.observe(Some(Arc::clone(&recorder) as Arc<dyn pannier::model::RouteObserver>));
        Ok(recorder)
    })
}
