//! Where results go. Nothing else in this crate writes to stdout.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::error::{CliError, Result};

/// The result of a command: text for people, or one JSON object.
pub struct Output {
    json: bool,
}

impl Output {
    pub fn new(json: bool) -> Self {
        Output { json }
    }

    /// Whether `--json` was given.
    pub fn json(&self) -> bool {
        self.json
    }

    /// Text for people; nothing with `--json`. Flushed at once, so that streamed text is seen when it comes.
    pub fn text(&mut self, text: &str) -> Result<()> {
        if self.json { Ok(()) } else { write_stdout(text) }
    }

    /// A line of text for people.
    pub fn line(&mut self, text: &str) -> Result<()> {
        self.text(&format!("{text}\n"))
    }

    /// The one object of `--json`; nothing without.
    pub fn object(&mut self, value: &impl Serialize) -> Result<()> {
        if !self.json {
            return Ok(());
        }
        let mut text = serde_json::to_string(value)
            .map_err(|e| CliError::failed(format!("internal error: cannot write JSON: {e}")))?;
        text.push('\n');
        write_stdout(&text)
    }
}

fn write_stdout(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Err(CliError::ReaderGone),
        Err(e) => Err(CliError::failed(format!("cannot write the output: {e}"))),
    }
}

/// A note for a person on stderr: one line.
pub fn note(text: &str) {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    crate::error::print_to_stderr(&format!("{line}\n"));
}

/// A progress bar over bytes. On stderr, and only if that is a terminal.
pub fn byte_bar(total: Option<u64>) -> ProgressBar {
    let bar = match total {
        Some(total) => ProgressBar::new(total),
        None => ProgressBar::new_spinner(),
    };
    let template = if total.is_some() {
        "{msg} {bar:30} {bytes}/{total_bytes} {prefix}"
    } else {
        "{msg} {spinner} {bytes} {prefix}"
    };
    styled(bar, template)
}

/// A progress bar over things that are counted.
pub fn count_bar(total: u64, message: &'static str) -> ProgressBar {
    let bar = styled(ProgressBar::new(total), "{msg} {bar:30} {pos}/{len} {prefix} {eta}");
    bar.set_message(message);
    bar
}

fn styled(bar: ProgressBar, template: &str) -> ProgressBar {
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    if std::io::stderr().is_terminal() {
        bar.enable_steady_tick(Duration::from_millis(200));
    }
    bar
}

/// Bytes for people.
pub fn bytes(n: u64) -> String {
    match n {
        0..=9_999 => format!("{n} B"),
        10_000..=999_999 => format!("{:.1} kB", n as f64 / 1e3),
        1_000_000..=999_999_999 => format!("{:.1} MB", n as f64 / 1e6),
        _ => format!("{:.2} GB", n as f64 / 1e9),
    }
}
