//! Real models against the golden values.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod golden_support;

use golden_support::{
    REAL, Setup, common_prefix, distance, greedy, ids, json, open, perplexity, real, runner, text,
};
use pannier_gguf::Gguf;
use pannier_tokenizer::{EncodeOptions, Tokenizer};

fn as_exact_as_the_reference(model: usize) {
    let (name, file) = REAL[model];
    let loaded = open(&real(file));
    let mut faults = Vec::new();
    for text in ["en", "code", "zh"] {
        let golden = json(&format!("real/{name}/{text}.json"));
        let d = distance(
            &mut runner(&loaded, Setup::default()),
            &ids(&golden["ids"]),
            &golden["exact_positions"],
        );
        let reference = &golden["reference_error"];
        let (top1, mean) = (
            reference["top1_agreement"].as_f64().unwrap(),
            reference["mean_abs_next_logprob"].as_f64().unwrap(),
        );
        println!("{name}/{text}: {d:?}, reference top-1 {top1}, mean {mean}");
        // The file's figures are rounded to four and five digits.
        if d.top1 < top1 - 5e-5 || d.mean > mean + 5e-6 {
            faults.push(format!("{text}: {d:?}, reference top-1 {top1}, mean {mean}"));
        }
    }
    assert!(faults.is_empty(), "{name}: {}", faults.join("\n"));
}

#[test]
fn smollm2_is_as_exact_as_the_reference() {
    as_exact_as_the_reference(0);
}

#[test]
fn gemma_3_is_as_exact_as_the_reference() {
    as_exact_as_the_reference(1);
}

#[test]
fn qwen_2_5_is_as_exact_as_the_reference() {
    as_exact_as_the_reference(2);
}

/// Perplexity within 0.6% of the run in f32, and greedy continuations that keep to it as long as the reference engine's do, give or
/// take a near tie.
fn continues_as_it_should(model: usize) {
    let (name, file) = REAL[model];
    let path = real(file);
    let golden = json(&format!("real/{name}/run.json"));
    let mut runner = runner(&open(&path), Setup::default());

    for case in golden["greedy"].as_array().unwrap() {
        let (exact, reference) = (ids(&case["exact_greedy"]), ids(&case["greedy"]));
        let ours = greedy(&mut runner, &ids(&case["ids"]), exact.len());
        let common = (common_prefix(&ours, &exact), common_prefix(&reference, &exact));
        println!("{name}: {} tokens as exact, the reference {}, of {}", common.0, common.1, exact.len());
        assert!(common.0 >= 8, "{}: {ours:?}", case["prompt"]);
    }

    let gguf = Gguf::open(&path).unwrap();
    let tokenizer = Tokenizer::from_metadata(gguf.metadata()).unwrap();
    let prose = text("text/prose.txt");
    let ids = tokenizer.encode(&prose, EncodeOptions { add_special: true, parse_special: true });
    let bos = tokenizer.add_bos().then(|| gguf.metadata().u32("tokenizer.ggml.bos_token_id").unwrap());
    let ctx = golden["perplexity"]["ctx"].as_u64().unwrap() as usize;
    let ours = perplexity(&mut runner, &ids, ctx, bos);
    let exact = golden["perplexity"]["exact"].as_f64().unwrap();
    println!("{name}: perplexity {ours:.4}, exact {exact}, reference {}", golden["perplexity"]["reference"]);
    assert!((ours / exact - 1.0).abs() <= 0.006, "{ours} and {exact}");
}

#[test]
fn smollm2_continues_as_it_should() {
    continues_as_it_should(0);
}

#[test]
fn gemma_3_continues_as_it_should() {
    continues_as_it_should(1);
}

#[test]
fn qwen_2_5_continues_as_it_should() {
    continues_as_it_should(2);
}
