//! Q3_K: sixteen sub-blocks of 16, 6-bit signed scales, no minimum.

use super::pack::{Fields, blocks, few_levels, two_bits};
use super::scaled::{self, Uniform};
use multiversion::multiversion;

/// Sixteen scales of 6 bits in 12 bytes: eight bytes of low nibbles (j and j + 8 share one), four of the upper two bits
/// (j, j + 4, j + 8, j + 12 share one).
fn six_bits(scales: &[f32; 16]) -> [u8; 12] {
    let mut out = [0; 12];
    for (j, scale) in scales.iter().enumerate() {
        let scale = (scale + 32.0) as i32 as u8;
        out[j % 8] |= (scale & 15) << (4 * (j / 8));
        out[8 + j % 4] |= (scale >> 4) << (2 * (j / 4));
    }
    out
}

#[multiversion(targets("x86_64+avx2", "x86_64+sse4.1"))]
pub(super) fn q3_k(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    let levels = Uniform { low: -4.0, high: 3.0 };
    blocks::<256>(row, importance, out, 110, |x, w, block| {
        let w = &few_levels(x, w, importance);
        let fit = scaled::super_block::<_, 16, 16>(&levels, x, w, -32.0, 31.0);
        let q = fit.q.map(|q| (q + 4.0) as i32 as u8);
        // Bit j of byte i is the third bit of weight i of the j-th 32 weights.
        let mut high = [0u8; 32];
        for (j, q) in q.chunks_exact(32).enumerate() {
            for (byte, q) in high.iter_mut().zip(q) {
                *byte |= (q >> 2) << j;
            }
        }
        let mut fields = Fields::new(block);
        fields.put(&high);
        fields.put(&two_bits(&q));
        fields.put(&six_bits(&fit.scales));
        fields.f16(fit.d);
    });
}
