//! The routed feed-forward block.

use crate::tiny::{EXPERTS, Tiny, all, in_steps, runner, text};
use pannier::memory::{Accountant, MemoryPressure, PressureOptions, ThermalLevel};
use pannier::model::{
    Blueprint, ExpertShortcuts, Forward, ModelOptions, Outputs, Route, RouteObserver, RouteRecorder, Runner,
    RunnerOptions,
};
use pannier::pack::pack;
use pannier::plan::{DeviceProfile, Plan, PlanWish};
use pannier::residency::policy::POLICIES;
use pannier::residency::{ResidencyPlan, ResidencyWish, RouteTrace, StreamOptions, replay};
use pannier::session::{Clock, GenerationEvent, GenerationOptions, Model, ModelParts, Notice, Prompt};
use pannier::{CancelFlag, KvOptions};
use pannier_gguf::Gguf;
use pannier_kernels::Serial;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn all_kinds() -> [Tiny; 5] {
    [Tiny::mixtral(), Tiny::qwen3next(), Tiny::lfm2moe(), Tiny::gemma4(), Tiny::gemma4_experts()]
}

#[test]
fn bits_do_not_depend_on_batches_or_threads() {
    for tiny in all_kinds() {
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
    for tiny in all_kinds() {
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

fn blueprint(path: &Path) -> Blueprint {
    Blueprint::read(Arc::new(Gguf::open(path).unwrap()), &ModelOptions::default()).unwrap()
}

/// A runner whose cache has room for so many experts.
fn streamed(path: &Path, slots: u64, stream: &StreamOptions) -> Runner {
    streamed_with(path, slots, stream, &RunnerOptions::default())
}

fn streamed_with(path: &Path, slots: u64, stream: &StreamOptions, options: &RunnerOptions) -> Runner {
    let model = blueprint(path);
    let plan = |budget| {
        let wish = ResidencyWish { budget: Some(budget), experts_used: model.experts_used() };
        ResidencyPlan::new(model.layout(), &wish).unwrap().unwrap()
    };
    let everything = plan(u64::MAX / 2);
    let plan = plan(everything.pinned_bytes + slots * everything.slot_bytes);
    assert_eq!(u64::from(plan.slots), slots);
    let accountant = Accountant::new(None);
    let loaded = blueprint(path).load(plan, stream, &accountant).unwrap();
    Runner::new(Arc::new(loaded), Arc::new(Serial), options, &accountant).unwrap()
}

/// A cache of few experts gives the bits of the mapped file: in prefill and in decoding, under every policy, with and without
/// reading ahead, from the file and from its pack. With experts in F16 beside a shared one that is quantised, too: the rounding of the
/// block's input must not wait for the first expert that arrives.
#[test]
fn streamed_experts_give_the_same_bits() {
    let halves = Tiny::qwen3next().with_half_experts();
    for tiny in [Tiny::mixtral(), Tiny::qwen3next(), halves, Tiny::gemma4_experts()] {
        let folder = tempfile::tempdir().unwrap();
        let (path, packed) = (folder.path().join("tiny.gguf"), folder.path().join("tiny.pack"));
        tiny.write(&path);
        pack(&Gguf::open(&path).unwrap(), &packed, &mut |_, _| {}).unwrap();
        let tokens = text(60);
        let wanted = all(&mut runner(&tiny.load(), 512, 1), &tokens);
        for path in [&path, &packed] {
            for (slots, policy) in [(8, 0), (11, 0), (16, 0), (9, 1), (9, 2), (9, 3), (9, 4)] {
                let policy = POLICIES[policy].name;
                for (prefetch, guess) in [(true, false), (true, true), (false, false)] {
                    let stream = StreamOptions { prefetch, guess, policy, ..StreamOptions::default() };
                    let mut runner = streamed(path, slots, &stream);
                    let what = format!("{slots} slots, {policy}, prefetch {prefetch}, guess {guess}");
                    assert_eq!(all(&mut runner, &tokens), wanted, "{what}");
                    assert_eq!(in_steps(&mut runner, &tokens, &[20, 1, 1, 1, 4]), wanted, "{what}");
                    let flash = runner.model().weights().flash();
                    // An expert that was read ahead may have to leave again before its turn, so misses are not bound by uses.
                    assert!(flash.expert_misses > slots && flash.expert_uses > 100, "{what}: {flash:?}");
                }
            }
        }
    }
}

/// What is left out saves reads and is counted; what is in memory is never left out.
#[test]
fn shortcuts_leave_out_only_what_they_are_asked_to() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    Tiny::mixtral().write(&path);
    let (model, tokens) = (Tiny::mixtral().load(), text(40));
    let with = |shortcuts, slots: Option<u64>| {
        let options = RunnerOptions { shortcuts, ..RunnerOptions::default() };
        let mut runner = match slots {
            None => {
                Runner::new(Arc::clone(&model), Arc::new(Serial), &options, &Accountant::new(None)).unwrap()
            }
            Some(slots) => streamed_with(&path, slots, &StreamOptions::default(), &options),
        };
        let bits = in_steps(&mut runner, &tokens, &[8, 1, 1, 1, 1, 1, 1]);
        (bits, runner.dropped_experts(), runner.model().weights().flash().expert_uses)
    };
    let off = ExpertShortcuts::default();
    let (exact, dropped, _) = with(off, None);
    assert_eq!(dropped, 0);
    // All that the model asks for, and nothing absent: the same bits.
    for same in [
        ExpertShortcuts { at_most: Some(9), ..off },
        ExpertShortcuts { drop_below: 0.9, ..off },
        ExpertShortcuts { prefer_present: 0.3, ..off },
    ] {
        assert_eq!(with(same, None), (exact.clone(), 0, 0), "{same:?}");
    }
    let (bits, _, _) = with(ExpertShortcuts { at_most: Some(1), ..off }, None);
    assert!(
        bits.len() == exact.len() && bits != exact && bits.iter().all(|&b| f32::from_bits(b).is_finite())
    );
    let (_, _, uses) = with(off, Some(8));
    let (bits, dropped, fewer) = with(ExpertShortcuts { drop_below: 0.33, ..off }, Some(8));
    assert!(dropped > 0 && fewer < uses && bits != exact, "{dropped} of {uses}, {fewer}");
    assert!(bits.iter().all(|&b| f32::from_bits(b).is_finite()));
    let (bits, dropped, _) = with(ExpertShortcuts { prefer_present: 0.5, ..off }, Some(8));
    assert!(dropped == 0 && bits.iter().all(|&b| f32::from_bits(b).is_finite()));
}

/// A file that many may write to.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_recorded_trace_has_every_choice_and_what_came_near() {
    let (model, file) = (Tiny::mixtral().load(), Shared::default());
    let recorder = Arc::new(RouteRecorder::new(&model, Box::new(file.clone())).unwrap());
    let seen = Arc::new(Recorder::default());
    let mut runner = runner(&model, 8, 1);
    let tokens = text(21);
    for observer in [recorder.clone() as Arc<dyn RouteObserver>, seen.clone()] {
        runner.observe(Some(observer));
        // Two prompts; the second in one chunk and one token.
        for prompt in [12, 9] {
            recorder.begin_turn(prompt);
            let mut seq = runner.new_seq().unwrap();
            let cancel = CancelFlag::new();
            runner.step(&mut seq, &tokens[..prompt], Outputs::All, &cancel).unwrap();
            for token in &tokens[prompt..] {
                runner.step(&mut seq, &[*token], Outputs::Last, &cancel).unwrap();
            }
        }
    }
    recorder.finish().unwrap();
    let text = String::from_utf8(file.0.lock().unwrap().clone()).unwrap();
    let trace = RouteTrace::parse(&text).unwrap();
    assert_eq!((trace.arch.as_str(), trace.layers, trace.experts, trace.used), ("llama", 3, 8, 3));
    assert_eq!(trace.to_csv(), text, "written in one form");
    let choices = seen.0.lock().unwrap();
    assert_eq!(trace.visits.len(), choices.len());
    for (visit, (position, layer, chosen, weights)) in trace.visits.iter().zip(choices.iter()) {
        let prompt = [12, 9][visit.turn as usize];
        assert_eq!((visit.layer, visit.decode), (*layer, *position >= prompt));
        assert_eq!(visit.step as usize, position - if visit.decode { prompt } else { 0 });
        assert_eq!(&visit.chosen, chosen);
        assert!(visit.weights.iter().map(|w| w.to_bits()).eq(weights.iter().copied()));
        let near = |expert: &u16| visit.near.iter().find(|(other, _)| other == expert).unwrap().1;
        let cut = chosen.iter().map(near).fold(1.0, f32::min);
        assert!(visit.near.iter().all(|(expert, p)| chosen.contains(expert) || *p <= cut));
    }
    // What is recorded can be replayed, and knows more than the choices alone.
    let slots = 6 * trace.expert_bytes[0];
    let [reuse, lru] = ["reuse", "lru"].map(|policy| replay(&trace, slots, policy).unwrap());
    assert_eq!((reuse.uses, lru.uses), (3 * 3 * (9 + 12), 3 * 3 * (9 + 12)));
    let dense = crate::tiny::Tiny::dense().load();
    assert!(RouteRecorder::new(&dense, Box::new(std::io::sink())).is_none());
}

/// Tokens of an answer, notices, and the bytes of the cache at its end. `at` is called before each notice or token.
fn answer(model: &Arc<Model>, tokens: usize, at: impl Fn(usize)) -> (Vec<u32>, Vec<Notice>, u64) {
    let (mut notices, mut events) = (Vec::new(), 0);
    let options = GenerationOptions { ignore_eog: true, ..GenerationOptions::greedy(tokens) };
    let completion = model.session().generate(Prompt::Tokens(text(9)), options, &mut |event| {
        if let GenerationEvent::Notice(notice) = event {
            notices.push(notice);
        }
        at(events);
        events += 1;
        ControlFlow::Continue(())
    });
    let cache = model.with_forward(&CancelFlag::new(), |runner| Ok(runner.model().weights().cache_bytes()));
    (completion.unwrap().ids().collect(), notices, cache.unwrap())
}

/// A real model, streamed, while the system takes memory and cores away and gives them back.
#[test]
fn pressure_and_heat_in_the_middle_of_an_answer_change_no_token() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    Tiny::mixtral().write(&path);
    let model = |clock: &Arc<Stepping>| {
        let runner = streamed(&path, 20, &StreamOptions::default());
        // Only what this test says counts, not what the machine has left.
        let pressure = PressureOptions { floor: 0, ..PressureOptions::default() };
        let clock: Arc<dyn Clock> = Arc::clone(clock) as Arc<dyn Clock>;
        Model::from_parts(ModelParts { pressure, clock, ..ModelParts::new(runner) })
    };
    let calm = model(&Arc::default());
    let (expected, notices, full) = answer(&calm, 40, |_| {});
    assert_eq!((expected.len(), notices.len()), (40, 0));
    let clock: Arc<Stepping> = Arc::default();
    let pressed = model(&clock);
    let (tokens, notices, cache) = answer(&pressed, 40, |event| match event {
        8 => pressed.on_memory_pressure(MemoryPressure::Critical),
        12 => pressed.on_thermal(ThermalLevel::Critical),
        _ => {}
    });
    assert_eq!(tokens, expected);
    let slot = full / 20;
    let shrunk = Notice::MemoryPressure { level: MemoryPressure::Critical, cache_bytes: 8 * slot };
    assert_eq!(notices, [shrunk, Notice::Heat { level: ThermalLevel::Critical, threads: 1 }]);
    assert_eq!(cache, 8 * slot, "the budget has shrunk");
    // Nobody says that it is over: the cache grows back when it has been calm for a while.
    clock.0.fetch_add(31_000, Ordering::Relaxed);
    let (tokens, notices, cache) = answer(&pressed, 40, |_| {});
    assert_eq!(tokens, expected);
    let grown = full + KvOptions::default().prefix_bytes;
    assert_eq!(notices, [Notice::MemoryPressure { level: MemoryPressure::Normal, cache_bytes: grown }]);
    assert_eq!(cache, full);
}

/// A clock on which every look takes a millisecond.
#[derive(Debug, Default)]
struct Stepping(AtomicU64);

impl Clock for Stepping {
    fn now(&self) -> Duration {
        Duration::from_millis(self.0.fetch_add(1, Ordering::Relaxed))
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

/// What is waited for: more with a smaller cache, more where one read alone is slow, never less than reading all that is missed.
#[test]
fn plans_wait_for_experts_that_are_missed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mixture.gguf");
    Tiny::mixtral().write(&path);
    let model = blueprint(&path);
    let measured = DeviceProfile::measure(&Serial, Some(&model)).unwrap();
    assert!(measured.lone_read.is_finite() && measured.lone_read > 0.0, "{measured:?}");

    let slow =
        DeviceProfile { flash_bps: 1e6, lone_read: 0.5, ..DeviceProfile::custom(8 << 30, 1e6, 1e10, 10.0) };
    let plan = |device: &DeviceProfile, budget: u64| {
        Plan::new(&model, device, &PlanWish { budget: Some(budget), chunk: Some(16), ..PlanWish::default() })
            .unwrap()
    };
    let all = plan(&slow, 1 << 30);
    assert_eq!((all.expert_hit_rate, all.time.stalls), (Some(1.0), 0.0));
    // The model is small beside what a process needs besides, so that few budgets lie between nothing and everything.
    let mut budgets =
        (1..5000u64).map(|step| plan(&slow, step << 12)).filter(|plan| plan.fits && !plan.residency.mapped);
    let small = budgets.next().unwrap();
    let large = budgets.next_back().unwrap();
    assert!(small.expert_hit_rate < large.expert_hit_rate, "{small:?} {large:?}");
    assert!(small.time.stalls > large.time.stalls && large.time.stalls > 0.0, "{small:?} {large:?}");
    let budget = small.budget;
    let quick = plan(&DeviceProfile { lone_read: 1.0, ..slow.clone() }, budget);
    assert!(quick.time.stalls < small.time.stalls && quick.time.flash == small.time.flash);
    for plan in [&small, &large, &quick] {
        assert!(1.0 / plan.decode_tok_s >= plan.streamed_bytes_per_token as f64 / 1e6 * 0.999, "{plan:?}");
    }
}
