//! F32, F16 and BF16: rounding to nearest, ties to even.

pub(super) fn f32(row: &[f32], _: Option<&[f32]>, out: &mut [u8]) {
    for (bytes, weight) in out.chunks_exact_mut(4).zip(row) {
        bytes.copy_from_slice(&weight.to_le_bytes());
    }
}

pub(super) fn f16(row: &[f32], _: Option<&[f32]>, out: &mut [u8]) {
    for (bytes, weight) in out.chunks_exact_mut(2).zip(row) {
        bytes.copy_from_slice(&half::f16::from_f32(*weight).to_le_bytes());
    }
}

pub(super) fn bf16(row: &[f32], _: Option<&[f32]>, out: &mut [u8]) {
    for (bytes, weight) in out.chunks_exact_mut(2).zip(row) {
        bytes.copy_from_slice(&half::bf16::from_f32(*weight).to_le_bytes());
    }
}
