//! What a download reports while it runs.

use std::time::{Duration, Instant};

/// A report from a download. Every change of plan is one: nothing happens silently.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum DownloadEvent {
    /// A source answered and bytes are about to arrive.
    Started {
        /// Its address.
        url: String,
        /// Bytes that were there before.
        resumed_from: u64,
        /// Size of the whole file, where known.
        total: Option<u64>,
    },
    /// Bytes arrived. At most ten of these a second.
    Progress {
        /// Bytes on disk.
        done: u64,
        /// Size of the whole file, where known.
        total: Option<u64>,
        /// Speed over the last seconds.
        bytes_per_second: f64,
        /// Expected time to the last byte, where it can be told.
        remaining: Option<Duration>,
    },
    /// The bytes on disk could not be continued; the download began again.
    Restarted {
        /// Why.
        reason: String,
    },
    /// A source failed and is tried again after a pause.
    Retrying {
        /// Its address.
        url: String,
        /// What happened.
        reason: String,
        /// The pause.
        after: Duration,
    },
    /// A source failed for good; the next one is tried, if there is one.
    SourceFailed {
        /// Its address.
        url: String,
        /// What happened.
        reason: String,
    },
    /// All bytes are there and their digest is computed.
    Verifying {
        /// Bytes read so far.
        done: u64,
        /// Bytes to read.
        total: u64,
    },
}

/// Pause between two `Progress` reports: a person sees no more, and a phone's UI thread should not have to.
const REPORT_EVERY: Duration = Duration::from_millis(100);
/// The speed forgets what is older than about this long.
const MEMORY: Duration = Duration::from_secs(4);

/// Speed and time left, from byte counts.
pub(crate) struct Meter {
    last_report: Option<Instant>,
    mark: Instant,
    mark_done: u64,
    rate: Option<f64>,
}

impl Meter {
    pub fn new(now: Instant, done: u64) -> Self {
        Meter { last_report: None, mark: now, mark_done: done, rate: None }
    }

    /// The report that is due at `now`, if one is.
    pub fn due(&mut self, now: Instant, done: u64, total: Option<u64>, force: bool) -> Option<DownloadEvent> {
        let elapsed = now.saturating_duration_since(self.mark);
        let waited = self.last_report.is_none_or(|at| now.saturating_duration_since(at) >= REPORT_EVERY);
        if !waited && !force {
            return None;
        }
        self.last_report = Some(now);
        let seconds = elapsed.as_secs_f64();
        if seconds > 0.0 {
            let fresh = done.saturating_sub(self.mark_done) as f64 / seconds;
            // Exponential average whose weight depends on how long the sample lasted.
            let keep = (-seconds / MEMORY.as_secs_f64()).exp();
            self.rate = Some(self.rate.map_or(fresh, |old| old * keep + fresh * (1.0 - keep)));
            self.mark = now;
            self.mark_done = done;
        }
        let rate = self.rate.unwrap_or(0.0);
        let remaining = total.map(|t| t.saturating_sub(done)).and_then(|left| {
            // Below one byte a second the answer would be nonsense (and could overflow a Duration).
            (rate >= 1.0).then(|| Duration::try_from_secs_f64(left as f64 / rate).ok()).flatten()
        });
        Some(DownloadEvent::Progress { done, total, bytes_per_second: rate, remaining })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speed_and_time_left_follow_the_bytes() {
        let start = Instant::now();
        let mut meter = Meter::new(start, 1000);
        let mut last = None;
        for tick in 1..=100u64 {
            let now = start + Duration::from_millis(100 * tick);
            last = meter.due(now, 1000 + 5000 * tick, Some(1_000_000), false);
            assert!(last.is_some());
            assert_eq!(meter.due(now + Duration::from_millis(1), 1000 + 5000 * tick, None, false), None);
        }
        match last {
            Some(DownloadEvent::Progress { done, bytes_per_second, remaining: Some(left), .. }) => {
                assert_eq!(done, 501_000);
                assert!((bytes_per_second - 50_000.0).abs() < 1_000.0, "{bytes_per_second}");
                assert!((left.as_secs_f64() - 9.98).abs() < 0.3, "{left:?}");
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_stalled_download_promises_nothing() {
        let start = Instant::now();
        let mut meter = Meter::new(start, 0);
        match meter.due(start + Duration::from_secs(5), 0, Some(u64::MAX), false) {
            Some(DownloadEvent::Progress { remaining: None, .. }) => {}
            other => panic!("{other:?}"),
        }
    }
}
