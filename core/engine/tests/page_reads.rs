//! Reading only the pages that matter: no bit depends on how a text came, and nothing is forgotten.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod golden_support;

use golden_support::{real, tiny};
use pannier::kv::{KvOptions, KvPolicy, KvTypes, PageReads};
use pannier::memory::Accountant;
use pannier::model::{Forward, LoadedModel, ModelOptions, Outputs, Runner, RunnerOptions};
use pannier::pool::Pool;
use pannier::sampling::SamplerOptions;
use pannier::session::{Completion, GenerationOptions, Model, ModelParts};
use pannier::speculate::{Proposer, Scripted, Speculation};
use pannier::{CancelFlag, Error, LoadOptions};
use pannier_gguf::Gguf;
use pannier_kernels::Kernels;
use std::io::Cursor;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

/// Of a text of 400 tokens, 13 pages, this reads five.
const FIVE: KvPolicy = KvPolicy::Pages { tokens: 160 };
const CONTEXT: usize = 448;

/// Dense with groups of heads, with windows, with sinks and experts, and with recurrent states.
const MODELS: [&str; 4] = ["arch-llama-dense", "arch-gemma3-dense", "arch-gpt-oss-moe", "arch-qwen35-dense"];

/// In all layers, as these models have few.
const CHANNEL: KvTypes = KvTypes { edges: 0, ..KvTypes::Q4_CHANNEL };

fn open(path: &Path) -> Arc<LoadedModel> {
    let options = ModelOptions { context: Some(CONTEXT), ..ModelOptions::default() };
    Arc::new(LoadedModel::new(Arc::new(Gguf::open(path).unwrap()), &options, &Accountant::new(None)).unwrap())
}

fn open_tiny(name: &str) -> Arc<LoadedModel> {
    open(&tiny(&format!("{name}.gguf")))
}

fn runner(model: &Arc<LoadedModel>, policy: KvPolicy, types: KvTypes) -> Runner {
    runner_with(model, policy, types, (2, 512))
}

fn runner_with(
    model: &Arc<LoadedModel>,
    policy: KvPolicy,
    types: KvTypes,
    (threads, chunk): (usize, usize),
) -> Runner {
    let kv = KvOptions { policy, types, ..KvOptions::default() };
    let options = RunnerOptions { kv, chunk, ..RunnerOptions::default() };
    Runner::new(Arc::clone(model), Arc::new(Pool::new(threads)), &options, &Accountant::new(None)).unwrap()
}

/// Texts that do not repeat themselves, so that pages differ.
fn tokens(n: usize, vocab: usize) -> Vec<u32> {
    (0..n).map(|i| ((i * i * 7 + i * 13 + 1) % vocab) as u32).collect()
}

fn step(runner: &mut Runner, seq: &mut <Runner as Forward>::Seq, tokens: &[u32]) -> Vec<u32> {
    let logits = runner.step(seq, tokens, Outputs::Last, &CancelFlag::new()).unwrap();
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
        let logits = runner.step(&mut seq, tokens, Outputs::All, &CancelFlag::new()).unwrap();
        out.extend(logits.iter().map(|logit| logit.to_bits()));
    }
    out
}

#[test]
fn threads_chunks_and_steps_change_no_bit() {
    for name in MODELS {
        let model = open_tiny(name);
        let ids = tokens(400, model.spec().vocab);
        for types in [KvTypes::F16, KvTypes::K8V4, KvTypes::Q4, CHANNEL] {
            let of = |threads, chunk, step| {
                logits(&mut runner_with(&model, FIVE, types, (threads, chunk)), &ids, step, 30)
            };
            let expected = of(1, 512, 400);
            for (threads, chunk, step) in [(1, 512, 1), (2, 512, 7), (3, 33, 400), (3, 512, 100), (2, 1, 400)]
            {
                assert!(
                    of(threads, chunk, step) == expected,
                    "{name} {types}: {threads} threads, chunks of {chunk}, steps of {step}"
                );
            }
            // What is not read makes a difference, or nothing was tested.
            let all = logits(&mut runner(&model, KvPolicy::KeepAll, types), &ids, 400, 30);
            assert!(all != expected, "{name} {types}");
        }
    }
}

/// As many pages as there are, or more: the bits of a cache without a policy.
#[test]
fn with_room_for_all_pages_nothing_changes() {
    for name in MODELS {
        let model = open_tiny(name);
        let ids = tokens(400, model.spec().vocab);
        for types in [KvTypes::F16, KvTypes::Q4, CHANNEL] {
            let all = logits(&mut runner(&model, KvPolicy::KeepAll, types), &ids, 64, 300);
            for tokens in [400, usize::MAX] {
                let mut pages = runner(&model, KvPolicy::Pages { tokens }, types);
                assert!(logits(&mut pages, &ids, 64, 300) == all, "{name} {types} {tokens}");
                assert_eq!(pages.page_reads().share(), Some(1.0));
            }
        }
    }
}

#[test]
fn instruction_sets_change_no_bit() {
    let model = open_tiny("arch-qwen3-dense");
    let ids = tokens(300, model.spec().vocab);
    for types in KvTypes::names().map(|name| name.parse::<KvTypes>().unwrap()) {
        let of = |kernels: &'static Kernels| {
            let kv = KvOptions { policy: FIVE, types, ..KvOptions::default() };
            let options = RunnerOptions { kernels: Some(kernels), kv, ..RunnerOptions::default() };
            let pool = Arc::new(Pool::new(2));
            let mut runner = Runner::new(Arc::clone(&model), pool, &options, &Accountant::new(None)).unwrap();
            logits(&mut runner, &ids, 99, 5)
        };
        let all = Kernels::available();
        let expected = of(all[0]);
        for kernels in &all[1..] {
            assert!(of(kernels) == expected, "{types} {:?}", kernels.isa());
        }
    }
}

/// Forks, cuts, prefixes and files: what follows has the bits of a text that was read from its start.
#[test]
fn however_a_text_came_what_follows_is_the_same() {
    for name in MODELS {
        for types in [KvTypes::F16, KvTypes::Q8, CHANNEL] {
            let model = open_tiny(name);
            let ids = tokens(390, model.spec().vocab);
            let fresh = |ids: &[u32]| {
                let mut cold = runner(&model, FIVE, types);
                let mut seq = cold.new_seq().unwrap();
                step(&mut cold, &mut seq, ids)
            };
            let expected = fresh(&ids);
            let mut warm = runner(&model, FIVE, types);
            let mut seq = warm.new_seq().unwrap();
            step(&mut warm, &mut seq, &ids[..352]);
            warm.publish(&seq, &ids[..352]);
            let mut fork = warm.fork(&seq).unwrap();
            assert!(step(&mut warm, &mut seq, &ids[352..]) == expected, "{name} {types}: steps");
            // Another text, and back again; recurrent states go back a little way only.
            step(&mut warm, &mut fork, &[9; 10]);
            let kept = warm.truncate_near(&mut fork, 353).unwrap();
            if let Some(kept) = kept.filter(|&kept| kept <= 352) {
                assert!(step(&mut warm, &mut fork, &ids[kept..]) == expected, "{name} {types}: fork and cut");
            }
            let mut resumed = warm.resume(&ids[..389]).unwrap().unwrap();
            assert_eq!(Runner::len(&resumed), 352);
            assert!(step(&mut warm, &mut resumed, &ids[352..]) == expected, "{name} {types}: prefix");
            let mut other = ids.clone();
            other[360] ^= 1;
            let mut resumed = warm.resume(&other[..389]).unwrap().unwrap();
            assert!(step(&mut warm, &mut resumed, &other[352..]) == fresh(&other), "{name} {types}: branch");

            let mut file = Vec::new();
            warm.save(&seq, &ids, &mut file).unwrap();
            let next = step(&mut warm, &mut seq, &[3]);
            let mut two = runner(&open_tiny(name), FIVE, types);
            let (mut restored, read) = two.restore(&mut Cursor::new(&file)).unwrap();
            assert_eq!(read, ids);
            assert!(step(&mut two, &mut restored, &[3]) == next, "{name} {types}: file");
            // What was read with other pages has other keys and values.
            for policy in [KvPolicy::KeepAll, KvPolicy::Pages { tokens: 192 }] {
                let refused = runner(&model, policy, types).restore(&mut Cursor::new(&file)).map(|_| ());
                assert!(matches!(refused, Err(Error::BadCacheFile { .. })), "{refused:?}");
            }
        }
    }
}

fn essence(done: &Completion) -> Vec<(u32, u32, u32)> {
    done.tokens.iter().map(|token| (token.id, token.logprob.to_bits(), token.entropy.to_bits())).collect()
}

/// Guesses are checked in wider passes, in which each query still reads its own pages.
#[test]
fn guesses_change_no_bit_of_an_answer() {
    for name in MODELS {
        for types in [KvTypes::F16, CHANNEL] {
            let loaded = open_tiny(name);
            let model = Model::from_parts(ModelParts::new(runner(&loaded, FIVE, types)));
            let prompt = tokens(310, model.vocab());
            let answer = |speculation| {
                let sampler = SamplerOptions { seed: Some(5), ..SamplerOptions::unfiltered() };
                let options = GenerationOptions {
                    max_tokens: Some(60),
                    sampler,
                    ignore_eog: true,
                    speculation: Some(speculation),
                    // Of this length whatever the governor thinks of them.
                    draft_len: Some(5),
                    ..GenerationOptions::default()
                };
                let session = model.session();
                session.generate(prompt.as_slice(), options, &mut |_| ControlFlow::Continue(())).unwrap()
            };
            let expected = answer(Speculation::Off);
            assert!(expected.stats.page_reads.share().is_some_and(|share| share < 0.5));
            for right in [0.3, 0.9] {
                let text: Arc<[u32]> = prompt.iter().copied().chain(expected.ids()).collect();
                let vocab = model.vocab();
                let guessed = answer(Speculation::Custom(Arc::new(move || -> Box<dyn Proposer> {
                    Box::new(Scripted::new(Arc::clone(&text), vocab, right, 11))
                })));
                assert_eq!(essence(&guessed), essence(&expected), "{name} {types} {right}");
                assert!(guessed.stats.speculation.accepted_tokens > 0, "{name} {types} {right}");
            }
        }
    }
}

#[test]
fn what_was_read_is_told() {
    let model = open_tiny("arch-llama-dense");
    let layers = model.spec().attention.len() as u64;
    let ids = tokens(400, model.spec().vocab);
    let mut runner = runner(&model, FIVE, KvTypes::F16);
    let mut seq = runner.new_seq().unwrap();
    step(&mut runner, &mut seq, &ids);
    let before = runner.page_reads();
    step(&mut runner, &mut seq, &[1]);
    assert_eq!(runner.page_reads().since(before), PageReads { read: 5 * layers, there: 13 * layers });
    // A step that fails has read nothing.
    let cancel = CancelFlag::new();
    cancel.cancel();
    let before = runner.page_reads();
    runner.step(&mut seq, &[1], Outputs::Last, &cancel).unwrap_err();
    assert_eq!(runner.page_reads(), before);
    // Forgetting is another policy's business.
    let refused = runner.evict_with(&mut seq, KvPolicy::Window { recent: 40 });
    assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
    assert_eq!(runner.evict(&mut seq).unwrap().gone, 0);
}

/// Through the front door: loading says what does not go together, plans count summaries, and answers tell what was read.
#[test]
fn a_real_model_reads_a_share_of_its_pages() {
    let path = real("SmolLM2-135M-Instruct.Q4_1.gguf");
    let options = |policy| LoadOptions {
        context: Some(512),
        kv: KvOptions { policy, ..KvOptions::default() },
        ..LoadOptions::default()
    };
    let refused = Model::load(&path, &options(KvPolicy::Pages { tokens: 64 }), &mut |_| {}).map(|_| ());
    assert!(matches!(refused, Err(Error::BadOption { option: "tokens", .. })), "{refused:?}");
    let model = Model::load(&path, &options(FIVE), &mut |_| {}).unwrap();
    let prompt = tokens(400, 40_000);
    let generation = GenerationOptions { ignore_eog: true, ..GenerationOptions::greedy(20) };
    let done =
        model.session().generate(prompt.as_slice(), generation, &mut |_| ControlFlow::Continue(())).unwrap();
    // Five of 13 or 14 pages.
    let share = done.stats.page_reads.share().unwrap();
    assert!((5.0 / 14.0..=5.0 / 13.0).contains(&share), "{share}");
}
