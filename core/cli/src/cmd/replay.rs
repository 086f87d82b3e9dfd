//! `pannier replay`: a cache policy on a recorded routing trace.

use std::path::PathBuf;

use clap::Args;
use pannier::residency::{RouteTrace, policy, replay};
use serde::Serialize;

use crate::error::{CliError, Result};
use crate::input;
use crate::output::{self, Output};

#[derive(Args)]
#[command(after_help = "\
Examples:
  pannier replay trace.csv --cache-mb 2000
  pannier replay trace.csv --cache-mb 2000 --policy lru --json

Policies: reuse (the default), nextvisit, lfu, lru, and belady, which knows the future and so is the limit. Prefill warms the
cache, decode is counted.

JSON: policy, cache_bytes, slots, tokens, uses, hits, hit_rate, flash_bytes_per_token, notes.")]
pub struct ReplayArgs {
    /// A trace, as `pannier run --trace-routes FILE` and the field's recorders write it.
    #[arg(value_name = "TRACE.csv")]
    trace: PathBuf,

    /// Size of the cache in MiB.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    cache_mb: u64,

    /// What to keep.
    #[arg(long, value_name = "POLICY", default_value = policy::POLICIES[0].name)]
    policy: String,
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
    let trace = RouteTrace::parse(&input::text_file(&args.trace)?)
        .map_err(|e| CliError::failed(format!("{}: {e}", args.trace.display())))?;
    let cache_bytes = args.cache_mb << 20;
    let found = replay(&trace, cache_bytes, &args.policy).ok_or_else(|| {
        let names: Vec<&str> = policy::POLICIES.iter().map(|entry| entry.name).collect();
        CliError::failed(format!("no policy {:?}; there are {} and belady", args.policy, names.join(", ")))
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
        policy: args.policy.clone(),
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
