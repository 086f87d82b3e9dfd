//! When to try again.

use std::time::Duration;

use crate::cloud::CloudError;

const FIRST_WAIT: Duration = Duration::from_millis(250);

/// Whether this may go away by itself.
pub(super) fn is_transient(error: &CloudError) -> bool {
    match error {
        CloudError::Unreachable { .. } => true,
        CloudError::Status { status, .. } => matches!(status, 408 | 429 | 500 | 502 | 503 | 504 | 529),
        _ => false,
    }
}

/// How long to wait before the attempt after this one (counted from 0); `None`: longer than `most`, not worth it.
///
/// Full jitter over a doubling range keeps clients that failed together from coming back together (Brooker, "Exponential Backoff And
/// Jitter", 2015). `random` is uniform.
pub(super) fn wait(error: &CloudError, attempt: u32, most: Duration, random: u64) -> Option<Duration> {
    if let CloudError::Status { retry_after: Some(after), .. } = error {
        return (*after <= most).then_some(*after);
    }
    let range = FIRST_WAIT.saturating_mul(1 << attempt.min(10)).min(most);
    let micros = u64::try_from(range.as_micros()).unwrap_or(u64::MAX);
    Some(Duration::from_micros(random % micros.max(1)))
}

/// 64 bits that differ from client to client. Not for secrets.
pub(super) fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    // The standard library keys its hash maps from the system's random source.
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

/// `Retry-After` (RFC 9110, section 10.2.3): seconds, or a date. `now` is the time of the reply, in seconds since 1970; the server's own
/// `Date` is best, because then its clock need not agree with ours. A date that has passed means at once.
pub(super) fn retry_after(value: &str, now: u64) -> Option<Duration> {
    let value = value.trim();
    match value.parse::<u64>() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => http_date(value).map(|at| Duration::from_secs(at.saturating_sub(now))),
    }
}

/// A date of HTTP (RFC 9110, section 5.6.7) in seconds since 1970: today's form, and the two old ones that must still be read.
pub(super) fn http_date(text: &str) -> Option<u64> {
    let words: Vec<&str> = text.split([' ', '-', ',']).filter(|w| !w.is_empty()).collect();
    let (day, month, year, time) = match words.as_slice() {
        // Sun, 06 Nov 1994 08:49:37 GMT; Sunday, 06-Nov-94 08:49:37 GMT
        [_, day, month, year, time, "GMT"] => (day, month, year, time),
        // Sun Nov  6 08:49:37 1994
        [_, month, day, time, year] => (day, month, year, time),
        _ => return None,
    };
    let months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let month = (1u64..).zip(months).find(|(_, name)| name == month)?.0;
    let number = |text: &str, most: u64| text.parse::<u64>().ok().filter(|n| *n <= most);
    let day = number(day, 31).filter(|d| *d > 0)?;
    // Two digits: of this century, until somebody sends an old form for the next.
    let year = number(year, 9999).map(|y| if y < 100 { y + 2000 } else { y }).filter(|y| *y >= 1970)?;
    let mut clock = time.split(':');
    let mut next = |most| number(clock.next()?, most);
    let (hour, minute, second) = (next(23)?, next(59)?, next(60)?);
    // Days since 1970 from a date, with years that begin in March (Hinnant, "chrono-compatible low-level date algorithms").
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 1;
    Some(days.checked_sub(719_468)? * 86_400 + hour * 3600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_stay_below_the_limit_and_heed_the_server() {
        let lost = CloudError::Unreachable { reason: String::new() };
        let most = Duration::from_secs(1);
        for attempt in 0..40 {
            let range = FIRST_WAIT.saturating_mul(1 << attempt.min(10)).min(most);
            for random in [0, 1, u64::MAX / 3, u64::MAX] {
                assert!(wait(&lost, attempt, most, random).unwrap() < range);
            }
        }
        let busy = |after| CloudError::Status {
            status: 429,
            message: String::new(),
            retry_after: retry_after(after, 1_792_567_679),
        };
        assert_eq!(wait(&busy(" 1 "), 0, most, 5), Some(Duration::from_secs(1)));
        assert_eq!(wait(&busy("2"), 0, most, 5), None);
        // One second after "now".
        assert_eq!(wait(&busy("Wed, 21 Oct 2026 07:28:00 GMT"), 0, most, 5), Some(Duration::from_secs(1)));
        assert_eq!(wait(&busy("Wed, 21 Oct 2026 08:28:00 GMT"), 0, most, 5), None, "later than is worth it");
        assert_eq!(wait(&busy("Tue, 20 Oct 2026 07:28:00 GMT"), 0, most, 5), Some(Duration::ZERO));
        assert!(is_transient(&busy("")) && !is_transient(&CloudError::Truncated));
    }

    #[test]
    fn dates_of_http_are_read() {
        for text in ["Sun, 06 Nov 1994 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"] {
            assert_eq!(http_date(text), Some(784_111_777), "{text}");
        }
        assert_eq!(http_date("Wednesday, 21-Oct-26 07:28:00 GMT"), Some(1_792_567_680));
        assert_eq!(http_date("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
        assert_eq!(http_date("Thu, 29 Feb 2024 23:59:60 GMT"), Some(1_709_251_200));
        for bad in [
            "",
            "soon",
            "Sun, 06 Nov 1994",
            "Sun, 32 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 25:49:37 GMT",
            "Sun, 06 Non 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 08:49 GMT",
            "Sun, 06 Nov 1969 08:49:37 GMT",
            "-5",
            "Sun, 06 Nov 99999999999999999999 08:49:37 GMT",
        ] {
            assert_eq!(http_date(bad), None, "{bad}");
            assert_eq!(retry_after(bad, 0), None, "{bad}");
        }
    }
}
