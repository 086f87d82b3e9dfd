//! Rounding of activations to integers in groups of 16, as `ARCHITECTURE.md` says.

use super::simd::{Body, Simd};
use crate::act::{LoBlock, QBlock, RowOut};

/// Groups whose largest magnitude is below this become zeros: the reciprocal of their scale would overflow.
const TINY: f32 = 1e-30;

/// Largest magnitude of 16 values, NaN counting as larger than infinity.
#[inline(always)]
fn amax(x: &[f32]) -> f32 {
    f32::from_bits(x.iter().map(|v| v.to_bits() & 0x7fff_ffff).max().unwrap_or(0))
}

/// Scale and integers of 16 values, `x = scale * a`, `a` in `-max..=max`. A group with a value that is not finite gets
/// NaN for its scale, so that the fault shows in every result.
#[inline(always)]
fn quantise_group(x: &[f32], max: f32, a: &mut [i32; 16]) -> f32 {
    let amax = amax(x);
    *a = [0; 16];
    if !amax.is_finite() {
        return f32::NAN;
    }
    if amax < TINY {
        return 0.0;
    }
    let inverse = max / amax;
    for (a, x) in a.iter_mut().zip(x) {
        // SAFETY: the magnitude is at most `max`, but for rounding.
        *a = unsafe { (x * inverse).round_ties_even().to_int_unchecked() };
    }
    amax / max
}

#[inline(always)]
fn quantise(x: &[f32], max: f32, out: &RowOut) {
    for (b, x) in x.chunks(32).enumerate() {
        let mut padded = [0.0; 32];
        padded[..x.len()].copy_from_slice(x);
        let mut q = QBlock { hi: [0; 32], dx: [0.0; 2], bias64: [0; 2], xs: 0.0, xh: [0.0; 2], _pad: 0 };
        let mut low = LoBlock([0; 32]);
        let mut sums = [0.0; 2];
        for half in 0..2 {
            let mut a = [0; 16];
            q.dx[half] = quantise_group(&padded[half * 16..half * 16 + 16], max, &mut a);
            let sum: i32 = a.iter().sum();
            sums[half] = sum as f32;
            q.bias64[half] = -64 * sum;
            q.xh[half] = q.dx[half] * sums[half];
            for (k, &a) in a.iter().enumerate() {
                let hi = if out.lo.is_null() { a } else { (a + 64) >> 7 };
                q.hi[half * 16 + k] = hi as i8;
                low.0[half * 16 + k] = (a - hi * 128) as i8;
            }
        }
        q.xs = q.dx[1].mul_add(sums[1], q.xh[0]);
        // SAFETY: the caller of a `quantise` function gives room for each block of the row.
        unsafe {
            *out.blocks.add(b * out.step) = q;
            if !out.lo.is_null() {
                *out.lo.add(b * out.step) = low;
            }
        }
    }
}

/// # Safety
/// `out.blocks` has room for the row's blocks; `out.lo` is null.
pub(crate) unsafe fn quantise8(x: &[f32], out: &RowOut) {
    quantise(x, 127.0, &RowOut { blocks: out.blocks, lo: std::ptr::null_mut(), step: out.step });
}

/// # Safety
/// `out.blocks` and `out.lo` have room for the row's blocks.
pub(crate) unsafe fn quantise16(x: &[f32], out: &RowOut) {
    quantise(x, 16256.0, out);
}

/// A quantiser compiled for an instruction set.
struct Quantise<'a> {
    x: &'a [f32],
    max: f32,
    out: &'a RowOut,
}

impl Body for Quantise<'_> {
    #[inline(always)]
    unsafe fn body(&mut self) {
        quantise(self.x, self.max, self.out);
    }
}

/// [`quantise8`] with the vectors of V: the same operations, which the compiler spreads over lanes.
///
/// # Safety
/// As [`quantise8`]; the CPU has the instruction set.
pub(crate) unsafe fn quantise8_with<V: Simd>(x: &[f32], out: &RowOut) {
    let out = &RowOut { blocks: out.blocks, lo: std::ptr::null_mut(), step: out.step };
    // SAFETY: the caller's promise.
    unsafe { V::run(&mut Quantise { x, max: 127.0, out }) }
}

/// [`quantise16`] with the vectors of V.
///
/// # Safety
/// As [`quantise16`]; the CPU has the instruction set.
pub(crate) unsafe fn quantise16_with<V: Simd>(x: &[f32], out: &RowOut) {
    // SAFETY: the caller's promise.
    unsafe { V::run(&mut Quantise { x, max: 16256.0, out }) }
}
