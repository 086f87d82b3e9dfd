//! Time, as the session room sees it.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pannier_tokenizer::LocalTime;

/// A clock that never goes back.
pub trait Clock: Send + Sync {
    /// Time since some fixed moment.
    fn now(&self) -> Duration;
}

/// The system's monotonic clock.
#[derive(Debug, Clone, Copy)]
pub struct MonotonicClock(Instant);

impl Default for MonotonicClock {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Clock for MonotonicClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}

/// The date and time in UTC, for templates that show the date. Apps that know the user's time zone pass their own.
#[must_use]
pub fn utc_now() -> LocalTime {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    civil(seconds)
}

/// Seconds since 1970 as a calendar shows them. (Howard Hinnant, "chrono-compatible low-level date algorithms": years that
/// begin in March put the leap day last.)
#[allow(clippy::cast_possible_truncation)] // each value is bounded by the remainder before it
fn civil(seconds: u64) -> LocalTime {
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    LocalTime {
        year: i32::try_from(year).unwrap_or(i32::MAX),
        month: month as u8,
        day: day as u8,
        hour: (of_day / 3_600) as u8,
        minute: (of_day / 60 % 60) as u8,
        second: (of_day % 60) as u8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_become_dates() {
        let at = |s| {
            let t = civil(s);
            (t.year, t.month, t.day, t.hour, t.minute, t.second)
        };
        assert_eq!(at(0), (1970, 1, 1, 0, 0, 0));
        assert_eq!(at(951_782_399), (2000, 2, 28, 23, 59, 59));
        assert_eq!(at(951_782_400), (2000, 2, 29, 0, 0, 0));
        assert_eq!(at(1_709_251_199), (2024, 2, 29, 23, 59, 59));
        assert_eq!(at(4_107_542_400), (2100, 3, 1, 0, 0, 0));
        assert_eq!(civil(u64::MAX).year, i32::MAX);
    }

    #[test]
    fn the_clock_never_goes_back() {
        let clock = MonotonicClock::default();
        let first = clock.now();
        assert!(clock.now() >= first);
    }
}
