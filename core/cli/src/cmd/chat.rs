//! `pannier chat`: one question, or a conversation in the terminal.

use std::io::{BufRead, IsTerminal, Read};

use clap::Args;
use pannier::session::{ChatMessage, ChatOptions, ChatSession, Completion, GenerationOptions, Overflow};
use pannier_hybrid::confidence::{Calibration, Observed};
use pannier_hybrid::{EdgeModel as _, HybridSession};
use serde::Serialize;

use crate::args::{RunArgs, SamplingArgs, SpeculationArgs};
use crate::cmd::cloud::{self, CloudArgs};
use crate::engine::{self, Answer, Forward, Loaded, Stats};
use crate::error::{CliError, Result};
use crate::output::{self, Output};

#[derive(Args)]
#[command(after_help = "\
Examples:
  pannier chat -m smollm2                               a conversation; /help tells its commands
  pannier chat -m smollm2 -p 'Name three rivers'        one answer
  pannier chat -m model.gguf --system 'Answer in one word.' -p 'Capital of France?' --json

The model's own chat template is used; a model without one cannot chat (see `pannier run`). Ctrl-C stops an answer.

With a cloud, answers that the device is not sure of are handed over, and every decision is an event with its reason:
  pannier chat -m smollm2 --cloud-url http://127.0.0.1:8080/v1 --cloud-model qwen -p 'What is 17 * 23?' --events
  pannier chat -m smollm2 --cloud-url https://api.example.com/v1 --cloud-model M --cloud-key-env API_KEY --min-confidence 0.8

JSON (with -p only): text, source (device, cloud, both), confidence (probability that the device's answer is right, a guess until
`pannier fit-confidence` was run for this model), events, stats.")]
pub struct ChatArgs {
    #[command(flatten)]
    run: RunArgs,

    /// Instructions that come before the conversation.
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,

    /// One question; without it, a conversation is read from the terminal or from stdin, line by line.
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Option<String>,

    /// At most this many tokens for each answer; without it, until the model is done or the context is full.
    #[arg(short = 'n', long, value_name = "N")]
    max_tokens: Option<usize>,

    /// 0 always takes the most likely token; 1 draws from the model's own distribution.
    #[arg(long, value_name = "T", default_value_t = 0.8)]
    temp: f32,

    /// Thinking on or off, for models whose template knows it.
    #[arg(long, value_name = "true|false")]
    thinking: Option<bool>,

    /// When the conversation no longer fits into the context: fail, or drop-oldest turns and say so.
    #[arg(long, value_name = "CHOICE", value_enum, default_value = "fail")]
    overflow: OverflowArg,

    #[command(flatten)]
    sampling: SamplingArgs,

    #[command(flatten)]
    cloud: CloudArgs,

    #[command(flatten)]
    speculation: SpeculationArgs,
}

/// `--overflow`.
#[derive(Clone, Copy, clap::ValueEnum)]
enum OverflowArg {
    /// The turn fails.
    Fail,
    /// The oldest turns are dropped.
    DropOldest,
}

/// Room for an answer when `-n` does not say how long it may be.
const ANSWER_TOKENS: usize = 512;

impl ChatArgs {
    fn options(&self) -> GenerationOptions {
        self.speculation.apply(self.sampling.options(self.temp, self.max_tokens))
    }

    fn overflow(&self) -> Overflow {
        match self.overflow {
            OverflowArg::Fail => Overflow::Fail,
            OverflowArg::DropOldest => {
                Overflow::DropOldest { reserve: self.max_tokens.unwrap_or(ANSWER_TOKENS) }
            }
        }
    }
}

#[derive(Serialize)]
struct Report {
    text: String,
    /// Where the answer comes from.
    source: &'static str,
    confidence: Option<f64>,
    events: Vec<engine::EventReport>,
    stats: Stats,
}

pub fn run(args: &ChatArgs, out: &mut Output) -> Result<()> {
    match args.prompt.as_deref() {
        Some("") => return Err(CliError::failed("the prompt is empty: there is nothing to answer")),
        None if out.json() => return Err(CliError::failed("chat --json needs a question: pass it with -p")),
        _ => {}
    }
    let loaded = engine::load_speculating(&args.run, &args.speculation)?;
    let options = ChatOptions {
        system: args.system.clone(),
        thinking: args.thinking,
        overflow: args.overflow(),
        ..ChatOptions::default()
    };
    let chat = loaded.model.chat(options)?;
    let calibration = cloud::calibration(&loaded);
    if args.cloud.is_set() {
        let session = args.cloud.session(chat, calibration)?;
        let talk = Hybrid { args, loaded: &loaded, session };
        return match args.prompt.as_deref() {
            Some(prompt) => talk.once(prompt, out),
            None => converse(&talk, &loaded.name, out),
        };
    }
    let talk = Local { args, loaded: &loaded, chat, calibration };
    match args.prompt.as_deref() {
        Some(prompt) => talk.once(prompt, out),
        None => converse(&talk, &loaded.name, out),
    }
}

/// A conversation in the terminal, whoever answers.
trait Talk {
    fn history(&self) -> Vec<ChatMessage>;
    fn set_history(&self, messages: Vec<ChatMessage>) -> Result<()>;
    /// Answers; `notes`: with what a person wants to know afterwards.
    fn answer(&self, text: &str, notes: bool, out: &mut Output) -> Result<()>;
}

/// On this machine.
struct Local<'a> {
    args: &'a ChatArgs,
    loaded: &'a Loaded,
    chat: ChatSession<Forward>,
    calibration: Calibration,
}

impl Local<'_> {
    fn turn(&self, text: &str, out: &mut Output) -> Result<Answer> {
        let options = self.args.options();
        engine::generate(out, options, |options, sink| self.chat.send(text, options, sink))
    }

    fn stats(&self, completion: &Completion) -> Stats {
        Stats::new(&completion.stats, completion.seed, self.loaded)
    }

    fn once(&self, prompt: &str, out: &mut Output) -> Result<()> {
        let Answer { completion, events } = self.turn(prompt, out)?;
        let stats = self.stats(&completion);
        if !out.json() {
            out.line("")?;
            engine::closing_note(&completion, &stats);
            return Ok(());
        }
        let mut seen = Observed::answer_to(prompt);
        seen.extend(&completion.tokens, |id| self.chat.token_kind(id));
        seen.finish(completion.finish_reason);
        if self.args.cloud.p_true()
            && let Some(p) = pannier_hybrid::confidence::p_true(&self.chat)?
        {
            seen.set_p_true(p);
        }
        out.object(&Report {
            text: completion.text,
            source: "device",
            confidence: seen.features().map(|f| self.calibration.probability(&f)),
            events,
            stats,
        })
    }
}

impl Talk for Local<'_> {
    fn history(&self) -> Vec<ChatMessage> {
        self.chat.history()
    }

    fn set_history(&self, messages: Vec<ChatMessage>) -> Result<()> {
        Ok(self.chat.set_history(messages)?)
    }

    fn answer(&self, text: &str, notes: bool, out: &mut Output) -> Result<()> {
        let Answer { completion, .. } = self.turn(text, out)?;
        out.line("")?;
        if notes {
            engine::closing_note(&completion, &self.stats(&completion));
        }
        Ok(())
    }
}

/// On this machine, and in the cloud where that is needed.
struct Hybrid<'a> {
    args: &'a ChatArgs,
    loaded: &'a Loaded,
    session: HybridSession,
}

impl Hybrid<'_> {
    fn turn(&self, text: &str, out: &mut Output) -> Result<cloud::Turn> {
        let options = self.args.options();
        cloud::turn(&self.args.cloud, &self.session, text, options, out)
    }

    fn once(&self, prompt: &str, out: &mut Output) -> Result<()> {
        let turn = self.turn(prompt, out)?;
        if !out.json() {
            out.line("")?;
            turn.closing_note();
        }
        out.object(&turn.report(self.loaded))
    }
}

impl Talk for Hybrid<'_> {
    fn history(&self) -> Vec<ChatMessage> {
        self.session.history()
    }

    fn set_history(&self, messages: Vec<ChatMessage>) -> Result<()> {
        Ok(self.session.edge().set_history(messages)?)
    }

    fn answer(&self, text: &str, notes: bool, out: &mut Output) -> Result<()> {
        let turn = self.turn(text, out)?;
        out.line("")?;
        if notes {
            turn.closing_note();
        }
        Ok(())
    }
}

const COMMANDS: &str = "\
/help    this list
/reset   forget the conversation
/quit    leave (or Ctrl-D)
A line that ends with \\ goes on in the next one. Ctrl-C stops an answer.";

/// Reads turns until there are no more. One that fails is reported, and the conversation goes on.
fn converse(talk: &dyn Talk, name: &str, out: &mut Output) -> Result<()> {
    let person = std::io::stdin().is_terminal();
    if person {
        output::note(&format!("{name} is ready. /help tells the commands."));
    }
    let beginning = talk.history();
    let mut failed = None;
    while let Some(turn) = read_turn(person)? {
        match turn.trim() {
            "" => {}
            "/quit" | "/exit" => break,
            "/help" => crate::error::print_to_stderr(&format!("{COMMANDS}\n")),
            "/reset" => {
                talk.set_history(beginning.clone())?;
                output::note("forgotten");
            }
            command if command.starts_with('/') && !command.contains(' ') => {
                output::note(&format!("no command {command}; /help lists them"));
            }
            text => match talk.answer(text, person, out) {
                Ok(()) => {}
                Err(CliError::Interrupted) => {
                    out.line("")?;
                    output::note("stopped");
                }
                Err(CliError::ReaderGone) => return Err(CliError::ReaderGone),
                // A person sees it and goes on; a script must not take the rest for an answer.
                Err(error) if person => crate::error::report(&error.to_string()),
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            },
        }
    }
    failed.map_or(Ok(()), Err)
}

/// One turn, of several lines if they end with a backslash; `None` at the end.
fn read_turn(person: bool) -> Result<Option<String>> {
    let mut turn = String::new();
    let mut stdin = std::io::stdin().lock();
    loop {
        if person {
            crate::error::print_to_stderr(if turn.is_empty() { "> " } else { ". " });
        }
        let mut line = Vec::new();
        let n = stdin
            .by_ref()
            .take(MAX_LINE)
            .read_until(b'\n', &mut line)
            .map_err(|e| CliError::failed(format!("cannot read stdin: {e}")))?;
        let line = String::from_utf8(line).map_err(|e| {
            let at = e.utf8_error().valid_up_to();
            CliError::failed(format!("stdin is not valid UTF-8: byte {at} of a line"))
        })?;
        let line = line.trim_end_matches(['\n', '\r']);
        if n == 0 {
            return Ok((!turn.is_empty()).then_some(turn));
        }
        match line.strip_suffix('\\') {
            Some(more) => {
                turn.push_str(more);
                turn.push('\n');
            }
            None => {
                turn.push_str(line);
                return Ok(Some(turn));
            }
        }
    }
}

/// Longest line that is read: far above every context.
const MAX_LINE: u64 = 16 << 20;
