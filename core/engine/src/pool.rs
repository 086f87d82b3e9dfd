//! The threads of a model.
//!
//! A token of a small model is some hundred parallel regions of 5 to 100 µs, so a worker that finished one spins a little for
//! the next before it sleeps. Spinning must not turn into a trap when another process takes a core: the caller takes part in
//! every region, tasks are claimed one by one, and nobody ever waits for a thread, only for a task that a thread has begun;
//! and even that wait ends in sleep, which gives the core to whoever needs it.

use pannier_kernels::{FanOut, Hooks, Parallel};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a worker looks for the next region before it sleeps. Longer than the serial work between two regions of a decode
/// step, shorter than what a phone's scheduler would notice.
const IDLE_SPIN: Duration = Duration::from_micros(50);
/// How long the caller looks for the end of a task that a worker has begun. Tasks last a few microseconds: one that takes
/// longer has lost its core, and may get this one if we sleep.
const WAIT_SPIN: Duration = Duration::from_micros(20);
/// More threads than this never helped a decode step, which memory bandwidth bounds.
const MAX_DEFAULT: usize = 8;

/// A pool of threads; the thread that calls [`Parallel::run`] is one of them.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    fan: FanOut,
    stop: AtomicBool,
    /// Threads that may take part, the caller's included.
    limit: AtomicUsize,
    /// Workers that sleep or are about to.
    sleepers: AtomicUsize,
    work: Signal,
    /// The caller sleeps, or is about to.
    waiting: AtomicBool,
    finished: Signal,
}

#[derive(Debug, Default)]
struct Signal {
    mutex: Mutex<()>,
    condvar: Condvar,
}

impl Signal {
    fn lock(&self) -> MutexGuard<'_, ()> {
        // The mutex guards nothing but the order of sleeping and waking.
        self.mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn sleep_until(&self, ready: impl Fn() -> bool) {
        let mut guard = self.lock();
        while !ready() {
            guard = self.condvar.wait(guard).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }

    fn wake(&self) {
        drop(self.lock());
        self.condvar.notify_all();
    }
}

/// Spins until `ready`, at most `limit` long.
fn spin(limit: Duration, ready: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    loop {
        for _ in 0..32 {
            if ready() {
                return true;
            }
            std::hint::spin_loop();
        }
        if start.elapsed() >= limit {
            return ready();
        }
    }
}

thread_local! {
    /// Its number in the pool that has started it; whoever calls a pool is 0.
    static LANE: Cell<usize> = const { Cell::new(0) };
}

impl Shared {
    fn work(&self, index: usize) {
        let stop = || self.stop.load(Ordering::Relaxed);
        let has_turn = || index < self.limit.load(Ordering::Relaxed);
        let ready = || self.fan.has_work() || stop() || !has_turn();
        loop {
            if !has_turn() {
                // Not among the sleepers: nobody waits for this one, and it must not cost each region a wake.
                self.work.sleep_until(|| has_turn() || stop());
            }
            if !spin(IDLE_SPIN, ready) {
                self.sleepers.fetch_add(1, Ordering::Relaxed);
                // Pairs with the fence in `published`: either we see the work, or the caller sees us.
                fence(Ordering::SeqCst);
                self.work.sleep_until(ready);
                self.sleepers.fetch_sub(1, Ordering::Relaxed);
            }
            if stop() {
                return;
            }
            if !has_turn() {
                continue;
            }
            self.fan.help(&|| {
                // Pairs with the fence in `wait`.
                fence(Ordering::SeqCst);
                if self.waiting.load(Ordering::Relaxed) {
                    self.finished.wake();
                }
            });
        }
    }
}

impl Hooks for Shared {
    fn published(&self, _: usize) {
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            self.work.wake();
        }
    }

    fn wait(&self, finished: &dyn Fn() -> bool) {
        if spin(WAIT_SPIN, finished) {
            return;
        }
        self.waiting.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.finished.sleep_until(finished);
        self.waiting.store(false, Ordering::Relaxed);
    }
}

impl Pool {
    /// A pool of `threads` threads, of which `threads - 1` are started here.
    ///
    /// When the system refuses a thread, the pool has fewer; no result depends on it.
    pub fn new(threads: usize) -> Pool {
        let shared = Arc::new(Shared { limit: AtomicUsize::new(usize::MAX), ..Shared::default() });
        let mut workers = Vec::new();
        for index in 1..threads {
            let shared = Arc::clone(&shared);
            let worker = std::thread::Builder::new()
                .name(format!("pannier-{index}"))
                .stack_size(1 << 20)
                .spawn(move || {
                    LANE.set(index);
                    shared.work(index);
                });
            match worker {
                Ok(worker) => workers.push(worker),
                Err(_) => break,
            }
        }
        Pool { shared, workers }
    }
}

impl Parallel for Pool {
    fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    fn run(&self, tasks: usize, job: &(dyn Fn(usize) + Sync)) {
        if self.workers.is_empty() {
            return (0..tasks).for_each(job);
        }
        self.shared.fan.run(tasks, job, &*self.shared);
    }

    fn lane(&self) -> usize {
        LANE.get()
    }

    fn limit(&self, threads: usize) {
        self.shared.limit.store(threads.max(1), Ordering::Relaxed);
        self.shared.work.wake();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.work.wake();
        for worker in self.workers.drain(..) {
            // Its tasks' panics were caught where they ran, so it can only have ended well.
            let _ = worker.join();
        }
    }
}

/// What there is to know about a machine's cores.
pub trait Cpus {
    /// The highest frequency of each core, in any unit; empty when the system does not tell.
    fn max_frequencies(&self) -> Vec<u64>;
    /// Cores that this process may use.
    fn available(&self) -> usize;
}

/// The machine this runs on.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemCpus;

impl Cpus for SystemCpus {
    fn max_frequencies(&self) -> Vec<u64> {
        // Linux and Android; elsewhere the folder does not exist.
        let Ok(cores) = std::fs::read_dir("/sys/devices/system/cpu") else { return Vec::new() };
        cores
            .flatten()
            .filter(|entry| {
                let name = entry.file_name();
                let digits = name.to_str().and_then(|name| name.strip_prefix("cpu")).unwrap_or("");
                !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
            })
            .filter_map(|entry| {
                let text = std::fs::read_to_string(entry.path().join("cpufreq/cpuinfo_max_freq")).ok()?;
                text.trim().parse().ok()
            })
            .collect()
    }

    fn available(&self) -> usize {
        std::thread::available_parallelism().map_or(1, |cores| cores.get())
    }
}

/// How many threads to use when the app does not say: the performance cores.
///
/// A region ends when its slowest task does, and a little core takes three times as long for one. Performance cores are those
/// with at least 3/4 of the highest frequency: on every phone of the profiles that separates the clusters.
pub fn default_threads(cpus: &dyn Cpus) -> usize {
    let frequencies = cpus.max_frequencies();
    let top = frequencies.iter().copied().max().unwrap_or(0);
    let big = frequencies.iter().filter(|&&frequency| frequency / 3 >= top / 4).count();
    let available = cpus.available().max(1);
    let cores = if big == 0 { available } else { big.min(available) };
    cores.min(MAX_DEFAULT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn every_task_runs_once_with_spinning_and_with_sleeping_workers() {
        let pool = Pool::new(3);
        assert_eq!(pool.threads(), 3);
        for round in 0..300usize {
            if round % 100 == 99 {
                // Long enough for the workers to fall asleep.
                std::thread::sleep(Duration::from_millis(5));
            }
            let counts: Vec<AtomicUsize> = (0..round % 23).map(|_| AtomicUsize::new(0)).collect();
            pool.run(counts.len(), &|i| {
                counts[i].fetch_add(1, Ordering::Relaxed);
            });
            assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
        }
    }

    #[test]
    fn a_limited_pool_uses_fewer_threads_and_all_again_later() {
        let pool = Pool::new(3);
        let used = |pool: &Pool| {
            let seen = Mutex::new(std::collections::HashSet::new());
            for _ in 0..20 {
                pool.run(12, &|_| {
                    std::thread::sleep(Duration::from_micros(300));
                    seen.lock().unwrap().insert(std::thread::current().id());
                });
            }
            seen.into_inner().unwrap()
        };
        pool.limit(1);
        // A worker that was awake may look once more; then only the caller is left.
        used(&pool);
        assert_eq!(used(&pool).len(), 1);
        pool.limit(2);
        assert!(used(&pool).len() <= 2);
        pool.limit(3);
        assert!(used(&pool).len() >= 2);
        pool.limit(0);
        used(&pool);
        assert_eq!(used(&pool), std::collections::HashSet::from([std::thread::current().id()]));
    }

    #[test]
    fn a_caller_that_sleeps_is_woken_by_the_last_task() {
        let pool = Pool::new(2);
        for _ in 0..5 {
            let done = AtomicUsize::new(0);
            pool.run(2, &|_| {
                std::thread::sleep(Duration::from_millis(3));
                done.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(done.into_inner(), 2);
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_leaves_the_pool_usable() {
        let pool = Pool::new(2);
        for _ in 0..10 {
            assert!(catch_unwind(AssertUnwindSafe(|| pool.run(8, &|i| assert_ne!(i, 3)))).is_err());
            let sum = AtomicUsize::new(0);
            pool.run(8, &|i| {
                sum.fetch_add(i, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 28);
        }
    }

    struct Fake(Vec<u64>, usize);
    impl Cpus for Fake {
        fn max_frequencies(&self) -> Vec<u64> {
            self.0.clone()
        }
        fn available(&self) -> usize {
            self.1
        }
    }

    #[test]
    fn performance_cores_are_counted() {
        let threads =
            |frequencies: &[u64], available| default_threads(&Fake(frequencies.to_vec(), available));
        // Snapdragon 8 Gen 2: one prime core, four big, three little.
        assert_eq!(threads(&[2016, 2016, 2016, 2803, 2803, 2803, 2803, 3187], 8), 5);
        // Kirin 985: 1 + 3 + 4.
        assert_eq!(threads(&[1840, 1840, 1840, 1840, 2400, 2400, 2400, 2580], 8), 4);
        assert_eq!(threads(&[3000; 16], 16), MAX_DEFAULT);
        assert_eq!(threads(&[3000; 4], 2), 2);
        assert_eq!(threads(&[], 6), 6);
        assert_eq!(threads(&[0, 0], 0), 1);
        assert!(default_threads(&SystemCpus) >= 1);
    }
}
