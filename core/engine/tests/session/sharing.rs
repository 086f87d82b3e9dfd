//! Several sessions of one model, and what a session keeps.

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, mpsc};

use pannier::Error;
use pannier::sampling::SamplerOptions;
use pannier::session::{
    Completion, GenerationEvent, GenerationOptions, Model, ModelParts, Notice, SessionError,
};

use crate::fake::*;

fn seeded(seed: u64, n: usize) -> GenerationOptions {
    let sampler = SamplerOptions { seed: Some(seed), ..SamplerOptions::unfiltered() };
    GenerationOptions { max_tokens: Some(n), sampler, ..GenerationOptions::default() }
}

fn quiet(_: GenerationEvent<'_>) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// All but the times.
fn essence(c: &Completion) -> (String, Vec<u32>, String, u64) {
    (c.text.clone(), c.ids().collect(), format!("{:?}", c.finish_reason), c.seed)
}

#[test]
fn sessions_at_once_answer_as_they_do_alone() {
    let model = Fake::babbling().with_bytes();
    let alone: Vec<_> = (0..4u64)
        .map(|i| {
            let session = model.session();
            essence(&session.generate(format!("prompt {i}").as_str(), seeded(i, 60), &mut quiet).unwrap())
        })
        .collect();
    let sessions: Vec<_> = (0..4).map(|_| model.session()).collect();
    let handles: Vec<_> = sessions
        .iter()
        .zip(0u64..)
        .map(|(s, i)| s.spawn(format!("prompt {i}").as_str(), seeded(i, 60), quiet).unwrap())
        .collect();
    let together: Vec<_> = handles.into_iter().map(|h| essence(&h.join().unwrap())).collect();
    assert_eq!(together, alone);
}

#[test]
fn the_same_seed_gives_the_same_answer_whatever_the_chunks() {
    let mut answers = Vec::new();
    for prefill_chunk in [1, 7, 64, 512] {
        let model = Model::from_parts(ModelParts { prefill_chunk, ..Fake::babbling().parts() });
        let prompt = "a longer prompt that takes several chunks to read".repeat(3);
        answers.push(essence(&model.session().generate(prompt, seeded(9, 50), &mut quiet).unwrap()));
    }
    assert!(answers.windows(2).all(|w| w[0] == w[1]));
}

#[test]
fn sessions_take_turns_step_by_step() {
    // While the first session's steps run, a second one asks; it is served before the first one's prompt is through.
    let order = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&order);
    let (first_tx, first_rx) = mpsc::channel();
    let go = Mutex::new(Some(first_tx));
    let fake = Fake {
        hook: Arc::new(move |_, layer| {
            if layer == 0
                && let Some(go) = go.lock().unwrap().take()
            {
                go.send(()).unwrap();
                // Long enough for the other session to join the queue.
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
            // Steps that last: the second session needs a moment between its own.
            std::thread::sleep(std::time::Duration::from_micros(500));
            Ok(())
        }),
        rule: Arc::new(move |seq| {
            seen.lock().unwrap().push(seq[0]);
            7
        }),
        ..Fake::new(|_| 7)
    };
    let model = fake.bare();
    let (long, short) = (model.session(), model.session());
    let long = long.spawn(vec![1; 800], GenerationOptions::greedy(1), quiet).unwrap();
    first_rx.recv().unwrap();
    short.generate(vec![2; 8], GenerationOptions::greedy(3), &mut quiet).unwrap();
    long.join().unwrap();
    assert_eq!(*order.lock().unwrap(), [2, 2, 2, 1]);
}

#[test]
fn a_slow_handler_holds_up_nobody_else() {
    let model = Fake::answering(1, bytes("abc")).with_bytes();
    let (slow, fast) = (model.session(), model.session());
    let (held_tx, held) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let slow = slow
        .spawn("x", GenerationOptions::greedy(9), move |event| {
            if matches!(event, GenerationEvent::Text { .. }) {
                held_tx.send(()).unwrap();
                let _ = released.recv();
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    held.recv().unwrap();
    // The other handler stands inside of an event now.
    for _ in 0..5 {
        assert_eq!(fast.generate("y", GenerationOptions::greedy(9), &mut quiet).unwrap().text, "abc");
    }
    drop(release);
    assert_eq!(slow.join().unwrap().text, "abc");
}

#[test]
fn a_session_does_one_thing_at_a_time() {
    let model = Fake::answering(1, bytes("abc")).with_bytes();
    let session = model.session();
    let mut inner = None;
    session
        .generate("x", GenerationOptions::greedy(9), &mut |event| {
            if !event.is_terminal() {
                let mut events = 0;
                inner = Some(session.generate("y", GenerationOptions::greedy(1), &mut |_| {
                    events += 1;
                    ControlFlow::Continue(())
                }));
                assert_eq!(events, 0, "a refused call tells nothing");
                assert!(matches!(session.forget(), Err(Error::Session(SessionError::Busy))));
            } else {
                // The session is free when the terminal event arrives.
                session.generate("y", GenerationOptions::greedy(1), &mut quiet).unwrap();
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    assert!(matches!(inner, Some(Err(Error::Session(SessionError::Busy)))));
}

#[test]
fn what_was_read_is_not_read_again() {
    let fake = Fake::babbling();
    let log = Arc::clone(&fake.log);
    let model = fake.with_bytes();
    let warm = model.session();
    let prompts = ["hello world", "hello world", "hello worms", "hello", "bye", "hello world and more of it"];
    for (i, prompt) in prompts.into_iter().enumerate() {
        let cold = model.session();
        let (_, cold) = listen(|sink| cold.generate(prompt, seeded(i as u64, 5), sink));
        let before = log.lock().unwrap().iter().sum::<usize>();
        let (told, warm) = listen(|sink| warm.generate(prompt, seeded(i as u64, 5), sink));
        let warm = warm.unwrap();
        assert_eq!(essence(&warm), essence(&cold.unwrap()), "{prompt}");
        let cached = told.started.unwrap().1;
        let fed = log.lock().unwrap().iter().sum::<usize>() - before;
        let read = told.prefill.last().unwrap().0;
        assert_eq!(read, prompt.len() - cached);
        assert!(fed >= read && fed <= read + 5);
        assert_eq!(warm.stats.cached_tokens, cached);
        // At least the last token is read, for its logits.
        let expected = [0, 10, 9, 4, 0, 0][i];
        assert_eq!(cached, expected, "{prompt}");
    }
}

#[test]
fn a_prefix_that_can_not_be_kept_is_read_again_and_said() {
    let fake = Fake { uncuttable: 1000, ..Fake::babbling() };
    let session = fake.with_bytes().session();
    session.generate("hello world", seeded(1, 5), &mut quiet).unwrap();
    let (told, result) = listen(|sink| session.generate("hello worms", seeded(1, 5), sink));
    result.unwrap();
    assert_eq!(told.started, Some((11, 0)));
    assert_eq!(told.notices, [Notice::PrefixNotReused { tokens: 9 }]);
}

#[test]
fn forgetting_gives_memory_back() {
    let fake = Fake::babbling();
    let alive = fake.alive.counter();
    let session = fake.with_bytes().session();
    session.generate("hello", seeded(1, 5), &mut quiet).unwrap();
    assert_eq!(alive.load(Ordering::SeqCst), 2);
    session.forget().unwrap();
    assert_eq!((alive.load(Ordering::SeqCst), session.cached_tokens()), (1, 0));
    session.generate("hello", seeded(1, 5), &mut quiet).unwrap();
}

#[test]
fn closing_frees_everything_and_is_idempotent() {
    let fake = Fake::babbling();
    let alive = fake.alive.counter();
    let model = fake.with_bytes();
    let (a, b) = (model.session(), model.session());
    for s in [&a, &b] {
        s.generate("hello", seeded(1, 5), &mut quiet).unwrap();
    }
    assert_eq!(alive.load(Ordering::SeqCst), 3);
    a.close();
    a.close();
    assert_eq!(alive.load(Ordering::SeqCst), 2);
    assert!(matches!(a.forget(), Err(Error::Session(SessionError::Closed { what: "session" }))));
    model.close();
    model.close();
    assert!(model.is_closed());
    assert_eq!(alive.load(Ordering::SeqCst), 0);
    let refused = b.generate("hello", seeded(1, 5), &mut |_| panic!("a refused call tells nothing"));
    assert!(matches!(refused, Err(Error::Session(SessionError::Closed { what: "model" }))));
    let refused = model.session().spawn("x", seeded(1, 5), quiet);
    assert!(matches!(refused, Err(Error::Session(SessionError::Closed { .. }))));
}

#[test]
fn the_last_user_frees_the_model() {
    let fake = Fake::babbling();
    let alive = fake.alive.counter();
    let model = fake.with_bytes();
    let session = model.session();
    drop(model);
    session.generate("hello", seeded(1, 5), &mut quiet).unwrap();
    drop(session);
    assert_eq!(alive.load(Ordering::SeqCst), 0);
}
