//! Prefixes that sessions share, and what outlives a process: on SmolLM2-135M-Instruct.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use pannier::kv::{EvictWhen, KvOptions, KvPolicy};
use pannier::session::{
    Canceller, ChatOptions, Completion, GenerationEvent, GenerationOptions, LoadOptions, Model, Notice,
    Overflow, SessionError,
};
use pannier::{Error, memory::MemoryPressure};

use crate::fake::listen;

fn path() -> PathBuf {
    let folder = match std::env::var_os("PANNIER_MODELS").filter(|f| !f.is_empty()) {
        Some(folder) => PathBuf::from(folder),
        None => dirs::cache_dir().expect("a cache directory").join("pannier").join("models"),
    };
    let path = folder.join("SmolLM2-135M-Instruct.Q4_1.gguf");
    assert!(path.is_file(), "the model is missing: `cargo xtask test` fetches it, or set PANNIER_MODELS");
    path
}

fn load(kv: KvOptions) -> Arc<Model> {
    let options = LoadOptions { context: Some(2048), kv, ..LoadOptions::default() };
    Model::load(path(), &options, &mut |_| {}).unwrap()
}

fn cold() -> Arc<Model> {
    load(KvOptions { prefix_bytes: 0, ..KvOptions::default() })
}

/// The system prompt of these tests: some tokens.
fn system(tokens: usize) -> Vec<u32> {
    (0..tokens).map(|i| ((i * 7919 + 11) % 40_000 + 100) as u32).collect()
}

fn ask(system: &[u32], question: &[u32]) -> Vec<u32> {
    [system, question].concat()
}

fn quiet(_: GenerationEvent<'_>) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Tokens with their log-probabilities: equal only if the logits are.
fn answer(model: &Arc<Model>, prompt: &[u32]) -> (Completion, usize) {
    let options = GenerationOptions { ignore_eog: true, ..GenerationOptions::greedy(12) };
    let completion = model.session().generate(prompt, options, &mut quiet).unwrap();
    let cached = completion.stats.cached_tokens;
    (completion, cached)
}

/// The work to the first token falls with the tokens that are not read: here to 2%.
#[test]
fn a_system_prompt_is_read_once_also_after_a_restart() {
    let system = system(2000);
    let (one, two) = (ask(&system, &[100, 200, 300]), ask(&system, &[400, 500]));
    let (expected_one, _) = answer(&cold(), &one);
    let (expected_two, _) = answer(&cold(), &two);

    let model = load(KvOptions::default());
    let (got, cached) = answer(&model, &one);
    assert_eq!((got.tokens, cached), (expected_one.tokens, 0));
    let (got, cached) = answer(&model, &two);
    assert_eq!(got.tokens, expected_two.tokens);
    assert!(20 * (two.len() - cached) <= two.len(), "{cached} of {} tokens were known", two.len());

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("system.kv");
    let reader = model.session();
    assert!(matches!(reader.save(&file), Err(Error::Session(SessionError::NothingRead))));
    reader.generate(&*system, GenerationOptions::greedy(0), &mut quiet).unwrap();
    reader.save(&file).unwrap();
    drop((reader, model));

    let model = load(KvOptions::default());
    assert_eq!(model.restore_prefix(&file).unwrap(), 1984);
    let (got, cached) = answer(&model, &two);
    assert_eq!((got.tokens, cached), (expected_two.tokens.clone(), 1984));
    // A session takes all of it, not only whole pages.
    let session = cold().session();
    assert_eq!(session.restore(&file).unwrap(), 2000);
    let options = GenerationOptions { ignore_eog: true, ..GenerationOptions::greedy(12) };
    let got = session.generate(&*two, options, &mut quiet).unwrap();
    assert_eq!((got.tokens, got.stats.cached_tokens), (expected_two.tokens, 2000));

    // A damaged file is refused, and the session is what it was.
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let before = session.cached_tokens();
    assert!(matches!(session.restore(&file), Err(Error::BadCacheFile { .. })));
    assert!(matches!(model.restore_prefix(&file), Err(Error::BadCacheFile { .. })));
    assert_eq!(session.cached_tokens(), before);
    assert!(matches!(session.restore(&folder.path().join("none")), Err(Error::Io { .. })));
}

#[test]
fn a_cancelled_neighbour_on_the_same_prefix_changes_nothing() {
    let system = system(300);
    let (one, two) = (ask(&system, &[100, 200]), ask(&system, &[300, 400]));
    let (expected, _) = answer(&cold(), &two);
    let model = load(KvOptions::default());
    let (a, b) = (model.session(), model.session());
    let canceller = Canceller::new();
    let options = GenerationOptions {
        canceller: Some(canceller.clone()),
        ignore_eog: true,
        ..GenerationOptions::greedy(60)
    };
    // `b` begins while `a` runs, and goes on when `a` is cancelled.
    let mut heard = 0;
    let mut other = None;
    let result = a.generate(&*one, options, &mut |event| {
        if let GenerationEvent::Text { .. } = event {
            heard += 1;
            if heard == 5 {
                let options = GenerationOptions { ignore_eog: true, ..GenerationOptions::greedy(12) };
                other = Some(b.spawn(&*two, options, quiet).unwrap());
                canceller.cancel();
            }
        }
        ControlFlow::Continue(())
    });
    assert!(matches!(result, Err(Error::Cancelled)));
    let completion = other.unwrap().join().unwrap();
    assert_eq!(completion.tokens, expected.tokens);
    assert_eq!(completion.stats.cached_tokens, 288);
}

#[test]
fn scarce_memory_empties_the_prefixes() {
    let model = load(KvOptions::default());
    let prompt = ask(&system(400), &[1000]);
    answer(&model, &prompt);
    assert_eq!(answer(&model, &prompt).1, 384);
    let kv = |model: &Model| {
        let by = model.accountant().by_category();
        by.iter().find(|(category, _)| category.name() == "KV cache").unwrap().1
    };
    assert!(kv(&model) > 0);
    model.on_memory_pressure(MemoryPressure::Critical);
    answer(&model, &[1, 2, 3]);
    // All but the chunk that the last answer used.
    assert!(kv(&model) <= 2 << 20, "{}", kv(&model));
    assert_eq!(answer(&model, &prompt).1, 0);
}

/// A policy that acts by itself bounds the cache, and says so.
#[test]
fn an_eviction_is_told() {
    let policy = KvPolicy::HeavyHitters { sinks: 4, recent: 64, top: 32 };
    let model =
        load(KvOptions { policy, evict: EvictWhen::Above(32), prefix_bytes: 0, ..KvOptions::default() });
    let mut told = Vec::new();
    let options = GenerationOptions { ignore_eog: true, ..GenerationOptions::greedy(100) };
    let completion = model
        .session()
        .generate(&*system(250), options, &mut |event| {
            if let GenerationEvent::Notice(Notice::Evicted { gone, kept }) = event {
                told.push((gone, kept));
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    assert!(told.len() >= 2 && told.iter().all(|&(_, kept)| kept == 100), "{told:?}");
    assert_eq!(completion.stats.evicted, told.iter().map(|(gone, _)| gone).sum::<usize>());
    assert_eq!(completion.tokens.len(), 100);
    // When asked, a session forgets too; with nothing read there is nothing to forget.
    let session = model.session();
    assert_eq!(session.evict().unwrap().gone, 0);
    session.generate(&*system(120), GenerationOptions::greedy(0), &mut quiet).unwrap();
    let evicted = session.evict().unwrap();
    assert_eq!((evicted.gone, evicted.kept), (20, 100));
}

#[test]
fn a_conversation_that_gets_too_long_drops_its_oldest_turns_and_says_so() {
    let kv = KvOptions::default();
    let options = LoadOptions { context: Some(256), kv, ..LoadOptions::default() };
    let model = Model::load(path(), &options, &mut |_| {}).unwrap();
    let overflow = Overflow::DropOldest { reserve: 40 };
    let system = Some("You are brief.".to_owned());
    let chat =
        model.chat(ChatOptions { overflow, system: system.clone(), ..ChatOptions::default() }).unwrap();
    let failing = model.chat(ChatOptions { system, ..ChatOptions::default() }).unwrap();
    let mut dropped = Vec::new();
    for turn in 0..12 {
        let text = format!("Turn {turn}: name one more river in Europe, please, and nothing else.");
        let mut told = 0;
        chat.send(&text, GenerationOptions::greedy(20), &mut |event| {
            if let GenerationEvent::Notice(Notice::TurnsDropped { messages }) = event {
                told = messages;
            }
            ControlFlow::Continue(())
        })
        .unwrap();
        dropped.push(told);
        let history = chat.history();
        assert_eq!(history[0].content, "You are brief.");
        // Pairs of question and answer, after the system message.
        assert_eq!(history.len() % 2, 1);
        assert_eq!(history[history.len() - 2].content, text);
        assert!(chat.token_count(&[]).unwrap() <= 256);
    }
    assert!(dropped[0] == 0 && dropped.iter().any(|&messages| messages >= 2), "{dropped:?}");
    // Without that choice the turn fails, and says why.
    let mut failed = None;
    for turn in 0..12 {
        let (told, result) = listen(|sink| {
            failing.send(&format!("Turn {turn}: {}", "word ".repeat(12)), GenerationOptions::greedy(20), sink)
        });
        if let Err(error) = result {
            failed = Some(error);
            assert_eq!(told.events, 1);
            break;
        }
    }
    assert!(
        matches!(failed, Some(Error::Session(SessionError::PromptTooLong { limit: 256, .. }))),
        "{failed:?}"
    );
}
