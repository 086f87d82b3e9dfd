//! Confidence intervals, 95% each.

/// A number and where its true value is with 95% confidence.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// The estimate.
    pub value: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Interval {
    /// The same through a rising function.
    pub(super) fn map(self, f: impl Fn(f64) -> f64) -> Interval {
        Interval { value: f(self.value), low: f(self.low), high: f(self.high) }
    }
}

/// Sum and number of what one group (a window, or a single token) contributed.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Group {
    pub sum: f64,
    pub count: f64,
}

/// Two-sided 95% quantiles of Student's t distribution for 1 to 30 degrees of freedom, from any table of it.
const STUDENT: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];
const NORMAL: f64 = 1.96;

/// The mean over all members of groups that are independent of each other, while the members of one need not be.
///
/// Variance of the ratio Σ sum / Σ count by its linearisation (Cochran, "Sampling Techniques", ratio estimates):
/// `g / (g - 1) * Σ (sum - mean * count)² / (Σ count)²` for g groups.
pub(super) fn mean_of(groups: &[Group]) -> Interval {
    let count: f64 = groups.iter().map(|group| group.count).sum();
    let mean = groups.iter().map(|group| group.sum).sum::<f64>() / count.max(f64::MIN_POSITIVE);
    let g = groups.len() as f64;
    if groups.len() < 2 {
        return Interval { value: mean, low: f64::NEG_INFINITY, high: f64::INFINITY };
    }
    let spread: f64 = groups.iter().map(|group| (group.sum - mean * group.count).powi(2)).sum();
    let error = (g / (g - 1.0) * spread).sqrt() / count.max(f64::MIN_POSITIVE);
    let width = STUDENT.get(groups.len() - 2).copied().unwrap_or(NORMAL) * error;
    Interval { value: mean, low: mean - width, high: mean + width }
}

/// Windows as groups; with a single one its tokens, which makes the interval a little too narrow (neighbours resemble each
/// other), but says more than none.
pub(super) fn mean_of_windows(windows: &[Vec<f64>]) -> Interval {
    let groups: Vec<Group> = match windows {
        [only] => only.iter().map(|term| Group { sum: *term, count: 1.0 }).collect(),
        many => {
            many.iter().map(|terms| Group { sum: terms.iter().sum(), count: terms.len() as f64 }).collect()
        }
    };
    mean_of(&groups)
}

/// Wilson's score interval of a share: right also near 0 and 1, where the usual one has no width.
pub(super) fn share(hits: usize, total: usize) -> Interval {
    let n = total as f64;
    if total == 0 {
        return Interval { value: 0.0, low: 0.0, high: 1.0 };
    }
    let (p, z2) = (hits as f64 / n, NORMAL * NORMAL);
    let centre = (p + z2 / (2.0 * n)) / (1.0 + z2 / n);
    let half = NORMAL * (p * (1.0 - p) / n + z2 / (4.0 * n * n)).sqrt() / (1.0 + z2 / n);
    Interval { value: p, low: (centre - half).max(0.0), high: (centre + half).min(1.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) {
        assert!((a - b).abs() < 1e-3, "{a} {b}");
    }

    #[test]
    fn a_mean_of_equal_groups_is_the_textbook_one() {
        let groups = [1.0, 2.0, 3.0, 4.0].map(|sum| Group { sum, count: 1.0 });
        let mean = mean_of(&groups);
        // s = 1.29099, n = 4, t = 3.182
        near(mean.value, 2.5);
        near(mean.high - 2.5, 3.182 * 1.290_99 / 2.0);
        near(2.5 - mean.low, 3.182 * 1.290_99 / 2.0);
        assert_eq!(mean_of(&groups[..1]).high, f64::INFINITY);
    }

    #[test]
    fn one_window_counts_by_token() {
        let one = mean_of_windows(&[vec![1.0, 2.0, 3.0, 4.0]]);
        near(one.high - one.value, 3.182 * 1.290_99 / 2.0);
        let two = mean_of_windows(&[vec![1.0, 3.0], vec![2.0, 2.0]]);
        assert_eq!((two.value, two.low, two.high), (2.0, 2.0, 2.0));
    }

    #[test]
    fn shares_stay_between_none_and_all() {
        let all = share(10, 10);
        assert_eq!(all.value, 1.0);
        near(all.high, 1.0);
        assert!(all.high <= 1.0);
        near(all.low, 0.7225);
        let half = share(5, 10);
        near(half.low, 0.2366);
        near(half.high, 0.7634);
        assert_eq!(share(0, 0).high, 1.0);
    }
}
