//! `cargo xtask bench`: how fast models are on this machine, beside other engines, as a dated record.
//!
//! ```text
//! for each model, for each number of threads:
//!     a few rounds: ours, then each peer with each of its flags             alternating: machines drift
//!     the medians; per peer and figure its best flags; the median of the rounds' ratios
//! --busy   decode with two threads while a process keeps a core, against one thread alone
//! --long   decode behind 4096 tokens, against 128
//! --load   a fresh process, file in the page cache: time to the first token; anonymous memory
//! ```
//!
//! The record is written again after every row, so that a run that is stopped leaves what it has.

mod engines;
pub mod machine;
mod plan;
pub mod quantizer;
mod record;
mod subject;

use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use serde_json::{Value, json};

use crate::{Result, cage, sh};
pub use engines::python;
use engines::{Engine, Speed, Task, float};
use record::Record;
use subject::Subject;

const USAGE: &str = "\
cargo xtask bench [OPTIONS] [MODEL…]      models are files or catalogue names; without one, the standard set

  --threads 1,2         numbers of threads
  --prompt 512          tokens of prefill
  --gen 64              tokens of decode, behind the prompt
  --rounds 3            repetitions; with peers, each round runs all of them
  --peer                llama.cpp beside ours (llama-cpp-python in PANNIER_PEER, or in the cache; built when absent)
  --peer-command LINE   another engine's llama-bench and its flags; several times for several sets of flags
  --pack                ours reads packs of the files, with rows interleaved as the kernels want them; peers interleave while loading
  --busy                also: two threads while a process keeps one core busy
  --long                also: decode behind a long context
  --load                also: loading, the first token, anonymous memory
  --plan                instead: what `pannier plan` says against what happens, resident and in cages
  --no-table            only what was asked for besides
  --name NAME           of the record, benches/record/DATE-NAME.md and .json
  --note TEXT           a remark for the record
";

/// What a long context is compared with, and its length.
const SHORT_CONTEXT: usize = 128;
const LONG_CONTEXT: usize = 4096;

struct Options {
    models: Vec<String>,
    threads: Vec<usize>,
    prompt: usize,
    generate: usize,
    rounds: usize,
    peer: bool,
    peer_commands: Vec<String>,
    pack: bool,
    busy: bool,
    long: bool,
    load: bool,
    plan: bool,
    table: bool,
    name: Option<String>,
    notes: Vec<String>,
}

pub fn run(args: lexopt::Parser) -> Result {
    let Some(options) = parse(args)? else { return Ok(()) };
    let pannier = sh::pannier("release")?;
    let ours = Engine::pannier(pannier.clone());
    let mut peers = Vec::new();
    let mut record = Record::new(options.name.as_deref(), command_line());
    record.notes.extend(options.notes.iter().cloned());
    if options.plan {
        let threads = options.threads.iter().copied().max().unwrap_or(1);
        let (mut notes, mut rows) = (Vec::new(), Vec::new());
        let done = plan::rows(&pannier, threads, &mut |note| notes.push(note), &mut |row| {
            rows.push(row.clone());
            record.add("plan", row)
        });
        record.notes.append(&mut notes);
        record.notes.push(plan::verdict(&rows));
        record.save()?;
        print!("{}", record.markdown());
        return done;
    }
    let state = "each file was dropped from the page cache before its first run; all engines share the pages that are then read";
    record.notes.push(state.into());
    if options.peer {
        let python = engines::python()?;
        record.peers.push(format!("llama.cpp: llama-cpp-python {}", engines::llama_cpp_version(&python)));
        peers.extend(Engine::llama_cpp(&python));
    }
    for line in &options.peer_commands {
        let engine = Engine::llama_bench(line)?;
        record.peers.push(format!("{}: flags {:?}", engine.name, engine.flags));
        peers.push(engine);
    }
    let mut subjects = match options.models.is_empty() {
        true => subject::standard(&pannier)?,
        false => options.models.iter().map(|name| Subject::find(&pannier, name)).collect::<Result<_>>()?,
    };
    if options.pack {
        subjects.iter_mut().try_for_each(|subject| subject.pack(&pannier))?;
        record.notes.push("ours read packs of the files (`pannier pack`)".into());
    }
    for subject in &subjects {
        // As after a phone's start. What was just written lies in small pages, and what is read from the disk may lie in huge ones:
        // one state for all models and all engines, and the one that apps find.
        cage::drop_cached(&subject.path);
        cage::drop_cached(&subject.ours);
        if options.table {
            for &threads in &options.threads {
                let row = table_row(&options, &ours, &peers, subject, threads)?;
                record.add("table", row)?;
            }
        }
        if options.busy {
            record.add("busy", busy_row(&options, &ours, subject)?)?;
        }
        if options.long && subject.context >= (LONG_CONTEXT + options.generate) as u64 {
            record.add("long", long_row(&options, &ours, subject)?)?;
        }
        if options.load {
            record.add("load", load_row(&options, &ours, &pannier, subject)?)?;
        }
    }
    print!("{}", record.markdown());
    eprintln!("recorded in {}", record.path("md").display());
    Ok(())
}

fn parse(mut args: lexopt::Parser) -> Result<Option<Options>> {
    use lexopt::Arg::{Long, Short, Value};
    let text = |e: lexopt::Error| e.to_string();
    let mut o = Options {
        models: Vec::new(),
        threads: vec![1, 2],
        prompt: 512,
        generate: 64,
        rounds: 3,
        peer: false,
        peer_commands: Vec::new(),
        pack: false,
        busy: false,
        long: false,
        load: false,
        plan: false,
        table: true,
        name: None,
        notes: Vec::new(),
    };
    let count = |value: &str, least: usize| match value.parse::<usize>() {
        Ok(n) if (least..=1 << 20).contains(&n) => Ok(n),
        _ => Err(format!("{value:?} is no number from {least} to {}", 1 << 20)),
    };
    while let Some(arg) = args.next().map_err(text)? {
        let Long(name) = arg else {
            match arg {
                Value(model) => o.models.push(model.to_string_lossy().into_owned()),
                Short('h') => return help(),
                other => return Err(format!("{}\n{USAGE}", other.unexpected())),
            }
            continue;
        };
        let name = name.to_owned();
        let mut value = || Ok::<_, String>(args.value().map_err(text)?.to_string_lossy().into_owned());
        match name.as_str() {
            "help" => return help(),
            // How the busy process is started; see `machine::Busy`.
            "spin" => machine::spin(),
            "threads" => {
                o.threads = value()?.split(',').map(|n| count(n.trim(), 1)).collect::<Result<_>>()?;
            }
            "prompt" => o.prompt = count(&value()?, 1)?,
            "gen" => o.generate = count(&value()?, 2)?,
            "rounds" => o.rounds = count(&value()?, 1)?,
            "peer" => o.peer = true,
            "peer-command" => o.peer_commands.push(value()?),
            "pack" => o.pack = true,
            "busy" => o.busy = true,
            "long" => o.long = true,
            "load" => o.load = true,
            "plan" => o.plan = true,
            "no-table" => o.table = false,
            "name" => o.name = Some(value()?),
            "note" => o.notes.push(value()?),
            other => return Err(format!("no option --{other}\n{USAGE}")),
        }
    }
    Ok(Some(o))
}

fn help() -> Result<Option<Options>> {
    print!("{USAGE}");
    Ok(None)
}

/// As it was typed, but for folders: a record tells nothing of where things are on this machine.
fn command_line() -> String {
    let word = |word: String| {
        let name = |part: &str| part.rsplit('/').next().unwrap_or(part).to_owned();
        let parts: Vec<String> = word.split(' ').map(name).collect();
        let joined = parts.join(" ");
        if parts.len() > 1 { format!("'{joined}'") } else { joined }
    };
    let mut words = Vec::new();
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        // Remarks are in the record anyway.
        if arg == "--note" {
            args.next();
        } else {
            words.push(word(arg));
        }
    }
    format!("cargo xtask {}", words.join(" "))
}

fn table_row(
    options: &Options,
    ours: &Engine,
    peers: &[Engine],
    subject: &Subject,
    threads: usize,
) -> Result<Value> {
    eprintln!("== {}, {threads} threads", subject.name);
    let task = Task { model: &subject.path, threads, prompt: options.prompt, generate: options.generate };
    let load = machine::load();
    let mut bandwidth: f64 = 0.0;
    let mut own = Vec::new();
    let mut other: Vec<Vec<Speed>> = vec![Vec::new(); peers.len()];
    let (mut isa, mut anonymous) = (Value::Null, Value::Null);
    for _ in 0..options.rounds {
        bandwidth = bandwidth.max(machine::read_bandwidth(threads));
        let report = ours.report(Task { model: &subject.ours, ..task })?;
        own.push(Speed {
            prefill: float(&report, "prefill_tok_s")?,
            decode: float(&report, "decode_tok_s")?,
        });
        (isa, anonymous) = (report["isa"].clone(), report["peak_anon_bytes"].clone());
        for (peer, speeds) in peers.iter().zip(&mut other) {
            // A peer that cannot run a file must not stop ours.
            match peer.speed(task) {
                Ok(speed) => speeds.push(speed),
                Err(why) => eprintln!("   {} {}: {why}", peer.name, peer.flags),
            }
        }
    }
    let (prefill, decode) = (median(own.iter().map(|s| s.prefill)), median(own.iter().map(|s| s.decode)));
    let bytes = subject.bytes(options.prompt + options.generate / 2);
    let mut names: Vec<&str> = peers.iter().map(|p| p.name).collect();
    names.dedup();
    let peers: Vec<Value> = names
        .into_iter()
        .map(|name| {
            let of_name = || peers.iter().zip(&other).filter(move |(p, s)| p.name == name && !s.is_empty());
            let best = |figure: fn(&Speed) -> f64| {
                let runs = of_name().map(|(peer, speeds)| (median(speeds.iter().map(figure)), peer, speeds));
                let (value, peer, speeds) = runs.max_by(|a, b| a.0.total_cmp(&b.0))?;
                let ratio = median(own.iter().zip(speeds).map(|(own, peer)| figure(own) / figure(peer)));
                Some(json!({"tok_s": value, "flags": peer.flags, "ratio": ratio}))
            };
            json!({"name": name, "prefill": best(|s| s.prefill), "decode": best(|s| s.decode)})
        })
        .collect();
    Ok(json!({
        "model": subject.name, "threads": threads, "isa": isa, "load_average": load,
        "prefill_tok_s": prefill, "decode_tok_s": decode,
        "prefill_runs": own.iter().map(|s| s.prefill).collect::<Vec<_>>(),
        "decode_runs": own.iter().map(|s| s.decode).collect::<Vec<_>>(),
        "bytes_per_token": bytes, "read_bytes_per_s": bandwidth, "roofline_share": bytes * decode / bandwidth,
        "peak_anon_bytes": anonymous, "peers": peers,
    }))
}

fn busy_row(options: &Options, ours: &Engine, subject: &Subject) -> Result<Value> {
    eprintln!("== {}, one core busy", subject.name);
    let load = machine::load();
    let task = |threads| Task { model: &subject.ours, threads, prompt: 64, generate: options.generate };
    let (mut free, mut busy) = (Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        free.push(ours.speed(task(1))?.decode);
        let _busy = machine::Busy::start()?;
        busy.push(ours.speed(task(2))?.decode);
    }
    let ratio = median(free.iter().zip(&busy).map(|(free, busy)| busy / free));
    let (free, busy) = (median(free.into_iter()), median(busy.into_iter()));
    Ok(json!({
        "model": subject.name, "load_average": load,
        "one_thread_free_tok_s": free, "two_threads_busy_tok_s": busy, "ratio": ratio,
    }))
}

fn long_row(options: &Options, ours: &Engine, subject: &Subject) -> Result<Value> {
    eprintln!("== {}, long context", subject.name);
    let load = machine::load();
    let threads = options.threads.iter().copied().max().unwrap_or(1);
    let task = |prompt| Task { model: &subject.ours, threads, prompt, generate: options.generate };
    let (mut short, mut long) = (Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        short.push(ours.speed(task(SHORT_CONTEXT))?.decode);
        long.push(ours.speed(task(LONG_CONTEXT))?.decode);
    }
    let ratio = median(short.iter().zip(&long).map(|(short, long)| long / short));
    Ok(json!({
        "model": subject.name, "threads": threads, "load_average": load,
        "short_tok_s": median(short.into_iter()), "long_tok_s": median(long.into_iter()), "ratio": ratio,
        "bytes_ratio": subject.bytes(SHORT_CONTEXT) / subject.bytes(LONG_CONTEXT),
    }))
}

fn load_row(options: &Options, ours: &Engine, pannier: &PathBuf, subject: &Subject) -> Result<Value> {
    eprintln!("== {}, loading", subject.name);
    let load = machine::load();
    let threads = options.threads.iter().copied().max().unwrap_or(1);
    // It reads the file once before, and tells the memory of this context.
    let task = Task { model: &subject.ours, threads, prompt: options.prompt, generate: options.generate };
    let anonymous = float(&ours.report(task)?, "peak_anon_bytes")?;
    let (mut total, mut loading, mut prefill) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..options.rounds.max(3) {
        let mut command = Command::new(pannier);
        command.args(["run", "-p", "The capital of France is", "-n", "1", "--json", "--ctx", "1024"]);
        command.args(["-t", &threads.to_string(), "-m"]).arg(&subject.ours);
        let start = Instant::now();
        let report = engines::json(&mut command)?;
        total.push(start.elapsed().as_secs_f64() * 1e3);
        loading.push(float(&report["stats"], "load_ms")?);
        prefill.push(float(&report["stats"], "prefill_ms")?);
    }
    // What was promised for the same context.
    let mut plan = Command::new(pannier);
    plan.args(["plan", "--json", "--ctx", &(options.prompt + options.generate).to_string()]);
    plan.args(["-t", &threads.to_string(), "-m"]).arg(&subject.ours);
    let plan = engines::json(&mut plan).unwrap_or(Value::Null);
    let promised = Some((plan["kv_bytes"].as_f64(), plan["scratch_bytes"].as_f64()));
    let promised = promised.and_then(|(kv, scratch)| Some(kv? + scratch?));
    Ok(json!({
        "model": subject.name, "threads": threads, "load_average": load,
        "file_bytes": std::fs::metadata(&subject.ours).map_or(0, |m| m.len()),
        "process_ms": median(total.into_iter()), "load_ms": median(loading.into_iter()),
        "prefill_ms": median(prefill.into_iter()),
        "peak_anon_bytes": anonymous, "kv_and_scratch_bytes": promised,
    }))
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let at = |i: usize| values.get(i).copied().unwrap_or(f64::NAN);
    let half = values.len() / 2;
    if values.len() % 2 == 1 { at(half) } else { (at(half.wrapping_sub(1)) + at(half)) / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read() {
        let parse = |line: &str| parse(lexopt::Parser::from_args(line.split(' '))).map(Option::unwrap);
        let o = parse("--threads 1,4 --peer a.gguf --gen 8 --peer-command x b.gguf").unwrap();
        assert_eq!((o.threads, o.generate, o.rounds), (vec![1, 4], 8, 3));
        assert_eq!(
            (o.models, o.peer_commands),
            (vec!["a.gguf".to_owned(), "b.gguf".into()], vec!["x".to_owned()])
        );
        assert!(o.peer && o.table && !o.busy);
        for wrong in ["--threads 0", "--threads x", "--gen 1", "--what", "--rounds"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn medians() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0].into_iter()), 2.5);
        assert!(median(std::iter::empty()).is_nan());
    }
}
