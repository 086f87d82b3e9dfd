//! Tiny random models against the golden values: every block format, every dense architecture.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod golden_support;

use golden_support::{DENSE, FORMATS, MOE, Setup, distance, ids, json, open, runner, tiny};

/// Our distance to a run with f32 weights and activations is not larger than the reference engine's own.
#[test]
fn every_block_format_is_as_exact_as_the_reference() {
    let mut faults = Vec::new();
    for name in FORMATS {
        let path = tiny(&format!("tiny-llama-{name}.gguf"));
        let golden = json(&format!("tiny/tiny-llama-{name}.json"));
        let mut runner = runner(&open(&path), Setup::default());
        let d = distance(&mut runner, &ids(&golden["ids"]), &golden["exact_positions"]);
        let reference = &golden["reference_error"];
        let (top1, mean) = (
            reference["top1_agreement"].as_f64().unwrap(),
            reference["mean_abs_next_logprob"].as_f64().unwrap(),
        );
        // The file's figures are rounded to four and five digits.
        if d.top1 < top1 - 5e-5 || d.mean > mean + 5e-6 {
            faults.push(format!("{name}: {d:?}, reference top-1 {top1}, mean {mean}"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn experts_are_as_exact_as_the_reference() {
    let path = tiny("tiny-qwen3moe-16e-Q8_0.gguf");
    let golden = json("tiny/tiny-qwen3moe-16e-Q8_0.json");
    let mut runner = runner(&open(&path), Setup::default());
    let d = distance(&mut runner, &ids(&golden["ids"]), &golden["exact_positions"]);
    let reference = &golden["reference_error"];
    assert!(d.top1 >= reference["top1_agreement"].as_f64().unwrap() - 5e-5, "{d:?}, reference {reference}");
    assert!(
        d.mean <= reference["mean_abs_next_logprob"].as_f64().unwrap() + 5e-6,
        "{d:?}, reference {reference}"
    );
}

#[test]
fn every_architecture_gives_the_reference_probabilities() {
    let mut faults = Vec::new();
    let dense = DENSE.map(|name| format!("arch-{name}-dense"));
    let experts = MOE.map(|name| format!("arch-{name}-moe"));
    for name in dense.iter().chain(&experts) {
        let path = tiny(&format!("{name}.gguf"));
        let golden = json(&format!("tiny/{name}.json"));
        let mut runner = runner(&open(&path), Setup::default());
        let d = distance(&mut runner, &ids(&golden["ids"]), &golden["positions"]);
        println!("{name}: mean {:.5}, max {:.5}", d.mean_all, d.max_all);
        if d.max_all > 0.01 || d.mean_all > 0.002 {
            faults.push(format!("{name}: {d:?}"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
