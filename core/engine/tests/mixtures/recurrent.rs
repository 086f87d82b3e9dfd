//! States of recurrent layers: going back, failing, copying.

use crate::tiny::{Tiny, all, runner, step, text};
use pannier::memory::Accountant;
use pannier::model::{Forward, Outputs, Route, RouteObserver, Runner, RunnerOptions};
use pannier::{CancelFlag, Error};
use pannier_kernels::Serial;
use std::sync::Arc;

fn hybrids() -> [Tiny; 2] {
    [Tiny::qwen3next(), Tiny::lfm2moe()]
}

/// Rows of `wanted` for the tokens of a range.
fn rows(wanted: &[u32], range: std::ops::Range<usize>) -> &[u32] {
    &wanted[range.start * crate::tiny::VOCAB..range.end * crate::tiny::VOCAB]
}

#[test]
fn rejected_drafts_leave_no_trace() {
    for tiny in hybrids() {
        let (model, tokens) = (tiny.load(), text(150));
        let mut runner = runner(&model, 64, 1);
        let wanted = all(&mut runner, &tokens);
        let mut seq = runner.new_seq().unwrap();
        step(&mut runner, &mut seq, &tokens[..40]);
        let mut round = 0;
        while seq.len() + 17 < tokens.len() {
            // Some drafted tokens are right, the others are not.
            let (at, right, drafts) = (seq.len(), 1 + round % 5, 1 + round * 7 % 16);
            let right = right.min(drafts);
            let mut drafted = tokens[at..at + drafts].to_vec();
            drafted[right..].iter_mut().for_each(|token| *token = (*token + 1) % 90);
            let bits = step(&mut runner, &mut seq, &drafted);
            assert_eq!(rows(&bits, 0..right), rows(&wanted, at..at + right), "round {round}");
            runner.truncate(&mut seq, at + right).unwrap();
            assert_eq!(seq.len(), at + right);
            round += 1;
        }
    }
}

#[test]
fn truncating_goes_back_some_tokens_or_to_the_start() {
    for tiny in hybrids() {
        let (model, tokens) = (tiny.load(), text(100));
        let mut runner = runner(&model, 512, 1);
        let wanted = all(&mut runner, &tokens);
        let mut seq = runner.new_seq().unwrap();
        // A long step is not journalled: only its end can be kept.
        step(&mut runner, &mut seq, &tokens[..50]);
        let error = runner.truncate(&mut seq, 49).unwrap_err();
        assert!(matches!(error, Error::CannotTruncate { len: 49, have: 50, .. }), "{error}");
        assert_eq!(step(&mut runner, &mut seq, &tokens[50..51]), rows(&wanted, 50..51));
        for at in 51..66 {
            step(&mut runner, &mut seq, &tokens[at..at + 1]);
        }
        // Token by token, at least sixteen tokens can be taken back, one after the other.
        for len in (50..66).rev() {
            runner.truncate(&mut seq, len).unwrap();
            runner.truncate(&mut seq, len).unwrap();
        }
        assert_eq!(step(&mut runner, &mut seq, &tokens[50..90]), rows(&wanted, 50..90));
        assert!(runner.truncate(&mut seq, 95).is_err());
        runner.truncate(&mut seq, 0).unwrap();
        assert_eq!(step(&mut runner, &mut seq, &tokens), wanted);
    }
}

/// Cancels in the middle of a pass: when layer 1 has routed.
#[derive(Debug)]
struct Canceller(CancelFlag);

impl RouteObserver for Canceller {
    fn routed(&self, route: &Route<'_>) {
        if route.layer == 1 {
            self.0.cancel();
        }
    }
}

#[test]
fn a_cancelled_step_is_forgotten_by_every_layer() {
    for tiny in hybrids() {
        let (model, tokens) = (tiny.load(), text(90));
        let mut runner = runner(&model, 16, 1);
        let wanted = all(&mut runner, &tokens);
        let mut seq = runner.new_seq().unwrap();
        let mut at = 0;
        for size in [30, 1, 1, 5, 16, 1, 20] {
            for attempt in 0..2 {
                let cancel = CancelFlag::new();
                runner.observe(Some(Arc::new(Canceller(cancel.clone()))));
                let failed = runner.step(&mut seq, &tokens[at..at + size], Outputs::Last, &cancel);
                assert!(matches!(failed, Err(Error::Cancelled)), "attempt {attempt}");
                assert_eq!(seq.len(), at);
            }
            runner.observe(None);
            let bits = step(&mut runner, &mut seq, &tokens[at..at + size]);
            assert_eq!(bits, rows(&wanted, at..at + size), "{size} tokens at {at}");
            at += size;
        }
    }
}

#[test]
fn forks_go_their_own_ways() {
    for tiny in hybrids() {
        let (model, tokens) = (tiny.load(), text(60));
        let mut runner = runner(&model, 512, 1);
        let wanted = all(&mut runner, &tokens);
        let mut seq = runner.new_seq().unwrap();
        step(&mut runner, &mut seq, &tokens[..30]);
        step(&mut runner, &mut seq, &tokens[30..34]);
        runner.truncate(&mut seq, 32).unwrap();
        let mut fork = runner.fork(&seq).unwrap();
        step(&mut runner, &mut seq, &[5, 6, 7]);
        assert_eq!(step(&mut runner, &mut fork, &tokens[32..]), rows(&wanted, 32..60));
        runner.truncate(&mut seq, 32).unwrap();
        assert_eq!(step(&mut runner, &mut seq, &tokens[32..]), rows(&wanted, 32..60));
    }
}

#[test]
fn states_are_part_of_the_budget() {
    let model = Tiny::qwen3next().load();
    let state = model.spec().recurrent_bytes();
    assert!(state > 0);
    let accountant = Accountant::new(None);
    let options = RunnerOptions::default();
    let mut runner = Runner::new(Arc::clone(&model), Arc::new(Serial), &options, &accountant).unwrap();
    let before = accountant.used();
    let seq = runner.new_seq().unwrap();
    assert_eq!(accountant.used(), before + state);
    accountant.set_budget(Some(before + state));
    assert!(matches!(runner.new_seq(), Err(Error::OutOfBudget { .. })));
    assert!(matches!(runner.fork(&seq), Err(Error::OutOfBudget { .. })));
    drop(seq);
    assert_eq!(accountant.used(), before);
    runner.new_seq().unwrap();
}

/// Early converters left the inputs of delta nets mixed, head of keys by head of keys.
#[test]
fn mixed_inputs_are_the_same_model() {
    let split = Tiny::qwen3next();
    let tokens = text(40);
    let wanted = all(&mut runner(&split.load(), 512, 1), &tokens);
    let mut mixed = split.clone();
    for layer in [0, 1, 3] {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let get = |part: &str| &split.tensors[&name(part)];
        let (qkv, z, alpha, beta) = (get("attn_qkv"), get("attn_gate"), get("ssm_alpha"), get("ssm_beta"));
        let (mut inputs, mut gates) = (Vec::new(), Vec::new());
        for head in 0..2 {
            inputs.extend_from_slice(qkv.rows(16 * head, 16));
            inputs.extend_from_slice(qkv.rows(32 + 16 * head, 16));
            inputs.extend_from_slice(qkv.rows(64 + 32 * head, 32));
            inputs.extend_from_slice(z.rows(32 * head, 32));
            gates.extend_from_slice(beta.rows(2 * head, 2));
            gates.extend_from_slice(alpha.rows(2 * head, 2));
        }
        mixed.tensors.insert(name("ssm_in"), qkv.of_rows(inputs));
        mixed.tensors.insert(name("ssm_ba"), alpha.of_rows(gates));
        for part in ["attn_qkv", "attn_gate", "ssm_alpha", "ssm_beta"] {
            mixed.tensors.remove(&name(part));
        }
    }
    assert_eq!(all(&mut runner(&mixed.load(), 512, 1), &tokens), wanted);
}

#[test]
fn impossible_sizes_are_refused_by_name() {
    for (key, value, says) in [
        ("ssm.state_size", 1u32 << 16, "so many"),
        ("ssm.group_count", 3, "divide"),
        ("ssm.inner_size", 65, "heads of values"),
        ("ssm.conv_kernel", 0, "at least 1"),
        ("ssm.conv_kernel", 5, "ssm_conv1d"),
    ] {
        let mut tiny = Tiny::qwen3next();
        tiny.key(key, value);
        let error = tiny.try_load().unwrap_err().to_string();
        assert!(error.contains(says), "{key} = {value}: {error}");
    }
    let mut tiny = Tiny::lfm2moe();
    tiny.key("attention.head_count_kv", vec![0u32, 3, 0]);
    assert!(tiny.try_load().unwrap_err().to_string().contains("head_count_kv"));
}
