//! Facts hidden in a long text, asked for after a policy has forgotten most of it.
//!
//! `cargo run --release -p pannier --example needle -- MODEL.gguf [TOKENS …] [POLICY …]` prints a table of how many facts are still found.
//!
//! The text is generated: sentences without meaning, and at five depths a sentence with a code. Each question is appended to a
//! fork of the text that was read; all but its last tokens are read, the policy forgets, and the answer is generated greedily. An answer
//! counts if it contains the code. Policies of equal size are compared: 4 + 1024 + 512 heavy hitters against a window of 1540 and chosen pages of
//! 1536. Policies that forget share a text that was read with all of it in sight; with chosen pages the text itself is read so.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a tool for developers may panic")]

use pannier::kv::{KvOptions, KvPolicy};
use pannier::memory::Accountant;
use pannier::model::{Forward, LoadedModel, ModelOptions, Outputs, Runner, RunnerOptions};
use pannier::pool::{Pool, SystemCpus, default_threads};
use pannier::{CancelFlag, Result};
use pannier_gguf::Gguf;
use pannier_tokenizer::{DecodeOptions, EncodeOptions, Tokenizer};
use std::sync::Arc;

const PLACES: [&str; 10] =
    ["Lisbon", "Oslo", "Cairo", "Lima", "Hanoi", "Quito", "Dakar", "Minsk", "Sofia", "Tunis"];
const NOUNS: [&str; 12] = [
    "the gardener",
    "an old clock",
    "the river",
    "a merchant",
    "the library",
    "a grey horse",
    "the teacher",
    "a small boat",
    "the orchard",
    "a painter",
    "the mill",
    "a letter",
];
const VERBS: [&str; 8] =
    ["waits for", "remembers", "passes by", "belongs to", "looks at", "leans on", "speaks of", "follows"];
const ENDS: [&str; 6] =
    ["in the morning", "without a sound", "every summer", "near the bridge", "after the rain", "for a while"];
const DEPTHS: [f64; 5] = [0.1, 0.3, 0.5, 0.7, 0.9];

/// The same texts on every machine.
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

struct Hay {
    tokens: Vec<u32>,
    facts: Vec<(&'static str, String)>,
}

fn hay(tokenizer: &Tokenizer, length: usize, seed: u64) -> Hay {
    let mut draw = Draw(seed);
    let encode =
        |text: &str, add_special| tokenizer.encode(text, EncodeOptions { add_special, parse_special: false });
    let mut tokens = encode("Remember the access codes in this text.\n", true);
    let mut facts = Vec::new();
    while tokens.len() < length {
        if facts.len() < DEPTHS.len() && tokens.len() as f64 >= DEPTHS[facts.len()] * length as f64 {
            let place = PLACES[(seed as usize * DEPTHS.len() + facts.len()) % PLACES.len()];
            let code = (10_000 + draw.below(90_000)).to_string();
            tokens.extend(encode(&format!(" The access code of {place} is {code}."), false));
            facts.push((place, code));
        }
        let (a, b) = (NOUNS[draw.below(NOUNS.len())], NOUNS[draw.below(NOUNS.len())]);
        let (verb, end) = (VERBS[draw.below(VERBS.len())], ENDS[draw.below(ENDS.len())]);
        tokens.extend(encode(&format!(" Here {a} {verb} {b} {end}."), false));
    }
    Hay { tokens, facts }
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let path = args.next().expect("MODEL.gguf [TOKENS …] [POLICY …]");
    let (mut lengths, mut policies) = (Vec::<usize>::new(), Vec::<KvPolicy>::new());
    for arg in args {
        match arg.parse() {
            Ok(length) => lengths.push(length),
            Err(_) => policies.push(arg.parse().unwrap()),
        }
    }
    if lengths.is_empty() {
        lengths = vec![4096, 8192];
    }
    if policies.is_empty() {
        let heavy = KvPolicy::HEAVY_HITTERS;
        let recent = heavy.keeps().unwrap();
        let sinks = KvPolicy::Sinks { sinks: 4, recent: recent - 4 };
        policies = vec![KvPolicy::KeepAll, KvPolicy::Window { recent }, sinks, heavy, KvPolicy::PAGES];
    }
    let gguf = Arc::new(Gguf::open(&path)?);
    let tokenizer = Tokenizer::from_metadata(gguf.metadata())?;
    let context = lengths.iter().max().unwrap() + 256;
    let accountant = Accountant::new(None);
    let model = Arc::new(LoadedModel::new(
        gguf,
        &ModelOptions { context: Some(context), ..ModelOptions::default() },
        &accountant,
    )?);
    let pool = Arc::new(Pool::new(default_threads(&SystemCpus)));
    let runner = |policy| {
        let kv = KvOptions { policy, ..KvOptions::default() };
        let options = RunnerOptions { kv, ..RunnerOptions::default() };
        Runner::new(Arc::clone(&model), Arc::<Pool>::clone(&pool), &options, &accountant)
    };

    let names: Vec<String> = policies.iter().map(ToString::to_string).collect();
    println!("| tokens | depth | {} |\n| --- | --- | {}", names.join(" | "), "--- | ".repeat(policies.len()));
    let (forgetting, choosing): (Vec<usize>, Vec<usize>) =
        (0..policies.len()).partition(|&index| policies[index].reads().is_none());
    for length in lengths {
        let mut found = vec![[0usize; DEPTHS.len()]; policies.len()];
        let seeds = 2;
        for seed in 0..seeds {
            let hay = hay(&tokenizer, length, seed);
            // One reading for all that forget, one for each that chooses.
            let readings = std::iter::once(&forgetting[..]).chain(choosing.chunks(1));
            for indices in readings.filter(|indices| !indices.is_empty()) {
                let first = policies[indices[0]];
                let reads = if first.reads().is_some() { first } else { KvPolicy::HEAVY_HITTERS };
                let mut runner = runner(reads)?;
                let asked: Vec<(usize, KvPolicy)> = indices.iter().map(|&i| (i, policies[i])).collect();
                ask(&mut runner, &tokenizer, &hay, &asked, &mut found)?;
            }
        }
        for (depth, at) in DEPTHS.iter().enumerate() {
            let cells: Vec<String> = found.iter().map(|found| format!("{}/{seeds}", found[depth])).collect();
            println!("| {length} | {at} | {} |", cells.join(" | "));
        }
        let all = seeds as usize * DEPTHS.len();
        let cells: Vec<String> =
            found.iter().map(|found| format!("{}/{all}", found.iter().sum::<usize>())).collect();
        println!("| {length} | all | {} |", cells.join(" | "));
    }
    Ok(())
}

/// Reads a text, asks for each of its facts under each of the policies, and counts for each what is found.
fn ask(
    runner: &mut Runner,
    tokenizer: &Tokenizer,
    hay: &Hay,
    policies: &[(usize, KvPolicy)],
    found: &mut [[usize; DEPTHS.len()]],
) -> Result<()> {
    let tail = hay.tokens.len() - 64;
    let mut base = runner.new_seq()?;
    runner.step(&mut base, &hay.tokens[..tail], Outputs::None, &CancelFlag::new())?;
    for (depth, (place, code)) in hay.facts.iter().enumerate() {
        let question =
            format!("\nQuestion: What is the access code of {place}?\nAnswer: The access code of {place} is");
        let mut asked = hay.tokens[tail..].to_vec();
        asked.extend(tokenizer.encode(&question, EncodeOptions { add_special: false, parse_special: false }));
        let (watched, last) = asked.split_at(asked.len() - 2);
        let mut read = runner.fork(&base)?;
        runner.step(&mut read, watched, Outputs::Last, &CancelFlag::new())?;
        for &(index, policy) in policies {
            let mut seq = runner.fork(&read)?;
            runner.evict_with(&mut seq, policy)?;
            let mut next = last.to_vec();
            let mut answer = Vec::new();
            for _ in 0..12 {
                let logits = runner.step(&mut seq, &next, Outputs::Last, &CancelFlag::new())?;
                let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
                answer.push(best as u32);
                next = vec![best as u32];
            }
            if tokenizer.decode(&answer, DecodeOptions::default()).contains(code.as_str()) {
                found[index][depth] += 1;
            }
        }
    }
    Ok(())
}
