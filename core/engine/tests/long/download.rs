//! Downloads of real sizes, and onto a disk that is too small.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pannier::store::{
    DownloadCanceller, DownloadEvent, DownloadOptions, DownloadRequest, Downloaded, ModelStore, Sha256Digest,
    StoreError, sha256_file,
};

const BLOCK: u64 = 1 << 20;

/// One block of a file of any size: noise with the block's number in front, so that no two are the same.
fn block(number: u64) -> Vec<u8> {
    let mut state = 7u32;
    let mut bytes: Vec<u8> = std::iter::repeat_with(move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    })
    .take(BLOCK as usize)
    .collect();
    bytes[4..12].copy_from_slice(&number.to_le_bytes());
    bytes[..4].copy_from_slice(b"GGUF");
    bytes
}

/// Where a range begins.
fn range_of(stream: &TcpStream) -> u64 {
    let lines = BufReader::new(stream).lines().map_while(Result::ok).take_while(|l| !l.is_empty());
    let range = lines.filter_map(|l| {
        l.to_ascii_lowercase().strip_prefix("range: bytes=")?.strip_suffix('-')?.parse().ok()
    });
    range.last().unwrap_or(0)
}

/// Serves a file of so many bytes, `each` of them per connection; gives the address and where each request began.
fn serve(size: u64, each: impl Fn(usize) -> u64 + Send + 'static) -> (String, Arc<Mutex<Vec<u64>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/model.gguf", listener.local_addr().unwrap());
    let starts = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&starts);
    let mut bytes = block(0);
    std::thread::spawn(move || {
        for (index, stream) in listener.incoming().enumerate() {
            let mut stream = stream.unwrap();
            let start = range_of(&stream);
            log.lock().unwrap().push(start);
            let head = match start {
                0 => "200 OK".to_owned(),
                _ => format!("206 Partial Content\r\nContent-Range: bytes {start}-{}/{size}", size - 1),
            };
            let _ =
                write!(stream, "HTTP/1.1 {head}\r\nETag: \"1\"\r\nContent-Length: {}\r\n\r\n", size - start);
            let end = size.min(start.saturating_add(each(index)));
            let mut at = start;
            while at < end {
                let number = at / BLOCK;
                bytes[4..12].copy_from_slice(&number.to_le_bytes());
                let from = (at % BLOCK) as usize;
                let to = (end - number * BLOCK).min(BLOCK) as usize;
                if stream.write_all(&bytes[from..to]).is_err() {
                    break;
                }
                at += (to - from) as u64;
            }
        }
    });
    (url, starts)
}

fn digest_of(size: u64) -> Sha256Digest {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut out = std::fs::File::create(file.path()).unwrap();
    let mut bytes = block(0);
    for number in 0..size / BLOCK {
        bytes[4..12].copy_from_slice(&number.to_le_bytes());
        out.write_all(&bytes).unwrap();
    }
    sha256_file(file.path(), &mut |_| true).unwrap().unwrap()
}

fn pull(
    dir: &Path,
    url: &str,
    bytes: Option<u64>,
    sha256: Sha256Digest,
) -> (Result<Downloaded, StoreError>, Vec<DownloadEvent>) {
    let request =
        DownloadRequest { urls: vec![url.into()], file: "model.gguf".into(), bytes, sha256: Some(sha256) };
    let options = DownloadOptions {
        connect_timeout: Duration::from_secs(5),
        stall_timeout: Duration::from_secs(10),
        tries: 3,
        pause: Duration::from_millis(5),
    };
    let mut events = Vec::new();
    let out = ModelStore::at(dir)
        .pull_blocking(&request, options, &DownloadCanceller::new(), &mut |e| events.push(e));
    (out, events)
}

#[test]
fn two_gigabytes_resume_after_ten_cuts() {
    const SIZE: u64 = 2 << 30;
    let sha256 = digest_of(SIZE);
    // Not at a border of anything.
    let (url, starts) = serve(SIZE, |index| if index < 10 { 190_000_001 } else { u64::MAX });
    let dir = tempfile::tempdir().unwrap();
    let (out, events) = pull(dir.path(), &url, Some(SIZE), sha256);
    let out = out.unwrap();
    assert_eq!((out.bytes, out.sha256), (SIZE, sha256));
    assert!(!events.iter().any(|e| matches!(e, DownloadEvent::Restarted { .. })));
    let starts = starts.lock().unwrap().clone();
    assert_eq!(starts.len(), 11);
    assert!(starts.windows(2).all(|w| w[0] < w[1]), "{starts:?}");
    // The last block is the last one, in its place.
    let mut file = std::fs::File::open(dir.path().join("model.gguf")).unwrap();
    std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(SIZE - BLOCK)).unwrap();
    let mut last = Vec::new();
    file.read_to_end(&mut last).unwrap();
    assert_eq!(last, block(SIZE / BLOCK - 1));
}

/// A file system of 8 MiB, in a mount name space of its own: the test runs itself again inside.
#[test]
fn a_disk_that_fills_up_is_an_error_and_the_rest_comes_when_there_is_room() {
    const MARK: &str = "PANNIER_SMALL_DISK";
    if let Some(dir) = std::env::var_os(MARK) {
        return on_a_small_disk(Path::new(&dir));
    }
    let dir = tempfile::tempdir().unwrap();
    let script = format!(
        "mount -t tmpfs -o size=8m none \"$1\" && {MARK}=\"$1\" exec \"$2\" --exact \"$3\" --nocapture"
    );
    let output = Command::new("unshare")
        .args(["--mount", "--map-root-user", "sh", "-ec", &script, "sh"])
        .arg(dir.path())
        .arg(std::env::current_exe().unwrap())
        .arg("download::a_disk_that_fills_up_is_an_error_and_the_rest_comes_when_there_is_room")
        .output()
        .expect("unshare, of util-linux");
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

fn on_a_small_disk(dir: &Path) {
    const SIZE: u64 = 6 << 20;
    let sha256 = digest_of(SIZE);
    let (url, starts) = serve(SIZE, |_| u64::MAX);
    // Somebody else's file leaves too little: refused before a byte is written.
    let other = dir.join("other");
    std::fs::write(&other, vec![1u8; 4 << 20]).unwrap();
    let (out, _) = pull(dir, &url, Some(SIZE), sha256);
    assert!(matches!(out, Err(StoreError::NoSpace { .. })), "{out:?}");
    std::fs::remove_file(&other).unwrap();
    // It comes while the download runs: the disk fills up in the middle.
    let (slow, slow_starts) = serve_filling(SIZE, other.clone());
    let (out, _) = pull(dir, &slow, Some(SIZE), sha256);
    assert!(matches!(out, Err(StoreError::NoSpace { .. })), "{out:?}");
    assert!(!dir.join("model.gguf").exists(), "a part got the final name");
    assert_eq!(slow_starts.lock().unwrap().len(), 1, "a full disk is not tried again");
    // With room again it goes on from what is there.
    std::fs::remove_file(&other).unwrap();
    let (out, events) = pull(dir, &url, Some(SIZE), sha256);
    assert_eq!(out.unwrap().sha256, sha256);
    assert!(matches!(events[0], DownloadEvent::Started { resumed_from: 1.., .. }), "{:?}", events[0]);
    assert!(starts.lock().unwrap().last().is_some_and(|&start| start > 0));
}

/// Serves a third of the file, fills the disk, and serves the rest.
fn serve_filling(size: u64, other: std::path::PathBuf) -> (String, Arc<Mutex<Vec<u64>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/model.gguf", listener.local_addr().unwrap());
    let starts = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&starts);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            log.lock().unwrap().push(range_of(&stream));
            let _ = write!(stream, "HTTP/1.1 200 OK\r\nETag: \"1\"\r\nContent-Length: {size}\r\n\r\n");
            for number in 0..size / BLOCK {
                if number == size / BLOCK / 3 {
                    // Not before the first bytes are on the disk.
                    let dir = other.parent().unwrap();
                    let arrived = |e: std::fs::DirEntry| e.metadata().is_ok_and(|m| m.len() >= BLOCK);
                    while !std::fs::read_dir(dir).unwrap().flatten().any(arrived) {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    let mut file = std::fs::File::create(&other).unwrap();
                    while file.write_all(&[1; 4096]).is_ok() {}
                }
                if stream.write_all(&block(number)).is_err() {
                    break;
                }
            }
        }
    });
    (url, starts)
}
