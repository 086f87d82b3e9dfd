//! `pannier perplexity`: how well a model predicts a text, alone or beside a reference.

use std::path::PathBuf;

use clap::Args;
use pannier::{KvPolicy, KvTypes, WeightPrecision};
use pannier_forge::judge::{self, Comparison, Interval, Perplexity, TextOptions};
use pannier_tokenizer::EncodeOptions;
use serde::Serialize;

use crate::args::{ModelArg, RunArgs};
use crate::engine::{self, Loaded};
use crate::error::{CliError, Result};
use crate::input;
use crate::output::{self, Output};

#[derive(Args)]
#[command(after_help = "\
Examples:
  pannier perplexity -m smollm2 --file prose.txt
  pannier perplexity -m model.gguf --file prose.txt --ctx 1024 --json
  pannier perplexity -m model-q3.gguf --file prose.txt --against model-f16.gguf
  pannier perplexity -m model.gguf --kv-type q8 --ctx 4096 --file prose.txt --against model.gguf     # whose cache is f16
  pannier perplexity -m model.gguf --kv-policy pages:1024 --ctx 4096 --file prose.txt                # policies that forget do nothing here

Lower is better; numbers compare only for the same text, window and tokenizer. The interval holds the true value with 95%
confidence, for text of this kind. JSON: ppl, ppl_low, ppl_high, tokens (how many were scored), windows, kv_type, kv_policy; with --against also
against {ppl, ppl_low, ppl_high, ratio, ratio_low, ratio_high, kl_mean, kl_low, kl_high, kl_median, kl_p99, same_top, same_top_low,
same_top_high}: perplexity of the reference, ours divided by it, divergence in nats, and the share of equal first choices.")]
pub struct PerplexityArgs {
    #[command(flatten)]
    run: RunArgs,

    /// The text; `-` is stdin.
    #[arg(long, value_name = "PATH")]
    file: PathBuf,

    /// Compare with the predictions of this model: a file, or the name of a pulled one. Both are in memory at once.
    #[arg(long, value_name = "FILE|NAME")]
    against: Option<String>,

    /// Stop after so many windows.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    windows: Option<u32>,
}

/// Window, where `--ctx` says nothing: the field's usual one.
const WINDOW: u32 = 512;

#[derive(Serialize)]
struct Report {
    ppl: f64,
    ppl_low: f64,
    ppl_high: f64,
    tokens: u64,
    kv_type: String,
    kv_policy: String,
    windows: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    against: Option<Against>,
}

#[derive(Serialize)]
struct Against {
    ppl: f64,
    ppl_low: f64,
    ppl_high: f64,
    ratio: f64,
    ratio_low: f64,
    ratio_high: f64,
    kl_mean: f64,
    kl_low: f64,
    kl_high: f64,
    kl_median: f64,
    kl_p99: f64,
    same_top: f64,
    same_top_low: f64,
    same_top_high: f64,
}

pub fn run(args: &PerplexityArgs, out: &mut Output) -> Result<()> {
    let text = input::text_file(&args.file)?;
    let mut run = args.run.clone();
    let window = *run.ctx.get_or_insert(WINDOW) as usize;
    let loaded = engine::load(&run)?;
    let tokenizer = loaded.tokenizer()?;
    let bos = tokenizer.special_tokens().bos.filter(|_| tokenizer.add_bos());
    let ids = tokenizer.encode(&text, EncodeOptions { add_special: true, parse_special: true });
    let options = TextOptions { window, bos, limit: args.windows.map(|n| n as usize) };
    let Some(against) = &args.against else {
        let found = alone(&loaded, &ids, &options)?;
        out.line(&line(&found, window))?;
        return out.object(&report(&found, &run, None));
    };
    let reference = engine::load(&RunArgs {
        model: ModelArg { model: against.clone() },
        // Whatever is judged, it is judged by all that the other file has, and with a cache that loses nothing.
        precision: WeightPrecision::Full,
        kv_type: KvTypes::F16,
        kv_policy: KvPolicy::KeepAll,
        ..run.clone()
    })?;
    let theirs =
        reference.tokenizer()?.encode(&text, EncodeOptions { add_special: true, parse_special: true });
    if theirs != ids {
        return Err(CliError::failed(format!(
            "{} and {} cannot be compared: they cut the text into different tokens",
            loaded.name, reference.name
        )));
    }
    let found = beside(&loaded, &reference, &ids, &options)?;
    let Comparison { model, reference: other, ratio, kl_mean, kl_median, kl_p99, same_top } = &found;
    out.line(&line(model, window))?;
    out.line(&format!(
        "{:.4} times that of {} ({:.4}); 95%: {:.4} to {:.4}",
        ratio.value, reference.name, other.ppl.value, ratio.low, ratio.high
    ))?;
    out.line(&format!(
        "divergence {:.5} nats (median {kl_median:.5}, 99% below {kl_p99:.4}); same first choice {:.2}%",
        kl_mean.value,
        100.0 * same_top.value
    ))?;
    let against = Against {
        ppl: other.ppl.value,
        ppl_low: other.ppl.low,
        ppl_high: other.ppl.high,
        ratio: ratio.value,
        ratio_low: ratio.low,
        ratio_high: ratio.high,
        kl_mean: kl_mean.value,
        kl_low: kl_mean.low,
        kl_high: kl_mean.high,
        kl_median: *kl_median,
        kl_p99: *kl_p99,
        same_top: same_top.value,
        same_top_low: same_top.low,
        same_top_high: same_top.high,
    };
    out.object(&report(model, &run, Some(against)))
}

fn alone(loaded: &Loaded, ids: &[u32], options: &TextOptions) -> Result<Perplexity> {
    let bar = output::count_bar(0, "windows");
    let found = loaded.with_forward(|forward, cancel| {
        Ok(judge::perplexity(forward, ids, options, cancel, &mut |done, total, ppl| {
            bar.set_length(total as u64);
            bar.set_position(done as u64);
            bar.set_prefix(format!("ppl {ppl:.4}"));
        })?)
    })?;
    bar.finish_and_clear();
    Ok(found)
}

fn beside(loaded: &Loaded, reference: &Loaded, ids: &[u32], options: &TextOptions) -> Result<Comparison> {
    let bar = output::count_bar(0, "windows");
    let found = loaded.with_forward(|forward, cancel| {
        let mut work = |other: &mut engine::Forward| {
            judge::compare(forward, other, ids, options, cancel, &mut |done, total, kl| {
                bar.set_length(total as u64);
                bar.set_position(done as u64);
                bar.set_prefix(format!("divergence {kl:.5}"));
            })
        };
        Ok(reference.model.with_forward(cancel, |other| Ok(work(other)))??)
    })?;
    bar.finish_and_clear();
    Ok(found)
}

fn line(found: &Perplexity, window: usize) -> String {
    let Perplexity { ppl: Interval { value, low, high }, tokens, .. } = found;
    format!("perplexity {value:.4} over {tokens} tokens, windows of {window}; 95%: {low:.4} to {high:.4}")
}

fn report(found: &Perplexity, run: &RunArgs, against: Option<Against>) -> Report {
    let Perplexity { ppl, tokens, windows } = *found;
    let (kv_type, kv_policy) = (run.kv_type.to_string(), run.kv_policy.to_string());
    Report {
        ppl: ppl.value,
        ppl_low: ppl.low,
        ppl_high: ppl.high,
        tokens,
        kv_type,
        kv_policy,
        windows,
        against,
    }
}
