//! What the matrix kernels need from an instruction set: vectors whose lanes are *rows*.
//!
//! With one row per lane every row's sum is its own lane, from the first integer to the stored result: no horizontal
//! reduction exists, the scales of many rows are decoded at once, and the order of `ARCHITECTURE.md` (blocks ascending,
//! one accumulator per row and column) falls out by itself, the same for every width. The price is a transposition of
//! 4-byte pieces while weights are loaded, about as much as the horizontal sums would cost for one column; all further
//! columns get it free.

use super::panels::{Panel, TileAt};
use super::source::{Rows, Source};
use crate::act::{QBlock, TILE};
use crate::math::Lanes;

/// Code to be compiled for an instruction set: see [`Simd::run`].
pub(crate) trait Body {
    /// # Safety
    /// As the implementation says; always `inline(always)`.
    unsafe fn body(&mut self);
}

/// Vectors of one instruction set. All functions are `inline(always)` and end up inside [`Simd::run`], which alone carries
/// the target features.
///
/// # Safety
/// Every function needs a CPU that has the instruction set; those that take pointers or [`Rows`] need the bytes that they
/// name to be readable (writable for `store`), with no alignment.
#[allow(clippy::missing_safety_doc, reason = "stated once, above")]
pub(crate) trait Simd: Copy {
    /// Lanes: a multiple of 4, at most 16.
    const ROWS: usize;
    /// Columns whose accumulators fit into registers, in a product with a panel.
    const COLS: usize;
    /// Columns up to which unpacking in registers beats a panel.
    const DIRECT: usize;
    /// Bytes of wide formats (`q` needs all 8 bits) are XORed with this on loading. 0x80 makes them unsigned, with 128
    /// for zero, where the dot product wants unsigned weights.
    const FLIP: u8;
    /// Bytes of panels that share a pass over the columns.
    const SHARED: usize = 192 << 10;
    /// Whether [`Simd::tile`] wants the columns two by two.
    const PAIRS: bool = false;
    /// `ROWS` 32-bit integers, or four bytes of each row.
    type I: Copy;
    /// `ROWS` floats.
    type F: Copy;
    /// Sixteen floats of one row, for float formats.
    type L: Lanes;
    /// What multiplies few columns: `Self`, unless another does it with the same instructions; code is not there twice then.
    type Few: Simd;
    /// Whether few columns times interleaved rows go through panels, too: slower, but less code, for processors that few have.
    const FEW_THROUGH_PANELS: bool = false;
    /// What multiplies panels: `Self`, unless that wants the bytes of weights in another order.
    type Many: Simd;
    /// The shape of weights in a panel: S, or, where signed weights cost nothing, that of q itself: ZERO 0, and MAX the largest
    /// magnitude.
    type Stored<S: Shape>: Shape;

    /// Runs `b.body()` with the instruction set enabled.
    unsafe fn run<B: Body>(b: &mut B);

    unsafe fn splat(x: u32) -> Self::I;
    unsafe fn splat_load(p: *const i32) -> Self::I;
    unsafe fn and(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn or(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn xor(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn add(a: Self::I, b: Self::I) -> Self::I;
    /// Logical shifts of 32 bits; `n` is a constant after inlining.
    unsafe fn shl(a: Self::I, n: u32) -> Self::I;
    unsafe fn shr(a: Self::I, n: u32) -> Self::I;
    /// Arithmetic shift of 32 bits.
    unsafe fn sra(a: Self::I, n: u32) -> Self::I;
    /// `(a >> n) & mask` in each byte, where no bit under the mask comes from another byte; negative n shifts left.
    #[inline(always)]
    unsafe fn field(a: Self::I, n: i32, mask: u8) -> Self::I {
        // SAFETY: the caller's promise.
        unsafe {
            let a = match n {
                0 => a,
                1.. => Self::shr(a, n as u32),
                _ => Self::shl(a, -n as u32),
            };
            Self::and(a, Self::splat(u32::from_ne_bytes([mask; 4])))
        }
    }
    /// Replaces each byte, which is below 16, by that entry of the table.
    unsafe fn lookup(table: [u8; 16], a: Self::I) -> Self::I;
    /// The fifth bits of the weights in vector `i` of the eight of a block, as 0x10 or 0 in their bytes. Bit k of a row's lane belongs to its
    /// weight k: with four weights of each row to a vector, byte j gets bit `4 * i + j`.
    unsafe fn fifth_bits(a: Self::I, i: usize) -> Self::I;

    unsafe fn zero_f() -> Self::F;
    unsafe fn splat_load_f(p: *const f32) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    unsafe fn neg(a: Self::F) -> Self::F;
    /// Signed integers to floats, to nearest even.
    unsafe fn to_f32(a: Self::I) -> Self::F;
    unsafe fn cast_f(a: Self::I) -> Self::F;
    /// Half floats in the low 16 bits.
    unsafe fn half(a: Self::I) -> Self::F;

    unsafe fn load(p: *const u8) -> Self::I;
    unsafe fn store(p: *mut u8, a: Self::I);
    /// `ROWS` 16-bit words, in the low halves of the lanes.
    unsafe fn load_words(p: *const u8) -> Self::I;
    /// `ROWS` half floats that lie together.
    #[inline(always)]
    unsafe fn load_halves(p: *const u8) -> Self::F {
        // SAFETY: the caller's promise.
        unsafe { Self::half(Self::load_words(p)) }
    }
    unsafe fn load_f(p: *const f32) -> Self::F;
    unsafe fn store_f(p: *mut f32, a: Self::F);

    /// The half float at `offset` of each row.
    unsafe fn rows_half(rows: &Rows, offset: usize) -> Self::F;
    /// 4, 8, 16, 32 bytes at `offset` of each row, four to a vector.
    unsafe fn rows4(rows: &Rows, offset: usize) -> Self::I;
    unsafe fn rows8(rows: &Rows, offset: usize) -> [Self::I; 2];
    unsafe fn rows16(rows: &Rows, offset: usize) -> [Self::I; 4];
    unsafe fn rows32(rows: &Rows, offset: usize) -> [Self::I; 8];

    /// 16 or 32 bytes of weights at `offset` of each row: the first 16 in vectors 0..4. In which order inside of these is
    /// between this function, `dot16`, `tile` and `fifth_bits`; all that happens to weights in between happens to every byte alike.
    #[inline(always)]
    unsafe fn weights16(rows: &Rows, offset: usize) -> [Self::I; 4] {
        // SAFETY: the caller's promise.
        unsafe { Self::rows16(rows, offset) }
    }
    #[inline(always)]
    unsafe fn weights32(rows: &Rows, offset: usize) -> [Self::I; 8] {
        // SAFETY: the caller's promise.
        unsafe { Self::rows32(rows, offset) }
    }
    /// Weights of interleaved rows, which are four of each row to a vector, in the order of `weights16`.
    #[inline(always)]
    unsafe fn order16(quads: [Self::I; 4]) -> [Self::I; 4] {
        quads
    }
    /// Each byte of `a` less `zero`.
    unsafe fn less(a: Self::I, zero: u8) -> Self::I;

    /// `bias64` of a half of a column's block.
    #[inline(always)]
    unsafe fn bias(x: &QBlock, half: usize) -> Self::I {
        // SAFETY: the caller's promise; `half` is 0 or 1.
        unsafe { Self::splat_load(x.bias64.as_ptr().add(half)) }
    }
    /// `a * dx` of a half.
    #[inline(always)]
    unsafe fn mul_dx(a: Self::F, x: &QBlock, half: usize) -> Self::F {
        // SAFETY: as for `bias`.
        unsafe { Self::mul(a, Self::splat_load_f(x.dx.as_ptr().add(half))) }
    }
    /// `a * dx + c`.
    #[inline(always)]
    unsafe fn fma_dx(a: Self::F, x: &QBlock, half: usize, c: Self::F) -> Self::F {
        // SAFETY: as for `bias`.
        unsafe { Self::fma(a, Self::splat_load_f(x.dx.as_ptr().add(half)), c) }
    }
    /// `a * xs + c`.
    #[inline(always)]
    unsafe fn fma_xs(a: Self::F, x: &QBlock, c: Self::F) -> Self::F {
        // SAFETY: the caller's promise.
        unsafe { Self::fma(a, Self::splat_load_f(&x.xs), c) }
    }
    /// `a * xh + c` of a half.
    #[inline(always)]
    unsafe fn fma_xh(a: Self::F, x: &QBlock, half: usize, c: Self::F) -> Self::F {
        // SAFETY: as for `bias`.
        unsafe { Self::fma(a, Self::splat_load_f(x.xh.as_ptr().add(half)), c) }
    }

    /// Adds the products of 16 weights of each row with 16 activations. Weights are at most `max` (unsigned, or of either sign where
    /// panels are signed), or wide: signed bytes XOR `FLIP`, `max` 255.
    unsafe fn dot16(acc: Self::I, w: &[Self::I; 4], a: *const i8, max: u32) -> Self::I;

    /// Multiplies a panel with N columns.
    #[inline(always)]
    unsafe fn tile<S: Shape, const N: usize, const P16: bool>(at: TileAt, sums: &mut [[f32; 16]; TILE]) {
        // SAFETY: the caller's promise.
        unsafe { Self::run(&mut Panel::<Self, S, N, P16>::new(at, sums)) }
    }

    /// Asks memory for a line, towards L2; and once more, in case it was dropped.
    unsafe fn prefetch(p: *const u8);
    unsafe fn prefetch_again(p: *const u8);
}

/// The canonical form of a format, as constants. `q = n - ZERO` with `n` in `0..=MAX`; MAX 255 means wide: `n` is `q`,
/// a signed byte. MINS counts the offsets of 32 weights: 0, 1, or 2 (one for each 16).
pub(crate) trait Shape {
    const SCALED: bool;
    const MINS: usize;
    const ZERO: u32;
    const MAX: u32;
}

pub(crate) struct ShapeOf<const SCALED: bool, const MINS: usize, const ZERO: u32, const MAX: u32>;

impl<const SCALED: bool, const MINS: usize, const ZERO: u32, const MAX: u32> Shape
    for ShapeOf<SCALED, MINS, ZERO, MAX>
{
    const SCALED: bool = SCALED;
    const MINS: usize = MINS;
    const ZERO: u32 = ZERO;
    const MAX: u32 = MAX;
}

/// 32 weights of each row.
#[derive(Clone, Copy)]
pub(crate) struct RowBlock<V: Simd> {
    /// As [`Simd::weights32`] orders them, XOR `FLIP` if wide.
    pub n: [V::I; 8],
    pub d: V::F,
    /// Not read if the shape has none.
    pub s: [V::F; 2],
    /// Not read beyond the shape's count.
    pub m: [V::F; 2],
}

/// Receives the blocks of a unit of some rows.
///
/// # Safety
/// The CPU has the instruction set, and the sink room for the block.
#[allow(clippy::missing_safety_doc, reason = "stated once, above")]
pub(crate) trait Sink<V: Simd> {
    /// The integers of block `k` of the unit, and their scales.
    unsafe fn dot(&mut self, k: usize, n: [V::I; 8], s: [V::F; 2]);
    /// Adds block `k` to the sums. In ascending order, each after its `dot`, and before a later `dot` with the same `k % 4`.
    unsafe fn add(&mut self, k: usize, d: V::F, m: [V::F; 2]);
    /// The unit ends.
    unsafe fn next(&mut self, blocks: usize);

    /// Both parts of block `k`.
    #[inline(always)]
    unsafe fn block(&mut self, k: usize, b: RowBlock<V>) {
        // SAFETY: the caller's promise.
        unsafe {
            self.dot(k, b.n, b.s);
            self.add(k, b.d, b.m);
        }
    }
}

/// Unpacks a format with rows in lanes.
pub(crate) trait Unpack {
    type Shape: Shape;
    /// 32-blocks per unit.
    const BLOCKS: usize;
    /// Bytes per unit, in the first plane.
    const BYTES: usize;
    /// Bytes per unit in the second plane, if the format has one.
    const FINE: usize = 0;
    /// Where the half float lies without which the bytes are a multiple of 4: at one end of the unit.
    const LONE_HALF: Option<usize> = None;

    /// Gives the blocks of one unit, at the start of `rows` (and of `fine`, the same rows in the second plane), to the sink.
    ///
    /// # Safety
    /// The CPU has the instruction set, and a unit is readable in each row of each plane. Always `inline(always)`.
    unsafe fn unit<V: Simd, R: Source<V>>(rows: &R, fine: &R, sink: &mut impl Sink<V>);
}

/// What an integer accumulator starts from, so that weights may be unsigned: `-zero * sum(a)`.
#[inline(always)]
pub(crate) unsafe fn start<V: Simd, S: Shape>(x: &QBlock, half: usize) -> V::I {
    // SAFETY: the caller's promise; `half` is 0 or 1.
    unsafe {
        let zero = if S::MAX == 255 { V::FLIP as u32 } else { S::ZERO };
        if zero == 0 {
            return V::splat(0);
        }
        let b64 = V::bias(x, half);
        match zero {
            64 => b64,
            128 => V::add(b64, b64),
            _ => V::sra(b64, 6 - zero.trailing_zeros()),
        }
    }
}

/// Repeats a block with a constant.
macro_rules! unroll {
    ($i:ident in [$($n:literal),*] $body:block) => { $({ const $i: usize = $n; $body })* };
}
pub(crate) use unroll;

/// Byte `i` of each lane as a float.
#[inline(always)]
pub(crate) unsafe fn byte_f32<V: Simd>(a: V::I, i: usize) -> V::F {
    // SAFETY: the caller's promise.
    unsafe { V::to_f32(V::and(V::shr(a, 8 * i as u32), V::splat(255))) }
}

/// Signed byte `i` of each lane as a float.
#[inline(always)]
pub(crate) unsafe fn signed_byte_f32<V: Simd>(a: V::I, i: usize) -> V::F {
    // SAFETY: the caller's promise.
    unsafe { V::to_f32(V::sra(V::shl(a, 24 - 8 * i as u32), 24)) }
}

/// Low nibbles, then high nibbles, of 16 bytes.
#[inline(always)]
pub(crate) unsafe fn nibbles<V: Simd>(p: &[V::I; 4]) -> [V::I; 8] {
    // SAFETY: the caller's promise.
    unsafe {
        let lo = |i: usize| V::field(p[i], 0, 15);
        let hi = |i: usize| V::field(p[i], 4, 15);
        [lo(0), lo(1), lo(2), lo(3), hi(0), hi(1), hi(2), hi(3)]
    }
}
