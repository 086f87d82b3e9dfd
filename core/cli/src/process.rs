//! What the system says about this process. Where it says nothing, there is no figure.

use pannier::memory::{MemoryProbe, SystemMemory};

/// The most anonymous memory seen.
#[derive(Default)]
pub struct Peak {
    pub anonymous: Option<u64>,
}

impl Peak {
    /// Looks now.
    pub fn look(&mut self) {
        if let Ok(reading) = SystemMemory.read() {
            self.anonymous = self.anonymous.max(Some(reading.anonymous));
        }
    }
}

/// Largest resident size so far, mapped files included.
pub fn peak_rss() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Page faults that had to wait for the disk.
pub fn major_faults() -> Option<u64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name in parentheses may hold anything; `majflt` is the tenth field behind it.
    stat.rsplit_once(')')?.1.split_whitespace().nth(9)?.parse().ok()
}
