//! A strip of a product with float weights: tiles of rows x columns, sixteen partial sums for each of their dots.
//!
//! ```text
//! for some columns (in L1): for some rows: p[row][column] += w[row][16 k ..] * x[column][16 k ..]
//! ```

#![allow(clippy::needless_range_loop, reason = "tiles are indexed by constants, to become registers")]

use std::marker::PhantomData;

use super::Strip;
use super::simd::{Body, Simd};
use crate::math::{Arith, LANES, Lanes};

/// Sixteen weights of a float format.
pub(crate) trait LoadFloats {
    const BYTES: usize;
    /// # Safety
    /// `16 * BYTES` readable bytes at `p`, without alignment.
    unsafe fn load<L: Lanes>(lanes: L, p: *const u8) -> L::V;
}

pub(crate) struct LoadF32;
pub(crate) struct LoadF16;
pub(crate) struct LoadBf16;

impl LoadFloats for LoadF32 {
    const BYTES: usize = 4;
    #[inline(always)]
    unsafe fn load<L: Lanes>(lanes: L, p: *const u8) -> L::V {
        // SAFETY: the caller's promise. Files are little-endian, and so are all machines with kernels.
        lanes.load(&unsafe { p.cast::<[f32; LANES]>().read_unaligned() })
    }
}

impl LoadFloats for LoadF16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<L: Lanes>(lanes: L, p: *const u8) -> L::V {
        // SAFETY: as above.
        lanes.load_f16(&unsafe { p.cast::<[u16; LANES]>().read_unaligned() })
    }
}

impl LoadFloats for LoadBf16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<L: Lanes>(lanes: L, p: *const u8) -> L::V {
        // SAFETY: as above.
        let halves = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        let mut x = [0.0; LANES];
        for i in 0..LANES {
            x[i] = f32::from_bits(u32::from(halves[i]) << 16);
        }
        lanes.load(&x)
    }
}

struct Tile<'a, V, W, const R: usize, const C: usize> {
    /// The first row, and the distance to the next.
    w: *const u8,
    row_bytes: usize,
    /// The first column, and the distance to the next.
    x: *const f32,
    x_step: usize,
    cols: usize,
    out: &'a mut [[f32; C]; R],
    kind: PhantomData<(V, W)>,
}

impl<V: Simd, W: LoadFloats, const R: usize, const C: usize> Body for Tile<'_, V, W, R, C> {
    #[inline(always)]
    unsafe fn body(&mut self) {
        // SAFETY: the maker's promise: R rows of `cols` weights, C columns padded to whole vectors; the CPU has V.
        unsafe {
            let lanes = V::L::assume();
            let mut p = [[lanes.splat(0.0); C]; R];
            let whole = self.cols / LANES;
            for k in 0..whole {
                let mut x = [lanes.splat(0.0); C];
                for c in 0..C {
                    x[c] = LoadF32::load(lanes, self.x.add(c * self.x_step + k * LANES).cast());
                }
                for r in 0..R {
                    let w = W::load(lanes, self.w.add(r * self.row_bytes + k * LANES * W::BYTES));
                    for c in 0..C {
                        p[r][c] = lanes.fma(w, x[c], p[r][c]);
                    }
                }
            }
            let rest = self.cols % LANES;
            if rest > 0 {
                for r in 0..R {
                    let mut padded = [0u8; LANES * 4];
                    let from = self.w.add(r * self.row_bytes + whole * LANES * W::BYTES);
                    padded.as_mut_ptr().copy_from_nonoverlapping(from, rest * W::BYTES);
                    let w = W::load(lanes, padded.as_ptr());
                    for c in 0..C {
                        let x = LoadF32::load(lanes, self.x.add(c * self.x_step + whole * LANES).cast());
                        p[r][c] = lanes.fma(w, x, p[r][c]);
                    }
                }
            }
            for r in 0..R {
                for c in 0..C {
                    self.out[r][c] = lanes.sum(p[r][c]);
                }
            }
        }
    }
}

/// Computes a strip of a product with float weights.
///
/// # Safety
/// The CPU has V's instruction set; the job of the strip has been checked.
pub(crate) unsafe fn strip<V: Simd, W: LoadFloats>(s: &Strip<'_>) {
    let n = s.x.rows();
    // SAFETY: the caller's promise; tiles stay inside the strip and the columns.
    unsafe {
        if V::L::WIDE {
            let mut token = 0;
            while token + 4 <= n {
                columns::<V, W, 4, 4>(s, token);
                token += 4;
            }
            match n - token {
                1 => columns::<V, W, 8, 1>(s, token),
                2 => columns::<V, W, 4, 2>(s, token),
                3 => columns::<V, W, 4, 3>(s, token),
                _ => {}
            }
        } else {
            let mut token = 0;
            while token + 2 <= n {
                columns::<V, W, 2, 2>(s, token);
                token += 2;
            }
            if token < n {
                columns::<V, W, 4, 1>(s, token);
            }
        }
    }
}

/// All rows of the strip times C columns.
unsafe fn columns<V: Simd, W: LoadFloats, const R: usize, const C: usize>(s: &Strip<'_>, token: usize) {
    let mut row = s.rows.start;
    // SAFETY: the caller's promise.
    unsafe {
        while row + R <= s.rows.end {
            tile::<V, W, R, C>(s, row, token);
            row += R;
        }
        while row < s.rows.end {
            tile::<V, W, 1, C>(s, row, token);
            row += 1;
        }
    }
}

unsafe fn tile<V: Simd, W: LoadFloats, const R: usize, const C: usize>(
    s: &Strip<'_>,
    row: usize,
    token: usize,
) {
    let (x, x_step) = s.x.float_rows();
    let mut out = [[0.0; C]; R];
    let mut body = Tile::<V, W, R, C> {
        w: s.w.planes_from(row).0.as_ptr(),
        row_bytes: s.w.row_bytes(),
        x: x[token * x_step..].as_ptr(),
        x_step,
        cols: s.w.cols(),
        out: &mut out,
        kind: PhantomData,
    };
    // SAFETY: `row..row + R` are rows of the strip, `token..token + C` rows of the activations.
    unsafe {
        V::run(&mut body);
        for (r, out) in out.iter().enumerate() {
            for (c, &y) in out.iter().enumerate() {
                s.store(token + c, row + r, y);
            }
        }
    }
}
