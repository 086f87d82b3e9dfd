//! A server on loopback that does what a plan says, byte for byte.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// One step of a reply.
#[derive(Debug, Clone)]
pub enum Step {
    /// Sends these bytes.
    Send(Vec<u8>),
    /// Says nothing until the client goes.
    Stall,
    /// Closes without having read the request: the client sees a reset.
    Slam,
}

/// What is done with one connection; the connection is closed afterwards.
pub type Plan = Vec<Step>;

#[derive(Default)]
struct Shared {
    plans: Mutex<VecDeque<Plan>>,
    active: AtomicUsize,
    served: AtomicUsize,
    stop: AtomicBool,
}

pub struct Server {
    shared: Arc<Shared>,
    port: u16,
}

impl Server {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared::default());
        let all = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if all.stop.load(Ordering::SeqCst) {
                    return;
                }
                let one = all.clone();
                one.active.fetch_add(1, Ordering::SeqCst);
                std::thread::spawn(move || {
                    let plan = one.plans.lock().unwrap().pop_front().unwrap_or_default();
                    serve(stream, plan);
                    one.served.fetch_add(1, Ordering::SeqCst);
                    one.active.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        Self { shared, port }
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/v1", self.port)
    }

    /// The plans of the next connections.
    pub fn plan(&self, plans: impl IntoIterator<Item = Plan>) {
        *self.shared.plans.lock().unwrap() = plans.into_iter().collect();
    }

    pub fn active(&self) -> usize {
        self.shared.active.load(Ordering::SeqCst)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

fn serve(mut stream: TcpStream, plan: Plan) {
    let _ = stream.set_read_timeout(Some(Duration::from_secs(60)));
    if !matches!(plan.first(), Some(Step::Slam)) && read_request(&mut stream).is_none() {
        return;
    }
    for step in plan {
        match step {
            Step::Send(bytes) => {
                if stream.write_all(&bytes).is_err() {
                    return;
                }
            }
            Step::Stall => {
                let mut byte = [0];
                while matches!(stream.read(&mut byte), Ok(n) if n > 0) {}
            }
            Step::Slam => return,
        }
    }
    let _ = stream.shutdown(Shutdown::Write);
    // Until the client closes its side: a server that closes first would hide a leak.
    let mut rest = [0; 256];
    while matches!(stream.read(&mut rest), Ok(n) if n > 0) {}
}

/// Reads headers and body; gives the body.
fn read_request(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut all = Vec::new();
    let mut block = [0; 4096];
    loop {
        let n = stream.read(&mut block).ok().filter(|n| *n > 0)?;
        all.extend_from_slice(&block[..n]);
        let Some(end) = all.windows(4).position(|w| w == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&all[..end]).to_lowercase();
        assert!(head.starts_with("post /v1/chat/completions http/1.1"), "{head}");
        let length: usize = head
            .lines()
            .find_map(|l| l.strip_prefix("content-length:"))
            .unwrap_or("0")
            .trim()
            .parse()
            .ok()?;
        if all.len() >= end + 4 + length {
            return Some(all[end + 4..].to_vec());
        }
    }
}
