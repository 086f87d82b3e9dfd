//! What a model is doing, and who wants to know.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The state of a model, from download to unloading.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum ModelState {
    /// There is no file.
    NotDownloaded,
    /// The file is arriving.
    Downloading {
        /// Bytes on disk.
        done: u64,
        /// Size of the file, where known.
        total: Option<u64>,
    },
    /// The file is there; nothing is loaded.
    Downloaded,
    /// The file is being rewritten into the layout for streaming.
    Preparing {
        /// How much is done, from 0 to 1.
        fraction: f32,
    },
    /// The model is being loaded.
    Loading {
        /// How much is done, from 0 to 1.
        fraction: f32,
    },
    /// Loaded, and idle.
    Ready,
    /// Loaded, and answering.
    Generating,
    /// Unloaded because the app went to the background; loaded again when it returns or when it is used.
    Suspended,
    /// Unloaded; loaded again when it is used.
    Unloaded,
    /// The last attempt to download or load failed.
    Failed {
        /// Why, without paths.
        reason: String,
    },
}

type Observer = dyn Fn(&ModelState) + Send + Sync;

/// Holds a state and tells every change, in order, while no lock is held.
pub(super) struct StateCell(Arc<Shared>);

struct Shared {
    inner: Mutex<Inner>,
}

struct Inner {
    state: ModelState,
    observers: Vec<(u64, Arc<Observer>)>,
    next: u64,
    queue: VecDeque<ModelState>,
    /// Some thread is telling; what others add to the queue is told by it.
    telling: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StateCell {
    pub fn new(state: ModelState) -> Self {
        let inner = Inner { state, observers: Vec::new(), next: 0, queue: VecDeque::new(), telling: false };
        Self(Arc::new(Shared { inner: Mutex::new(inner) }))
    }

    pub fn get(&self) -> ModelState {
        self.0.lock().state.clone()
    }

    /// Changes the state and tells it.
    pub fn set(&self, state: ModelState) {
        self.post(state);
        self.tell();
    }

    /// Changes the state; what is already there is no change. For callers that hold a lock, which then decides the order;
    /// they call [`tell`](Self::tell) when they have let go of it.
    pub fn post(&self, state: ModelState) {
        let mut inner = self.0.lock();
        if inner.state != state {
            inner.state = state.clone();
            inner.queue.push_back(state);
        }
    }

    /// Tells what was posted, unless somebody is doing so.
    pub fn tell(&self) {
        let mut inner = self.0.lock();
        if inner.telling {
            return;
        }
        inner.telling = true;
        while let Some(state) = inner.queue.pop_front() {
            let observers: Vec<_> = inner.observers.iter().map(|(_, o)| Arc::clone(o)).collect();
            drop(inner);
            for observer in observers {
                // An observer that panics is the app's bug; the others are told all the same.
                let _ = catch_unwind(AssertUnwindSafe(|| observer(&state)));
            }
            inner = self.0.lock();
        }
        inner.telling = false;
    }

    /// Tells `observer` every change from now on, until the watch is dropped.
    pub fn watch(&self, observer: impl Fn(&ModelState) + Send + Sync + 'static) -> Watch {
        let mut inner = self.0.lock();
        let id = inner.next;
        inner.next += 1;
        inner.observers.push((id, Arc::new(observer)));
        Watch { shared: Arc::downgrade(&self.0), id }
    }
}

/// Ends the observation when dropped. An event that is being told at that moment may still arrive.
pub struct Watch {
    shared: Weak<Shared>,
    id: u64,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let Some(shared) = self.shared.upgrade() else { return };
        let gone = {
            let mut inner = shared.lock();
            let at = inner.observers.iter().position(|(id, _)| *id == self.id);
            at.map(|at| inner.observers.swap_remove(at))
        };
        // The observer's own data is dropped outside of the lock.
        drop(gone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_arrive_in_order_and_once() {
        let cell = Arc::new(StateCell::new(ModelState::Downloaded));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (told, again) = (Arc::clone(&seen), Arc::clone(&cell));
        let watch = cell.watch(move |state| {
            told.lock().unwrap().push(state.clone());
            // A change from within an observer comes after the one being told.
            if *state == ModelState::Ready {
                again.set(ModelState::Generating);
            }
        });
        cell.set(ModelState::Loading { fraction: 0.5 });
        cell.set(ModelState::Loading { fraction: 0.5 });
        cell.set(ModelState::Ready);
        drop(watch);
        cell.set(ModelState::Unloaded);
        let expected = vec![ModelState::Loading { fraction: 0.5 }, ModelState::Ready, ModelState::Generating];
        assert_eq!(*seen.lock().unwrap(), expected);
        assert_eq!(cell.get(), ModelState::Unloaded);
    }

    #[test]
    fn an_observer_that_panics_hurts_nobody() {
        let cell = StateCell::new(ModelState::Downloaded);
        let seen = Arc::new(Mutex::new(0));
        let told = Arc::clone(&seen);
        let _bad = cell.watch(|_| panic!("an app's bug"));
        let _good = cell.watch(move |_| *told.lock().unwrap() += 1);
        cell.set(ModelState::Ready);
        cell.set(ModelState::Unloaded);
        assert_eq!(*seen.lock().unwrap(), 2);
    }
}
