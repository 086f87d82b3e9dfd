//! One configuration, planned and measured: `measure MODEL [--budget-mb N] [--ctx N] [--threads N] [--prompt N] [--gen N]
//! [--policy NAME] [--no-prefetch] [--guess] [--mapped] [--sampled]`. One JSON object on stdout.

use pannier::CancelFlag;
use pannier::memory::{Accountant, MemoryProbe, SystemMemory};
use pannier::model::{Forward, ModelOptions, Outputs, Runner, RunnerOptions};
use pannier::plan::{self, DeviceProfile, Plan, PlanWish};
use pannier::pool::Pool;
use pannier::residency::{ResidencyPlan, StreamOptions, policy};
use pannier_gguf::Gguf;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let mut path = String::new();
    let (mut budget, mut ctx, mut threads, mut prompt, mut generate) =
        (None, 512usize, 2usize, 64usize, 32usize);
    let (mut mapped, mut sampled) = (false, false);
    let mut stream = StreamOptions::default();
    while let Some(arg) = args.next() {
        let mut number = || -> Result<usize, Box<dyn Error>> { Ok(args.next().ok_or("a number")?.parse()?) };
        match arg.as_str() {
            "--budget-mb" => budget = Some((number()? as u64) << 20),
            "--ctx" => ctx = number()?,
            "--threads" => threads = number()?,
            "--prompt" => prompt = number()?,
            "--gen" => generate = number()?,
            "--policy" => {
                let name = args.next().ok_or("a policy")?;
                let known = policy::POLICIES.iter().find(|entry| entry.name == name);
                stream.policy = known.ok_or("no such policy")?.name;
            }
            "--no-prefetch" => stream.prefetch = false,
            "--guess" => stream.guess = true,
            "--mapped" => mapped = true,
            "--sampled" => sampled = true,
            _ => path = arg,
        }
    }
    let pool = Arc::new(Pool::new(threads));
    let gguf = Arc::new(Gguf::open(&path)?);
    let wish = PlanWish { budget: budget.filter(|_| !mapped), chunk: None, threads, ..PlanWish::default() };
    let options = ModelOptions { context: Some(ctx), ..ModelOptions::default() };
    let (blueprint, _) = plan::prepare(&gguf, &options, &wish)?;
    let device = DeviceProfile::measured(&*pool, Some(&blueprint))?;
    let plan = Plan::new(&blueprint, &device, &PlanWish { budget: wish.budget.or(Some(1 << 50)), ..wish })?;

    let peak = Arc::new(AtomicU64::new(0));
    let done = Arc::new(AtomicBool::new(false));
    let sampler = std::thread::spawn({
        let (peak, done) = (Arc::clone(&peak), Arc::clone(&done));
        move || {
            while !done.load(Ordering::Relaxed) {
                let anonymous = SystemMemory.read().map_or(0, |reading| reading.anonymous);
                peak.fetch_max(anonymous, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    });
    let accountant = Accountant::new(wish.budget);
    let _rest = plan.reserve_rest(&accountant, 0)?;
    let start = Instant::now();
    let residency: ResidencyPlan = plan.residency.clone();
    let loaded = Arc::new(blueprint.load(residency, &stream, &accountant)?);
    let load = start.elapsed().as_secs_f64();
    let run = RunnerOptions { chunk: plan.chunk, ..RunnerOptions::default() };
    let mut runner = Runner::new(Arc::clone(&loaded), pool, &run, &accountant)?;
    let cancel = CancelFlag::new();
    let mut seq = runner.new_seq()?;
    let vocab = runner.vocab() as u64;
    let ids: Vec<u32> = (0..prompt as u64).map(|i| ((i * 7919 + 1) % vocab) as u32).collect();
    let start = Instant::now();
    let logits = runner.step(&mut seq, &ids, Outputs::Last, &cancel)?;
    let mut token = best(logits);
    let prefill = start.elapsed().as_secs_f64();
    let before = loaded.weights().flash();
    let faults = major_faults();
    let mut times = Vec::new();
    let mut hash = 0u64;
    for step in 0..generate as u64 {
        let start = Instant::now();
        let logits = runner.step(&mut seq, &[token], Outputs::Last, &cancel)?;
        token = if sampled { ((step * 104_729 + 17) % vocab) as u32 } else { best(logits) };
        hash = logits.iter().fold(hash, |h, x| h.rotate_left(5) ^ u64::from(x.to_bits()));
        times.push(start.elapsed().as_secs_f64());
    }
    let flash = loaded.weights().flash().since(&before);
    let faults = major_faults() - faults;
    done.store(true, Ordering::Relaxed);
    let _ = sampler.join();
    let total: f64 = times.iter().sum();
    times.sort_by(f64::total_cmp);
    let tokens = generate.max(1) as f64;
    let report = serde_json::json!({
        "model": std::path::Path::new(&path).file_name().map(|n| n.to_string_lossy()),
        "budget_mb": budget.map(|b| b >> 20),
        "mapped": plan.residency.mapped,
        "decode_tok_s": tokens / total,
        "decode_median_tok_s": 1.0 / times.get(times.len() / 2).copied().unwrap_or(f64::NAN),
        "predicted_decode_tok_s": plan.decode_tok_s,
        "prefill_tok_s": prompt as f64 / prefill,
        "predicted_prefill_tok_s": plan.prefill_tok_s,
        "load_s": load,
        "flash_bytes_per_token": flash.bytes as f64 / tokens,
        "planned_bytes_per_token": plan.streamed_bytes_per_token,
        "reads_per_token": flash.reads as f64 / tokens,
        "mean_read": flash.bytes as f64 / flash.reads.max(1) as f64,
        "waited_ms_per_token": flash.waited_nanos as f64 / 1e6 / tokens,
        "guesses_per_token": flash.guesses as f64 / tokens,
        "right_guesses_per_token": flash.right_guesses as f64 / tokens,
        "expert_hit_rate": flash.expert_hit_rate(),
        "expected_hit_rate": plan.expert_hit_rate,
        "major_faults_per_token": faults as f64 / tokens,
        "peak_anon": peak.load(Ordering::Relaxed),
        "predicted_peak": plan.peak_bytes,
        "accounted_peak": accountant.peak(),
        "other_bytes": plan.other_bytes,
        "pinned": plan.residency.pinned_bytes,
        "streamed": plan.residency.streamed_bytes,
        "buffers": plan.residency.buffers,
        "buffer_bytes": plan.residency.buffer_bytes,
        "slots": plan.residency.slots,
        "experts": plan.residency.experts,
        "slot_bytes": plan.residency.slot_bytes,
        "chunk": plan.chunk,
        "bound_by": plan.bound_by.name(),
        "logits_hash": format!("{hash:016x}"),
        "device": device,
    });
    println!("{report}");
    Ok(())
}

fn best(logits: &[f32]) -> u32 {
    logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(index, _)| index as u32)
}

/// Field 12 of `/proc/self/stat`; 0 elsewhere.
fn major_faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    rest.split_whitespace().nth(9).and_then(|n| n.parse().ok()).unwrap_or(0)
}
