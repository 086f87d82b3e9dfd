//! The worker pool as the kernels see it. Kernels create no threads.

use std::sync::atomic::{AtomicU64, Ordering};

/// Runs independent tasks on some number of threads.
///
/// Tasks are claimed one by one, so that a thread which loses its core delays only the task it holds. Any thread may
/// run any task; no result depends on which one does.
pub trait Parallel: Sync {
    /// Threads that may run tasks at the same time, the caller's included.
    fn threads(&self) -> usize;

    /// Calls `job(i)` once for each `i` in `0..tasks` and returns when all calls have returned.
    fn run(&self, tasks: usize, job: &(dyn Fn(usize) + Sync));

    /// Which of the threads calls, from 0: a hint, by which a thread gets work beside what it did last. Wrong ones change no result.
    fn lane(&self) -> usize {
        0
    }

    /// Lets at most so many threads take part from now on, the caller's included. Changes no result; those who cannot, need not.
    fn limit(&self, threads: usize) {
        let _ = threads;
    }
}

/// Runs every task on the calling thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct Serial;

impl Parallel for Serial {
    fn threads(&self) -> usize {
        1
    }

    fn run(&self, tasks: usize, job: &(dyn Fn(usize) + Sync)) {
        (0..tasks).for_each(job);
    }
}

/// The numbers `0..count`, dealt out so that each thread gets neighbours: weights of neighbouring rows follow each other in memory, and what
/// one strip has asked memory for, past its own end, is for the next one, on the same core. Who has nothing left helps another,
/// from the front too: its owner may not be running at all.
#[derive(Debug)]
pub(crate) struct Lanes(Vec<AtomicU64>);

impl Lanes {
    /// # Panics
    /// If there are more than 2^32 numbers: tasks of one product.
    pub fn new(count: usize, lanes: usize) -> Lanes {
        assert!(u32::try_from(count).is_ok(), "{count} tasks");
        let border = |i: usize| (count * i / lanes) as u64;
        Lanes((0..lanes).map(|i| AtomicU64::new(border(i) << 32 | border(i + 1))).collect())
    }

    /// One that nobody has had, and never `None` before `count` calls.
    pub fn take(&self, lane: usize) -> Option<usize> {
        let (others, own) = self.0.split_at(lane % self.0.len());
        // No lane ever gets more: whoever finds all of them empty, one after the other, has seen the end.
        own.iter().chain(others).find_map(|lane| {
            let some = |left: u64| left >> 32 < left & u64::from(u32::MAX);
            // Relaxed: the numbers are all that is told.
            let took = lane.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                some(left).then(|| left + (1 << 32))
            });
            took.ok().map(|left| (left >> 32) as usize)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_taken_once() {
        for (count, lanes) in [(0, 1), (1, 3), (7, 3), (300, 2), (5, 8)] {
            let dealt = Lanes::new(count, lanes);
            let mut all: Vec<usize> = std::thread::scope(|scope| {
                let take = |lane: usize| {
                    let dealt = &dealt;
                    move || std::iter::from_fn(|| dealt.take(lane)).collect::<Vec<_>>()
                };
                let threads: Vec<_> = (0..4).map(|lane| scope.spawn(take(lane))).collect();
                threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect()
            });
            all.sort_unstable();
            assert_eq!(all, (0..count).collect::<Vec<_>>(), "{count} in {lanes}");
        }
    }

    #[test]
    fn a_thread_gets_neighbours() {
        let dealt = Lanes::new(10, 2);
        let taken: Vec<_> = [1, 1, 0, 1, 0, 1, 1, 1].into_iter().map(|lane| dealt.take(lane)).collect();
        assert_eq!(taken, [5, 6, 0, 7, 1, 8, 9, 2].map(Some));
    }
}
