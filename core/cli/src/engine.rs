//! From a model's name to a model that runs, and from a generation to what is printed.

use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pannier::session::{
    Canceller, Completion, GenerationEvent, GenerationOptions, GenerationStats, Model, Sink,
};
use pannier::{CancelFlag, DraftOptions, EvictWhen, KvOptions, KvPolicy, KvTypes, LoadOptions, Speculation};
use pannier_tokenizer::Tokenizer;
use serde::Serialize;

use crate::args::{RunArgs, SpeculationArgs};
use crate::error::{CliError, Result};
use crate::output::{self, Output};
use crate::{input, interrupt};

/// What runs forward passes.
pub type Forward = pannier::model::Runner;

/// Logits of all rows of a step are one buffer; this many bytes of it are enough to keep the kernels busy.
const LOGIT_BYTES: usize = 32 << 20;

/// Rows of logits to ask for in one step.
pub fn logit_rows(vocab: usize) -> usize {
    (LOGIT_BYTES / (vocab.max(1) * size_of::<f32>())).clamp(1, 512)
}

/// A policy acts when so many positions more are there than it keeps: moving what stays costs as much as a few tokens.
const EVICT_SLACK: usize = 256;

/// Prompts of more tokens show their progress.
const LONG_PROMPT: usize = 512;

/// A model that runs.
pub struct Loaded {
    pub model: Arc<Model<Forward>>,
    /// The file's name, for people.
    pub name: String,
    path: PathBuf,
}

/// The file that these arguments mean.
pub fn path(args: &RunArgs) -> Result<PathBuf> {
    input::model_path(&args.model.model)
}

/// The KV cache that `--kv-type` and `--kv-policy` mean.
pub fn kv_options(types: KvTypes, policy: KvPolicy) -> KvOptions {
    let evict = if policy.keeps().is_some() { EvictWhen::Above(EVICT_SLACK) } else { EvictWhen::Asked };
    KvOptions { types, policy, evict, ..KvOptions::default() }
}

/// Loads the model that these arguments mean.
pub fn load(args: &RunArgs) -> Result<Loaded> {
    load_with(args, None)
}

/// Loads the model that these arguments mean, and the draft model that they name.
pub fn load_speculating(args: &RunArgs, speculation: &SpeculationArgs) -> Result<Loaded> {
    let wanted = speculation.draft.as_ref().filter(|_| !matches!(speculation.mode(), Speculation::Off));
    load_with(args, wanted.map(|draft| input::model_path(draft)).transpose()?)
}

fn load_with(args: &RunArgs, draft: Option<PathBuf>) -> Result<Loaded> {
    let path = path(args)?;
    let options = LoadOptions {
        draft: draft.map(DraftOptions::new),
        // Each generation says what it wants.
        speculation: Some(Speculation::Off),
        threads: args.threads.map(usize::from),
        budget_bytes: args.budget_mb.map(|mb| mb << 20),
        context: args.ctx.map(|n| n as usize),
        kv: kv_options(args.kv_type, args.kv_policy),
        shortcuts: args.shortcuts.options(),
        weight_precision: args.precision,
        ..LoadOptions::default()
    };
    let model = Model::load(&path, &options, &mut |_| {}).map_err(|e| in_file(&path, &e))?;
    for note in &model.info().notes {
        output::note(&format!("note: {note}"));
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(Loaded { model, name, path })
}

/// Errors about what is in a file do not always know its name.
fn in_file(path: &Path, e: &pannier::Error) -> CliError {
    let (name, text) = (path.display().to_string(), e.to_string());
    CliError::failed(if text.contains(&name) { text } else { format!("{name}: {text}") })
}

impl Loaded {
    /// The vocabulary. A model without one runs on ids only.
    pub fn tokenizer(&self) -> Result<&Arc<Tokenizer>> {
        self.model.tokenizer().map_err(|e| in_file(&self.path, &e))
    }

    /// Runs `work` with the forward pass itself. Ctrl-C sets the flag that `work` gets.
    pub fn with_forward<R>(&self, work: impl FnOnce(&mut Forward, &CancelFlag) -> Result<R>) -> Result<R> {
        let cancel = CancelFlag::new();
        let stop = cancel.clone();
        let _guard = interrupt::on_interrupt(move || stop.cancel());
        self.model.with_forward(&cancel, |forward| Ok(work(forward, &cancel)))?
    }

    /// The file.
    pub fn file(&self) -> &Path {
        &self.path
    }

    /// Time from opening the file to here.
    pub fn load_ms(&self) -> f64 {
        ms(self.model.info().load_time)
    }
}

/// The figures of a generation, as `--json` has them.
#[derive(Serialize)]
pub struct Stats {
    pub prompt_tokens: usize,
    pub cached_tokens: usize,
    pub generated_tokens: usize,
    pub ttft_ms: Option<f64>,
    pub prefill_tok_s: f64,
    pub decode_tok_s: f64,
    pub prefill_ms: f64,
    pub decode_ms: f64,
    pub total_ms: f64,
    pub load_ms: f64,
    pub peak_anon_bytes: Option<u64>,
    pub threads: usize,
    pub seed: u64,
    pub proposed_tokens: usize,
    pub accepted_tokens: usize,
    pub acceptance_rate: Option<f64>,
    pub tokens_per_pass: Option<f64>,
    pub flash_bytes_per_token: Option<f64>,
    pub kv_type: String,
    pub kv_policy: String,
    pub evicted: usize,
    pub kv_read_share: Option<f64>,
    pub precision: String,
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

impl Stats {
    pub fn new(stats: &GenerationStats, seed: u64, loaded: &Loaded) -> Self {
        Stats {
            prompt_tokens: stats.prompt_tokens,
            cached_tokens: stats.cached_tokens,
            generated_tokens: stats.generated_tokens,
            ttft_ms: stats.time_to_first_token.map(ms),
            prefill_tok_s: stats.prefill_tok_s(),
            decode_tok_s: stats.decode_tok_s(),
            prefill_ms: ms(stats.prefill_time),
            decode_ms: ms(stats.decode_time),
            total_ms: ms(stats.total_time),
            load_ms: loaded.load_ms(),
            peak_anon_bytes: stats.peak_anon_bytes,
            threads: loaded.model.info().threads,
            seed,
            proposed_tokens: stats.speculation.proposed_tokens,
            accepted_tokens: stats.speculation.accepted_tokens,
            acceptance_rate: stats.speculation.acceptance_rate(),
            tokens_per_pass: stats.tokens_per_pass(),
            flash_bytes_per_token: stats.flash_bytes_per_token(),
            kv_type: stats.kv_types.to_string(),
            kv_policy: loaded.model.info().kv_policy.to_string(),
            evicted: stats.evicted,
            kv_read_share: stats.page_reads.share(),
            precision: stats.view.to_string(),
        }
    }
}

/// An event, as `--json` has it.
#[derive(Serialize, Clone)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum EventReport {
    Started { prompt_tokens: usize, cached_tokens: usize },
    Notice { what: String },
    Completed { finish_reason: &'static str },
}

/// A finished answer and what happened on the way.
pub struct Answer {
    pub completion: Completion,
    pub events: Vec<EventReport>,
}

/// Runs a generation with its text going to `out` as it comes. Ctrl-C cancels it.
pub fn generate(
    out: &mut Output,
    mut options: GenerationOptions,
    start: impl FnOnce(GenerationOptions, &mut Sink<'_>) -> pannier::Result<Completion>,
) -> Result<Answer> {
    let canceller = Canceller::new();
    options.canceller = Some(canceller.clone());
    let _guard = interrupt::on_interrupt(move || canceller.cancel());
    // Only for prompts that take a while: a bar that flashes up tells nothing.
    let mut bar = None;
    let mut events = Vec::new();
    let mut failed: Option<CliError> = None;
    let completion = start(options, &mut |event| {
        match event {
            GenerationEvent::Started { prompt_tokens, cached_tokens } => {
                events.push(EventReport::Started { prompt_tokens, cached_tokens });
            }
            GenerationEvent::Prefill { done, total } if total > LONG_PROMPT => {
                let bar = bar.get_or_insert_with(|| output::count_bar(total as u64, "reading the prompt"));
                bar.set_position(done as u64);
                if done >= total {
                    bar.finish_and_clear();
                }
            }
            GenerationEvent::Text { text, .. } => {
                if let Err(e) = out.text(text) {
                    failed = Some(e);
                    return ControlFlow::Break(());
                }
            }
            GenerationEvent::Notice(notice) => {
                let what = notice_text(notice);
                output::note(&what);
                events.push(EventReport::Notice { what });
            }
            GenerationEvent::Completed(completion) => {
                events.push(EventReport::Completed { finish_reason: completion.finish_reason.name() });
            }
            _ => {}
        }
        ControlFlow::Continue(())
    });
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    match (completion, failed) {
        // The generation was cancelled because nobody takes its text.
        (_, Some(error)) => Err(error),
        (completion, None) => Ok(Answer { completion: completion?, events }),
    }
}

/// What a notice says, for people.
pub fn notice_text(notice: pannier::session::Notice) -> String {
    use pannier::session::Notice;
    match notice {
        Notice::PrefixNotReused { tokens } => {
            format!("{tokens} tokens of the conversation are read again: they could not be reused")
        }
        Notice::DraftReleased { bytes } => {
            format!("memory is scarce: the draft model was given up ({})", output::bytes(bytes))
        }
        Notice::Evicted { gone, kept } => {
            format!("the KV cache has forgotten {gone} positions of each layer and keeps {kept}")
        }
        Notice::TurnsDropped { messages } => {
            format!("the conversation got too long: its {messages} oldest messages were dropped")
        }
        Notice::IncompleteCharacter => "the answer was cut inside of a character".to_owned(),
        Notice::Heat { level, threads } => {
            format!("the device is {}: {threads} threads compute", format!("{level:?}").to_lowercase())
        }
        Notice::View { view, reason } => format!("the {view} view of the weights goes on: {reason}"),
        other => format!("{other:?}"),
    }
}

/// What a person wants to know after an answer: one line on stderr.
pub fn closing_note(completion: &Completion, stats: &Stats) {
    let first = stats.ttft_ms.map(|ms| format!(", first after {ms:.0} ms")).unwrap_or_default();
    let memory =
        stats.peak_anon_bytes.map(|b| format!(", {} of memory", output::bytes(b))).unwrap_or_default();
    let why = match completion.finish_reason.name() {
        "stop" | "stop_string" => String::new(),
        "length" => " (ended by -n)".to_owned(),
        other => format!(" (ended: {other})"),
    };
    // Both streams often share a terminal: the answer comes first.
    let _ = std::io::stdout().flush();
    let guessed = match (stats.acceptance_rate, stats.tokens_per_pass) {
        (Some(rate), Some(per_pass)) => {
            format!(", {per_pass:.2} tokens per pass ({:.0}% of guesses right)", 100.0 * rate)
        }
        _ => String::new(),
    };
    output::note(&format!(
        "[{} tokens{why}, {:.1} tokens/s{guessed}{first}{memory}]",
        stats.generated_tokens, stats.decode_tok_s
    ));
}
