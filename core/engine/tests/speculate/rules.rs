//! Guesses and everything else that a generation can meet: stop strings, limits, cancelling, constraints, budgets, pressure.

use crate::fake::{Fake, bytes};
use crate::golden_support::tiny;
use crate::models::{Plenty, answer, model, prompt, runner};
use pannier::lifecycle::plan_file;
use pannier::memory::{Accountant, MemoryPressure};
use pannier::model::Runner;
use pannier::plan::DraftShare;
use pannier::sampling::{HookError, LogitHook, SamplerOptions};
use pannier::session::{
    FinishReason, GenerationEvent, GenerationOptions, LoadOptions, Model, ModelParts, Notice, Prompt,
};
use pannier::speculate::{Ask, CLASSES, Draft, Proposal, Proposer, Speculation, SpeculationError};
use pannier::{DraftOptions, Error, KvOptions, Result};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Guesses a text, whatever there was.
struct Knows(Vec<u32>, usize);

impl Proposer for Knows {
    fn name(&self) -> &'static str {
        "knows"
    }

    fn prior(&self) -> [f64; CLASSES] {
        [0.9; CLASSES]
    }

    fn propose(&mut self, ask: &Ask<'_>, out: &mut Proposal) -> Result<()> {
        for place in ask.len()..ask.len() + ask.max {
            let Some(&token) = place.checked_sub(self.1).and_then(|i| self.0.get(i)) else { break };
            out.push(ask, token, 0);
        }
        Ok(())
    }
}

fn knows(text: &str, after: usize) -> Speculation {
    let text = bytes(text);
    Speculation::Custom(Arc::new(move || -> Box<dyn Proposer> { Box::new(Knows(text.clone(), after)) }))
}

const TEXT: &str = "one two three, é🙂 four five six";

fn said(speculation: &Speculation, options: GenerationOptions) -> (String, FinishReason, usize, Vec<usize>) {
    let fake = Fake::answering(1, bytes(TEXT));
    let log = Arc::clone(&fake.log);
    let session = fake.with_bytes().session();
    let options = GenerationOptions { speculation: Some(speculation.clone()), draft_len: Some(5), ..options };
    let mut told = String::new();
    let done = session
        .generate(Prompt::Tokens(vec![65]), options, &mut |event| {
            if let GenerationEvent::Text { text, .. } = event {
                told.push_str(text);
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(done.text, told);
    let steps = log.lock().unwrap().clone();
    (done.text, done.finish_reason, session.cached_tokens(), steps)
}

fn greedy() -> GenerationOptions {
    GenerationOptions { sampler: SamplerOptions::greedy(), ..GenerationOptions::default() }
}

#[test]
fn answers_end_where_they_would_have_ended() {
    let right = knows(TEXT, 1);
    for options in [
        greedy(),
        GenerationOptions { stop: vec!["three".into()], ..greedy() },
        GenerationOptions { stop: vec!["o three".into(), "x".into()], ..greedy() },
        GenerationOptions { max_tokens: Some(1), ..greedy() },
        GenerationOptions { max_tokens: Some(2), ..greedy() },
        GenerationOptions { max_tokens: Some(7), ..greedy() },
        GenerationOptions { max_tokens: Some(8), ..greedy() },
        // Inside of the emoji.
        GenerationOptions { max_tokens: Some(19), ..greedy() },
    ] {
        let (text, reason, cached, plain) = said(&Speculation::Off, options.clone());
        for speculation in [&right, &knows("one tw0 three, 4", 1), &knows("nothing of it is right", 1)] {
            let (guessed, ended, kept, steps) = said(speculation, options.clone());
            assert_eq!((&guessed, ended, kept), (&text, reason, cached), "{options:?}");
            assert!(steps.len() <= plain.len());
        }
        let (.., steps) = said(&right, options);
        assert!(plain.len() < 6 || steps.len() * 2 < plain.len(), "{steps:?}");
    }
}

#[test]
fn a_context_is_filled_to_its_end_and_no_further() {
    for context in 2..20 {
        let run = |speculation: &Speculation| {
            let fake = Fake { context, ..Fake::answering(1, bytes(TEXT)) };
            let options =
                GenerationOptions { speculation: Some(speculation.clone()), draft_len: Some(8), ..greedy() };
            let session = fake.with_bytes().session();
            let done = session
                .generate(Prompt::Tokens(vec![65]), options, &mut |_| ControlFlow::Continue(()))
                .unwrap();
            (done.text, done.finish_reason, session.cached_tokens())
        };
        let expected = run(&Speculation::Off);
        assert_eq!(expected.1, FinishReason::ContextFull);
        assert_eq!(run(&knows(TEXT, 1)), expected);
        assert_eq!(run(&knows("one tw", 1)), expected);
    }
}

#[test]
fn cancelling_and_breaking_off_leave_the_session_usable() {
    let model = Fake::answering(1, bytes(TEXT)).with_bytes();
    let session = model.session();
    for after in 1..4 {
        let options = GenerationOptions { speculation: Some(knows(TEXT, 1)), draft_len: Some(4), ..greedy() };
        let mut texts = 0;
        let result = session.generate(Prompt::Tokens(vec![65]), options, &mut |event| {
            texts += usize::from(matches!(event, GenerationEvent::Text { .. }));
            if texts == after { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert!(matches!(result, Err(Error::Cancelled)));
        let done =
            session.generate(Prompt::Tokens(vec![65]), greedy(), &mut |_| ControlFlow::Continue(())).unwrap();
        assert_eq!(done.text, TEXT);
    }
}

/// Allows each token once, and counts what it is shown.
#[derive(Clone)]
struct Once {
    seen: Vec<u32>,
    told: Option<Arc<Mutex<Vec<u32>>>>,
    forks: Arc<AtomicUsize>,
}

impl LogitHook for Once {
    fn apply(&mut self, logits: &mut [f32]) -> Result<(), HookError> {
        self.seen.iter().for_each(|&t| logits[t as usize] = f32::NEG_INFINITY);
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<(), HookError> {
        assert!(!self.seen.contains(&token));
        self.seen.push(token);
        if let Some(told) = &self.told {
            told.lock().unwrap().push(token);
        }
        Ok(())
    }

    fn fork(&self) -> Box<dyn LogitHook> {
        self.forks.fetch_add(1, Ordering::Relaxed);
        Box::new(Self { told: None, ..self.clone() })
    }
}

#[test]
fn constraints_see_the_tokens_of_the_answer_and_no_others() {
    let path = tiny("tiny-llama-Q4_K_M.gguf");
    let model = model(&path, None, Some(&path));
    let session = model.session();
    for speculation in [Speculation::Off, Speculation::Ngram, Speculation::Draft] {
        let told: Arc<Mutex<Vec<u32>>> = Arc::default();
        let once = Once { seen: Vec::new(), told: Some(Arc::clone(&told)), forks: Arc::default() };
        let forks = Arc::clone(&once.forks);
        let drafts = matches!(speculation, Speculation::Draft);
        let mut options = GenerationOptions {
            speculation: Some(speculation),
            draft_len: Some(4),
            max_tokens: Some(30),
            ..greedy()
        };
        options.hooks.push(Box::new(once));
        let done = answer(&session, &prompt(1, model.vocab()), options);
        let ids: Vec<u32> = done.ids().collect();
        assert_eq!(*told.lock().unwrap(), ids);
        assert_eq!(forks.load(Ordering::Relaxed) > 0, drafts);
        // The same weights under the same constraint: every guess is right.
        assert!(!drafts || done.stats.speculation.acceptance_rate() == Some(1.0), "{:?}", done.stats);
        let mut unique = ids.clone();
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(unique.len(), 30);
    }
}

#[test]
fn the_draft_model_is_the_first_thing_to_go() {
    let path = tiny("tiny-llama-Q4_K_M.gguf");
    let accountant = Accountant::new(None);
    let held = accountant.reserve(pannier::memory::Category::Weights, 1234).unwrap();
    let parts = ModelParts {
        draft: Some(Draft::new(runner(&path, None), 64, Some(held), 0.3)),
        accountant: accountant.clone(),
        memory: Arc::new(Plenty),
        ..ModelParts::new(runner(&path, None))
    };
    let model: Arc<Model<Runner>> = Model::from_parts(parts);
    let session = model.session();
    let ids = prompt(2, model.vocab());
    let options = |speculation| GenerationOptions {
        speculation: Some(speculation),
        draft_len: Some(3),
        max_tokens: Some(20),
        ..greedy()
    };
    let expected: Vec<u32> = answer(&session, &ids, options(Speculation::Off)).ids().collect();
    let mut notices = Vec::new();
    let mut texts = 0;
    let done = session
        .generate(ids.as_slice(), options(Speculation::Draft), &mut |event| {
            match event {
                GenerationEvent::Text { .. } => {
                    texts += 1;
                    if texts == 2 {
                        model.on_memory_pressure(MemoryPressure::Moderate);
                    }
                }
                GenerationEvent::Notice(notice) => notices.push(notice),
                _ => {}
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(done.ids().collect::<Vec<_>>(), expected);
    // Half of what prefixes may take goes after it.
    let cache_bytes = KvOptions::default().prefix_bytes / 2;
    let less = Notice::MemoryPressure { level: MemoryPressure::Moderate, cache_bytes };
    assert_eq!(notices, [Notice::DraftReleased { bytes: 1234 }, less]);
    assert!(!model.has_draft());
    assert_eq!(done.stats.speculation.proposed_tokens, 3);
    let weights =
        accountant.by_category().into_iter().find(|(c, _)| *c == pannier::memory::Category::Weights);
    assert_eq!(weights.unwrap().1, 0);
    // Asking for it again is no error: it was there.
    let done = answer(&session, &ids, options(Speculation::Draft));
    assert_eq!(done.ids().collect::<Vec<_>>(), expected);
    assert_eq!(done.stats.tokens_per_pass(), Some(1.0));
}

#[test]
fn wishes_that_cannot_be_are_refused() {
    let path = tiny("tiny-llama-Q4_K_M.gguf");
    let session = model(&path, None, None).session();
    let ids = prompt(2, 64);
    let run = |options| session.generate(ids.as_slice(), options, &mut |_| ControlFlow::Continue(()));
    let options = GenerationOptions { speculation: Some(Speculation::Draft), ..greedy() };
    assert!(matches!(run(options), Err(Error::Speculation(SpeculationError::NoDraftModel))));
    let options = GenerationOptions { speculation: Some(Speculation::Ngram), draft_len: Some(9), ..greedy() };
    assert!(matches!(
        run(options),
        Err(Error::Speculation(SpeculationError::DraftTooLong { len: 9, limit: 8 }))
    ));

    let load = |draft: DraftOptions, budget_bytes| {
        let options = LoadOptions {
            draft: Some(draft),
            budget_bytes,
            context: Some(64),
            memory: Arc::new(Plenty),
            ..LoadOptions::default()
        };
        Model::load(&path, &options, &mut |_| {})
    };
    // Another number of ids.
    let other = load(DraftOptions::new(tiny("arch-qwen3-dense.gguf")), None);
    assert!(matches!(other, Err(Error::Speculation(SpeculationError::OtherSize { .. }))));
    let small = DraftOptions { budget_bytes: Some(100_000), ..DraftOptions::new(&path) };
    assert!(matches!(load(small, None), Err(Error::Speculation(SpeculationError::DraftDoesNotFit { .. }))));
    assert!(matches!(load(DraftOptions::new(path.join("absent")), None), Err(Error::Gguf(_))));
    // Its share comes out of the one budget.
    let model = load(DraftOptions::new(&path), Some(64 << 20)).unwrap();
    assert!(model.has_draft());
    assert!(model.accountant().used() <= 64 << 20);
    let done = answer(
        &model.session(),
        &prompt(2, model.vocab()),
        GenerationOptions { speculation: Some(Speculation::Auto), max_tokens: Some(12), ..greedy() },
    );
    assert_eq!(done.tokens.len(), 12);
    let used = model.accountant().used();
    model.close();
    assert!(model.accountant().used() < used);
}

#[test]
fn what_a_model_was_loaded_with_holds_where_a_generation_says_nothing() {
    let path = tiny("tiny-llama-Q4_K_M.gguf");
    let load = |draft: bool, speculation: Option<Speculation>| {
        let options = LoadOptions {
            draft: draft.then(|| DraftOptions::new(&path)),
            speculation,
            context: Some(64),
            memory: Arc::new(Plenty),
            ..LoadOptions::default()
        };
        Model::load(&path, &options, &mut |_| {})
    };
    let rate = |draft: bool, loaded: Option<Speculation>, asked: Option<Speculation>| {
        let model = load(draft, loaded).unwrap();
        let options =
            GenerationOptions { speculation: asked, draft_len: Some(3), max_tokens: Some(20), ..greedy() };
        let done = answer(&model.session(), &prompt(2, model.vocab()), options);
        done.stats.speculation.acceptance_rate()
    };
    use Speculation::{Draft, Off};
    assert_eq!(rate(true, None, None), Some(1.0), "a draft model that is named is used");
    assert_eq!(rate(false, None, None), None);
    assert_eq!(rate(true, Some(Off), None), None);
    assert_eq!(rate(true, None, Some(Off)), None);
    assert_eq!(rate(true, Some(Off), Some(Draft)), Some(1.0));
    assert!(matches!(load(false, Some(Draft)), Err(Error::Speculation(SpeculationError::NoDraftModel))));
}

#[test]
fn a_plan_counts_the_draft_model_as_loading_does() {
    let path = tiny("tiny-llama-Q4_K_M.gguf");
    let with = |draft: bool, budget| LoadOptions {
        draft: draft.then(|| DraftOptions::new(&path)),
        budget_bytes: Some(budget),
        context: Some(64),
        threads: Some(2),
        memory: Arc::new(Plenty),
        ..LoadOptions::default()
    };
    let plan = |draft, budget| plan_file(&path, &with(draft, budget)).unwrap();
    let budget = 64 << 20;
    let (alone, both) = (plan(false, budget), plan(true, budget));
    assert_eq!(alone.draft, DraftShare::default());
    assert_eq!(both.draft.weight_bytes, both.weight_bytes, "the model drafts for itself");
    assert_eq!(both.peak_bytes, alone.peak_bytes + both.draft.anonymous_bytes);
    assert_eq!(both.file_backed_bytes, alone.file_backed_bytes + both.draft.weight_bytes);
    // Guesses of a model of the same size cost what they bring, those of n-grams nothing.
    assert!(both.guessing.gain < alone.guessing.gain, "{:?} {:?}", both.guessing, alone.guessing);
    let model = Model::load(&path, &with(true, budget), &mut |_| {}).unwrap();
    let used = model.accountant().used();
    assert!(used >= both.draft.bytes() && used <= budget, "{used} {both:?}");
    // What has room for the draft model only is refused, with the plan that was told before.
    let tight = both.draft.bytes() + 4096;
    let told = plan(true, tight);
    assert!(!told.fits);
    match Model::load(&path, &with(true, tight), &mut |_| {}) {
        Err(Error::DoesNotFit { plan }) => {
            assert_eq!((plan.budget, plan.peak_bytes), (told.budget, told.peak_bytes));
            assert_eq!(plan.draft, told.draft);
        }
        other => panic!("{:?}", other.map(|_| ())),
    }
    assert!(!plan(true, 1 << 20).fits);
}

#[test]
fn a_budget_that_has_room_for_one_row_of_logits_gives_the_same_answer() {
    let path = tiny("tiny-llama-Q4_K_M.gguf");
    let run = |budget: Option<u64>, speculation: Speculation| {
        let accountant = Accountant::new(None);
        let model = Model::load(
            &path,
            &LoadOptions { accountant: Some(accountant.clone()), ..LoadOptions::default() },
            &mut |_| {},
        )
        .unwrap();
        let session = model.session();
        let ids = prompt(3, model.vocab());
        let options = GenerationOptions {
            speculation: Some(speculation),
            max_tokens: Some(40),
            draft_len: Some(8),
            ..greedy()
        };
        let mut texts = 0;
        let done = session
            .generate(ids.as_slice(), options, &mut |event| {
                texts += usize::from(matches!(event, GenerationEvent::Text { .. }));
                if texts == 1
                    && let Some(spare) = budget
                {
                    accountant.set_budget(Some(accountant.used() + spare));
                }
                ControlFlow::Continue(())
            })
            .unwrap();
        done.ids().collect::<Vec<_>>()
    };
    let expected = run(None, Speculation::Off);
    for spare in [0, 1 << 10, 1 << 20, 3 << 20] {
        assert_eq!(run(Some(spare), Speculation::Ngram), expected, "{spare} bytes");
    }
}
