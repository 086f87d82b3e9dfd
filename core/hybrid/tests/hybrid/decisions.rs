//! Who answers, and what is said about it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pannier_hybrid::confidence::{
    Calibration, Features, FitOptions, Logistic, Observed, TokenKind, TokenScore,
};
use pannier_hybrid::policy::{AdmissionRules, Blocked, Decision, DecisionPoint, DeviceProbe, DeviceState};
use pannier_hybrid::{
    CloudError, CloudGate, CloudLimits, CloudSetup, EdgeFirst, HybridError, HybridParts, HybridPolicy,
    HybridSession, Reason, Route, Source, TurnOptions,
};

use crate::script::{SURE, ScriptedCloud, ScriptedEdge, UNSURE, session, setup, turn};

fn edge_first() -> HybridPolicy {
    HybridPolicy::EdgeFirst(EdgeFirst { min_confidence: 0.5, check_after_tokens: 3, ..EdgeFirst::default() })
}

fn sure() -> ScriptedEdge {
    ScriptedEdge::new(&[("It ", SURE), ("is ", SURE), ("blue ", SURE), ("today.", SURE)])
}

fn unsure() -> ScriptedEdge {
    ScriptedEdge::new(&[("It ", UNSURE), ("is ", UNSURE), ("green ", UNSURE), ("today.", UNSURE)])
}

#[test]
fn a_sure_device_answers_alone() {
    let cloud = ScriptedCloud::saying(&["cloud"]);
    let session = session(sure(), Some(setup(cloud.clone())), edge_first());
    let (view, outcome) = turn(&session, TurnOptions::default());
    let completion = outcome.unwrap();
    assert_eq!((completion.text.as_str(), completion.source), ("It is blue today.", Source::Device));
    assert!(completion.confidence.unwrap().value > 0.5);
    assert_eq!((cloud.asked(), view.discards, view.outgoing.len()), (0, 0, 0));
    let points: Vec<_> = view.decisions.iter().map(|d| (d.point, d.route)).collect();
    assert_eq!(
        points,
        [
            (DecisionPoint::Admission, Route::Edge),
            (DecisionPoint::FirstCheck, Route::Edge),
            (DecisionPoint::End, Route::Edge)
        ]
    );
    let check = &view.decisions[1];
    assert_eq!((check.tokens, check.threshold), (3, Some(0.5)));
    assert!(check.confidence.unwrap() > 0.5);
    assert!(view.scored > 0 && view.sentences == [(0, 17)], "{view:?}");
}

#[test]
fn an_unsure_device_hands_over_before_anything_is_shown() {
    let cloud = ScriptedCloud::saying(&["It is ", "blue."]);
    let session = session(unsure(), Some(setup(cloud.clone())), edge_first());
    let (view, outcome) = turn(&session, TurnOptions::default());
    let completion = outcome.unwrap();
    assert_eq!((completion.text.as_str(), completion.source), ("It is blue.", Source::Cloud));
    assert_eq!((cloud.asked(), view.discards), (1, 0));
    assert_eq!(
        view.decisions.last().map(|d| (d.point, d.route)),
        Some((DecisionPoint::FirstCheck, Route::Cloud))
    );
    assert_eq!((completion.usage.prompt_tokens, completion.usage.completion_tokens), (10, 5));
    assert!(completion.confidence.unwrap().value < 0.5);
}

/// A calibration that knows a cloud that is right so often, whatever is asked.
fn knowing_a_cloud(right_of_ten: usize) -> Calibration {
    let answers: Vec<(Features, bool)> = (0..400usize)
        .map(|i| {
            let mut seen = Observed::answer_to("What is it?");
            let logprob = -((i % 7) as f32) / 2.0;
            seen.push(TokenScore { id: 1, kind: TokenKind::Word, logprob, margin: 0.5, entropy: 1.0 });
            (seen.features().unwrap(), i * 7 % 10 < right_of_ten)
        })
        .collect();
    let options = FitOptions { ridge: 20.0, ..FitOptions::default() };
    Calibration::default().with_cloud(Logistic::fit(&answers, options).unwrap())
}

#[test]
fn what_the_cloud_knows_no_better_is_not_handed_over() {
    for (right, source) in [(9, Source::Cloud), (1, Source::Device)] {
        let cloud = ScriptedCloud::saying(&["It is ", "blue."]);
        let calibration = knowing_a_cloud(right);
        let HybridPolicy::EdgeFirst(e) = edge_first() else { unreachable!() };
        let policy = HybridPolicy::EdgeFirst(EdgeFirst { min_gain: 0.3, ..e });
        let cloud_setup = Some(setup(cloud.clone()));
        let parts = HybridParts { policy, cloud: cloud_setup, calibration, ..HybridParts::default() };
        let session = HybridSession::new(Arc::new(unsure()), parts);
        let (view, outcome) = turn(&session, TurnOptions::default());
        let completion = outcome.unwrap();
        assert_eq!(completion.source, source, "{:?}", view.reasons());
        let no_gain = |d: &&Decision| matches!(d.reason, Reason::NoGain { gain, min } if gain < min);
        let kept = view.decisions.iter().filter(no_gain).filter(|d| d.route == Route::Edge).count();
        // At the first look and at the end.
        assert_eq!((cloud.asked(), kept), if right == 9 { (1, 0) } else { (0, 2) }, "{:?}", view.reasons());
    }
}

#[test]
fn a_failing_cloud_leaves_the_draft() {
    let cloud = ScriptedCloud::failing();
    let session = session(unsure(), Some(setup(cloud.clone())), edge_first());
    let (view, outcome) = turn(&session, TurnOptions::default());
    let completion = outcome.unwrap();
    assert_eq!((completion.text.as_str(), completion.source), ("It is green today.", Source::Device));
    assert_eq!(cloud.asked(), 1, "asked once, not at every look: {:?}", view.reasons());
    assert!(
        view.decisions
            .iter()
            .any(|d| matches!(d.reason, Reason::CloudFailed { .. }) && d.route == Route::Edge)
    );
}

#[test]
fn text_that_was_shown_is_taken_back_when_the_cloud_begins() {
    let HybridPolicy::EdgeFirst(e) = edge_first() else { unreachable!() };
    let policy = HybridPolicy::EdgeFirst(EdgeFirst { hold_until_checked: false, ..e });
    let session = session(unsure(), Some(setup(ScriptedCloud::saying(&["Blue."]))), policy);
    let (view, outcome) = turn(&session, TurnOptions::default());
    assert_eq!(outcome.unwrap().text, "Blue.");
    assert_eq!(view.discards, 1);
}

#[test]
fn an_answer_that_passed_is_given_up_only_after_two_low_sentences() {
    let mut pieces = vec![("Sure start. ", SURE); 3];
    pieces.push(("A weak sentence. ", UNSURE));
    pieces.push(("Sure again here. ", SURE));
    let flapping = ScriptedEdge::new(&pieces);
    let cloud = ScriptedCloud::saying(&["cloud"]);
    let flapping = session(flapping, Some(setup(cloud.clone())), edge_first());
    let (view, outcome) = turn(&flapping, TurnOptions::default());
    assert!(view.decisions.iter().filter(|d| d.point == DecisionPoint::Sentence).count() >= 2);
    assert_eq!(cloud.asked(), usize::from(outcome.unwrap().source == Source::Cloud));

    pieces.truncate(3);
    pieces.extend([("Quite a weak one. ", UNSURE); 8]);
    let sinking = session(ScriptedEdge::new(&pieces), Some(setup(cloud.clone())), edge_first());
    let (view, outcome) = turn(&sinking, TurnOptions::default());
    assert_eq!(outcome.unwrap().source, Source::Cloud);
    let handed = view.decisions.last().unwrap();
    assert_eq!((handed.point, handed.route), (DecisionPoint::Sentence, Route::Cloud), "{:?}", view.reasons());
    assert!((handed.threshold.unwrap() - 0.4).abs() < 1e-9, "the bar is lower once an answer passed");
}

#[test]
fn a_slow_device_is_overtaken_and_finishes_if_the_cloud_fails() {
    let slow = || {
        let mut edge = sure();
        edge.delay = Duration::from_millis(40);
        edge
    };
    let HybridPolicy::EdgeFirst(e) = edge_first() else { unreachable!() };
    let policy =
        HybridPolicy::EdgeFirst(EdgeFirst { max_edge_latency: Some(Duration::from_millis(10)), ..e });
    let overtaken = session(slow(), Some(setup(ScriptedCloud::saying(&["fast"]))), policy.clone());
    let (view, outcome) = turn(&overtaken, TurnOptions::default());
    assert_eq!(outcome.unwrap().text, "fast");
    assert!(view.decisions.iter().any(|d| matches!(d.reason, Reason::Slow { .. })));

    let edge = Arc::new(slow());
    let parts =
        HybridParts { policy, cloud: Some(setup(ScriptedCloud::failing())), ..HybridParts::default() };
    let alone = HybridSession::new(edge.clone(), parts);
    let (_, outcome) = turn(&alone, TurnOptions::default());
    assert_eq!(outcome.unwrap().text, edge.text());
    assert_eq!(edge.runs.load(Ordering::SeqCst), 2);
}

#[test]
fn cloud_first_falls_back_and_cloud_only_does_not() {
    let first = session(sure(), Some(setup(ScriptedCloud::saying(&["cloud"]))), HybridPolicy::CloudFirst);
    assert_eq!(turn(&first, TurnOptions::default()).1.unwrap().source, Source::Cloud);
    let failing = || Some(setup(ScriptedCloud::failing()));
    let fallen = session(sure(), failing(), HybridPolicy::CloudFirst);
    assert_eq!(turn(&fallen, TurnOptions::default()).1.unwrap().source, Source::Device);
    let only = session(sure(), failing(), HybridPolicy::CloudOnly);
    let error = turn(&only, TurnOptions::default()).1.unwrap_err();
    assert!(matches!(error, HybridError::Cloud(CloudError::Unreachable { .. })));
    let none = session(sure(), None, HybridPolicy::CloudOnly);
    let error = turn(&none, TurnOptions::default()).1.unwrap_err();
    assert!(matches!(error, HybridError::Blocked(Blocked::NoCloud)));
}

#[test]
fn a_failing_device_is_replaced() {
    for at in 0..4 {
        let mut edge = sure();
        edge.fail_at = Some(at);
        let helped = session(edge, Some(setup(ScriptedCloud::saying(&["cloud"]))), edge_first());
        let (view, outcome) = turn(&helped, TurnOptions::default());
        assert_eq!(outcome.unwrap().text, "cloud", "{:?}", view.reasons());
        let mut edge = sure();
        edge.fail_at = Some(at);
        let alone = session(edge, Some(setup(ScriptedCloud::failing())), edge_first());
        assert!(matches!(turn(&alone, TurnOptions::default()).1, Err(HybridError::Edge(_))));
    }
}

struct Fixed(DeviceState);

impl DeviceProbe for Fixed {
    fn state(&self) -> DeviceState {
        self.0
    }
}

#[test]
fn rules_send_to_the_cloud_and_being_offline_does_not() {
    let ask = |online, battery, task: Option<&str>| {
        let parts = HybridParts {
            policy: edge_first(),
            cloud: Some(setup(ScriptedCloud::saying(&["cloud"]))),
            rules: AdmissionRules {
                min_battery: Some(0.2),
                cloud_tasks: vec!["legal".into()],
                ..AdmissionRules::default()
            },
            device: Arc::new(Fixed(DeviceState {
                online: Some(online),
                battery: Some(battery),
                ..DeviceState::default()
            })),
            ..HybridParts::default()
        };
        let session = HybridSession::new(Arc::new(sure()), parts);
        let options = TurnOptions { task: task.map(str::to_owned), ..TurnOptions::default() };
        let (view, outcome) = turn(&session, options);
        (outcome.unwrap().source, view.decisions[0].reason.clone())
    };
    assert_eq!(ask(true, 0.9, None), (Source::Device, Reason::Policy));
    assert_eq!(ask(true, 0.1, None).0, Source::Cloud);
    assert_eq!(ask(true, 0.9, Some("legal")), (Source::Cloud, Reason::Task { name: "legal".into() }));
    assert_eq!(ask(false, 0.1, None), (Source::Device, Reason::CloudBlocked(Blocked::Offline)));
}

#[test]
fn a_long_prompt_goes_to_the_cloud() {
    let session = session(sure(), Some(setup(ScriptedCloud::saying(&["cloud"]))), edge_first());
    let long = "word ".repeat(2000);
    let mut reasons = Vec::new();
    let completion = session
        .send(&long, TurnOptions::default(), &mut |event| {
            if let pannier_hybrid::HybridEvent::Decision(d) = event {
                reasons.push(d.reason.clone());
            }
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(completion.source, Source::Cloud);
    assert!(matches!(reasons[0], Reason::PromptTooLong { limit: 1000, .. }));
}

#[test]
fn the_circuit_opens_over_conversations() {
    let limits =
        CloudLimits { failures_to_open: 2, open_for: Duration::from_secs(3600), ..CloudLimits::default() };
    let gate = CloudGate::new(limits);
    let cloud = ScriptedCloud::failing();
    let mut reasons = Vec::new();
    for _ in 0..4 {
        let setup = CloudSetup { gate: gate.clone(), ..setup(cloud.clone()) };
        let session = session(unsure(), Some(setup), edge_first());
        let (view, outcome) = turn(&session, TurnOptions::default());
        assert_eq!(outcome.unwrap().source, Source::Device);
        reasons.push(
            view.decisions
                .iter()
                .any(|d| matches!(d.reason, Reason::CloudBlocked(Blocked::CircuitOpen { .. }))),
        );
    }
    assert_eq!((cloud.asked(), reasons), (2, vec![false, false, true, true]));
}

#[test]
fn a_cost_cap_limits_the_answer_then_the_request() {
    let price = pannier_hybrid::gate::Price { prompt_micros: 1_000_000, completion_micros: 1_000_000 };
    let ask = |cap| {
        let cloud = ScriptedCloud::saying(&["cloud"]);
        let gate =
            CloudGate::new(CloudLimits { price, max_per_request: Some(cap), ..CloudLimits::default() });
        let session = session(unsure(), Some(CloudSetup { gate, ..setup(cloud.clone()) }), edge_first());
        let completion = turn(&session, TurnOptions::default()).1.unwrap();
        let limit = cloud.requests.lock().unwrap().first().and_then(|r| r.max_tokens);
        (completion.source, limit, completion.cost)
    };
    // "question" is reckoned as 7 tokens.
    assert_eq!(ask(27), (Source::Cloud, Some(20), 15));
    assert_eq!(ask(5), (Source::Device, None, 0));
}
