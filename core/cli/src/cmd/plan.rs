//! `pannier plan`: what a model will need and how fast it will be, before it is loaded.

use std::sync::Arc;

use clap::Args;
use pannier::model::{Blueprint, ModelOptions};
use pannier::plan::{DEFAULT_CONTEXT, DeviceProfile, DraftShare, Plan, PlanWish};
use pannier::pool::{Pool, SystemCpus, default_threads};
use pannier::{KvOptions, KvPolicy, KvTypes, WeightPrecision};
use pannier_gguf::Gguf;
use serde::Serialize;

use crate::args::ModelArg;
use crate::engine;
use crate::error::{CliError, Result};
use crate::input;
use crate::output::{self, Output};

#[derive(Args)]
#[command(after_help = "\
Examples:
  pannier plan -m model.gguf --budget-mb 3000
  pannier plan -m model.gguf --device snapdragon-8-gen-3-12gb --json
  pannier plan -m model.gguf --ram 8 --flash 2.4 --dram 67 --gflops 350
  pannier plan --list

Without a device this machine is measured, which takes seconds the first time. No weight is read.

JSON: fits, resident_bytes, streamed_bytes_per_token, kv_bytes, scratch_bytes, other_bytes, peak_bytes, file_backed_bytes,
predicted_decode_tok_s, predicted_prefill_tok_s, bound_by, expert_hit_rate, budget_bytes, context, max_context, prefill_chunk, mapped,
predicted_speculative_tok_s, speculation_gain, speculation_draft_len (with guesses of which 70% are right), device, notes.")]
pub struct PlanArgs {
    #[command(flatten)]
    model: ModelArg,

    /// A phone; --list names them.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["ram", "flash", "dram", "gflops"])]
    device: Option<String>,

    /// List the phones.
    #[arg(long)]
    list: bool,

    /// Memory of a device in GB.
    #[arg(long, value_name = "GB")]
    ram: Option<f64>,

    /// Sequential reads from its flash in GB/s.
    #[arg(long, value_name = "GB/S")]
    flash: Option<f64>,

    /// Its memory bandwidth in GB/s.
    #[arg(long, value_name = "GB/S")]
    dram: Option<f64>,

    /// What its cores compute in prefill, in 1e9 operations per second.
    #[arg(long, value_name = "N")]
    gflops: Option<f64>,

    /// Memory budget in MiB; by default what an app can count on.
    #[arg(long, value_name = "MB", value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    budget_mb: Option<u64>,

    /// Context in tokens; by default what the model was trained with, at most 4096.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    ctx: Option<u32>,

    /// A draft model to guess tokens with: its share of the budget, and its part in the speed.
    #[arg(long, value_name = "FILE|NAME")]
    draft: Option<String>,

    /// Predict decoding behind so many tokens; by default half of the context.
    #[arg(long, value_name = "N")]
    at: Option<usize>,

    /// The most tokens per prefill pass; by default what the budget allows, at most 512.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    chunk: Option<u32>,

    /// Measure this machine anew.
    #[arg(long)]
    remeasure: bool,

    /// Threads.
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,

    /// The view of a file in nested precision to plan for: low, full or auto (which needs what full needs).
    #[arg(long, value_name = "VIEW", default_value_t)]
    precision: WeightPrecision,

    /// Element type of the KV cache: f16, q8, q8-channel, k8v4, k8v4-channel, q4, q4-channel.
    #[arg(long, value_name = "TYPE", default_value_t = KvTypes::F16)]
    kv_type: KvTypes,

    /// What the KV cache may forget, or leave unread, as for the commands that run a model: all, window:N, sinks:FIRST:LAST, heavy, pages:N.
    #[arg(long, value_name = "POLICY", default_value_t = KvPolicy::KeepAll)]
    kv_policy: KvPolicy,
}

#[derive(Serialize)]
struct Report {
    fits: bool,
    resident_bytes: u64,
    streamed_bytes_per_token: u64,
    kv_bytes: u64,
    kv_type: String,
    kv_policy: String,
    scratch_bytes: u64,
    other_bytes: u64,
    peak_bytes: u64,
    file_backed_bytes: u64,
    predicted_decode_tok_s: f64,
    predicted_prefill_tok_s: f64,
    bound_by: &'static str,
    expert_hit_rate: Option<f64>,
    budget_bytes: u64,
    context: usize,
    max_context: usize,
    prefill_chunk: usize,
    mapped: bool,
    predicted_speculative_tok_s: f64,
    speculation_gain: f64,
    speculation_draft_len: usize,
    device: DeviceProfile,
    notes: Vec<String>,
}

pub fn run(args: &PlanArgs, out: &mut Output) -> Result<()> {
    if args.list {
        let phones: Vec<DeviceProfile> = DeviceProfile::phones().collect();
        out.object(&serde_json::json!({ "devices": phones }))?;
        return phones.iter().try_for_each(|phone| out.line(&phone.name));
    }
    let gguf = Arc::new(Gguf::open(input::model_path(&args.model.model)?)?);
    let threads = args.threads.map_or_else(|| default_threads(&SystemCpus), usize::from);
    let view = args.precision.loaded();
    let mut context = args.ctx.map(|n| n as usize);
    let mut model = Blueprint::read(Arc::clone(&gguf), &ModelOptions { context, view })?;
    if context.is_none() && model.spec().context > DEFAULT_CONTEXT {
        context = Some(DEFAULT_CONTEXT);
        model = Blueprint::read(gguf, &ModelOptions { context, view })?;
    }
    let device = device(args, &model, threads)?;
    let budget = args.budget_mb.map_or(device.free, |mb| mb << 20);
    let mut share = DraftShare::default();
    if let Some(draft) = &args.draft {
        let gguf = Arc::new(Gguf::open(input::model_path(draft)?)?);
        let draft_kv = KvOptions { types: args.kv_type, ..KvOptions::default() };
        let draft = Blueprint::read(
            gguf,
            &ModelOptions { context: Some(model.spec().context), ..ModelOptions::default() },
        )?;
        let plan = Plan::new(
            &draft,
            &device,
            &PlanWish {
                budget: Some(1 << 50),
                chunk: Some(128),
                threads,
                kv: draft_kv,
                ..PlanWish::default()
            },
        )?;
        share = plan.as_draft();
    }
    let chunk = args.chunk.map(|n| n as usize);
    let kv = engine::kv_options(args.kv_type, args.kv_policy);
    kv.check()?;
    let wish = PlanWish { budget: Some(budget), chunk, threads, kv, draft: share };
    let plan = Plan::new(&model, &device, &wish)?;
    let report = Report {
        fits: plan.fits,
        resident_bytes: plan.resident_bytes,
        streamed_bytes_per_token: plan.streamed_bytes_per_token,
        kv_bytes: plan.kv_bytes,
        kv_type: plan.kv_types.to_string(),
        kv_policy: kv.policy.to_string(),
        scratch_bytes: plan.scratch_bytes,
        other_bytes: plan.other_bytes,
        peak_bytes: plan.peak_bytes,
        file_backed_bytes: plan.file_backed_bytes,
        predicted_decode_tok_s: args.at.map_or(plan.decode_tok_s, |at| plan.decode_tok_s_at(at)),
        predicted_prefill_tok_s: plan.prefill_tok_s,
        bound_by: plan.bound_by.name(),
        expert_hit_rate: plan.expert_hit_rate,
        budget_bytes: plan.budget,
        context: plan.context,
        max_context: plan.max_context,
        prefill_chunk: plan.chunk,
        mapped: plan.residency.mapped,
        predicted_speculative_tok_s: plan.guessing.decode_tok_s,
        speculation_gain: plan.guessing.gain,
        speculation_draft_len: plan.guessing.draft_len,
        device,
        notes: plan.notes,
    };
    out.object(&report)?;
    out.text(&page(&report))
}

fn device(args: &PlanArgs, model: &Blueprint, threads: usize) -> Result<DeviceProfile> {
    if let Some(name) = &args.device {
        return DeviceProfile::by_name(name).ok_or_else(|| {
            CliError::failed(format!("no device {name:?}; `pannier plan --list` names them"))
        });
    }
    let given = [args.ram, args.flash, args.dram, args.gflops];
    if given.iter().flatten().any(|n| !(*n > 0.0 && *n < 1e6)) {
        return Err(CliError::failed("the numbers of a device are positive"));
    }
    if let [Some(ram), Some(flash), Some(dram), Some(gflops)] = given {
        return Ok(DeviceProfile::custom(
            (ram * (1u64 << 30) as f64) as u64,
            flash * 1e9,
            dram * 1e9,
            gflops,
        ));
    }
    let pool = Pool::new(threads);
    let mut device = if args.remeasure {
        DeviceProfile::measure(&pool, Some(model))?
    } else {
        DeviceProfile::measured(&pool, Some(model))?
    };
    if let Some(ram) = args.ram {
        device.ram = (ram * (1u64 << 30) as f64) as u64;
        device.free = device.ram / 2;
    }
    device.flash_bps = args.flash.map_or(device.flash_bps, |gb| gb * 1e9);
    device.gflops = args.gflops.unwrap_or(device.gflops);
    if let Some(gflops) = args.gflops {
        device.rates.iter_mut().for_each(|rate| rate.gflops = gflops);
    }
    if let Some(dram) = args.dram {
        let factor = dram * 1e9 / device.dram_bps;
        device.decode_bps *= factor;
        device.rates.iter_mut().for_each(|rate| rate.decode_bps *= factor);
        device.dram_bps = dram * 1e9;
    }
    Ok(device)
}

fn page(r: &Report) -> String {
    use std::fmt::Write as _;
    let size = output::bytes;
    let mut page = String::new();
    let where_ = if r.mapped { "mapped" } else { "resident" };
    // Writing to a string does not fail.
    let _ = writeln!(
        page,
        "{} on {} with {}",
        if r.fits { "fits" } else { "does not fit" },
        r.device.name,
        size(r.budget_bytes)
    );
    let _ = writeln!(
        page,
        "weights   {} {where_}, {} streamed per token",
        size(r.resident_bytes),
        size(r.streamed_bytes_per_token)
    );
    let _ = writeln!(
        page,
        "context   {} tokens ({} would fit), KV cache {}",
        r.context,
        r.max_context,
        size(r.kv_bytes)
    );
    let _ =
        writeln!(page, "buffers   {}, prefill {} tokens at a time", size(r.scratch_bytes), r.prefill_chunk);
    let _ = writeln!(
        page,
        "peak      {} anonymous, {} of clean file pages",
        size(r.peak_bytes),
        size(r.file_backed_bytes)
    );
    let _ = writeln!(
        page,
        "speed     prefill {:.1} tokens/s, decode {:.2} tokens/s, bound by {}",
        r.predicted_prefill_tok_s, r.predicted_decode_tok_s, r.bound_by
    );
    if r.speculation_draft_len > 0 {
        let _ = writeln!(
            page,
            "guessing  {:.2} tokens/s ({:.1} times) with {} guesses per pass, if 70% of them are right",
            r.predicted_speculative_tok_s, r.speculation_gain, r.speculation_draft_len
        );
    }
    for note in &r.notes {
        let _ = writeln!(page, "note: {note}");
    }
    page
}
