//! Token rows, prepared once for all matrices that read them.
//!
//! Quantised activations lie in *tiles* of up to [`TILE`] tokens: for each 32 columns, one cache line per token of the
//! tile. So a kernel that works on some columns for all tokens of a tile walks through memory in order, with one pointer.

use std::ops::Range;

use crate::isa::Kernels;
use crate::matmul::Precision;
use crate::matrix::Matrix;
use crate::parallel::Parallel;

/// Tokens per tile: as many columns as the register tiles of the kernels have.
pub(crate) const TILE: usize = 8;

/// 32 quantised activations of one token: one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct QBlock {
    /// `x[k] = dx[k / 16] * a[k]`; of Q16 the upper part, `a = 128 * hi + lo`.
    pub hi: [i8; 32],
    /// Scale of each half.
    pub dx: [f32; 2],
    /// -64 times the sum of `a` over each half: what an accumulator starts from if weights are stored 64 too large, so
    /// that they are unsigned.
    pub bias64: [i32; 2],
    /// `fma(dx1, f32(sum a1), dx0 * f32(sum a0))`, which offsets `m` of 32 weights are multiplied with.
    pub xs: f32,
    /// `dx * f32(sum a)` of each half, which offsets of 16 weights are multiplied with.
    pub xh: [f32; 2],
    pub _pad: u32,
}

const _: () = assert!(size_of::<QBlock>() == 64);

/// Lower part of 32 activations of Q16, in -64..=63.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
pub(crate) struct LoBlock(pub [i8; 32]);

const ZERO: QBlock = QBlock { hi: [0; 32], dx: [0.0; 2], bias64: [0; 2], xs: 0.0, xh: [0.0; 2], _pad: 0 };

/// Which forms of the activations the matrices need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// f32, for float formats.
    pub f32: bool,
    /// 8 bits in groups of 16.
    pub q8: bool,
    /// 16 bits in groups of 16.
    pub q16: bool,
}

impl Need {
    /// What these products need.
    pub fn of(products: &[(&Matrix<'_>, Precision)]) -> Need {
        let mut need = Need::default();
        for (w, precision) in products {
            match (w.format().is_quantised(), precision) {
                (false, _) => need.f32 = true,
                (true, Precision::Q8) => need.q8 = true,
                (true, Precision::Q16) => need.q16 = true,
            }
        }
        need
    }

    /// Both needs together.
    pub fn and(self, other: Need) -> Need {
        Need { f32: self.f32 || other.f32, q8: self.q8 || other.q8, q16: self.q16 || other.q16 }
    }
}

/// Quantised rows of one precision.
#[derive(Debug, Default)]
pub(crate) struct Quantised {
    pub blocks: Vec<QBlock>,
    /// Empty for Q8.
    pub lo: Vec<LoBlock>,
}

/// Rows of activations in the forms that were asked for. The buffer is reused: it grows when a `set` needs more than any
/// before.
#[derive(Debug, Default)]
pub struct Activations {
    rows: usize,
    cols: usize,
    have: Need,
    /// Where each group of rows starts, and the end.
    starts: Vec<usize>,
    /// `[row][cols padded with zeros to 16]`
    float: Vec<f32>,
    q8: Quantised,
    q16: Quantised,
}

/// Columns of a float row: whole vectors of 16.
fn padded(cols: usize) -> usize {
    cols.next_multiple_of(16)
}

impl Activations {
    /// A buffer with room for all three forms. Use [`Activations::default`] and let `set` grow only what is needed if
    /// one form is enough.
    pub fn with_capacity(max_rows: usize, max_cols: usize) -> Self {
        let mut a = Self::default();
        a.grow(max_rows, max_cols, Need { f32: true, q8: true, q16: true });
        a
    }

    /// Bytes that [`Activations::with_capacity`] takes; `usize::MAX` if that overflows.
    pub fn bytes(max_rows: usize, max_cols: usize) -> usize {
        Self::bytes_for(max_rows, max_cols, Need { f32: true, q8: true, q16: true })
    }

    /// Bytes that a buffer has after `set` with at most these rows, columns and needs.
    pub fn bytes_for(max_rows: usize, max_cols: usize, need: Need) -> usize {
        let per_block = need.f32 as usize * 128 + need.q8 as usize * 64 + need.q16 as usize * 96;
        max_cols.div_ceil(32).saturating_mul(per_block).saturating_mul(max_rows)
    }

    /// Rows of the last `set`.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns of the last `set`.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Forms that the last `set` prepared.
    pub fn have(&self) -> Need {
        self.have
    }

    fn grow(&mut self, rows: usize, cols: usize, need: Need) {
        let blocks = cols.div_ceil(32) * rows;
        fn at_least<T: Copy>(v: &mut Vec<T>, n: usize, zero: T) {
            if v.len() < n {
                v.reserve_exact(n - v.len());
                v.resize(n, zero);
            }
        }
        if need.f32 {
            at_least(&mut self.float, padded(cols) * rows, 0.0);
        }
        if need.q8 {
            at_least(&mut self.q8.blocks, blocks, ZERO);
        }
        if need.q16 {
            at_least(&mut self.q16.blocks, blocks, ZERO);
            at_least(&mut self.q16.lo, blocks, LoBlock([0; 32]));
        }
    }

    /// Prepares `rows` rows of `cols` values, `x[row * cols + col]`, as one group.
    ///
    /// # Panics
    /// If `x` is shorter than that: a bug of the caller.
    pub fn set(&mut self, k: &Kernels, par: &dyn Parallel, x: &[f32], rows: usize, cols: usize, need: Need) {
        assert!(x.len() >= rows * cols, "{} values are no {rows} rows of {cols}", x.len());
        self.fill(k, par, (x, cols), |row| row, std::iter::once(rows), need);
    }

    /// Prepares the rows of `x` (of `cols` values each) that `index` names, in groups of the given sizes: the tokens of one
    /// expert after those of another. Each group is the activations of a product of its own, [`Activations::group`].
    ///
    /// # Panics
    /// If there is no such row, or the sizes do not add up to the rows: bugs of the caller.
    pub fn set_groups(
        &mut self,
        k: &Kernels,
        par: &dyn Parallel,
        (x, cols): (&[f32], usize),
        index: &[u32],
        sizes: impl Iterator<Item = usize>,
        need: Need,
    ) {
        self.fill(k, par, (x, cols), |row| index[row] as usize, sizes, need);
        assert_eq!(self.rows, index.len(), "rows of all groups");
    }

    fn fill(
        &mut self,
        k: &Kernels,
        par: &dyn Parallel,
        (x, cols): (&[f32], usize),
        source: impl Fn(usize) -> usize + Sync,
        sizes: impl Iterator<Item = usize>,
        need: Need,
    ) {
        self.starts.clear();
        self.starts.push(0);
        let mut rows = 0;
        for size in sizes {
            rows += size;
            self.starts.push(rows);
        }
        self.grow(rows, cols, need);
        (self.rows, self.cols, self.have) = (rows, cols, need);
        let float = Shared(self.float.as_mut_ptr());
        let q8 = Shared(self.q8.blocks.as_mut_ptr());
        let q16 = Shared(self.q16.blocks.as_mut_ptr());
        let lo = Shared(self.q16.lo.as_mut_ptr());
        let starts = &self.starts;
        let nb = cols.div_ceil(32);
        let one = |row: usize, group: usize| {
            let source = source(row);
            let x = &x[source * cols..(source + 1) * cols];
            if need.f32 {
                let p = padded(cols);
                // SAFETY: `grow` made room for `rows` rows of `p`; each row is written by one task only.
                let out = unsafe { std::slice::from_raw_parts_mut(float.at(row * p), p) };
                out[..cols].copy_from_slice(x);
                out[cols..].fill(0.0);
            }
            let first = starts[group];
            let (at, step) = place(row - first, starts[group + 1] - first, nb);
            let at = first * nb + at;
            let mut out = RowOut { blocks: std::ptr::null_mut(), lo: std::ptr::null_mut(), step };
            if need.q8 {
                // SAFETY: the blocks of a group begin after those of the rows before it, and `place` stays below the
                // group's rows times `nb`: in all below `rows * nb`, the number of blocks that `grow` made. Blocks of
                // different rows are distinct. The kernel runs on a machine that has its instructions.
                unsafe {
                    out.blocks = q8.at(at);
                    (k.mat.quantise8)(x, &out);
                }
            }
            if need.q16 {
                // SAFETY: as above, for both arrays.
                unsafe {
                    out.blocks = q16.at(at);
                    out.lo = lo.at(at);
                    (k.mat.quantise16)(x, &out);
                }
            }
        };
        // One row is too little work to hand to another thread.
        let per_task = (8192 / cols.max(1)).clamp(1, 64);
        let tasks = rows.div_ceil(per_task);
        let task = |t: usize| {
            let mut group = starts.partition_point(|&start| start <= t * per_task) - 1;
            for row in t * per_task..rows.min((t + 1) * per_task) {
                while row >= starts[group + 1] {
                    group += 1;
                }
                one(row, group);
            }
        };
        if tasks <= 1 { task(0) } else { par.run(tasks, &task) }
    }

    /// All rows.
    ///
    /// # Panics
    /// If the last call was [`Activations::set_groups`] with more than one group: a bug of the caller.
    pub fn all(&self) -> ActRows<'_> {
        assert!(self.starts.len() <= 2, "one group of rows");
        ActRows { act: self, first: 0, rows: self.rows }
    }

    /// The rows of one group.
    ///
    /// # Panics
    /// If there is no such group: a bug of the caller.
    pub fn group(&self, i: usize) -> ActRows<'_> {
        let (first, end) = (self.starts[i], self.starts[i + 1]);
        ActRows { act: self, first, rows: end - first }
    }
}

/// Rows of [`Activations`] that a product reads.
#[derive(Clone, Copy, Debug)]
pub struct ActRows<'a> {
    act: &'a Activations,
    first: usize,
    rows: usize,
}

impl<'a> ActRows<'a> {
    /// How many.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Values per row.
    pub fn cols(&self) -> usize {
        self.act.cols
    }

    /// Forms that were prepared.
    pub fn have(&self) -> Need {
        self.act.have
    }

    /// All rows as f32, and the distance from one to the next.
    pub(crate) fn float_rows(&self) -> (&'a [f32], usize) {
        let p = padded(self.act.cols);
        (&self.act.float[self.first * p..], p)
    }

    /// Row `i` as f32, padded with zeros to whole vectors.
    pub(crate) fn float_row(&self, i: usize) -> &'a [f32] {
        let (rows, p) = self.float_rows();
        &rows[i * p..(i + 1) * p]
    }

    /// Blocks from the first row on, and their lower parts (none for Q8).
    pub(crate) fn quantised(&self, precision: Precision) -> (&'a [QBlock], &'a [LoBlock]) {
        let q = match precision {
            Precision::Q8 => &self.act.q8,
            Precision::Q16 => &self.act.q16,
        };
        let at = self.first * self.blocks();
        (&q.blocks[at..], q.lo.get(at..).unwrap_or(&[]))
    }

    /// 32-blocks per row.
    pub(crate) fn blocks(&self) -> usize {
        self.act.cols.div_ceil(32)
    }

    /// Rows of tile `t`.
    pub(crate) fn tile(&self, t: usize) -> Range<usize> {
        t * TILE..self.rows.min((t + 1) * TILE)
    }

    /// Number of tiles.
    pub(crate) fn tiles(&self) -> usize {
        self.rows.div_ceil(TILE)
    }
}

/// Where the blocks of a row of a group lie: index of the first, and distance from one to the next.
pub(crate) fn place(row: usize, rows: usize, nb: usize) -> (usize, usize) {
    let first = row / TILE * TILE;
    let width = TILE.min(rows - first);
    (first * nb + row % TILE, width)
}

/// Where to write a quantised row: block `b` goes to `blocks[b * step]` (and `lo[b * step]`).
pub(crate) struct RowOut {
    pub blocks: *mut QBlock,
    pub lo: *mut LoBlock,
    pub step: usize,
}

/// A pointer that tasks share; each writes its own part.
struct Shared<T>(*mut T);

impl<T> Shared<T> {
    /// # Safety
    /// `i` must be inside the allocation.
    unsafe fn at(&self, i: usize) -> *mut T {
        // SAFETY: the caller's promise.
        unsafe { self.0.add(i) }
    }
}

// SAFETY: only disjoint parts are written, as argued where `at` is used.
unsafe impl<T> Sync for Shared<T> {}
