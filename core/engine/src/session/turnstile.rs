//! One model, several sessions: a lock that serves in the order of arrival.
//!
//! A plain mutex may let the thread that just gave it back take it again and again; a session that generates would then
//! starve one that waits. Here each call takes a number. The value is moved out while in use, so the inner mutex is held for
//! a few instructions only, and closing never waits for a forward pass.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Waiting calls look this often whether they should give up.
const POLL: Duration = Duration::from_millis(5);

/// Why a call was not let through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// It gave up.
    Stopped,
    /// There is no value any more.
    Closed,
}

/// Guards one value.
pub(super) struct Turnstile<T> {
    state: Mutex<State<T>>,
    turn: Condvar,
}

struct State<T> {
    value: Option<Box<T>>,
    closed: bool,
    queue: VecDeque<u64>,
    next: u64,
}

impl<T> Turnstile<T> {
    pub fn new(value: T) -> Self {
        let state = State { value: Some(Box::new(value)), closed: false, queue: VecDeque::new(), next: 0 };
        Self { state: Mutex::new(state), turn: Condvar::new() }
    }

    /// Calls `f` with the value when it is this call's turn. `stop` says whether to give up waiting.
    pub fn with<R>(&self, stop: impl Fn() -> bool, f: impl FnOnce(&mut T) -> R) -> Result<R, Refused> {
        let value = self.wait(stop)?;
        let mut turn = Turn { turnstile: self, value: Some(value) };
        turn.value.as_mut().map_or(Err(Refused::Closed), |value| Ok(f(value)))
    }

    fn wait(&self, stop: impl Fn() -> bool) -> Result<Box<T>, Refused> {
        let mut state = self.lock();
        let ticket = state.next;
        state.next += 1;
        state.queue.push_back(ticket);
        loop {
            let refused = if state.closed {
                Some(Refused::Closed)
            } else if stop() {
                Some(Refused::Stopped)
            } else {
                None
            };
            if let Some(refused) = refused {
                state.queue.retain(|t| *t != ticket);
                self.turn.notify_all();
                return Err(refused);
            }
            if state.queue.front() == Some(&ticket)
                && let Some(value) = state.value.take()
            {
                state.queue.pop_front();
                return Ok(value);
            }
            state = self.turn.wait_timeout(state, POLL).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Drops the value, now or when the call that uses it ends. Idempotent.
    pub fn close(&self) {
        let value = {
            let mut state = self.lock();
            state.closed = true;
            state.value.take()
        };
        self.turn.notify_all();
        // Outside of the lock: freeing gigabytes takes a while.
        drop(value);
    }

    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Gives the value back, also when the call panics.
struct Turn<'a, T> {
    turnstile: &'a Turnstile<T>,
    value: Option<Box<T>>,
}

impl<T> Drop for Turn<'_, T> {
    fn drop(&mut self) {
        {
            let mut state = self.turnstile.lock();
            if !state.closed {
                state.value = self.value.take();
            }
        }
        self.turnstile.turn.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::sync::{Arc, mpsc};

    #[test]
    fn calls_are_served_in_order() {
        let turnstile = Arc::new(Turnstile::new(Vec::new()));
        let (hold, held) = mpsc::channel::<()>();
        let (inside_tx, inside) = mpsc::channel();
        let first = {
            let turnstile = Arc::clone(&turnstile);
            std::thread::spawn(move || {
                turnstile.with(
                    || false,
                    |v| {
                        inside_tx.send(()).unwrap();
                        held.recv().unwrap();
                        v.push(0);
                    },
                )
            })
        };
        inside.recv().unwrap();
        let mut others = Vec::new();
        for i in 1..6 {
            let t = Arc::clone(&turnstile);
            others.push(std::thread::spawn(move || t.with(|| false, |v| v.push(i))));
            while turnstile.lock().queue.len() < i {
                std::thread::yield_now();
            }
        }
        hold.send(()).unwrap();
        first.join().unwrap().unwrap();
        for t in others {
            t.join().unwrap().unwrap();
        }
        assert_eq!(turnstile.with(|| false, |v| v.clone()).unwrap(), [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_waiting_call_can_give_up_and_a_panic_gives_the_value_back() {
        let turnstile = Turnstile::new(7);
        assert_eq!(turnstile.with(|| true, |v| *v), Err(Refused::Stopped));
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _ = turnstile.with(|| false, |_| panic!("expected by the test"));
        }));
        assert!(panicked.is_err());
        assert_eq!(turnstile.with(|| false, |v| *v), Ok(7));
    }

    #[test]
    fn close_does_not_wait_and_the_last_user_frees() {
        struct Freed(Arc<AtomicBool>);
        impl Drop for Freed {
            fn drop(&mut self) {
                self.0.store(true, Ordering::SeqCst);
            }
        }
        let freed = Arc::new(AtomicBool::new(false));
        let turnstile = Turnstile::new(Freed(Arc::clone(&freed)));
        let seen = AtomicUsize::new(0);
        turnstile
            .with(
                || false,
                |_| {
                    turnstile.close();
                    turnstile.close();
                    seen.store(usize::from(freed.load(Ordering::SeqCst)), Ordering::SeqCst);
                },
            )
            .unwrap();
        assert_eq!(seen.load(Ordering::SeqCst), 0, "freed while in use");
        assert!(freed.load(Ordering::SeqCst));
        assert_eq!(turnstile.with(|| false, |_| ()), Err(Refused::Closed));
    }
}
