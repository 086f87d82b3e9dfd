//! What the operating system says about memory.

use crate::{Error, Result};

/// One reading, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryReading {
    /// Resident memory of this process, file pages included.
    pub rss: u64,
    /// The part of it that no file backs: what gets an app killed.
    pub anonymous: u64,
    /// Memory that can still be used without swapping or killing others, in the whole system or this process' group.
    pub available: u64,
    /// All memory of the system or of this process' group.
    pub total: u64,
}

/// Where readings come from; tests put pressure on by another implementation.
pub trait MemoryProbe: Send + Sync {
    /// Reads now.
    ///
    /// # Errors
    /// [`crate::Error::MemoryReading`].
    fn read(&self) -> Result<MemoryReading>;
}

/// The machine this runs on.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemMemory;

impl MemoryProbe for SystemMemory {
    fn read(&self) -> Result<MemoryReading> {
        let mut system = sysinfo::System::new().map_err(|error| Error::MemoryReading {
            what: "the system's memory",
            reason: error.to_string(),
        })?;
        system.refresh_memory();
        let (mut available, mut total) = (system.available_memory(), system.total_memory());
        // A container's limit is what kills, not the machine's.
        if let Some(group) = system.cgroup_limits() {
            total = total.min(group.total_memory);
            available = available.min(group.free_memory);
        }
        let (rss, anonymous) = resident(&mut system)?;
        Ok(MemoryReading { rss, anonymous, available, total })
    }
}

/// Resident and anonymous bytes of this process.
#[cfg(target_os = "linux")]
fn resident(_: &mut sysinfo::System) -> Result<(u64, u64)> {
    const WHAT: &str = "/proc/self/status";
    let status = std::fs::read_to_string(WHAT)
        .map_err(|source| Error::MemoryReading { what: WHAT, reason: source.to_string() })?;
    parse_status(&status)
        .ok_or_else(|| Error::MemoryReading { what: WHAT, reason: "no VmRSS and RssAnon lines".to_owned() })
}

#[cfg(target_os = "linux")]
fn parse_status(status: &str) -> Option<(u64, u64)> {
    let kib = |name: &str| -> Option<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim_start_matches(':')
            .trim()
            .trim_end_matches("kB")
            .trim()
            .parse::<u64>()
            .ok()?
            .checked_mul(1024)
    };
    // Swapped-out anonymous memory is still the process' own.
    Some((kib("VmRSS")?, kib("RssAnon")?.saturating_add(kib("VmSwap").unwrap_or(0))))
}

/// Other systems tell the resident size only; taking all of it for anonymous errs on the safe side.
#[cfg(not(target_os = "linux"))]
fn resident(system: &mut sysinfo::System) -> Result<(u64, u64)> {
    let Ok(pid) = sysinfo::get_current_pid() else { return Ok((0, 0)) };
    system.refresh_processes(sysinfo::ProcessesToUpdate::Some(&[pid]), true);
    let rss = system.process(pid).map_or(0, |process| process.memory());
    Ok((rss, rss))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_answers_with_plausible_sizes() {
        let reading = SystemMemory.read().unwrap();
        assert!(reading.rss > 0 && reading.anonymous > 0);
        assert!(reading.total > 0 && reading.available <= reading.total, "{reading:?}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn touched_anonymous_memory_shows() {
        let before = SystemMemory.read().unwrap().anonymous;
        let block = std::hint::black_box(vec![1u8; 64 << 20]);
        let after = SystemMemory.read().unwrap().anonymous;
        assert!(after >= before + (60 << 20), "{before} {after}");
        drop(block);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn status_without_the_lines_is_no_reading() {
        assert_eq!(parse_status("VmRSS:\t  10 kB\nRssAnon:\t 4 kB\n"), Some((10240, 4096)));
        assert_eq!(parse_status("VmRSS:\t  10 kB\n"), None);
        assert_eq!(parse_status("VmRSS: lots kB\nRssAnon: 1 kB"), None);
    }
}
