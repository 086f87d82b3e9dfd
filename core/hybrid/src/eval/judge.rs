//! Fitting on half, judging on the other half.

use crate::confidence::{
    Calibration, Features, FitError, FitReport, Logistic, ModelIdentity, auroc, expected_calibration_error,
};

/// A calibration and how good it is.
#[derive(Debug, Clone)]
pub struct Judged {
    /// Fitted on every second answer: what the report is about.
    pub half: Calibration,
    /// Fitted on all answers: what is kept. Expected to be no worse than `half`; there are no answers left to judge it on.
    pub calibration: Calibration,
    /// How `half` does on the answers it has not seen.
    pub report: FitReport,
}

/// Bins of the calibration error, as in the paper that brought it up.
const BINS: usize = 10;

/// Fits on the answers with an even index and judges on the others. Answers whose model was asked for its opinion are also fitted
/// with it, if all were.
///
/// # Errors
/// [`FitError`].
#[allow(clippy::cast_precision_loss)] // counts are small
pub fn fit_and_judge(answers: &[(Features, bool)], model: &ModelIdentity) -> Result<Judged, FitError> {
    let half = |odd: bool| -> Vec<(Features, bool)> {
        answers.iter().enumerate().filter(|(i, _)| (i % 2 == 1) == odd).map(|(_, a)| a.clone()).collect()
    };
    let (seen, unseen) = (half(false), half(true));
    let half = fit(&seen, model, None)?;
    let scored = |score: &dyn Fn(&Features) -> f64| -> Vec<(f64, bool)> {
        unseen.iter().map(|(f, y)| (score(f), *y)).collect()
    };
    let area = |scored: &[(f64, bool)]| auroc(scored).unwrap_or(0.5);
    let plain = scored(&|f| half.probability(&f.without_p_true()));
    let asked = half.has_opinion().then(|| scored(&|f| half.probability(f)));
    let report = FitReport {
        fitted_on: seen.len(),
        judged_on: unseen.len(),
        accuracy: unseen.iter().filter(|(_, y)| *y).count() as f64 / unseen.len().max(1) as f64,
        auroc: area(&plain),
        ece: expected_calibration_error(&plain, BINS),
        entropy_auroc: area(&scored(&|f| -f.get("mean_entropy"))),
        asked_auroc: asked.as_deref().map(area),
        asked_ece: asked.as_deref().map(|s| expected_calibration_error(s, BINS)),
    };
    Ok(Judged { calibration: fit(answers, model, Some(report))?, half, report })
}

fn fit(
    answers: &[(Features, bool)],
    model: &ModelIdentity,
    report: Option<FitReport>,
) -> Result<Calibration, FitError> {
    let plain: Vec<(Features, bool)> = answers.iter().map(|(f, y)| (f.without_p_true(), *y)).collect();
    let asked = answers.iter().all(|(f, _)| f.knows_p_true());
    let asked = if asked { Some(Logistic::fit_tuned(answers)?) } else { None };
    Ok(Calibration::fitted(Logistic::fit_tuned(&plain)?, asked, model.clone(), report))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::confidence::{FEATURES, Observed, TokenKind, TokenScore};
    use crate::eval::Draw;

    #[test]
    fn halves_are_kept_apart_and_an_opinion_helps() {
        let mut draw = Draw::new(3);
        let answers: Vec<(Features, bool)> = (0..2000)
            .map(|_| {
                let (sure, truth) = (draw.unit(), draw.unit());
                let right = draw.unit() < 0.5 * sure + 0.5 * truth;
                let mut seen = Observed::answer_to("What is it?");
                #[allow(clippy::cast_possible_truncation)]
                let logprob = (sure * 3.0 - 3.0) as f32;
                seen.push(TokenScore { id: 1, kind: TokenKind::Word, logprob, margin: 0.5, entropy: 1.0 });
                seen.set_p_true(0.05 + 0.9 * truth);
                (seen.features().unwrap(), right)
            })
            .collect();
        let model = ModelIdentity { file: "m.gguf".into(), bytes: 1 };
        let judged = fit_and_judge(&answers, &model).unwrap();
        let report = judged.report;
        assert_eq!((report.fitted_on, report.judged_on), (1000, 1000));
        assert!((0.6..0.8).contains(&report.auroc), "{report:?}");
        // Expected are 0.733 against 0.667; on a thousand answers the difference has a deviation of 0.0135.
        assert!(report.asked_auroc.unwrap() > report.auroc + 0.03, "{report:?}");
        assert!(report.ece < 0.08 && report.asked_ece.unwrap() < 0.08, "{report:?}");
        assert!((report.entropy_auroc - 0.5).abs() < 1e-9, "all entropies are the same");
        // The judged half changes nothing of what is judged.
        let mut other = answers.clone();
        for (f, y) in other.iter_mut().skip(1).step_by(2) {
            *f = Features([0.0; FEATURES.len()]);
            *y = !*y;
        }
        let again = fit(&other.iter().step_by(2).cloned().collect::<Vec<_>>(), &model, None).unwrap();
        assert_eq!(again, judged.half);
    }
}
