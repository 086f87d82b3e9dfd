//! `pannier serve`: the model as an OpenAI-compatible server on this machine.

use clap::Args;
use pannier_hybrid::openai::Secret;
use pannier_hybrid::serve::{ServeOptions, serve_blocking, signals};
use serde::Serialize;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use crate::args::RunArgs;
use crate::engine;
use crate::error::{CliError, Result};
use crate::output::{self, Output};
use crate::{input, interrupt};

#[derive(Args)]
#[command(after_help = "\
Examples:
  pannier serve -m qwen2.5-coder-1.5b-instruct --port 8080
  pannier serve -m model.gguf --port 0 --json           any free port, told on stdout
  SERVE_KEY=secret pannier serve -m model.gguf --key-env SERVE_KEY

Any OpenAI client works with http://127.0.0.1:PORT/v1: models, chat completions (streaming or not), logprobs, stop, seed, usage.
Only this machine can connect. Requests wait in a queue; when it is full they get 429. Ctrl-C lets running answers finish
within --grace seconds; a second Ctrl-C does not wait.
JSON (once, when the server is ready): url, port, model.")]
pub struct ServeArgs {
    #[command(flatten)]
    run: RunArgs,

    /// Port on loopback; 0 picks a free one.
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    port: u16,

    /// Name of the model for clients; by default the file's, without its ending.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// Answers at the same time; they take turns on the model.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    parallel: u16,

    /// Requests that may wait.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(0..=4096))]
    queue: u16,

    /// Clients must send the key that is in this environment variable.
    #[arg(long, value_name = "VAR")]
    key_env: Option<String>,

    /// Seconds that running answers may take to finish after Ctrl-C.
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=86_400))]
    grace: u32,
}

#[derive(Serialize)]
struct Report {
    url: String,
    port: u16,
    model: String,
}

pub fn run(args: &ServeArgs, out: &mut Output) -> Result<()> {
    let key = args.key_env.as_deref().map(input::secret).transpose()?;
    let loaded = engine::load(&args.run)?;
    let name = match &args.name {
        Some(name) => name.clone(),
        None => Path::new(&loaded.name).file_stem().unwrap_or_default().to_string_lossy().into_owned(),
    };
    let options = ServeOptions {
        address: SocketAddr::from((Ipv4Addr::LOCALHOST, args.port)),
        model: name.clone(),
        key: key.map(Secret::new),
        parallel: usize::from(args.parallel),
        queue: usize::from(args.queue),
        grace: Duration::from_secs(u64::from(args.grace)),
        ..ServeOptions::default()
    };
    // The server hears Ctrl-C itself; while this guard lives, the first one does not end the process.
    let _guard = interrupt::on_interrupt(|| {});
    let mut told = Ok(());
    let ready = |address: SocketAddr| {
        let url = format!("http://{address}/v1");
        told = out.line(&format!("{name} at {url}")).and_then(|()| {
            output::note("Ctrl-C ends the server.");
            out.object(&Report { url, port: address.port(), model: name.clone() })
        });
    };
    serve_blocking(loaded.model, options, ready, signals()).map_err(|e| CliError::failed(e.to_string()))?;
    told
}
