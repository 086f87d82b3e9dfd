//! What a record says about the machine, and what keeps one of its cores busy.

use std::process::{Child, Command, Stdio};
use std::time::{Instant, SystemTime};

use crate::{Result, sh};

/// Read by each thread in one pass: far beyond any cache.
const BYTES_PER_THREAD: usize = 192 << 20;

/// The processor's name and its cores.
pub fn describe() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let value = |name: &str| {
        let line = info.lines().find(|line| line.split(':').next().is_some_and(|key| key.trim() == name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let name = value("model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    let family = match (value("cpu family"), value("model")) {
        (Some(family), Some(model)) => format!(" (family {family}, model {model})"),
        _ => String::new(),
    };
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    format!("{name}{family}, {cores} cores, {} {}", std::env::consts::ARCH, std::env::consts::OS)
}

/// The load of the last minute. Other work on the machine makes every figure worse, ours and the peers'.
pub fn load() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}

/// The commit, with a mark when files differ from it.
pub fn commit() -> String {
    let git = |args: &[&str]| {
        let output = Command::new("git").current_dir(sh::root()).args(args).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "--short", "HEAD"]) else { return "unknown".into() };
    let changed =
        git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|list| !list.is_empty());
    if changed { format!("{commit} and uncommitted changes") } else { commit }
}

/// Today in UTC, `2026-11-29`.
pub fn date() -> String {
    let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    civil(seconds / 86_400)
}

/// Days since 1970-01-01 as a date, by counting years and months off.
fn civil(mut days: u64) -> String {
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + leap(year) as u64 {
        days -= 365 + leap(year) as u64;
        year += 1;
    }
    let lengths = [31, 28 + leap(year) as u64, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for length in lengths {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    format!("{year}-{month:02}-{:02}", days + 1)
}

/// Bytes per second that `threads` threads read from memory, the best of some passes.
pub fn read_bandwidth(threads: usize) -> f64 {
    // Written, so that each page is one of its own.
    let words: Vec<u64> = (0..(BYTES_PER_THREAD * threads / 8) as u64).collect();
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for part in words.chunks(BYTES_PER_THREAD / 8) {
                scope.spawn(|| std::hint::black_box(sum(part)));
            }
        });
        best = best.min(start.elapsed().as_secs_f64());
    }
    (words.len() * 8) as f64 / best.max(1e-9)
}

/// Four streams, as the rows of a matrix are: one does not always fill the queue of a core's misses.
fn sum(words: &[u64]) -> u64 {
    let (a, b) = words.split_at(words.len() / 2);
    let ((a, b), (c, d)) = (a.split_at(a.len() / 2), b.split_at(b.len() / 2));
    let add = |sum: u64, part: &[u64]| part.iter().fold(sum, |sum, &word| sum.wrapping_add(word));
    let parts = a.chunks_exact(64).zip(b.chunks_exact(64)).zip(c.chunks_exact(64)).zip(d.chunks_exact(64));
    parts.fold(0, |sum, (((a, b), c), d)| add(add(add(add(sum, a), b), c), d))
}

/// A process that does nothing, all the time. Ends with this value.
pub struct Busy(Child);

impl Busy {
    pub fn start() -> Result<Busy> {
        let exe = std::env::current_exe().map_err(|e| e.to_string())?;
        let child = Command::new(exe)
            .args(["bench", "--spin"])
            .stdin(Stdio::piped())
            .spawn()
            .map_err(|e| format!("cannot start a busy process: {e}"))?;
        std::thread::sleep(std::time::Duration::from_millis(300));
        Ok(Busy(child))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the busy process runs. It also ends when its parent does, however that happens: then its input is closed.
pub fn spin() -> ! {
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(0);
    });
    loop {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(civil(0), "1970-01-01");
        assert_eq!(civil(19_782), "2024-02-29");
        assert_eq!(civil(20_786), "2026-11-29");
        assert_eq!(civil(20_818), "2026-12-31");
        assert_eq!(civil(20_819), "2027-01-01");
    }
}
