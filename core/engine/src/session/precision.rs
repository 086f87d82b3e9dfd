//! Which view of a file in nested precision answers.
//!
//! ```text
//! low, full   as it was asked for
//! auto        a prompt of more than LONG_PROMPT tokens: full
//!             otherwise low; when WATCHED tokens of the answer are drawn, their mean entropy decides: above UNSURE, the
//!             text so far is read again with the full view, which goes on
//! ```
//!
//! The rule looks at nothing but the prompt and the logits, so that the same prompt and seed give the same answer, whatever a session has read before.
//! A long prompt is what an answer leans on, and what would be dear to read twice. Tokens that were drawn with the low view stay: an app has seen
//! them. A low view that is unsure of its words early is one that lost something it needed; one that is sure goes on with half of the bytes.

use std::fmt;
use std::str::FromStr;

use super::Model;
use crate::model::Forward;
use crate::residency::View;
use crate::{Error, Result};

/// Which planes of a model in nested precision are used. Files that are not in nested precision have the full view only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WeightPrecision {
    /// The low plane: 3.5 bits per weight, for speed and for small memory. Answers differ from those of the full view.
    Low,
    /// Both planes.
    #[default]
    Full,
    /// Decided for each request, by the length of its prompt and by how sure the low view is of the first words of its answer. Loading takes
    /// the memory of the full view.
    Auto,
}

/// Prompts of more tokens are read with the full view.
pub(super) const LONG_PROMPT: usize = 512;
/// Tokens of the answer whose entropy decides.
pub(super) const WATCHED: usize = 8;
/// Mean entropy, in nats, above which the full view goes on. A choice between three words that are equally likely has 1.1.
pub(super) const UNSURE: f32 = 1.0;

/// Why a view was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ViewReason {
    /// The prompt is short: the low view begins.
    ShortPrompt,
    /// The prompt is long: the full view reads it.
    LongPrompt,
    /// The low view was sure of its first words, and goes on.
    Sure,
    /// The low view was unsure of its first words: the full view goes on.
    Unsure,
    /// There is no other view.
    OnlyOne,
}

impl fmt::Display for ViewReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ViewReason::ShortPrompt => "the prompt is short",
            ViewReason::LongPrompt => "the prompt is long",
            ViewReason::Sure => "it is sure of its first words",
            ViewReason::Unsure => "the low view is unsure of its first words",
            ViewReason::OnlyOne => "there is no other",
        })
    }
}

impl WeightPrecision {
    /// The planes that have to be there.
    #[must_use]
    pub fn loaded(self) -> View {
        match self {
            WeightPrecision::Low => View::Low,
            WeightPrecision::Full | WeightPrecision::Auto => View::Full,
        }
    }
}

impl fmt::Display for WeightPrecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            WeightPrecision::Low => "low",
            WeightPrecision::Full => "full",
            WeightPrecision::Auto => "auto",
        })
    }
}

impl FromStr for WeightPrecision {
    type Err = String;

    fn from_str(name: &str) -> Result<WeightPrecision, String> {
        [WeightPrecision::Low, WeightPrecision::Full, WeightPrecision::Auto]
            .into_iter()
            .find(|known| known.to_string() == name)
            .ok_or_else(|| format!("no precision {name:?}; there are low, full and auto"))
    }
}

/// The view that a request begins with.
pub(super) struct Choice {
    pub view: View,
    /// What to tell, if it was decided here.
    pub reason: Option<ViewReason>,
    /// Whether the first words decide again.
    pub watch: bool,
}

/// Decides for a request.
///
/// # Errors
/// [`Error::Unsupported`] for a view that the model was not loaded with.
pub(super) fn choose<F: Forward>(
    model: &Model<F>,
    wish: Option<WeightPrecision>,
    prompt: usize,
) -> Result<Choice> {
    let only = |view| Choice { view, reason: None, watch: false };
    let asked = wish.unwrap_or(model.weight_precision);
    let (low, full) = model.views;
    match asked {
        WeightPrecision::Low if low => Ok(only(View::Low)),
        WeightPrecision::Full if full => Ok(only(View::Full)),
        WeightPrecision::Low => {
            Err(Error::Unsupported { what: "the low view of a model that is not in nested precision".into() })
        }
        WeightPrecision::Full => Err(Error::Unsupported {
            what: "the full view of a model that was loaded with the low view only".into(),
        }),
        WeightPrecision::Auto if !(low && full) => {
            let view = if full { View::Full } else { View::Low };
            Ok(Choice { reason: Some(ViewReason::OnlyOne), ..only(view) })
        }
        WeightPrecision::Auto if prompt > LONG_PROMPT => {
            Ok(Choice { reason: Some(ViewReason::LongPrompt), ..only(View::Full) })
        }
        WeightPrecision::Auto => {
            Ok(Choice { view: View::Low, reason: Some(ViewReason::ShortPrompt), watch: true })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back() {
        for precision in [WeightPrecision::Low, WeightPrecision::Full, WeightPrecision::Auto] {
            assert_eq!(precision.to_string().parse(), Ok(precision));
        }
        assert!("fine".parse::<WeightPrecision>().is_err());
    }
}
