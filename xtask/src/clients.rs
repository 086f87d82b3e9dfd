//! `cargo xtask clients`: other people's programs against ours. The official `openai` client talks to `pannier serve`, and our client
//! talks to llama-cpp-python's server. Both are fetched from the Python package index into the cache.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::{Result, bench, models, sh};

/// The client that the checks were written for.
const OPENAI: &str = "openai>=2,<3";
const MODEL: &str = "smollm2-135m-instruct";
const QUESTION: &str = "Which city is the capital of France?";
/// Loading a model and a Python interpreter, on a machine that is busy with other work.
const START: Duration = Duration::from_secs(180);

pub fn run_command(mut args: lexopt::Parser) -> Result {
    if let Some(arg) = args.next().map_err(|e| e.to_string())? {
        return Err(arg.unexpected().to_string());
    }
    run()
}

/// Both directions.
pub fn run() -> Result {
    let model = models::fetch(models::find(MODEL)?, None)?;
    let pannier = sh::pannier("release")?;
    official_client(&pannier, &model)?;
    llama_cpp_server(&pannier, &model)
}

/// A process that is killed when it is no longer needed.
pub struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    /// Asks it to end, as Ctrl-C does, and waits; answers how it ended.
    #[cfg(unix)]
    pub fn interrupt(mut self) -> Result {
        let id = self.0.id().to_string();
        let status = Command::new("kill").args(["-INT", &id]).status().map_err(|e| format!("kill: {e}"))?;
        if !status.success() {
            return Err("the server had ended already".into());
        }
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(30) {
            match self.0.try_wait().map_err(|e| e.to_string())? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(format!("the server ended with {status}")),
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        }
        Err("the server did not end after Ctrl-C".into())
    }

    #[cfg(not(unix))]
    pub fn interrupt(self) -> Result {
        Ok(())
    }
}

/// `pannier serve` on a free port: the process, its address, and the name of its model.
pub fn serve(pannier: &Path, model: &Path, key: Option<&str>) -> Result<(Running, String, String)> {
    let mut command = Command::new(pannier);
    command.args(["serve", "--json", "--port", "0", "--model"]).arg(model).stdout(Stdio::piped());
    if let Some(key) = key {
        command.args(["--key-env", "PANNIER_SERVE_KEY"]).env("PANNIER_SERVE_KEY", key);
    }
    let mut child = command.spawn().map_err(|e| format!("cannot run {}: {e}", pannier.display()))?;
    let stdout = child.stdout.take();
    let running = Running(child);
    let mut line = String::new();
    if let Some(stdout) = stdout {
        BufReader::new(stdout).read_line(&mut line).map_err(|e| e.to_string())?;
    }
    let ready: Value =
        serde_json::from_str(&line).map_err(|_| "pannier serve ended before it was ready".to_owned())?;
    let get =
        |key: &str| ready[key].as_str().map(str::to_owned).ok_or_else(|| format!("no {key:?} in {line}"));
    Ok((running, get("url")?, get("model")?))
}

/// An interpreter with the official client, in a virtual environment in the cache.
fn python_with_openai() -> Result<PathBuf> {
    let venv = dirs::cache_dir().ok_or("this system names no cache directory")?.join("pannier/clients");
    let python = venv.join(if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" });
    let works = |python: &Path| {
        Command::new(python).args(["-c", "import openai"]).output().is_ok_and(|o| o.status.success())
    };
    if works(&python) {
        return Ok(python);
    }
    let system = if cfg!(windows) { "python" } else { "python3" };
    sh::run("a virtual environment for clients", Command::new(system).args(["-m", "venv"]).arg(&venv))?;
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", OPENAI]);
    sh::run("fetching the openai client", &mut pip)?;
    if works(&python) { Ok(python) } else { Err(format!("{} cannot import openai", python.display())) }
}

fn official_client(pannier: &Path, model: &Path) -> Result {
    let python = python_with_openai()?;
    // Not a secret: it guards a port of this machine for a minute.
    let key = "key-of-this-test";
    let (server, url, name) = serve(pannier, model, Some(key))?;
    let script = sh::root().join("xtask/clients/openai_client.py");
    let mut command = Command::new(python);
    command.arg(script).args([&url, key, &name]);
    sh::run("the openai client against pannier serve", &mut command)?;
    server.interrupt()
}

/// An interpreter with llama-cpp-python and its server: the one of `bench --peer`.
fn python_with_server() -> Result<PathBuf> {
    let python = bench::python()?;
    let works = |python: &Path| {
        let check = "import llama_cpp.server.app, uvicorn";
        Command::new(python).args(["-c", check]).output().is_ok_and(|o| o.status.success())
    };
    if !works(&python) {
        let mut pip = Command::new(&python);
        pip.args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "llama-cpp-python[server]",
        ]);
        sh::run("fetching the server of llama-cpp-python", &mut pip)?;
    }
    if works(&python) { Ok(python) } else { Err("llama_cpp.server cannot be imported".into()) }
}

fn llama_cpp_server(pannier: &Path, model: &Path) -> Result {
    let python = python_with_server()?;
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|l| l.local_addr())
        .map_err(|e| format!("no free port: {e}"))?
        .port();
    let child = Command::new(python)
        .args(["-m", "llama_cpp.server", "--host", "127.0.0.1", "--n_ctx", "1024", "--verbose", "False"])
        .args(["--model_alias", "peer", "--port", &port.to_string(), "--model"])
        .arg(model)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| format!("cannot start llama_cpp.server: {e}"))?;
    let mut server = Running(child);
    let begun = Instant::now();
    while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
        if let Ok(Some(status)) = server.0.try_wait() {
            return Err(format!("llama_cpp.server ended with {status}"));
        }
        if begun.elapsed() > START {
            return Err("llama_cpp.server does not listen".into());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let url = format!("http://127.0.0.1:{port}/v1");
    for (what, flags) in [
        ("only the cloud", ["--policy", "cloud-only", "--hand-off", "replace"]),
        ("an unsure draft is replaced", ["--min-confidence", "1", "--hand-off", "replace"]),
    ] {
        let output = Command::new(pannier)
            .args(["chat", "--json", "--temp", "0", "-n", "24", "-p", QUESTION, "--model"])
            .arg(model)
            .args(["--cloud-url", &url, "--cloud-model", "peer"])
            .args(flags)
            .stderr(Stdio::inherit())
            .output()
            .map_err(|e| format!("cannot run {}: {e}", pannier.display()))?;
        let report: Value = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
        let text = report["text"].as_str().unwrap_or_default();
        // What it says is the model's affair: that server puts no system prompt in front.
        let told = text.split_whitespace().count() > 2
            && report["stats"]["cloud_completion_tokens"].as_u64() > Some(2);
        if !output.status.success() || report["source"] != "cloud" || !told {
            return Err(format!("our client against llama_cpp.server, {what}: {report}"));
        }
        println!("our client against llama_cpp.server, {what}: {text:?}");
    }
    Ok(())
}
