//! The engines that are measured: ours, and peers. Each runs in a process of its own.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::{Result, sh};

/// What to run.
#[derive(Clone, Copy)]
pub struct Task<'a> {
    pub model: &'a Path,
    pub threads: usize,
    pub prompt: usize,
    pub generate: usize,
}

/// Tokens per second.
#[derive(Clone, Copy, Debug)]
pub struct Speed {
    pub prefill: f64,
    pub decode: f64,
}

/// An engine with its flags.
#[derive(Clone)]
pub struct Engine {
    /// Engines of one name are flags of one engine: per figure its best one counts.
    pub name: &'static str,
    pub flags: String,
    kind: Kind,
}

#[derive(Clone)]
enum Kind {
    Pannier(PathBuf),
    LlamaCpp { python: PathBuf, repack: bool },
    LlamaBench(Vec<String>),
}

impl Engine {
    /// Ours, built for release.
    pub fn pannier(command: PathBuf) -> Engine {
        Engine { name: "pannier", flags: String::new(), kind: Kind::Pannier(command) }
    }

    /// llama.cpp with the interpreter of a virtual environment that has llama-cpp-python: both layouts of its weights.
    pub fn llama_cpp(python: &Path) -> [Engine; 2] {
        [true, false].map(|repack| Engine {
            name: "llama.cpp",
            flags: if repack { "repacked" } else { "mapped" }.into(),
            kind: Kind::LlamaCpp { python: python.to_owned(), repack },
        })
    }

    /// A command that understands `-m -p -n -gp -t -r -o json`, with flags of its own behind the program.
    pub fn llama_bench(line: &str) -> Result<Engine> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let Some((_, flags)) = words.split_first() else { return Err("--peer-command is empty".into()) };
        Ok(Engine { name: "peer command", flags: flags.join(" "), kind: Kind::LlamaBench(words) })
    }

    /// One run, warmed up.
    pub fn speed(&self, task: Task<'_>) -> Result<Speed> {
        let Task { model, threads, prompt, generate } = task;
        let [threads, prompt_text, generate_text] = [threads, prompt, generate].map(|n| n.to_string());
        match &self.kind {
            Kind::Pannier(_) => {
                let report = self.report(task)?;
                Ok(Speed {
                    prefill: float(&report, "prefill_tok_s")?,
                    decode: float(&report, "decode_tok_s")?,
                })
            }
            Kind::LlamaCpp { python, repack } => {
                let script = sh::root().join("xtask/peer/llama_cpp_bench.py");
                let mut command = Command::new(python);
                command.arg(script).arg(model).args([&*threads, &*prompt_text, &*generate_text, "1"]);
                let report = json(command.arg(if *repack { "1" } else { "0" }))?;
                Ok(Speed {
                    prefill: float(&report, "prefill_tok_s")?,
                    decode: float(&report, "decode_tok_s")?,
                })
            }
            Kind::LlamaBench(words) => {
                let mut command = Command::new(words.first().map_or("", String::as_str));
                command.args(words.iter().skip(1)).arg("-m").arg(model);
                // Decode behind the prompt, as everywhere here.
                command.args(["-p", &prompt_text, "-n", "0", "-gp", &format!("{prompt},{generate}")]);
                let report = json(command.args(["-t", &threads, "-r", "1", "-o", "json"]))?;
                let tests = report.as_array().map(Vec::as_slice).unwrap_or_default();
                let find = |decode: bool| {
                    let test = tests.iter().find(|t| (t["n_gen"].as_u64().unwrap_or(0) > 0) == decode);
                    float(test.unwrap_or(&Value::Null), "avg_ts")
                };
                Ok(Speed { prefill: find(false)?, decode: find(true)? })
            }
        }
    }

    /// All that `pannier bench` reports in one repetition.
    pub fn report(&self, task: Task<'_>) -> Result<Value> {
        let Kind::Pannier(pannier) = &self.kind else { return Err("only ours has a report".into()) };
        let mut command = Command::new(pannier);
        command.arg("bench").arg("-m").arg(task.model).args(["--reps", "1", "--json"]);
        json(command.args(["-t", &task.threads.to_string()]).args([
            "--prompt",
            &task.prompt.to_string(),
            "--gen",
            &task.generate.to_string(),
        ]))
    }
}

/// Runs a command that prints one JSON value on stdout.
pub fn json(command: &mut Command) -> Result<Value> {
    let name =
        Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let output = command.output().map_err(|e| format!("cannot start {name}: {e}"))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no message");
        return Err(format!("{name} failed ({}): {}", output.status, last.trim()));
    }
    serde_json::from_slice(&output.stdout).map_err(|e| format!("{name} printed no JSON: {e}"))
}

/// A number of a JSON object.
pub fn float(object: &Value, key: &str) -> Result<f64> {
    object[key].as_f64().ok_or_else(|| format!("a report has no number {key:?}"))
}

/// The interpreter that has llama-cpp-python: in PANNIER_PEER, or else in the cache, where it is built when absent, with
/// all instructions of this machine.
pub fn python() -> Result<PathBuf> {
    let venv = match std::env::var_os("PANNIER_PEER").filter(|v| !v.is_empty()) {
        Some(dir) => std::path::absolute(dir).map_err(|e| format!("PANNIER_PEER: {e}"))?,
        None => dirs::cache_dir()
            .ok_or("this system names no cache directory: set PANNIER_PEER")?
            .join("pannier/peer"),
    };
    let python = venv.join(if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" });
    let works = |python: &Path| {
        let check = Command::new(python).args(["-c", "import llama_cpp, numpy"]).output();
        check.is_ok_and(|output| output.status.success())
    };
    if works(&python) {
        return Ok(python);
    }
    let system = if cfg!(windows) { "python" } else { "python3" };
    sh::run("a virtual environment for llama.cpp", Command::new(system).args(["-m", "venv"]).arg(&venv))?;
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--quiet", "numpy", "llama-cpp-python"]);
    // From source: wheels would be for machines without the instructions that are to be compared.
    let mut cmake = "-DGGML_NATIVE=ON".to_owned();
    if cfg!(target_arch = "x86_64") {
        // Virtual machines announce AMX and then fault on its first instruction.
        for language in ["C", "CXX"] {
            cmake += &format!(" -DCMAKE_{language}_FLAGS='-mno-amx-tile -mno-amx-int8 -mno-amx-bf16'");
        }
    }
    pip.args(["--no-binary", "llama-cpp-python"]).env("CMAKE_ARGS", cmake);
    sh::run("building llama.cpp for this machine (minutes)", &mut pip)?;
    if works(&python) { Ok(python) } else { Err(format!("{} cannot import llama_cpp", python.display())) }
}

/// The version of llama-cpp-python.
pub fn llama_cpp_version(python: &Path) -> String {
    let output = Command::new(python).args(["-c", "import llama_cpp; print(llama_cpp.__version__)"]).output();
    output.map_or_else(|_| String::new(), |o| String::from_utf8_lossy(&o.stdout).trim().to_owned())
}
