//! `cargo xtask demo --hybrid`: a small model on the edge, a larger one behind `pannier serve` as its cloud.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::{Result, clients, models, sh};

const EDGE: &str = "smollm2-135m-instruct";
const CLOUD: &str = "qwen2.5-coder-1.5b-instruct";
const SYSTEM: &str = "Answer in one short sentence.";
/// Where the edge has to be this sure.
const MIN_CONFIDENCE: &str = "0.5";

/// A prompt, and who should answer it.
const PROMPTS: [(&str, &str, &str); 2] = [
    ("an easy one", "What is the capital of Japan?", "device"),
    ("a hard one", "What does this Python program print?\nprint(sum(i * i for i in range(3, 8)))", "cloud"),
];

pub fn run() -> Result {
    let pannier = sh::pannier("release")?;
    let edge = models::fetch(models::find(EDGE)?, Some(&pannier))?;
    let cloud = models::fetch(models::find(CLOUD)?, Some(&pannier))?;
    let (server, url, name) = clients::serve(&pannier, &cloud, None)?;
    println!("edge    {EDGE}\ncloud   {name} at {url}, for answers below {MIN_CONFIDENCE}\n");
    for (what, prompt, expected) in PROMPTS {
        println!("== {what}: {}", prompt.replace('\n', " ⏎ "));
        let report = ask(&pannier, &edge, &url, &name, prompt)?;
        for event in report["events"].as_array().into_iter().flatten() {
            println!("   {event}");
        }
        println!("   {}: {}\n", text(&report, "source"), text(&report, "text"));
        if report["source"] != expected {
            return Err(format!(
                "{what} was answered by the {}, not by the {expected}",
                text(&report, "source")
            ));
        }
    }
    server.interrupt()
}

fn text<'a>(report: &'a Value, key: &str) -> &'a str {
    report[key].as_str().unwrap_or("?").trim()
}

fn ask(pannier: &Path, edge: &Path, url: &str, name: &str, prompt: &str) -> Result<Value> {
    let output = Command::new(pannier)
        .args(["chat", "--json", "--temp", "0", "-n", "48", "--system", SYSTEM, "-p", prompt, "--model"])
        .arg(edge)
        .args(["--cloud-url", url, "--cloud-model", name, "--min-confidence", MIN_CONFIDENCE])
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| format!("cannot run {}: {e}", pannier.display()))?;
    if !output.status.success() {
        return Err(format!("pannier chat failed ({})", output.status));
    }
    serde_json::from_slice(&output.stdout).map_err(|e| format!("pannier chat printed no JSON: {e}"))
}
