//! Where constrained sampling attaches.

use thiserror::Error;

/// Why a hook could not say which tokens are allowed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("constraint `{hook}` failed: {reason}")]
pub struct HookError {
    /// Name of the hook.
    pub hook: String,
    /// What went wrong.
    pub reason: String,
}

/// Changes logits before filtering: a grammar, a ban list, a watermark.
///
/// A hook sees each token that becomes part of the answer, once and in order. Speculation tries tokens that may be
/// rejected; it works on a [`fork`](LogitHook::fork), so a hook never has to roll back.
pub trait LogitHook: Send {
    /// Adjusts one row of logits. Minus infinity bans a token; NaN and plus infinity are errors.
    ///
    /// # Errors
    /// Any reason why the hook can't go on; the generation fails with it.
    fn apply(&mut self, logits: &mut [f32]) -> Result<(), HookError>;

    /// A token was accepted.
    ///
    /// # Errors
    /// As for [`apply`](LogitHook::apply).
    fn accept(&mut self, token: u32) -> Result<(), HookError>;

    /// An independent copy in the same state.
    fn fork(&self) -> Box<dyn LogitHook>;
}
