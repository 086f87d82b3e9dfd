//! Downloads against a server on this machine that misbehaves in every way that real ones do.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests, too")]

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use pannier::store::{
    DownloadCanceller, DownloadEvent, DownloadOptions, DownloadRequest, Downloaded, Sha256Digest, StoreError,
    sha256_file,
};

/// What the server was asked.
#[derive(Debug, Clone, Default)]
struct Asked {
    path: String,
    range: Option<u64>,
    if_range: Option<String>,
}

type Behaviour = Box<dyn FnMut(usize, &Asked, &mut TcpStream) + Send>;

/// Answers one request per connection with a function of (number of the request, request).
struct Server {
    address: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Server {
    fn start(mut behaviour: Behaviour) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = asked.clone();
        std::thread::spawn(move || {
            for (i, stream) in listener.incoming().enumerate() {
                let mut stream = stream.unwrap();
                let request = read_request(&stream);
                log.lock().unwrap().push(request.clone());
                behaviour(i, &request, &mut stream);
            }
        });
        Server { address, asked }
    }

    fn url(&self) -> String {
        format!("{}/dir/model.gguf", self.address)
    }

    fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

fn read_request(stream: &TcpStream) -> Asked {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let first = lines.next().unwrap_or_default();
    let mut asked =
        Asked { path: first.split(' ').nth(1).unwrap_or_default().to_owned(), ..Asked::default() };
    for line in lines.take_while(|l| !l.is_empty()) {
        let Some((name, value)) = line.split_once(": ") else { continue };
        match name.to_ascii_lowercase().as_str() {
            "range" => {
                asked.range = value
                    .strip_prefix("bytes=")
                    .and_then(|v| v.strip_suffix('-'))
                    .and_then(|v| v.parse().ok());
            }
            "if-range" => asked.if_range = Some(value.to_owned()),
            "accept-encoding" => assert_eq!(value, "identity"),
            _ => {}
        }
    }
    asked
}

/// An honest answer, as far as `limit` bytes of it.
fn serve(stream: &mut TcpStream, asked: &Asked, body: &[u8], tag: &str, limit: usize) {
    let start = asked.range.filter(|_| asked.if_range.as_deref().is_none_or(|t| t == tag));
    let (head, rest) = match start {
        Some(start) if start as usize >= body.len() => {
            (format!("416 Range Not Satisfiable\r\nContent-Range: bytes */{}", body.len()), &body[..0])
        }
        Some(start) => (
            format!("206 Partial Content\r\nContent-Range: bytes {start}-{}/{}", body.len() - 1, body.len()),
            &body[start as usize..],
        ),
        None => ("200 OK".to_owned(), body),
    };
    let _ = write!(stream, "HTTP/1.1 {head}\r\nETag: {tag}\r\nContent-Length: {}\r\n\r\n", rest.len());
    let _ = stream.write_all(&rest[..limit.min(rest.len())]);
}

fn whole(stream: &mut TcpStream, asked: &Asked, body: &[u8]) {
    serve(stream, asked, body, "\"1\"", usize::MAX);
}

fn model(len: usize, seed: u32) -> Vec<u8> {
    let mut state = seed;
    let noise = std::iter::repeat_with(move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    });
    b"GGUF".iter().copied().chain(noise).take(len).collect()
}

fn digest(bytes: &[u8]) -> Sha256Digest {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    sha256_file(file.path(), &mut |_| true).unwrap().unwrap()
}

fn request(urls: &[String], body: Option<&[u8]>) -> DownloadRequest {
    DownloadRequest {
        urls: urls.to_vec(),
        file: "model.gguf".into(),
        bytes: body.map(|b| b.len() as u64),
        sha256: body.map(digest),
    }
}

/// Impatient, so that the tests are quick.
fn options() -> DownloadOptions {
    DownloadOptions {
        connect_timeout: Duration::from_secs(5),
        stall_timeout: Duration::from_millis(400),
        tries: 3,
        pause: Duration::from_millis(5),
    }
}

fn pull(dir: &Path, request: &DownloadRequest) -> (Result<Downloaded, StoreError>, Vec<DownloadEvent>) {
    let mut events = Vec::new();
    let store = pannier::store::ModelStore::at(dir);
    let out =
        store.pull_blocking(request, options(), &DownloadCanceller::new(), &mut |event| events.push(event));
    (out, events)
}

fn restarts(events: &[DownloadEvent]) -> usize {
    events.iter().filter(|e| matches!(e, DownloadEvent::Restarted { .. })).count()
}

/// The file is there and right, and nothing else is.
fn assert_only(dir: &Path, body: &[u8]) {
    assert!(std::fs::read(dir.join("model.gguf")).unwrap() == body, "wrong bytes under the final name");
    let names: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["model.gguf"]);
}

fn assert_absent(dir: &Path) {
    assert!(!dir.join("model.gguf").exists(), "an unverified file got the final name");
}

#[test]
fn a_plain_download_is_verified_and_then_not_repeated() {
    let body = model(300_000, 1);
    let copy = body.clone();
    let server = Server::start(Box::new(move |_, asked, stream| whole(stream, asked, &copy)));
    let dir = tempfile::tempdir().unwrap();
    let request = request(&[server.url()], Some(&body));

    let (out, events) = pull(dir.path(), &request);
    let out = out.unwrap();
    assert_eq!((out.bytes, out.sha256, out.already_there), (300_000, digest(&body), false));
    assert_only(dir.path(), &body);
    assert!(matches!(events[0], DownloadEvent::Started { resumed_from: 0, total: Some(300_000), .. }));
    assert!(events.iter().any(|e| matches!(e, DownloadEvent::Progress { done: 300_000, .. })));
    assert!(matches!(events.last(), Some(DownloadEvent::Verifying { done: 300_000, total: 300_000 })));

    assert!(pull(dir.path(), &request).0.unwrap().already_there);
    assert_eq!(server.asked().len(), 1);

    // A damaged copy under the name is replaced.
    std::fs::write(dir.path().join("model.gguf"), &body[..1000]).unwrap();
    assert!(!pull(dir.path(), &request).0.unwrap().already_there);
    assert_only(dir.path(), &body);
}

#[test]
fn ten_cuts_are_resumed_where_they_happened() {
    let body = model(1_000_000, 2);
    let copy = body.clone();
    let server = Server::start(Box::new(move |i, asked, stream| {
        serve(stream, asked, &copy, "\"1\"", if i < 10 { 90_001 } else { usize::MAX });
    }));
    let dir = tempfile::tempdir().unwrap();
    // Once with a digest and once without: then the ETag must carry it.
    for known in [Some(&body[..]), None] {
        let (out, events) = pull(dir.path(), &request(&[server.url()], known));
        assert_eq!(out.unwrap().sha256, digest(&body));
        assert_only(dir.path(), &body);
        assert_eq!(restarts(&events), 0);
        std::fs::remove_file(dir.path().join("model.gguf")).unwrap();
    }
    let asked = server.asked();
    assert_eq!(asked.len(), 12, "the cuts of the first run, and one request of the second");
    let starts: Vec<_> = asked[..11].iter().map(|a| a.range.unwrap_or(0)).collect();
    assert!(starts.windows(2).all(|w| w[0] < w[1]), "{starts:?}");
    assert!(asked[1..11].iter().all(|a| a.if_range.as_deref() == Some("\"1\"")));
}

#[test]
fn cuts_without_a_digest_resume_by_etag() {
    let body = model(400_000, 3);
    let copy = body.clone();
    let server = Server::start(Box::new(move |i, asked, stream| {
        serve(stream, asked, &copy, "\"1\"", if i < 3 { 100_000 } else { usize::MAX });
    }));
    let dir = tempfile::tempdir().unwrap();
    let (out, events) = pull(dir.path(), &request(&[server.url()], None));
    assert_eq!(out.unwrap().sha256, digest(&body));
    assert_eq!(restarts(&events), 0);
    assert!(server.asked()[3].range.unwrap() > 0);
}

#[test]
fn a_server_without_ranges_is_started_again() {
    let body = model(200_000, 4);
    let copy = body.clone();
    let server = Server::start(Box::new(move |i, _, stream| {
        let no_range = Asked::default();
        serve(stream, &no_range, &copy, "\"1\"", if i < 2 { 70_000 } else { usize::MAX });
    }));
    let dir = tempfile::tempdir().unwrap();
    let (out, events) = pull(dir.path(), &request(&[server.url()], Some(&body)));
    out.unwrap();
    assert_only(dir.path(), &body);
    assert_eq!(restarts(&events), 2);
}

#[test]
fn two_versions_of_a_file_are_never_glued_together() {
    let (old, new) = (model(200_000, 5), model(200_000, 6));
    // One server honours If-Range, the other ignores it and continues with the new file's bytes.
    for honest in [true, false] {
        let (old, copy) = (old.clone(), new.clone());
        let server = Server::start(Box::new(move |i, asked, stream| {
            if i == 0 {
                serve(stream, asked, &old, "\"old\"", 80_000);
            } else if honest {
                serve(stream, asked, &copy, "\"new\"", usize::MAX);
            } else {
                let asked = Asked { if_range: None, ..asked.clone() };
                serve(stream, &asked, &copy, "\"new\"", usize::MAX);
            }
        }));
        let dir = tempfile::tempdir().unwrap();
        let (out, events) = pull(dir.path(), &request(&[server.url()], None));
        assert_eq!(out.unwrap().sha256, digest(&new), "honest: {honest}");
        assert_only(dir.path(), &new);
        assert_eq!(restarts(&events), 1);
    }
}

#[test]
fn wrong_bytes_never_get_the_name() {
    let (body, bad) = (model(150_000, 7), model(150_000, 8));
    let copy = bad.clone();
    let server = Server::start(Box::new(move |_, asked, stream| whole(stream, asked, &copy)));
    let dir = tempfile::tempdir().unwrap();
    let (out, _) = pull(dir.path(), &request(&[server.url()], Some(&body)));
    assert!(matches!(out, Err(StoreError::WrongDigest { .. })), "{out:?}");
    assert_absent(dir.path());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "bad bytes are not kept");

    // A second source saves it.
    let copy = body.clone();
    let mirror = Server::start(Box::new(move |_, asked, stream| whole(stream, asked, &copy)));
    let (out, events) = pull(dir.path(), &request(&[server.url(), mirror.url()], Some(&body)));
    out.unwrap();
    assert_only(dir.path(), &body);
    assert!(events.iter().any(|e| matches!(e, DownloadEvent::SourceFailed { .. })));
}

#[test]
fn bad_bytes_of_an_earlier_run_cost_one_restart() {
    let body = model(150_000, 9);
    let copy = body.clone();
    let server = Server::start(Box::new(move |_, asked, stream| whole(stream, asked, &copy)));
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("model.gguf.part"), &model(150_000, 10)[..60_000]).unwrap();
    let state = format!(
        r#"{{"url":"{}","validator":"\"1\"","total":150000,"sha256":"{}"}}"#,
        server.url(),
        digest(&body)
    );
    std::fs::write(dir.path().join("model.gguf.part.json"), state).unwrap();
    let (out, events) = pull(dir.path(), &request(&[server.url()], Some(&body)));
    out.unwrap();
    assert_only(dir.path(), &body);
    assert_eq!(restarts(&events), 1);
    assert_eq!(server.asked()[0].range, Some(60_000));
}

#[test]
fn a_damaged_state_file_is_no_trap() {
    let body = model(50_000, 11);
    let copy = body.clone();
    let server = Server::start(Box::new(move |_, asked, stream| whole(stream, asked, &copy)));
    for state in ["", "{", "[]", r#"{"url":5}"#, "\u{0}\u{0}"] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("model.gguf.part"), vec![7u8; 90_000]).unwrap();
        std::fs::write(dir.path().join("model.gguf.part.json"), state).unwrap();
        pull(dir.path(), &request(&[server.url()], Some(&body))).0.unwrap();
        assert_only(dir.path(), &body);
    }
}

#[test]
fn a_stalled_connection_is_given_up_and_resumed() {
    let body = model(100_000, 12);
    let copy = body.clone();
    let mut held = Vec::new();
    let server = Server::start(Box::new(move |i, asked, stream| {
        serve(stream, asked, &copy, "\"1\"", if i == 0 { 30_000 } else { usize::MAX });
        if i == 0 {
            // Open, but silent.
            held.push(stream.try_clone().unwrap());
        }
    }));
    let dir = tempfile::tempdir().unwrap();
    let (out, events) = pull(dir.path(), &request(&[server.url()], Some(&body)));
    out.unwrap();
    assert_only(dir.path(), &body);
    assert!(
        events
            .iter()
            .any(|e| matches!(e, DownloadEvent::Retrying { reason, .. } if reason.contains("no byte for")))
    );
    assert!(server.asked()[1].range.unwrap() > 0, "it went on where it was");
}

#[test]
fn redirects_are_followed_but_not_for_ever() {
    let body = model(40_000, 13);
    let copy = body.clone();
    let server = Server::start(Box::new(move |_, asked, stream| match asked.path.as_str() {
        "/real" => whole(stream, asked, &copy),
        "/loop" => {
            let _ = stream.write_all(b"HTTP/1.1 302 Found\r\nLocation: /loop\r\nContent-Length: 0\r\n\r\n");
        }
        _ => {
            let _ = stream.write_all(b"HTTP/1.1 302 Found\r\nLocation: /real\r\nContent-Length: 0\r\n\r\n");
        }
    }));
    let dir = tempfile::tempdir().unwrap();
    let endless = format!("{}/loop", server.address);
    let (out, _) = pull(dir.path(), &request(std::slice::from_ref(&endless), Some(&body)));
    assert!(matches!(out, Err(StoreError::Unreachable { .. })), "{out:?}");
    assert_absent(dir.path());
    pull(dir.path(), &request(&[endless, server.url()], Some(&body))).0.unwrap();
    assert_only(dir.path(), &body);
}

#[test]
fn missing_and_busy_servers() {
    let body = model(40_000, 14);
    let gone = Server::start(Box::new(|_, _, stream| {
        let _ = stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
    }));
    let copy = body.clone();
    let busy = Server::start(Box::new(move |i, asked, stream| {
        if i < 2 {
            let _ = stream.write_all(
                b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n",
            );
        } else {
            whole(stream, asked, &copy);
        }
    }));
    let dir = tempfile::tempdir().unwrap();
    let (out, _) = pull(dir.path(), &request(&[gone.url()], Some(&body)));
    assert!(out.unwrap_err().to_string().contains("404"));
    assert_eq!(gone.asked().len(), 1, "what is not there is not asked for again");
    pull(dir.path(), &request(&[gone.url(), busy.url()], Some(&body))).0.unwrap();
    assert_only(dir.path(), &body);
}

#[test]
fn a_login_page_is_no_model() {
    let page = b"<!doctype html><title>Welcome to our hotel</title>".to_vec();
    let server = Server::start(Box::new(move |_, asked, stream| whole(stream, asked, &page)));
    let dir = tempfile::tempdir().unwrap();
    let (out, _) = pull(dir.path(), &request(&[server.url()], None));
    assert!(out.unwrap_err().to_string().contains("no GGUF"));
    assert_absent(dir.path());
    // With a known size it is refused before its first byte.
    let (out, _) = pull(dir.path(), &request(&[server.url()], Some(&model(9000, 1))));
    assert!(out.unwrap_err().to_string().contains("expected 9000"));
}

#[test]
fn odd_ranges_are_not_believed() {
    let body = model(60_000, 15);
    let copy = body.clone();
    let server = Server::start(Box::new(move |i, asked, stream| match i {
        0 => serve(stream, asked, &copy, "\"1\"", 20_000),
        1 => {
            // Continues at another place than asked.
            let _ = write!(
                stream,
                "HTTP/1.1 206 Partial Content\r\nETag: \"1\"\r\nContent-Range: bytes 5-59999/60000\r\nContent-Length: 59995\r\n\r\n"
            );
            let _ = stream.write_all(&copy[5..]);
        }
        2 => serve(stream, asked, &copy, "\"1\"", 20_000),
        3 => {
            let _ = write!(
                stream,
                "HTTP/1.1 206 Partial Content\r\nContent-Range: what?\r\nContent-Length: 4\r\n\r\nGGUF"
            );
        }
        4 => serve(stream, asked, &copy, "\"1\"", 20_000),
        5 => {
            let _ = stream.write_all(b"HTTP/1.1 416 Range Not Satisfiable\r\nContent-Length: 0\r\n\r\n");
        }
        _ => whole(stream, asked, &copy),
    }));
    let dir = tempfile::tempdir().unwrap();
    let (out, events) = pull(dir.path(), &request(&[server.url()], None));
    assert_eq!(out.unwrap().sha256, digest(&body));
    assert_only(dir.path(), &body);
    assert_eq!(restarts(&events), 3);
}

#[test]
fn more_bytes_than_promised_are_refused() {
    let body = model(10_000, 16);
    let copy = model(12_000, 16);
    let server = Server::start(Box::new(move |_, _, stream| {
        // No length: the body ends with the connection.
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
        let _ = stream.write_all(&copy);
    }));
    let dir = tempfile::tempdir().unwrap();
    let (out, _) = pull(dir.path(), &request(&[server.url()], Some(&body)));
    assert!(out.unwrap_err().to_string().contains("more than the whole file"));
    assert_absent(dir.path());
}

#[test]
fn a_file_larger_than_the_disk_is_refused_before_it_is_loaded() {
    let server = Server::start(Box::new(|_, _, stream| {
        let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\nGGUF", 1u64 << 60);
    }));
    let dir = tempfile::tempdir().unwrap();
    let (out, _) = pull(dir.path(), &request(&[server.url()], None));
    match out {
        Err(StoreError::NoSpace { needed, available, .. }) => {
            assert_eq!(needed, 1 << 60);
            assert!(available < needed);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn nobody_listens() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let dir = tempfile::tempdir().unwrap();
    let url = format!("http://127.0.0.1:{port}/model.gguf");
    let (out, events) = pull(dir.path(), &request(&[url], Some(&model(1000, 1))));
    let error = out.unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { done: 0, .. }), "{error}");
    assert!(!error.to_string().contains('\n'));
    assert_eq!(events.iter().filter(|e| matches!(e, DownloadEvent::Retrying { .. })).count(), 2);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn cancel_keeps_the_bytes_and_a_second_download_waits_its_turn() {
    let body = model(500_000, 17);
    let copy = body.clone();
    let mut held = Vec::new();
    let server = Server::start(Box::new(move |i, asked, stream| {
        serve(stream, asked, &copy, "\"1\"", if i == 0 { 200_000 } else { usize::MAX });
        if i == 0 {
            held.push(stream.try_clone().unwrap());
        }
    }));
    let dir = tempfile::tempdir().unwrap();
    let request = request(&[server.url()], Some(&body));
    let cancel = DownloadCanceller::new();
    let (tell, told) = mpsc::channel();

    let running = {
        let (dir, request, cancel) = (dir.path().to_owned(), request.clone(), cancel.clone());
        std::thread::spawn(move || {
            let patient = DownloadOptions { stall_timeout: Duration::from_secs(60), ..options() };
            pannier::store::ModelStore::at(dir).pull_blocking(&request, patient, &cancel, &mut |event| {
                let _ = tell.send(event);
            })
        })
    };
    while !matches!(told.recv().unwrap(), DownloadEvent::Started { .. }) {}
    let (second, _) = pull(dir.path(), &request);
    assert!(matches!(second, Err(StoreError::Busy { .. })), "{second:?}");

    // Until all bytes that the server sends have arrived.
    let part = dir.path().join("model.gguf.part");
    while std::fs::metadata(&part).unwrap().len() < 200_000 {
        std::thread::yield_now();
    }
    cancel.cancel();
    match running.join().unwrap() {
        Err(StoreError::Cancelled { done: 200_000 }) => {}
        other => panic!("{other:?}"),
    }
    assert_absent(dir.path());

    let (out, events) = pull(dir.path(), &request);
    out.unwrap();
    assert_only(dir.path(), &body);
    assert!(matches!(events[0], DownloadEvent::Started { resumed_from: 200_000, .. }), "{:?}", events[0]);
}
