//! `pannier replay`: a cache policy on a recorded routing trace.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use pannier::model::{Blueprint, ModelOptions};
use pannier::residency::{RouteTrace, ScanPolicy, policy, replay, scan};
use pannier_gguf::Gguf;
use serde::Serialize;

use crate::error::{CliError, Result};
use crate::input;
use crate::output::{self, Output};

#[derive(Args)]
#[command(after_help = "\
Examples:
  pannier replay trace.csv --cache-mb 2000
  pannier replay trace.csv --cache-mb 2000 --policy lru --json
  pannier replay model.gguf --cache-mb 2000 --policy lru

Policies: reuse (the default), nextvisit, lfu, lru, random, and belady, which knows the future and so is the limit. Prefill warms the
cache, decode is counted.

Dense weights need no trace, every token uses all of them: with a GGUF file, policies are pinned (the default), lru and random, hits are
a share of bytes, uses are units.

JSON: policy, cache_bytes, slots, tokens, uses, hits, hit_rate, flash_bytes_per_token, notes.")]
pub struct ReplayArgs {
    /// A trace, as `pannier run --trace-routes FILE` and the field's recorders write it; or a model, for its dense weights.
    #[arg(value_name = "TRACE.csv")]
    trace: PathBuf,

    /// Size of the cache in MiB.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    cache_mb: u64,

    /// What to keep.
    #[arg(long, value_name = "POLICY")]
    policy: Option<String>,
}

#[derive(Serialize)]
struct Report {
    policy: String,
    cache_bytes: u64,
    slots: u32,
    tokens: u64,
    uses: u64,
    hits: u64,
    hit_rate: f64,
    flash_bytes_per_token: f64,
    notes: Vec<String>,
}

pub fn run(args: &ReplayArgs, out: &mut Output) -> Result<()> {
    let cache_bytes = args.cache_mb << 20;
    if is_model(&args.trace) {
        return dense(args, cache_bytes, out);
    }
    let trace = RouteTrace::parse(&input::text_file(&args.trace)?)
        .map_err(|e| CliError::failed(format!("{}: {e}", args.trace.display())))?;
    let name = args.policy.as_deref().unwrap_or(policy::POLICIES[0].name);
    let found = replay(&trace, cache_bytes, name).ok_or_else(|| {
        let names: Vec<&str> = policy::POLICIES.iter().map(|entry| entry.name).collect();
        CliError::failed(format!("no policy {name:?}; there are {} and belady", names.join(", ")))
    })?;
    let mut notes = Vec::new();
    if found.smaller_than_pass {
        notes.push(format!(
            "{} slots, but one token uses {} experts: every expert is evicted before its layer runs again by lru, which then \
             hits nothing",
            found.slots,
            trace.used * trace.layers
        ));
    }
    let report = Report {
        policy: name.to_owned(),
        cache_bytes,
        slots: found.slots,
        tokens: found.tokens,
        uses: found.uses,
        hits: found.hits,
        hit_rate: found.hit_rate(),
        flash_bytes_per_token: found.flash_bytes_per_token(),
        notes,
    };
    out.object(&report)?;
    out.line(&format!(
        "{} of {} uses hit ({:.1}%), {} read per token; {} slots, {} tokens",
        report.hits,
        report.uses,
        100.0 * report.hit_rate,
        output::bytes(report.flash_bytes_per_token as u64),
        report.slots,
        report.tokens
    ))?;
    report.notes.iter().try_for_each(|note| out.line(&format!("note: {note}")))
}

/// By its first bytes: a trace is text.
fn is_model(path: &Path) -> bool {
    let mut magic = [0; 4];
    let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    read.is_ok() && &magic == b"GGUF"
}

/// The dense weights of a model, which every token reads in the same order.
fn dense(args: &ReplayArgs, cache_bytes: u64, out: &mut Output) -> Result<()> {
    let name = args.policy.as_deref().unwrap_or(ScanPolicy::ALL[0].0);
    let policy = ScanPolicy::by_name(name).ok_or_else(|| {
        let names: Vec<&str> = ScanPolicy::ALL.iter().map(|(name, _)| *name).collect();
        CliError::failed(format!("no policy {name:?} for dense weights; there are {}", names.join(", ")))
    })?;
    let model = Blueprint::read(Arc::new(Gguf::open(&args.trace)?), &ModelOptions::default())?;
    let found = scan(model.layout(), cache_bytes, policy);
    let report = Report {
        policy: name.to_owned(),
        cache_bytes,
        slots: 0,
        tokens: 1,
        uses: found.units as u64,
        hits: (found.hit_rate() * found.units as f64).round() as u64,
        hit_rate: found.hit_rate(),
        flash_bytes_per_token: found.read_per_pass,
        notes: vec![format!("{} of dense weights in {} units", output::bytes(found.bytes), found.units)],
    };
    out.object(&report)?;
    out.line(&format!(
        "{:.1}% of the bytes are there, {} read per token; {}",
        100.0 * report.hit_rate,
        output::bytes(report.flash_bytes_per_token as u64),
        report.notes.join("; ")
    ))
}
