//! A strip of a product with quantised weights, for any instruction set and format.
//!
//! ```text
//! few columns:   for each band of rows: walk its bytes once; unpack in registers, multiply with all columns
//! many columns:  for some bands: unpack into panels (in L2); for each tile of columns (in L1), for each panel: multiply
//! ```
//!
//! Both end in [`Dot`], which holds the reduction order.

#![allow(clippy::needless_range_loop, reason = "tiles are indexed by constants, to become registers")]

use std::marker::PhantomData;

use super::panels::{PanelSteps, fill, multiply, panel_block, panels};
use super::simd::{Body, Shape, Simd, Sink, Unpack, start};
use super::source::Source;
use super::{Precision, Strip};
use crate::act::{LoBlock, QBlock, TILE};

/// Lines to prefetch with each block, evenly: a burst of them would fill the queue of misses.
#[derive(Clone, Copy)]
pub(super) struct Prefetch {
    pub far: *const u8,
    /// How much less far to ask again.
    pub near: usize,
    pub lines: usize,
    pub step: usize,
}

impl Prefetch {
    /// For rows that begin at `first`. Rows are many short streams that no hardware prefetcher follows; what comes next is one long one. The
    /// queue that far prefetches wait in drops some when it is full (a third, measured), so lines are asked for again, closer, but still a
    /// band away: a line that was dropped comes from memory then. Asking the second time for the nearest cache, which has few slots for lines
    /// under way, was slower where memory is fast (benches/record/2026-11-30-prefetch.md).
    #[inline(always)]
    fn of(first: *const u8, band: usize, unit: usize, blocks: usize) -> Prefetch {
        let far = (2 * band).max(AHEAD);
        Prefetch {
            far: first.wrapping_add(far),
            near: far - band.max(NEAR),
            lines: unit.div_ceil(64 * blocks),
            step: unit / blocks,
        }
    }

    pub const NONE: Prefetch = Prefetch { far: std::ptr::null(), near: 0, lines: 0, step: 0 };

    /// Asks for the share of block `k` of a unit.
    #[inline(always)]
    pub unsafe fn ask<V: Simd>(&self, k: usize) {
        for i in 0..self.lines {
            let line = self.far.wrapping_add(k * self.step + 64 * i);
            // SAFETY: the caller's promise, that the CPU has the instruction set; no address is read.
            unsafe {
                V::prefetch(line);
                V::prefetch_again(line.wrapping_sub(self.near));
            }
        }
    }

    /// Goes on by some blocks.
    #[inline(always)]
    pub fn advance(&mut self, blocks: usize) {
        self.far = self.far.wrapping_add(blocks * self.step);
    }
}

/// Multiplies blocks of rows with N columns, in registers.
pub(super) struct Dot<V: Simd, S, const N: usize, const P16: bool> {
    pub acc: [V::F; N],
    /// What `dot` left for `add`.
    t: [[V::F; N]; 4],
    /// The first block of the unit of the first column; other columns follow it.
    x: *const QBlock,
    /// Q16 only.
    lo: *const LoBlock,
    /// Distance to the next block of a column.
    step: usize,
    /// Of each plane.
    prefetch: [Prefetch; 2],
    shape: PhantomData<S>,
}

impl<V: Simd, S: Shape, const N: usize, const P16: bool> Dot<V, S, N, P16> {
    #[inline(always)]
    pub unsafe fn new(acc: [V::F; N], x: *const QBlock, lo: *const LoBlock, step: usize) -> Self {
        // SAFETY: the caller's promise.
        let t = unsafe { [[V::zero_f(); N]; 4] };
        Dot { acc, t, x, lo, step, prefetch: [Prefetch::NONE; 2], shape: PhantomData }
    }
}

impl<V: Simd, S: Shape, const N: usize, const P16: bool> Sink<V> for Dot<V, S, N, P16> {
    #[inline(always)]
    unsafe fn dot(&mut self, k: usize, w: [V::I; 8], s: [V::F; 2]) {
        // SAFETY: the caller's promise; `x` and `lo` have N blocks at each step of the unit.
        unsafe {
            let t = &mut self.t[k % 4];
            let x = self.x.wrapping_add(k * self.step);
            let lo = self.lo.wrapping_add(k * self.step);
            self.prefetch[0].ask::<V>(k);
            self.prefetch[1].ask::<V>(k);
            for half in 0..2 {
                let w = [w[half * 4], w[half * 4 + 1], w[half * 4 + 2], w[half * 4 + 3]];
                for j in 0..N {
                    let x = &*x.add(j);
                    let hi = x.hi.as_ptr().add(half * 16);
                    let mut i = start::<V, S>(x, half);
                    if P16 {
                        let lo = (*lo.add(j)).0.as_ptr().add(half * 16);
                        let low = V::dot16(i, &w, lo, S::MAX);
                        i = V::add(V::shl(V::dot16(V::splat(0), &w, hi, S::MAX), 7), low);
                    } else {
                        i = V::dot16(i, &w, hi, S::MAX);
                    }
                    let mut f = V::to_f32(i);
                    if S::SCALED {
                        f = V::mul(s[half], f);
                    }
                    t[j] = if half == 0 { V::mul_dx(f, x, half) } else { V::fma_dx(f, x, half, t[j]) };
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn add(&mut self, k: usize, d: V::F, m: [V::F; 2]) {
        // SAFETY: as for `dot`.
        unsafe {
            let x = self.x.wrapping_add(k * self.step);
            for j in 0..N {
                let x = &*x.add(j);
                let mut acc = V::fma(d, self.t[k % 4][j], self.acc[j]);
                if S::MINS == 1 {
                    acc = V::fma_xs(m[0], x, acc);
                }
                if S::MINS == 2 {
                    acc = V::fma_xh(m[0], x, 0, acc);
                    acc = V::fma_xh(m[1], x, 1, acc);
                }
                self.acc[j] = acc;
            }
        }
    }

    #[inline(always)]
    unsafe fn next(&mut self, blocks: usize) {
        self.x = self.x.wrapping_add(blocks * self.step);
        self.prefetch[0].advance(blocks);
        self.prefetch[1].advance(blocks);
        if P16 {
            self.lo = self.lo.wrapping_add(blocks * self.step);
        }
    }
}

/// Bytes to prefetch ahead at least: a microsecond of a fast memory.
const AHEAD: usize = 32 << 10;

/// The same, for a second time.
const NEAR: usize = 8 << 10;

/// A band of rows times N columns, straight from the bytes of the file.
struct Direct<'a, V: Simd, F, R, const N: usize, const P16: bool> {
    rows: R,
    fine: R,
    units: usize,
    x: *const QBlock,
    lo: *const LoBlock,
    step: usize,
    /// Bytes of the band, and where they would begin if rows were apart: of interleaved ones each band asks for its share.
    band: usize,
    begin: [*const u8; 2],
    out: &'a mut [[f32; 16]; TILE],
    format: PhantomData<(V, F)>,
}

impl<V: Simd, F: Unpack, R: Source<V>, const N: usize, const P16: bool> Body for Direct<'_, V, F, R, N, P16> {
    #[inline(always)]
    unsafe fn body(&mut self) {
        // SAFETY: the maker's promise: rows and columns have `units` units.
        unsafe {
            let mut rows = self.rows;
            let mut dot = Dot::<V, F::Shape, N, P16>::new([V::zero_f(); N], self.x, self.lo, self.step);
            let mut fine = self.fine;
            dot.prefetch[0] = Prefetch::of(self.begin[0], self.band, V::ROWS * F::BYTES, F::BLOCKS);
            if F::FINE > 0 {
                let band = self.units * V::ROWS * F::FINE;
                dot.prefetch[1] = Prefetch::of(self.begin[1], band, V::ROWS * F::FINE, F::BLOCKS);
            }
            for _ in 0..self.units {
                F::unit::<V, R>(&rows, &fine, &mut dot);
                dot.next(F::BLOCKS);
                rows.advance(F::BYTES);
                fine.advance(F::FINE);
            }
            for j in 0..N {
                V::store_f(self.out[j].as_mut_ptr(), dot.acc[j]);
            }
        }
    }
}

/// Rows of a strip that fill the lanes of the vectors.
pub(crate) struct Band {
    /// Row in lane 0.
    pub base: usize,
    /// Lanes to store.
    pub lanes: std::ops::Range<usize>,
    /// Distance of lanes in rows: 1, or 0 if the whole matrix has too few rows; then all lanes hold the same one.
    pub stride: usize,
}

/// Bands of a strip. The last band of a matrix overlaps the one before it instead of reading past the end.
pub(super) fn bands(s: &Strip<'_>, rows: usize) -> impl Iterator<Item = Band> {
    let all = s.w.rows();
    let (step, stride) = if all < rows { (1, 0) } else { (rows, 1) };
    s.rows.clone().step_by(step).map(move |first| {
        if stride == 0 {
            return Band { base: first, lanes: 0..1, stride };
        }
        let base = first.min(all - rows);
        Band { base, lanes: first - base..rows, stride }
    })
}

impl Strip<'_> {
    /// Stores the results of a band for some columns.
    pub(super) unsafe fn store_band(&self, b: &Band, token: usize, columns: &[[f32; 16]]) {
        for (j, column) in columns.iter().enumerate() {
            for lane in b.lanes.clone() {
                // SAFETY: the lanes of a band are rows of the strip; the caller vouches for the tokens.
                unsafe { self.store(token + j, b.base + lane, column[lane]) };
            }
        }
    }
}

/// Computes a strip of a product with quantised weights of format F, whose rows lie as R says.
///
/// # Safety
/// The CPU has V's instruction set; the job of the strip has been checked.
pub(crate) unsafe fn strip<V, F, R, const P16: bool>(s: &Strip<'_>)
where
    V: Simd,
    F: Unpack,
    R: Source<V::Few> + Source<V::Many>,
{
    debug_assert_eq!(P16, s.precision == Precision::Q16);
    let few = !(V::FEW_THROUGH_PANELS && <R as Source<V::Few>>::ONE_STREAM);
    let band: BandFn = match s.x.rows() {
        0 => return,
        1 if few => direct::<V::Few, F, R, 1, P16>,
        2 if few => direct::<V::Few, F, R, 2, P16>,
        // With two planes a column costs twice as much, and unpacking once pays earlier.
        3 if few && V::DIRECT >= 4 && !P16 => direct::<V::Few, F, R, 3, P16>,
        4 if few && V::DIRECT >= 4 && !P16 => direct::<V::Few, F, R, 4, P16>,
        _ => {
            let steps = PanelSteps {
                rows: V::Many::ROWS,
                block: panel_block::<V::Many, F::Shape>(),
                blocks: F::BLOCKS,
                shared: V::Many::SHARED,
                fill: fill::<V::Many, F, R>,
                multiply: multiply::<V::Many, F::Shape, P16>,
            };
            // SAFETY: the caller's promise.
            return unsafe { panels(s, &steps) };
        }
    };
    // SAFETY: the caller's promise.
    unsafe { each_band(s, V::Few::ROWS, band) }
}

/// The products of a band, into as many columns as there are.
type BandFn = unsafe fn(&Strip<'_>, &Band, &mut [[f32; 16]; TILE]);

/// What is the same for all formats is there once: the code around the kernels would otherwise be a fifth of them.
unsafe fn each_band(s: &Strip<'_>, rows: usize, product: BandFn) {
    for b in bands(s, rows) {
        let mut out = [[0.0; 16]; TILE];
        // SAFETY: the caller's promise; bands stay inside the matrix.
        unsafe {
            product(s, &b, &mut out);
            s.store_band(&b, 0, &out[..s.x.rows()]);
        }
    }
}

unsafe fn direct<V: Simd, F: Unpack, R: Source<V>, const N: usize, const P16: bool>(
    s: &Strip<'_>,
    b: &Band,
    out: &mut [[f32; 16]; TILE],
) {
    let (x, lo, step) = s.token(0);
    // SAFETY: a band of the strip; the CPU has V's instruction set.
    let (rows, fine) = unsafe { R::of_band(s, b) };
    let (low, second) = s.w.planes_from(b.base);
    let mut body = Direct::<V, F, R, N, P16> {
        rows,
        fine,
        units: s.x.blocks() / F::BLOCKS,
        x: x.as_ptr(),
        lo: lo.as_ptr(),
        step,
        band: V::ROWS * s.w.row_bytes(),
        begin: [low.as_ptr(), second.as_ptr()],
        out,
        format: PhantomData,
    };
    // SAFETY: a row has `blocks / BLOCKS` units, so do the columns.
    unsafe { V::run(&mut body) }
}
