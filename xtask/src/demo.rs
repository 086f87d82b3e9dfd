//! `cargo xtask demo`: from a fresh checkout to an answer in the terminal.

use std::path::PathBuf;
use std::process::Command;

use crate::catalogue::DEFAULT_MODEL;
use crate::{Result, demo_hybrid, models, sh};

const PROMPT: &str = "Explain in three sentences why the sky is blue.";

pub fn run(mut args: lexopt::Parser) -> Result {
    let mut model: Option<PathBuf> = None;
    while let Some(arg) = args.next().map_err(|e| e.to_string())? {
        match arg {
            lexopt::Arg::Long("hybrid") => return demo_hybrid::run(),
            lexopt::Arg::Long("model") => {
                let value = args.value().map_err(|e| e.to_string())?;
                model = Some(std::path::absolute(value).map_err(|e| e.to_string())?);
            }
            other => return Err(other.unexpected().to_string()),
        }
    }
    let pannier = sh::pannier("release")?;
    let model = match model {
        Some(path) => path,
        None => {
            let entry = models::find(DEFAULT_MODEL)?;
            models::fetch(entry, Some(&pannier)).map_err(|e| {
                format!("{e}\nWithout a network, pass a GGUF file with a chat template: cargo xtask demo --model FILE")
            })?
        }
    };
    println!("model   {}", model.display());
    println!("prompt  {PROMPT}\n");
    let status = Command::new(&pannier)
        .arg("chat")
        .arg("--model")
        .arg(&model)
        .args(["--prompt", PROMPT, "--temp", "0", "-n", "200"])
        .status()
        .map_err(|e| format!("cannot run {}: {e}", pannier.display()))?;
    if status.success() { Ok(()) } else { Err(format!("pannier chat failed ({status})")) }
}
