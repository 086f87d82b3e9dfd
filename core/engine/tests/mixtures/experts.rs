//! The routed feed-forward block.

use crate::tiny::{EXPERTS, Tiny, all, in_steps, runner, text};
use pannier::CancelFlag;
use pannier::memory::Accountant;
use pannier::model::{
    Blueprint, Forward, ModelOptions, Outputs, Route, RouteObserver, Runner, RunnerOptions,
};
use pannier::residency::{ResidencyPlan, ResidencyWish, StreamOptions};
use pannier_gguf::Gguf;
use pannier_kernels::Serial;
use std::sync::{Arc, Mutex};

#[test]
fn bits_do_not_depend_on_batches_or_threads() {
    for tiny in [Tiny::mixtral(), Tiny::qwen3next(), Tiny::lfm2moe()] {
        let (model, tokens) = (tiny.load(), text(70));
        let wanted = all(&mut runner(&model, 512, 1), &tokens);
        for (chunk, threads) in [(1, 1), (512, 2), (7, 3), (33, 2)] {
            assert_eq!(all(&mut runner(&model, chunk, threads), &tokens), wanted, "{chunk}, {threads}");
        }
        for sizes in [&[1usize][..], &[2], &[40, 1, 1, 3], &[17, 16, 5]] {
            assert_eq!(in_steps(&mut runner(&model, 512, 2), &tokens, sizes), wanted, "{sizes:?}");
        }
    }
}

#[test]
fn rows_that_nobody_reads_change_nothing() {
    for tiny in [Tiny::mixtral(), Tiny::qwen3next(), Tiny::lfm2moe()] {
        let (model, tokens) = (tiny.load(), text(20));
        let mut runner = runner(&model, 8, 1);
        let wanted = all(&mut runner, &tokens);
        let vocab = runner.vocab();
        let mut seq = runner.new_seq().unwrap();
        let cancel = CancelFlag::new();
        runner.step(&mut seq, &tokens[..9], Outputs::None, &cancel).unwrap();
        let logits = runner.step(&mut seq, &tokens[9..], Outputs::From(5), &cancel).unwrap();
        let bits: Vec<u32> = logits.iter().map(|logit| logit.to_bits()).collect();
        assert_eq!(bits, wanted[14 * vocab..]);
    }
}

/// The same weights: stacked, gate and up in one tensor, and each expert alone.
#[test]
fn three_layouts_of_experts_are_the_same_model() {
    let stacked = Tiny::mixtral();
    let tokens = text(30);
    let wanted = all(&mut runner(&stacked.load(), 512, 1), &tokens);
    let (mut fused, mut alone) = (stacked.clone(), stacked.clone());
    for layer in 0..3 {
        let name = |part: &str| format!("blk.{layer}.ffn_{part}_exps.weight");
        let (gate, up) = (&stacked.tensors[&name("gate")], &stacked.tensors[&name("up")]);
        let ff = gate.dims[1] as usize;
        let data = (0..EXPERTS as usize)
            .flat_map(|e| [gate.rows(e * ff, ff), up.rows(e * ff, ff)].concat())
            .collect();
        let mut both = gate.of_rows(data);
        both.dims = vec![gate.dims[0], 2 * ff as u64, EXPERTS];
        fused.tensors.insert(name("gate_up"), both);
        for part in ["gate", "up", "down"] {
            let tensor = &stacked.tensors[&name(part)];
            let rows = tensor.dims[1] as usize;
            for e in 0..EXPERTS as usize {
                let one = tensor.of_rows(tensor.rows(e * rows, rows).to_vec());
                alone.tensors.insert(format!("blk.{layer}.ffn_{part}.{e}.weight"), one);
            }
            alone.tensors.remove(&name(part));
            if part != "down" {
                fused.tensors.remove(&name(part));
            }
        }
    }
    assert_eq!(all(&mut runner(&fused.load(), 512, 1), &tokens), wanted);
    assert_eq!(all(&mut runner(&alone.load(), 512, 1), &tokens), wanted);
}

#[derive(Debug, Default)]
struct Recorder(Mutex<Vec<(usize, usize, Vec<u16>, Vec<u32>)>>);

impl RouteObserver for Recorder {
    fn routed(&self, route: &Route<'_>) {
        assert_eq!((route.chosen.len(), route.probabilities.len()), (3, EXPERTS as usize));
        let sum: f32 = route.probabilities.iter().sum();
        assert!((sum - 1.0).abs() < 1e-5, "softmax");
        let falling = route.chosen.windows(2).all(|pair| {
            route.probabilities[usize::from(pair[0])] >= route.probabilities[usize::from(pair[1])]
        });
        assert!(falling, "slots by falling probability");
        assert!((route.weights.iter().sum::<f32>() - 1.0).abs() < 1e-5, "normalised");
        let weights = route.weights.iter().map(|weight| weight.to_bits()).collect();
        self.0.lock().unwrap().push((route.position, route.layer, route.chosen.to_vec(), weights));
    }
}

#[test]
fn an_observer_sees_every_choice_the_same_in_any_batch() {
    let (model, tokens) = (Tiny::mixtral().load(), text(12));
    let record = |sizes: &[usize]| {
        let recorder = Arc::new(Recorder::default());
        let mut runner = runner(&model, 512, 1);
        runner.observe(Some(Arc::clone(&recorder) as Arc<dyn RouteObserver>));
        in_steps(&mut runner, &tokens, sizes);
        runner.observe(None);
        in_steps(&mut runner, &tokens, sizes);
        let mut routes = std::mem::take(&mut *recorder.0.lock().unwrap());
        routes.sort();
        routes
    };
    let together = record(&[12]);
    assert_eq!(together.len(), 3 * tokens.len());
    assert!(
        together.iter().map(|route| (route.0, route.1)).eq((0..12).flat_map(|t| (0..3).map(move |l| (t, l))))
    );
    assert_eq!(record(&[1]), together);
}

/// A cache of few experts gives the bits of the mapped file, in prefill and in decoding.
#[test]
fn streamed_experts_give_the_same_bits() {
    for tiny in [Tiny::mixtral(), Tiny::qwen3next()] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.gguf");
        tiny.write(&path);
        let tokens = text(60);
        let wanted = all(&mut runner(&tiny.load(), 512, 1), &tokens);
        let blueprint =
            || Blueprint::read(Arc::new(Gguf::open(&path).unwrap()), &ModelOptions::default()).unwrap();
        let model = blueprint();
        let plan = |budget| {
            let wish = ResidencyWish { budget: Some(budget), experts_used: model.experts_used() };
            ResidencyPlan::new(model.layout(), &wish).unwrap().unwrap()
        };
        let everything = plan(u64::MAX / 2);
        for slots in [8, 11, 16] {
            let plan = plan(everything.pinned_bytes + slots * everything.slot_bytes);
            assert_eq!(u64::from(plan.slots), slots);
            for prefetch in [true, false] {
                let stream = StreamOptions { prefetch, ..StreamOptions::default() };
                let accountant = Accountant::new(None);
                let loaded = blueprint().load(plan.clone(), &stream, &accountant).unwrap();
                let options = RunnerOptions::default();
                let mut runner =
                    Runner::new(Arc::new(loaded), Arc::new(Serial), &options, &accountant).unwrap();
                assert_eq!(all(&mut runner, &tokens), wanted, "{slots} slots, prefetch {prefetch}");
                assert_eq!(in_steps(&mut runner, &tokens, &[20, 1, 1, 1, 4]), wanted);
                let flash = runner.model().weights().flash();
                assert!(flash.expert_misses > slots && flash.expert_uses > flash.expert_misses, "{flash:?}");
            }
        }
    }
}

#[test]
fn impossible_experts_are_refused_by_name() {
    for (key, value, says) in [
        ("expert_used_count", 9u32, "fewer experts"),
        ("expert_used_count", 0, "at least 1"),
        ("expert_count", 1 << 20, "so many"),
        ("expert_count", 7, "ffn_gate_inp"),
        ("expert_feed_forward_length", 64, "ffn_gate_exps"),
    ] {
        let mut tiny = Tiny::mixtral();
        tiny.key(key, value);
        let error = tiny.try_load().unwrap_err().to_string();
        assert!(error.contains(says), "{key} = {value}: {error}");
    }
}
