//! `pannier pull`: a model from the network into the store.

use clap::Args;
use indicatif::{HumanDuration, ProgressBar};
use pannier::store::{
    CATALOGUE, DownloadCanceller, DownloadEvent, DownloadOptions, ModelStore, Sha256Digest, StoreError,
};
use serde::Serialize;

use crate::error::{CliError, Result};
use crate::interrupt;
use crate::output::{self, Output};

#[derive(Args)]
#[command(after_help = "\
Examples:
  pannier pull --list                          what can be pulled by name
  pannier pull smollm2
  pannier pull https://example.org/model.gguf --sha256 b179c9…

A download that was cut or cancelled goes on where it was when the same command is given again. The file gets its name
only when it is whole and its digest is right. JSON: path, bytes, sha256.")]
pub struct PullArgs {
    /// A model's name, or the https address of a GGUF file.
    #[arg(value_name = "NAME|URL", required_unless_present = "list")]
    what: Option<String>,

    /// The SHA-256 that the file must have.
    #[arg(long, value_name = "HEX")]
    sha256: Option<String>,

    /// Show the models that can be pulled by name, and which are here.
    #[arg(long, conflicts_with_all = ["what", "sha256"])]
    list: bool,
}

#[derive(Serialize)]
struct Report {
    path: String,
    bytes: u64,
    sha256: String,
}

#[derive(Serialize)]
struct Listing {
    directory: String,
    models: Vec<Listed>,
}

#[derive(Serialize)]
struct Listed {
    name: &'static str,
    about: &'static str,
    licence: &'static str,
    bytes: u64,
    sha256: &'static str,
    here: bool,
}

pub fn run(args: &PullArgs, out: &mut Output) -> Result<()> {
    let store = ModelStore::user()?;
    let Some(what) = args.what.as_deref().filter(|_| !args.list) else { return list(&store, out) };
    let sha256 = args.sha256.as_deref().map(str::parse::<Sha256Digest>).transpose()?;
    let request = store.request(what, sha256)?;

    let cancel = DownloadCanceller::new();
    let stop = cancel.clone();
    let _guard = interrupt::on_interrupt(move || stop.cancel());
    let mut view = View {
        bar: output::byte_bar(request.bytes),
        file: request.file.clone(),
        only_source: request.urls.len() == 1,
    };
    let done = store.pull_blocking(&request, DownloadOptions::default(), &cancel, &mut |e| view.show(e));
    view.bar.finish_and_clear();
    let done = match done {
        Err(StoreError::Cancelled { done }) => {
            output::note(&format!("{done} bytes are kept: the same command goes on from there"));
            return Err(CliError::Interrupted);
        }
        other => other?,
    };
    let path = done.path.display().to_string();
    let how = if done.already_there { "was there already" } else { "downloaded" };
    out.line(&format!("{path}\n{}, {how}, sha256 {}", output::bytes(done.bytes), done.sha256))?;
    out.object(&Report { path, bytes: done.bytes, sha256: done.sha256.to_string() })
}

fn list(store: &ModelStore, out: &mut Output) -> Result<()> {
    let models: Vec<Listed> = CATALOGUE
        .iter()
        .map(|e| Listed {
            name: e.name,
            about: e.about,
            licence: e.licence,
            bytes: e.bytes,
            sha256: e.sha256,
            here: store.locate(e.name).is_ok(),
        })
        .collect();
    for m in &models {
        let here = if m.here { "here" } else { "" };
        out.line(&format!(
            "{:<28} {:>9}  {:<10} {here:<4}  {}",
            m.name,
            output::bytes(m.bytes),
            m.licence,
            m.about
        ))?;
    }
    out.line(&format!("in {}", store.dir().display()))?;
    out.object(&Listing { directory: store.dir().display().to_string(), models })
}

/// The progress bar, and a line for each change of plan.
struct View {
    bar: ProgressBar,
    file: String,
    /// Its failure is the failure of the command, which is reported anyway.
    only_source: bool,
}

impl View {
    fn say(&self, text: &str) {
        self.bar.suspend(|| output::note(text));
    }

    fn show(&mut self, event: DownloadEvent) {
        match event {
            DownloadEvent::Started { url, resumed_from, total } => {
                if total.is_some() && self.bar.length() != total {
                    self.bar.finish_and_clear();
                    self.bar = output::byte_bar(total);
                }
                self.bar.set_message(self.file.clone());
                self.bar.set_position(resumed_from);
                let from = match resumed_from {
                    0 => String::new(),
                    n => format!(", from byte {n} on"),
                };
                self.say(&format!("downloading {url}{from}"));
            }
            DownloadEvent::Progress { done, bytes_per_second, remaining, .. } => {
                self.bar.set_position(done);
                let left = remaining.map(|r| format!(", {:#} left", HumanDuration(r))).unwrap_or_default();
                self.bar.set_prefix(format!("{}/s{left}", output::bytes(bytes_per_second as u64)));
            }
            DownloadEvent::Restarted { reason } => self.say(&format!("starting again: {reason}")),
            DownloadEvent::Retrying { reason, after, .. } => {
                self.say(&format!("{reason}; trying again in {:.1} s", after.as_secs_f32()));
            }
            DownloadEvent::SourceFailed { url, reason } if !self.only_source => {
                self.say(&format!("{url}: {reason}"))
            }
            DownloadEvent::Verifying { done, total } => {
                if self.bar.length() != Some(total) {
                    self.bar.finish_and_clear();
                    self.bar = output::byte_bar(Some(total));
                }
                self.bar.set_message("verifying");
                self.bar.set_prefix("");
                self.bar.set_position(done);
            }
            _ => {}
        }
    }
}
