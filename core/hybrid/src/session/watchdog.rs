//! Ends a generation that has shown nothing in time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::EdgeModel;

/// Cancels the edge's generation after a time, unless disarmed before.
pub(super) struct Watchdog {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    disarmed: Mutex<bool>,
    wake: Condvar,
    fired: AtomicBool,
}

impl Watchdog {
    /// If the system gives no thread, the time is only looked at between the events of the generation.
    pub fn arm(after: Duration, edge: &Arc<dyn EdgeModel>) -> Self {
        let shared = Arc::new(Shared::default());
        let (watched, edge) = (Arc::clone(&shared), Arc::clone(edge));
        let _ = std::thread::Builder::new().name("pannier-latency".into()).spawn(move || {
            let disarmed = watched.disarmed.lock().unwrap_or_else(PoisonError::into_inner);
            let waited = watched.wake.wait_timeout_while(disarmed, after, |d| !*d);
            let (disarmed, _) = waited.unwrap_or_else(PoisonError::into_inner);
            // Still under the lock: a disarm that comes now waits, and sees that it was too late.
            if !*disarmed {
                watched.fired.store(true, Ordering::Release);
                edge.cancel();
            }
        });
        Self { shared }
    }

    /// The generation is in time. `false`: it is not, and has been cancelled.
    pub fn disarm(&self) -> bool {
        *self.shared.disarmed.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.shared.wake.notify_all();
        !self.fired()
    }

    /// Whether the time was up.
    pub fn fired(&self) -> bool {
        self.shared.fired.load(Ordering::Acquire)
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.disarm();
    }
}
