//! `pannier bench`: speed and memory of a model on this machine.
//!
//! Medians over the repetitions. The file is read once before, so that the page cache is warm, and one short run comes
//! first, so that threads and buffers exist. Decoding takes the most likely token; drawing tokens is not measured.

use std::io::Read;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

use clap::Args;
use pannier::model::{Forward as _, Outputs};
use pannier::residency::FlashStats;
use pannier::{CancelFlag, GenerationOptions, GenerationStats, Speculation};
use serde::Serialize;

use crate::args::{RunArgs, SpeculationArgs};
use crate::engine::{self, Forward, Loaded};
use crate::error::{CliError, Result};
use crate::output::{self, Output};
use crate::process;

#[derive(Args)]
#[command(after_help = "\
Examples:
  pannier bench -m smollm2
  pannier bench -m model.gguf -t 2 --prompt 128 --gen 32 --reps 5 --json

JSON: prefill_tok_s, decode_tok_s, ttft_ms, load_ms, peak_anon_bytes, peak_rss_bytes, flash_bytes_per_token, expert_hit_rate,
reads_per_token, waited_ms_per_token, major_faults_per_token, threads, isa, tokens_per_pass, acceptance_rate, kv_type, kv_policy. What is per token
is of decoding. A figure that this system or model does not have is null.")]
pub struct BenchArgs {
    #[command(flatten)]
    run: RunArgs,

    /// Tokens of the prompt.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    prompt: u32,

    /// Tokens to generate.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    r#gen: u32,

    #[command(flatten)]
    speculation: SpeculationArgs,

    /// Repetitions.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    reps: u32,
}

#[derive(Serialize)]
struct Report {
    prefill_tok_s: f64,
    decode_tok_s: f64,
    ttft_ms: f64,
    load_ms: f64,
    peak_anon_bytes: Option<u64>,
    peak_rss_bytes: Option<u64>,
    flash_bytes_per_token: f64,
    expert_hit_rate: Option<f64>,
    reads_per_token: f64,
    waited_ms_per_token: f64,
    major_faults_per_token: Option<f64>,
    threads: usize,
    isa: String,
    tokens_per_pass: Option<f64>,
    acceptance_rate: Option<f64>,
    kv_type: String,
    kv_policy: String,
}

/// One repetition: times in seconds, and what decoding read.
#[derive(Clone, Copy)]
struct Rep {
    first_token: f64,
    decode: f64,
    flash: FlashStats,
    major_faults: Option<u64>,
}

pub fn run(args: &BenchArgs, out: &mut Output) -> Result<()> {
    let (prompt, generate) = (args.prompt as usize, args.r#gen as usize);
    let mut run = args.run.clone();
    let needed = prompt.saturating_add(generate);
    // The context that is needed and no more, so that its memory is what is reported.
    run.ctx.get_or_insert(u32::try_from(needed).unwrap_or(u32::MAX));
    read_once(&engine::path(&run)?)?;

    let loaded = engine::load_speculating(&run, &args.speculation)?;
    let limit = loaded.model.context();
    if needed > limit {
        return Err(CliError::failed(format!(
            "--prompt {prompt} and --gen {generate} need {needed} tokens, but the context holds {limit}"
        )));
    }
    let bar = output::count_bar(u64::from(args.reps) + 1, "runs");
    let mut peak = process::Peak::default();
    let plain = matches!(args.speculation.mode(), Speculation::Off);
    let reps = loaded.with_forward(|forward, cancel| {
        once(forward, prompt.min(32), generate.min(4), cancel, &mut peak)?;
        bar.inc(1);
        let mut reps = Vec::new();
        for _ in 0..if plain { args.reps } else { 0 } {
            reps.push(once(forward, prompt, generate, cancel, &mut peak)?);
            bar.inc(1);
        }
        Ok(reps)
    })?;
    let (reps, guessed) = if plain { (reps, None) } else { speculate(args, &loaded, &mut peak)? };
    let guessed = guessed.as_ref();
    bar.finish_and_clear();
    // Tokens after the first, which belongs to the prompt.
    let tokens = (u64::from(args.reps) * (generate as u64).saturating_sub(1)).max(1);
    let flash = reps.iter().fold(FlashStats::default(), |sum, rep| sum.plus(&rep.flash));
    let major = reps.iter().map(|rep| rep.major_faults).sum::<Option<u64>>();

    let first_token = median(reps.iter().map(|r| r.first_token));
    let decode = median(reps.iter().map(|r| r.decode));
    let report = Report {
        prefill_tok_s: prompt as f64 / first_token,
        // The first token comes out of the prompt's pass.
        decode_tok_s: if generate > 1 { (generate - 1) as f64 / decode } else { 0.0 },
        ttft_ms: first_token * 1e3,
        load_ms: loaded.load_ms(),
        peak_anon_bytes: peak.anonymous,
        peak_rss_bytes: process::peak_rss(),
        flash_bytes_per_token: guessed
            .and_then(GenerationStats::flash_bytes_per_token)
            .unwrap_or(flash.bytes as f64 / tokens as f64),
        expert_hit_rate: flash.expert_hit_rate(),
        reads_per_token: flash.reads as f64 / tokens as f64,
        waited_ms_per_token: flash.waited_nanos as f64 / 1e6 / tokens as f64,
        major_faults_per_token: major.map(|n| n as f64 / tokens as f64),
        threads: loaded.model.info().threads,
        isa: loaded.model.info().isa.to_lowercase(),
        tokens_per_pass: guessed.and_then(GenerationStats::tokens_per_pass),
        acceptance_rate: guessed.and_then(|stats| stats.speculation.acceptance_rate()),
        kv_type: loaded.model.info().kv_types.to_string(),
        kv_policy: loaded.model.info().kv_policy.to_string(),
    };
    out.text(&page(&report, prompt, generate))?;
    out.object(&report)
}

fn page(r: &Report, prompt: usize, generate: usize) -> String {
    let bytes = |n: Option<u64>| n.map_or("unknown".to_owned(), output::bytes);
    format!(
        "prefill  {:>9.1} tokens/s ({prompt} tokens)\ndecode   {:>9.1} tokens/s ({generate} tokens)\n\
         first token after {:.1} ms, model loaded in {:.1} ms\n\
         peak memory: {} anonymous, {} resident with the mapped file\n{} threads, {}\n",
        r.prefill_tok_s,
        r.decode_tok_s,
        r.ttft_ms,
        r.load_ms,
        bytes(r.peak_anon_bytes),
        bytes(r.peak_rss_bytes),
        r.threads,
        r.isa
    )
}

/// A prompt and its continuation from an empty sequence.
fn once(
    forward: &mut Forward,
    prompt: usize,
    generate: usize,
    cancel: &CancelFlag,
    peak: &mut process::Peak,
) -> Result<Rep> {
    let ids = prompt_ids(prompt, forward.vocab());
    let mut seq = forward.new_seq()?;
    let start = Instant::now();
    let mut next = most_likely(forward.step(&mut seq, &ids, Outputs::Last, cancel)?);
    let first_token = start.elapsed().as_secs_f64();
    peak.look();
    let (flash, faults) = (forward.model().weights().flash(), process::major_faults());
    let start = Instant::now();
    for _ in 1..generate {
        next = most_likely(forward.step(&mut seq, &[next], Outputs::Last, cancel)?);
    }
    let decode = start.elapsed().as_secs_f64();
    peak.look();
    let flash = forward.model().weights().flash().since(&flash);
    let major_faults = faults.and_then(|before| Some(process::major_faults()?.saturating_sub(before)));
    Ok(Rep { first_token, decode, flash, major_faults })
}

/// Ids spread over the vocabulary, so that rows of the embedding are read as a text would.
fn prompt_ids(n: usize, vocab: usize) -> Vec<u32> {
    (0..n).map(|i| ((i * 7919 + 1) % vocab.max(1)) as u32).collect()
}

/// The same with guesses, in sessions of their own. The stats are those of the last repetition.
fn speculate(
    args: &BenchArgs,
    loaded: &Loaded,
    peak: &mut process::Peak,
) -> Result<(Vec<Rep>, Option<GenerationStats>)> {
    let ids = prompt_ids(args.prompt as usize, loaded.model.vocab());
    let options = GenerationOptions { ignore_eog: true, ..GenerationOptions::greedy(args.r#gen as usize) };
    let options = args.speculation.apply(options);
    let (mut reps, mut last) = (Vec::new(), None);
    // The first one is where costs are learned.
    for rep in 0..=args.reps {
        let session = loaded.model.session();
        let read = |loaded: &Loaded| loaded.with_forward(|forward, _| Ok(forward.model().weights().flash()));
        let (faults, flash) = (process::major_faults(), read(loaded)?);
        let done = session.generate(ids.as_slice(), options.clone(), &mut |_| ControlFlow::Continue(()))?;
        peak.look();
        let first_token = done.stats.time_to_first_token.unwrap_or_default().as_secs_f64();
        if rep > 0 {
            let major_faults =
                faults.and_then(|before| Some(process::major_faults()?.saturating_sub(before)));
            let flash = read(loaded)?.since(&flash);
            let decode = done.stats.decode_time.as_secs_f64();
            reps.push(Rep { first_token, decode, flash, major_faults });
        }
        last = Some(done.stats);
    }
    Ok((reps, last))
}

fn most_likely(logits: &[f32]) -> u32 {
    let best = logits.iter().enumerate().fold(
        (0, f32::NEG_INFINITY),
        |best, (i, &x)| {
            if x > best.1 { (i, x) } else { best }
        },
    );
    best.0 as u32
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let n = values.len();
    let at = |i: usize| values.get(i).copied().unwrap_or(f64::NAN);
    if n % 2 == 1 { at(n / 2) } else { (at((n / 2).wrapping_sub(1)) + at(n / 2)) / 2.0 }
}

/// Reads the file, so that what is measured is the engine and not the disk.
fn read_once(path: &Path) -> Result<()> {
    let mut file = std::fs::File::open(path).map_err(|e| CliError::io("open", path, &e))?;
    let mut block = vec![0u8; 1 << 20];
    loop {
        match file.read(&mut block) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            // A directory or worse: loading says what is wrong.
            Err(_) => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), 2.5);
    }
}
