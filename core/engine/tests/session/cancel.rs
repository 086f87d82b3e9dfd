//! Cancelling, breaking off, panicking and closing at every moment: always exactly one terminal event.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use pannier::Error;
use pannier::sampling::{Draws, Lane};
use pannier::session::{Canceller, GenerationEvent, GenerationOptions, SessionError};

use crate::fake::*;

const PROMPT: &str = "a prompt of three chunks";
const ANSWER: &str = "answer";

fn fake() -> Fake {
    Fake::answering(PROMPT.len(), bytes(ANSWER))
}

fn options(canceller: &Canceller) -> GenerationOptions {
    GenerationOptions { canceller: Some(canceller.clone()), ..GenerationOptions::greedy(100) }
}

#[test]
fn a_cancel_takes_effect_within_one_layer() {
    // Three steps for the prompt, six for the answer (the last token is not fed back, the end token is drawn).
    for step in 1..=9 {
        for layer in 0..LAYERS {
            let canceller = Canceller::new();
            let (trigger, last) = (canceller.clone(), Arc::new(Mutex::new((0, 0))));
            let seen = Arc::clone(&last);
            let hook = move |s: usize, l: usize| {
                *seen.lock().unwrap() = (s, l);
                if (s, l) == (step, layer) {
                    trigger.cancel();
                }
                Ok(())
            };
            let session = Fake { hook: Arc::new(hook), ..fake() }.with_bytes().session();
            let (told, result) = listen(|sink| session.generate(PROMPT, options(&canceller), sink));
            assert!(matches!(result, Err(Error::Cancelled)), "{told:?}");
            assert_eq!(*last.lock().unwrap(), (step, layer), "no layer runs after the cancel");
            assert_eq!(told.end(), &End::Cancelled);
            // Nothing of the step was kept, all before was: the next answer is the right one.
            let (told, result) =
                listen(|sink| session.generate(PROMPT, GenerationOptions::greedy(100), sink));
            assert_eq!(result.unwrap().text, ANSWER);
            assert_eq!(told.started.unwrap().1, ((step - 1) * 8).min(PROMPT.len() - 1));
        }
    }
}

#[test]
fn a_used_canceller_ends_a_generation_at_once() {
    let fake = fake();
    let log = Arc::clone(&fake.log);
    let session = fake.with_bytes().session();
    let canceller = Canceller::new();
    canceller.cancel();
    let (told, result) = listen(|sink| session.generate(PROMPT, options(&canceller), sink));
    assert!(matches!(result, Err(Error::Cancelled)));
    assert_eq!((told.events, log.lock().unwrap().len()), (1, 0));
}

/// Runs with a sink that does something bad at event `at`; gives what it was told.
fn disturbed(at: usize, mut deed: impl FnMut() -> ControlFlow<()>) -> (Told, Result<String, Error>) {
    let session = fake().with_bytes().session();
    let mut told = Told::default();
    let result = session.generate(PROMPT, GenerationOptions::greedy(100), &mut |event| {
        told.hear(event);
        if told.events == at { deed() } else { ControlFlow::Continue(()) }
    });
    // The session lives on.
    let (_, again) = listen(|sink| session.generate(PROMPT, GenerationOptions::greedy(100), sink));
    assert_eq!(again.unwrap().text, ANSWER);
    (told, result.map(|c| c.text))
}

#[test]
fn a_handler_may_break_off_at_any_event() {
    let (calm, _) = disturbed(usize::MAX, || ControlFlow::Continue(()));
    for at in 1..calm.events {
        let (told, result) = disturbed(at, || ControlFlow::Break(()));
        assert!(matches!(result, Err(Error::Cancelled)));
        assert_eq!((told.end(), told.events), (&End::Cancelled, at + 1), "nothing but the end follows");
    }
    let (told, result) = disturbed(calm.events, || ControlFlow::Break(()));
    assert_eq!((told, result.unwrap().as_str()), (calm, ANSWER), "too late to break off");
}

#[test]
fn a_handler_may_panic_at_any_event() {
    let (calm, _) = disturbed(usize::MAX, || ControlFlow::Continue(()));
    for at in 1..calm.events {
        let (told, result) = disturbed(at, || panic!("the app's bug"));
        assert!(
            matches!(&result, Err(Error::Session(SessionError::SinkPanicked { message })) if message == "the app's bug")
        );
        assert!(matches!(told.end(), End::Failed(_)));
        assert_eq!(told.events, at + 1);
    }
    let (told, result) = disturbed(calm.events, || panic!("the app's bug"));
    assert_eq!((told, result.unwrap().as_str()), (calm, ANSWER));
}

/// A model whose third step waits until it is cancelled.
fn stuck() -> (Fake, mpsc::Receiver<()>, Arc<AtomicUsize>) {
    let (reached_tx, reached) = mpsc::channel();
    let reached_tx = Mutex::new(reached_tx);
    let fake = Fake {
        hook: Arc::new(move |step, layer| {
            if step == 3 {
                if layer == 0 {
                    reached_tx.lock().unwrap().send(()).unwrap();
                }
                std::thread::sleep(Duration::from_millis(15));
            }
            Ok(())
        }),
        ..fake()
    };
    let alive = fake.alive.counter();
    (fake, reached, alive)
}

/// A sink that sends its end.
fn reporter() -> (impl FnMut(GenerationEvent<'_>) -> ControlFlow<()> + Send + 'static, mpsc::Receiver<Told>) {
    let (tx, rx) = mpsc::channel();
    let mut told = Told::default();
    let sink = move |event: GenerationEvent<'_>| {
        told.hear(event);
        if event.is_terminal() {
            tx.send(told.clone()).unwrap();
        }
        ControlFlow::Continue(())
    };
    (sink, rx)
}

#[test]
fn dropping_the_handle_or_the_session_cancels() {
    let (fake, reached, alive) = stuck();
    let model = fake.with_bytes();
    let session = model.session();
    let (sink, end) = reporter();
    let handle = session.spawn(PROMPT, GenerationOptions::greedy(100), sink).unwrap();
    reached.recv().unwrap();
    drop(handle);
    assert_eq!(end.recv().unwrap().end(), &End::Cancelled);

    let (fake, reached, _) = stuck();
    let other = fake.with_bytes().session();
    let (sink, end) = reporter();
    let handle = other.spawn(PROMPT, GenerationOptions::greedy(100), sink).unwrap();
    reached.recv().unwrap();
    drop(other);
    assert!(matches!(handle.join(), Err(Error::Cancelled)));
    assert_eq!(end.recv().unwrap().end(), &End::Cancelled);

    // A detached one runs to its end.
    let session = fake_session();
    let (sink, end) = reporter();
    session.spawn(PROMPT, GenerationOptions::greedy(100), sink).unwrap().detach();
    assert_eq!(end.recv().unwrap().text, ANSWER);
    drop((model, alive));
}

fn fake_session() -> pannier::session::Session<Fake> {
    fake().with_bytes().session()
}

#[test]
fn closing_the_model_ends_generations_and_the_last_user_frees_it() {
    let (fake, reached, alive) = stuck();
    let model = fake.with_bytes();
    let (running, waiting) = (model.session(), model.session());
    let (sink, end) = reporter();
    let first = running.spawn(PROMPT, GenerationOptions::greedy(100), sink).unwrap();
    reached.recv().unwrap();
    let (sink, other_end) = reporter();
    let second = waiting.spawn(PROMPT, GenerationOptions::greedy(100), sink).unwrap();
    model.close();
    model.close();
    assert!(alive.load(Ordering::SeqCst) > 0, "close did not wait for the step");
    assert!(matches!(first.join(), Err(Error::Cancelled)));
    assert!(matches!(second.join(), Err(Error::Cancelled)));
    assert_eq!(
        (end.recv().unwrap().end(), other_end.recv().unwrap().end()),
        (&End::Cancelled, &End::Cancelled)
    );
    assert_eq!(alive.load(Ordering::SeqCst), 0, "everything is freed, with all handles still there");
    drop((model, running, waiting));
}

#[test]
fn a_thousand_random_schedules_end_once_each() {
    let draws = Draws::new(2024);
    let hook = |step: usize, _| {
        // Some steps take a little, so that cancels fall into them.
        if step.is_multiple_of(3) {
            std::thread::yield_now();
        }
        Ok(())
    };
    let fake = Fake { hook: Arc::new(hook), ..fake() };
    let alive = fake.alive.counter();
    let model = fake.with_bytes();
    let mut kinds = [0usize; 3];
    for round in 0..1000 {
        let pick = |lane, n: u64| draws.bits(lane, round) % n;
        let session = model.session();
        let canceller = Canceller::new();
        let (mut sink, end) = reporter();
        let deed = pick(Lane::Token, 6);
        let at = pick(Lane::Draft, 12) as usize;
        let mut events = 0;
        let sink = move |event: GenerationEvent<'_>| {
            let result = sink(event);
            events += 1;
            match deed {
                4 if events == at => ControlFlow::Break(()),
                5 if events == at => panic!("the app's bug"),
                _ => result,
            }
        };
        let handle = session.spawn(PROMPT, options(&canceller), sink).unwrap();
        for _ in 0..pick(Lane::Accept, 400) {
            std::hint::spin_loop();
        }
        if pick(Lane::Residual, 3) == 0 {
            std::thread::sleep(Duration::from_micros(pick(Lane::Accept, 300)));
        }
        let handle = match deed {
            0 => {
                canceller.cancel();
                Some(handle)
            }
            1 => {
                handle.cancel();
                Some(handle)
            }
            2 => {
                session.close();
                Some(handle)
            }
            3 => {
                drop(handle);
                None
            }
            _ => Some(handle),
        };
        let told = end.recv_timeout(Duration::from_secs(60)).expect("a terminal event");
        match (told.end(), handle.map(|h| h.join())) {
            (End::Completed(_), None | Some(Ok(_))) => kinds[0] += 1,
            (End::Cancelled, None | Some(Err(Error::Cancelled))) => kinds[1] += 1,
            (End::Failed(_), None | Some(Err(Error::Session(SessionError::SinkPanicked { .. })))) => {
                kinds[2] += 1
            }
            other => panic!("{other:?}"),
        }
        // No second one: the sink and its sender are gone with the thread, and it never sent again.
        assert!(end.recv_timeout(Duration::from_secs(60)).is_err());
        assert!(ANSWER.starts_with(&told.text));
    }
    assert!(kinds.iter().all(|&n| n > 20), "{kinds:?}");
    assert_eq!(alive.load(Ordering::SeqCst), 1, "only the model is left");
}
