//! Sessions on a real model: SmolLM2-135M-Instruct.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use pannier::KvOptions;
use pannier::sampling::SamplerOptions;
use pannier::session::{
    Canceller, ChatMessage, ChatOptions, ChatSession, FinishReason, GenerationEvent, GenerationOptions,
    LoadOptions, LoadStage, Model, Role,
};
use pannier::{Error, session::SessionError};

use crate::fake::{End, Told, listen};

const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

/// Greedy continuations by exact arithmetic: prompts and what follows. The first ends where two tokens have logits within 0.06 of
/// each other, by products of 16 bits everywhere: an eighth bit decides there.
const GREEDY: [(&str, &[u32]); 2] = [
    (
        "<|im_start|>user\nName three rivers in Europe.<|im_end|>\n<|im_start|>assistant\n",
        &[
            33, 30, 37939, 3992, 42, 378, 3995, 4626, 281, 1910, 28, 357, 8634, 738, 260, 1911, 282, 1910,
            284, 314, 253,
        ],
    ),
    (
        "Once upon a time",
        &[
            28, 260, 2240, 282, 23324, 27108, 436, 253, 15114, 39228, 28, 351, 25854, 41658, 284, 14055,
            9018, 30, 1249, 347, 260, 929, 3514, 411,
        ],
    ),
];

fn path() -> PathBuf {
    let folder = match std::env::var_os("PANNIER_MODELS").filter(|f| !f.is_empty()) {
        Some(folder) => PathBuf::from(folder),
        None => dirs::cache_dir().expect("a cache directory").join("pannier").join("models"),
    };
    let path = folder.join(FILE);
    assert!(
        path.is_file(),
        "{FILE} is missing: `cargo xtask test` fetches it, or set PANNIER_MODELS to its folder"
    );
    path
}

fn load(options: &LoadOptions) -> Arc<Model> {
    Model::load(path(), options, &mut |_| {}).unwrap()
}

/// One for all tests, which then also share it as sessions do.
fn model() -> Arc<Model> {
    static MODEL: OnceLock<Arc<Model>> = OnceLock::new();
    // Without prefixes, so that what is cold stays cold.
    let kv = KvOptions { prefix_bytes: 0, ..KvOptions::default() };
    Arc::clone(MODEL.get_or_init(|| load(&LoadOptions { context: Some(1024), kv, ..LoadOptions::default() })))
}

fn seeded(seed: u64, n: usize) -> GenerationOptions {
    let sampler = SamplerOptions { seed: Some(seed), ..SamplerOptions::default() };
    GenerationOptions { max_tokens: Some(n), sampler, ..GenerationOptions::default() }
}

fn quiet(_: GenerationEvent<'_>) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn chat(model: &Arc<Model>) -> ChatSession {
    model.chat(ChatOptions::default()).unwrap()
}

#[test]
fn loading_tells_its_stages_and_counts_its_memory() {
    let mut stages = Vec::new();
    let options = LoadOptions { threads: Some(1), context: Some(256), ..LoadOptions::default() };
    let model = Model::load(path(), &options, &mut |p| stages.push(p)).unwrap();
    assert_eq!(stages.first().map(|p| p.stage), Some(LoadStage::Opening));
    assert_eq!(stages.last().map(|p| (p.stage, p.fraction)), Some((LoadStage::Ready, 1.0)));
    assert!(stages.is_sorted_by(|a, b| a.fraction < b.fraction));
    assert_eq!((model.context(), model.vocab(), model.info().threads), (256, 49152, 1));
    assert_eq!(model.info().architecture, "llama");
    let accountant = model.accountant().clone();
    assert!(accountant.used() > 0);
    drop(model);
    assert_eq!(accountant.used(), 0, "everything was given back");
    // A budget that is too small is refused, with numbers.
    let tight = LoadOptions { budget_bytes: Some(1 << 20), ..options };
    let refused = Model::load(path(), &tight, &mut |_| {});
    assert!(matches!(refused, Err(Error::DoesNotFit { plan }) if !plan.fits && !plan.notes.is_empty()));
}

#[test]
fn a_question_is_answered_and_streams_to_the_whole_text() {
    let chat = chat(&model());
    let (told, result) = listen(|sink| chat.send("hello", GenerationOptions::greedy(60), sink));
    let completion = result.unwrap();
    assert_eq!(completion.text, "Hello! How can I assist you today?");
    assert_eq!(told.text, completion.text);
    assert!(matches!(completion.finish_reason, FinishReason::Stop { .. }));
    assert!(!completion.text.contains("<|im_end|>"));
    assert_eq!(told.ids, completion.ids().collect::<Vec<_>>());
    let stats = &completion.stats;
    assert!(stats.prefill_tok_s() > 0.0 && stats.decode_tok_s() > 0.0 && stats.peak_anon_bytes > Some(0));
    assert!(completion.tokens.iter().all(|t| t.logprob <= 0.0 && t.entropy >= 0.0));
}

#[test]
fn greedy_continuations_equal_the_golden_ones() {
    let session = model().session();
    for (prompt, golden) in GREEDY {
        let options = GenerationOptions { ignore_eog: true, ..GenerationOptions::greedy(golden.len()) };
        let completion = session.generate(prompt, options, &mut quiet).unwrap();
        assert_eq!(completion.ids().collect::<Vec<_>>(), golden, "{prompt}");
    }
}

#[test]
fn a_budget_smaller_than_the_model_changes_no_token_and_is_kept() {
    let options = LoadOptions {
        threads: Some(1),
        context: Some(256),
        budget_bytes: Some(88 << 20),
        ..LoadOptions::default()
    };
    let model = Model::load(path(), &options, &mut |_| {}).unwrap();
    let accountant = model.accountant().clone();
    let (prompt, golden) = GREEDY[0];
    let options = || GenerationOptions { ignore_eog: true, ..GenerationOptions::greedy(24) };
    let streamed = model.session().generate(prompt, options(), &mut quiet).unwrap();
    let mapped = self::model().session().generate(prompt, options(), &mut quiet).unwrap();
    assert_eq!(streamed.ids().collect::<Vec<_>>(), mapped.ids().collect::<Vec<_>>());
    assert!(streamed.ids().take(golden.len()).eq(golden.iter().copied()));
    assert!(accountant.peak() <= 88 << 20 && accountant.peak() > 60 << 20, "{}", accountant.peak());
}

#[test]
fn a_seed_repeats_an_answer() {
    let model = model();
    let run = |seed| chat(&model).send("Write a line about the sea.", seeded(seed, 24), &mut quiet).unwrap();
    let (a, b, c) = (run(7), run(7), run(8));
    assert_eq!((&a.text, &a.tokens, a.seed), (&b.text, &b.tokens, 7));
    assert_ne!(a.text, c.text);
}

#[test]
fn a_second_turn_reads_only_what_is_new_and_answers_as_a_cold_session() {
    let model = model();
    let warm = chat(&model);
    warm.send("Name a fruit.", seeded(3, 16), &mut quiet).unwrap();
    let cold = chat(&model);
    cold.set_history(warm.history()).unwrap();
    let (warm_told, warm) = listen(|sink| warm.send("And a vegetable?", seeded(4, 24), sink));
    let (cold_told, cold) = listen(|sink| cold.send("And a vegetable?", seeded(4, 24), sink));
    let (warm, cold) = (warm.unwrap(), cold.unwrap());
    assert_eq!((&warm.text, &warm.tokens), (&cold.text, &cold.tokens));
    assert_eq!(cold_told.started.unwrap().1, 0);
    let (prompt, cached) = warm_told.started.unwrap();
    assert!(cached * 2 > prompt, "{cached} of {prompt} tokens were reused");
}

#[test]
fn answers_do_not_depend_on_threads_chunks_or_company() {
    let prompt = "Once upon a time there was a small village at the foot of a mountain, where the people";
    let mut answers = Vec::new();
    for (threads, prefill_chunk) in [(1, 1), (2, 7), (2, 64), (1, 512)] {
        let options = LoadOptions {
            threads: Some(threads),
            prefill_chunk,
            context: Some(128),
            ..LoadOptions::default()
        };
        let completion = load(&options).session().generate(prompt, seeded(5, 16), &mut quiet).unwrap();
        answers.push((completion.text, completion.tokens));
    }
    // Three sessions at once.
    let model = model();
    let sessions: Vec<_> = (0..3).map(|_| model.session()).collect();
    let handles: Vec<_> = sessions.iter().map(|s| s.spawn(prompt, seeded(5, 16), quiet).unwrap()).collect();
    for handle in handles {
        let completion = handle.join().unwrap();
        answers.push((completion.text, completion.tokens));
    }
    for other in &answers[1..] {
        assert_eq!(other, &answers[0]);
    }
}

#[test]
fn stop_strings_cancels_and_limits() {
    let model = model();
    let session = model.session();
    let stop = GenerationOptions { stop: vec!["five".into(), "5".into()], ..GenerationOptions::greedy(60) };
    let (_, result) = listen(|sink| session.generate("1, 2, 3,", stop, sink));
    let completion = result.unwrap();
    assert_eq!(completion.finish_reason, FinishReason::StopString { index: 1 });
    assert!(completion.text.contains('4') && !completion.text.contains('5'));

    // Cancelled from another thread while it runs; the next one starts as if nothing had been.
    let canceller = Canceller::new();
    let options = GenerationOptions {
        canceller: Some(canceller.clone()),
        ignore_eog: true,
        ..GenerationOptions::greedy(900)
    };
    let mut told = Told::default();
    let result = session.generate("Count: one, two,", options, &mut |event| {
        told.hear(event);
        if told.ids.len() == 3 {
            let canceller = canceller.clone();
            std::thread::spawn(move || canceller.cancel()).join().unwrap();
        }
        ControlFlow::Continue(())
    });
    assert!(matches!(result, Err(Error::Cancelled)));
    assert_eq!((told.end(), told.ids.len()), (&End::Cancelled, 3));
    let (_, result) = listen(|sink| session.generate("Count: one, two,", GenerationOptions::greedy(4), sink));
    assert!(result.unwrap().text.contains("three"));

    let long = "word ".repeat(2000);
    let (told, result) = listen(|sink| session.generate(long, GenerationOptions::greedy(4), sink));
    assert!(matches!(result, Err(Error::Session(SessionError::PromptTooLong { limit: 1024, .. }))));
    assert_eq!(told.events, 1);
}

#[test]
fn emoji_and_scripts_come_back_whole() {
    let session = model().session();
    // The model copies; whatever it says, each part must be whole characters and all parts the text.
    let prompt = "Repeat: 🙂👨‍👩‍👧‍👦 漢字 é ß 🇩🇪\nRepeat: 🙂👨‍👩‍👧‍👦 漢字 é ß 🇩🇪\nRepeat: 🙂";
    let (told, result) = listen(|sink| session.generate(prompt, GenerationOptions::greedy(40), sink));
    let completion = result.unwrap();
    assert_eq!(told.parts.concat(), completion.text);
    assert!(!completion.text.contains(char::REPLACEMENT_CHARACTER), "{:?}", completion.text);
    assert!(completion.text.chars().any(|c| c as u32 > 0x2000), "{:?}", completion.text);
}

#[test]
fn a_closed_model_gives_its_memory_back() {
    let model = load(&LoadOptions { context: Some(256), ..LoadOptions::default() });
    let chat = chat(&model);
    chat.spawn(vec![ChatMessage::new(Role::User, "Hi")], seeded(1, 200), quiet).unwrap().detach();
    model.close();
    let accountant = model.accountant().clone();
    drop((model, chat));
    // The generation notices within a layer's work; its thread was the last user.
    let mut left = accountant.used();
    for _ in 0..5000 {
        if left == 0 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
        left = accountant.used();
    }
    assert_eq!(left, 0);
}
