//! Prints how far each model is from the golden values, for several choices of precision.
//!
//! `cargo run --release -p pannier --example golden_table [-- FILTER …] [--all]`
//! where a filter is part of a model's name; `--all` adds precisions besides the default; `--chunk N`, `--threads N`.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a tool for developers may panic")]

#[path = "../tests/golden_support/mod.rs"]
mod golden;

use golden::{DENSE, FORMATS, REAL, Setup};
use pannier::model::PrecisionTable;
use pannier_kernels::Precision::{Q8, Q16};

/// The one with experts whose distance to exact values is known.
const EXPERTS: &str = "tiny-qwen3moe-16e-Q8_0";

fn main() {
    let mut setup = Setup::default();
    let (mut filters, mut all) = (Vec::new(), false);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--all" => all = true,
            "--chunk" => setup.chunk = args.next().unwrap().parse().unwrap(),
            "--threads" => setup.threads = args.next().unwrap().parse().unwrap(),
            _ => filters.push(arg),
        }
    }
    let wanted =
        |name: &str| filters.is_empty() || filters.iter().any(|filter| name.contains(filter.as_str()));
    let mut tables = vec![("default", None)];
    if all {
        let q8 = PrecisionTable::all(Q8);
        let more = [
            ("q8", q8),
            ("q16", PrecisionTable::all(Q16)),
            ("q8+head", PrecisionTable { head: Q16, ..q8 }),
            ("q8+o", PrecisionTable { attention_output: Q16, ..q8 }),
            ("q8+down", PrecisionTable { down: Q16, ..q8 }),
            ("q8+o,down", PrecisionTable { attention_output: Q16, down: Q16, ..q8 }),
            ("q8+qkv", PrecisionTable { qkv: Q16, ..q8 }),
            ("q8+gate_up", PrecisionTable { gate_up: Q16, ..q8 }),
            ("q8+o,down,head", PrecisionTable { attention_output: Q16, down: Q16, head: Q16, ..q8 }),
            ("q16-gate_up", PrecisionTable { gate_up: Q8, ..PrecisionTable::all(Q16) }),
            ("q16-down", PrecisionTable { down: Q8, ..PrecisionTable::all(Q16) }),
            ("q16-qkv", PrecisionTable { qkv: Q8, ..PrecisionTable::all(Q16) }),
        ];
        tables.extend(more.map(|(name, table)| (name, Some(table))));
    }

    println!(
        "{:34} {:10} {:>7} {:>8} {:>8}   (reference: top-1, mean, max)",
        "model", "precision", "top-1", "mean", "max"
    );
    let line = |name: &str, precision: &str, d: golden::Distance, reference: &serde_json::Value| {
        let figure = |key: &str| reference[key].as_f64().unwrap_or(f64::NAN);
        println!(
            "{name:34} {precision:10} {:7.4} {:8.5} {:8.5}   ({:.4} {:.5} {:.4})",
            d.top1,
            d.mean,
            d.max,
            figure("top1_agreement"),
            figure("mean_abs_next_logprob"),
            figure("max_abs_next_logprob")
        );
    };
    let formats = FORMATS.map(|name| format!("tiny-llama-{name}"));
    for name in formats.into_iter().chain([EXPERTS.to_owned()]) {
        let Some(path) = wanted(&name).then(|| golden::tiny(&format!("{name}.gguf"))) else {
            continue;
        };
        let (model, json) = (golden::open(&path), golden::json(&format!("tiny/{name}.json")));
        for &(precision, table) in &tables {
            let mut runner = golden::runner(&model, Setup { precision: table, ..setup });
            let d = golden::distance(&mut runner, &golden::ids(&json["ids"]), &json["exact_positions"]);
            line(&name, precision, d, &json["reference_error"]);
        }
    }
    for name in DENSE {
        let name = format!("arch-{name}-dense");
        let Some(path) = wanted(&name).then(|| golden::tiny(&format!("{name}.gguf"))) else {
            continue;
        };
        let (model, json) = (golden::open(&path), golden::json(&format!("tiny/{name}.json")));
        let d = golden::distance(
            &mut golden::runner(&model, setup),
            &golden::ids(&json["ids"]),
            &json["positions"],
        );
        println!(
            "{name:34} all log-probabilities: mean {:.5} max {:.5}; next: mean {:.5} max {:.5}; top-1 {:.4}",
            d.mean_all, d.max_all, d.mean, d.max, d.top1
        );
    }
    for (name, file) in REAL.into_iter().filter(|(name, _)| wanted(name)) {
        let model = golden::open(&golden::real(file));
        for text in ["en", "code", "zh"] {
            let json = golden::json(&format!("real/{name}/{text}.json"));
            for &(precision, table) in &tables {
                let mut runner = golden::runner(&model, Setup { precision: table, ..setup });
                let d = golden::distance(&mut runner, &golden::ids(&json["ids"]), &json["exact_positions"]);
                line(&format!("{name}/{text}"), precision, d, &json["reference_error"]);
            }
        }
    }
}
