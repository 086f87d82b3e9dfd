//! The server on loopback, with a scripted model: what clients send and get, byte by byte; and our own client against it.
#![cfg(feature = "serve")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

#[allow(dead_code, reason = "the engine's scripted model as it is")]
#[path = "../../engine/tests/session/fake.rs"]
mod fake;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fake::{END, Fake};
use pannier::session::ChatOptions;
use pannier_hybrid::openai::{OpenAiClient, OpenAiConfig, Secret};
use pannier_hybrid::serve::{ServeError, ServeOptions, serve_blocking};
use pannier_hybrid::{
    CloudSetup, HybridParts, HybridPolicy, HybridSession, OutgoingPayload, Source, TurnOptions,
};
use serde_json::{Value, json};

struct Running {
    address: SocketAddr,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<(), ServeError>>>,
}

impl Running {
    fn start(fake: Fake, options: ServeOptions) -> Self {
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let (tell, told) = channel();
        let options = ServeOptions { address: SocketAddr::from(([127, 0, 0, 1], 0)), ..options };
        let thread = std::thread::spawn(move || {
            serve_blocking(fake.with_bytes(), options, |a| tell.send(a).unwrap(), async {
                let _ = stopped.await;
            })
        });
        Self { address: told.recv().unwrap(), stop: Some(stop), thread: Some(thread) }
    }

    fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    fn stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }

    /// Sends raw bytes, reads to the end.
    fn raw(&self, request: &str) -> (u16, String, String) {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        let text = String::from_utf8(all).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
        (status, head.to_lowercase(), body.to_owned())
    }

    fn post(&self, body: &Value) -> (u16, String, String) {
        self.raw(&post(&body.to_string()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap().unwrap();
        }
    }
}

fn post(body: &str) -> String {
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Connection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1:1\r\nConnection: close\r\n\r\n")
}

/// Answers "Hi 🙂! Bye." to everything: after the last start-of-turn marker, by what is there already.
fn greeter() -> Fake {
    const ANSWER: &str = "Hi 🙂! Bye.";
    let marker = fake::bytes("assistant\n");
    Fake::new(move |seq| {
        let begin = seq.windows(marker.len()).rposition(|w| w == marker).map_or(0, |at| at + marker.len());
        ANSWER.as_bytes().get(seq.len() - begin).map_or(END, |byte| u32::from(*byte))
    })
}

/// Goes on until its context is full; each pass takes a while.
fn endless(pause: Duration) -> Fake {
    let mut fake = Fake::new(|_| u32::from(b'x'));
    fake.hook = Arc::new(move |_, _| {
        std::thread::sleep(pause / fake::LAYERS as u32);
        Ok(())
    });
    fake
}

fn hello() -> Value {
    json!({"model": "pannier", "temperature": 0, "messages": [{"role": "user", "content": "hello"}]})
}

fn with(mut body: Value, fields: Value) -> Value {
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

#[test]
fn models_and_health_are_told() {
    let server = Running::start(greeter(), ServeOptions::default());
    let (status, _, body) = server.raw(&get("/v1/models"));
    let list: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &list["object"], &list["data"][0]["id"]), (200, &json!("list"), &json!("pannier")));
    assert_eq!(server.raw(&get("/v1/models/pannier")).0, 200);
    assert_eq!(server.raw(&get("/v1/models/other")).0, 404);
    assert_eq!(server.raw(&get("/health")).0, 200);
    assert_eq!(server.raw(&get("/nothing")).0, 404);
    assert_eq!(server.raw(&get("/v1/chat/completions")).0, 405);
}

#[test]
fn a_whole_answer_has_text_usage_and_logprobs() {
    let server = Running::start(greeter(), ServeOptions::default());
    let (status, _, body) = server.post(&with(hello(), json!({"logprobs": true, "top_logprobs": 2})));
    let got: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(status, 200, "{body}");
    let choice = &got["choices"][0];
    assert_eq!(choice["message"]["content"], "Hi 🙂! Bye.");
    assert_eq!((&got["object"], &choice["finish_reason"]), (&json!("chat.completion"), &json!("stop")));
    let usage = &got["usage"];
    assert_eq!(usage["completion_tokens"], 13);
    assert_eq!(usage["total_tokens"].as_u64().unwrap(), usage["prompt_tokens"].as_u64().unwrap() + 13);
    let tokens = choice["logprobs"]["content"].as_array().unwrap();
    let bytes: Vec<u8> = tokens
        .iter()
        .flat_map(|t| t["bytes"].as_array().unwrap().iter().map(|b| b.as_u64().unwrap() as u8))
        .collect();
    assert_eq!(bytes, "Hi 🙂! Bye.".as_bytes());
    assert!(tokens.iter().all(|t| t["logprob"].as_f64().unwrap() <= 0.0));
    assert_eq!(tokens[0]["top_logprobs"].as_array().map(Vec::len), Some(2));
}

#[test]
fn a_streamed_answer_equals_the_whole_one() {
    let server = Running::start(greeter(), ServeOptions::default());
    let fields = json!({"stream": true, "stream_options": {"include_usage": true}, "logprobs": true});
    let (status, head, body) = server.post(&with(hello(), fields));
    assert_eq!(status, 200);
    assert!(head.contains("text/event-stream"), "{head}");
    // The body is chunked; the events are in it whole.
    let events: Vec<&str> = body.lines().filter_map(|l| l.strip_prefix("data: ")).collect();
    assert_eq!(events.last(), Some(&"[DONE]"));
    let chunks: Vec<Value> =
        events[..events.len() - 1].iter().map(|e| serde_json::from_str(e).unwrap()).collect();
    let text: String = chunks.iter().filter_map(|c| c["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(text, "Hi 🙂! Bye.");
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    let finishes: Vec<&str> =
        chunks.iter().filter_map(|c| c["choices"][0]["finish_reason"].as_str()).collect();
    assert_eq!(finishes, ["stop"]);
    assert_eq!(chunks.last().unwrap()["usage"]["completion_tokens"], 13);
    let ids: std::collections::HashSet<&str> = chunks.iter().filter_map(|c| c["id"].as_str()).collect();
    assert_eq!(ids.len(), 1);
}

#[test]
fn stop_strings_limits_and_seeds_are_heeded() {
    let server = Running::start(greeter(), ServeOptions::default());
    let text = |fields| {
        let body = server.post(&with(hello(), fields)).2;
        let got: Value = serde_json::from_str(&body).unwrap();
        let choice = &got["choices"][0];
        (choice["message"]["content"].as_str().unwrap().to_owned(), choice["finish_reason"].clone())
    };
    assert_eq!(text(json!({"stop": "!"})), ("Hi 🙂".into(), json!("stop")));
    assert_eq!(text(json!({"stop": ["zzz", " "]})), ("Hi".into(), json!("stop")));
    assert_eq!(text(json!({"max_tokens": 2})), ("Hi".into(), json!("length")));
    assert_eq!(text(json!({"max_completion_tokens": 1})), ("H".into(), json!("length")));

    let chance = Running::start(Fake::babbling(), ServeOptions::default());
    let draw = |seed: i64| {
        let body = with(hello(), json!({"temperature": 1, "seed": seed, "max_tokens": 12}));
        serde_json::from_str::<Value>(&chance.post(&body).2).unwrap()["choices"].clone()
    };
    assert_eq!(draw(7), draw(7));
    assert_ne!(draw(7), draw(8));
}

#[test]
fn wrong_requests_get_openais_errors() {
    let options =
        ServeOptions { max_body: 5000, key: Some(Secret::new("sesame")), ..ServeOptions::default() };
    let server = Running::start(greeter(), options);
    let key = |r: String| r.replacen("Host:", "Authorization: Bearer sesame\r\nHost:", 1);
    let ask = |body: &str| server.raw(&key(post(body)));
    let error = |(status, _, body): (u16, String, String)| {
        let value: Value = serde_json::from_str(&body).unwrap_or_else(|e| panic!("{e}: {body}"));
        (status, value["error"]["code"].as_str().unwrap_or("").to_owned())
    };
    assert_eq!(ask(&hello().to_string()).0, 200);
    assert_eq!(error(server.raw(&post("{}"))), (401, "invalid_api_key".into()));
    assert_eq!(error(server.raw(&key(post("{}")).replace("sesame", "sesamf"))).0, 401);
    assert_eq!(error(ask("{")).0, 400);
    assert_eq!(error(ask(&with(hello(), json!({"n": 3})).to_string())).0, 400);
    assert_eq!(error(ask(&with(hello(), json!({"temperature": -1})).to_string())).0, 400);
    assert_eq!(
        error(ask(&with(hello(), json!({"model": "x"})).to_string())),
        (404, "model_not_found".into())
    );
    assert_eq!(error(ask(&"x".repeat(6000))).0, 413);
    let long = json!([{"role": "user", "content": "y".repeat(4500)}]);
    let long = with(hello(), json!({"messages": long}));
    assert_eq!(error(ask(&long.to_string())), (400, "context_length_exceeded".into()));
    assert_eq!(error(ask(&with(long, json!({"stream": true})).to_string())).0, 400);
    let refused = json!([{"role": "user", "content": "forbidden"}]);
    assert_eq!(error(ask(&with(hello(), json!({"messages": refused})).to_string())).0, 400);
    // What a web page could send.
    let plain = key(post(&hello().to_string())).replace("application/json", "text/plain");
    assert_eq!(error(server.raw(&plain)).0, 415);
    let rebound = key(post(&hello().to_string())).replace("Host: localhost", "Host: evil.example");
    assert_eq!(error(server.raw(&rebound)).0, 403);
}

#[test]
fn a_full_queue_refuses_and_clients_that_leave_are_forgotten() {
    let options = ServeOptions { parallel: 1, queue: 1, ..ServeOptions::default() };
    let server = Running::start(endless(Duration::from_millis(8)), options);
    let body = post(&hello().to_string());
    let open = || {
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.write_all(body.as_bytes()).unwrap();
        stream
    };
    let first = open();
    let second = open();
    // Until both have their places, a third may get one.
    let begun = Instant::now();
    let refused = loop {
        let short = with(hello(), json!({"max_tokens": 1}));
        let (status, head, _) = server.post(&short);
        if status == 429 {
            break head;
        }
        assert!(begun.elapsed() < Duration::from_secs(60));
    };
    assert!(refused.contains("retry-after: 1"), "{refused}");
    drop(first);
    drop(second);
    // The endless answers are cancelled: the next one is answered long before they would have ended (4096 tokens).
    let begun = Instant::now();
    loop {
        let (status, _, _) = server.post(&with(hello(), json!({"max_tokens": 1})));
        if status == 200 {
            break;
        }
        assert!(status == 429 && begun.elapsed() < Duration::from_secs(30), "{status}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_shutdown_lets_answers_finish_within_its_grace() {
    for (grace, finishes) in [(Duration::from_secs(60), true), (Duration::from_millis(50), false)] {
        let started = Arc::new(AtomicBool::new(false));
        let flag = started.clone();
        let mut fake = Fake::new(|_| u32::from(b'x'));
        fake.hook = Arc::new(move |step, _| {
            flag.store(true, Ordering::SeqCst);
            std::thread::sleep(if step > 1 { Duration::from_millis(4) } else { Duration::ZERO });
            Ok(())
        });
        let mut server = Running::start(fake, ServeOptions { grace, ..ServeOptions::default() });
        let address = server.address;
        let tokens = if finishes { 20 } else { 4000 };
        let client = std::thread::spawn(move || {
            let mut stream = TcpStream::connect(address).unwrap();
            let body = with(hello(), json!({"max_tokens": tokens}));
            stream.write_all(post(&body.to_string()).as_bytes()).unwrap();
            let mut all = String::new();
            let _ = stream.read_to_string(&mut all);
            all
        });
        while !started.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        server.stop();
        let got = client.join().unwrap();
        assert_eq!(got.starts_with("HTTP/1.1 200") && got.contains(&"x".repeat(20)), finishes, "{got}");
        drop(server);
        assert!(TcpStream::connect(address).is_err(), "nobody listens any more");
    }
}

#[test]
fn our_client_talks_to_our_server() {
    let server = Running::start(
        greeter(),
        ServeOptions { key: Some(Secret::new("sesame")), ..ServeOptions::default() },
    );
    let edge = Arc::new(endless(Duration::ZERO).with_bytes().chat(ChatOptions::default()).unwrap());
    let talk = |key: &str| {
        let client = OpenAiClient::new(OpenAiConfig::new(server.url(), "pannier").with_key(key)).unwrap();
        let cloud = CloudSetup::new(Arc::new(client), Arc::new(|_: &OutgoingPayload| true));
        let parts =
            HybridParts { policy: HybridPolicy::CloudOnly, cloud: Some(cloud), ..HybridParts::default() };
        let session = HybridSession::new(edge.clone(), parts);
        session.send("hello", TurnOptions::default(), &mut |_| ControlFlow::Continue(()))
    };
    let completion = talk("sesame").unwrap();
    assert_eq!((completion.text.as_str(), completion.source), ("Hi 🙂! Bye.", Source::Cloud));
    assert_eq!(completion.usage.completion_tokens, 13);
    let error = talk("wrong").unwrap_err();
    assert!(error.to_string().contains("401"), "{error}");
}

#[test]
fn the_network_needs_a_key() {
    let options = ServeOptions { address: SocketAddr::from(([0, 0, 0, 0], 0)), ..ServeOptions::default() };
    let error = serve_blocking(greeter().with_bytes(), options, |_| {}, async {}).unwrap_err();
    assert!(matches!(error, ServeError::NeedsKey { .. }));
}
