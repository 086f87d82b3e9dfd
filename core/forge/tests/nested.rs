//! Files of two views: what is in them, and that the engine serves both.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::nested::*;
use pannier::memory::Accountant;
use pannier::model::{Forward, LoadedModel, ModelOptions, Outputs, Runner, RunnerOptions};
use pannier::residency::{FileSource, StreamOptions, View, WeightSource};
use pannier::session::{GenerationOptions, Model, Prompt};
use pannier::{CancelFlag, LoadOptions, ViewReason, WeightPrecision};
use pannier_forge::quantize::{FileType, Override};
use pannier_forge::{Error, Progress, QuantizeOptions, Silent, quantize};
use pannier_gguf::{GgmlType, Gguf, nested as names};
use pannier_kernels::Serial;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

fn distance(a: &[u32], b: &[u32]) -> f64 {
    let (a, b) = (a.iter().map(|x| f32::from_bits(*x)), b.iter().map(|x| f32::from_bits(*x)));
    let (mut error, mut energy) = (0f64, 0f64);
    for (a, b) in a.zip(b) {
        error += f64::from(a - b).powi(2);
        energy += f64::from(b).powi(2);
    }
    (error / energy).sqrt()
}

#[test]
fn planes_lie_apart_and_cost_nothing() {
    let f = fixture(false);
    let whole = f.folder.path().join("whole.gguf");
    let plain = QuantizeOptions { nested: false, ..options() };
    let plain = quantize(&f.input, &whole, &plain, &Silent).unwrap();
    let report = quantize(&f.input, &f.nested, &options(), &Silent).unwrap();
    assert!(report.bytes as f64 <= plain.bytes as f64 * 1.05, "{} of {}", report.bytes, plain.bytes);
    let gguf = Gguf::open(&f.nested).unwrap();
    assert_eq!(gguf.file_bytes(), report.bytes);
    assert_eq!(gguf.metadata().u32(names::VERSION_KEY).unwrap(), names::VERSION);
    let is_fine = |name: &str| name.ends_with(names::FINE);
    let first_fine = gguf.tensors().iter().position(|t| is_fine(&t.name)).unwrap();
    let (front, back) = gguf.tensors().split_at(first_fine);
    assert!(back.iter().all(|t| is_fine(&t.name)) && back.len() == 7 * LAYERS as usize);
    let fine: u64 = back.iter().map(|t| t.bytes).sum();
    assert!(front.iter().all(|t| t.offset + t.bytes <= back[0].offset));
    // Fine planes are in the order of the low ones.
    let low: Vec<_> = front.iter().filter_map(|t| t.name.strip_suffix(names::LOW)).collect();
    assert!(low.iter().zip(back).all(|(low, fine)| fine.name == format!("{low}{}", names::FINE)));
    let (low_bytes, bits) = report.plan.low.unwrap();
    assert_eq!(low_bytes, report.plan.tensor_bytes - fine);
    assert!(bits < report.plan.bits_per_weight);
    // The embedding and the output are there once.
    assert_eq!(gguf.tensor("output.weight").unwrap().ty, GgmlType::Q6_K);
    assert_eq!(gguf.tensor("token_embd.weight").unwrap().ty, GgmlType::Q5_K);
}

#[test]
fn the_full_view_is_q5_k_and_the_low_view_is_near() {
    for experts in [false, true] {
        let f = fixture(experts);
        let whole = f.folder.path().join("whole.gguf");
        joined(&f.nested, &whole);
        let full = logits(&mut runner(&f.nested, View::Full));
        assert_eq!(full, logits(&mut runner(&whole, View::Full)));
        let low = logits(&mut runner(&f.nested, View::Low));
        let exact = logits(&mut runner(&f.input, View::Full));
        let (near, far) = (distance(&full, &exact), distance(&low, &exact));
        // Random weights carry no redundancy: each layer adds its error to those before, and routers choose other experts.
        assert!(1.5 * near < far && far < 1.0, "full {near}, low {far}");
        // Switching is the same as loading.
        let mut both = runner(&f.nested, View::Full);
        both.set_view(View::Low).unwrap();
        assert_eq!(logits(&mut both), low);
        both.set_view(View::Full).unwrap();
        assert_eq!(logits(&mut both), full);
    }
}

/// Remembers what was read.
#[derive(Debug)]
struct Watched {
    file: FileSource,
    reads: Mutex<Vec<(u64, usize)>>,
}

impl WeightSource for Watched {
    fn read_at(&self, shard: usize, offset: u64, out: &mut [u8]) -> std::io::Result<usize> {
        self.reads.lock().unwrap().push((offset, out.len()));
        self.file.read_at(shard, offset, out)
    }

    fn check(&self) -> pannier::Result<()> {
        WeightSource::check(&self.file)
    }

    fn path(&self, shard: usize) -> &Path {
        self.file.path(shard)
    }
}

/// Where fine planes begin, rounded up to what direct reads are aligned to: a read of what lies before may touch that much.
fn fine_start(path: &Path) -> u64 {
    let gguf = Gguf::open(path).unwrap();
    let fine = gguf.tensors().iter().filter(|t| t.name.ends_with(names::FINE));
    fine.map(|t| t.offset).min().unwrap().next_multiple_of(4096)
}

#[test]
fn the_low_view_reads_only_its_own_bytes() {
    for experts in [false, true] {
        let f = fixture(experts);
        let want = logits(&mut runner(&f.nested, View::Low));
        // Mapped: whatever the fine planes hold does not matter.
        let spoilt = f.folder.path().join("spoilt.gguf");
        rewritten(&f.nested, &spoilt, Some(names::VERSION), |(name, dims, ty, mut data)| {
            if name.ends_with(names::FINE) {
                data.fill(0xA5);
            }
            Some((name, dims, ty, data))
        });
        assert_eq!(logits(&mut runner(&spoilt, View::Low)), want);
        assert_ne!(logits(&mut runner(&spoilt, View::Full)), logits(&mut runner(&f.nested, View::Full)));
        // Nor whether they are there.
        let without = f.folder.path().join("without.gguf");
        rewritten(&f.nested, &without, Some(names::VERSION), |stored| {
            Some(stored).filter(|(name, ..)| !name.ends_with(names::FINE))
        });
        assert_eq!(logits(&mut runner(&without, View::Low)), want);
        // Streamed and pinned: no read reaches them.
        let all = residency(&f.nested, View::Low, Some(u64::MAX / 2)).pinned_bytes;
        let budgets = if experts { vec![1 << 40] } else { vec![1 << 40, all * 7 / 10] };
        for budget in budgets {
            let plan = residency(&f.nested, View::Low, Some(budget));
            let source = Arc::new(Watched {
                file: FileSource::open(&Gguf::open(&f.nested).unwrap()).unwrap(),
                reads: Mutex::default(),
            });
            let stream = StreamOptions { source: Some(source.clone()), ..StreamOptions::default() };
            let mut runner = runner_with(&f.nested, View::Low, plan, &stream);
            assert_eq!(logits(&mut runner), want);
            drop(runner);
            let limit = fine_start(&f.nested);
            let reads = source.reads.lock().unwrap();
            assert!(!reads.is_empty());
            assert!(reads.iter().all(|(offset, len)| offset + *len as u64 <= limit), "{limit}: {reads:?}");
        }
    }
}

#[test]
fn views_alternate_wherever_the_weights_are() {
    for experts in [false, true] {
        let f = fixture(experts);
        let low = logits(&mut runner(&f.nested, View::Low));
        let full = logits(&mut runner(&f.nested, View::Full));
        let all = residency(&f.nested, View::Full, Some(u64::MAX / 2));
        let some = if experts { all.pinned_bytes + 9 * all.slot_bytes } else { all.pinned_bytes * 7 / 10 };
        for budget in [None, Some(u64::MAX / 2), Some(some)] {
            let plan = residency(&f.nested, View::Full, budget);
            let streamed = plan.streamed_bytes;
            let mut runner = runner_with(&f.nested, View::Full, plan, &StreamOptions::default());
            let read = |view: View, runner: &mut Runner| {
                let before = runner.model().weights().flash().bytes;
                runner.set_view(view).unwrap();
                let got = logits(runner);
                assert_eq!(
                    got,
                    if view == View::Low { low.clone() } else { full.clone() },
                    "{budget:?} {view}"
                );
                runner.model().weights().flash().bytes - before
            };
            let of_full = read(View::Full, &mut runner);
            read(View::Low, &mut runner);
            let of_low = read(View::Low, &mut runner);
            read(View::Full, &mut runner);
            read(View::Low, &mut runner);
            if streamed > 0 {
                assert!(of_low * 10 < of_full * 8, "low reads {of_low}, full {of_full}");
            }
            // Sequences of both views at the same time, each with its own.
            let mut seqs = Vec::new();
            for view in [View::Low, View::Full] {
                runner.set_view(view).unwrap();
                seqs.push(runner.new_seq().unwrap());
            }
            for step in [&ids(28)[..24], &ids(28)[24..25]] {
                for (seq, want) in seqs.iter_mut().zip([&low, &full]) {
                    let row = runner.step(seq, step, Outputs::Last, &CancelFlag::new()).unwrap();
                    let at = if step.len() == 24 { 0 } else { VOCAB as usize };
                    let bits: Vec<u32> = row.iter().map(|x| x.to_bits()).collect();
                    assert_eq!(bits, want[at..at + VOCAB as usize], "{budget:?}");
                }
            }
        }
    }
}

#[test]
fn plans_state_the_bytes_of_each_view() {
    let f = fixture(false);
    let (low, full) = (blueprint(&f.nested, View::Low).unwrap(), blueprint(&f.nested, View::Full).unwrap());
    let gguf = Gguf::open(&f.nested).unwrap();
    let fine: u64 = gguf.tensors().iter().filter(|t| t.name.ends_with(names::FINE)).map(|t| t.bytes).sum();
    assert!(fine > 0);
    assert_eq!(low.layout().bytes() + fine, full.layout().bytes());
    let pinned = |view| residency(&f.nested, view, Some(u64::MAX / 2)).pinned_bytes;
    let saved = pinned(View::Full) - pinned(View::Low);
    assert!(saved >= fine && saved < fine + (64 << 10), "{saved} of {fine}");
}

#[test]
fn prefixes_of_one_view_are_none_of_the_other() {
    let f = fixture(false);
    let mut both = runner(&f.nested, View::Full);
    let text = ids(100);
    for view in [View::Low, View::Full] {
        both.set_view(view).unwrap();
        assert_eq!(both.published(&text), 0, "{view}");
        let mut seq = both.new_seq().unwrap();
        both.step(&mut seq, &text, Outputs::Last, &CancelFlag::new()).unwrap();
        both.publish(&seq, &text);
        assert_eq!(both.published(&text), 96, "{view}");
    }
    for view in [View::Low, View::Full] {
        let mut alone = runner(&f.nested, view);
        let mut seq = alone.new_seq().unwrap();
        let want = alone.step(&mut seq, &text, Outputs::Last, &CancelFlag::new()).unwrap().to_vec();
        both.set_view(view).unwrap();
        let mut seq = both.resume(&text[..99]).unwrap().unwrap();
        let got = both.step(&mut seq, &text[96..], Outputs::Last, &CancelFlag::new()).unwrap();
        assert_eq!(got, want, "{view}");
        // A saved sequence is of its view, and says so when it is restored with the other.
        let mut saved = Vec::new();
        both.save(&seq, &text, &mut saved).unwrap();
        let mut other = runner(&f.nested, if view == View::Low { View::Full } else { View::Low });
        assert!(other.restore(&mut std::io::Cursor::new(&saved)).is_err());
        assert!(alone.restore(&mut std::io::Cursor::new(&saved)).is_ok());
    }
}

#[test]
fn hostile_files_are_refused_by_name() {
    let f = fixture(false);
    let bad = f.folder.path().join("bad.gguf");
    let victim = "blk.1.ffn_up.weight";
    let refused = |version: Option<u32>, change: &dyn Fn(Stored) -> Option<Stored>| {
        rewritten(&f.nested, &bad, version, change);
        [View::Low, View::Full].map(|view| blueprint(&bad, view).map(|_| ()).map_err(|e| e.to_string()))
    };
    let current = Some(names::VERSION);
    let named = |suffix: &str| format!("{victim}{suffix}");
    // A plane that is not there.
    let [low, full] = refused(current, &|s| Some(s).filter(|(name, ..)| *name != named(names::FINE)));
    assert!(low.is_ok());
    assert!(full.unwrap_err().contains(&named(names::FINE)));
    let [low, full] = refused(current, &|s| Some(s).filter(|(name, ..)| *name != named(names::LOW)));
    assert!(low.unwrap_err().contains(victim) && full.unwrap_err().contains(victim));
    // One that is too short, or of another type.
    for suffix in [names::LOW, names::FINE] {
        let [low, full] = refused(current, &|(name, mut dims, ty, mut data)| {
            if name == named(suffix) {
                dims[1] -= 1;
                data.truncate((dims[0] * dims[1]) as usize);
            }
            Some((name, dims, ty, data))
        });
        assert_eq!(low.is_ok(), suffix == names::FINE);
        assert!(full.unwrap_err().contains(&named(suffix)));
        let [low, full] = refused(current, &|(name, dims, ty, data)| {
            let ty = if name == named(suffix) { GgmlType::F16 } else { ty };
            let dims =
                if ty == GgmlType::F16 && name == named(suffix) { vec![dims[0], dims[1]] } else { dims };
            let data = if name == named(suffix) { [data.clone(), data].concat() } else { data };
            Some((name, dims, ty, data))
        });
        assert_eq!(low.is_ok(), suffix == names::FINE);
        assert!(full.unwrap_err().contains("F16"));
    }
    // Planes of a version that is not known, or of none.
    for version in [None, Some(2)] {
        let [low, full] = refused(version, &Some);
        assert!(low.unwrap_err().contains("nested precision") && full.is_err());
    }
    // A file that ends inside of its fine planes is refused when it is opened, as any that ends early.
    let bytes = std::fs::read(&f.nested).unwrap();
    std::fs::write(&bad, &bytes[..bytes.len() - 5000]).unwrap();
    assert!(Gguf::open(&bad).is_err());
    // A file without planes has no low view.
    assert!(blueprint(&f.input, View::Low).unwrap_err().to_string().contains("nested precision"));
}

#[test]
fn what_cannot_be_nested_is_refused() {
    let f = fixture(false);
    let out = f.folder.path().join("out.gguf");
    let again = quantize(&f.nested, &out, &options(), &Silent);
    assert!(matches!(again, Err(Error::Nested { .. })));
    let plain = QuantizeOptions::new(FileType::parse("Q4_K_M").unwrap());
    assert!(matches!(quantize(&f.nested, &out, &plain, &Silent), Err(Error::Nested { .. })));
    let other = QuantizeOptions { nested: true, ..plain };
    assert!(matches!(quantize(&f.input, &out, &other, &Silent), Err(Error::Nested { .. })));
    // What the user has chosen a type for stays whole.
    let overrides = vec![Override::parse("attn_=Q5_K").unwrap()];
    let report = quantize(&f.input, &out, &QuantizeOptions { overrides, ..options() }, &Silent).unwrap();
    let nested = report.plan.tensors.iter().filter(|t| t.nested);
    assert_eq!(nested.count(), 3 * LAYERS as usize);
}

/// Stops after so many pieces.
struct StopAfter(AtomicUsize);

impl Progress for StopAfter {
    fn cancelled(&self) -> bool {
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_err()
    }
}

#[test]
fn an_interrupted_run_goes_on_and_ends_alike() {
    let f = fixture(true);
    let want = std::fs::read(&f.nested).unwrap();
    let out = f.folder.path().join("resumed.gguf");
    for pieces in [3, 30, 50] {
        let stopped = quantize(&f.input, &out, &options(), &StopAfter(AtomicUsize::new(pieces)));
        assert!(matches!(stopped, Err(Error::Cancelled)));
        assert!(!out.exists());
    }
    quantize(&f.input, &out, &options(), &Silent).unwrap();
    assert!(std::fs::read(&out).unwrap() == want);
}

#[test]
fn requests_choose_their_view() {
    use WeightPrecision::{Auto, Full, Low};
    let f = fixture(false);
    let prompt = ids(40);
    let alone = |precision| answer(&load(&f.nested, precision).session(), &prompt, None);
    let (low, full) = (alone(Low), alone(Full));
    assert_eq!((low.1, full.1), (View::Low, View::Full));
    assert!(low.2.is_empty() && full.2.is_empty());
    assert_ne!(low.0, full.0);
    // One session, one view after the other: nothing of one shows in the other.
    let model = load(&f.nested, Full);
    let session = model.session();
    for wish in [Some(Low), None, Some(Low), Some(Full), Some(Low)] {
        let got = answer(&session, &prompt, wish);
        assert_eq!(got, if wish == Some(Low) { low.clone() } else { full.clone() });
    }
    // Random weights are never sure: the first words are the low view's, the rest is what the full view makes of them.
    let auto = answer(&session, &prompt, Some(Auto));
    assert_eq!(auto.2, [(View::Low, ViewReason::ShortPrompt), (View::Full, ViewReason::Unsure)]);
    assert_eq!((auto.1, &auto.0[..8]), (View::Full, &low.0[..8]));
    let so_far = [&prompt, &low.0[..8]].concat();
    let rest = answer(&load(&f.nested, Full).session(), &so_far, None);
    assert_eq!(auto.0[8..], rest.0[..12]);
    // Whatever was read before, the answer is the same.
    assert_eq!(answer(&load(&f.nested, Auto).session(), &prompt, None), auto);
    assert_eq!(answer(&session, &prompt, Some(Auto)), auto);
    // Long prompts are read by the full view.
    let long = answer(&session, &ids(600), Some(Auto));
    assert_eq!(long.2, [(View::Full, ViewReason::LongPrompt)]);
    // What is not there is refused, by each request.
    let refused = |model: &Arc<Model>, wish| {
        let options = GenerationOptions { weight_precision: Some(wish), ..GenerationOptions::greedy(3) };
        model
            .session()
            .generate(Prompt::from(&prompt[..]), options, &mut |_| ControlFlow::Continue(()))
            .is_err()
    };
    assert!(refused(&load(&f.nested, Low), Full));
    let whole = f.folder.path().join("whole.gguf");
    joined(&f.nested, &whole);
    let plain = load(&whole, Full);
    assert!(refused(&plain, Low));
    let only = answer(&plain.session(), &prompt, Some(Auto));
    assert_eq!((only.0, only.2), (full.0, vec![(View::Full, ViewReason::OnlyOne)]));
    let low_only = LoadOptions { weight_precision: Low, ..LoadOptions::default() };
    assert!(Model::load(&whole, &low_only, &mut |_| {}).is_err());
}

#[test]
fn a_budget_between_the_views_fits_the_low_one() {
    let f = fixture(false);
    let plan = |view, budget| {
        let wish = pannier::plan::PlanWish {
            budget: Some(budget),
            chunk: Some(16),
            threads: 1,
            ..Default::default()
        };
        let options = ModelOptions { context: Some(64), view };
        pannier::plan::prepare(&Arc::new(Gguf::open(&f.nested).unwrap()), &options, &wish).unwrap().1
    };
    let roomy = plan(View::Full, 1 << 30);
    let fine = roomy.weight_bytes - plan(View::Low, 1 << 30).weight_bytes;
    assert!(roomy.residency.mapped);
    // All but half of the fine planes fit.
    let other = roomy.peak_bytes + (2 << 20);
    let budget = other + roomy.weight_bytes - fine / 2;
    let (low, full) = (plan(View::Low, budget), plan(View::Full, budget));
    assert!(low.residency.mapped && !full.residency.mapped, "{low:?}\n{full:?}");
    assert!(full.notes.iter().any(|note| note.contains("low view")), "{:?}", full.notes);
}

#[test]
fn loaded_models_say_what_they_have() {
    let f = fixture(false);
    let accountant = Accountant::new(None);
    let options = |view| ModelOptions { view, ..ModelOptions::default() };
    let gguf = Arc::new(Gguf::open(&f.nested).unwrap());
    for view in [View::Low, View::Full] {
        let model = LoadedModel::new(Arc::clone(&gguf), &options(view), &accountant).unwrap();
        assert_eq!(model.view(), view);
        let runner =
            Runner::new(Arc::new(model), Arc::new(Serial), &RunnerOptions::default(), &accountant).unwrap();
        assert!(runner.has_view(View::Low));
        assert_eq!(runner.has_view(View::Full), view == View::Full);
    }
    let model = load(&f.nested, WeightPrecision::Low);
    let notes = &model.info().notes;
    assert!(notes.iter().any(|note| note.contains("low view")), "{notes:?}");
}
