//! A bounded queue in front of the model.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::ApiError;

/// `parallel` run, `waiting` wait, the rest is refused.
pub(super) struct Queue {
    running: Arc<Semaphore>,
    waiting: Arc<AtomicUsize>,
    limit: usize,
    closed: AtomicBool,
}

/// A place in the waiting line, given back when dropped: also when the client goes away.
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Queue {
    pub fn new(parallel: usize, limit: usize) -> Self {
        Self {
            running: Arc::new(Semaphore::new(parallel.clamp(1, Semaphore::MAX_PERMITS))),
            waiting: Arc::default(),
            limit,
            closed: AtomicBool::new(false),
        }
    }

    /// Waits for a turn.
    pub async fn enter(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        if let Ok(permit) = Arc::clone(&self.running).try_acquire_owned() {
            return if self.closed.load(Ordering::Acquire) { Err(ApiError::closing()) } else { Ok(permit) };
        }
        let before = self.waiting.fetch_add(1, Ordering::AcqRel);
        let place = Place(Arc::clone(&self.waiting));
        if before >= self.limit {
            return Err(ApiError::busy(self.limit));
        }
        let permit = Arc::clone(&self.running).acquire_owned().await;
        drop(place);
        permit.map_err(|_| ApiError::closing())
    }

    /// Refuses what waits and what comes.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.running.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_queue_is_bounded_and_places_are_given_back() {
        let queue = Arc::new(Queue::new(1, 1));
        let running = queue.enter().await.unwrap();
        let waiting = tokio::spawn({
            let queue = Arc::clone(&queue);
            async move { queue.enter().await.map(drop) }
        });
        while queue.waiting.load(Ordering::Acquire) == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(queue.enter().await.err(), Some(ApiError::busy(1)));
        waiting.abort();
        let _ = waiting.await;
        assert_eq!(queue.waiting.load(Ordering::Acquire), 0, "whoever goes leaves the line");
        let second = tokio::spawn({
            let queue = Arc::clone(&queue);
            async move { queue.enter().await.map(drop) }
        });
        while queue.waiting.load(Ordering::Acquire) == 0 {
            tokio::task::yield_now().await;
        }
        queue.close();
        assert_eq!(second.await.unwrap().err(), Some(ApiError::closing()));
        drop(running);
        assert_eq!(queue.enter().await.err(), Some(ApiError::closing()));
    }
}
