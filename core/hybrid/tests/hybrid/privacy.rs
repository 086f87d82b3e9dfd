//! Nothing leaves without consent, and what leaves is what was shown.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::{Arc, Mutex};

use pannier::session::ChatMessage;
use pannier_hybrid::openai::{OpenAiClient, OpenAiConfig};
use pannier_hybrid::policy::Blocked;
use pannier_hybrid::privacy::{Redactor, Refused};
use pannier_hybrid::{
    CloudPatience, CloudSetup, EdgeFirst, HybridError, HybridPolicy, OutgoingPayload, Reason, Source,
    TurnOptions,
};

use crate::script::{ScriptedCloud, ScriptedEdge, UNSURE, session, setup, turn};

fn unsure() -> ScriptedEdge {
    ScriptedEdge::new(&[("My ", UNSURE), ("secret ", UNSURE), ("draft.", UNSURE)])
}

fn edge_first() -> HybridPolicy {
    HybridPolicy::EdgeFirst(EdgeFirst { min_confidence: 0.9, check_after_tokens: 2, ..EdgeFirst::default() })
}

struct NoSecrets;

impl Redactor for NoSecrets {
    fn redact(&self, messages: &mut Vec<ChatMessage>) -> Result<(), Refused> {
        for message in messages {
            if message.content.contains("unspeakable") {
                return Err(Refused);
            }
            message.content = message.content.replace("question", "[redacted]");
        }
        Ok(())
    }
}

#[test]
fn consent_is_asked_for_the_very_payload_after_redaction() {
    let cloud = ScriptedCloud::saying(&["cloud"]);
    let asked = Arc::new(Mutex::new(Vec::new()));
    let keep = asked.clone();
    let mut with = setup(cloud.clone());
    with.redactor = Some(Arc::new(NoSecrets));
    with.consent = Arc::new(move |payload: &OutgoingPayload| {
        keep.lock().unwrap().push(payload.body.clone());
        true
    });
    let talk = session(unsure(), Some(with), edge_first());
    let (view, outcome) = turn(&talk, TurnOptions::default());
    assert_eq!(outcome.unwrap().source, Source::Cloud);
    assert_eq!(view.outgoing, ["[redacted]"]);
    assert_eq!(*asked.lock().unwrap(), view.outgoing);
    assert_eq!(cloud.requests.lock().unwrap()[0].messages[0].content, "[redacted]");
    // The conversation keeps the original.
    assert_eq!(talk.history()[0].content, "question");
    // What cannot be redacted stays.
    let refused =
        talk.send("unspeakable", TurnOptions::default(), &mut |_| std::ops::ControlFlow::Continue(()));
    let completion = refused.unwrap();
    assert_eq!(completion.source, Source::Device);
    assert!(completion.decisions.iter().any(|d| d.reason == Reason::CloudBlocked(Blocked::Redaction)));
    assert_eq!(cloud.asked(), 1);
}

#[test]
fn without_consent_or_when_locked_nothing_is_sent() {
    let cloud = ScriptedCloud::saying(&["cloud"]);
    let mut denied = setup(cloud.clone());
    denied.consent = Arc::new(|_: &OutgoingPayload| false);
    let (view, outcome) =
        turn(&session(unsure(), Some(denied.clone()), edge_first()), TurnOptions::default());
    assert_eq!(outcome.unwrap().source, Source::Device);
    assert!(view.decisions.iter().any(|d| d.reason == Reason::CloudBlocked(Blocked::NoConsent)));
    let only = session(unsure(), Some(denied), HybridPolicy::CloudOnly);
    let error = turn(&only, TurnOptions::default()).1.unwrap_err();
    assert!(matches!(error, HybridError::Blocked(Blocked::NoConsent)));

    let locked = session(unsure(), Some(setup(cloud.clone())), edge_first());
    locked.lock_to_device();
    assert_eq!(turn(&locked, TurnOptions::default()).1.unwrap().source, Source::Device);
    let once = session(unsure(), Some(setup(cloud.clone())), edge_first());
    let stays = TurnOptions { on_device_only: true, ..TurnOptions::default() };
    assert_eq!(turn(&once, stays).1.unwrap().source, Source::Device);
    assert_eq!(cloud.asked(), 0);
    assert_eq!(turn(&once, TurnOptions::default()).1.unwrap().source, Source::Cloud);
}

#[test]
fn a_lock_that_comes_while_consent_is_asked_counts() {
    let cloud = ScriptedCloud::saying(&["cloud"]);
    let talk: Arc<std::sync::OnceLock<pannier_hybrid::HybridSession>> = Arc::default();
    let inner = talk.clone();
    let mut late = setup(cloud.clone());
    late.consent = Arc::new(move |_: &OutgoingPayload| {
        inner.get().unwrap().lock_to_device();
        true
    });
    let talk = talk.get_or_init(|| session(unsure(), Some(late), edge_first()));
    assert_eq!(turn(talk, TurnOptions::default()).1.unwrap().source, Source::Device);
    assert_eq!(cloud.asked(), 0);
}

const CHILD: &str = "PANNIER_HYBRID_SOCKETS";

/// All sockets of this process, by inode.
#[cfg(target_os = "linux")]
fn sockets() -> BTreeSet<String> {
    std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .flatten()
        .filter_map(|fd| std::fs::read_link(fd.path()).ok())
        .map(|target| target.to_string_lossy().into_owned())
        .filter(|target| target.starts_with("socket:"))
        .collect()
}

/// Runs alone in a process, which has no other tests' sockets: the real client, a server that would answer, and turns that may not
/// use it. Sockets are watched from another thread all the while.
#[cfg(target_os = "linux")]
#[test]
fn no_socket_is_opened_on_device_or_without_consent() {
    if std::env::var_os(CHILD).is_none() {
        let me = std::env::current_exe().unwrap();
        let name = "privacy::no_socket_is_opened_on_device_or_without_consent";
        let status = Command::new(me).args([name, "--exact"]).env(CHILD, "1").status().unwrap();
        assert!(status.success());
        return;
    }
    // The backlog completes connections that nobody accepts: a client that tried would have its socket.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let client = Arc::new(OpenAiClient::new(OpenAiConfig::new(url, "m")).unwrap());
    let patience =
        CloudPatience { first_text: std::time::Duration::from_millis(500), ..CloudPatience::default() };
    let allowed = CloudSetup { patience, ..setup(client) };
    let denied = CloudSetup { consent: Arc::new(|_: &OutgoingPayload| false), ..allowed.clone() };
    let opened = watch(|| {
        for _ in 0..20 {
            let device = session(unsure(), Some(allowed.clone()), HybridPolicy::OnDeviceOnly);
            assert!(turn(&device, TurnOptions::default()).1.is_ok());
            let no_consent = session(unsure(), Some(denied.clone()), edge_first());
            assert!(turn(&no_consent, TurnOptions::default()).1.is_ok());
            let cloud_only = session(unsure(), Some(denied.clone()), HybridPolicy::CloudOnly);
            assert!(turn(&cloud_only, TurnOptions::default()).1.is_err());
            let locked = session(unsure(), Some(allowed.clone()), edge_first());
            locked.lock_to_device();
            assert!(turn(&locked, TurnOptions::default()).1.is_ok());
        }
    });
    assert!(opened.is_empty(), "{opened:?}");
    // The watcher does see sockets: with consent there is one.
    let opened = watch(|| {
        let (view, _) = turn(&session(unsure(), Some(allowed), edge_first()), TurnOptions::default());
        assert!(view.decisions.iter().any(|d| matches!(d.reason, Reason::CloudFailed { .. })));
    });
    assert!(!opened.is_empty());
}

/// Sockets that another thread saw while this was done.
#[cfg(target_os = "linux")]
fn watch(work: impl FnOnce()) -> BTreeSet<String> {
    use std::sync::atomic::{AtomicBool, Ordering};
    let before = sockets();
    let stop = AtomicBool::new(false);
    let mut seen = BTreeSet::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                seen.extend(sockets());
            }
        });
        work();
        stop.store(true, Ordering::Relaxed);
    });
    seen.difference(&before).cloned().collect()
}
