//! Q4_K and Q5_K, whole or in planes: eight sub-blocks of 32, 6-bit scales and minima.

use super::affine;
use super::pack::{Fields, blocks, nibbles};
use multiversion::multiversion;
use pannier_kernels::nested;

/// Eight scales and eight minima of 6 bits in 12 bytes: the low four of the last four pairs share a byte, and their upper two
/// bits ride on the first eight bytes.
fn six_bits(scales: &[u8; 8], mins: &[u8; 8]) -> [u8; 12] {
    let mut out = [0; 12];
    for j in 0..4 {
        out[j] = scales[j] | (scales[j + 4] >> 4) << 6;
        out[j + 4] = mins[j] | (mins[j + 4] >> 4) << 6;
        out[j + 8] = (scales[j + 4] & 15) | (mins[j + 4] & 15) << 4;
    }
    out
}

#[multiversion(targets("x86_64+avx2", "x86_64+sse4.1"))]
pub(super) fn q4_k(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    blocks::<256>(row, importance, out, 144, |x, w, block| {
        let fit = affine::super_block::<8, 32, false>(x, w, 15.0, 63.0);
        let mut fields = Fields::new(block);
        fields.f16(fit.d);
        fields.f16(fit.dmin);
        fields.put(&six_bits(&fit.scales, &fit.mins));
        fields.put(&nibbles::<128>(&fit.q, 32));
    });
}

#[multiversion(targets("x86_64+avx2", "x86_64+sse4.1"))]
pub(super) fn q5_k(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    blocks::<256>(row, importance, out, 176, |x, w, block| {
        put_q5_k(&affine::super_block::<8, 32, false>(x, w, 31.0, 63.0), block);
    });
}

#[inline(always)]
fn put_q5_k(fit: &affine::SuperBlock<8>, block: &mut [u8]) {
    // Bit j of byte i is the fifth bit of weight i of sub-block j.
    let mut high = [0u8; 32];
    for (j, q) in fit.q.chunks_exact(32).enumerate() {
        for (byte, q) in high.iter_mut().zip(q) {
            *byte |= (q >> 4) << j;
        }
    }
    let mut fields = Fields::new(block);
    fields.f16(fit.d);
    fields.f16(fit.dmin);
    fields.put(&six_bits(&fit.scales, &fit.mins));
    fields.put(&high);
    fields.put(&nibbles::<128>(&fit.q, 32));
}

/// Q5_K in two planes: all blocks of the low one, then all of the fine one.
#[multiversion(targets("x86_64+avx2", "x86_64+sse4.1"))]
pub(super) fn nested(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    let (low, fine) = out.split_at_mut(row.len() / nested::BLOCK * nested::LOW_BYTES);
    let mut fine = fine.as_chunks_mut::<{ nested::FINE_BYTES }>().0.iter_mut();
    blocks::<256>(row, importance, low, nested::LOW_BYTES, |x, w, block| {
        let mut whole = [0; nested::WHOLE_BYTES];
        put_q5_k(&affine::super_block::<8, 32, true>(x, w, 31.0, 63.0), &mut whole);
        if let (Some(fine), Some(low)) = (fine.next(), block.as_mut_array()) {
            nested::split(&whole, low, fine);
        }
    });
}
