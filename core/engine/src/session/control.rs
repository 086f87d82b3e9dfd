//! How a generation is stopped from elsewhere, and why it was.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::CancelFlag;

/// Why a generation is to stop. The first reason counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StopReason {
    /// The app asked for it, or its event handler did, or the session was closed.
    Cancelled,
    /// The deadline passed.
    Deadline,
}

/// The switch of one running generation.
#[derive(Debug, Default)]
pub(super) struct Control {
    flag: CancelFlag,
    reason: AtomicU8,
}

impl Control {
    /// Asks the generation to stop.
    pub fn stop(&self, reason: StopReason) {
        let code = match reason {
            StopReason::Cancelled => 1,
            StopReason::Deadline => 2,
        };
        // The reason is published before the flag, so that whoever sees the flag finds a reason.
        let _ = self.reason.compare_exchange(0, code, Ordering::SeqCst, Ordering::SeqCst);
        self.flag.cancel();
    }

    /// Why to stop, if to stop.
    pub fn reason(&self) -> Option<StopReason> {
        match self.reason.load(Ordering::SeqCst) {
            0 => None,
            2 => Some(StopReason::Deadline),
            _ => Some(StopReason::Cancelled),
        }
    }

    /// What forward passes look at.
    pub fn flag(&self) -> &CancelFlag {
        &self.flag
    }
}

/// Cancels generations from another thread. Clones are the same canceller.
///
/// Given in [`GenerationOptions`](super::GenerationOptions), before or after [`cancel`](Self::cancel) is called. One-shot: a generation
/// that starts with a used canceller ends at once.
#[derive(Debug, Clone, Default)]
pub struct Canceller(Arc<CancellerState>);

#[derive(Debug, Default)]
struct CancellerState {
    used: AtomicBool,
    running: Mutex<Vec<Weak<Control>>>,
}

impl Canceller {
    /// A canceller that was not used.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancels. Never blocks; calling it again changes nothing.
    pub fn cancel(&self) {
        let running = self.0.running.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.used.store(true, Ordering::SeqCst);
        for control in running.iter().filter_map(Weak::upgrade) {
            control.stop(StopReason::Cancelled);
        }
    }

    /// Whether it was used.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.used.load(Ordering::SeqCst)
    }

    pub(super) fn attach(&self, control: &Arc<Control>) {
        let mut running = self.0.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.retain(|c| c.strong_count() > 0);
        running.push(Arc::downgrade(control));
        if self.0.used.load(Ordering::SeqCst) {
            control.stop(StopReason::Cancelled);
        }
    }
}

/// Stops a generation when its time is up, also in the middle of a long forward pass.
pub(super) struct Watchdog {
    done: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Watches for `after`. If the system gives no thread, the deadline is still looked at between passes.
    pub fn arm(after: Duration, control: &Arc<Control>) -> Self {
        let done = Arc::new((Mutex::new(false), Condvar::new()));
        let (watched, control) = (Arc::clone(&done), Arc::clone(control));
        let thread = std::thread::Builder::new().name("pannier-deadline".into()).spawn(move || {
            let (lock, wake) = &*watched;
            let guard = lock.lock().unwrap_or_else(PoisonError::into_inner);
            let (guard, _) =
                wake.wait_timeout_while(guard, after, |done| !*done).unwrap_or_else(PoisonError::into_inner);
            if !*guard {
                control.stop(StopReason::Deadline);
            }
        });
        Self { done, thread: thread.ok() }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        *self.done.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.done.1.notify_all();
        if let Some(thread) = self.thread.take() {
            // It has nothing left to do but to see that.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_reason_counts() {
        let control = Control::default();
        assert_eq!(control.reason(), None);
        control.stop(StopReason::Deadline);
        control.stop(StopReason::Cancelled);
        assert_eq!(control.reason(), Some(StopReason::Deadline));
        assert!(control.flag().is_cancelled());
    }

    #[test]
    fn a_canceller_reaches_what_was_attached_before_and_after() {
        let (canceller, a, b) =
            (Canceller::new(), Arc::new(Control::default()), Arc::new(Control::default()));
        canceller.attach(&a);
        canceller.clone().cancel();
        canceller.attach(&b);
        assert!(a.reason().is_some() && b.reason().is_some() && canceller.is_cancelled());
    }

    #[test]
    fn a_watchdog_fires_and_a_dropped_one_does_not() {
        let (late, done) = (Arc::new(Control::default()), Arc::new(Control::default()));
        drop(Watchdog::arm(Duration::from_secs(3600), &done));
        assert_eq!(done.reason(), None);
        let dog = Watchdog::arm(Duration::from_millis(1), &late);
        while late.reason().is_none() {
            std::thread::yield_now();
        }
        drop(dog);
        assert_eq!(late.reason(), Some(StopReason::Deadline));
    }
}
