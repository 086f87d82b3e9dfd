//! Q2_K: sixteen sub-blocks of 16, 4-bit scales and minima.

use super::affine;
use super::pack::{Fields, blocks, few_levels, two_bits};
use multiversion::multiversion;

#[multiversion(targets("x86_64+avx2", "x86_64+sse4.1"))]
pub(super) fn q2_k(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    blocks::<256>(row, importance, out, 84, |x, w, block| {
        let w = &few_levels(x, w, importance);
        let fit = affine::super_block::<16, 16, false>(x, w, 3.0, 15.0);
        let mut scales = fit.scales;
        for (scale, min) in scales.iter_mut().zip(&fit.mins) {
            *scale |= min << 4;
        }
        let mut fields = Fields::new(block);
        fields.put(&scales);
        fields.put(&two_bits(&fit.q));
        fields.f16(fit.d);
        fields.f16(fit.dmin);
    });
}
