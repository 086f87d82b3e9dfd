//! Observing what enters the weight matrices: every matrix is reported, every row once, and no bit changes.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod golden_support;

use golden_support::{Setup, open, real, runner, tiny};
use pannier::CancelFlag;
use pannier::model::{ActivationObserver, Forward, MatrixInput, Outputs, Runner};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Rows, columns and Σ x² per tensor and matrix.
type Seen = BTreeMap<(String, usize), (usize, usize, f64)>;

#[derive(Debug, Default)]
struct Notes(Mutex<(Seen, BTreeMap<String, usize>)>);

impl ActivationObserver for Notes {
    fn observed(&self, input: &MatrixInput<'_>) {
        let mut notes = self.0.lock().unwrap();
        assert_eq!(input.rows.len() % input.cols, 0, "{}", input.tensor);
        assert!(input.matrix.0 < input.matrix.1, "{}", input.tensor);
        notes.1.insert(input.tensor.to_owned(), input.matrix.1);
        let entry = notes.0.entry((input.tensor.to_owned(), input.matrix.0)).or_default();
        entry.0 += input.rows.len() / input.cols;
        entry.1 = input.cols;
        entry.2 += input.rows.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
    }
}

fn logits(runner: &mut Runner, ids: &[u32]) -> Vec<u32> {
    let mut seq = runner.new_seq().unwrap();
    let logits = runner.step(&mut seq, ids, Outputs::All, &CancelFlag::new()).unwrap();
    logits.iter().map(|logit| logit.to_bits()).collect()
}

fn observed(path: &std::path::Path, n: usize) -> (Seen, BTreeMap<String, usize>) {
    let model = open(path);
    let ids: Vec<u32> = (0..n).map(|i| ((7 * i + 1) % model.spec().vocab) as u32).collect();
    let mut runner = runner(&model, Setup { threads: 2, ..Setup::default() });
    let plain = logits(&mut runner, &ids);
    let notes = Arc::new(Notes::default());
    runner.observe_activations(Some(notes.clone()));
    assert_eq!(logits(&mut runner, &ids), plain, "observing changed a bit");
    runner.observe_activations(None);
    let before = notes.0.lock().unwrap().0.clone();
    assert_eq!(logits(&mut runner, &ids), plain);
    assert_eq!(notes.0.lock().unwrap().0, before, "reported after it was told to stop");
    Arc::into_inner(notes).unwrap().0.into_inner().unwrap()
}

#[test]
fn every_matrix_of_a_dense_model_sees_every_token_once() {
    let (seen, stacks) = observed(&real("SmolLM2-135M-Instruct.Q4_1.gguf"), 40);
    // Seven matrices in each of 30 layers, and the embedding as the head.
    assert_eq!(seen.len(), 7 * 30 + 1);
    for ((name, matrix), (rows, cols, squares)) in &seen {
        assert_eq!((*matrix, *rows), (0, 40), "{name}");
        assert_eq!(*cols, if name.contains("ffn_down") { 1536 } else { 576 }, "{name}");
        assert!(*squares > 0.0, "{name}");
    }
    assert!(stacks.values().all(|&count| count == 1));
    let of = |name: &str| seen[&(name.to_owned(), 0)].2;
    assert_eq!(of("blk.3.attn_q.weight"), of("blk.3.attn_v.weight"), "they share an input");
    assert_ne!(of("blk.3.attn_q.weight"), of("blk.4.attn_q.weight"));
}

#[test]
fn fused_matrices_are_reported_once() {
    let (seen, _) = observed(&tiny("arch-phi3-dense.gguf"), 10);
    let fused: Vec<_> = seen.iter().filter(|((name, _), _)| name.contains("attn_qkv")).collect();
    assert!(!fused.is_empty() && fused.iter().all(|(_, (rows, ..))| *rows == 10), "{fused:?}");
}

#[test]
fn each_expert_sees_the_tokens_that_went_to_it() {
    let n = 30;
    let (seen, stacks) = observed(&tiny("tiny-qwen3moe-16e-Q8_0.gguf"), n);
    for layer in 0.. {
        let name = |part: &str| format!("blk.{layer}.ffn_{part}_exps.weight");
        if !stacks.contains_key(&name("gate")) {
            assert!(layer > 0);
            break;
        }
        let rows = |part: &str| -> BTreeMap<usize, usize> {
            let name = name(part);
            seen.iter().filter(|((n, _), _)| *n == name).map(|((_, e), (rows, ..))| (*e, *rows)).collect()
        };
        assert_eq!(stacks[&name("gate")], 16);
        // Four experts for each token, and the same ones in all three matrices.
        assert_eq!(rows("gate").values().sum::<usize>(), 4 * n);
        assert_eq!(rows("gate"), rows("up"));
        assert_eq!(rows("gate"), rows("down"));
        assert!(rows("gate").len() > 4, "all tokens went to the same experts");
    }
}
