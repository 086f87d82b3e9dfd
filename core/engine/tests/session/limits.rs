//! Contexts, prompts, deadlines and options at their borders.

use std::sync::Arc;
use std::time::Duration;

use pannier::memory::{Accountant, Category};
use pannier::sampling::{SamplerOptions, SamplingError};
use pannier::session::{FinishReason, GenerationOptions, Model, ModelParts, SessionError};
use pannier::{Error, model::Forward};

use crate::fake::*;

fn greedy() -> GenerationOptions {
    GenerationOptions { sampler: SamplerOptions::greedy(), ..GenerationOptions::default() }
}

/// A model that never ends by itself.
fn endless(context: usize) -> Fake {
    Fake { context, ..Fake::new(|seq| b'a' as u32 + seq.len() as u32 % 26) }
}

#[test]
fn a_full_context_ends_the_answer_exactly_there() {
    for context in [1, 2, 7, 8, 9, 40] {
        for prompt in 1..=context {
            let fake = endless(context);
            let log = Arc::clone(&fake.log);
            let session = fake.with_bytes().session();
            let (_, result) = listen(|sink| session.generate(vec![b'x' as u32; prompt], greedy(), sink));
            let completion = result.unwrap();
            assert_eq!(completion.finish_reason, FinishReason::ContextFull, "{prompt} of {context}");
            // All positions are used, and the last token needs none.
            assert_eq!(completion.tokens.len(), context - prompt + 1);
            assert_eq!(log.lock().unwrap().iter().sum::<usize>(), context);
            assert_eq!(session.cached_tokens(), context);
        }
    }
}

#[test]
fn max_tokens_is_exact_and_zero_only_reads() {
    let fake = endless(100);
    let log = Arc::clone(&fake.log);
    let session = fake.with_bytes().session();
    for n in [0, 1, 2, 33] {
        let options = GenerationOptions { max_tokens: Some(n), ..greedy() };
        let (told, result) = listen(|sink| session.generate("hello there", options, sink));
        let completion = result.unwrap();
        assert_eq!((completion.finish_reason, completion.tokens.len()), (FinishReason::Length, n));
        assert_eq!(told.ids.len(), n);
        assert_eq!(completion.stats.time_to_first_token.is_some(), n > 0);
    }
    assert_eq!(log.lock().unwrap()[..2], [8, 3], "the prompt in chunks");
}

#[test]
fn a_prompt_that_does_not_fit_is_refused_before_any_work() {
    let fake = endless(10);
    let log = Arc::clone(&fake.log);
    let session = fake.with_bytes().session();
    let (told, result) = listen(|sink| session.generate("twelve bytes", greedy(), sink));
    let error = result.unwrap_err();
    assert!(
        matches!(error, Error::Session(SessionError::PromptTooLong { tokens: 12, limit: 10 })),
        "{error}"
    );
    assert_eq!((told.events, log.lock().unwrap().len()), (1, 0));
    // The session lives on.
    let (_, result) = listen(|sink| session.generate("fits", greedy(), sink));
    assert_eq!(result.unwrap().finish_reason, FinishReason::ContextFull);
}

#[test]
fn empty_prompts_and_unknown_tokens_are_refused() {
    let session = endless(10).with_bytes().session();
    for prompt in [pannier::session::Prompt::from(""), Vec::new().into()] {
        let (_, result) = listen(|sink| session.generate(prompt, greedy(), sink));
        assert!(matches!(result, Err(Error::Session(SessionError::EmptyPrompt))));
    }
    let (_, result) = listen(|sink| session.generate(vec![1, VOCAB as u32], greedy(), sink));
    assert!(matches!(result, Err(Error::TokenOutOfRange { index: 1, .. })));
}

#[test]
fn sampler_options_are_checked_before_any_work() {
    let fake = endless(10);
    let log = Arc::clone(&fake.log);
    let session = fake.with_bytes().session();
    let sampler = SamplerOptions { top_p: 7.0, ..SamplerOptions::default() };
    let (_, result) = listen(|sink| session.generate("x", GenerationOptions { sampler, ..greedy() }, sink));
    assert!(matches!(result, Err(Error::Sampling(SamplingError::InvalidOption { option: "top_p", .. }))));
    assert!(log.lock().unwrap().is_empty());
}

#[test]
fn unusable_logits_fail_the_generation_and_not_the_session() {
    let fake = Fake { lead: f32::NAN, ..endless(10) };
    let session = fake.with_bytes().session();
    for _ in 0..2 {
        let (_, result) = listen(|sink| session.generate("x", greedy(), sink));
        assert!(matches!(result, Err(Error::Sampling(SamplingError::NotFinite { .. }))));
    }
}

#[test]
fn a_step_that_fails_fails_the_generation_and_the_next_one_goes_on() {
    for bad in 1..6 {
        let fake = Fake {
            hook: Arc::new(move |step, layer| {
                let broken = step == bad && layer == 2;
                if broken { Err(Error::OutOfMemory { category: Category::Kv, bytes: 77 }) } else { Ok(()) }
            }),
            ..Fake::answering(9, bytes("answer"))
        };
        let session = fake.with_bytes().session();
        let (told, result) = listen(|sink| session.generate("question?", greedy(), sink));
        assert!(matches!(result, Err(Error::OutOfMemory { .. })), "{told:?}");
        let (_, result) = listen(|sink| session.generate("question?", greedy(), sink));
        assert_eq!(result.unwrap().text, "answer");
    }
}

#[test]
fn a_panic_inside_is_an_internal_error() {
    for bad in 1..4 {
        let fake = Fake {
            hook: Arc::new(move |step, _| {
                assert_ne!(step, bad, "expected by the test");
                Ok(())
            }),
            ..Fake::answering(9, bytes("answer"))
        };
        let session = fake.with_bytes().session();
        let (_, result) = listen(|sink| session.generate("question?", greedy(), sink));
        assert!(matches!(result, Err(Error::Internal { .. })));
        // What was in the cache is not trusted.
        let (told, result) = listen(|sink| session.generate("question?", greedy(), sink));
        assert_eq!(result.unwrap().text, "answer");
        assert_eq!(told.started, Some((9, 0)));
    }
}

#[test]
fn a_deadline_between_steps_gives_what_there_is() {
    // The clock goes on by 1 ms at each look, so the deadline passes after a fixed number of steps.
    let model =
        Model::from_parts(ModelParts { clock: Arc::<SteppingClock>::default(), ..endless(4000).parts() });
    let session = model.session();
    let mut lengths = Vec::new();
    for ms in [0, 1, 20, 200] {
        let options = GenerationOptions { deadline: Some(Duration::from_millis(ms)), ..greedy() };
        let (told, result) = listen(|sink| session.generate("abcdefghijkl", options, sink));
        let completion = result.unwrap();
        assert_eq!(completion.finish_reason, FinishReason::Deadline);
        assert_eq!(completion.tokens.len(), told.ids.len());
        lengths.push(completion.tokens.len());
    }
    assert_eq!(lengths[0], 0);
    assert!(lengths[2] > 0 && lengths[3] > 2 * lengths[2], "{lengths:?}");
}

#[test]
fn a_deadline_ends_a_step_that_is_under_way() {
    // The third step does not end by itself: only the flag ends it.
    let fake = Fake {
        hook: Arc::new(|step, _| {
            std::thread::sleep(Duration::from_millis(if step >= 3 { 40 } else { 0 }));
            Ok(())
        }),
        ..endless(4000)
    };
    let session = fake.with_bytes().session();
    let options = GenerationOptions { deadline: Some(Duration::from_millis(20)), ..greedy() };
    let (_, result) = listen(|sink| session.generate("x", options, sink));
    let completion = result.unwrap();
    assert_eq!((completion.finish_reason, completion.tokens.len()), (FinishReason::Deadline, 2));
}

#[test]
fn sampling_buffers_count_against_the_budget() {
    let fake = Fake { vocab: 200_000, ..endless(10) };
    let accountant = Accountant::new(Some(1 << 20));
    let model = Model::from_parts(ModelParts { accountant: accountant.clone(), ..ModelParts::new(fake) });
    let session = model.session();
    let run = |sampler| {
        let options = GenerationOptions { sampler, max_tokens: Some(1), ..GenerationOptions::default() };
        listen(|sink| session.generate(vec![1], options, sink)).1
    };
    assert!(matches!(run(SamplerOptions::unfiltered()), Err(Error::OutOfBudget { .. })));
    assert_eq!(accountant.used(), 0);
    run(SamplerOptions::default()).unwrap();
    assert!(accountant.peak() > 0);
    assert_eq!(accountant.used(), 0);
}

#[test]
fn stats_count_tokens_and_times() {
    let model = Model::from_parts(ModelParts {
        clock: Arc::<SteppingClock>::default(),
        ..Fake::answering(20, bytes("hi")).parts()
    });
    let session = model.session();
    let (told, result) = listen(|sink| session.generate(vec![b'x' as u32; 20], greedy(), sink));
    let stats = result.unwrap().stats;
    assert_eq!((stats.prompt_tokens, stats.cached_tokens, stats.generated_tokens), (20, 0, 3));
    assert_eq!(told.prefill, [(8, 20), (16, 20), (20, 20)]);
    // Each step takes one look at the clock: three for the prompt, two behind.
    assert_eq!((stats.prefill_time, stats.decode_time), (Duration::from_millis(3), Duration::from_millis(2)));
    assert_eq!((stats.prefill_tok_s(), stats.decode_tok_s()), (20.0 / 0.003, 1000.0));
    assert!(stats.time_to_first_token.unwrap() < stats.total_time);
    assert_eq!(stats.peak_anon_bytes, Some(2));
    assert_eq!(Fake::len(&Fake::babbling().new_seq().unwrap()), 0);
}
