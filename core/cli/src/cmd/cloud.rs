//! The cloud's part of `pannier chat`: options, a turn with a hand-off policy, and how it is told.

use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use pannier::session::{Canceller, ChatSession, GenerationOptions};
use pannier_hybrid::confidence::{Calibration, CalibrationOrigin};
use pannier_hybrid::openai::{OpenAiClient, OpenAiConfig};
use pannier_hybrid::{
    CloudSetup, Decision, EdgeFirst, HandOffStyle, HybridCompletion, HybridError, HybridEvent, HybridParts,
    HybridPolicy, HybridSession, OutgoingPayload, Route, Source, TurnOptions,
};
use serde::Serialize;

use crate::engine::{self, Forward, Loaded, Stats};
use crate::error::{CliError, Result};
use crate::output::{self, Output};
use crate::{input, interrupt};

/// Options that send answers to a cloud. Giving `--cloud-url` is the consent: without it no socket is opened.
#[derive(Args, Clone)]
#[command(next_help_heading = "Cloud (nothing leaves this machine without --cloud-url)")]
pub struct CloudArgs {
    /// An OpenAI-compatible server, up to and including /v1. HTTPS, except on loopback.
    #[arg(long, value_name = "URL", requires = "cloud_model")]
    cloud_url: Option<String>,

    /// The model's name there.
    #[arg(long, value_name = "NAME", requires = "cloud_url")]
    cloud_model: Option<String>,

    /// Environment variable that holds the key.
    #[arg(long, value_name = "VAR", requires = "cloud_url")]
    cloud_key_env: Option<String>,

    /// Below this probability of being right, the cloud is asked.
    #[arg(long, value_name = "C", default_value_t = 0.7, value_parser = probability)]
    min_confidence: f64,

    /// If the model's calibration knows the cloud (`fit-confidence --cloud-answers`): hand over only what the cloud is likelier to get
    /// right by this much. With `--min-confidence 1` this alone decides.
    #[arg(long, value_name = "G", default_value_t = 0.0, value_parser = probability)]
    min_gain: f64,

    /// Who answers.
    #[arg(long, value_enum, default_value_t = PolicyArg::EdgeFirst, requires = "cloud_url")]
    policy: PolicyArg,

    /// What the cloud does with a draft that is not good enough.
    #[arg(long, value_enum, default_value_t = StyleArg::Replace, requires = "cloud_url")]
    hand_off: StyleArg,

    /// The first look at an answer comes after this many tokens; nothing is shown before.
    #[arg(long, value_name = "N", default_value_t = 50, requires = "cloud_url")]
    check_after: usize,

    /// If nothing can be shown after this time, the cloud is asked.
    #[arg(long, value_name = "MS", requires = "cloud_url")]
    max_edge_latency_ms: Option<u64>,

    /// At the end, also ask the model itself whether it is right: one short prefill.
    #[arg(long)]
    p_true: bool,

    /// Tell every event on stderr, with the exact body of what leaves.
    #[arg(long)]
    events: bool,
}

#[derive(ValueEnum, Clone, Copy, PartialEq)]
enum PolicyArg {
    /// Never the cloud.
    OnDevice,
    /// The device, and the cloud where the device is not sure.
    EdgeFirst,
    /// The cloud, and the device where the cloud fails.
    CloudFirst,
    /// Only the cloud.
    CloudOnly,
}

#[derive(ValueEnum, Clone, Copy)]
enum StyleArg {
    /// It answers anew.
    Replace,
    /// It goes on behind the sentences that were sure.
    Continue,
    /// It judges the draft, and corrects it if need be.
    Verify,
}

fn probability(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(p) if (0.0..=1.0).contains(&p) => Ok(p),
        _ => Err("a probability from 0 to 1 is needed".into()),
    }
}

impl CloudArgs {
    /// Whether there is a cloud at all.
    pub fn is_set(&self) -> bool {
        self.cloud_url.is_some()
    }

    /// Whether to ask the model itself about its answer.
    pub fn p_true(&self) -> bool {
        self.p_true
    }

    fn policy(&self) -> HybridPolicy {
        match self.policy {
            PolicyArg::OnDevice => HybridPolicy::OnDeviceOnly,
            PolicyArg::CloudFirst => HybridPolicy::CloudFirst,
            PolicyArg::CloudOnly => HybridPolicy::CloudOnly,
            PolicyArg::EdgeFirst => HybridPolicy::EdgeFirst(EdgeFirst {
                min_confidence: self.min_confidence,
                min_gain: self.min_gain,
                check_after_tokens: self.check_after,
                max_edge_latency: self.max_edge_latency_ms.map(Duration::from_millis),
                p_true: self.p_true,
                style: match self.hand_off {
                    StyleArg::Replace => HandOffStyle::Replace,
                    StyleArg::Continue => HandOffStyle::Continue,
                    StyleArg::Verify => HandOffStyle::Verify,
                },
                ..EdgeFirst::default()
            }),
        }
    }

    /// The conversation with its policy. Opens no connection.
    pub fn session(&self, chat: ChatSession<Forward>, calibration: Calibration) -> Result<HybridSession> {
        let cloud = match (&self.cloud_url, &self.cloud_model) {
            (Some(url), Some(model)) => {
                let mut config = OpenAiConfig::new(url.as_str(), model.as_str());
                if let Some(variable) = &self.cloud_key_env {
                    config = config.with_key(input::secret(variable)?);
                }
                let client = OpenAiClient::new(config).map_err(|e| CliError::failed(e.to_string()))?;
                Some(CloudSetup::new(Arc::new(client), Arc::new(|_: &OutgoingPayload| true)))
            }
            _ => None,
        };
        let parts = HybridParts { policy: self.policy(), cloud, calibration, ..HybridParts::default() };
        Ok(HybridSession::new(Arc::new(chat), parts))
    }
}

/// The calibration beside the model's file. One that cannot be used is told, and replaced by the default.
pub fn calibration(loaded: &Loaded) -> Calibration {
    match Calibration::beside(loaded.file()) {
        Ok(calibration) => calibration,
        Err(error) => {
            output::note(&format!("note: {error}; confidences are a guess"));
            Calibration::default()
        }
    }
}

/// An event of a turn, as `--json` has it.
#[derive(Serialize, Clone)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum TurnEvent {
    Decision {
        point: String,
        route: String,
        reason: String,
        confidence: Option<f64>,
        threshold: Option<f64>,
        tokens: usize,
        elapsed_ms: f64,
    },
    Outgoing {
        destination: String,
        bytes: usize,
    },
    Discard {
        keep: usize,
    },
    Sentence {
        start: usize,
        end: usize,
        confidence: f64,
    },
    Notice {
        what: String,
    },
    Completed {
        finish_reason: &'static str,
        source: Source,
    },
}

impl TurnEvent {
    fn decision(d: &Decision) -> Self {
        TurnEvent::Decision {
            point: snake(&format!("{:?}", d.point)),
            route: snake(&format!("{:?}", d.route)),
            reason: d.reason.to_string(),
            confidence: d.confidence,
            threshold: d.threshold,
            tokens: d.tokens,
            elapsed_ms: d.elapsed.as_secs_f64() * 1e3,
        }
    }
}

fn snake(camel: &str) -> String {
    let mut out = String::new();
    for (at, c) in camel.chars().enumerate() {
        if c.is_uppercase() && at > 0 {
            out.push('_');
        }
        out.extend(c.to_lowercase());
    }
    out
}

/// The figures of a turn: the device's, if its generation ran to the end, and the cloud's.
#[derive(Serialize)]
pub struct TurnStats {
    #[serde(flatten)]
    device: Option<Stats>,
    cloud_prompt_tokens: u64,
    cloud_completion_tokens: u64,
    elapsed_ms: f64,
}

/// A finished turn, as `--json` has it.
#[derive(Serialize)]
pub struct TurnReport {
    text: String,
    source: Source,
    confidence: Option<f64>,
    /// `fitted` on answers of this model file, or `default`: then its size is a guess.
    confidence_origin: Option<&'static str>,
    events: Vec<TurnEvent>,
    stats: TurnStats,
}

/// What a turn came to.
pub struct Turn {
    pub completion: HybridCompletion,
    events: Vec<TurnEvent>,
}

impl Turn {
    pub fn report(self, loaded: &Loaded) -> TurnReport {
        let Turn { completion: c, events } = self;
        TurnReport {
            source: c.source,
            confidence: c.confidence.map(|c| c.value),
            confidence_origin: c.confidence.map(|c| match c.origin {
                CalibrationOrigin::Fitted => "fitted",
                CalibrationOrigin::Default => "default",
            }),
            events,
            stats: TurnStats {
                device: c.edge.as_ref().map(|edge| Stats::new(&edge.stats, edge.seed, loaded)),
                cloud_prompt_tokens: c.usage.prompt_tokens,
                cloud_completion_tokens: c.usage.completion_tokens,
                elapsed_ms: c.elapsed.as_secs_f64() * 1e3,
            },
            text: c.text,
        }
    }

    /// What a person wants to know after an answer.
    pub fn closing_note(&self) {
        let c = &self.completion;
        let who = match c.source {
            Source::Device => "from the device",
            Source::Cloud => "from the cloud",
            Source::Both => "begun on the device, finished by the cloud",
        };
        let sure = c.confidence.map(|c| {
            let guess =
                if c.origin == CalibrationOrigin::Default { " (not fitted to this model)" } else { "" };
            format!(", draft right with {:.0}%{guess}", c.value * 100.0)
        });
        let tokens = c.usage.completion_tokens;
        let cloud = if tokens > 0 { format!(", {tokens} tokens of the cloud") } else { String::new() };
        output::note(&format!(
            "[{who}{}{cloud}, {:.1} s]",
            sure.unwrap_or_default(),
            c.elapsed.as_secs_f64()
        ));
    }
}

/// Where the text of a turn goes. A terminal sees it as it comes, with what is taken back; a pipe gets the answer only.
struct Screen<'a> {
    out: &'a mut Output,
    live: bool,
    tell: bool,
    shown: String,
    failed: Option<CliError>,
}

impl Screen<'_> {
    fn write(&mut self, text: &str) {
        if self.live
            && self.failed.is_none()
            && let Err(error) = self.out.text(text)
        {
            self.failed = Some(error);
        }
    }

    fn note(&mut self, text: &str) {
        if self.tell {
            output::note(text);
        }
    }

    fn hear(&mut self, event: &HybridEvent<'_>) -> Option<TurnEvent> {
        Some(match event {
            HybridEvent::Text { text, .. } => {
                self.shown.push_str(text);
                self.write(text);
                return None;
            }
            HybridEvent::Decision(d) => {
                let numbers = match (d.confidence, d.threshold) {
                    (Some(c), Some(t)) => format!(" ({c:.2}, needed {t:.2}, {} tokens)", d.tokens),
                    _ => String::new(),
                };
                let text =
                    format!("[{}: {:?}: {}{numbers}]", snake(&format!("{:?}", d.point)), d.route, d.reason);
                if d.route == Route::Cloud && self.live && !self.tell {
                    output::note(&text);
                }
                self.note(&text);
                TurnEvent::decision(d)
            }
            HybridEvent::Outgoing(payload) => {
                self.note(&format!("[outgoing to {}: {}]", payload.destination, payload.body));
                TurnEvent::Outgoing { destination: payload.destination.clone(), bytes: payload.body.len() }
            }
            HybridEvent::Discard { keep } => {
                self.shown.truncate(*keep);
                if self.live {
                    self.write("\n");
                    output::note("[the text so far is taken back]");
                    let rest = self.shown.clone();
                    self.write(&rest);
                }
                TurnEvent::Discard { keep: *keep }
            }
            HybridEvent::Sentence { start, end, confidence } => {
                self.note(&format!("[sentence: right with {:.2}]", confidence.value));
                TurnEvent::Sentence { start: *start, end: *end, confidence: confidence.value }
            }
            HybridEvent::Notice(notice) => {
                let what = engine::notice_text(*notice);
                output::note(&what);
                TurnEvent::Notice { what }
            }
            HybridEvent::Completed(c) => {
                TurnEvent::Completed { finish_reason: c.finish.name(), source: c.source }
            }
            _ => return None,
        })
    }
}

/// One turn. Ctrl-C cancels it.
pub fn turn(
    args: &CloudArgs,
    session: &HybridSession,
    prompt: &str,
    mut generation: GenerationOptions,
    out: &mut Output,
) -> Result<Turn> {
    let canceller = Canceller::new();
    generation.canceller = Some(canceller.clone());
    let _guard = interrupt::on_interrupt(move || canceller.cancel());
    let live = !out.json() && std::io::stdout().is_terminal();
    let mut screen = Screen { out, live, tell: args.events, shown: String::new(), failed: None };
    let mut events = Vec::new();
    let options = TurnOptions { generation, ..TurnOptions::default() };
    let result = session.send(prompt, options, &mut |event| {
        events.extend(screen.hear(&event));
        if screen.failed.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    if let Some(error) = screen.failed {
        return Err(error);
    }
    let completion = result.map_err(|error| match error {
        HybridError::Cancelled => CliError::Interrupted,
        HybridError::Edge(error) => error.into(),
        other => CliError::failed(other.to_string()),
    })?;
    if !live {
        screen.out.text(&completion.text)?;
    }
    Ok(Turn { completion, events })
}
