//! `cargo xtask bench --plan`: what `pannier plan` says, against what then happens.
//!
//! ```text
//! for each model, context, budget and bandwidth of flash:
//!     plan   = pannier plan, with the bandwidth of the cage
//!     bench  = pannier bench in the cage; its memory is sampled from outside every 10 ms
//! ```
//!
//! Decoding is compared behind as many tokens as there were, memory with the context full. The machine is measured anew before each run and after
//! it: neighbours of a virtual machine come and go within minutes. The prediction is the mean of both plans, and `drift` is how far apart they are:
//! where that is large, the machine was not one machine.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::engines::{self, float};
use super::machine;
use crate::Result;

/// One line of the table.
struct Configuration {
    model: PathBuf,
    context: u64,
    generate: u64,
    budget_mb: Option<u64>,
    /// What the cage lets it read, in bytes per second.
    read_bps: Option<u64>,
}

/// More memory than there is.
const NO_LIMIT: u64 = 64 << 30;

/// Models that lie in memory, and contexts that they are measured with. Prompts are 32 tokens shorter and at least as long as a chunk of prefill, without
/// which memory would not be full.
const RESIDENT: &[(&str, &[u64])] = &[
    ("models/SmolLM2-135M-Instruct.Q4_1.gguf", &[544, 1024, 2048]),
    ("models/gemma-3-270m-q4_k_m.gguf", &[544, 1024]),
    ("models/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", &[544, 1024, 2048]),
    ("models/qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", &[544, 1024]),
    ("synth/1.1b-q4_k_m.gguf", &[544, 1024]),
    ("synth/moe-2g-q4_k_m.gguf", &[544, 1024]),
];

/// Models that do not fit: budgets in MiB, and bandwidths in MB/s (0 is what the disk gives).
const STREAMED: &[(&str, &[u64], &[u64])] = &[
    ("synth/1.1b-q4_k_m.gguf", &[300, 400, 600], &[0, 300]),
    ("synth/moe-2g-q4_k_m.gguf", &[800, 1200, 1600], &[0, 300]),
    ("synth/7b-q4_k_m.gguf", &[2400], &[0]),
];

fn configurations(cache: &Path) -> (Vec<Configuration>, Vec<String>) {
    let (mut all, mut absent) = (Vec::new(), Vec::new());
    let mut find = |name: &str| {
        let path = cache.join(name);
        let there = path.is_file();
        if !there {
            absent.push(format!("left out, not there: {}", name.rsplit('/').next().unwrap_or(name)));
        }
        there.then_some(path)
    };
    for (name, contexts) in RESIDENT {
        let Some(model) = find(name) else { continue };
        all.extend(contexts.iter().map(|&context| Configuration {
            model: model.clone(),
            context,
            generate: 32,
            budget_mb: None,
            read_bps: None,
        }));
    }
    for (name, budgets, bandwidths) in STREAMED {
        let Some(model) = find(name) else { continue };
        for &budget in *budgets {
            all.extend(bandwidths.iter().map(|&mega| Configuration {
                model: model.clone(),
                context: 288,
                generate: 24,
                budget_mb: Some(budget),
                read_bps: (mega > 0).then_some(mega * 1_000_000),
            }));
        }
    }
    (all, absent)
}

/// Rows of the table, one by one; remarks first.
pub fn rows(
    pannier: &Path,
    threads: usize,
    note: &mut dyn FnMut(String),
    add: &mut dyn FnMut(Value) -> Result,
) -> Result {
    let cache = dirs::cache_dir().ok_or("this system names no cache directory")?.join("pannier");
    let (all, absent) = configurations(&cache);
    absent.into_iter().for_each(note);
    for one in &all {
        let name = one.model.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        eprintln!("== {name}, context {}, budget {:?} MiB", one.context, one.budget_mb);
        let before = predict(pannier, threads, one)?;
        match run(pannier, threads, one) {
            Ok((bench, cage)) => {
                let after = predict(pannier, threads, one)?;
                add(row(&name, one, &[before, after], &bench, &cage)?)?;
            }
            // One that cannot be run here must not lose the others.
            Err(why) => eprintln!("   {why}"),
        }
    }
    Ok(())
}

/// What a plan says, of the machine as it is now.
fn predict(pannier: &Path, threads: usize, one: &Configuration) -> Result<Value> {
    // Where the bandwidth is limited, it is measured under that limit.
    let mut plan = match one.read_bps {
        None => Command::new(pannier),
        Some(bps) => {
            let own = std::env::current_exe().map_err(|e| format!("this program's own path: {e}"))?;
            let mut cage = Command::new(own);
            cage.args(["cage", "--require", "--mem", &NO_LIMIT.to_string(), "--read-bps", &bps.to_string()]);
            cage.arg("--").arg(pannier);
            cage
        }
    };
    plan.args([
        "plan",
        "--json",
        "--remeasure",
        "-t",
        &threads.to_string(),
        "--ctx",
        &one.context.to_string(),
    ]);
    plan.args(["--at", &(one.context - one.generate / 2).to_string(), "-m"]).arg(&one.model);
    if let Some(budget) = one.budget_mb {
        plan.args(["--budget-mb", &budget.to_string()]);
    }
    engines::json(&mut plan)
}

/// Measures in a cage; the reports of the command and of the cage.
fn run(pannier: &Path, threads: usize, one: &Configuration) -> Result<(Value, Value)> {
    let own = std::env::current_exe().map_err(|e| format!("this program's own path: {e}"))?;
    let report = std::env::temp_dir().join(format!("pannier-cage-{}.json", std::process::id()));
    let mut cage = Command::new(own);
    cage.arg("cage").arg("--require").arg("--report").arg(&report);
    // Beside the budget only what the command itself maps: a model that is read whole must not find the rest in the page cache.
    let limit = one.budget_mb.map_or(NO_LIMIT, |mb| (mb << 20) + (48 << 20));
    cage.args(["--mem", &limit.to_string()]);
    if let Some(bps) = one.read_bps {
        cage.args(["--read-bps", &bps.to_string()]);
    }
    let prompt = one.context - one.generate;
    cage.arg("--").arg(pannier).args(["bench", "--json", "--reps", "1", "-t", &threads.to_string()]);
    cage.args(["--ctx", &one.context.to_string(), "--prompt", &prompt.to_string()]);
    cage.args(["--gen", &one.generate.to_string()]);
    if let Some(budget) = one.budget_mb {
        cage.args(["--budget-mb", &budget.to_string()]);
    }
    let bench = engines::json(cage.arg("-m").arg(&one.model));
    let text = std::fs::read_to_string(&report).unwrap_or_default();
    let _ = std::fs::remove_file(&report);
    let caged = serde_json::from_str(&text).map_err(|e| format!("the cage reported nothing: {e}"))?;
    Ok((bench?, caged))
}

fn row(name: &str, one: &Configuration, plans: &[Value; 2], bench: &Value, cage: &Value) -> Result<Value> {
    let [plan, after] = plans;
    let (first, second) = (float(plan, "predicted_decode_tok_s")?, float(after, "predicted_decode_tok_s")?);
    let (said, found) = ((first + second) / 2.0, float(bench, "decode_tok_s")?);
    let (peak_said, peak_found) = (float(plan, "peak_bytes")?, float(cage, "peak_anon_bytes")?);
    let budget = one.budget_mb.map(|mb| mb << 20);
    Ok(json!({
        "model": name, "context": one.context, "budget_mb": one.budget_mb,
        "read_mb_s": one.read_bps.map(|bps| bps / 1_000_000), "load_average": machine::load(),
        "predicted_decode_tok_s": said, "decode_tok_s": found, "decode_ratio": said / found,
        "drift": first.max(second) / first.min(second),
        "predicted_peak_bytes": peak_said, "peak_anon_bytes": peak_found, "peak_ratio": peak_said / peak_found,
        "predicted_bytes_per_token": plan["streamed_bytes_per_token"], "bytes_per_token": bench["flash_bytes_per_token"],
        "predicted_hit_rate": plan["expert_hit_rate"], "hit_rate": bench["expert_hit_rate"],
        "reads_per_token": bench["reads_per_token"], "waited_ms_per_token": bench["waited_ms_per_token"],
        "major_faults_per_token": bench["major_faults_per_token"],
        "over_budget": budget.is_some_and(|budget| peak_found > budget as f64),
        "kv_bytes": plan["kv_bytes"], "scratch_bytes": plan["scratch_bytes"],
        "other_bytes": plan["other_bytes"], "bound_by": plan["bound_by"],
    }))
}

/// How many rows are within what is promised: decode 15%, memory 5%.
pub fn verdict(rows: &[Value]) -> String {
    let within = |key: &str, limit: f64| {
        rows.iter().filter(|row| row[key].as_f64().is_some_and(|ratio| (ratio - 1.0).abs() <= limit)).count()
    };
    let steady = rows.iter().filter(|row| row["drift"].as_f64().is_some_and(|drift| drift <= 1.15)).count();
    let over = rows.iter().filter(|row| row["over_budget"] == true).count();
    format!(
        "Of {} configurations, decode is within 15% of the plan in {}, peak memory within 5% in {}; {over} went over their budget. In {steady} the two \
         plans, before and after, are within 15% of each other",
        rows.len(),
        within("decode_ratio", 0.15),
        within("peak_ratio", 0.05),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_count_what_was_promised() {
        let row = |decode: f64, peak: f64, over: bool| json!({"decode_ratio": decode, "drift": decode, "peak_ratio": peak, "over_budget": over});
        let rows = [row(1.14, 0.96, false), row(0.84, 1.0, true), row(1.0, 1.06, false)];
        assert_eq!(
            verdict(&rows),
            "Of 3 configurations, decode is within 15% of the plan in 2, peak memory within 5% in 2; 1 went over their budget. \
             In 3 the two plans, before and after, are within 15% of each other"
        );
        assert!(configurations(Path::new("/nowhere")).0.is_empty());
    }

    #[test]
    fn there_are_enough_configurations() {
        let resident: usize = RESIDENT.iter().map(|(_, contexts)| contexts.len()).sum();
        let streamed: usize = STREAMED.iter().map(|(_, budgets, bps)| budgets.len() * bps.len()).sum();
        assert!(resident + streamed >= 20);
    }
}
