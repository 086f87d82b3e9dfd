//! The pool beside rayon: `cargo run --release -p pannier --example pool -- [THREADS]`
//!
//! ```text
//! empty    regions of as many tasks as a small product has, with nothing in them: what a region costs
//! token    the products of one decoded token, shaped as SmolLM2-135M, Q4_0: 4 regions in each of 30 layers, and the head
//! busy     the same while other threads keep all cores but one busy: what an app's own work does to both
//! ```
//!
//! In turns, medians; ratios are of one run.

#![allow(clippy::unwrap_used, reason = "a program for measurements")]

use pannier::pool::Pool;
use pannier_kernels::{Activations, Job, Kernels, Matrix, Need, Parallel, Precision, Serial, formats};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Tasks as rayon's parallel iterator, split down to single ones.
struct Rayon(rayon::ThreadPool);

impl Parallel for Rayon {
    fn threads(&self) -> usize {
        self.0.current_num_threads()
    }

    fn run(&self, tasks: usize, job: &(dyn Fn(usize) + Sync)) {
        use rayon::prelude::*;
        self.0.install(|| (0..tasks).into_par_iter().with_max_len(1).for_each(job));
    }
}

/// Rows and columns of the products of a layer, region by region.
const LAYER: [&[(usize, usize)]; 4] =
    [&[(576, 576), (192, 576), (192, 576)], &[(576, 576)], &[(1536, 576), (1536, 576)], &[(576, 1536)]];
const LAYERS: usize = 30;
const HEAD: &[(usize, usize)] = &[(49152, 576)];

struct Token {
    weights: Vec<u8>,
    kernels: &'static Kernels,
}

impl Token {
    fn region(&self, par: &dyn Parallel, shapes: &[(usize, usize)], at: &mut usize, out: &mut [f32]) {
        let format = formats().iter().find(|f| f.name == "Q4_0").unwrap();
        let cols = shapes[0].1;
        let bytes = |rows: usize| rows * format.row_bytes(cols).unwrap();
        let matrices: Vec<Matrix<'_>> = shapes
            .iter()
            .map(|&(rows, cols)| {
                let first = *at;
                *at += bytes(rows);
                Matrix::new(format, rows, cols, &self.weights[first..*at]).unwrap()
            })
            .collect();
        let mut x = Activations::default();
        let ones = vec![1.0; cols];
        x.set(self.kernels, &Serial, &ones, 1, cols, Need::of(&[(&matrices[0], Precision::Q8)]));
        let mut rest = out;
        let mut jobs = Vec::new();
        for w in &matrices {
            let (y, behind) = rest.split_at_mut(w.rows());
            rest = behind;
            jobs.push(Job { w: *w, x: x.all(), precision: Precision::Q8, y, bias: None });
        }
        self.kernels.matmul(par, &mut jobs);
    }

    fn run(&self, par: &dyn Parallel, out: &mut [f32]) {
        let mut at = 0;
        for _ in 0..LAYERS {
            LAYER.iter().for_each(|shapes| self.region(par, shapes, &mut at, out));
        }
        self.region(par, HEAD, &mut at, out);
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Medians in microseconds, in turns.
fn compare(name: &str, pools: [&dyn Parallel; 2], turns: usize, mut work: impl FnMut(&dyn Parallel)) {
    let mut times = [Vec::new(), Vec::new()];
    for turn in 0..turns {
        for (pool, times) in pools.iter().zip(&mut times) {
            let start = Instant::now();
            work(*pool);
            if turn > 0 {
                times.push(start.elapsed().as_secs_f64() * 1e6);
            }
        }
    }
    let [ours, rayon] = times.map(median);
    println!("{name:8} {ours:10.1} {rayon:10.1} {:8.2}", rayon / ours);
}

fn main() {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let threads = std::env::args().nth(1).map_or(cores, |n| n.parse().unwrap());
    let ours = Pool::new(threads);
    let rayon = Rayon(rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap());
    let pools: [&dyn Parallel; 2] = [&ours, &rayon];
    println!("{threads} threads, microseconds");
    println!("{:8} {:>10} {:>10} {:>8}", "", "ours", "rayon", "times");
    compare("empty", pools, 200, |pool| {
        (0..50).for_each(|_| {
            pool.run(16, &|i| {
                std::hint::black_box(i);
            });
        });
    });
    let token = Token { weights: vec![0; 80 << 20], kernels: Kernels::detect() };
    let mut out = vec![0.0; 49152];
    compare("token", pools, 60, |pool| token.run(pool, &mut out));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 1..cores.max(2) {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        compare("busy", pools, 60, |pool| token.run(pool, &mut out));
        stop.store(true, Ordering::Relaxed);
    });
}
