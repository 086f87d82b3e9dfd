//! Speed of the matrix kernels: `cargo run --release -p pannier-kernels --example kernelbench -- [options]`
//!
//! ```text
//! --formats Q4_K,Q4_K_R16   only these        --isa avx512    only this one
//! --n 1,2,4,8,64,512    columns              --threads 1,2   --q16   --cols 2048   --kib 98304 (size of the matrix)
//! ```
//!
//! Up to 8 columns the figure is GB/s of weights (matrices are larger than the caches), beside the read bandwidth of the machine; from 9 on it is
//! giga multiply-adds per second. Each is the median of several runs, in brackets by processor time of one thread.

#![allow(clippy::unwrap_used)]

#[path = "../tests/common/mod.rs"]
mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use common::{Rng, Scales, matrix, random_activations, random_bytes};
use pannier_kernels::{Activations, Job, Kernels, Need, Parallel, Precision, Serial, formats};

/// Threads made for each region: their start is part of the time, so regions are made long.
struct Threads(usize);

impl Parallel for Threads {
    fn threads(&self) -> usize {
        self.0
    }

    fn run(&self, tasks: usize, job: &(dyn Fn(usize) + Sync)) {
        let next = AtomicUsize::new(0);
        let work = || {
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                if i >= tasks {
                    break;
                }
                job(i);
            }
        };
        std::thread::scope(|s| {
            for _ in 1..self.0 {
                s.spawn(work);
            }
            work();
        });
    }
}

/// Seconds that this thread has had a core, where the system tells.
fn cpu_seconds() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    Some(text.split(' ').next()?.parse::<f64>().ok()? / 1e9)
}

/// Seconds per call: the median of the wall clock and, in brackets, the mean processor time of this thread, which a busy machine disturbs less.
fn measure(mut f: impl FnMut()) -> (f64, f64) {
    f();
    let (begin, cpu) = (Instant::now(), cpu_seconds());
    let mut times = Vec::new();
    while times.len() < 5 || (begin.elapsed().as_secs_f64() < 0.5 && times.len() < 200) {
        let t = Instant::now();
        f();
        times.push(t.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    let mean =
        cpu_seconds().zip(cpu).map_or(times[0], |(after, before)| (after - before) / times.len() as f64);
    (times[times.len() / 2], mean)
}

fn read_bandwidth(threads: usize, bytes: &[u8]) {
    let (median, cpu) = measure(|| {
        let chunk = 1 << 20;
        Threads(threads).run(bytes.len() / chunk, &|i| {
            let part = &bytes[i * chunk..][..chunk];
            let mut sums = [0u64; 32];
            for b in part.chunks_exact(256) {
                for (s, b) in sums.iter_mut().zip(b.chunks_exact(8)) {
                    *s = s.wrapping_add(u64::from_le_bytes(b.try_into().unwrap()));
                }
            }
            std::hint::black_box(sums);
        });
    });
    println!(
        "read bandwidth, {threads} threads: {:.1} GB/s ({:.1} by processor time)",
        bytes.len() as f64 / median / 1e9,
        bytes.len() as f64 / cpu / 1e9
    );
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let option = |name: &str| args.iter().position(|a| a == name).and_then(|i| args.get(i + 1)).cloned();
    let list = |name: &str, default: &str| -> Vec<usize> {
        option(name).unwrap_or(default.into()).split(',').map(|n| n.parse().unwrap()).collect()
    };
    let (ns, threads) = (list("--n", "1,2,3,4,8,64,512"), list("--threads", "1,2"));
    let (cols, kib) = (list("--cols", "2048")[0], list("--kib", "98304")[0]);
    let precision = if args.iter().any(|a| a == "--q16") { Precision::Q16 } else { Precision::Q8 };
    let isa = option("--isa").unwrap_or_default().to_lowercase();
    let mut rng = Rng(1);

    let big = vec![1u8; 256 << 20];
    for &t in &threads {
        read_bandwidth(t, &big);
    }
    drop(big);
    print!("{:8} {:10} {:2}", "isa", "format", "t");
    ns.iter().for_each(|n| print!(" {:>14}", format!("n={n}")));
    println!();
    for k in Kernels::available() {
        let name = format!("{:?}", k.isa()).to_lowercase();
        if (isa.is_empty() && name == "scalar") || (!isa.is_empty() && isa != name) {
            continue;
        }
        for f in formats() {
            let name_of_format =
                if f.interleaved > 1 { format!("{}_R{}", f.name, f.interleaved) } else { f.name.into() };
            if option("--formats").is_some_and(|l| !l.split(',').any(|n| n == name_of_format)) {
                continue;
            }
            let rows = (kib << 10) / f.row_bytes(cols).unwrap() / 64 * 64;
            // A small random matrix, repeated.
            let small = random_bytes(f, 64, cols, Scales::Usual, &mut rng);
            let bytes: Vec<u8> =
                small.iter().copied().cycle().take(rows * f.row_bytes(cols).unwrap()).collect();
            for &t in &threads {
                print!("{name:8} {name_of_format:10} {t:2}");
                for &n in &ns {
                    let w = matrix(f, rows, cols, &bytes);
                    let w = if n > 8 { w.rows_range(0..1024.max(rows / n).min(rows)) } else { w };
                    let x = random_activations(n * cols, &mut rng);
                    let mut a = Activations::default();
                    a.set(k, &Serial, &x, n, cols, Need::of(&[(&w, precision)]));
                    let mut y = vec![0.0; n * w.rows()];
                    let (median, best) = measure(|| {
                        let y = &mut y[..];
                        k.matmul(&Threads(t), &mut [Job { w, x: a.all(), precision, y, bias: None }]);
                    });
                    let amount =
                        if n > 8 { (w.rows() * cols * n) as f64 / 1e9 } else { w.bytes().len() as f64 / 1e9 };
                    print!(" {:>6.1} ({:>5.1})", amount / median, amount / best);
                    use std::io::Write;
                    std::io::stdout().flush().unwrap();
                }
                println!();
            }
        }
    }
}
