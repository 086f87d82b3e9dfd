//! `cargo xtask test --arm64 --instructions`: instructions per decoded token and per weight, on each level, as a dated record.
//!
//! A token's count is the difference of two runs that decode the same text to different lengths, divided by the difference: loading,
//! the prompt and the end cancel. Exact numbers of a deterministic program, but instructions are not time: levels compare well with each
//! other, less well with other processors.

use std::ffi::OsString;
use std::fmt::Write;
use std::io::{BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::cross::Cross;
use super::tally::Tally;
use super::{LEVELS, TARGET, cargo, target_dir};
use crate::bench::machine;
use crate::{Result, models, sh};

/// Tokens that the two runs decode.
const LENGTHS: [u64; 2] = [4, 12];
const PROMPT: &str = "The three longest rivers of Europe are";
const MODELS: &[&str] = &["smollm2-135m-instruct"];

/// The matrix of the kernel counts, and how often it is multiplied in the two runs. Enough rows that a task has as many as in a real model: what
/// a task does once (the pairs of i8mm) weighs too much in a small one.
const ROWS: u64 = 1024;
const COLS: u64 = 2048;
const REPEATS: [u64; 2] = [1, 2];
const SCALAR: &str = "Scalar";
/// Columns of activations.
const WIDTHS: [u64; 3] = [1, 2, 8];
const FORMATS: [&str; 16] = [
    "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "IQ4_XS", "MXFP4", "Q2_K", "Q3_K", "Q4_K", "Q5_K",
    "Q6_K", "F32", "F16", "BF16",
];

pub fn run(cross: &Cross, names: &[OsString]) -> Result {
    let names: Vec<String> = match names {
        [] => MODELS.iter().map(|n| (*n).to_owned()).collect(),
        names => names.iter().map(|n| n.to_string_lossy().into_owned()).collect(),
    };
    let build = |what: &str, args: &[&str]| {
        let mut command = cargo(cross, ["build", "--quiet", "--release"]);
        sh::run(what, command.args(args))
    };
    let folder = target_dir().join(TARGET).join("release");

    build("building the kernel counter", &["--package", "pannier-kernels", "--example", "kernelcount"])?;
    let mut kernels = Vec::new();
    for format in FORMATS {
        let mut row = json!({ "format": format });
        for (isa, width) in tables().flat_map(|isa| WIDTHS.map(|width| (isa, width))) {
            // Plain code does every column anew.
            if isa == SCALAR && width > 1 {
                continue;
            }
            let one = |repeats: u64| kernel(cross, &folder, isa, format, width, repeats);
            let [few, many] = REPEATS;
            let count = one(many)?.saturating_sub(one(few)?);
            let products = (many - few) * ROWS * COLS * width;
            if let Value::Object(row) = &mut row {
                row.insert(format!("{isa} x {width}"), json!(count as f64 / products as f64));
            }
        }
        eprintln!("   {row}");
        kernels.push(row);
    }
    // Written twice, so that a failure later loses nothing.
    record(&[], &kernels)?;

    build("building pannier for arm64", &["--package", "pannier-cli"])?;
    let mut tokens = Vec::new();
    for name in &names {
        let file = models::fetch(models::find(name)?, None)?;
        for (cpu, isa) in LEVELS {
            let one = |n: u64| decode(cross, &folder.join("pannier"), &file, cpu, n);
            let [short, long] = LENGTHS;
            let per_token = (one(long)?.saturating_sub(one(short)?)) / (long - short);
            eprintln!("   {name}, {cpu}: {:.1} million instructions per token", per_token as f64 / 1e6);
            tokens.push(json!({ "model": name, "cpu": cpu, "isa": isa, "per_token": per_token }));
        }
    }
    println!("{}", record(&tokens, &kernels)?);
    Ok(())
}

/// All tables of kernels, by name.
fn tables() -> impl Iterator<Item = &'static str> {
    std::iter::once(SCALAR).chain(LEVELS.iter().map(|(_, isa)| *isa))
}

/// Instructions of a run that decodes `n` tokens.
fn decode(cross: &Cross, pannier: &Path, model: &Path, cpu: &str, n: u64) -> Result<u64> {
    let mut command = Command::new(cross.bin("run-aarch64"));
    command.arg(pannier).args(["run", "--json", "-t", "1", "--temp", "0", "-p", PROMPT]);
    command.arg("-n").arg(n.to_string()).arg("-m").arg(model).env("QCPU", cpu);
    let (count, stdout) = counted(&mut command)?;
    let report: Value = serde_json::from_str(&stdout).map_err(|e| format!("pannier's report: {e}"))?;
    let ids = report["ids"].as_array().map_or(0, Vec::len) as u64;
    if ids == n {
        Ok(count)
    } else {
        Err(format!("{ids} tokens were decoded, not {n}: choose another prompt"))
    }
}

/// Instructions of a run that multiplies a matrix `repeats` times.
fn kernel(cross: &Cross, folder: &Path, isa: &str, format: &str, width: u64, repeats: u64) -> Result<u64> {
    let mut command = Command::new(cross.bin("run-aarch64"));
    command.arg(folder.join("examples/kernelcount")).args([isa, format]);
    command.args([ROWS, COLS, width, repeats].map(|n| n.to_string())).env("QCPU", "max");
    Ok(counted(&mut command)?.0)
}

/// Runs under the emulator; instructions, and what was printed.
fn counted(command: &mut Command) -> Result<(u64, String)> {
    // Without a file of its own, the log goes to stderr. What the program writes there is none of it and is skipped.
    command.env("QLOG", "-d in_asm,exec,nochain").stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|e| format!("cannot run the emulator: {e}"))?;
    let mut stdout = child.stdout.take().ok_or("no stdout")?;
    let log = child.stderr.take().ok_or("no stderr")?;
    let text = std::thread::spawn(move || {
        let mut text = String::new();
        stdout.read_to_string(&mut text).map(|_| text)
    });
    let mut tally = Tally::default();
    tally.read(BufReader::with_capacity(1 << 20, log)).map_err(|e| format!("the emulator's log: {e}"))?;
    let text = text.join().map_err(|_| "reading stdout failed")?.map_err(|e| e.to_string())?;
    let status = child.wait().map_err(|e| e.to_string())?;
    if !status.success() {
        return Err(format!("the program failed under the emulator ({status})"));
    }
    // Threads that start at the same time may spoil a line of the log, but not more.
    if tally.executions == 0 || tally.unknown * 10_000 > tally.executions {
        return Err(format!(
            "{} of {} executions are of unknown blocks: the emulator's log is not understood",
            tally.unknown, tally.executions
        ));
    }
    Ok((tally.instructions, text))
}

fn record(tokens: &[Value], kernels: &[Value]) -> Result<String> {
    let (date, commit) = (machine::date(), machine::commit());
    let mut page = format!("# Instructions on arm64, {date}\n\n");
    let mut line = |text: String| {
        let _ = writeln!(page, "{text}");
    };
    line(format!("* Commit: {commit}"));
    line("* Command: `cargo xtask test --arm64 --instructions`".into());
    line("* Counted under qemu (user mode), exactly; time cannot be seen there.".into());
    line(format!(
        "* Tokens: `pannier run -t 1 --temp 0 -p '{PROMPT}'`, ({} tokens - {} tokens) / {}.",
        LENGTHS[1],
        LENGTHS[0],
        LENGTHS[1] - LENGTHS[0]
    ));
    line(format!(
        "* Kernels: {ROWS} rows of {COLS} weights, Q8 activations, ({} products - {}) / {}, on `max` with each table in turn.",
        REPEATS[1],
        REPEATS[0],
        REPEATS[1] - REPEATS[0]
    ));
    if !tokens.is_empty() {
        line("\n## Per decoded token\n\n| model | processor | kernels | million instructions |\n| --- | --- | --- | --- |".into());
    }
    for t in tokens {
        let text = |key: &str| t[key].as_str().unwrap_or_default().to_owned();
        let millions = t["per_token"].as_f64().unwrap_or_default() / 1e6;
        line(format!("| {} | {} | {} | {millions:.2} |", text("model"), text("cpu"), text("isa")));
    }
    let isas: Vec<&str> = tables().collect();
    for width in WIDTHS {
        let columns = if width == 1 { "one column (decode)".into() } else { format!("{width} columns") };
        line(format!("\n## Per 100 multiply-adds, {columns}\n"));
        line(format!("| format | {} |\n| --- |{}", isas.join(" | "), " --- |".repeat(isas.len())));
        for k in kernels {
            let cells = isas.iter().map(|isa| {
                k[format!("{isa} x {width}")]
                    .as_f64()
                    .map_or(String::from("-"), |n| format!("{:.1}", n * 100.0))
            });
            let cells: Vec<String> = cells.collect();
            line(format!("| {} | {} |", k["format"].as_str().unwrap_or_default(), cells.join(" | ")));
        }
    }
    let object = json!({ "date": date, "commit": commit, "tokens": tokens, "kernels": kernels });
    for (extension, text) in [("md", page.clone()), ("json", format!("{object:#}\n"))] {
        let path = sh::root().join(format!("benches/record/{date}-arm64-instructions.{extension}"));
        std::fs::write(&path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
    }
    Ok(page)
}
