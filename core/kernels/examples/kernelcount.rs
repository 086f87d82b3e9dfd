//! Multiplies a random matrix some times with one table of kernels, for counting instructions from outside:
//!
//! ```text
//! kernelcount ISA FORMAT ROWS COLS WIDTH REPEATS        kernelcount NeonDotprod Q4_K 64 2048 1 3
//! ```

#![allow(clippy::unwrap_used)]

#[path = "../tests/common/mod.rs"]
mod common;

use common::{Rng, Scales, matrix, random_activations, random_bytes};
use pannier_kernels::{Activations, Job, Kernels, Need, Precision, Serial, formats};

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let number = |i: usize| args[i].parse::<usize>().unwrap();
    let (rows, cols, width, repeats) = (number(3), number(4), number(5), number(6));
    let k = Kernels::available().into_iter().find(|k| format!("{:?}", k.isa()) == args[1]).unwrap();
    let f = formats().iter().find(|f| f.name == args[2]).unwrap();
    let mut rng = Rng(1);
    let bytes = random_bytes(f, rows, cols, Scales::Usual, &mut rng);
    // One row, repeated: making numbers must not take longer than multiplying them.
    let x: Vec<f32> = random_activations(cols, &mut rng).into_iter().cycle().take(width * cols).collect();
    let w = matrix(f, rows, cols, &bytes);
    let mut a = Activations::default();
    a.set(k, &Serial, &x, width, cols, Need::of(&[(&w, Precision::Q8)]));
    let mut y = vec![0.0; width * rows];
    for _ in 0..repeats {
        let job = Job { w, x: a.all(), precision: Precision::Q8, y: &mut y, bias: None };
        k.matmul(&Serial, &mut [job]);
        std::hint::black_box(&mut y);
    }
}
