//! Models over the life of an app: scripted models under a host, and one test with a real file.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "../session/fake.rs"]
#[allow(dead_code, reason = "shared with the tests of sessions")]
mod fake;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fake::{End, Fake, Told, listen};
use pannier::lifecycle::{
    ErrorKind, HostOptions, LifecycleError, ManagedModel, ModelHost, ModelSource, ModelState,
};
use pannier::memory::{Category, MemoryPressure, ThermalLevel};
use pannier::model::Forward;
use pannier::session::{
    ChatMessage, ChatOptions, Clock, DraftOptions, GenerationEvent, GenerationOptions, LoadOptions, Model,
    ModelParts, Notice, Role, SessionError,
};
use pannier::{Error, Result};

/// A clock that tests turn.
#[derive(Default)]
struct Dial(Mutex<Duration>);

impl Dial {
    fn turn(&self, by: Duration) {
        *self.0.lock().unwrap() += by;
    }
}

impl Clock for Dial {
    fn now(&self) -> Duration {
        let mut now = self.0.lock().unwrap();
        // No two moments are the same, so that "least recently" is never a tie.
        *now += Duration::from_nanos(1);
        *now
    }
}

struct World {
    dir: tempfile::TempDir,
    dial: Arc<Dial>,
    host: ModelHost<Fake>,
    loads: Arc<AtomicUsize>,
}

/// Each model takes this much of the budget while it is loaded.
const SIZE: u64 = 1000;

fn world(options: HostOptions, script: impl Fn() -> Fake + Send + Sync + 'static) -> World {
    let dir = tempfile::tempdir().unwrap();
    let dial = Arc::new(Dial::default());
    let loads = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&loads);
    let options = HostOptions { clock: Arc::clone(&dial) as Arc<dyn Clock>, ..options };
    let host = ModelHost::with_loader(options, move |_path: &Path, options: &LoadOptions, progress| {
        counter.fetch_add(1, Ordering::SeqCst);
        progress(pannier::session::LoadProgress {
            stage: pannier::session::LoadStage::Weights,
            fraction: 0.5,
        });
        let accountant = options.accountant.clone().expect("the host's");
        let held = vec![accountant.reserve(Category::Weights, SIZE)?];
        let parts = script().parts();
        Ok(Model::from_parts(ModelParts { held, accountant, ..parts }))
    });
    World { dir, dial, host, loads }
}

impl World {
    fn model(&self, name: &str) -> ManagedModel<Fake> {
        let path = self.dir.path().join(name);
        std::fs::write(&path, b"").unwrap();
        self.host.open(ModelSource { path, options: LoadOptions::default() })
    }
}

fn talker() -> Fake {
    Fake::new(|seq| if seq.len() % 7 == 6 { fake::END } else { u32::from(b'a') + (seq.len() % 7) as u32 })
}

fn say<F: Forward + 'static>(
    chat: &pannier::lifecycle::ManagedChat<F>,
    text: &str,
) -> (Told, Result<pannier::session::Completion>) {
    let message = ChatMessage::new(Role::User, text);
    listen(|sink| chat.send(&[message], GenerationOptions::greedy(20), sink))
}

#[test]
fn a_model_is_loaded_by_its_first_use_and_again_after_unloading() {
    let world = world(HostOptions::default(), talker);
    let model = world.model("a.gguf");
    let states = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&states);
    let _watch = model.watch(move |state| seen.lock().unwrap().push(state.clone()));
    assert_eq!(model.state(), ModelState::Downloaded);
    let chat = model.chat(ChatOptions { system: Some("S".into()), ..ChatOptions::default() });
    let (first, answer) = say(&chat, "one");
    assert_eq!(first.ends.len(), 1);
    assert_eq!(model.state(), ModelState::Ready);
    assert!(chat.cached_tokens() > 0);
    assert_eq!(world.host.memory().used, SIZE);

    model.unload();
    assert_eq!((model.state(), world.host.memory().used), (ModelState::Unloaded, 0));
    assert_eq!(chat.history().len(), 3, "the conversation outlives the model");
    assert_eq!(chat.history()[2].content, answer.unwrap().text);
    let (second, _) = say(&chat, "two");
    assert_eq!(second.ends.len(), 1);
    assert_eq!((chat.history().len(), world.loads.load(Ordering::SeqCst)), (5, 2));

    let states = states.lock().unwrap();
    let half = ModelState::Loading { fraction: 0.5 };
    let load = [ModelState::Loading { fraction: 0.0 }, half, ModelState::Ready, ModelState::Generating];
    let mut expected = load.to_vec();
    expected.extend([ModelState::Ready, ModelState::Unloaded]);
    expected.extend(load);
    expected.push(ModelState::Ready);
    assert_eq!(*states, expected);
}

#[test]
fn the_answer_does_not_depend_on_an_unload_in_between() {
    let world = world(HostOptions::default(), talker);
    let (kept, moved) = (world.model("a.gguf"), world.model("b.gguf"));
    let (a, b) = (kept.chat(ChatOptions::default()), moved.chat(ChatOptions::default()));
    for text in ["one", "two", "three"] {
        say(&a, text).1.unwrap();
        say(&b, text).1.unwrap();
        moved.unload();
    }
    assert_eq!(a.history(), b.history());
}

#[test]
fn the_least_recently_used_model_makes_room() {
    let options = HostOptions { budget_bytes: Some(2 * SIZE + SIZE / 2), ..HostOptions::default() };
    let world = world(options, talker);
    let [a, b, c] = ["a.gguf", "b.gguf", "c.gguf"].map(|name| world.model(name));
    let chat = a.chat(ChatOptions::default());
    b.load(false, &mut |_| {}).unwrap();
    say(&chat, "uses a after b").1.unwrap();
    c.load(false, &mut |_| {}).unwrap();
    assert_eq!(
        (a.state(), b.state(), c.state()),
        (ModelState::Ready, ModelState::Unloaded, ModelState::Ready)
    );
    // A smaller budget takes effect at once.
    world.host.set_budget(Some(SIZE));
    assert_eq!((a.state(), c.state()), (ModelState::Unloaded, ModelState::Ready));
    // Nothing is left to unload: a typed refusal.
    world.host.set_budget(Some(SIZE / 2));
    assert_eq!(c.state(), ModelState::Unloaded);
    let error = a.load(false, &mut |_| {}).unwrap_err();
    assert_eq!(ErrorKind::from(&error), ErrorKind::OutOfBudget);
    assert!(matches!(a.state(), ModelState::Failed { .. }));
}

#[test]
fn idle_models_go_after_their_time() {
    let idle = Some(Duration::from_secs(3600));
    let world = world(HostOptions { idle_unload: idle, ..HostOptions::default() }, talker);
    let model = world.model("a.gguf");
    model.load(false, &mut |_| {}).unwrap();
    world.dial.turn(Duration::from_secs(3000));
    assert_eq!(world.host.unload_idle(), 0);
    world.dial.turn(Duration::from_secs(700));
    assert_eq!(world.host.unload_idle(), 1);
    assert_eq!(model.state(), ModelState::Unloaded);
}

#[test]
fn background_saves_and_frees_and_foreground_restores() {
    let world = world(HostOptions::default(), talker);
    let model = world.model("a.gguf");
    let chat = model.chat(ChatOptions::default());
    let file = world.dir.path().join("chat.json");
    chat.set_checkpoint(Some(file.clone()));
    say(&chat, "hello 👩‍👩‍👧").1.unwrap();
    world.host.suspend(0).unwrap();
    assert_eq!((model.state(), world.host.memory().used), (ModelState::Suspended, 0));
    let other = model.chat(ChatOptions::default());
    other.restore(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(other.history(), chat.history());
    world.host.resume().unwrap();
    assert_eq!(model.state(), ModelState::Ready);
    // Enough may be kept: nothing is unloaded then.
    world.host.suspend(SIZE).unwrap();
    assert_eq!(model.state(), ModelState::Ready);
}

#[test]
fn pressure_spares_the_last_model_first_and_nothing_idle_in_the_end() {
    let world = world(HostOptions::default(), talker);
    let (a, b) = (world.model("a.gguf"), world.model("b.gguf"));
    a.load(false, &mut |_| {}).unwrap();
    b.load(false, &mut |_| {}).unwrap();
    world.host.on_pressure(MemoryPressure::Moderate);
    assert_eq!((a.state(), b.state()), (ModelState::Unloaded, ModelState::Ready));
    world.host.on_pressure(MemoryPressure::Critical);
    assert_eq!(b.state(), ModelState::Unloaded);
}

#[test]
fn pressure_reaches_a_running_answer_and_lets_it_finish() {
    let script = || Fake { cache: Some(1000), ..Fake::new(|_| u32::from(b'a')) };
    let world = world(HostOptions::default(), script);
    let model = world.model("a.gguf");
    let (mut said, mut notices) = (0, Vec::new());
    let result = model.chat(ChatOptions::default()).send(
        &[ChatMessage::new(Role::User, "go")],
        GenerationOptions::greedy(10),
        &mut |event| {
            match event {
                GenerationEvent::Text { .. } => {
                    said += 1;
                    if said == 3 {
                        world.host.on_pressure(MemoryPressure::Critical);
                    }
                }
                GenerationEvent::Notice(notice) => notices.push((said, notice)),
                _ => {}
            }
            ControlFlow::Continue(())
        },
    );
    assert_eq!(result.unwrap().tokens.len(), 10);
    let notice = Notice::MemoryPressure { level: MemoryPressure::Critical, cache_bytes: 0 };
    assert_eq!(notices, [(3, notice)]);
    assert_eq!(model.state(), ModelState::Ready);
}

#[test]
fn heat_holds_for_what_is_loaded_later_and_until_something_else_is_said() {
    let world = world(HostOptions::default(), talker);
    let model = world.model("a.gguf");
    let chat = model.chat(ChatOptions::default());
    let notices = || {
        let mut notices = Vec::new();
        chat.send(&[ChatMessage::new(Role::User, "go")], GenerationOptions::greedy(3), &mut |event| {
            if let GenerationEvent::Notice(notice @ Notice::Heat { .. }) = event {
                notices.push(notice);
            }
            ControlFlow::Continue(())
        })
        .unwrap();
        notices
    };
    world.host.on_thermal(ThermalLevel::Serious);
    let serious = Notice::Heat { level: ThermalLevel::Serious, threads: 4 };
    assert_eq!((notices(), notices()), (vec![serious], vec![]));
    model.unload();
    assert_eq!(notices(), [serious]);
    world.host.on_thermal(ThermalLevel::Nominal);
    assert_eq!(notices(), [Notice::Heat { level: ThermalLevel::Nominal, threads: 8 }]);
}

#[test]
fn a_draft_model_that_is_not_there_is_named() {
    let world = world(HostOptions::default(), talker);
    let path = world.dir.path().join("a.gguf");
    std::fs::write(&path, b"").unwrap();
    let draft = Some(DraftOptions::new(world.dir.path().join("small.gguf")));
    let options = LoadOptions { draft, ..LoadOptions::default() };
    let error = world.host.open(ModelSource { path, options }).load(false, &mut |_| {}).unwrap_err();
    assert_eq!(ErrorKind::from(&error), ErrorKind::NotFound);
    match error {
        Error::Lifecycle(LifecycleError::NotDownloaded { model }) => assert_eq!(model, "small.gguf"),
        other => panic!("{other}"),
    }
    assert_eq!(world.loads.load(Ordering::SeqCst), 0);
}

#[test]
fn what_is_unloaded_or_closed_while_it_answers_ends_in_one_cancelled_event() {
    for close in [false, true] {
        let world = world(HostOptions::default(), Fake::babbling);
        let model = world.model("a.gguf");
        let chat = model.chat(ChatOptions::default());
        let mut texts = 0;
        let (told, result) = {
            let mut told = Told::default();
            let result = chat.send(
                &[ChatMessage::new(Role::User, "go")],
                GenerationOptions { ignore_eog: true, ..GenerationOptions::default() },
                &mut |event| {
                    if matches!(event, GenerationEvent::Text { .. }) {
                        texts += 1;
                        if texts == 3 {
                            if close { model.close() } else { model.unload() }
                        }
                    }
                    told.hear(event);
                    ControlFlow::Continue(())
                },
            );
            (told, result)
        };
        assert_eq!(told.end(), &End::Cancelled);
        assert!(matches!(result, Err(Error::Cancelled)));
        assert_eq!(world.host.memory().used, 0);
        let next = chat.send(&[], GenerationOptions::greedy(1), &mut |_| ControlFlow::Continue(()));
        match next {
            Err(Error::Session(SessionError::Closed { what: "model" })) => assert!(close),
            other => assert!(!close && other.is_ok(), "{other:?}"),
        }
    }
}

#[test]
fn closing_twice_and_using_afterwards() {
    let world = world(HostOptions::default(), talker);
    let model = world.model("a.gguf");
    let chat = model.chat(ChatOptions::default());
    say(&chat, "x").1.unwrap();
    chat.close();
    chat.close();
    let closed = |r: Result<()>| matches!(r, Err(Error::Session(SessionError::Closed { .. })));
    assert!(closed(chat.send(&[], GenerationOptions::default(), &mut |_| panic!("no event")).map(drop)));
    assert!(closed(chat.set_history(vec![])));
    assert!(closed(chat.token_count(&[]).map(drop)));
    model.close();
    model.close();
    assert!(closed(model.load(false, &mut |_| {})));
    assert_eq!(model.state(), ModelState::Unloaded);
}

#[test]
fn a_load_that_fails_is_a_failed_event_and_no_path_is_told() {
    let world = world(HostOptions::default(), || panic!("a bug of ours"));
    let model = world.model("a.gguf");
    let chat = model.chat(ChatOptions::default());
    let (told, _) = say(&chat, "x");
    assert!(matches!(told.end(), End::Failed(_)));
    let absent = world.host.open(ModelSource {
        path: world.dir.path().join("secret-user").join("b.gguf"),
        options: LoadOptions::default(),
    });
    assert_eq!(absent.state(), ModelState::NotDownloaded);
    let error = absent.load(false, &mut |_| {}).unwrap_err();
    assert!(matches!(error, Error::Lifecycle(LifecycleError::NotDownloaded { .. })));
    match absent.state() {
        ModelState::Failed { reason } => assert!(!reason.contains("secret-user"), "{reason}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_model_that_killed_the_process_twice_is_loaded_only_by_force() {
    let marks = tempfile::tempdir().unwrap();
    let options = HostOptions { guard_dir: Some(marks.path().to_owned()), ..HostOptions::default() };
    let world = world(options, talker);
    let model = world.model("a.gguf");
    model.load(false, &mut |_| {}).unwrap();
    let count = || std::fs::read_dir(marks.path()).unwrap().count();
    assert_eq!(count(), 0, "an idle app may be killed without suspicion");
    // What two dead processes leave: found by looking during the first generation.
    let mark = Arc::new(Mutex::new(None));
    let chat = model.chat(ChatOptions::default());
    let result =
        chat.send(&[ChatMessage::new(Role::User, "x")], GenerationOptions::greedy(2), &mut |event| {
            if matches!(event, GenerationEvent::Started { .. }) {
                let entry = std::fs::read_dir(marks.path()).unwrap().next().expect("a mark").unwrap();
                *mark.lock().unwrap() = Some(entry.path());
            }
            ControlFlow::Continue(())
        });
    result.unwrap();
    assert_eq!(count(), 0);
    let mark = mark.lock().unwrap().clone().unwrap();
    std::fs::write(&mark, "1 1\n").unwrap();
    model.unload();
    let error = model.load(false, &mut |_| {}).unwrap_err();
    assert_eq!(ErrorKind::from(&error), ErrorKind::CrashLoop { deaths: 2 });
    let (told, _) = say(&chat, "x");
    assert!(matches!(told.end(), End::Failed(_)), "not by a chat either");
    model.load(true, &mut |_| {}).unwrap();
    say(&chat, "x").1.unwrap();
}

#[test]
fn many_threads_share_one_load() {
    let world = world(HostOptions::default(), talker);
    let model = world.model("a.gguf");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            let chat = model.chat(ChatOptions::default());
            scope.spawn(move || say(&chat, "x").1.unwrap());
        }
        // Unloading meanwhile only costs loads; every turn has its end.
        scope.spawn(|| {
            for _ in 0..3 {
                model.watch(|_| {});
                std::thread::yield_now();
            }
            done.store(true, Ordering::SeqCst);
        });
    });
    assert!(done.load(Ordering::SeqCst));
    assert_eq!(world.loads.load(Ordering::SeqCst), 1);
    assert_eq!(model.state(), ModelState::Ready);
}
