//! Products with many columns: bands of rows are unpacked once, into panels, and multiplied with all columns.

#![allow(clippy::needless_range_loop, reason = "tiles are indexed by constants, to become registers")]

use std::cell::RefCell;
use std::marker::PhantomData;

use super::Strip;
use super::pairs::{PairBlock, PairLo, Pairs};
use super::simd::{Body, RowBlock, Shape, Simd, Sink, Unpack};
use super::source::{INTERLEAVED, Source};
use super::strip::{Band, Dot, Prefetch, bands};
use crate::act::{LoBlock, QBlock, TILE};

/// Bytes to prefetch ahead in one stream, while panels are filled.
const STREAM_AHEAD: usize = 6 << 10;

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

/// The kernels of a product by panels, and their sizes.
pub(super) struct PanelSteps {
    /// Rows of a band.
    pub rows: usize,
    /// Bytes of a block of a panel.
    pub block: usize,
    /// Blocks of a unit.
    pub blocks: usize,
    /// As [`Simd::SHARED`].
    pub shared: usize,
    /// Unpacks some units of a band to where there is room for them.
    pub fill: unsafe fn(&Strip<'_>, &Band, &std::ops::Range<usize>, *mut u8),
    pub multiply: unsafe fn(&Strip<'_>, &Filled<'_>, &mut Pairs),
}

pub(super) unsafe fn fill<V: Simd, F: Unpack, R: Source<V>>(
    s: &Strip<'_>,
    b: &Band,
    units: &std::ops::Range<usize>,
    out: *mut u8,
) {
    // SAFETY: a band of the strip; the CPU has V's instruction set; rows have these units, and `out` has room for them.
    unsafe {
        let (mut rows, mut fine) = R::of_band(s, b);
        rows.advance(units.start * F::BYTES);
        fine.advance(units.start * F::FINE);
        V::run(&mut Fill::<V, F, R> { rows, fine, units: units.len(), out, format: PhantomData });
    }
}

pub(super) unsafe fn panels(s: &Strip<'_>, steps: &PanelSteps) {
    let &PanelSteps { rows, block, blocks, shared, fill, multiply } = steps;
    let units = s.x.blocks() / blocks;
    if units == 0 {
        for row in s.rows.clone() {
            // SAFETY: a row of the strip.
            (0..s.x.rows()).for_each(|token| unsafe { s.store(token, row, 0.0) });
        }
        return;
    }
    let bands: Vec<Band> = bands(s, rows).collect();
    // Columns are cut only if not even one band's panel fits.
    let units_at_once = units.min((SCRATCH / (block * blocks)).max(1));
    let panel = units_at_once * blocks * block;
    // Bands share a pass over the columns, so that a tile of columns is read from L1 for all but the first. With one tile
    // there is nothing to share, and one panel at a time stays closer.
    let at_once = if s.x.tiles() == 1 { 1 } else { (shared / panel).clamp(1, bands.len().max(1)) };
    SCRATCH_OF_THREAD.with_borrow_mut(|Scratch { panels, pairs }| {
        let lines = (panel * at_once).div_ceil(64);
        if panels.len() < lines {
            panels.resize(lines, Line([0; 64]));
        }
        pairs.forget();
        let scratch: *mut u8 = panels.as_mut_ptr().cast();
        for bands in bands.chunks(at_once) {
            for first in (0..units).step_by(units_at_once) {
                let part = first..first + units_at_once.min(units - first);
                for (i, b) in bands.iter().enumerate() {
                    // SAFETY: rows have `units` units, and a panel has room for `units_at_once`.
                    unsafe { fill(s, b, &part, scratch.wrapping_add(i * panel)) };
                }
                let filled = Filled { bands, panels: scratch, panel, part, units, blocks };
                // SAFETY: the panels have just been filled.
                unsafe { multiply(s, &filled, pairs) };
            }
        }
    });
}

/// Panels of some bands, which hold units `part` of `units`.
pub(super) struct Filled<'a> {
    bands: &'a [Band],
    panels: *const u8,
    /// Bytes of each.
    panel: usize,
    part: std::ops::Range<usize>,
    units: usize,
    /// Blocks of a unit.
    blocks: usize,
}

/// Multiplies panels with all columns.
pub(super) unsafe fn multiply<V: Simd, S: Shape, const P16: bool>(
    s: &Strip<'_>,
    filled: &Filled<'_>,
    pairs: &mut Pairs,
) {
    let &Filled { bands, panels, panel, ref part, units, blocks } = filled;
    let first = part.start * blocks;
    let width = if P16 { V::COLS / 2 } else { V::COLS };
    for tile in 0..s.x.tiles() {
        let tokens = s.x.tile(tile);
        if V::PAIRS {
            pairs.lay(s, tile, first..part.end * blocks);
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
                    blocks: part.len() * blocks,
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
                        1 => V::tile::<S, 1, P16>(at, out),
                        2 => V::tile::<S, 2, P16>(at, out),
                        3 => V::tile::<S, 3, P16>(at, out),
                        4 => V::tile::<S, 4, P16>(at, out),
                        5 if V::COLS > 4 && !P16 => V::tile::<S, 5, P16>(at, out),
                        6 if V::COLS > 4 && !P16 => V::tile::<S, 6, P16>(at, out),
                        7 if V::COLS > 4 && !P16 => V::tile::<S, 7, P16>(at, out),
                        8 if V::COLS > 4 && !P16 => V::tile::<S, 8, P16>(at, out),
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
