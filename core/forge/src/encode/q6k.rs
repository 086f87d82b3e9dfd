//! Q6_K: sixteen sub-blocks of 16, 8-bit signed scales, no minimum.

use super::pack::{Fields, blocks, two_bits};
use super::scaled::{self, Uniform};
use multiversion::multiversion;

#[multiversion(targets("x86_64+avx2", "x86_64+sse4.1"))]
pub(super) fn q6_k(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    let levels = Uniform { low: -32.0, high: 31.0 };
    blocks::<256>(row, importance, out, 210, |x, w, block| {
        let fit = scaled::super_block::<_, 16, 16>(&levels, x, w, -128.0, 127.0);
        let q = fit.q.map(|q| (q + 32.0) as i32 as u8);
        // Of each 128 weights, the nibbles of i and i + 64 share a byte.
        let mut low = [0u8; 128];
        for (low, q) in low.chunks_exact_mut(64).zip(q.chunks_exact(128)) {
            let (first, second) = q.split_at(64);
            for ((byte, first), second) in low.iter_mut().zip(first).zip(second) {
                *byte = (first & 15) | (second & 15) << 4;
            }
        }
        let scales = fit.scales.map(|scale| scale as i32 as u8);
        let mut fields = Fields::new(block);
        fields.put(&low);
        fields.put(&two_bits(&q.map(|q| q >> 4)));
        fields.put(&scales);
        fields.f16(fit.d);
    });
}
