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

/// `Retry-After` in seconds. The form with a date is rare and needs a clock that is right; it counts as absent.
pub(super) fn retry_after(value: &str) -> Option<Duration> {
    value.trim().parse::<u64>().ok().map(Duration::from_secs)
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
            retry_after: retry_after(after),
        };
        assert_eq!(wait(&busy(" 1 "), 0, most, 5), Some(Duration::from_secs(1)));
        assert_eq!(wait(&busy("2"), 0, most, 5), None);
        assert!(wait(&busy("Wed, 21 Oct 2026 07:28:00 GMT"), 0, most, 5).is_some());
        assert!(is_transient(&busy("")) && !is_transient(&CloudError::Truncated));
    }
}
