//! Hands the tasks of one borrowed job to threads that live longer than the job.
//!
//! Threads, sleeping and waking belong to the owner of the pool; here is only the part that cannot be said in safe Rust: a
//! closure on the caller's stack, run by others.
//!
//! ```text
//! run:   job = …; done = 0; left = tasks         publish
//!        claim and run until left = 0             the caller takes part
//!        wait until done = tasks                  only for tasks that somebody has claimed: the rest it did itself
//! help:  claim and run until left = 0
//! claim: if left > 0 and compare_exchange(left, left - 1): run the job, done += 1
//! ```
//!
//! A successful claim proves that the job is alive: `left` is above zero only between the publication and the last claim, and
//! the caller does not return before each claimed task is done. A thread that slept through any number of jobs in between
//! claims from the current one or fails.

use crate::Parallel;
use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Keeps a counter on a cache line of its own (two, because CPUs prefetch them in pairs).
#[derive(Debug, Default)]
#[repr(align(128))]
struct Padded<T>(T);

#[derive(Clone, Copy)]
struct Published {
    job: *const (dyn Fn(usize) + Sync),
    tasks: usize,
}

/// What the owner of the threads does around a job.
pub trait Hooks {
    /// The job is there for others to claim from.
    fn published(&self, tasks: usize);
    /// Nothing is left to claim: returns when `finished()` is true, spinning or sleeping as it likes.
    fn wait(&self, finished: &dyn Fn() -> bool);
}

/// One job at a time, offered to other threads.
#[derive(Default)]
pub struct FanOut {
    left: Padded<AtomicUsize>,
    done: Padded<AtomicUsize>,
    job: UnsafeCell<Option<Published>>,
    busy: AtomicBool,
    failed: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `job` is written only by the thread that holds `busy`, while `left` is 0 and every claimed task is done; it is read
// only after a successful claim, which lies between the publication (release) and that thread's wait for `done`. The pointer
// in it leads to a `Sync` closure.
unsafe impl Sync for FanOut {}
// SAFETY: as above; nothing in it belongs to a thread.
unsafe impl Send for FanOut {}

impl std::fmt::Debug for FanOut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FanOut")
            .field("left", &self.left.0)
            .field("done", &self.done.0)
            .finish_non_exhaustive()
    }
}

/// Ends a job whatever happens: no thread may hold the closure when `run` is left.
struct Ending<'a>(&'a FanOut, usize);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let unclaimed = self.0.left.0.swap(0, Ordering::Relaxed);
        while self.0.done.0.load(Ordering::Acquire) + unclaimed < self.1 {
            std::hint::spin_loop();
        }
        self.0.busy.store(false, Ordering::Release);
    }
}

impl FanOut {
    /// Nothing to do yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether a task waits to be claimed.
    pub fn has_work(&self) -> bool {
        self.left.0.load(Ordering::Acquire) > 0
    }

    /// Calls `job(i)` for each `i` in `0..tasks`, on this thread and on those that [`FanOut::help`] meanwhile.
    ///
    /// If a job is already running (a task that starts another one, or a second caller), all tasks run on this thread.
    ///
    /// # Panics
    /// When a task panicked, with its payload, after all others have ended.
    pub fn run(&self, tasks: usize, job: &(dyn Fn(usize) + Sync), hooks: &dyn Hooks) {
        if tasks == 0 {
            return;
        }
        if tasks == 1
            || self.busy.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err()
        {
            return (0..tasks).for_each(job);
        }
        // SAFETY: only the lifetime changes. `Ending` keeps this frame until no thread can reach the pointer any more.
        let job: *const (dyn Fn(usize) + Sync + 'static) =
            unsafe { std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), _>(job) };
        // SAFETY: this thread holds `busy`, and the last job has ended: nobody reads.
        unsafe { *self.job.get() = Some(Published { job, tasks }) };
        self.done.0.store(0, Ordering::Relaxed);
        let ending = Ending(self, tasks);
        self.left.0.store(tasks, Ordering::Release);
        hooks.published(tasks);
        self.help(&|| {});
        let finished = || self.done.0.load(Ordering::Acquire) >= tasks;
        if !finished() {
            hooks.wait(&finished);
        }
        // Before `busy` is released: the next job must not find this one's failure.
        let panic = if self.failed.swap(false, Ordering::Relaxed) {
            self.panic.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take()
        } else {
            None
        };
        drop(ending);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    /// Claims tasks and runs them until none is left. `on_last` is called when the last task of a job ends here.
    pub fn help(&self, on_last: &dyn Fn()) {
        let mut left = self.left.0.load(Ordering::Relaxed);
        while left > 0 {
            match self.left.0.compare_exchange_weak(left, left - 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => {
                    self.claimed(left, on_last);
                    left = self.left.0.load(Ordering::Relaxed);
                }
                Err(now) => left = now,
            }
        }
    }

    fn claimed(&self, left: usize, on_last: &dyn Fn()) {
        // SAFETY: this thread has claimed a task and not finished it, so the job is alive and nobody writes.
        let Some(Published { job, tasks }) = (unsafe { *self.job.get() }) else { return };
        if !self.failed.load(Ordering::Relaxed) {
            // SAFETY: as above.
            let job = unsafe { &*job };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| job(tasks - left))) {
                self.panic.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get_or_insert(panic);
                self.failed.store(true, Ordering::Relaxed);
            }
        }
        if self.done.0.fetch_add(1, Ordering::Release) + 1 == tasks {
            on_last();
        }
    }
}

/// Cuts `data` into pieces of `len` values (the last may be shorter) and calls `job(index, piece)` for each, in parallel.
pub fn for_each_piece(
    par: &dyn Parallel,
    data: &mut [f32],
    len: usize,
    job: &(dyn Fn(usize, &mut [f32]) + Sync),
) {
    struct Base(*mut f32);
    // SAFETY: tasks make slices of disjoint parts only.
    unsafe impl Sync for Base {}
    impl Base {
        /// # Safety
        /// `at` is inside the allocation.
        unsafe fn at(&self, at: usize) -> *mut f32 {
            // SAFETY: the caller's promise.
            unsafe { self.0.add(at) }
        }
    }
    let (total, len) = (data.len(), len.max(1));
    let base = Base(data.as_mut_ptr());
    par.run(total.div_ceil(len), &|index| {
        let start = index * len;
        // SAFETY: `start < total` since `index < ceil(total / len)`, and the piece ends at `total` at the latest. Pieces of
        // different indices do not overlap, each index is run once, and `data` is borrowed exclusively until `run` returns.
        let piece = unsafe { std::slice::from_raw_parts_mut(base.at(start), len.min(total - start)) };
        job(index, piece);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    struct Spin;
    impl Hooks for Spin {
        fn published(&self, _: usize) {}
        fn wait(&self, finished: &dyn Fn() -> bool) {
            while !finished() {
                std::thread::yield_now();
            }
        }
    }

    fn with_helpers(body: impl FnOnce(&FanOut)) {
        let fan = FanOut::new();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        fan.help(&|| {});
                        std::thread::yield_now();
                    }
                });
            }
            let result = catch_unwind(AssertUnwindSafe(|| body(&fan)));
            stop.store(true, Ordering::Relaxed);
            if let Err(panic) = result {
                resume_unwind(panic);
            }
        });
    }

    #[test]
    fn each_task_runs_once_in_many_short_jobs() {
        with_helpers(|fan| {
            for round in 0..2000usize {
                let tasks = round % 17;
                let counts: Vec<AtomicU32> = (0..tasks).map(|_| AtomicU32::new(0)).collect();
                fan.run(
                    tasks,
                    &|i| {
                        counts[i].fetch_add(1, Ordering::Relaxed);
                    },
                    &Spin,
                );
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1), "{counts:?}");
            }
        });
    }

    #[test]
    fn a_panic_comes_back_and_the_next_job_works() {
        with_helpers(|fan| {
            for _ in 0..50 {
                let panic = catch_unwind(AssertUnwindSafe(|| {
                    fan.run(8, &|i| assert!(i != 5, "task five"), &Spin);
                }))
                .unwrap_err();
                assert!(panic.downcast_ref::<&str>().is_some_and(|text| text.contains("task five")));
                let sum = AtomicUsize::new(0);
                fan.run(
                    8,
                    &|i| {
                        sum.fetch_add(i, Ordering::Relaxed);
                    },
                    &Spin,
                );
                assert_eq!(sum.into_inner(), 28);
            }
        });
    }

    #[test]
    fn pieces_cover_the_data_once() {
        for (total, len) in [(0, 3), (1, 3), (9, 3), (10, 3), (5, 100), (4, 0)] {
            let mut data = vec![0.0; total];
            for_each_piece(&crate::Serial, &mut data, len, &|index, piece| {
                piece.iter_mut().for_each(|value| *value += 1.0 + index as f32);
            });
            let wanted: Vec<f32> = (0..total).map(|i| 1.0 + (i / len.max(1)) as f32).collect();
            assert_eq!(data, wanted);
        }
    }

    #[test]
    fn a_task_may_start_a_job() {
        with_helpers(|fan| {
            let sum = AtomicUsize::new(0);
            fan.run(
                4,
                &|_| {
                    fan.run(
                        5,
                        &|i| {
                            sum.fetch_add(i, Ordering::Relaxed);
                        },
                        &Spin,
                    )
                },
                &Spin,
            );
            assert_eq!(sum.into_inner(), 40);
        });
    }
}
