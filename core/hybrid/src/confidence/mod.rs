//! How likely is this answer right? From the generation itself, calibrated per model file.
//!
//! Raw entropy says little (an AUROC of 0.55 is reported in the field): it is low on fluent nonsense and high on harmless
//! choices of words. So several views of the token probabilities go into a small logistic model, fitted per (model,
//! quantisation) on answers that were checked: [`Features`] -> [`Calibration`] -> a probability that means what it says.
//! [`auroc`] and [`expected_calibration_error`] judge it.

mod features;
mod logistic;
mod metrics;
mod p_true;
mod pooled;
mod sentence;
mod store;

pub use features::{FEATURES, Features, Observed, PROMPT_FEATURES, TokenKind, TokenScore};
pub use logistic::{FitError, FitOptions, Logistic};
pub use metrics::{
    HandOffPoint, auroc, equal_mass_calibration_error, expected_calibration_error, hand_off_curve,
    share_needed,
};
pub use p_true::p_true;
pub use sentence::SentenceSplitter;
pub use store::{
    Calibration, CalibrationError, CalibrationOrigin, FitReport, ModelIdentity, calibration_path,
};
