//! When memory gets scarce: what the system said, and what a look at it every few seconds shows.
//!
//! A level rises at once and falls only after a calm while: a cache that shrinks and grows with every reading would be worth
//! nothing. Acting is for others, between tokens; this only decides.

use super::MemoryProbe;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How scarce memory is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MemoryPressure {
    /// Enough for everything.
    #[default]
    Normal,
    /// Others need memory: what is kept only for speed shrinks.
    Moderate,
    /// The next step is that the system stops an app: what can go goes.
    Critical,
}

impl MemoryPressure {
    fn of(code: u8) -> MemoryPressure {
        match code {
            0 => MemoryPressure::Normal,
            1 => MemoryPressure::Moderate,
            _ => MemoryPressure::Critical,
        }
    }

    /// Of a budget that exists for speed only, how much may be used.
    pub fn share(self, bytes: u64) -> u64 {
        match self {
            MemoryPressure::Normal => bytes,
            MemoryPressure::Moderate => bytes / 2,
            MemoryPressure::Critical => 0,
        }
    }
}

/// When to act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PressureOptions {
    /// Less available memory than this, in bytes, is moderate pressure; half of it, critical. 0 acts only on what the system
    /// says. On devices with little memory an eighth of that, if that is less.
    pub floor: u64,
    /// How often to look.
    pub every: Duration,
    /// How long it must have been better before a level falls.
    pub calm: Duration,
}

impl Default for PressureOptions {
    fn default() -> Self {
        Self { floor: 1 << 30, every: Duration::from_secs(5), calm: Duration::from_secs(30) }
    }
}

/// Watches the pressure on memory.
#[derive(Debug, Default)]
pub struct PressureMonitor {
    options: PressureOptions,
    /// What the system said since the last check.
    told: AtomicU8,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    level: MemoryPressure,
    /// What the last look showed.
    seen: MemoryPressure,
    next_look: Option<Duration>,
    /// Since when it has been better than `level`.
    better_since: Option<Duration>,
}

impl PressureMonitor {
    /// No pressure yet.
    pub fn new(options: PressureOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// The system says how scarce memory is: `onTrimMemory`, `didReceiveMemoryWarning`. Any thread, any time; never blocks.
    ///
    /// Systems say when memory gets scarce, but not when it is plentiful again, so this counts for the calm while after the next check
    /// and then the readings decide alone.
    pub fn tell(&self, level: MemoryPressure) {
        self.told.store(level as u8, Ordering::Relaxed);
    }

    /// The level now.
    pub fn level(&self) -> MemoryPressure {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).level
    }

    /// Looks, if it is time to; the new level, if it has changed. `now` is any clock that does not go back.
    pub fn check(&self, now: Duration, probe: &dyn MemoryProbe) -> Option<MemoryPressure> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if self.options.floor > 0 && state.next_look.is_none_or(|next| now >= next) {
            state.next_look = Some(now + self.options.every);
            // A system that does not tell is taken to have enough.
            if let Ok(reading) = probe.read() {
                let floor = self.options.floor.min(reading.total / 8);
                state.seen = match reading.available {
                    a if a < floor / 2 => MemoryPressure::Critical,
                    a if a < floor => MemoryPressure::Moderate,
                    // Between the floor and a quarter above it nothing changes: readings jitter.
                    a if a < floor + floor / 4 => state.seen.min(state.level),
                    _ => MemoryPressure::Normal,
                };
            }
        }
        let told = MemoryPressure::of(self.told.swap(MemoryPressure::Normal as u8, Ordering::Relaxed));
        let wanted = told.max(state.seen);
        if wanted > state.level {
            (state.level, state.better_since) = (wanted, None);
            return Some(wanted);
        }
        if wanted == state.level {
            state.better_since = None;
            return None;
        }
        let since = *state.better_since.get_or_insert(now);
        if now.saturating_sub(since) < self.options.calm {
            return None;
        }
        (state.level, state.better_since) = (wanted, None);
        Some(wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Result;
    use crate::memory::MemoryReading;
    use std::sync::atomic::AtomicU64;

    #[derive(Default)]
    struct Fake(AtomicU64);

    impl MemoryProbe for Fake {
        fn read(&self) -> Result<MemoryReading> {
            let available = self.0.load(Ordering::Relaxed);
            Ok(MemoryReading { available, total: 16 << 30, ..MemoryReading::default() })
        }
    }

    #[test]
    fn levels_rise_at_once_and_fall_after_a_calm_while() {
        let (monitor, probe) = (PressureMonitor::new(PressureOptions::default()), Fake::default());
        let at = |seconds, available: u64| {
            probe.0.store(available, Ordering::Relaxed);
            monitor.check(Duration::from_secs(seconds), &probe)
        };
        assert_eq!(at(0, 4 << 30), None);
        // Not looked at before the next turn.
        assert_eq!(at(4, 100 << 20), None);
        assert_eq!(at(5, 900 << 20), Some(MemoryPressure::Moderate));
        assert_eq!(at(10, 400 << 20), Some(MemoryPressure::Critical));
        assert_eq!(at(15, 4 << 30), None);
        assert_eq!(at(30, 300 << 20), None);
        assert_eq!(at(35, 4 << 30), None);
        assert_eq!(at(60, 4 << 30), None);
        assert_eq!(at(66, 4 << 30), Some(MemoryPressure::Normal));
        assert_eq!(monitor.level(), MemoryPressure::Normal);
    }

    #[test]
    fn what_the_system_says_counts_at_once() {
        let options = PressureOptions { floor: 0, ..PressureOptions::default() };
        let (monitor, probe) = (PressureMonitor::new(options), Fake::default());
        assert_eq!(monitor.check(Duration::ZERO, &probe), None);
        monitor.tell(MemoryPressure::Critical);
        assert_eq!(monitor.check(Duration::ZERO, &probe), Some(MemoryPressure::Critical));
        // Nobody says that it is over.
        assert_eq!(monitor.check(Duration::from_secs(1), &probe), None);
        monitor.tell(MemoryPressure::Moderate);
        assert_eq!(monitor.check(Duration::from_secs(20), &probe), None);
        assert_eq!(monitor.check(Duration::from_secs(31), &probe), Some(MemoryPressure::Normal));
        assert_eq!(
            [MemoryPressure::Normal, MemoryPressure::Moderate, MemoryPressure::Critical].map(|l| l.share(8)),
            [8, 4, 0]
        );
    }
}
