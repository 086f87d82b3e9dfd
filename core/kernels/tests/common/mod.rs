//! Random valid blocks, for tests and the benchmark.
#![allow(dead_code, clippy::unwrap_used)]

use pannier_kernels::{Format, Matrix};

/// SplitMix64.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// Roughly normal.
    pub fn normal(&mut self) -> f32 {
        (0..8).map(|_| (self.next() >> 40) as f32 / (1u64 << 24) as f32 - 0.5).sum::<f32>() * 1.2
    }
}

/// Byte offsets of the half floats of a block.
fn halves(format: &Format) -> &'static [usize] {
    match format.name {
        "Q4_0" | "Q5_0" | "Q8_0" | "IQ4_NL" | "IQ4_XS" => &[0],
        "Q4_1" | "Q5_1" | "Q4_K" | "Q5_K" | "Q5_K_nested" | "Q5_K_nested_low" => &[0, 2],
        "Q2_K" => &[80, 82],
        "Q3_K" => &[108],
        "Q6_K" => &[208],
        _ => &[],
    }
}

/// How large the scales of random blocks are.
#[derive(Clone, Copy, PartialEq)]
pub enum Scales {
    /// As in real models.
    Usual,
    /// Any finite half float, subnormals and zeros of both signs included.
    Extreme,
}

/// The bytes of a random matrix.
pub fn random_bytes(format: &Format, rows: usize, cols: usize, scales: Scales, rng: &mut Rng) -> Vec<u8> {
    let mut bytes = vec![0u8; rows * format.row_bytes(cols).unwrap()];
    let (low, fine) = bytes.split_at_mut(rows * (cols / format.block) * (format.bytes - format.fine));
    fine.fill_with(|| rng.next() as u8);
    for block in low.chunks_exact_mut(format.bytes - format.fine) {
        match format.name {
            "F32" => block.copy_from_slice(&(rng.normal() * 0.1).to_le_bytes()),
            "F16" => block.copy_from_slice(&half::f16::from_f32(rng.normal() * 0.1).to_le_bytes()),
            "BF16" => block.copy_from_slice(&half::bf16::from_f32(rng.normal() * 0.1).to_le_bytes()),
            _ => block.chunks_mut(8).for_each(|c| c.copy_from_slice(&rng.next().to_le_bytes()[..c.len()])),
        }
        if format.name == "MXFP4" {
            block[0] = if scales == Scales::Extreme { block[0] % 230 } else { 120 + block[0] % 4 };
        }
        for &at in halves(format) {
            let h = match scales {
                Scales::Usual => half::f16::from_f32(rng.normal() * 0.01),
                Scales::Extreme => loop {
                    let h = half::f16::from_bits(rng.next() as u16);
                    if h.is_finite() {
                        break h;
                    }
                },
            };
            block[at..at + 2].copy_from_slice(&h.to_le_bytes());
        }
    }
    if format.interleaved > 1 { interleaved(format, rows, &bytes) } else { bytes }
}

/// The bytes of a matrix with its rows interleaved.
pub fn interleaved(format: &Format, rows: usize, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![0; bytes.len()];
    let group = bytes.len() / rows * 16;
    for (rows, out) in bytes.chunks_exact(group).zip(out.chunks_exact_mut(group)) {
        format.interleave(rows, out);
    }
    out
}

pub fn matrix<'a>(format: &'static Format, rows: usize, cols: usize, bytes: &'a [u8]) -> Matrix<'a> {
    Matrix::new(format, rows, cols, bytes).unwrap()
}

/// Activations as they occur: mostly small, some outliers, some groups of zeros.
pub fn random_activations(n: usize, rng: &mut Rng) -> Vec<f32> {
    let mut x: Vec<f32> = (0..n).map(|_| rng.normal()).collect();
    for _ in 0..n / 50 {
        let i = rng.below(n);
        x[i] *= 100.0;
    }
    if n > 64 {
        x[16..32].fill(0.0);
    }
    x
}
