//! Heat, as phones tell it, and what it asks for.
//!
//! A hot phone lowers its clocks until the work fits what it can cool; fewer threads reach that point with less loss than all of them
//! running slowly, and flash that is read ahead of need heats too. No result depends on either.

use std::sync::atomic::{AtomicU8, Ordering};

/// How hot the device is: the four steps of iOS (`ProcessInfo.ThermalState`), to which those of Android map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ThermalLevel {
    /// Cool.
    #[default]
    Nominal,
    /// Warm; nothing to do yet.
    Fair,
    /// The system slows down.
    Serious,
    /// The system is about to shut things down.
    Critical,
}

impl ThermalLevel {
    fn of(code: u8) -> ThermalLevel {
        match code {
            0 => ThermalLevel::Nominal,
            1 => ThermalLevel::Fair,
            2 => ThermalLevel::Serious,
            _ => ThermalLevel::Critical,
        }
    }

    /// How many of `threads` should run.
    pub fn threads(self, threads: usize) -> usize {
        match self {
            ThermalLevel::Nominal | ThermalLevel::Fair => threads,
            ThermalLevel::Serious => (threads / 2).max(1),
            ThermalLevel::Critical => 1,
        }
    }

    /// Whether flash is read before it is certain or urgent.
    pub fn prefetches(self) -> bool {
        self < ThermalLevel::Serious
    }
}

/// What the system said last, and what was done about it. Any thread may tell; whoever runs the next pass acts.
#[derive(Debug, Default)]
pub struct ThermalMonitor {
    told: AtomicU8,
    acted: AtomicU8,
}

impl ThermalMonitor {
    /// The system says how hot it is. Never blocks.
    pub fn tell(&self, level: ThermalLevel) {
        self.told.store(level as u8, Ordering::Relaxed);
    }

    /// The level, if it has changed since this was asked last.
    pub fn check(&self) -> Option<ThermalLevel> {
        let told = self.told.load(Ordering::Relaxed);
        (self.acted.swap(told, Ordering::Relaxed) != told).then(|| ThermalLevel::of(told))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heat_takes_threads_and_is_told_once() {
        use ThermalLevel::{Critical, Fair, Nominal, Serious};
        assert_eq!([Nominal, Fair, Serious, Critical].map(|level| level.threads(5)), [5, 5, 2, 1]);
        assert_eq!([Nominal, Serious, Critical].map(|level| level.threads(1)), [1, 1, 1]);
        assert_eq!(
            [Nominal, Fair, Serious, Critical].map(ThermalLevel::prefetches),
            [true, true, false, false]
        );
        let monitor = ThermalMonitor::default();
        assert_eq!(monitor.check(), None);
        monitor.tell(Serious);
        assert_eq!((monitor.check(), monitor.check()), (Some(Serious), None));
        monitor.tell(Critical);
        monitor.tell(Nominal);
        assert_eq!((monitor.check(), monitor.check()), (Some(Nominal), None));
    }
}
