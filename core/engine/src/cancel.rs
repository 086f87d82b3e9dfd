//! How one thread stops the work of another.

use crate::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Stops a running forward pass from another thread. Clones share one flag.
///
/// It is looked at between blocks, so that a cancel takes effect within the work of one layer.
#[derive(Clone, Debug, Default)]
pub struct CancelFlag(Arc<AtomicBool>);

impl CancelFlag {
    /// A flag that is not set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks for the work to stop. Idempotent; never blocks.
    pub fn cancel(&self) {
        // The flag carries no data with it, so no ordering is needed beyond "eventually seen".
        self.0.store(true, Ordering::Relaxed);
    }

    /// Clears the flag, to use it for the next piece of work.
    pub fn reset(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Whether a stop was asked for.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// `Err(Error::Cancelled)` once a stop was asked for.
    ///
    /// # Errors
    /// [`Error::Cancelled`].
    pub fn check(&self) -> Result<()> {
        if self.is_cancelled() { Err(Error::Cancelled) } else { Ok(()) }
    }
}
