//! What speculation brings: `cargo run --release -p pannier --example speculation -- COMMAND MODEL [options]`
//!
//! ```text
//! curve MODEL     guesses of known quality: speed against acceptance     --rates 0,50,78,100  --lens 5  --tokens 48
//! prompts MODEL   answers to a file of prompts, with and without         --file benches/prompts/mixed.jsonl  --tokens 64
//!                                                                        --kinds edit,quote  --limit 50
//! coupling MODEL  how often draws of a draft model and the model agree: with one number for both, and at best    --draft FILE --file TEXT
//! all             --threads N  --budget-mb MB  --draft FILE  --mode auto|ngram|draft  --len N  --temp T  --json OUT
//! ```
//!
//! Each answer is made with and without guesses, in turns, and the tokens are compared: a difference ends the program. Speeds are those
//! of decode passes; the first token, which belongs to the prompt, is left out.

#![allow(clippy::unwrap_used, reason = "a program for measurements")]

use pannier::model::{Forward, Outputs};
use pannier::sampling::{Distribution, Sampler, SamplerOptions};
use pannier::session::{ChatOptions, Completion, GenerationOptions, Model};
use pannier::speculate::{Proposer, Scripted, Speculation};
use pannier::{CancelFlag, DraftOptions, LoadOptions};
use serde_json::{Value, json};
use std::ops::ControlFlow;
use std::sync::Arc;

struct Options(Vec<String>);

impl Options {
    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().position(|a| a == name).and_then(|i| self.0.get(i + 1)).map(String::as_str)
    }

    fn number<T: std::str::FromStr>(&self, name: &str) -> Option<T> {
        self.get(name).and_then(|text| text.parse().ok())
    }

    fn list<T: std::str::FromStr>(&self, name: &str, default: &str) -> Vec<T> {
        self.get(name)
            .unwrap_or(default)
            .split(',')
            .filter(|n| !n.is_empty())
            .filter_map(|n| n.parse().ok())
            .collect()
    }
}

fn main() {
    let options = Options(std::env::args().skip(1).collect());
    let (Some(command), Some(path)) = (options.0.first(), options.0.get(1)) else {
        eprintln!("see the head of examples/speculation.rs");
        std::process::exit(2);
    };
    let load = LoadOptions {
        threads: options.number("--threads"),
        budget_bytes: options.number::<u64>("--budget-mb").map(|mb| mb << 20),
        context: Some(options.number("--ctx").unwrap_or(2048)),
        draft: options.get("--draft").filter(|_| command != "coupling").map(DraftOptions::new),
        speculation: Some(Speculation::Off),
        ..LoadOptions::default()
    };
    let model = Model::load(path, &load, &mut |_| {}).unwrap();
    let report = match command.as_str() {
        "curve" => curve(&model, &options),
        "prompts" => prompts(&model, &options),
        "coupling" => coupling(&model, &options),
        other => panic!("no command {other}"),
    };
    if let Some(out) = options.get("--json") {
        std::fs::write(out, serde_json::to_string_pretty(&report).unwrap() + "\n").unwrap();
    }
}

/// Tokens per second of decode passes, made of what was measured in several answers.
#[derive(Default, Clone, Copy)]
struct Tally {
    tokens: usize,
    seconds: f64,
    passes: usize,
    proposed: usize,
    accepted: usize,
    flash: u64,
}

impl Tally {
    fn add(&mut self, done: &Completion) {
        self.tokens += done.stats.generated_tokens.saturating_sub(1);
        self.seconds += done.stats.decode_time.as_secs_f64();
        self.passes += done.stats.decode_passes;
        self.proposed += done.stats.speculation.proposed_tokens;
        self.accepted += done.stats.speculation.accepted_tokens;
        self.flash += done.stats.decode_flash_bytes.unwrap_or(0);
    }

    fn speed(&self) -> f64 {
        self.tokens as f64 / self.seconds
    }

    fn per_pass(&self) -> f64 {
        self.tokens as f64 / self.passes as f64
    }

    fn json(&self) -> Value {
        json!({
            "tokens": self.tokens, "tok_s": self.speed(), "passes": self.passes, "tokens_per_pass": self.per_pass(),
            "proposed": self.proposed, "accepted": self.accepted,
            "flash_mb_per_token": self.flash as f64 / 1e6 / self.tokens as f64,
        })
    }
}

/// What a model would draw from at each place of a text.
fn distributions(model: &Model, ids: &[u32], sampler: &SamplerOptions) -> Vec<Distribution> {
    let vocab = model.vocab();
    let mut sampler = Sampler::new(sampler.clone(), vocab).unwrap();
    let cancel = CancelFlag::new();
    let done = model.with_forward(&cancel, |forward| {
        let mut seq = forward.new_seq()?;
        let mut all = Vec::new();
        for ids in ids.chunks(32) {
            for row in forward.step(&mut seq, ids, Outputs::All, &cancel)?.chunks_exact(vocab) {
                all.push(sampler.distribution(row)?.clone());
            }
        }
        Ok(all)
    });
    done.unwrap()
}

/// Probability that one uniform number stands for the same token in both.
fn agreement(p: &Distribution, q: &Distribution) -> f64 {
    let (mut sum, mut p_end, mut q_end) = (0.0f64, 0.0f64, 0.0f64);
    let mut others = q.iter().peekable();
    for (id, width) in p.iter() {
        let p_from = p_end;
        p_end += width;
        while let Some((_, width)) = others.next_if(|other| other.0 < id) {
            q_end += width;
        }
        if let Some((_, width)) = others.next_if(|other| other.0 == id) {
            sum += (p_end.min(q_end + width) - p_from.max(q_end)).max(0.0);
            q_end += width;
        }
    }
    sum
}

fn coupling(model: &Arc<Model>, options: &Options) -> Value {
    let load =
        LoadOptions { threads: options.number("--threads"), context: Some(2048), ..LoadOptions::default() };
    let draft = Model::load(options.get("--draft").unwrap(), &load, &mut |_| {}).unwrap();
    let text = std::fs::read_to_string(options.get("--file").unwrap()).unwrap();
    let mut ids = model.tokenizer().unwrap().encode_rendered(&text);
    ids.truncate(options.number("--tokens").unwrap_or(400));
    let mut rows = Vec::new();
    println!("sampler                 one number  at best");
    for (name, sampler) in [
        ("temperature 0.8, filtered", SamplerOptions::default()),
        ("temperature 1, filtered", SamplerOptions { temperature: 1.0, ..SamplerOptions::default() }),
        ("temperature 1, unfiltered", SamplerOptions::unfiltered()),
    ] {
        let (p, q) = (distributions(model, &ids, &sampler), distributions(&draft, &ids, &sampler));
        let mean = |f: &dyn Fn(&Distribution, &Distribution) -> f64| {
            p.iter().zip(&q).map(|(p, q)| f(p, q)).sum::<f64>() / p.len() as f64
        };
        let ours = mean(&agreement);
        let best = mean(&|p, q| p.iter().map(|(id, p)| p.min(q.prob(id))).sum());
        println!("{name:25}  {ours:.4}  {best:.4}");
        rows.push(json!({ "sampler": name, "one_number": ours, "best": best }));
    }
    json!({ "coupling": rows, "tokens": ids.len() })
}

fn curve(model: &Arc<Model>, options: &Options) -> Value {
    let n = options.number("--tokens").unwrap_or(48);
    let ids: Vec<u32> = (0..32).map(|i| ((i * 7919 + 1) % model.vocab()) as u32).collect();
    let wish = GenerationOptions { ignore_eog: true, ..GenerationOptions::greedy(n) };
    let run = |wish: GenerationOptions| {
        model.session().generate(ids.as_slice(), wish, &mut |_| ControlFlow::Continue(())).unwrap()
    };
    // Pages are touched, clocks are up.
    run(GenerationOptions { max_tokens: Some(8), ..wish.clone() });
    let expected = run(wish.clone());
    let text: Arc<[u32]> = ids.iter().copied().chain(expected.ids()).collect();
    let mut rows = Vec::new();
    println!("right  len  tokens/pass  tok/s     off tok/s  gain   flash MB/token");
    for len in options.list::<usize>("--lens", "5") {
        for rate in options.list::<u32>("--rates", "0,50,60,70,78,90,100") {
            let (mut plain, mut guessed) = (Tally::default(), Tally::default());
            let (text, vocab) = (Arc::clone(&text), model.vocab());
            let right = f64::from(rate) / 100.0;
            let script = Speculation::Custom(Arc::new(move || -> Box<dyn Proposer> {
                Box::new(Scripted::new(Arc::clone(&text), vocab, right, 5))
            }));
            for _ in 0..options.number("--reps").unwrap_or(1) {
                plain.add(&run(wish.clone()));
                let done = run(GenerationOptions {
                    speculation: Some(script.clone()),
                    draft_len: Some(len),
                    ..wish.clone()
                });
                assert!(done.ids().eq(expected.ids()), "other tokens");
                guessed.add(&done);
            }
            let gain = guessed.speed() / plain.speed();
            println!(
                "{rate:4}%  {len:3}  {:11.2}  {:8.2}  {:9.2}  {gain:5.2}  {:.1} (off {:.1})",
                guessed.per_pass(),
                guessed.speed(),
                plain.speed(),
                guessed.flash as f64 / 1e6 / guessed.tokens as f64,
                plain.flash as f64 / 1e6 / plain.tokens as f64,
            );
            rows.push(json!({ "right_percent": rate, "len": len, "gain": gain, "off": plain.json(), "on": guessed.json() }));
        }
    }
    json!({ "curve": rows })
}

fn prompts(model: &Arc<Model>, options: &Options) -> Value {
    let file = options.get("--file").unwrap_or("benches/prompts/mixed.jsonl");
    let n = options.number("--tokens").unwrap_or(64);
    let temperature = options.number("--temp").unwrap_or(0.0);
    let kinds: Vec<String> = options.list("--kinds", "");
    let speculation = match options.get("--mode").unwrap_or("auto") {
        "auto" => Speculation::Auto,
        "ngram" => Speculation::Ngram,
        "draft" => Speculation::Draft,
        other => panic!("no mode {other}"),
    };
    let sampler = SamplerOptions { temperature, seed: Some(7), ..SamplerOptions::default() };
    let wish = GenerationOptions { max_tokens: Some(n), sampler, ..GenerationOptions::default() };
    let guessing = GenerationOptions {
        speculation: Some(speculation),
        draft_len: options.number("--len"),
        ..wish.clone()
    };
    let answer = |prompt: &str, wish: &GenerationOptions| {
        let chat = model.chat(ChatOptions::default()).unwrap();
        chat.send(prompt, wish.clone(), &mut |_| ControlFlow::Continue(())).unwrap()
    };
    let text = std::fs::read_to_string(file).unwrap();
    let all: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let wanted = |p: &&Value| kinds.is_empty() || kinds.iter().any(|k| p["kind"] == k.as_str());
    answer("Say hello.", &wish);
    let mut by_kind: std::collections::BTreeMap<String, (Tally, Tally)> = Default::default();
    let mut rows = Vec::new();
    let limit = options.number("--limit").unwrap_or(usize::MAX);
    for (index, prompt) in all.iter().filter(wanted).take(limit).enumerate() {
        let (kind, text) = (prompt["kind"].as_str().unwrap(), prompt["prompt"].as_str().unwrap());
        let (mut plain, mut guessed) = (Tally::default(), Tally::default());
        // Off, on, on, off: what drifts slowly hits both.
        for turn in 0..2 {
            for on in [turn != 0, turn == 0] {
                let done = answer(text, if on { &guessing } else { &wish });
                let tally = if on { &mut guessed } else { &mut plain };
                tally.add(&done);
                rows_match(&mut rows, index, kind, &done, on);
            }
        }
        if guessed.tokens == 0 {
            continue;
        }
        println!(
            "{index:3} {kind:6} {:4} tokens  off {:7.2}  on {:7.2}  gain {:5.3}  {:.2} tokens/pass, {} of {} right",
            plain.tokens / 2,
            plain.speed(),
            guessed.speed(),
            guessed.speed() / plain.speed(),
            guessed.per_pass(),
            guessed.accepted,
            guessed.proposed,
        );
        for key in [kind, "all"] {
            let entry = by_kind.entry(key.to_owned()).or_default();
            for (sum, new) in [(&mut entry.0, plain), (&mut entry.1, guessed)] {
                sum.tokens += new.tokens;
                sum.seconds += new.seconds;
                sum.passes += new.passes;
                sum.proposed += new.proposed;
                sum.accepted += new.accepted;
                sum.flash += new.flash;
            }
        }
        if let Some(row) = rows.last_mut().and_then(Value::as_object_mut) {
            row.insert("gain".into(), json!(guessed.speed() / plain.speed()));
            row.insert("off".into(), plain.json());
            row.insert("on".into(), guessed.json());
        }
    }
    let kinds: serde_json::Map<String, Value> = by_kind
        .iter()
        .map(|(kind, (plain, guessed))| {
            let gain = guessed.speed() / plain.speed();
            println!(
                "{kind:6} off {:.2}, on {:.2} tok/s: {gain:.3}; {:.2} tokens/pass, {} of {} guesses right",
                plain.speed(),
                guessed.speed(),
                guessed.per_pass(),
                guessed.accepted,
                guessed.proposed
            );
            (kind.clone(), json!({ "gain": gain, "off": plain.json(), "on": guessed.json() }))
        })
        .collect();
    json!({ "kinds": kinds, "prompts": rows })
}

/// The first answer to a prompt is kept; the others must be the same.
fn rows_match(rows: &mut Vec<Value>, index: usize, kind: &str, done: &Completion, on: bool) {
    let ids: Vec<u32> = done.ids().collect();
    match rows.iter().find(|row| row["index"] == index) {
        None => rows.push(json!({ "index": index, "kind": kind, "ids": ids })),
        Some(row) => assert!(row["ids"] == json!(ids), "prompt {index}: other tokens with guesses: {on}"),
    }
}
