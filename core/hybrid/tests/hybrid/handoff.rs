//! Styles of hand-off, cancelling, and handlers that misbehave.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use pannier::session::{Canceller, GenerationOptions, Role};
use pannier_hybrid::cloud::CloudFinish;
use pannier_hybrid::{
    CloudError, CloudEvent, EdgeFirst, HandOffStyle, HybridError, HybridEvent, HybridPolicy, Reason, Source,
    TurnOptions,
};

use crate::script::{SURE, ScriptedCloud, ScriptedEdge, UNSURE, View, check, session, setup, turn};

fn policy(style: HandOffStyle) -> HybridPolicy {
    HybridPolicy::EdgeFirst(EdgeFirst {
        min_confidence: 0.5,
        check_after_tokens: 6,
        hysteresis: 0.0,
        style,
        ..EdgeFirst::default()
    })
}

/// Two sure sentences, then doubt.
fn sinking() -> ScriptedEdge {
    let mut pieces = vec![("The first sentence. ", SURE), ("The second sentence. ", SURE)];
    pieces.extend([("doubt ", UNSURE); 8]);
    ScriptedEdge::new(&pieces)
}

#[test]
fn continue_builds_on_the_sure_sentences() {
    let cloud = ScriptedCloud::saying(&["And ", "the cloud's end."]);
    let session = session(sinking(), Some(setup(cloud.clone())), policy(HandOffStyle::Continue));
    let (view, outcome) = turn(&session, TurnOptions::default());
    let completion = outcome.unwrap();
    assert_eq!(completion.text, "The first sentence. The second sentence. And the cloud's end.");
    assert_eq!(completion.source, Source::Both, "{:?}", view.reasons());
    let requests = cloud.requests.lock().unwrap();
    let last = requests[0].messages.last().unwrap();
    assert!(requests[0].continue_final && last.role == Role::Assistant);
    assert_eq!(last.content, "The first sentence. The second sentence. ");
}

#[test]
fn a_cloud_that_repeats_the_beginning_doubles_nothing() {
    let cloud = ScriptedCloud::saying(&["The first sen", "tence. The second sentence. And", " on."]);
    let session = session(sinking(), Some(setup(cloud)), policy(HandOffStyle::Continue));
    let completion = turn(&session, TurnOptions::default()).1.unwrap();
    assert_eq!(completion.text, "The first sentence. The second sentence. And on.");
}

#[test]
fn a_continuation_that_breaks_off_gives_the_draft() {
    let cloud = ScriptedCloud::new(|_, sink| {
        sink.push(CloudEvent::Text("And then ".into()));
        sink.push(CloudEvent::Failed(CloudError::Truncated));
        Ok(())
    });
    let edge = sinking();
    let text = edge.text();
    let session = session(edge, Some(setup(cloud)), policy(HandOffStyle::Continue));
    let (view, outcome) = turn(&session, TurnOptions::default());
    assert_eq!(outcome.unwrap().text, text);
    assert_eq!(view.discards, 1);
}

#[test]
fn verify_accepts_corrects_and_survives_nonsense() {
    let ask = |reply: &'static str| {
        let cloud = ScriptedCloud::saying(&[reply]);
        let edge = ScriptedEdge::new(&[("It ", UNSURE), ("is ", UNSURE), ("green.", UNSURE)]);
        let session = session(edge, Some(setup(cloud)), policy(HandOffStyle::Verify));
        let (view, outcome) = turn(&session, TurnOptions::default());
        let completion = outcome.unwrap();
        (completion.text, completion.source, view.decisions.last().unwrap().reason.clone())
    };
    assert_eq!(
        ask(r#"{"confidence": 0.95, "corrected": null}"#),
        ("It is green.".into(), Source::Device, Reason::Verified { confidence: 0.95 })
    );
    assert_eq!(
        ask(r#"{"confidence": 0.1, "corrected": "It is blue."}"#),
        ("It is blue.".into(), Source::Cloud, Reason::Corrected { confidence: 0.1 })
    );
    let (text, source, reason) = ask("I think it is fine.");
    assert_eq!((text.as_str(), source), ("It is green.", Source::Device));
    assert!(matches!(reason, Reason::CloudFailed { error: CloudError::Malformed { .. } }));
}

#[test]
fn a_silent_answer_is_no_answer() {
    let cloud = ScriptedCloud::saying(&[]);
    let session = session(sinking(), Some(setup(cloud)), HybridPolicy::CloudOnly);
    let error = turn(&session, TurnOptions::default()).1.unwrap_err();
    assert!(matches!(error, HybridError::Cloud(CloudError::Malformed { .. })));
}

#[test]
fn what_comes_after_the_end_is_ignored() {
    let cloud = ScriptedCloud::new(|_, sink| {
        sink.push(CloudEvent::Text("once".into()));
        sink.push(CloudEvent::Done { finish: CloudFinish::Length, usage: None });
        assert!(!sink.push(CloudEvent::Text(" twice".into())));
        assert!(!sink.push(CloudEvent::Done { finish: CloudFinish::Stop, usage: None }));
        Ok(())
    });
    let session = session(sinking(), Some(setup(cloud.clone())), HybridPolicy::CloudOnly);
    let completion = turn(&session, TurnOptions::default()).1.unwrap();
    assert_eq!((completion.text.as_str(), completion.finish.name()), ("once", "length"));
    assert_eq!(cloud.cancels.load(Ordering::SeqCst), 1, "every call is let go");
}

#[test]
fn panics_of_the_apps_code_are_failures_not_crashes() {
    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let panicking = ScriptedCloud::new(|_, _| panic!("in the app's cloud"));
    let fallen = session(sinking(), Some(setup(panicking)), policy(HandOffStyle::Replace));
    let (_, outcome) = turn(&fallen, TurnOptions::default());
    let mut refusing = setup(ScriptedCloud::saying(&["cloud"]));
    refusing.consent = Arc::new(|_: &pannier_hybrid::OutgoingPayload| panic!("in the consent hook"));
    let kept = session(sinking(), Some(refusing), policy(HandOffStyle::Replace));
    let (_, kept) = turn(&kept, TurnOptions::default());
    let shown = session(sinking(), None, HybridPolicy::OnDeviceOnly);
    let mut ends = 0;
    let error = shown.send("q", TurnOptions::default(), &mut |event| {
        ends += usize::from(event.is_terminal());
        assert!(!matches!(event, HybridEvent::Text { .. }), "in the event handler");
        ControlFlow::Continue(())
    });
    std::panic::set_hook(quiet);
    assert_eq!(outcome.unwrap().source, Source::Device);
    assert_eq!(kept.unwrap().source, Source::Device);
    assert!(matches!(error, Err(HybridError::SinkPanicked { .. })) && ends == 1);
    assert!(shown.history().is_empty());
}

/// Cancels at the n-th event, for every n: in the draft, while the cloud is waited for, in its text.
#[test]
fn a_turn_can_be_cancelled_anywhere() {
    for by_break in [true, false] {
        for n in 0..40 {
            let cloud = ScriptedCloud::saying(&["a", "b", "c", "d"]);
            let session = session(sinking(), Some(setup(cloud)), policy(HandOffStyle::Continue));
            let canceller = Canceller::new();
            let generation =
                GenerationOptions { canceller: Some(canceller.clone()), ..GenerationOptions::default() };
            let options = TurnOptions { generation, ..TurnOptions::default() };
            let mut view = View::default();
            let mut seen = 0;
            let outcome = session.send("question", options, &mut |event| {
                view.hear(event);
                seen += 1;
                if seen == n + 1 {
                    if by_break {
                        return ControlFlow::Break(());
                    }
                    canceller.cancel();
                }
                ControlFlow::Continue(())
            });
            check(&session, &view, &outcome);
            if outcome.is_ok() {
                assert!(n + 1 >= seen, "{n} of {seen}");
            }
        }
    }
}

#[test]
fn a_cancel_ends_the_wait_for_a_silent_cloud() {
    let canceller = Canceller::new();
    let switch = canceller.clone();
    let held = Arc::new(std::sync::Mutex::new(Vec::new()));
    let cloud = ScriptedCloud::new(move |_, sink| {
        // Kept, so that the cloud seems to be at work.
        held.lock().unwrap().push(sink.clone());
        switch.cancel();
        Ok(())
    });
    let session = session(sinking(), Some(setup(cloud.clone())), HybridPolicy::CloudOnly);
    let generation = GenerationOptions { canceller: Some(canceller), ..GenerationOptions::default() };
    let (_, outcome) = turn(&session, TurnOptions { generation, ..TurnOptions::default() });
    assert!(matches!(outcome, Err(HybridError::Cancelled)));
    assert_eq!(cloud.cancels.load(Ordering::SeqCst), 1);
}

#[test]
fn a_conversation_does_one_turn_at_a_time() {
    let session = session(sinking(), None, HybridPolicy::OnDeviceOnly);
    let mut refused = 0;
    session
        .send("question", TurnOptions::default(), &mut |event| {
            let again = session.send("again", TurnOptions::default(), &mut |_| panic!("no event"));
            match again {
                Err(HybridError::Busy) => refused += 1,
                // The terminal event finds the conversation free; the inner turn panics in its handler then.
                other => assert!(event.is_terminal(), "{other:?}"),
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    assert!(refused > 3);
}
