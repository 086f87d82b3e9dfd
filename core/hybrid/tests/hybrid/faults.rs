//! Every failure at every point of the stream: one terminal event, the right source, no text doubled or lost, nothing leaked.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pannier_hybrid::eval::Draw;
use pannier_hybrid::openai::{OpenAiClient, OpenAiConfig};
use pannier_hybrid::{
    CloudPatience, CloudSetup, EdgeFirst, HandOffStyle, HybridError, HybridPolicy, Source, TurnOptions,
};
use serde_json::json;

use crate::script::{SURE, ScriptedEdge, UNSURE, session, setup, turn};
use crate::server::{Plan, Server, Step};

const SCHEDULES: usize = 1000;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    None,
    NoDone,
    NoFinish,
    TextAfterDone,
    NotStreamed,
    Refused,
    Slam,
    CloseBeforeHeaders,
    StallBeforeHeaders,
    GarbageHeaders,
    Status(u16, Option<u32>),
    Close,
    Stall,
    BadJson,
    BadUtf8,
    WrongType,
    ErrorEvent,
    EndlessLine,
    HalfChunk,
    BadChunkSize,
    EndWithoutFinish,
    Empty,
}

const STATUSES: [u16; 10] = [400, 401, 403, 404, 408, 429, 500, 502, 503, 504];

impl Fault {
    /// All of them.
    fn all() -> Vec<Self> {
        let mut all = vec![
            Self::None,
            Self::NoDone,
            Self::NoFinish,
            Self::TextAfterDone,
            Self::NotStreamed,
            Self::Refused,
            Self::Slam,
            Self::CloseBeforeHeaders,
            Self::StallBeforeHeaders,
            Self::GarbageHeaders,
            Self::Close,
            Self::Stall,
            Self::BadJson,
            Self::BadUtf8,
            Self::WrongType,
            Self::ErrorEvent,
            Self::EndlessLine,
            Self::HalfChunk,
            Self::BadChunkSize,
            Self::EndWithoutFinish,
            Self::Empty,
        ];
        for status in STATUSES {
            all.extend([None, Some(0), Some(3600)].map(|after| Self::Status(status, after)));
        }
        all
    }

    /// Whether it can come behind any piece of the answer.
    fn has_points(self) -> bool {
        matches!(
            self,
            Self::Close
                | Self::Stall
                | Self::BadJson
                | Self::BadUtf8
                | Self::WrongType
                | Self::ErrorEvent
                | Self::EndlessLine
                | Self::HalfChunk
                | Self::BadChunkSize
        )
    }

    fn pick(draw: &mut Draw) -> Self {
        let status = STATUSES[draw.below(STATUSES.len())];
        let after = [None, Some(0), Some(3600)][draw.below(3)];
        let all = [
            Self::None,
            Self::NoDone,
            Self::NoFinish,
            Self::TextAfterDone,
            Self::NotStreamed,
            Self::Refused,
            Self::Slam,
            Self::CloseBeforeHeaders,
            Self::StallBeforeHeaders,
            Self::GarbageHeaders,
            Self::Status(status, after),
            Self::Status(status, after),
            Self::Close,
            Self::Close,
            Self::Stall,
            Self::BadJson,
            Self::BadUtf8,
            Self::WrongType,
            Self::ErrorEvent,
            Self::EndlessLine,
            Self::HalfChunk,
            Self::BadChunkSize,
            Self::EndWithoutFinish,
            Self::Empty,
        ];
        all[draw.below(all.len())]
    }

    fn is_harmless(self) -> bool {
        matches!(self, Self::None | Self::NoDone | Self::NoFinish | Self::TextAfterDone | Self::NotStreamed)
    }

    fn stalls(self) -> bool {
        matches!(self, Self::Stall | Self::StallBeforeHeaders)
    }

    /// Whether a second attempt is made.
    fn is_retried(self) -> bool {
        match self {
            Self::Slam | Self::CloseBeforeHeaders | Self::GarbageHeaders => true,
            Self::Status(status, after) => {
                matches!(status, 408 | 429 | 500 | 502 | 503 | 504) && after != Some(3600)
            }
            _ => false,
        }
    }
}

fn event(data: &str) -> Vec<u8> {
    format!("data: {data}\n\n").into_bytes()
}

fn piece(text: &str) -> Vec<u8> {
    event(&json!({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": null}]}).to_string())
}

fn chunked(bytes: &[u8]) -> Vec<u8> {
    let mut out = format!("{:x}\r\n", bytes.len()).into_bytes();
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
    out
}

const HEAD: &[u8] =
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
const FINISH: &str = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
const USAGE: &str = r#"{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":3}}"#;

/// The reply to one connection. `at`: how many pieces come before the fault.
fn plan(draw: &mut Draw, fault: Fault, pieces: &[&str], at: usize) -> Plan {
    match fault {
        Fault::Slam => return vec![Step::Slam],
        Fault::CloseBeforeHeaders => return vec![],
        Fault::StallBeforeHeaders => return vec![Step::Stall],
        Fault::GarbageHeaders => return vec![Step::Send(b"SSH-2.0-OpenSSH_9.6\r\n\r\n".to_vec())],
        Fault::Status(status, after) => {
            let after = after.map(|s| format!("Retry-After: {s}\r\n")).unwrap_or_default();
            let body = json!({"error": {"message": "the script says so"}}).to_string();
            let head = format!("HTTP/1.1 {status} No\r\n{after}Content-Length: {}\r\n\r\n{body}", body.len());
            return vec![Step::Send(head.into_bytes())];
        }
        Fault::NotStreamed => {
            let text: String = pieces.concat();
            let body =
                json!({"choices": [{"index": 0, "message": {"content": text}, "finish_reason": "stop"}]});
            let body = body.to_string();
            let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n";
            let all = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
            return vec![Step::Send(all.into_bytes())];
        }
        _ => {}
    }
    let mut stream = Vec::new();
    let fine = fault.is_harmless() || matches!(fault, Fault::EndWithoutFinish | Fault::Empty);
    let before = if fine { pieces.len() } else { at };
    if fault != Fault::Empty {
        for text in &pieces[..before] {
            stream.extend(piece(text));
        }
    }
    let mut tail = Vec::new();
    match fault {
        Fault::BadJson => stream.extend(event("{\"choices\": [{")),
        Fault::BadUtf8 => stream.extend(b"data: {\"choices\":[{\"delta\":{\"content\":\"\xff\xfe\"}}]}\n\n"),
        Fault::WrongType => stream.extend(event(r#"{"choices":[{"delta":{"content":42}}]}"#)),
        Fault::ErrorEvent => stream.extend(event(r#"{"error":{"message":"overloaded"}}"#)),
        Fault::EndlessLine => stream.extend(vec![b'x'; (1 << 20) + 10]),
        Fault::HalfChunk => tail.extend(b"fff\r\ndata: {\"choi"),
        Fault::BadChunkSize => tail.extend(b"zz\r\n"),
        _ if fine && fault != Fault::EndWithoutFinish => {
            if fault != Fault::NoFinish {
                stream.extend(event(FINISH));
                stream.extend(event(USAGE));
            }
            if fault != Fault::NoDone {
                stream.extend(event("[DONE]"));
            }
            if fault == Fault::TextAfterDone {
                stream.extend(piece(" and more"));
            }
            tail.extend(b"0\r\n\r\n");
        }
        Fault::EndWithoutFinish => tail.extend(b"0\r\n\r\n"),
        _ => {}
    }
    // Cut anywhere: in the middle of events, lines and characters.
    let mut steps = vec![Step::Send(HEAD.to_vec())];
    let mut rest = stream.as_slice();
    let step = 1 + draw.below(if stream.len() > 10_000 { 60_000 } else { 90 });
    while !rest.is_empty() {
        let (now, later) = rest.split_at(step.min(rest.len()));
        steps.push(Step::Send(chunked(now)));
        rest = later;
    }
    steps.push(Step::Send(tail));
    if fault == Fault::Stall {
        steps.push(Step::Stall);
    }
    steps
}

struct Case {
    policy: HybridPolicy,
    pieces: &'static [&'static str],
    /// What the user gets if the cloud does well.
    good: String,
    source: Source,
}

const SENTENCES: [&str; 2] = ["A sure beginning. ", "Another sure one. "];

const CASES: usize = 6;

fn case(which: usize, draw: &mut Draw, device: &str) -> Case {
    let edge_first = |style, hold| {
        HybridPolicy::EdgeFirst(EdgeFirst {
            min_confidence: 0.5,
            check_after_tokens: 6,
            hysteresis: 0.0,
            hold_until_checked: hold,
            style,
            ..EdgeFirst::default()
        })
    };
    let pieces: &[&str] = &["Die Wolke", " sagt: \"grün\"", "\n", "🙂🙃", " und Schluß."];
    let text = pieces.concat();
    let plain = |policy| Case { policy, pieces, good: text.clone(), source: Source::Cloud };
    match which {
        0 => plain(edge_first(HandOffStyle::Replace, true)),
        1 => plain(edge_first(HandOffStyle::Replace, false)),
        2 => Case {
            good: format!("{}{text}", SENTENCES.concat()),
            source: Source::Both,
            ..plain(edge_first(HandOffStyle::Continue, draw.below(2) == 0))
        },
        3 => {
            let pieces: &[&str] = &["{\"confidence\": 0.2, ", "\"corrected\": \"Besser so.\"", "}"];
            let policy = edge_first(HandOffStyle::Verify, draw.below(2) == 0);
            assert!(!device.is_empty());
            Case { policy, pieces, good: "Besser so.".into(), source: Source::Cloud }
        }
        4 => plain(HybridPolicy::CloudFirst),
        _ => plain(HybridPolicy::CloudOnly),
    }
}

fn device() -> ScriptedEdge {
    let mut pieces: Vec<(&str, f32)> = SENTENCES.iter().map(|s| (*s, SURE)).collect();
    pieces.extend([("then ", UNSURE); 6]);
    pieces.push(("doubt — äöü.", UNSURE));
    ScriptedEdge::new(&pieces)
}

fn run(seed: u64, server: &Server) {
    let mut draw = Draw::new(seed);
    let which = draw.below(CASES);
    let fault = Fault::pick(&mut draw);
    let at = draw.below(POINTS);
    let heals = fault.is_retried() && draw.below(2) == 0;
    play(seed, &mut draw, which, (fault, at, heals), server);
}

/// No answer of the script has more pieces: its end counts as one, and what is beyond it as the end.
const POINTS: usize = 6;

fn play(seed: u64, draw: &mut Draw, which: usize, (fault, at, heals): (Fault, usize, bool), server: &Server) {
    let edge = device();
    let draft = edge.text();
    let case = case(which, draw, &draft);
    let at = at.min(case.pieces.len());
    let first = plan(draw, fault, case.pieces, at);
    let second = plan(draw, if heals { Fault::None } else { fault }, case.pieces, at);
    server.plan([first, second]);

    let url = if fault == Fault::Refused { "http://127.0.0.1:1/v1".to_owned() } else { server.url() };
    // Where nothing stalls, nothing may time out either, however busy the machine is.
    let patient = Duration::from_secs(if fault.stalls() { 0 } else { 60 }) + Duration::from_millis(60);
    let client = Arc::new(
        OpenAiClient::new(OpenAiConfig {
            retries: 1,
            max_retry_wait: Duration::from_millis(5),
            header_timeout: patient,
            read_timeout: patient,
            ..OpenAiConfig::new(url, "scripted").with_key("sk-secret")
        })
        .unwrap(),
    );
    let patience =
        CloudPatience { first_text: patient * 3, between: patient * 3, ..CloudPatience::default() };
    let cloud = CloudSetup { patience, ..setup(client.clone()) };
    let only = case.policy == HybridPolicy::CloudOnly;
    let talk = session(edge, Some(cloud), case.policy);
    let (view, outcome) = turn(&talk, TurnOptions::default());

    let context = || format!("seed {seed}: {fault:?} at {at}, heals {heals}: {:?}", view.reasons());
    if fault.is_harmless() || heals {
        let completion = outcome.unwrap_or_else(|e| panic!("{e}; {}", context()));
        assert_eq!((completion.text, completion.source), (case.good, case.source), "{}", context());
    } else if only {
        let error = outcome.err().unwrap_or_else(|| panic!("{}", context()));
        assert!(matches!(error, HybridError::Cloud(_)), "{error}; {}", context());
        assert!(!error.to_string().contains("sk-secret"));
    } else {
        let completion = outcome.unwrap_or_else(|e| panic!("{e}; {}", context()));
        assert_eq!((completion.text, completion.source), (draft, Source::Device), "{}", context());
        assert!(view.reasons().iter().any(|r| r.starts_with("Failure Edge")), "{}", context());
    }
    // Nothing is left: no task of the client, no connection of the server.
    let begun = Instant::now();
    while client.running() > 0 || (server.active() > 0 && fault != Fault::Refused) {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "{} tasks, {} connections; {}",
            client.running(),
            server.active(),
            context()
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Does `0..n` on several threads, each with a server of its own.
fn in_parallel(n: usize, work: impl Fn(usize, &Server) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let server = Server::start();
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    if i >= n {
                        break;
                    }
                    work(i, &server);
                }
            });
        }
    });
}

#[test]
fn a_thousand_random_schedules() {
    in_parallel(SCHEDULES, |seed, server| run(seed as u64, server));
}

#[test]
fn every_failure_at_every_point_in_every_style() {
    let mut all = Vec::new();
    for fault in Fault::all() {
        for at in 0..if fault.has_points() { POINTS } else { 1 } {
            for heals in [false, true] {
                if !heals || fault.is_retried() {
                    all.extend((0..CASES).map(|which| (which, (fault, at, heals))));
                }
            }
        }
    }
    assert!(all.len() > 600, "{}", all.len());
    in_parallel(all.len(), |i, server| {
        let (which, what) = all[i];
        play(i as u64, &mut Draw::new(i as u64), which, what, server);
    });
}

/// Threads of this process.
#[cfg(target_os = "linux")]
fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

/// In a process of its own, where no other test has threads: after hand-offs that fail in many ways, everything that was started is gone.
#[cfg(target_os = "linux")]
#[test]
fn no_thread_and_no_descriptor_is_left() {
    const CHILD: &str = "PANNIER_HYBRID_LEAKS";
    if std::env::var_os(CHILD).is_none() {
        let me = std::env::current_exe().unwrap();
        let name = "faults::no_thread_and_no_descriptor_is_left";
        let status = std::process::Command::new(me).args([name, "--exact"]).env(CHILD, "1").status().unwrap();
        assert!(status.success());
        return;
    }
    let descriptors = || std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let round = || in_parallel(60, |seed, server| run(seed as u64, server));
    // The first round pays for what lives as long as the process.
    round();
    let settle = |before: (usize, usize)| {
        let begun = Instant::now();
        loop {
            let now = (threads(), descriptors());
            if now.0 <= before.0 && now.1 <= before.1 {
                return now;
            }
            assert!(begun.elapsed() < Duration::from_secs(30), "{before:?} became {now:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    std::thread::sleep(Duration::from_millis(500));
    let before = (threads(), descriptors());
    round();
    round();
    settle(before);
}
