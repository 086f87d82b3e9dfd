//! The worker pool as the kernels see it. Kernels create no threads.

/// Runs independent tasks on some number of threads.
///
/// Tasks are claimed one by one, so that a thread which loses its core delays only the task it holds. Any thread may
/// run any task; no result depends on which one does.
pub trait Parallel: Sync {
    /// Threads that may run tasks at the same time, the caller's included.
    fn threads(&self) -> usize;

    /// Calls `job(i)` once for each `i` in `0..tasks` and returns when all calls have returned.
    fn run(&self, tasks: usize, job: &(dyn Fn(usize) + Sync));

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
