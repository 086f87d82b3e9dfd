//! The command line.

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};
use pannier::Speculation;
use pannier::model::ExpertShortcuts;
use pannier::sampling::SamplerOptions;
use pannier::session::GenerationOptions;
use pannier::store::DEFAULT_MODEL;
use pannier::{KvPolicy, KvTypes, WeightPrecision};

use crate::cmd;
use crate::error;

/// Run GGUF language models on this machine, inside a memory budget.
#[derive(Parser)]
#[command(
    name = "pannier",
    version,
    max_term_width = 100,
    after_help = "\
Start here:
  pannier pull smollm2                     download a small chat model (98 MB)
  pannier chat -m smollm2                  talk to it
  pannier run -m smollm2 -p 'Once upon a time' -n 40
  pannier inspect model.gguf               what is in a file

`-m` takes the path of a GGUF file or a name that `pannier pull --list` shows. Models are kept in the user's cache
directory; the variable PANNIER_MODELS names another folder. `pannier help COMMAND` explains a command with examples."
)]
pub struct Cli {
    /// Print one JSON object on stdout and nothing else; its keys are stable.
    #[arg(long, global = true)]
    pub json: bool,

    #[command(subcommand)]
    pub command: Command,
}

/// What to do. One file in `cmd/` each.
#[derive(Subcommand)]
pub enum Command {
    /// Download a model by name or address: resumable, verified.
    Pull(cmd::pull::PullArgs),
    /// Show what is in a model file: architecture, tensors, types, template, sizes.
    Inspect(cmd::inspect::InspectArgs),
    /// Turn text into token ids.
    Tokenize(cmd::tokenize::TokenizeArgs),
    /// Say before loading what fits, what is streamed, and how fast it will be.
    Plan(cmd::plan::PlanArgs),
    /// Rearrange a model for flash: one read per streamed unit.
    Pack(cmd::pack::PackArgs),
    /// Try a cache policy on a recorded routing trace.
    Replay(cmd::replay::ReplayArgs),
    /// Continue a text as it is.
    Run(cmd::run::CompletionArgs),
    /// Show the most likely next tokens at every position of a text.
    Logits(cmd::logits::LogitsArgs),
    /// Ask one question, or hold a conversation.
    Chat(cmd::chat::ChatArgs),
    /// Answer OpenAI clients on this machine.
    Serve(cmd::serve::ServeArgs),
    /// Learn from checked answers how sure the model can be of its own.
    FitConfidence(cmd::fit_confidence::FitArgs),
    /// Measure speed and memory.
    Bench(cmd::bench::BenchArgs),
    /// Measure how well a model predicts a text.
    Perplexity(cmd::perplexity::PerplexityArgs),
    /// Measure what a model can do: small tasks with one right answer.
    Evaluate(cmd::evaluate::EvaluateArgs),
    /// Collect activation statistics for quantising.
    Calibrate(cmd::calibrate::CalibrateArgs),
    /// Make a GGUF file from a Hugging Face checkpoint.
    Convert(cmd::convert::ConvertArgs),
    /// Make a smaller model from a larger one.
    Quantize(cmd::quantize::QuantizeArgs),
}

/// `-m`: every command that reads a model has it.
#[derive(Args, Clone)]
pub struct ModelArg {
    /// A GGUF file, or the name of a pulled model.
    #[arg(short, long, value_name = "FILE|NAME", default_value = DEFAULT_MODEL)]
    pub model: String,
}

/// The options of every command that runs a model.
#[derive(Args, Clone)]
pub struct RunArgs {
    #[command(flatten)]
    pub model: ModelArg,

    /// Threads; by default one for each core that is worth using.
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,

    /// Memory budget in MiB for everything that is not the mapped file; a model that cannot keep it is refused.
    #[arg(long, value_name = "MB", value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    pub budget_mb: Option<u64>,

    /// Context in tokens; by default what the model was trained with.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pub ctx: Option<u32>,

    /// Element type of the KV cache: f16, q8, k8v4, q4 (first and last layer in int8), q4-everywhere, all with rotated keys; q8-channel, k8v4-channel and
    /// q4-channel (keys scaled per channel instead: nearer to f16, but with nothing that a policy could forget); q8-naive, q4-naive. All but f16 save
    /// memory and change answers a little.
    #[arg(long, value_name = "TYPE", default_value_t = KvTypes::F16)]
    pub kv_type: KvTypes,

    /// What the KV cache may forget so that it stays small: all (nothing), window:N, sinks:FIRST:LAST, heavy (4 first, 1024 last, the 512
    /// most attended between them) or heavy:FIRST:LAST:TOP; tells when it acts. Or pages:N (pages alone: 1536), which forgets nothing, but reads
    /// only N tokens for each new one, chosen by summaries that take 1 byte for every 32 that halves take. Changes answers.
    #[arg(long, value_name = "POLICY", default_value_t = KvPolicy::KeepAll)]
    pub kv_policy: KvPolicy,

    /// Which view of a file in nested precision answers: low (the first plane alone, 3.5 bits per weight; nothing else of the file is read), full, or
    /// auto (short prompts begin with low; the full view goes on if that is unsure of its first words). Other files have the full view only.
    #[arg(long, value_name = "VIEW", default_value_t)]
    pub precision: WeightPrecision,

    #[command(flatten)]
    pub shortcuts: ShortcutArgs,
}

/// What changes the answers of mixtures of experts for speed.
#[derive(Args, Clone)]
#[command(next_help_heading = "Shortcuts (answers differ from the model's own)")]
pub struct ShortcutArgs {
    /// Use at most N experts per token.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    at_most_experts: Option<u16>,

    /// While decoding, leave out experts that are not in memory and weigh less than this.
    #[arg(long, value_name = "W", default_value_t = 0.0)]
    drop_experts_below: f32,

    /// Prefer experts in memory to others that are likelier by up to this share.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    prefer_present_experts: f32,
}

impl ShortcutArgs {
    /// The engine's options.
    pub fn options(&self) -> ExpertShortcuts {
        ExpertShortcuts {
            at_most: self.at_most_experts.map(usize::from),
            drop_below: self.drop_experts_below,
            prefer_present: self.prefer_present_experts,
        }
    }
}

/// Whether several tokens are guessed and checked in one pass. The text does not depend on it.
#[derive(Args, Clone, Default)]
pub struct SpeculationArgs {
    /// A smaller model of the same vocabulary that guesses tokens.
    #[arg(long, value_name = "FILE|NAME")]
    pub draft: Option<String>,

    /// Guess what followed the last time that the text ended in the same tokens.
    #[arg(long)]
    pub ngram: bool,

    /// `auto`: guess from whatever there is and pays; `off`: never. By default what --draft and --ngram name, as far as it pays.
    #[arg(long, value_name = "WHEN", value_enum)]
    pub speculate: Option<Speculate>,

    /// Always guess N tokens, whether it pays or not: for measurements.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=8))]
    pub draft_len: Option<u8>,
}

/// `--speculate`.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Speculate {
    /// Whatever there is and pays.
    Auto,
    /// Never.
    Off,
}

impl SpeculationArgs {
    /// The engine's option.
    pub fn mode(&self) -> Speculation {
        match (self.speculate, self.draft.is_some(), self.ngram) {
            (Some(Speculate::Off), _, _) | (None, false, false) => Speculation::Off,
            (Some(Speculate::Auto), _, _) | (None, true, true) => Speculation::Auto,
            (None, true, false) => Speculation::Draft,
            (None, false, true) => Speculation::Ngram,
        }
    }

    /// Sets the engine's options.
    pub fn apply(&self, options: GenerationOptions) -> GenerationOptions {
        GenerationOptions {
            speculation: Some(self.mode()),
            draft_len: self.draft_len.map(usize::from),
            ..options
        }
    }
}

/// How tokens are chosen, besides the temperature.
#[derive(Args, Clone)]
pub struct SamplingArgs {
    /// Seed of the draws: the same seed gives the same text. Without it one is picked and reported.
    #[arg(long, value_name = "S")]
    pub seed: Option<u64>,

    /// Keep the K most likely tokens; 0 keeps all.
    #[arg(long, value_name = "K", default_value_t = 40)]
    pub top_k: usize,

    /// Keep the most likely tokens up to this mass.
    #[arg(long, value_name = "P", default_value_t = 0.95)]
    pub top_p: f32,

    /// Drop tokens less likely than this share of the most likely one.
    #[arg(long, value_name = "P", default_value_t = 0.05)]
    pub min_p: f32,

    /// Above 1: tokens that were there become less likely.
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    pub repetition_penalty: f32,

    /// End before this text; may be given several times.
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
}

impl SamplingArgs {
    /// The engine's options.
    pub fn options(&self, temperature: f32, max_tokens: Option<usize>) -> GenerationOptions {
        let sampler = SamplerOptions {
            temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            seed: self.seed,
            ..SamplerOptions::default()
        };
        GenerationOptions { max_tokens, stop: self.stop.clone(), sampler, ..GenerationOptions::default() }
    }
}

/// Help and version go to stdout as they are. A wrong command line is one line, like every other failure.
pub fn usage_error(e: &clap::Error) -> ExitCode {
    use clap::error::ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};
    if matches!(e.kind(), DisplayHelp | DisplayVersion) {
        // Its own error is that the reader is gone: nothing to add.
        let _ = e.print();
        return ExitCode::SUCCESS;
    }
    let text = e.render().to_string();
    if e.kind() == DisplayHelpOnMissingArgumentOrSubcommand {
        error::print_to_stderr(&text);
        return ExitCode::from(2);
    }
    // "error: WHAT", details and tips, a blank line before "Usage:" and "For more information".
    let what: Vec<&str> = text
        .lines()
        .map(str::trim)
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"))
        .filter(|line| !line.is_empty())
        .collect();
    let what = what.join(" ");
    let what = what.strip_prefix("error: ").unwrap_or(&what);
    error::report(&format!("{what} (see `pannier --help`)"));
    ExitCode::from(2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
