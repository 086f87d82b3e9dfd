//! What a draft is judged by.

use crate::policy::Reason;

/// A probability and what it is compared with.
#[derive(Clone, Copy)]
pub(super) struct Score {
    pub value: Option<f64>,
    pub bar: f64,
    /// What the cloud is expected to gain, and the least that is worth it.
    pub gain: Option<(f64, f64)>,
    pub tokens: usize,
}

impl Score {
    /// An answer without a token is as unsure as it gets.
    fn unsure(&self) -> bool {
        self.value.is_none_or(|v| v < self.bar)
    }

    /// Whether it should go to the cloud.
    pub fn low(&self) -> bool {
        self.unsure() && self.gain.is_none_or(|(gain, min)| gain >= min)
    }

    /// Why it stays.
    pub fn kept(&self) -> Reason {
        match self.gain {
            Some((gain, min)) if self.unsure() => Reason::NoGain { gain, min },
            _ => Reason::Confident,
        }
    }
}
