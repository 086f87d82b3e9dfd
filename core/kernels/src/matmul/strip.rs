//! A strip of a product with quantised weights, for any instruction set and format.
//!
//! ```text
//! few columns:   for each band of rows: walk its bytes once; unpack in registers, multiply with all columns
//! many columns:  for some bands: unpack into panels (in L2); for each tile of columns (in L1), for each panel: multiply
//! ```
//!
//! Both end in [`Dot`], which holds the reduction order.

#![allow(clippy::needless_range_loop, reason = "tiles are indexed by constants, to become registers")]

use std::cell::RefCell;
use std::marker::PhantomData;

use super::pairs::{PairBlock, PairLo, Pairs};
use super::simd::{Body, RowBlock, Shape, Simd, Sink, Unpack, start};
use super::source::{INTERLEAVED, Source};
use super::{Precision, Strip};
use crate::act::{LoBlock, QBlock, TILE};

/// Lines to prefetch with each block, evenly: a burst of them would fill the queue of misses.
#[derive(Clone, Copy)]
struct Prefetch {
    far: *const u8,
    /// How much less far to ask again.
    near: usize,
    lines: usize,
    step: usize,
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

    const NONE: Prefetch = Prefetch { far: std::ptr::null(), near: 0, lines: 0, step: 0 };

    /// Asks for the share of block `k` of a unit.
    #[inline(always)]
    unsafe fn ask<V: Simd>(&self, k: usize) {
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
    fn advance(&mut self, blocks: usize) {
        self.far = self.far.wrapping_add(blocks * self.step);
    }
}

/// Multiplies blocks of rows with N columns, in registers.
struct Dot<V: Simd, S, const N: usize, const P16: bool> {
    acc: [V::F; N],
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
    unsafe fn new(acc: [V::F; N], x: *const QBlock, lo: *const LoBlock, step: usize) -> Self {
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

/// Bytes to prefetch ahead in one stream, while panels are filled.
const STREAM_AHEAD: usize = 6 << 10;

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

/// Bytes of a block of a panel: `n`, then `d`, `s`, `m` as the shape has them.
pub(crate) const fn panel_block<V: Simd, S: Shape>() -> usize {
    (8 + 1 + 2 * S::SCALED as usize + S::MINS) * V::ROWS * 4
}

/// Unpacks a band of rows into a panel.
struct Fill<V: Simd, F, R> {
    rows: R,
    fine: R,
    units: usize,
    out: *mut u8,
    format: PhantomData<(V, F)>,
}

struct Writer<V, S> {
    out: *mut u8,
    prefetch: Prefetch,
    shape: PhantomData<(V, S)>,
}

impl<V: Simd, S: Shape> Sink<V> for Writer<V, S> {
    #[inline(always)]
    unsafe fn dot(&mut self, k: usize, n: [V::I; 8], s: [V::F; 2]) {
        // SAFETY: the maker of `Fill` gives room for all blocks.
        unsafe {
            self.prefetch.ask::<V>(k);
            let size = V::ROWS * 4;
            let p = self.out.add(k * panel_block::<V, S>());
            for i in 0..8 {
                // Panels are read more often than they are written.
                let n = if <V::Stored<S> as Shape>::ZERO == S::ZERO {
                    n[i]
                } else {
                    V::less(n[i], S::ZERO as u8)
                };
                V::store(p.add(i * size), n);
            }
            if S::SCALED {
                V::store_f(p.add(9 * size).cast(), s[0]);
                V::store_f(p.add(10 * size).cast(), s[1]);
            }
        }
    }

    #[inline(always)]
    unsafe fn add(&mut self, k: usize, d: V::F, m: [V::F; 2]) {
        // SAFETY: as for `dot`.
        unsafe {
            let size = V::ROWS * 4;
            let p = self.out.add(k * panel_block::<V, S>() + 8 * size);
            V::store_f(p.cast(), d);
            for i in 0..S::MINS {
                V::store_f(p.add((1 + 2 * S::SCALED as usize + i) * size).cast(), m[i]);
            }
        }
    }

    #[inline(always)]
    unsafe fn next(&mut self, blocks: usize) {
        self.out = self.out.wrapping_add(blocks * panel_block::<V, S>());
        self.prefetch.advance(blocks);
    }
}

impl<V: Simd, F: Unpack, R: Source<V>> Body for Fill<V, F, R> {
    #[inline(always)]
    unsafe fn body(&mut self) {
        let (mut rows, mut fine) = (self.rows, self.fine);
        // Sixteen streams are enough to keep memory busy; one is not.
        let prefetch = if R::ONE_STREAM {
            let (far, unit) = (rows.first().wrapping_add(STREAM_AHEAD), INTERLEAVED * F::BYTES);
            Prefetch {
                far,
                near: STREAM_AHEAD / 2,
                lines: unit.div_ceil(64 * F::BLOCKS),
                step: unit / F::BLOCKS,
            }
        } else {
            Prefetch::NONE
        };
        let mut writer = Writer::<V, F::Shape> { out: self.out, prefetch, shape: PhantomData };
        for _ in 0..self.units {
            // SAFETY: the maker's promise: rows have `units` units, `out` has room for them.
            unsafe {
                F::unit::<V, R>(&rows, &fine, &mut writer);
                writer.next(F::BLOCKS);
            }
            rows.advance(F::BYTES);
            fine.advance(F::FINE);
        }
    }
}

/// A panel times N columns.
pub(crate) struct Panel<'a, V: Simd, S, const N: usize, const P16: bool> {
    at: TileAt,
    /// Sums so far, in and out.
    sums: &'a mut [[f32; 16]; TILE],
    shape: PhantomData<(V, S)>,
}

impl<'a, V: Simd, S: Shape, const N: usize, const P16: bool> Panel<'a, V, S, N, P16> {
    #[inline(always)]
    pub fn new(at: TileAt, sums: &'a mut [[f32; 16]; TILE]) -> Self {
        Panel { at, sums, shape: PhantomData }
    }
}

impl<V: Simd, S: Shape, const N: usize, const P16: bool> Body for Panel<'_, V, S, N, P16> {
    #[inline(always)]
    unsafe fn body(&mut self) {
        // SAFETY: the maker's promise: panel and columns have `blocks` blocks.
        unsafe {
            let size = V::ROWS * 4;
            let mut acc = [V::zero_f(); N];
            for j in 0..N {
                acc[j] = V::load_f(self.sums[j].as_ptr());
            }
            let mut dot = Dot::<V, V::Stored<S>, N, P16>::new(acc, self.at.x, self.at.lo, self.at.step);
            let mut p = self.at.panel;
            for _ in 0..self.at.blocks {
                let zero = V::zero_f();
                let at = |i: usize| p.add(i * size);
                let f = |i: usize| V::load_f(at(i).cast());
                let n = [
                    V::load(at(0)),
                    V::load(at(1)),
                    V::load(at(2)),
                    V::load(at(3)),
                    V::load(at(4)),
                    V::load(at(5)),
                    V::load(at(6)),
                    V::load(at(7)),
                ];
                let s = if S::SCALED { [f(9), f(10)] } else { [zero; 2] };
                let first = 9 + 2 * S::SCALED as usize;
                let m = match S::MINS {
                    0 => [zero; 2],
                    1 => [f(first), zero],
                    _ => [f(first), f(first + 1)],
                };
                dot.block(0, RowBlock { n, d: f(8), s, m });
                dot.next(1);
                p = p.add(panel_block::<V, S>());
            }
            for j in 0..N {
                V::store_f(self.sums[j].as_mut_ptr(), dot.acc[j]);
            }
        }
    }
}

/// Bytes of a panel at most, of each thread that multiplies: half of an L2 cache.
const SCRATCH: usize = 512 << 10;

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// What a thread keeps from one strip to the next.
struct Scratch {
    panels: Vec<Line>,
    pairs: Pairs,
}

thread_local! {
    static SCRATCH_OF_THREAD: RefCell<Scratch> =
        const { RefCell::new(Scratch { panels: Vec::new(), pairs: Pairs::new() }) };
}

/// Rows of a strip that fill the lanes of the vectors.
pub(crate) struct Band {
    /// Row in lane 0.
    pub base: usize,
    /// Lanes to store.
    lanes: std::ops::Range<usize>,
    /// Distance of lanes in rows: 1, or 0 if the whole matrix has too few rows; then all lanes hold the same one.
    pub stride: usize,
}

/// Bands of a strip. The last band of a matrix overlaps the one before it instead of reading past the end.
fn bands(s: &Strip<'_>, rows: usize) -> impl Iterator<Item = Band> {
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
    unsafe fn store_band(&self, b: &Band, token: usize, columns: &[[f32; 16]]) {
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
pub(crate) unsafe fn strip<V: Simd, F: Unpack, R: Source<V> + Source<V::Many>, const P16: bool>(
    s: &Strip<'_>,
) {
    debug_assert_eq!(P16, s.precision == Precision::Q16);
    // SAFETY: the caller's promise.
    unsafe {
        match s.x.rows() {
            0 => {}
            1 => direct::<V, F, R, 1, P16>(s),
            2 => direct::<V, F, R, 2, P16>(s),
            // With two planes a column costs twice as much, and unpacking once pays earlier.
            3 if V::DIRECT >= 4 && !P16 => direct::<V, F, R, 3, P16>(s),
            4 if V::DIRECT >= 4 && !P16 => direct::<V, F, R, 4, P16>(s),
            _ => panels::<V::Many, F, R, P16>(s),
        }
    }
}

unsafe fn direct<V: Simd, F: Unpack, R: Source<V>, const N: usize, const P16: bool>(s: &Strip<'_>) {
    let (x, lo, step) = s.token(0);
    for b in bands(s, V::ROWS) {
        let mut out = [[0.0; 16]; TILE];
        // SAFETY: a band of the strip; the CPU has V's instruction set.
        let (rows, fine) = unsafe { R::of_band(s, &b) };
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
            out: &mut out,
            format: PhantomData,
        };
        // SAFETY: a row has `blocks / BLOCKS` units, so do the columns; bands stay inside the matrix.
        unsafe {
            V::run(&mut body);
            s.store_band(&b, 0, &out[..N]);
        }
    }
}

unsafe fn panels<V: Simd, F: Unpack, R: Source<V>, const P16: bool>(s: &Strip<'_>) {
    let (units, block) = (s.x.blocks() / F::BLOCKS, panel_block::<V, F::Shape>());
    if units == 0 {
        for row in s.rows.clone() {
            // SAFETY: a row of the strip.
            (0..s.x.rows()).for_each(|token| unsafe { s.store(token, row, 0.0) });
        }
        return;
    }
    let bands: Vec<Band> = bands(s, V::ROWS).collect();
    // Columns are cut only if not even one band's panel fits.
    let units_at_once = units.min((SCRATCH / (block * F::BLOCKS)).max(1));
    let panel = units_at_once * F::BLOCKS * block;
    // Bands share a pass over the columns, so that a tile of columns is read from L1 for all but the first. With one tile
    // there is nothing to share, and one panel at a time stays closer.
    let at_once = if s.x.tiles() == 1 { 1 } else { (V::SHARED / panel).clamp(1, bands.len().max(1)) };
    SCRATCH_OF_THREAD.with_borrow_mut(|Scratch { panels, pairs }| {
        let lines = (panel * at_once).div_ceil(64);
        if panels.len() < lines {
            panels.resize(lines, Line([0; 64]));
        }
        pairs.forget();
        let scratch: *mut u8 = panels.as_mut_ptr().cast();
        for bands in bands.chunks(at_once) {
            for first in (0..units).step_by(units_at_once) {
                let count = units_at_once.min(units - first);
                for (i, b) in bands.iter().enumerate() {
                    // SAFETY: a band of the strip; the CPU has V's instruction set.
                    let (mut rows, mut fine) = unsafe { R::of_band(s, b) };
                    rows.advance(first * F::BYTES);
                    fine.advance(first * F::FINE);
                    let out = scratch.wrapping_add(i * panel);
                    let mut fill = Fill::<V, F, R> { rows, fine, units: count, out, format: PhantomData };
                    // SAFETY: rows have `units` units, of which `count` are left; a panel has room for `count`.
                    unsafe { V::run(&mut fill) };
                }
                let filled = Filled { bands, panels: scratch, panel, part: first..first + count, units };
                // SAFETY: the panels have just been filled.
                unsafe { multiply::<V, F, P16>(s, &filled, pairs) };
            }
        }
    });
}

/// Panels of some bands, which hold units `part` of `units`.
struct Filled<'a> {
    bands: &'a [Band],
    panels: *const u8,
    /// Bytes of each.
    panel: usize,
    part: std::ops::Range<usize>,
    units: usize,
}

/// Multiplies panels with all columns.
unsafe fn multiply<V: Simd, F: Unpack, const P16: bool>(
    s: &Strip<'_>,
    filled: &Filled<'_>,
    pairs: &mut Pairs,
) {
    let &Filled { bands, panels, panel, ref part, units } = filled;
    let first = part.start * F::BLOCKS;
    let width = if P16 { V::COLS / 2 } else { V::COLS };
    for tile in 0..s.x.tiles() {
        let tokens = s.x.tile(tile);
        if V::PAIRS {
            pairs.lay(s, tile, first..part.end * F::BLOCKS);
        }
        for (i, b) in bands.iter().enumerate() {
            for token in tokens.clone().step_by(width) {
                let n = width.min(tokens.end - token);
                let (x, lo, step) = s.token(token);
                let mut sums = [[0.0; 16]; TILE];
                if part.start > 0 {
                    for (j, sums) in sums.iter_mut().enumerate().take(n) {
                        for lane in b.lanes.clone() {
                            // SAFETY: as in `store_band`.
                            sums[lane] = unsafe { s.partial(token + j, b.base + lane) };
                        }
                    }
                }
                let (pairs, pairs_lo, pairs_step) = pairs.at(token - tokens.start);
                let at = TileAt {
                    panel: panels.wrapping_add(i * panel),
                    blocks: part.len() * F::BLOCKS,
                    x: x.as_ptr().wrapping_add(first * step),
                    lo: lo.as_ptr().wrapping_add(if P16 { first * step } else { 0 }),
                    step,
                    pairs,
                    pairs_lo,
                    pairs_step,
                };
                let out = &mut sums;
                // SAFETY: the panel holds `blocks` blocks, the columns as many from `first` on.
                unsafe {
                    match n {
                        1 => V::tile::<F::Shape, 1, P16>(at, out),
                        2 => V::tile::<F::Shape, 2, P16>(at, out),
                        3 => V::tile::<F::Shape, 3, P16>(at, out),
                        4 => V::tile::<F::Shape, 4, P16>(at, out),
                        5 if V::COLS > 4 && !P16 => V::tile::<F::Shape, 5, P16>(at, out),
                        6 if V::COLS > 4 && !P16 => V::tile::<F::Shape, 6, P16>(at, out),
                        7 if V::COLS > 4 && !P16 => V::tile::<F::Shape, 7, P16>(at, out),
                        8 if V::COLS > 4 && !P16 => V::tile::<F::Shape, 8, P16>(at, out),
                        _ => unreachable!("tiles are at most COLS wide"),
                    }
                    if part.end == units {
                        s.store_band(b, token, &sums[..n]);
                    } else {
                        s.store_partial(b, token, &sums[..n]);
                    }
                }
            }
        }
    }
}

/// A panel, and the columns to multiply it with.
#[derive(Clone, Copy)]
#[cfg_attr(not(target_arch = "aarch64"), allow(dead_code, reason = "no pairs elsewhere"))]
pub(crate) struct TileAt {
    pub panel: *const u8,
    pub blocks: usize,
    pub x: *const QBlock,
    pub lo: *const LoBlock,
    /// Distance to the next block of a column.
    pub step: usize,
    /// The same columns two by two, if [`Simd::PAIRS`]; an odd last one is its own partner.
    pub pairs: *const PairBlock,
    /// Q16 only.
    pub pairs_lo: *const PairLo,
    /// Distance to the next block of a pair.
    pub pairs_step: usize,
}

impl Strip<'_> {
    /// Reads back a sum over the first part of the columns.
    unsafe fn partial(&self, token: usize, row: usize) -> f32 {
        // SAFETY: the caller's promise, as for `store`.
        unsafe { *self.y.add(token * self.w.rows() + row) }
    }

    /// Keeps sums over a part of the columns in the place of the results.
    unsafe fn store_partial(&self, b: &Band, token: usize, columns: &[[f32; 16]]) {
        for (j, column) in columns.iter().enumerate() {
            for lane in b.lanes.clone() {
                // SAFETY: as in `store_band`.
                unsafe { *self.y.add((token + j) * self.w.rows() + b.base + lane) = column[lane] };
            }
        }
    }
}
