//! One verified, resumable download.
//!
//! ```text
//! for each source, in order:
//!     while it makes progress (or a few times without):
//!         ask for the bytes from len(part) on; append what arrives
//!         the answer is not the continuation that was asked for -> throw away, start again
//!     it is hopeless (404, wrong size, not a model) -> next source
//! digest of the whole part, read back from disk -> rename, or throw away and use the next source
//! ```
//!
//! What a resumed download may trust: with a known SHA-256 any source continues any other, the digest decides in the
//! end. Without one, only the same address with the same validator does (`If-Range`), else two versions of a file
//! could be glued together.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use reqwest::StatusCode;
use reqwest::header::{
    ACCEPT_ENCODING, CONTENT_RANGE, ETAG, HeaderMap, IF_RANGE, LAST_MODIFIED, RANGE, RETRY_AFTER,
};
use tokio::sync::Notify;

use super::part::{Origin, Part};
use super::progress::Meter;
use super::{DownloadEvent, Sha256Digest, StoreError, http, sha256_file, space};

/// What to download, and what it must be in the end.
#[derive(Debug, Clone)]
pub struct DownloadRequest {
    /// Addresses that hold the same bytes, best first.
    pub urls: Vec<String>,
    /// Name of the file in the store.
    pub file: String,
    /// Exact size, where known.
    pub bytes: Option<u64>,
    /// Digest, where known. Without it the size that the server tells is all there is to check.
    pub sha256: Option<Sha256Digest>,
}

/// Patience. The defaults suit a phone that walks through a tunnel.
#[derive(Debug, Clone, Copy)]
pub struct DownloadOptions {
    /// Time to reach a server.
    pub connect_timeout: Duration,
    /// Time without a single byte after which a connection is given up.
    pub stall_timeout: Duration,
    /// Tries of one source in a row that bring no new byte.
    pub tries: u32,
    /// Pause before the first such try is repeated; doubled each time.
    pub pause: Duration,
}

impl Default for DownloadOptions {
    fn default() -> Self {
        DownloadOptions {
            connect_timeout: Duration::from_secs(20),
            stall_timeout: Duration::from_secs(30),
            tries: 5,
            pause: Duration::from_millis(500),
        }
    }
}

/// Longest pause between two tries, also where a server asks for more.
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// A finished download.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Downloaded {
    /// Where the file is.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// Its digest.
    pub sha256: Sha256Digest,
    /// Whether it was there already and nothing was transferred.
    pub already_there: bool,
}

/// Cancels a download from another thread. Clones cancel the same one.
#[derive(Debug, Clone, Default)]
pub struct DownloadCanceller(Arc<CancelState>);

#[derive(Debug, Default)]
struct CancelState {
    flag: AtomicBool,
    wake: Notify,
}

impl DownloadCanceller {
    /// A canceller that was not used yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends the download as soon as it looks; its bytes are kept.
    pub fn cancel(&self) {
        self.0.flag.store(true, Ordering::Release);
        self.0.wake.notify_waiters();
    }

    /// Whether it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.flag.load(Ordering::Acquire)
    }

    /// Runs `future` unless or until cancelled.
    async fn or<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let notified = self.0.wake.notified();
        tokio::pin!(notified);
        // Registered before the flag is read: a cancel between the two is not lost.
        notified.as_mut().enable();
        if self.is_cancelled() {
            return None;
        }
        tokio::select! {
            biased;
            () = notified => None,
            out = future => Some(out),
        }
    }
}

/// How one attempt ended, if not with all bytes.
enum Fault {
    /// Try the same source again.
    Again { reason: String, after: Option<Duration> },
    /// The source is of no use.
    Source(String),
    /// No source can help.
    Fatal(StoreError),
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        Fault::Fatal(error)
    }
}

/// Downloads to `dir`. The file appears under its name only when it is whole and verified.
///
/// Runs on any tokio runtime with time and I/O. Writes are plain blocking writes of small pieces.
pub async fn download(
    dir: &Path,
    request: &DownloadRequest,
    options: DownloadOptions,
    cancel: &DownloadCanceller,
    observer: &mut (dyn FnMut(DownloadEvent) + Send),
) -> Result<Downloaded, StoreError> {
    let path = dir.join(&request.file);
    for url in &request.urls {
        check_url(url, request.sha256.is_some())?;
    }
    if let Some(found) = existing(&path, request, cancel, observer)? {
        return Ok(found);
    }
    let mut part = Part::open(&path)?;
    // Between the look above and the lock, another process may have finished.
    if let Some(found) = existing(&path, request, cancel, observer)? {
        part.clear()?;
        part.tidy();
        return Ok(found);
    }
    let mut run = Run { request, options, cancel, observer, clients: [None, None] };
    match run.all(&mut part).await {
        Ok(sha256) => {
            let bytes = part.len();
            Ok(Downloaded { path: part.publish()?, bytes, sha256, already_there: false })
        }
        Err(error) => {
            part.tidy();
            Err(error)
        }
    }
}

/// The file, if it is there and is the one that was asked for.
fn existing(
    path: &Path,
    request: &DownloadRequest,
    cancel: &DownloadCanceller,
    observer: &mut (dyn FnMut(DownloadEvent) + Send),
) -> Result<Option<Downloaded>, StoreError> {
    let bytes = match std::fs::metadata(path) {
        Ok(meta) if meta.is_file() => meta.len(),
        Ok(_) => {
            let e = std::io::Error::from(std::io::ErrorKind::AlreadyExists);
            return Err(StoreError::io("replace", path, e));
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(StoreError::io("read", path, e)),
    };
    if request.bytes.is_some_and(|want| want != bytes) {
        return Ok(None);
    }
    let sha256 = verify(path, bytes, cancel, observer)?;
    let same = request.sha256.is_none_or(|want| want == sha256);
    Ok(same.then(|| Downloaded { path: path.into(), bytes, sha256, already_there: true }))
}

fn verify(
    path: &Path,
    bytes: u64,
    cancel: &DownloadCanceller,
    observer: &mut (dyn FnMut(DownloadEvent) + Send),
) -> Result<Sha256Digest, StoreError> {
    let digest = sha256_file(path, &mut |done| {
        observer(DownloadEvent::Verifying { done, total: bytes });
        !cancel.is_cancelled()
    })?;
    digest.ok_or(StoreError::Cancelled { done: bytes })
}

/// HTTPS, or plain HTTP where nothing can be forged: a pinned digest, or this very machine.
pub(crate) fn check_url(url: &str, pinned: bool) -> Result<reqwest::Url, StoreError> {
    let bad = |reason| StoreError::BadUrl { url: url.chars().take(200).collect(), reason };
    let parsed = reqwest::Url::parse(url).map_err(|_| bad("it is no address of a file"))?;
    let host = parsed.host_str().ok_or_else(|| bad("it names no server"))?;
    let here = matches!(host, "localhost" | "127.0.0.1" | "[::1]" | "::1");
    match parsed.scheme() {
        "https" => Ok(parsed),
        "http" if pinned || here => Ok(parsed),
        "http" => Err(bad("plain http is open to forgery: use https, or pass the file's --sha256")),
        _ => Err(bad("only https addresses can be downloaded from")),
    }
}

struct Run<'a> {
    request: &'a DownloadRequest,
    options: DownloadOptions,
    cancel: &'a DownloadCanceller,
    observer: &'a mut (dyn FnMut(DownloadEvent) + Send),
    /// Made when first needed: plain, and HTTPS only.
    clients: [Option<reqwest::Client>; 2],
}

impl Run<'_> {
    async fn all(&mut self, part: &mut Part) -> Result<Sha256Digest, StoreError> {
        let mut faults = Vec::new();
        let mut wrong = None;
        for url in &self.request.urls {
            let reason = match self.source(url, part).await {
                Ok(digest) => return Ok(digest),
                Err(Fault::Source(reason) | Fault::Again { reason, .. }) => reason,
                Err(Fault::Fatal(error @ StoreError::WrongDigest { .. })) => {
                    let reason = error.to_string();
                    wrong = Some(error);
                    reason
                }
                Err(Fault::Fatal(error)) => return Err(error),
            };
            (self.observer)(DownloadEvent::SourceFailed { url: url.clone(), reason: reason.clone() });
            faults.push(format!("{url}: {reason}"));
        }
        match wrong {
            Some(error) if faults.len() == 1 => Err(error),
            _ => Err(StoreError::Unreachable { file: self.request.file.clone(), done: part.len(), faults }),
        }
    }

    /// All bytes from one source, in as many attempts as it takes, verified.
    async fn source(&mut self, url: &str, part: &mut Part) -> Result<Sha256Digest, Fault> {
        // Bytes of an earlier run or of another source: if the digest is wrong, they may be why.
        let mut inherited = part.len() > 0;
        let mut barren = 0;
        let mut pause = self.options.pause;
        loop {
            let before = part.len();
            let (reason, after) = match self.attempt(url, part).await {
                Ok(()) => {
                    let actual = verify(part.path(), part.len(), self.cancel, self.observer)?;
                    let Some(expected) = self.request.sha256.filter(|want| *want != actual) else {
                        return Ok(actual);
                    };
                    if !inherited {
                        part.clear()?;
                        return Err(Fault::Fatal(StoreError::WrongDigest {
                            file: self.request.file.clone(),
                            expected: expected.to_string(),
                            actual: actual.to_string(),
                        }));
                    }
                    inherited = false;
                    self.restart(part, "the bytes of an earlier try are not those of the file")?;
                    continue;
                }
                Err(Fault::Again { reason, after }) => (reason, after),
                Err(other) => return Err(other),
            };
            if part.len() > before {
                barren = 0;
                pause = self.options.pause;
            } else {
                barren += 1;
                if barren >= self.options.tries {
                    return Err(Fault::Source(reason));
                }
            }
            let wait = after.unwrap_or(pause).min(MAX_PAUSE);
            pause = pause.saturating_mul(2).min(MAX_PAUSE);
            (self.observer)(DownloadEvent::Retrying { url: url.into(), reason, after: wait });
            if self.cancel.or(tokio::time::sleep(wait)).await.is_none() {
                return Err(self.cancelled(part));
            }
        }
    }

    fn cancelled(&self, part: &Part) -> Fault {
        Fault::Fatal(StoreError::Cancelled { done: part.len() })
    }

    fn client(&mut self, secure: bool) -> Result<reqwest::Client, StoreError> {
        let slot = &mut self.clients[usize::from(secure)];
        match slot {
            Some(client) => Ok(client.clone()),
            None => Ok(slot.insert(http::client(secure, self.options.connect_timeout)?).clone()),
        }
    }

    fn restart(&mut self, part: &mut Part, reason: &str) -> Result<(), StoreError> {
        if part.len() > 0 {
            (self.observer)(DownloadEvent::Restarted { reason: reason.into() });
        }
        part.clear()
    }

    /// One request and its answer.
    async fn attempt(&mut self, url: &str, part: &mut Part) -> Result<(), Fault> {
        let cancel = self.cancel.clone();
        let pinned = self.request.sha256.map(|d| d.to_string());
        let same_source = part.origin.as_ref().is_some_and(|o| o.url == url && o.validator.is_some());
        let same_promise = pinned.is_some() && part.origin.as_ref().is_some_and(|o| o.sha256 == pinned);
        if part.len() > 0 && !same_source && !same_promise {
            self.restart(part, "the unfinished download cannot be continued from this source")?;
        }
        if self.request.bytes.is_some_and(|total| part.len() > total) {
            self.restart(part, "the unfinished download is larger than the file")?;
        }
        if self.request.bytes.is_some_and(|total| part.len() == total) {
            return Ok(());
        }

        let client = self.client(url.starts_with("https:"))?;
        // Without this a proxy may compress, and byte ranges would count other bytes.
        let mut ask = client.get(url).header(ACCEPT_ENCODING, "identity");
        if part.len() > 0 {
            ask = ask.header(RANGE, format!("bytes={}-", part.len()));
            if same_source && let Some(v) = part.origin.as_ref().and_then(|o| o.validator.as_deref()) {
                ask = ask.header(IF_RANGE, v);
            }
        }
        // The connect timeout does not cover a server that accepts and then says nothing.
        let patience = self.options.connect_timeout + self.options.stall_timeout;
        let Some(answer) = cancel.or(tokio::time::timeout(patience, ask.send())).await else {
            return Err(self.cancelled(part));
        };
        let mut answer = match answer {
            Ok(Ok(answer)) => answer,
            Ok(Err(e)) if e.is_builder() || e.is_redirect() => return Err(Fault::Source(http::reason(e))),
            Ok(Err(e)) => return Err(Fault::Again { reason: http::reason(e), after: None }),
            Err(_) => return Err(Fault::Again { reason: "no answer in time".into(), after: None }),
        };

        let status = answer.status();
        let headers = answer.headers();
        let validator = validator(headers);
        let total = match status {
            StatusCode::PARTIAL_CONTENT => {
                let Some((start, total)) = content_range(headers) else {
                    self.restart(part, "the server continued at an unknown place")?;
                    return Err(Fault::Again { reason: "unreadable Content-Range".into(), after: None });
                };
                if start != part.len() {
                    self.restart(part, "the server continued at another place")?;
                    let reason = format!("asked for byte {}, got byte {start}", part.len());
                    return Err(Fault::Again { reason, after: None });
                }
                let known = part.origin.as_ref().filter(|o| o.url == url);
                let changed = known.is_some_and(|o| {
                    o.validator != validator || (o.total.is_some() && total.is_some() && o.total != total)
                });
                if changed && pinned.is_none() {
                    self.restart(part, "the file on the server has changed")?;
                    return Err(Fault::Again {
                        reason: "the file on the server has changed".into(),
                        after: Some(Duration::ZERO),
                    });
                }
                total
            }
            StatusCode::OK => {
                let total = answer.content_length();
                self.restart(part, "the server cannot continue, or its file has changed")?;
                total
            }
            StatusCode::RANGE_NOT_SATISFIABLE if part.len() > 0 => {
                self.restart(part, "the file on the server is shorter than the unfinished download")?;
                return Err(Fault::Again {
                    reason: "nothing to continue".into(),
                    after: Some(Duration::ZERO),
                });
            }
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => {
                return Err(Fault::Again { reason: named(status), after: retry_after(headers) });
            }
            _ if status.is_server_error() => {
                return Err(Fault::Again { reason: named(status), after: retry_after(headers) });
            }
            _ => return Err(Fault::Source(named(status))),
        };

        let want = self.request.bytes;
        if let (Some(want), Some(total)) = (want, total)
            && want != total
        {
            return Err(Fault::Source(format!("the file there has {total} bytes, expected {want}")));
        }
        let total = want.or(total);
        let left = total.map(|t| t.saturating_sub(part.len()));
        let dir = part.path().parent().unwrap_or(Path::new(".")).to_owned();
        if let (Some(needed), Some(available)) = (left, space::available(&dir))
            && needed > available
        {
            let path = dir.join(&self.request.file);
            return Err(Fault::Fatal(StoreError::NoSpace { path, needed, available }));
        }
        part.set_origin(Origin { url: url.into(), validator, total, sha256: pinned })?;
        (self.observer)(DownloadEvent::Started { url: url.into(), resumed_from: part.len(), total });

        let mut meter = Meter::new(Instant::now(), part.len());
        let gguf = self.request.file.ends_with(".gguf");
        loop {
            let piece = tokio::time::timeout(self.options.stall_timeout, answer.chunk());
            let piece = match cancel.or(piece).await {
                None => return Err(self.cancelled(part)),
                Some(Err(_)) => {
                    let s = self.options.stall_timeout.as_secs_f32();
                    return Err(Fault::Again { reason: format!("no byte for {s} s"), after: None });
                }
                Some(Ok(Err(e))) => return Err(Fault::Again { reason: http::reason(e), after: None }),
                Some(Ok(Ok(piece))) => piece,
            };
            let Some(piece) = piece else { break };
            let room = total.map_or(u64::MAX, |t| t.saturating_sub(part.len()));
            if piece.len() as u64 > room {
                self.restart(part, "the server sent more than the whole file")?;
                return Err(Fault::Source("the server sent more than the whole file".into()));
            }
            let first = part.len() < 4;
            part.append(&piece)?;
            if gguf && first && !part.looks_like_gguf()? {
                part.clear()?;
                return Err(Fault::Source("what is there is no GGUF file (a web page?)".into()));
            }
            if let Some(event) = meter.due(Instant::now(), part.len(), total, false) {
                (self.observer)(event);
            }
        }
        if total.is_some_and(|t| part.len() < t) {
            return Err(Fault::Again { reason: "the connection ended early".into(), after: None });
        }
        if part.len() == 0 {
            return Err(Fault::Source("the file there is empty".into()));
        }
        if let Some(event) = meter.due(Instant::now(), part.len(), total, true) {
            (self.observer)(event);
        }
        Ok(())
    }
}

fn named(status: StatusCode) -> String {
    format!("the server answered {status}")
}

/// What `If-Range` may carry: a strong ETag, else the modification date.
fn validator(headers: &HeaderMap) -> Option<String> {
    let text = |name| headers.get(name).and_then(|v| v.to_str().ok());
    match text(ETAG) {
        Some(etag) if !etag.starts_with("W/") => Some(etag.to_owned()),
        _ => text(LAST_MODIFIED).map(str::to_owned),
    }
}

/// Start and, where told, total of `bytes START-END/TOTAL`.
fn content_range(headers: &HeaderMap) -> Option<(u64, Option<u64>)> {
    let text = headers.get(CONTENT_RANGE)?.to_str().ok()?.trim().strip_prefix("bytes")?.trim_start();
    let (range, total) = text.split_once('/')?;
    let (start, end) = range.split_once('-')?;
    let (start, end) = (start.trim().parse::<u64>().ok()?, end.trim().parse::<u64>().ok()?);
    let total = match total.trim() {
        "*" => None,
        digits => Some(digits.parse().ok()?),
    };
    (start <= end && total.is_none_or(|t| end < t)).then_some((start, total))
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_and_nonsense_is_not() {
        let read = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_RANGE, text.parse().unwrap());
            content_range(&headers)
        };
        assert_eq!(read("bytes 5-9/10"), Some((5, Some(10))));
        assert_eq!(read("bytes 5-9/*"), Some((5, None)));
        for bad in [
            "",
            "bytes",
            "bytes 9-5/10",
            "bytes 5-10/10",
            "bytes */10",
            "items 5-9/10",
            "bytes 5-9",
            "bytes -5-9/10",
        ] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }

    #[test]
    fn weak_tags_are_no_validators() {
        let mut headers = HeaderMap::new();
        headers.insert(ETAG, "W/\"1\"".parse().unwrap());
        assert_eq!(validator(&headers), None);
        headers.insert(LAST_MODIFIED, "Mon, 01 Jan 2024 00:00:00 GMT".parse().unwrap());
        assert_eq!(validator(&headers).as_deref(), Some("Mon, 01 Jan 2024 00:00:00 GMT"));
        headers.insert(ETAG, "\"1\"".parse().unwrap());
        assert_eq!(validator(&headers).as_deref(), Some("\"1\""));
    }

    #[test]
    fn addresses() {
        assert!(check_url("https://example.org/a.gguf", false).is_ok());
        assert!(check_url("http://example.org/a.gguf", true).is_ok());
        assert!(check_url("http://127.0.0.1:8/a.gguf", false).is_ok());
        for bad in
            ["http://example.org/a.gguf", "ftp://example.org/a", "file:///etc/passwd", "nonsense", "https://"]
        {
            assert!(matches!(check_url(bad, false), Err(StoreError::BadUrl { .. })), "{bad}");
        }
    }

    #[tokio::test]
    async fn cancel_before_and_during() {
        let cancel = DownloadCanceller::new();
        assert_eq!(cancel.or(async { 1 }).await, Some(1));
        let other = cancel.clone();
        let waiting = tokio::spawn(async move { other.or(std::future::pending::<()>()).await });
        tokio::task::yield_now().await;
        cancel.cancel();
        assert_eq!(waiting.await.unwrap(), None);
        assert_eq!(cancel.or(async { 1 }).await, None);
    }
}
