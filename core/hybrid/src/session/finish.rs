//! What a turn has come to, before it is told.

use pannier::session::Completion;

use crate::event::{Confidence, HybridFinish, Source};

/// A turn with an answer. The answer itself is what was shown.
pub(super) struct Finished {
    pub source: Source,
    pub confidence: Option<Confidence>,
    pub finish: HybridFinish,
    pub edge: Option<Completion>,
    /// The edge's history holds this turn already.
    pub kept_by_edge: bool,
}
