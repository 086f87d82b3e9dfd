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

#[cfg(test)]
mod tests {
    use super::super::{NESTED, encoder};
    use pannier_gguf::GgmlType;
    use pannier_kernels::{format, nested_formats};

    /// Squared error of an encoding, relative to the weights.
    fn error(x: &[f32], y: &[f32]) -> f64 {
        let (mut error, mut energy) = (0f64, 0f64);
        for (x, y) in x.iter().zip(y) {
            error += f64::from(x - y).powi(2);
            energy += f64::from(*x).powi(2);
        }
        error / energy
    }

    fn of_type(ty: GgmlType, x: &[f32]) -> f64 {
        let mut bytes = vec![0; ty.row_bytes(x.len() as u64).unwrap() as usize];
        encoder(ty).unwrap().encode_row(x, None, &mut bytes).unwrap();
        let mut y = vec![0f32; x.len()];
        format(ty.id()).unwrap().decode_row(&bytes, &mut y);
        error(x, &y)
    }

    /// Both views pay for the other: the low one must not be worse than a format of its size, the full one hardly worse than Q5_K.
    #[test]
    fn both_views_of_real_rows_are_nearly_as_good_as_one_alone() {
        let data = include_bytes!("../../tests/data/real_rows.f16");
        let x: Vec<f32> =
            data.as_chunks::<2>().0.iter().map(|b| half::f16::from_le_bytes(*b).to_f32()).collect();
        let x = &x[..x.len() / 256 * 256];
        let mut bytes = vec![0; x.len() / 256 * 176];
        NESTED.encode_row(x, None, &mut bytes).unwrap();
        let (low, full) = nested_formats();
        let mut y = vec![0f32; x.len()];
        full.decode_row(&bytes, &mut y);
        let full = error(x, &y);
        low.decode_row(&bytes[..x.len() / 256 * 112], &mut y);
        let low = error(x, &y);
        let (q3, q5) = (of_type(GgmlType::Q3_K, x), of_type(GgmlType::Q5_K, x));
        assert!(low < q3, "low view {low:e}, Q3_K {q3:e}");
        assert!(full < 1.55 * q5, "full view {full:e}, Q5_K {q5:e}");
    }
}
