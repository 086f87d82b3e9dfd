//! The `pannier` command: models on this machine, from the shell.
//!
//! Results go to stdout, everything else to stderr. With `--json` stdout gets exactly one JSON object, whose keys are
//! stable. A failure is one line on stderr and a non-zero exit code: 1 for the work, 2 for the command line, 130 after
//! Ctrl-C, 141 when the reader of stdout is gone.

mod args;
mod cmd;
mod engine;
mod error;
mod input;
mod interrupt;
mod output;
mod process;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Command};
use crate::error::CliError;
use crate::output::Output;

fn main() -> ExitCode {
    // A panic is our bug. It still ends in one line and an exit code, not in a backtrace on a user's terminal.
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map(|l| format!(" at {}:{}", l.file(), l.line())).unwrap_or_default();
        let what = info.payload_as_str().unwrap_or("unknown").replace('\n', " ");
        error::report(&format!("internal error{place}: {what} (a bug: please report it)"));
    }));
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => return args::usage_error(&e),
    };
    interrupt::install();
    let mut out = Output::new(cli.json);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(cli.command, &mut out)));
    match result {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(CliError::ReaderGone)) => ExitCode::from(141),
        Ok(Err(error)) => {
            error::report(&error.to_string());
            ExitCode::from(error.code())
        }
        // The hook has said what happened.
        Err(_) => ExitCode::from(1),
    }
}

fn run(command: Command, out: &mut Output) -> error::Result<()> {
    match command {
        Command::Pull(args) => cmd::pull::run(&args, out),
        Command::Inspect(args) => cmd::inspect::run(&args, out),
        Command::Tokenize(args) => cmd::tokenize::run(&args, out),
        Command::Plan(args) => cmd::plan::run(&args, out),
        Command::Pack(args) => cmd::pack::run(&args, out),
        Command::Replay(args) => cmd::replay::run(&args, out),
        Command::Run(args) => cmd::run::run(&args, out),
        Command::Logits(args) => cmd::logits::run(&args, out),
        Command::Chat(args) => cmd::chat::run(&args, out),
        Command::Bench(args) => cmd::bench::run(&args, out),
        Command::Perplexity(args) => cmd::perplexity::run(&args, out),
        Command::Evaluate(args) => cmd::evaluate::run(&args, out),
        Command::Calibrate(args) => cmd::calibrate::run(&args, out),
        Command::Convert(args) => cmd::convert::run(&args, out),
        Command::Quantize(args) => cmd::quantize::run(&args, out),
    }
}
