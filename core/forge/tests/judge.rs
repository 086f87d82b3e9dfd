//! Models that run: statistics, scales that cancel, perplexity, divergence, tasks.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use pannier::memory::Accountant;
use pannier::model::{Forward, LoadedModel, ModelOptions, Outputs, Runner, RunnerOptions};
use pannier::pool::Pool;
use pannier::{CancelFlag, store::ModelStore};
use pannier_forge::imatrix::Imatrix;
use pannier_forge::judge::{self, EvaluateOptions, Task, TextOptions};
use pannier_forge::quantize::{FileType, Notice};
use pannier_forge::{CalibrateOptions, Error, QuantizeOptions, Silent, calibrate, quantize};
use pannier_gguf::Gguf;
use pannier_tokenizer::Tokenizer;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Two layers, 256 wide, biases on q, k and v, a norm on queries and keys; f16.
fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/tests/data/golden/tiny/arch-qwen3-dense.gguf")
}

fn smollm2() -> PathBuf {
    let path = ModelStore::user().unwrap().dir().join("SmolLM2-135M-Instruct.Q4_1.gguf");
    assert!(path.exists(), "{} is missing: run `cargo xtask models`", path.display());
    path
}

fn runner(path: &Path) -> Runner {
    let gguf = Arc::new(Gguf::open(path).unwrap());
    let accountant = Accountant::new(None);
    let model = Arc::new(LoadedModel::new(gguf, &ModelOptions::default(), &accountant).unwrap());
    Runner::new(model, Arc::new(Pool::new(2)), &RunnerOptions::default(), &accountant).unwrap()
}

fn ids(n: usize) -> Vec<u32> {
    (0..n).map(|i| ((i * i + 7 * i + 1) % 128) as u32).collect()
}

fn calibrated(path: &Path, window: usize) -> Imatrix {
    let options = CalibrateOptions { window, ..CalibrateOptions::default() };
    let found =
        calibrate(&mut runner(path), &ids(200), &options, &CancelFlag::new(), &mut |_, _| {}).unwrap();
    assert_eq!(found.tokens, 200);
    found.imatrix
}

#[test]
fn calibration_sees_every_matrix_and_every_token() {
    let imatrix = calibrated(&tiny(), 50);
    // Seven matrices in two layers, and the output.
    assert_eq!(imatrix.len(), 15);
    assert_eq!((imatrix.chunks, imatrix.chunk_tokens), (4, 50));
    for (name, entry) in imatrix.iter() {
        assert_eq!(entry.counts(), [200.0], "{name}");
        let (squares, magnitudes) = (entry.mean_squares(0).unwrap(), entry.mean_magnitudes(0).unwrap());
        // E|x|² is at most E[x²].
        assert!(squares.iter().zip(&magnitudes).all(|(s, m)| m * m <= s * 1.0001 && *s > 0.0), "{name}");
    }
    let q = imatrix.get("blk.1.attn_q.weight").unwrap();
    assert_eq!(q, imatrix.get("blk.1.attn_v.weight").unwrap());
    // The first layer's norm is of embeddings, whatever the window: only there it cannot make a difference.
    let other = calibrated(&tiny(), 25);
    let of = |imatrix: &Imatrix, name: &str| imatrix.get(name).unwrap().mean_squares(0).unwrap();
    assert_eq!(of(&imatrix, "blk.0.attn_q.weight"), of(&other, "blk.0.attn_q.weight"));
    assert_ne!(of(&imatrix, "blk.1.attn_q.weight"), of(&other, "blk.1.attn_q.weight"));
}

#[test]
fn calibration_that_cannot_work_says_why_and_leaves_nothing_behind() {
    let mut runner = runner(&tiny());
    let mut run = |ids: &[u32], options: &CalibrateOptions, cancel: &CancelFlag| {
        calibrate(&mut runner, ids, options, cancel, &mut |_, _| {})
    };
    let (options, never) =
        (CalibrateOptions { window: 64, ..CalibrateOptions::default() }, CancelFlag::new());
    assert!(matches!(run(&[], &options, &never), Err(Error::TextTooShort { tokens: 0, needed: 1 })));
    let long = CalibrateOptions { window: 1000, ..options.clone() };
    assert!(matches!(run(&ids(5), &long, &never), Err(Error::Window { window: 1000, most: 256, .. })));
    let cancelled = CancelFlag::new();
    cancelled.cancel();
    assert!(matches!(run(&ids(100), &options, &cancelled), Err(Error::Cancelled)));
    let limited = CalibrateOptions { limit: Some(1), output: false, ..options };
    let found = run(&ids(100), &limited, &never).unwrap();
    assert_eq!(found.tokens, 64);
    assert!(
        found.imatrix.get("output.weight").is_none() && found.imatrix.get("blk.0.ffn_up.weight").is_some()
    );
}

#[test]
fn a_stop_in_the_middle_is_a_stop() {
    let (mut runner, cancel, mut windows) = (runner(&tiny()), CancelFlag::new(), 0);
    let options = CalibrateOptions { window: 20, ..CalibrateOptions::default() };
    let result = calibrate(&mut runner, &ids(200), &options, &cancel, &mut |done, total| {
        assert_eq!(total, 10);
        windows = done;
        if done == 3 {
            cancel.cancel();
        }
    });
    assert!(matches!(result, Err(Error::Cancelled)));
    assert_eq!(windows, 3);
}

fn text(window: usize) -> TextOptions {
    TextOptions { window, ..TextOptions::default() }
}

#[test]
fn perplexity_is_that_of_the_logits() {
    let (mut runner, ids) = (runner(&tiny()), ids(100));
    let cancel = CancelFlag::new();
    let found = judge::perplexity(&mut runner, &ids, &text(40), &cancel, &mut |_, _, _| {}).unwrap();
    assert_eq!((found.windows, found.tokens), (2, 2 * 19));
    let (mut sum, mut count) = (0f64, 0);
    for window in ids.chunks_exact(40) {
        let mut seq = runner.new_seq().unwrap();
        let logits = runner.step(&mut seq, window, Outputs::All, &cancel).unwrap();
        for (i, row) in logits.chunks_exact(128).enumerate().take(39).skip(20) {
            let sum_exp: f64 = row.iter().map(|x| f64::from(*x).exp()).sum();
            sum -= f64::from(row[window[i + 1] as usize]) - sum_exp.ln();
            count += 1;
        }
    }
    let expected = (sum / f64::from(count)).exp();
    assert!((found.ppl.value / expected - 1.0).abs() < 1e-9, "{} {expected}", found.ppl.value);
    assert!(found.ppl.low < found.ppl.value && found.ppl.value < found.ppl.high);
    let short = judge::perplexity(&mut runner, &ids[..30], &text(40), &cancel, &mut |_, _, _| {});
    assert!(matches!(short, Err(Error::TextTooShort { tokens: 30, needed: 40 })));
    let one = TextOptions { limit: Some(1), ..text(40) };
    assert_eq!(judge::perplexity(&mut runner, &ids, &one, &cancel, &mut |_, _, _| {}).unwrap().windows, 1);
}

#[test]
fn a_model_is_no_way_from_itself_and_some_way_from_a_smaller_one() {
    let folder = tempfile::tempdir().unwrap();
    let (small, smaller) = (folder.path().join("q8.gguf"), folder.path().join("q2.gguf"));
    for (path, ty) in [(&small, "Q8_0"), (&smaller, "Q2_K")] {
        quantize(tiny(), path, &QuantizeOptions::new(FileType::parse(ty).unwrap()), &Silent).unwrap();
    }
    let mut reference = runner(&tiny());
    let mut against = |path: &Path| {
        let mut model = runner(path);
        judge::compare(
            &mut model,
            &mut reference,
            &ids(200),
            &text(50),
            &CancelFlag::new(),
            &mut |_, _, _| {},
        )
        .unwrap()
    };
    let same = against(&tiny());
    assert_eq!((same.kl_mean.value, same.ratio.value, same.same_top.value), (0.0, 1.0, 1.0));
    assert_eq!(same.model, same.reference);
    let (q8, q2) = (against(&small), against(&smaller));
    assert_eq!(q8.reference, same.reference);
    assert!(0.0 < q8.kl_mean.value && 20.0 * q8.kl_mean.value < q2.kl_mean.value, "{q8:?} {q2:?}");
    assert!(q8.kl_median < q2.kl_median && q8.kl_p99 < q2.kl_p99);
    assert!(q8.same_top.value > q2.same_top.value && q2.same_top.value < 1.0);
}

#[test]
fn activation_aware_scales_cancel_in_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let (plain, scaled) = (folder.path().join("plain.gguf"), folder.path().join("scaled.gguf"));
    let mut options = QuantizeOptions::new(FileType::parse("Q8_0").unwrap());
    options.imatrix = Some(calibrated(&tiny(), 50));
    quantize(tiny(), &plain, &options, &Silent).unwrap();
    options.awq = true;
    let report = quantize(tiny(), &scaled, &options, &Silent).unwrap();
    let found = report.plan.notices.iter().find_map(|notice| match notice {
        Notice::Scaled { groups, scaled, error_ratio } => Some((*groups, *scaled, *error_ratio)),
        _ => None,
    });
    // Four groups in each of two layers; a layer with scale tensors of its own is still one that we know.
    let (groups, chosen, ratio) = found.unwrap();
    assert_eq!(groups, 8, "{found:?}");
    assert!(chosen > 0 && ratio < 1.0, "{found:?}");
    let mut reference = runner(&tiny());
    let mut divergence = |path: &Path| {
        let mut model = runner(path);
        judge::compare(
            &mut model,
            &mut reference,
            &ids(200),
            &text(50),
            &CancelFlag::new(),
            &mut |_, _, _| {},
        )
        .unwrap()
        .kl_mean
        .value
    };
    // What does not cancel would be far off, not twice as far as rounding to eight bits.
    let (plain, scaled) = (divergence(&plain), divergence(&scaled));
    assert!(scaled < 2.0 * plain, "{scaled} {plain}");
}

#[test]
fn tasks_give_the_same_score_every_time() {
    let path = smollm2();
    let tokenizer = Tokenizer::from_metadata(Gguf::open(&path).unwrap().metadata()).unwrap();
    let mut runner = runner(&path);
    let options = EvaluateOptions { questions: 4, ..EvaluateOptions::default() };
    let mut ask = |options: &EvaluateOptions| {
        judge::evaluate(&mut runner, &tokenizer, options, &CancelFlag::new(), &mut |_, _| {}).unwrap()
    };
    let scores = ask(&options);
    assert_eq!(scores, ask(&options));
    assert_eq!(scores.iter().map(|score| score.task).collect::<Vec<_>>(), Task::ALL);
    // One task alone gets the same questions and the same answers.
    let copying = ask(&EvaluateOptions { tasks: vec![Task::Copying], ..options.clone() });
    assert_eq!(copying[0], scores[1]);
    assert!(copying[0].correct >= 2, "even a small model copies six words: {copying:?}");
    for score in &scores {
        assert_eq!(score.total, 4);
        assert!(score.correct + score.wrong.len() == 4 && score.wrong.iter().all(|(_, a)| !a.contains('\n')));
    }
}
