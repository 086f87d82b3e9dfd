//! Columns two by two, for instructions that multiply two rows with two columns at once.
//!
//! Such instructions want eight activations of one column beside the same eight of the next. A tile of columns is brought into that order
//! once per pass over its panels: some copying for every twenty bands or so.

use std::ops::Range;

use super::{Precision, Strip};

/// 32 activations of two columns; the fields as in [`QBlock`](crate::act::QBlock), `[column]` innermost.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
#[cfg_attr(not(target_arch = "aarch64"), allow(dead_code, reason = "read by its kernels only"))]
pub(crate) struct PairBlock {
    /// For each eight: of the first column, then of the second.
    pub hi: PairLo,
    /// `[half]`
    pub dx: [[f32; 2]; 2],
    /// `[half]`
    pub xh: [[f32; 2]; 2],
    pub xs: [f32; 2],
    _pad: [u32; 6],
}

const _: () = assert!(size_of::<PairBlock>() == 128);

/// Lower parts of Q16, in the order of `hi`.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
#[cfg_attr(not(target_arch = "aarch64"), allow(dead_code, reason = "read by its kernels only"))]
pub(crate) struct PairLo(pub [[[i8; 8]; 2]; 4]);

const NO_BYTES: PairLo = PairLo([[[0; 8]; 2]; 4]);
const ZERO: PairBlock =
    PairBlock { hi: NO_BYTES, dx: [[0.0; 2]; 2], xh: [[0.0; 2]; 2], xs: [0.0; 2], _pad: [0; 6] };

/// The pairs of a tile for some blocks: `[block][pair]`.
pub(crate) struct Pairs {
    blocks: Vec<PairBlock>,
    lo: Vec<PairLo>,
    /// Pairs of the tile.
    step: usize,
    /// The tile and the blocks that are here.
    what: Option<(usize, Range<usize>)>,
}

impl Pairs {
    pub const fn new() -> Self {
        Pairs { blocks: Vec::new(), lo: Vec::new(), step: 0, what: None }
    }

    /// What is here belongs to other activations.
    pub fn forget(&mut self) {
        self.what = None;
    }

    /// Fetches the pairs of a tile of the strip's columns, unless they are here.
    pub fn lay(&mut self, s: &Strip<'_>, tile: usize, blocks: Range<usize>) {
        if self.what == Some((tile, blocks.clone())) {
            return;
        }
        let tokens = s.x.tile(tile);
        self.step = tokens.len().div_ceil(2);
        let size = self.step * blocks.len();
        if self.blocks.len() < size {
            self.blocks.resize(size, ZERO);
        }
        let lows = if s.precision == Precision::Q16 { size } else { 0 };
        if self.lo.len() < lows {
            self.lo.resize(lows, NO_BYTES);
        }
        for pair in 0..self.step {
            let first = tokens.start + 2 * pair;
            let second = (first + 1).min(tokens.end - 1);
            let ((a, a_lo, step), (b, b_lo, _)) = (s.token(first), s.token(second));
            for (i, block) in blocks.clone().enumerate() {
                let (a, b) = (&a[block * step], &b[block * step]);
                let out = i * self.step + pair;
                let each = |x: [f32; 2], y: [f32; 2]| [[x[0], y[0]], [x[1], y[1]]];
                self.blocks[out] = PairBlock {
                    hi: interleave(&a.hi, &b.hi),
                    dx: each(a.dx, b.dx),
                    xh: each(a.xh, b.xh),
                    xs: [a.xs, b.xs],
                    _pad: [0; 6],
                };
                if lows > 0 {
                    self.lo[out] = interleave(&a_lo[block * step].0, &b_lo[block * step].0);
                }
            }
        }
        self.what = Some((tile, blocks));
    }

    /// The pairs from the tile's column `column` (an even number) on, their lower parts, and the distance to the next block.
    pub fn at(&self, column: usize) -> (*const PairBlock, *const PairLo, usize) {
        let pair = column / 2;
        (self.blocks.as_ptr().wrapping_add(pair), self.lo.as_ptr().wrapping_add(pair), self.step)
    }
}

#[inline(always)]
fn interleave(a: &[i8; 32], b: &[i8; 32]) -> PairLo {
    let mut out = NO_BYTES;
    for (i, [x, y]) in out.0.iter_mut().enumerate() {
        x.copy_from_slice(&a[8 * i..8 * i + 8]);
        y.copy_from_slice(&b[8 * i..8 * i + 8]);
    }
    out
}
