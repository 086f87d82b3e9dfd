//! The oracle: the reduction orders of `ARCHITECTURE.md`, written down as plainly as possible.

use super::{MatTable, StripFn};
use crate::act::{LoBlock, QBlock};
use crate::formats::Quantised;
use crate::matmul::{Strip, quantise};

pub(crate) static TABLE: MatTable = MatTable {
    band: 1,
    strip: |format, _| -> StripFn { if format.is_quantised() { strip_quantised } else { strip_float } },
    quantise8: quantise::quantise8,
    quantise16: quantise::quantise16,
};

/// One dot product of a quantised row with a token. Block `b` of the token is `x[b * step]`; `lo` is empty for Q8.
fn dot_quantised(
    f: &Quantised,
    (row, fine): (&[u8], &[u8]),
    x: &[QBlock],
    lo: &[LoBlock],
    step: usize,
    nb: usize,
) -> f32 {
    let mut acc = 0.0f32;
    for b in 0..nb {
        let w = (f.unpack32)(row, fine, b);
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
        let (row, fine) = s.w.row_planes(r);
        for token in 0..s.x.rows() {
            let (x, lo, step) = s.token(token);
            let y = dot_quantised(f, (&row, fine), x, lo, step, s.x.blocks());
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
        s.w.format().decode_row(&s.w.row_planes(r).0, &mut row[..s.w.cols()]);
        for token in 0..s.x.rows() {
            let y = dot_float(&row, s.x.float_row(token));
            // SAFETY: `r` is a row of the strip and `token` a row of the activations.
            unsafe { s.store(token, r, y) };
        }
    }
}
