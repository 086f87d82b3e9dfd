//! Matrix products: every instruction set against the scalar oracle, bit for bit.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Rng, Scales, matrix, random_activations, random_bytes};
use pannier_kernels::{
    Activations, Format, Isa, Job, Kernels, Matrix, Need, Parallel, Precision, Serial, formats,
};

const BOTH: [Precision; 2] = [Precision::Q8, Precision::Q16];

/// `x.len() / cols` tokens times a matrix.
fn product(
    k: &Kernels,
    par: &dyn Parallel,
    (f, rows, cols): (&'static Format, usize, usize),
    bytes: &[u8],
    x: &[f32],
    precision: Precision,
    bias: Option<&[f32]>,
) -> Vec<f32> {
    let w = matrix(f, rows, cols, bytes);
    let n = x.len() / cols;
    let mut a = Activations::default();
    a.set(k, par, x, n, cols, Need::of(&[(&w, precision)]));
    let mut y = vec![f32::NAN; n * rows];
    k.matmul(par, &mut [Job { w, x: a.all(), precision, y: &mut y, bias }]);
    y
}

fn oracle() -> &'static Kernels {
    Kernels::by_isa(Isa::Scalar).unwrap()
}

fn assert_same(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!(
            g.to_bits() == w.to_bits() || (g.is_nan() && w.is_nan()),
            "{what}: result {i} is {g:e}, not {w:e}"
        );
    }
}

fn check(f: &'static Format, rows: usize, cols: usize, n: usize, scales: Scales, seed: u64) {
    let mut rng = Rng(seed);
    let rows = rows.next_multiple_of(f.interleaved);
    let bytes = random_bytes(f, rows, cols, scales, &mut rng);
    let x = random_activations(n * cols, &mut rng);
    for precision in BOTH {
        let want = product(oracle(), &Serial, (f, rows, cols), &bytes, &x, precision, None);
        for k in Kernels::available() {
            let got = product(k, &Serial, (f, rows, cols), &bytes, &x, precision, None);
            let what = format!("{:?} {} {precision:?} {rows} x {cols} x {n}", k.isa(), f.name);
            assert_same(&got, &want, &what);
        }
        if !f.is_quantised() {
            break;
        }
    }
}

/// Under an emulator the level of the processor is known, and testing a lower one would look just as green.
#[test]
fn the_level_that_was_promised_is_chosen() {
    if let Ok(isa) = std::env::var("PANNIER_EXPECT_ISA") {
        assert_eq!(format!("{:?}", Kernels::detect().isa()), isa);
    }
    #[cfg(target_arch = "aarch64")]
    assert!(Kernels::by_isa(Isa::Neon).is_some(), "NEON needs no detection");
}

#[test]
fn all_isas_give_the_bits_of_the_oracle() {
    for f in formats() {
        for n in [1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 64] {
            let rows = [1, 7, 16, 33, 50][n % 5];
            for blocks in [1, 2, 3, 5] {
                check(f, rows, f.block.max(32) * blocks, n, Scales::Usual, (n * 10 + blocks) as u64);
            }
        }
    }
}

#[test]
fn extreme_scales_change_nothing() {
    for f in formats() {
        for n in [1, 3, 12] {
            check(f, 37, f.block.max(32) * 3, n, Scales::Extreme, n as u64);
        }
    }
}

#[test]
fn long_rows_and_many_rows() {
    for f in formats() {
        check(f, 130, 8960, 1, Scales::Usual, 1);
        check(f, 66, 8960, 11, Scales::Usual, 2);
    }
}

#[test]
fn float_rows_of_any_length() {
    for f in formats().iter().filter(|f| !f.is_quantised()) {
        for cols in [1, 2, 15, 16, 17, 31, 40, 100] {
            for n in [1, 2, 4, 5, 9] {
                check(f, 13, cols, n, Scales::Usual, cols as u64);
            }
        }
    }
}

/// Both planes of nested precision are the product of the blocks that they were taken from.
#[test]
fn nested_planes_give_the_bits_of_whole_blocks() {
    use pannier_kernels::nested;
    let whole = pannier_kernels::format(13).unwrap();
    let (_, full) = pannier_kernels::nested_formats();
    let (rows, cols) = (37, 768);
    let mut rng = Rng(5);
    let bytes = random_bytes(whole, rows, cols, Scales::Usual, &mut rng);
    let (mut low, mut fine) = (Vec::new(), Vec::new());
    for block in bytes.as_chunks::<{ nested::WHOLE_BYTES }>().0 {
        let (mut l, mut f) = ([0; nested::LOW_BYTES], [0; nested::FINE_BYTES]);
        nested::split(block, &mut l, &mut f);
        low.extend(l);
        fine.extend(f);
    }
    let apart = Matrix::planes(full, rows, cols, &low, &fine).unwrap();
    assert!(Matrix::planes(full, rows, cols, &low, &fine[1..]).is_err());
    assert!(Matrix::planes(full, rows, cols, &low, &[]).is_err());
    for n in [1, 2, 5, 30] {
        let x = random_activations(n * cols, &mut rng);
        for (k, precision) in Kernels::available().into_iter().flat_map(|k| BOTH.map(|p| (k, p))) {
            let want = product(k, &Serial, (whole, rows, cols), &bytes, &x, precision, None);
            let mut a = Activations::default();
            a.set(k, &Serial, &x, n, cols, Need::of(&[(&apart, precision)]));
            let mut y = vec![f32::NAN; n * rows];
            k.matmul(&Serial, &mut [Job { w: apart, x: a.all(), precision, y: &mut y, bias: None }]);
            assert_same(&y, &want, &format!("{:?} {precision:?} {n}", k.isa()));
            let parts = apart.rows_range(5..20);
            assert_eq!(parts.row_planes(2), apart.row_planes(7));
        }
    }
}

/// Two tokens in a hundred are far off in one column; the product must still be right in f64.
/// Interleaving moves bytes and nothing else.
#[test]
fn interleaved_rows_give_the_bits_of_rows_apart() {
    let mut rng = Rng(21);
    let mut seen = 0;
    for f in formats().iter().filter(|f| f.is_in_files()) {
        let Some(together) = f.with_rows_interleaved() else { continue };
        seen += 1;
        assert!(together.with_rows_interleaved().is_none());
        let (rows, cols) = (48, f.block.max(32) * 3);
        let bytes = random_bytes(f, rows, cols, Scales::Usual, &mut rng);
        let mixed = common::interleaved(f, rows, &bytes);
        let (apart, joined) = (matrix(f, rows, cols, &bytes), matrix(together, rows, cols, &mixed));
        for row in 0..rows {
            assert_eq!(apart.row(row), joined.row(row), "{} row {row}", f.name);
        }
        assert_eq!(joined.rows_range(20..30).row(15), apart.row(31), "groups are not cut");
        assert!(Matrix::new(together, 40, cols, &mixed[..mixed.len() / 48 * 40]).is_err());
        for k in Kernels::available() {
            for n in [1, 2, 3, 4, 9] {
                let x = random_activations(n * cols, &mut rng);
                for precision in BOTH {
                    let want = product(k, &Serial, (f, rows, cols), &bytes, &x, precision, None);
                    let got = product(k, &Serial, (together, rows, cols), &mixed, &x, precision, None);
                    assert_same(&got, &want, &format!("{:?} {} x {n}", k.isa(), f.name));
                }
            }
        }
    }
    assert_eq!(seen, 12);
}

#[test]
fn products_are_right() {
    for f in formats() {
        let (rows, cols) = (32, 512);
        let mut rng = Rng(7);
        let bytes = random_bytes(f, rows, cols, Scales::Usual, &mut rng);
        let x = random_activations(3 * cols, &mut rng);
        let w = matrix(f, rows, cols, &bytes);
        for (precision, bound) in [(Precision::Q8, 0.02), (Precision::Q16, 0.0002)] {
            let y = product(Kernels::detect(), &Serial, (f, rows, cols), &bytes, &x, precision, None);
            let (mut error, mut size) = (0.0, 0.0);
            for row in 0..rows {
                let mut weights = vec![0.0; cols];
                w.decode_row(row, &mut weights);
                for token in 0..3 {
                    let x = &x[token * cols..][..cols];
                    let exact: f64 = weights.iter().zip(x).map(|(a, b)| f64::from(a * b)).sum();
                    error += (f64::from(y[token * rows + row]) - exact).powi(2);
                    size += exact.powi(2);
                }
            }
            let relative = (error / size).sqrt();
            assert!(relative < bound, "{} {precision:?}: relative error {relative}", f.name);
        }
    }
}

/// Runs tasks in reverse order on many short-lived threads.
struct Shuffled(usize);

impl Parallel for Shuffled {
    fn threads(&self) -> usize {
        self.0
    }

    fn run(&self, tasks: usize, job: &(dyn Fn(usize) + Sync)) {
        let next = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|s| {
            for _ in 0..self.0.min(4) {
                s.spawn(|| {
                    loop {
                        let i = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        if i >= tasks {
                            break;
                        }
                        job(tasks - 1 - i);
                    }
                });
            }
        });
    }
}

#[test]
fn batch_width_and_task_split_change_nothing() {
    for f in formats() {
        let (rows, cols) = (if f.interleaved > 1 { 304 } else { 300 }, f.block.max(32) * 2);
        let mut rng = Rng(11);
        let bytes = random_bytes(f, rows, cols, Scales::Usual, &mut rng);
        let x = random_activations(21 * cols, &mut rng);
        let bias: Vec<f32> = (0..rows).map(|_| rng.normal()).collect();
        for k in Kernels::available() {
            for precision in BOTH {
                let shape = (f, rows, cols);
                let all = product(k, &Serial, shape, &bytes, &x, precision, Some(&bias));
                for width in [1, 2, 3, 8, 13] {
                    for par in [&Serial as &dyn Parallel, &Shuffled(3), &Shuffled(40)] {
                        let parts: Vec<f32> = x
                            .chunks(width * cols)
                            .flat_map(|x| product(k, par, shape, &bytes, x, precision, Some(&bias)))
                            .collect();
                        let what = format!("{:?} {} width {width}", k.isa(), f.name);
                        assert_same(&parts, &all, &what);
                    }
                }
            }
        }
    }
}

#[test]
fn several_jobs_in_one_region() {
    let mut rng = Rng(3);
    let x = random_activations(5 * 256, &mut rng);
    for k in Kernels::available() {
        let mut a = Activations::with_capacity(5, 256);
        a.set(k, &Serial, &x, 5, 256, Need { f32: true, q8: true, q16: true });
        let rows = |f: &Format| (40 + f.bytes).next_multiple_of(f.interleaved);
        let bytes: Vec<_> =
            formats().iter().map(|f| random_bytes(f, rows(f), 256, Scales::Usual, &mut rng)).collect();
        let ws: Vec<_> = formats().iter().zip(&bytes).map(|(f, b)| matrix(f, rows(f), 256, b)).collect();
        let mut ys: Vec<_> = ws.iter().map(|w| vec![0.0; w.rows() * 5]).collect();
        let mut jobs: Vec<_> = ws
            .iter()
            .zip(&mut ys)
            .map(|(&w, y)| Job { w, x: a.all(), precision: Precision::Q16, y, bias: None })
            .collect();
        k.matmul(&Shuffled(2), &mut jobs);
        for ((w, y), b) in ws.iter().zip(&ys).zip(&bytes) {
            let want = product(k, &Serial, (w.format(), w.rows(), 256), b, &x, Precision::Q16, None);
            assert_same(y, &want, w.format().name);
        }
    }
}

#[test]
fn values_that_are_not_finite_show_in_the_result() {
    for f in formats().iter().filter(|f| f.is_quantised()) {
        let mut rng = Rng(5);
        let rows = 17usize.next_multiple_of(f.interleaved);
        let bytes = random_bytes(f, rows, 256, Scales::Usual, &mut rng);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = random_activations(256, &mut rng);
            x[100] = bad;
            for k in Kernels::available() {
                for precision in BOTH {
                    let y = product(k, &Serial, (f, rows, 256), &bytes, &x, precision, None);
                    assert!(y.iter().all(|y| y.is_nan()), "{:?} {}", k.isa(), f.name);
                }
            }
        }
    }
}

/// Magnitudes whose reciprocal overflows, subnormals, and the largest numbers.
#[test]
fn any_finite_activation_is_rounded_alike() {
    let f = pannier_kernels::format(8).unwrap();
    let mut rng = Rng(9);
    let bytes = random_bytes(f, 16, 64, Scales::Usual, &mut rng);
    for scale in [0.0, 1e-45, 1e-38, 1e-31, 0.9e-30, 1.1e-30, 1e-20, 1.0, 1e20, 1e30] {
        let x: Vec<f32> = (0..64).map(|_| rng.normal() * scale).collect();
        for precision in BOTH {
            let want = product(oracle(), &Serial, (f, 16, 64), &bytes, &x, precision, None);
            assert!(want.iter().all(|y| y.is_finite()), "{scale}");
            for k in Kernels::available() {
                let got = product(k, &Serial, (f, 16, 64), &bytes, &x, precision, None);
                assert_same(&got, &want, &format!("{:?} {scale}", k.isa()));
            }
        }
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(200))]

    #[test]
    fn random_shapes(index in 0..formats().len(), rows in 1usize..70, blocks in 1usize..9, n in 1usize..20, seed: u64) {
        let f = &formats()[index];
        check(f, rows, f.block.max(32) * blocks, n, Scales::Usual, seed);
    }
}

/// Rows in groups give the bits of each group alone, whatever the order and the repetitions of rows.
#[test]
fn groups_of_rows_are_products_of_their_own() {
    let mut rng = Rng(77);
    let cols = 256;
    let x = random_activations(12 * cols, &mut rng);
    let sizes = [3usize, 0, 1, 9, 17, 8];
    let index: Vec<u32> = (0..sizes.iter().sum::<usize>()).map(|i| (i * 5 % 12) as u32).collect();
    for f in formats() {
        let bytes = random_bytes(f, 32, cols, Scales::Usual, &mut rng);
        let w = matrix(f, 32, cols, &bytes);
        for (k, precision) in Kernels::available().into_iter().flat_map(|k| BOTH.map(|p| (k, p))) {
            let mut a = Activations::default();
            let need = Need::of(&[(&w, precision)]);
            a.set_groups(k, &Shuffled(2), (&x, cols), &index, sizes.iter().copied(), need);
            let mut ys: Vec<_> = sizes.iter().map(|size| vec![f32::NAN; size * 32]).collect();
            let mut jobs: Vec<_> = ys
                .iter_mut()
                .enumerate()
                .map(|(i, y)| Job { w, x: a.group(i), precision, y, bias: None })
                .collect();
            k.matmul(&Serial, &mut jobs);
            let mut first = 0;
            for (y, size) in ys.iter().zip(sizes) {
                let rows: Vec<f32> = index[first..first + size]
                    .iter()
                    .flat_map(|&row| x[row as usize * cols..(row as usize + 1) * cols].iter().copied())
                    .collect();
                first += size;
                let want = product(k, &Serial, (f, 32, cols), &bytes, &rows, precision, None);
                assert_same(y, &want, &format!("{:?} {} group of {size}", k.isa(), f.name));
            }
        }
    }
}
