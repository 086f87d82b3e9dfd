//! What happens at the border: panics stop here, long work gets a thread, and futures that are dropped cancel.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use pannier::session::Canceller;
use pannier::store::DownloadCanceller;
use tokio::sync::oneshot;

use crate::PannierError;

/// Calls into the engine; a panic is an [`PannierError::Internal`].
pub(crate) fn guarded<T, E: Into<PannierError>>(
    work: impl FnOnce() -> Result<T, E>,
) -> Result<T, PannierError> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result.map_err(Into::into),
        // The payload may hold anything; the panic hook has told developers.
        Err(_) => Err(PannierError::internal("the engine panicked")),
    }
}

/// The same on a thread of its own. The thread ends with the work, also when nobody waits for it any more.
pub(crate) async fn on_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, PannierError> + Send + 'static,
) -> Result<T, PannierError> {
    let (done, result) = oneshot::channel();
    std::thread::Builder::new()
        .name("pannier-work".into())
        .spawn(move || {
            // The receiver is gone when the caller was cancelled.
            let _ = done.send(guarded(work));
        })
        .map_err(|e| PannierError::internal(format!("no thread: {}", e.kind())))?;
    result.await.unwrap_or_else(|_| Err(PannierError::internal("a thread of the engine was lost")))
}

/// Cancels a generation or a download from any thread. One-shot: what is started with a used handle ends at once.
#[derive(Debug, Default, uniffi::Object)]
pub struct CancelHandle {
    pub(crate) generation: Canceller,
    pub(crate) download: DownloadCanceller,
}

#[uniffi::export]
impl CancelHandle {
    /// A handle that was not used.
    #[uniffi::constructor]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Cancels. Never blocks; calling it again changes nothing.
    pub fn cancel(&self) {
        self.generation.cancel();
        self.download.cancel();
    }

    /// Whether it was used.
    pub fn is_cancelled(&self) -> bool {
        self.generation.is_cancelled()
    }
}

/// Cancels when dropped: a future that the other side gives up is dropped, and nothing else would tell.
pub(crate) struct CancelOnDrop(pub Option<Arc<CancelHandle>>);

impl CancelOnDrop {
    /// The work has ended by itself.
    pub fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        if let Some(handle) = &self.0 {
            handle.cancel();
        }
    }
}
