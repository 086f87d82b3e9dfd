//! Calibrations as files beside models, and the honest default.

use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::features::{FEATURES, Features};
use super::logistic::Logistic;

/// Far above what one takes (2 KB).
const MAX_BYTES: u64 = 64 << 10;
const VERSION: u32 = 2;
const N: usize = FEATURES.len();

/// Which model file a calibration belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelIdentity {
    /// Name of the file, without its folder; it names the quantisation.
    pub file: String,
    /// Size of the file in bytes.
    pub bytes: u64,
}

impl ModelIdentity {
    /// Of a file on disk.
    ///
    /// # Errors
    /// The file cannot be looked at.
    pub fn of(path: &Path) -> std::io::Result<Self> {
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { file, bytes: path.metadata()?.len() })
    }
}

/// Calibrations that come with the library, fitted as `docs/evaluation/confidence.md` tells.
const BUILT_IN: &[&str] = &[];

/// Where a calibration comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CalibrationOrigin {
    /// Fitted on answers of this very file.
    Fitted,
    /// The built-in one, from other models: it orders answers, but its probabilities are only a guess.
    Default,
}

/// Turns features into a probability of being right. Answers whose model was asked for its own opinion have weights of their own: what the
/// other features are worth depends on whether that one is there.
#[derive(Debug, Clone, PartialEq)]
pub struct Calibration {
    origin: CalibrationOrigin,
    plain: Logistic,
    asked: Option<Logistic>,
    /// That the cloud would be right, from what the device knows.
    cloud: Option<Logistic>,
    model: Option<ModelIdentity>,
    /// How many answers it was fitted on, and how it did on others.
    pub report: Option<FitReport>,
}

/// What a fit found.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct FitReport {
    /// Answers fitted on.
    pub fitted_on: usize,
    /// Other answers it was judged on.
    pub judged_on: usize,
    /// Share of right answers among those.
    pub accuracy: f64,
    /// Area under the receiver operating characteristic.
    pub auroc: f64,
    /// Expected calibration error, ten bins.
    pub ece: f64,
    /// The same area for 1 - normalised entropy.
    pub entropy_auroc: f64,
    /// The area when the model was asked for its own opinion, too.
    pub asked_auroc: Option<f64>,
    /// The calibration error then.
    pub asked_ece: Option<f64>,
}

/// Why a stored calibration is not used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CalibrationError {
    /// A file operation failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// Not a calibration of this version.
    #[error("{} is no usable calibration: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Fitted for another model file.
    #[error("{} was fitted for {} of {} bytes, not for {} of {} bytes", path.display(), found.file, found.bytes, wanted.file, wanted.bytes)]
    OtherModel {
        /// The file.
        path: PathBuf,
        /// What it was fitted for.
        found: ModelIdentity,
        /// What is loaded.
        wanted: ModelIdentity,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    version: u32,
    model: ModelIdentity,
    features: Vec<String>,
    plain: StoredWeights,
    asked: Option<StoredWeights>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cloud: Option<StoredWeights>,
    report: Option<FitReport>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredWeights {
    mean: Vec<f64>,
    scale: Vec<f64>,
    weights: Vec<f64>,
    bias: f64,
}

impl From<&Logistic> for StoredWeights {
    fn from(l: &Logistic) -> Self {
        // Six digits are more than the data carry.
        let short = |xs: &[f64; N]| xs.iter().map(|x| (x * 1e6).round() / 1e6).collect();
        Self {
            mean: short(&l.mean),
            // A scale that rounds to 0 would be none.
            scale: l.scale.to_vec(),
            weights: short(&l.weights),
            bias: (l.bias * 1e6).round() / 1e6,
        }
    }
}

impl StoredWeights {
    fn read(&self) -> Result<Logistic, String> {
        let array = |name: &str, values: &[f64]| {
            <[f64; N]>::try_from(values)
                .ok()
                .filter(|v| v.iter().all(|x| x.is_finite()))
                .ok_or_else(|| format!("`{name}` must be {N} finite numbers"))
        };
        let scale = array("scale", &self.scale)?;
        if scale.iter().any(|s| *s <= 0.0) || !self.bias.is_finite() {
            return Err("`scale` must be above 0, `bias` finite".into());
        }
        Ok(Logistic {
            mean: array("mean", &self.mean)?,
            scale,
            weights: array("weights", &self.weights)?,
            bias: self.bias,
        })
    }
}

impl Stored {
    fn read(self) -> Result<Calibration, String> {
        if self.version != VERSION {
            return Err(format!("version {}, expected {VERSION}", self.version));
        }
        if self.features != FEATURES {
            return Err("fitted on other features: run `pannier fit-confidence` again".into());
        }
        let asked = self.asked.as_ref().map(StoredWeights::read).transpose()?;
        let cloud = self.cloud.as_ref().map(StoredWeights::read).transpose()?;
        let fitted = Calibration::fitted(self.plain.read()?, asked, self.model, self.report);
        Ok(Calibration { cloud, ..fitted })
    }
}

/// Where the calibration of a model file lies: beside it, `NAME.confidence.json`.
#[must_use]
pub fn calibration_path(model: &Path) -> PathBuf {
    let mut name = model.file_name().unwrap_or_default().to_os_string();
    name.push(".confidence.json");
    model.with_file_name(name)
}

impl Calibration {
    /// A fitted one. `asked`: for answers whose model was asked for its own opinion.
    #[must_use]
    pub fn fitted(
        plain: Logistic,
        asked: Option<Logistic>,
        model: ModelIdentity,
        report: Option<FitReport>,
    ) -> Self {
        Self { origin: CalibrationOrigin::Fitted, plain, asked, cloud: None, model: Some(model), report }
    }

    /// With what the cloud is worth: a fit of the same features to whether the cloud's answer was right.
    #[must_use]
    pub fn with_cloud(self, cloud: Logistic) -> Self {
        Self { cloud: Some(cloud), ..self }
    }

    /// The one that comes with the library for this model file, if there is one.
    #[must_use]
    pub fn built_in(model: &ModelIdentity) -> Option<Self> {
        let read = |text: &&str| serde_json::from_str::<Stored>(text).ok();
        let stored = BUILT_IN.iter().filter_map(read).find(|s| s.model == *model)?;
        stored.read().ok()
    }

    /// Where it comes from.
    #[must_use]
    pub fn origin(&self) -> CalibrationOrigin {
        self.origin
    }

    /// Whether it has weights for answers whose model was asked for its own opinion.
    #[must_use]
    pub fn has_opinion(&self) -> bool {
        self.asked.is_some()
    }

    /// The probability that an answer with these features is right.
    #[must_use]
    pub fn probability(&self, features: &Features) -> f64 {
        match &self.asked {
            Some(asked) if features.knows_p_true() => asked.probability(features),
            _ => self.plain.probability(&features.without_p_true()),
        }
    }

    /// How much likelier the cloud is to be right than an answer with these features; below 0 if the device is likelier. `None`
    /// if no answers of a cloud were fitted on.
    ///
    /// An unsure answer is worth handing over only if the cloud knows better. Both can be unsure of the same questions; a rule that sees
    /// the device alone pays for these first.
    #[must_use]
    pub fn gain(&self, features: &Features) -> Option<f64> {
        let cloud = self.cloud.as_ref()?;
        Some(cloud.probability(&features.without_p_true()) - self.probability(features))
    }

    /// The calibration of a model file: the one beside it, else the one that comes with the library, else the default.
    ///
    /// # Errors
    /// There is one beside it, but it cannot be used. Whoever goes on with the default then should say so.
    pub fn beside(model: &Path) -> Result<Self, CalibrationError> {
        let path = calibration_path(model);
        let wanted = ModelIdentity::of(model).map_err(|source| CalibrationError::Io {
            action: "look at",
            path: model.to_owned(),
            source,
        })?;
        if path.exists() {
            return Self::load(&path, &wanted);
        }
        Ok(Self::built_in(&wanted).unwrap_or_default())
    }

    /// Reads a calibration for this model file.
    ///
    /// # Errors
    /// [`CalibrationError`].
    pub fn load(path: &Path, wanted: &ModelIdentity) -> Result<Self, CalibrationError> {
        let io = |source| CalibrationError::Io { action: "read", path: path.to_owned(), source };
        let malformed = |reason: String| CalibrationError::Malformed { path: path.to_owned(), reason };
        let mut text = String::new();
        let file = std::fs::File::open(path).map_err(io)?;
        file.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(io)?;
        if text.len() as u64 > MAX_BYTES {
            return Err(malformed(format!("more than {MAX_BYTES} bytes")));
        }
        let stored: Stored = serde_json::from_str(&text).map_err(|e| malformed(e.to_string()))?;
        if stored.model != *wanted {
            return Err(CalibrationError::OtherModel {
                path: path.to_owned(),
                found: stored.model,
                wanted: wanted.clone(),
            });
        }
        stored.read().map_err(malformed)
    }

    /// Writes it; only a fitted one can be written. The file is whole or absent, never half.
    ///
    /// # Errors
    /// [`CalibrationError::Io`].
    pub fn save(&self, path: &Path) -> Result<(), CalibrationError> {
        let io = |action, source| CalibrationError::Io { action, path: path.to_owned(), source };
        let Some(model) = self.model.clone() else {
            return Err(io("write", std::io::Error::other("the default calibration belongs to no model")));
        };
        let stored = Stored {
            version: VERSION,
            model,
            features: FEATURES.iter().map(|n| (*n).to_owned()).collect(),
            plain: (&self.plain).into(),
            asked: self.asked.as_ref().map(Into::into),
            cloud: self.cloud.as_ref().map(Into::into),
            report: self.report,
        };
        let text = serde_json::to_string_pretty(&stored).map_err(|e| io("write", e.into()))?;
        let mut part = path.as_os_str().to_owned();
        part.push(".part");
        let part = PathBuf::from(part);
        std::fs::write(&part, text + "\n").map_err(|e| io("write", e))?;
        std::fs::rename(&part, path).map_err(|e| io("rename", e))
    }
}

impl Default for Calibration {
    /// Weights chosen by judgement, not fitted yet: use `fit-confidence` for figures to rely on. Its ranking carries over to other models; its
    /// probabilities less so, which [`origin`](Self::origin) tells.
    fn default() -> Self {
        Self {
            origin: CalibrationOrigin::Default,
            plain: super::pooled::logistic(),
            // Not asked is as good as undecided.
            asked: Some(super::pooled::logistic()),
            cloud: None,
            model: None,
            report: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::confidence::{Observed, TokenKind, TokenScore};

    fn sample() -> Calibration {
        let logistic = Logistic { mean: [0.25; N], scale: [1.5; N], weights: [0.125; N], bias: -0.1 };
        let model = ModelIdentity { file: "m.gguf".into(), bytes: 7 };
        Calibration::fitted(logistic.clone(), Some(logistic), model, None)
    }

    #[test]
    fn a_saved_calibration_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let model = dir.path().join("m.gguf");
        std::fs::write(&model, b"1234567").unwrap();
        assert_eq!(Calibration::beside(&model).unwrap().origin(), CalibrationOrigin::Default);
        sample().save(&calibration_path(&model)).unwrap();
        assert_eq!(Calibration::beside(&model).unwrap(), sample());
        // Another file under the same name: not its calibration.
        std::fs::write(&model, b"12345678").unwrap();
        assert!(matches!(Calibration::beside(&model), Err(CalibrationError::OtherModel { .. })));
    }

    #[test]
    fn the_built_in_ones_are_usable_and_found_by_their_models() {
        for text in BUILT_IN {
            let stored: Stored = serde_json::from_str(text).unwrap();
            let model = stored.model.clone();
            let read = stored.read().unwrap();
            assert!(read.report.is_some_and(|r| r.judged_on > 0 && r.auroc > 0.5));
            assert_eq!(Calibration::built_in(&model), Some(read));
            assert_eq!(Calibration::built_in(&ModelIdentity { bytes: 1, ..model }), None);
        }
    }

    #[test]
    fn an_opinion_has_weights_of_its_own() {
        let plain = Logistic { mean: [0.0; N], scale: [1.0; N], weights: [0.0; N], bias: -2.0 };
        let asked = Logistic { bias: 2.0, ..plain.clone() };
        let both = Calibration { asked: Some(asked), plain, ..sample() };
        let mut seen = Observed::new();
        seen.push(TokenScore { id: 0, kind: TokenKind::Word, logprob: -0.1, margin: 0.5, entropy: 1.0 });
        assert!(both.probability(&seen.features().unwrap()) < 0.2);
        seen.set_p_true(0.5);
        assert!(both.probability(&seen.features().unwrap()) > 0.8);
    }

    #[test]
    fn broken_files_are_named_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.json");
        let wanted = ModelIdentity { file: "m.gguf".into(), bytes: 7 };
        sample().save(&path).unwrap();
        let good = std::fs::read_to_string(&path).unwrap();
        for (from, to) in [
            ("\"version\": 2", "\"version\": 1"),
            ("mean_logprob", "mean_loglog"),
            ("1.5", "0.0"),
            ("0.125", "1e999"),
            ("\"bias\"", "\"extra\": 1, \"bias\""),
        ] {
            std::fs::write(&path, good.replacen(from, to, 1)).unwrap();
            let error = Calibration::load(&path, &wanted).unwrap_err();
            assert!(matches!(error, CalibrationError::Malformed { .. }), "{from}: {error}");
        }
        std::fs::write(&path, vec![b' '; 70_000]).unwrap();
        assert!(matches!(Calibration::load(&path, &wanted), Err(CalibrationError::Malformed { .. })));
    }

    #[test]
    fn what_a_cloud_gains_is_stored_and_has_a_sign() {
        let mut seen = Observed::answer_to("What is it?");
        seen.push(TokenScore { id: 0, kind: TokenKind::Word, logprob: -0.1, margin: 0.5, entropy: 1.0 });
        let features = seen.features().unwrap();
        let weights = |bias| Logistic { mean: [0.0; N], scale: [1.0; N], weights: [0.0; N], bias };
        let model = ModelIdentity { file: "m.gguf".into(), bytes: 1 };
        let plain = Calibration::fitted(weights(0.0), None, model.clone(), None);
        assert_eq!(plain.gain(&features), None);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.json");
        for (bias, sign) in [(2.0, 1.0), (-2.0, -1.0)] {
            plain.clone().with_cloud(weights(bias)).save(&path).unwrap();
            let gain = Calibration::load(&path, &model).unwrap().gain(&features).unwrap();
            assert!((gain - sign * 0.380_797).abs() < 1e-5, "{gain}");
        }
    }

    #[test]
    fn the_default_orders_answers_sensibly_and_claims_no_certainty() {
        let score = |logprob: f32, margin: f32, entropy: f32| {
            let mut seen = Observed::new();
            for id in 0..8 {
                seen.push(TokenScore { id, kind: TokenKind::Word, logprob, margin, entropy });
            }
            Calibration::default().probability(&seen.features().unwrap())
        };
        let (sure, unsure) = (score(-0.01, 0.98, 0.05), score(-2.5, 0.1, 3.0));
        assert!(sure > unsure + 0.2, "{sure} {unsure}");
    }
}
