//! How good confidences are.

/// Area under the receiver operating characteristic: the chance that a right answer has a higher score than a wrong one, ties
/// counting half. `None` if all answers are right, or all wrong.
#[must_use]
#[allow(clippy::cast_precision_loss)] // counts are small
pub fn auroc(scored: &[(f64, bool)]) -> Option<f64> {
    let mut sorted: Vec<(f64, bool)> = scored.to_vec();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
    let right = sorted.iter().filter(|(_, y)| *y).count() as f64;
    let wrong = sorted.len() as f64 - right;
    if right == 0.0 || wrong == 0.0 {
        return None;
    }
    let mut below = 0.0;
    let mut area = 0.0;
    for tie in sorted.chunk_by(|a, b| a.0.total_cmp(&b.0).is_eq()) {
        let ups = tie.iter().filter(|(_, y)| *y).count() as f64;
        let downs = tie.len() as f64 - ups;
        area += ups * (below + downs / 2.0);
        below += downs;
    }
    Some(area / (right * wrong))
}

/// Expected calibration error over `bins` equal widths: how far, on average over the answers, the mean score of a bin lies from
/// the share of right answers in it (Guo et al., "On Calibration of Modern Neural Networks", 2017).
#[must_use]
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
pub fn expected_calibration_error(scored: &[(f64, bool)], bins: usize) -> f64 {
    let bins = bins.max(1);
    let mut sums = vec![(0.0, 0.0); bins];
    for (score, right) in scored {
        let at = (score.clamp(0.0, 1.0) * bins as f64) as usize;
        if let Some((p, y)) = sums.get_mut(at.min(bins - 1)) {
            *p += score;
            *y += if *right { 1.0 } else { 0.0 };
        }
    }
    let gap: f64 = sums.iter().map(|(p, y)| (p - y).abs()).sum();
    gap / scored.len().max(1) as f64
}

/// The same over bins that hold equally many answers each: no bin is empty, and none hides where most answers are.
#[must_use]
#[allow(clippy::cast_precision_loss)]
pub fn equal_mass_calibration_error(scored: &[(f64, bool)], bins: usize) -> f64 {
    let mut sorted = scored.to_vec();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (n, bins) = (sorted.len(), bins.max(1));
    let gap: f64 = (0..bins)
        .map(|bin| {
            let part = sorted.get(bin * n / bins..(bin + 1) * n / bins).unwrap_or_default();
            part.iter().map(|(p, y)| p - if *y { 1.0 } else { 0.0 }).sum::<f64>().abs()
        })
        .sum();
    gap / n.max(1) as f64
}

/// A point of the curve of accuracy over the share handed over.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HandOffPoint {
    /// Share of the questions that the cloud answered.
    pub share: f64,
    /// Share of right answers altogether.
    pub accuracy: f64,
}

/// What happens if the least confident answers go to the cloud: for each number of hand-offs, from none to all.
///
/// Each question is `(confidence of the edge, edge right, cloud right)`.
#[must_use]
#[allow(clippy::cast_precision_loss)]
pub fn hand_off_curve(questions: &[(f64, bool, bool)]) -> Vec<HandOffPoint> {
    let mut sorted = questions.to_vec();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
    let n = sorted.len().max(1) as f64;
    let mut right: i64 = sorted.iter().map(|(_, edge, _)| i64::from(*edge)).sum();
    let mut curve = vec![HandOffPoint { share: 0.0, accuracy: right as f64 / n }];
    for (handed, (_, edge, cloud)) in sorted.iter().enumerate() {
        right += i64::from(*cloud) - i64::from(*edge);
        curve.push(HandOffPoint { share: (handed + 1) as f64 / n, accuracy: right as f64 / n });
    }
    curve
}

/// The least share to hand over for this accuracy; `None` if the curve never gets there.
#[must_use]
pub fn share_needed(curve: &[HandOffPoint], accuracy: f64) -> Option<f64> {
    curve.iter().find(|p| p.accuracy >= accuracy).map(|p| p.share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auroc_counts_pairs() {
        assert_eq!(auroc(&[(0.1, false), (0.9, true)]), Some(1.0));
        assert_eq!(auroc(&[(0.9, false), (0.1, true)]), Some(0.0));
        assert_eq!(auroc(&[(0.5, false), (0.5, true)]), Some(0.5));
        let mixed = [(0.1, false), (0.4, true), (0.35, false), (0.8, true), (0.4, false)];
        // Pairs: (0.4 and 0.8) against (0.1, 0.35, 0.4): 2.5 + 3 of 6.
        assert_eq!(auroc(&mixed), Some(5.5 / 6.0));
        assert_eq!(auroc(&[(0.3, true)]), None);
    }

    #[test]
    fn calibration_error_is_the_mean_gap() {
        let scored = [(0.9, true), (0.9, true), (0.9, false), (0.1, false)];
        let want = ((2.7f64 - 2.0).abs() + 0.1) / 4.0;
        assert!((expected_calibration_error(&scored, 10) - want).abs() < 1e-12);
        assert!((equal_mass_calibration_error(&scored, 2) - 0.2).abs() < 1e-12);
        assert_eq!(equal_mass_calibration_error(&[], 10), 0.0);
        assert_eq!(expected_calibration_error(&[], 10), 0.0);
        assert_eq!(expected_calibration_error(&[(1.0, true), (0.0, false)], 10), 0.0);
    }

    #[test]
    fn the_curve_begins_at_the_edge_and_ends_at_the_cloud() {
        let questions = [(0.9, true, true), (0.2, false, true), (0.5, true, false), (0.1, false, false)];
        let curve = hand_off_curve(&questions);
        assert_eq!(curve.first().map(|p| p.accuracy), Some(0.5));
        assert_eq!(curve.last().map(|p| (p.share, p.accuracy)), Some((1.0, 0.5)));
        assert_eq!(share_needed(&curve, 0.75), Some(0.5));
        assert_eq!(share_needed(&curve, 0.8), None);
    }
}
