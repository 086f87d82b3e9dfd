//! `cargo xtask quantizer`: our quantiser beside llama.cpp's, as a dated record.
//!
//! ```text
//! the model as f16 (made from MODEL if that is quantised), and statistics of it over the calibration text
//! for each type, for rtn, imatrix (and awq, which the peer has not):
//!     both quantise; the perplexity of both on the same windows, by our engine, which thereby also loads the peer's file
//!     the peer's engine loads our file: log-probabilities of some tokens, beside those of our engine
//! ```

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use serde_json::{Value, json};

use super::engines::{self, float};
use super::machine;
use crate::{Result, sh};

const USAGE: &str = "\
cargo xtask quantizer [OPTIONS] MODEL     a GGUF file; f16 is made of it first unless it has a float type

  --types A,B         default: all that llama.cpp has a mixture of the same name for
  --methods A,B       rtn, imatrix, awq; default all
  --text FILE         what perplexity is measured on (default: the golden prose)
  --calibration FILE  what statistics are collected on (default: pages and comments of this repository)
  --windows N         of --text, 512 tokens each
  --calibration-windows N   default 60
  --no-peer           ours only
  --threads N         default 2
  --work DIR          keep what is made there, and use it again
  --name NAME         of the record, benches/record/DATE-NAME.md and .json
  --note TEXT         a remark for the record
";

const TYPES: &[&str] = &[
    "Q8_0", "Q6_K", "Q5_K_M", "Q5_K_S", "Q5_1", "Q5_0", "Q4_K_M", "Q4_K_S", "Q4_1", "Q4_0", "IQ4_NL",
    "IQ4_XS", "Q3_K_L", "Q3_K_M", "Q3_K_S", "Q2_K",
];

/// Tokens whose log-probabilities both engines give.
const SCORED: usize = 48;

struct Options {
    model: PathBuf,
    types: Vec<String>,
    methods: Vec<String>,
    text: PathBuf,
    calibration: Option<PathBuf>,
    windows: Option<String>,
    calibration_windows: String,
    peer: bool,
    threads: String,
    work: Option<PathBuf>,
    name: String,
    notes: Vec<String>,
}

pub fn run(args: lexopt::Parser) -> Result {
    let Some(options) = parse(args)? else { return Ok(()) };
    let pannier = sh::pannier("release")?;
    let work = options
        .work
        .clone()
        .unwrap_or_else(|| std::env::temp_dir().join(format!("pannier-quantizer-{}", std::process::id())));
    std::fs::create_dir_all(&work).map_err(|e| format!("cannot create {}: {e}", work.display()))?;
    let result = measure(&options, &pannier, &work);
    if options.work.is_none() {
        let _ = std::fs::remove_dir_all(&work);
    }
    result
}

fn parse(mut args: lexopt::Parser) -> Result<Option<Options>> {
    let text = |e: lexopt::Error| e.to_string();
    let list = |value: String| value.split(',').map(|part| part.trim().to_owned()).collect::<Vec<_>>();
    let mut o = Options {
        model: PathBuf::new(),
        types: TYPES.iter().map(|ty| (*ty).to_owned()).collect(),
        methods: list("rtn,imatrix,awq".into()),
        text: sh::root().join("core/engine/tests/data/golden/text/prose.txt"),
        calibration: None,
        windows: None,
        calibration_windows: "60".into(),
        peer: true,
        threads: "2".into(),
        work: None,
        name: "quantizer".into(),
        notes: Vec::new(),
    };
    while let Some(arg) = args.next().map_err(text)? {
        let lexopt::Arg::Long(name) = arg else {
            match arg {
                lexopt::Arg::Value(model) => o.model = PathBuf::from(model),
                lexopt::Arg::Short('h') => {
                    print!("{USAGE}");
                    return Ok(None);
                }
                other => return Err(format!("{}\n{USAGE}", other.unexpected())),
            }
            continue;
        };
        let name = name.to_owned();
        let mut value = || Ok::<_, String>(args.value().map_err(text)?.to_string_lossy().into_owned());
        match name.as_str() {
            "help" => {
                print!("{USAGE}");
                return Ok(None);
            }
            "types" => o.types = list(value()?),
            "methods" => o.methods = list(value()?),
            "text" => o.text = value()?.into(),
            "calibration" => o.calibration = Some(value()?.into()),
            "calibration-windows" => o.calibration_windows = value()?,
            "windows" => o.windows = Some(value()?),
            "no-peer" => o.peer = false,
            "threads" => o.threads = value()?,
            "work" => o.work = Some(value()?.into()),
            "name" => o.name = value()?,
            "note" => o.notes.push(value()?),
            other => return Err(format!("no option --{other}\n{USAGE}")),
        }
    }
    if let Some(bad) = o.methods.iter().find(|method| !["rtn", "imatrix", "awq"].contains(&method.as_str())) {
        return Err(format!("no method {bad:?}\n{USAGE}"));
    }
    if o.model.as_os_str().is_empty() { Err(format!("which model?\n{USAGE}")) } else { Ok(Some(o)) }
}

/// What the runs of one record share.
struct Bench<'a> {
    options: &'a Options,
    pannier: &'a Path,
    python: Option<PathBuf>,
    base: PathBuf,
    imatrix: Option<PathBuf>,
    ids: String,
}

fn measure(options: &Options, pannier: &Path, work: &Path) -> Result {
    let base = float_model(options, pannier, work)?;
    let needs_statistics = options.methods.iter().any(|method| method != "rtn");
    let imatrix = if needs_statistics { Some(statistics(options, pannier, work, &base)?) } else { None };
    let python = if options.peer { Some(engines::python()?) } else { None };
    let ids = ids(options, pannier, &base)?;
    let bench = Bench { options, pannier, python, base, imatrix, ids };
    let float_report = bench.perplexity(&bench.base, None)?;
    let base_ppl = float(&float_report, "ppl")?;
    let mut record = json!({
        "date": machine::date(), "machine": machine::describe(), "commit": machine::commit(),
        "command": super::command_line(), "notes": options.notes, "base_ppl": base_ppl,
        "base_ppl_low": float_report["ppl_low"], "base_ppl_high": float_report["ppl_high"],
        "tokens": float_report["tokens"], "rows": [],
    });
    if let Some(python) = &bench.python {
        record["peer"] = json!(format!("llama-cpp-python {}", engines::llama_cpp_version(python)));
    }
    for ty in &options.types {
        let mut rtn = None;
        for method in &options.methods {
            eprintln!("== {ty} {method}");
            let mut row = bench.row(ty, method, work)?;
            let ppl = float(&row, "ppl")?;
            row["loss"] = json!(ppl / base_ppl - 1.0);
            if method == "rtn" {
                rtn = Some(ppl);
            } else if let Some(rtn) = rtn {
                row["gap_closed"] = json!((rtn - ppl) / (rtn - base_ppl));
            }
            if let Value::Array(rows) = &mut record["rows"] {
                rows.push(row);
            }
            save(&options.name, &record)?;
        }
    }
    print!("{}", markdown(&record));
    Ok(())
}

/// The model in a float type.
fn float_model(options: &Options, pannier: &Path, work: &Path) -> Result<PathBuf> {
    let report = engines::json(Command::new(pannier).args(["--json", "inspect"]).arg(&options.model))?;
    let quantised = report["types"]
        .as_object()
        .into_iter()
        .flatten()
        .any(|(ty, _)| !["F32", "F16", "BF16"].contains(&ty.as_str()));
    // Eight bits are as good a start as any: what the peer requantises from is the same file.
    let only_q8 = report["types"]
        .as_object()
        .is_some_and(|types| types.keys().all(|ty| ["F32", "Q8_0"].contains(&ty.as_str())));
    if !quantised || only_q8 {
        return Ok(options.model.clone());
    }
    let base = work.join("base-f16.gguf");
    if !base.exists() {
        let mut command = Command::new(pannier);
        command.arg("quantize").arg(&options.model).arg(&base).arg("F16");
        sh::run("decoding the model to f16", command.stdout(std::process::Stdio::null()))?;
    }
    Ok(base)
}

fn statistics(options: &Options, pannier: &Path, work: &Path, base: &Path) -> Result<PathBuf> {
    let path = work.join("imatrix.gguf");
    if path.exists() {
        return Ok(path);
    }
    let text = match &options.calibration {
        Some(text) => text.clone(),
        None => {
            let text = work.join("calibration.txt");
            std::fs::write(&text, own_text()?)
                .map_err(|e| format!("cannot write {}: {e}", text.display()))?;
            text
        }
    };
    let mut command = Command::new(pannier);
    command
        .args(["calibrate", "--windows", &options.calibration_windows, "-t", &options.threads, "-m"])
        .arg(base);
    command.arg("--file").arg(text).arg("-o").arg(&path);
    sh::run("collecting statistics", command.stdout(std::process::Stdio::null()))?;
    Ok(path)
}

/// Pages and comments of this repository, but not the golden files: prose about computers, as is the text that is scored.
fn own_text() -> Result<String> {
    let mut text = String::new();
    let mut folders = vec![sh::root().join("core"), sh::root().join("xtask")];
    let mut files = vec![sh::root().join("ARCHITECTURE.md"), sh::root().join("README.md")];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        paths.sort();
        for path in paths {
            match path.is_dir() {
                true if path.ends_with("data") || path.ends_with("target") => {}
                true => folders.push(path),
                false => files.push(path),
            }
        }
    }
    for path in files {
        let content = std::fs::read_to_string(&path).unwrap_or_default();
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("md") => text.push_str(&content),
            Some("rs") => {
                let comment = |line: &str| {
                    let line = line.trim_start();
                    let rest = line.strip_prefix("//!").or_else(|| line.strip_prefix("///"))?;
                    (!rest.contains("# Errors")).then(|| rest.trim_start().to_owned() + "\n")
                };
                text.extend(content.lines().filter_map(comment));
            }
            _ => {}
        }
    }
    Ok(text)
}

/// The first tokens of the text, as a list with commas.
fn ids(options: &Options, pannier: &Path, base: &Path) -> Result<String> {
    let mut command = Command::new(pannier);
    command.args(["--json", "tokenize", "-m"]).arg(base).arg("--file").arg(&options.text);
    let report = engines::json(&mut command)?;
    let ids = report["ids"].as_array().ok_or("tokenize gave no ids")?;
    Ok(ids.iter().take(SCORED).map(Value::to_string).collect::<Vec<_>>().join(","))
}

impl Bench<'_> {
    fn perplexity(&self, model: &Path, against: Option<&Path>) -> Result<Value> {
        let mut command = Command::new(self.pannier);
        command.args(["--json", "perplexity", "-t", &self.options.threads, "-m"]).arg(model);
        command.arg("--file").arg(&self.options.text);
        if let Some(windows) = &self.options.windows {
            command.args(["--windows", windows]);
        }
        if let Some(against) = against {
            command.arg("--against").arg(against);
        }
        engines::json(&mut command)
    }

    /// Both quantise, both are measured.
    fn row(&self, ty: &str, method: &str, work: &Path) -> Result<Value> {
        let (ours, theirs) =
            (work.join(format!("ours-{ty}-{method}.gguf")), work.join(format!("peer-{ty}-{method}.gguf")));
        let statistics = self.imatrix.as_ref().filter(|_| method != "rtn");
        let start = Instant::now();
        let mut command = Command::new(self.pannier);
        command.args(["--json", "quantize", "-t", &self.options.threads]).args([&self.base, &ours]).arg(ty);
        if let Some(statistics) = statistics {
            command.arg("--imatrix").arg(statistics).args(["--method", method]);
        }
        let report = engines::json(&mut command)?;
        let mut row = json!({
            "type": ty, "method": method, "bytes": report["bytes"], "bits_per_weight": report["bits_per_weight"],
            "seconds": start.elapsed().as_secs_f64(),
        });
        let peer = self.python.as_ref().filter(|_| method != "awq");
        let measured = match peer {
            None => self.perplexity(&ours, None)?,
            Some(python) => {
                let mut command = Command::new(python);
                command.arg(sh::root().join("xtask/peer/llama_cpp_quantize.py")).arg("quantize");
                command.args([&self.base, &theirs]).args([ty, &*self.options.threads]).args(statistics);
                row["peer_seconds"] = engines::json(&mut command)?["seconds"].clone();
                row["peer_bytes"] = json!(std::fs::metadata(&theirs).map_err(|e| e.to_string())?.len());
                self.perplexity(&ours, Some(&theirs))?
            }
        };
        row["ppl"] = measured["ppl"].clone();
        let against = &measured["against"];
        for (key, from) in [
            ("peer_ppl", "ppl"),
            ("ratio", "ratio"),
            ("ratio_low", "ratio_low"),
            ("ratio_high", "ratio_high"),
        ] {
            row[key] = against[from].clone();
        }
        if let Some(python) = &self.python {
            row["engines_differ"] = json!(self.difference(python, &ours)?);
        }
        if self.options.work.is_none() {
            let _ = (std::fs::remove_file(&ours), std::fs::remove_file(&theirs));
        }
        Ok(row)
    }

    /// Mean difference of the log-probabilities that the two engines give for our file.
    fn difference(&self, python: &Path, ours: &Path) -> Result<f64> {
        let mut command = Command::new(python);
        command.arg(sh::root().join("xtask/peer/llama_cpp_quantize.py")).arg("score").arg(ours);
        let theirs = engines::json(command.args([&self.options.threads, &self.ids]))?;
        let mut command = Command::new(self.pannier);
        command.args(["--json", "logits", "--top", "0", "--ids", &self.ids, "-m"]).arg(ours);
        let own = engines::json(&mut command)?;
        let theirs = theirs["logprobs"].as_array().ok_or("no log-probabilities")?;
        let own = own["positions"].as_array().ok_or("no positions")?;
        let pairs: Vec<(f64, f64)> = own
            .iter()
            .filter_map(|position| position["next_logprob"].as_f64())
            .zip(theirs.iter().filter_map(Value::as_f64))
            .collect();
        if pairs.len() != theirs.len() || pairs.is_empty() {
            return Err(format!(
                "{} log-probabilities of ours for {} of the peer",
                pairs.len(),
                theirs.len()
            ));
        }
        Ok(pairs.iter().map(|(a, b)| (a - b).abs()).sum::<f64>() / pairs.len() as f64)
    }
}

fn save(name: &str, record: &Value) -> Result {
    let folder = sh::root().join("benches/record");
    for (extension, text) in [("json", format!("{record:#}\n")), ("md", markdown(record))] {
        let path = folder.join(format!("{}-{name}.{extension}", machine::date()));
        std::fs::write(&path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
    }
    Ok(())
}

fn markdown(record: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let number =
        |value: &Value, digits: usize| value.as_f64().map_or("-".into(), |x| format!("{x:.digits$}"));
    let percent = |value: &Value| value.as_f64().map_or("-".into(), |x| format!("{:+.2}%", 100.0 * x));
    let mut page = format!("# Quantiser on {}\n\n", text(&record["date"]));
    let mut line = |line: String| {
        let _ = writeln!(page, "{line}");
    };
    for (title, key) in [("Machine", "machine"), ("Commit", "commit"), ("Peer", "peer")] {
        line(format!("* {title}: {}", text(&record[key])));
    }
    line(format!("* Command: `{}`", text(&record["command"])));
    for note in record["notes"].as_array().into_iter().flatten() {
        line(format!("* {}", text(note)));
    }
    line(format!(
        "* Perplexity of the model before: {} ({} to {}), {} tokens scored. `loss`: ours against that. `gap closed`: the part of the loss of rtn \
         that a method wins back. `ours / peer`: perplexities, paired by window, with its 95% interval. `engines differ`: mean \
         difference of the log-probabilities that llama.cpp and we give for our file.",
        number(&record["base_ppl"], 4),
        number(&record["base_ppl_low"], 2),
        number(&record["base_ppl_high"], 2),
        record["tokens"]
    ));
    line("\n| type | method | MB | bits | perplexity | loss | gap closed | peer's | ours / peer | engines differ | s, ours / peer |".into());
    line(format!("|{}", " --- |".repeat(11)));
    for row in record["rows"].as_array().into_iter().flatten() {
        let mega = row["bytes"].as_f64().map_or("-".into(), |x| format!("{:.1}", x / 1e6));
        let ratio = match row["ratio"].as_f64() {
            Some(_) => format!(
                "{} ({} to {})",
                number(&row["ratio"], 4),
                number(&row["ratio_low"], 4),
                number(&row["ratio_high"], 4)
            ),
            None => "-".into(),
        };
        let closed = row["gap_closed"].as_f64().map_or("-".into(), |x| format!("{:.0}%", 100.0 * x));
        let cells = [
            text(&row["type"]),
            text(&row["method"]),
            mega,
            number(&row["bits_per_weight"], 2),
            number(&row["ppl"], 4),
            percent(&row["loss"]),
            closed,
            number(&row["peer_ppl"], 4),
            ratio,
            number(&row["engines_differ"], 4),
            format!("{} / {}", number(&row["seconds"], 1), number(&row["peer_seconds"], 1)),
        ];
        line(format!("| {} |", cells.join(" | ")));
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_a_cell_for_every_column() {
        let row = json!({"type": "Q3_K_M", "method": "rtn", "bytes": 12_345_678, "ppl": 10.5, "loss": 0.05});
        let page = markdown(&json!({"rows": [row], "base_ppl": 10.0}));
        let last: Vec<&str> = page.lines().rev().take(3).collect();
        assert!(last.iter().all(|line| line.matches('|').count() == 12), "{page}");
        assert!(
            last[0].starts_with("| Q3_K_M | rtn | 12.3 | - | 10.5000 | +5.00% | - | - | - | - | "),
            "{page}"
        );
    }

    #[test]
    fn the_text_of_the_repository_is_prose() {
        let text = own_text().unwrap();
        assert!(text.len() > 100_000 && !text.contains("fn main"), "{}", text.len());
    }
}
