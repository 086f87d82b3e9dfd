//! Invariant 2 at the level of forward passes: no bit of a logit depends on threads, chunks, steps, or instruction set.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod golden_support;

use golden_support::{Setup, open, real, runner, tiny};
use pannier::kv::{KvOptions, KvTypes};
use pannier::memory::Accountant;
use pannier::model::{Forward, LoadedModel, Outputs, Runner, RunnerOptions};
use pannier::pool::Pool;
use pannier::{CancelFlag, Error};
use pannier_kernels::Kernels;
use std::sync::Arc;

fn tokens(n: usize, vocab: usize) -> Vec<u32> {
    (0..n).map(|i| ((7 * i + 1) % vocab) as u32).collect()
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

/// Logits of the last `rows` tokens, fed in steps of `step`.
fn logits(runner: &mut Runner, ids: &[u32], step: usize, rows: usize) -> Vec<u32> {
    let mut seq = runner.new_seq().unwrap();
    let (body, tail) = ids.split_at(ids.len() - rows);
    for tokens in body.chunks(step) {
        runner.step(&mut seq, tokens, Outputs::None, &CancelFlag::new()).unwrap();
    }
    let mut out = Vec::new();
    for tokens in tail.chunks(step) {
        out.extend(bits(runner.step(&mut seq, tokens, Outputs::All, &CancelFlag::new()).unwrap()));
    }
    out
}

fn assert_same(model: &Arc<LoadedModel>, n: usize, rows: usize, chunks: &[usize]) {
    assert_same_with(model, KvTypes::F16, n, rows, chunks);
}

fn assert_same_with(model: &Arc<LoadedModel>, kv: KvTypes, n: usize, rows: usize, chunks: &[usize]) {
    let ids = tokens(n, model.spec().vocab);
    let expected = logits(&mut runner(model, Setup { threads: 1, kv, ..Setup::default() }), &ids, n, rows);
    for threads in [1, 2] {
        for &chunk in chunks {
            let mut runner = runner(model, Setup { threads, chunk, kv, ..Setup::default() });
            // As one step that the runner cuts, and as steps of the caller.
            assert!(logits(&mut runner, &ids, n, rows) == expected, "{threads} threads, chunk {chunk}");
            assert!(
                logits(&mut runner, &ids, chunk, rows) == expected,
                "{threads} threads, steps of {chunk}"
            );
        }
    }
}

#[test]
fn threads_and_chunks_change_no_bit_of_tiny_models() {
    for name in [
        "tiny-llama-Q4_K_M",
        "tiny-llama-IQ4_XS",
        "arch-qwen3-dense",
        "arch-gemma3-dense",
        "arch-gemma2-dense",
    ] {
        let model = open(&tiny(&format!("{name}.gguf")));
        let n = 150.min(model.spec().context);
        assert_same(&model, n, 20, &[1, 7, 64, 512]);
    }
}

/// Beyond one partition of attention, with mixed formats.
#[test]
fn threads_and_chunks_change_no_bit_of_a_real_model() {
    assert_same(&open(&real("SmolLM2-135M-Instruct.Q4_1.gguf")), 600, 2, &[7, 64, 512]);
}

/// Every element type of the KV cache gives a position what its text says, however the text came.
#[test]
fn threads_and_chunks_change_no_bit_with_any_kv_type() {
    for name in ["tiny-llama-Q4_K_M", "arch-gemma3-dense"] {
        let model = open(&tiny(&format!("{name}.gguf")));
        let n = 150.min(model.spec().context);
        let plain = logits(&mut runner(&model, Setup::default()), &tokens(n, model.spec().vocab), n, 20);
        for kv in KvTypes::names().map(|name| name.parse::<KvTypes>().unwrap()) {
            assert_same_with(&model, kv, n, 20, &[1, 7, 33, 512]);
            let got = logits(
                &mut runner(&model, Setup { kv, ..Setup::default() }),
                &tokens(n, model.spec().vocab),
                n,
                20,
            );
            assert_eq!(got == plain, kv == KvTypes::F16, "{kv}: only halves have the bits of halves");
        }
    }
}

#[test]
fn instruction_sets_change_no_bit() {
    let model = open(&tiny("tiny-llama-Q2_K.gguf"));
    for kv in KvTypes::names().map(|name| name.parse::<KvTypes>().unwrap()) {
        instruction_sets_change_no_bit_with(&model, kv);
    }
}

fn instruction_sets_change_no_bit_with(model: &Arc<LoadedModel>, types: KvTypes) {
    let ids = tokens(40, model.spec().vocab);
    let of = |kernels: &'static Kernels| {
        let kv = KvOptions { types, ..KvOptions::default() };
        let options = RunnerOptions { kernels: Some(kernels), kv, ..RunnerOptions::default() };
        let pool = Arc::new(Pool::new(2));
        let mut runner = Runner::new(Arc::clone(model), pool, &options, &Accountant::new(None)).unwrap();
        logits(&mut runner, &ids, 13, 5)
    };
    let all = Kernels::available();
    let expected = of(all[0]);
    for kernels in &all[1..] {
        assert!(of(kernels) == expected, "{:?}", kernels.isa());
    }
}

#[test]
fn truncated_and_forked_sequences_continue_as_fresh_ones() {
    for kv in [KvTypes::F16, KvTypes::Q4, KvTypes::Q8_CHANNEL, KvTypes { edges: 0, ..KvTypes::Q4_CHANNEL }] {
        truncated_and_forked_sequences_continue_with(kv);
    }
}

fn truncated_and_forked_sequences_continue_with(kv: KvTypes) {
    let model = open(&tiny("arch-qwen3-dense.gguf"));
    let ids = tokens(90, model.spec().vocab);
    let mut runner = runner(&model, Setup { kv, ..Setup::default() });
    let cancel = CancelFlag::new();
    let mut seq = runner.new_seq().unwrap();
    runner.step(&mut seq, &ids, Outputs::None, &cancel).unwrap();
    let mut fork = runner.fork(&seq).unwrap();
    for (seq, len) in [(&mut seq, 70), (&mut fork, 33)] {
        runner.truncate(seq, len).unwrap();
        let other: Vec<u32> = ids.iter().rev().copied().take(20).collect();
        let got = bits(runner.step(seq, &other, Outputs::Last, &cancel).unwrap());
        let mut fresh = runner.new_seq().unwrap();
        runner.step(&mut fresh, &ids[..len], Outputs::None, &cancel).unwrap();
        let expected = bits(runner.step(&mut fresh, &other, Outputs::Last, &cancel).unwrap());
        assert!(got == expected);
    }
}

/// Whatever stops a step, the sequence is as it was.
#[test]
fn failed_steps_leave_no_trace() {
    let model = open(&tiny("arch-qwen3-dense.gguf"));
    let (vocab, context) = (model.spec().vocab, model.spec().context);
    let ids = tokens(40, vocab);
    let mut runner = runner(&model, Setup { chunk: 16, ..Setup::default() });
    let cancel = CancelFlag::new();
    let mut seq = runner.new_seq().unwrap();
    let first = bits(runner.step(&mut seq, &ids, Outputs::Last, &cancel).unwrap());

    let stopped = CancelFlag::new();
    stopped.cancel();
    assert!(matches!(runner.step(&mut seq, &ids, Outputs::All, &stopped), Err(Error::Cancelled)));
    let unknown = [1, vocab as u32];
    assert!(matches!(
        runner.step(&mut seq, &unknown, Outputs::All, &cancel),
        Err(Error::TokenOutOfRange { index: 1, .. })
    ));
    let long = tokens(context - 39, vocab);
    assert!(matches!(
        runner.step(&mut seq, &long, Outputs::Last, &cancel),
        Err(Error::ContextFull { needed, limit }) if needed == limit + 1
    ));
    assert_eq!(Runner::len(&seq), 40);

    let next = bits(runner.step(&mut seq, &[3], Outputs::Last, &cancel).unwrap());
    let mut fresh = runner.new_seq().unwrap();
    assert!(bits(runner.step(&mut fresh, &ids, Outputs::Last, &cancel).unwrap()) == first);
    assert!(bits(runner.step(&mut fresh, &[3], Outputs::Last, &cancel).unwrap()) == next);
}

/// Scratch and KV come out of the budget; what does not fit is refused before it is allocated.
#[test]
fn the_budget_is_kept() {
    let model = open(&tiny("arch-qwen3-dense.gguf"));
    let new = |budget| {
        let accountant = Accountant::new(Some(budget));
        let options = RunnerOptions { chunk: 16, ..RunnerOptions::default() };
        Runner::new(Arc::clone(&model), Arc::new(Pool::new(1)), &options, &accountant)
            .map(|r| (r, accountant))
    };
    assert!(matches!(new(1000), Err(Error::OutOfBudget { .. })));
    let (_, unlimited) = new(1 << 40).unwrap();
    let scratch = unlimited.peak();
    // Scratch fits, the first chunk of KV pages does not.
    let (mut runner, _) = new(scratch + 1000).unwrap();
    let mut seq = runner.new_seq().unwrap();
    let error = runner.step(&mut seq, &[1, 2, 3], Outputs::Last, &CancelFlag::new()).unwrap_err();
    assert!(matches!(error, Error::OutOfBudget { .. }), "{error}");
    assert_eq!(Runner::len(&seq), 0);
}
