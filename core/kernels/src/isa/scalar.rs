//! The oracle: the reduction orders of `ARCHITECTURE.md`, written down as plainly as possible.

use super::{MatTable, StripFn};
use crate::act::{LoBlock, QBlock, RowOut};
use crate::formats::Quantised;
use crate::matmul::Strip;

pub(crate) static TABLE: MatTable = MatTable {
    band: 1,
    strip: |format, _| -> StripFn { if format.is_quantised() { strip_quantised } else { strip_float } },
    quantise8,
    quantise16,
};

/// One dot product of a quantised row with a token. Block `b` of the token is `x[b * step]`; `lo` is empty for Q8.
fn dot_quantised(f: &Quantised, row: &[u8], x: &[QBlock], lo: &[LoBlock], step: usize, nb: usize) -> f32 {
    let mut acc = 0.0f32;
    for b in 0..nb {
        let w = (f.unpack32)(row, b);
        let x = |i: usize| (&x[b * step], lo.get(b * step), i);
        let i = [0, 1].map(|half| {
            let (x, lo, half) = x(half);
            let mut sum = 0i32;
            for k in half * 16..half * 16 + 16 {
                let a = match lo {
                    None => i32::from(x.hi[k]),
                    Some(lo) => 128 * i32::from(x.hi[k]) + i32::from(lo.0[k]),
                };
                sum += i32::from(w.q[k]) * a;
            }
            sum as f32
        });
        let (x, _, _) = x(0);
        let mut t = (w.s[0] * i[0]) * x.dx[0];
        t = (w.s[1] * i[1]).mul_add(x.dx[1], t);
        acc = w.d.mul_add(t, acc);
        match f.mins {
            0 => {}
            1 => acc = w.m[0].mul_add(x.xs, acc),
            _ => {
                acc = w.m[0].mul_add(x.xh[0], acc);
                acc = w.m[1].mul_add(x.xh[1], acc);
            }
        }
    }
    acc
}

unsafe fn strip_quantised(s: &Strip<'_>) {
    let Some(f) = s.w.format().quantised() else { return };
    for r in s.rows.clone() {
        for token in 0..s.x.rows() {
            let (x, lo, step) = s.token(token);
            let y = dot_quantised(f, s.w.row(r), x, lo, step, s.x.blocks());
            // SAFETY: `r` is a row of the strip and `token` a row of the activations.
            unsafe { s.store(token, r, y) };
        }
    }
}

/// Sixteen partial sums, then a fixed tree.
pub(crate) fn dot_float(a: &[f32], b: &[f32]) -> f32 {
    let mut p = [0.0f32; 16];
    for (k, (a, b)) in a.iter().zip(b).enumerate() {
        p[k % 16] = a.mul_add(*b, p[k % 16]);
    }
    for width in [8, 4, 2, 1] {
        for i in 0..width {
            p[i] += p[i + width];
        }
    }
    p[0]
}

unsafe fn strip_float(s: &Strip<'_>) {
    let mut row = vec![0.0; s.w.cols().next_multiple_of(16)];
    for r in s.rows.clone() {
        s.w.format().decode_row(s.w.row(r), &mut row[..s.w.cols()]);
        for token in 0..s.x.rows() {
            let y = dot_float(&row, s.x.float_row(token));
            // SAFETY: `r` is a row of the strip and `token` a row of the activations.
            unsafe { s.store(token, r, y) };
        }
    }
}

/// Groups whose largest magnitude is below this become zeros: the reciprocal of their scale would overflow.
pub(crate) const TINY: f32 = 1e-30;

/// Largest magnitude of 16 values, NaN counting as larger than infinity.
fn amax(x: &[f32]) -> f32 {
    f32::from_bits(x.iter().map(|v| v.to_bits() & 0x7fff_ffff).max().unwrap_or(0))
}

/// Scale and integers of 16 values, `x = scale * a`, `a` in `-max..=max`. A group with a value that is not finite gets
/// NaN for its scale, so that the fault shows in every result.
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
        *a = (x * inverse).round_ties_even() as i32;
    }
    amax / max
}

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
