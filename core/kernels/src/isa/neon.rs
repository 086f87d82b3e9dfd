//! NEON: four rows in a register.
//!
//! Three levels, which differ in how they multiply and in how the bytes of the weights must lie for it ([`Layout`]); all else is
//! written once. Weights are signed in panels: all products here are signed, so zero needs no bias there.
//!
//! ```text
//!          one or two columns            panels                           16 weights of 4 rows, one column
//! base     smull, smlal, pairwise adds   the same                         12 to 16 instructions
//! dotprod  sdot by element               the same                          4
//! i8mm     as dotprod                    smmla, columns two by two         2
//! ```
//!
//! The intrinsics of the last two are not stable, hence `asm!`.

use std::arch::aarch64::*;
use std::arch::asm;
use std::marker::PhantomData;

use super::{MatTable, StripFn, neon_mmla, neon_vec};
use crate::act::{QBlock, TILE};
use crate::formats;
use crate::matmul::panels::{Panel, TileAt};
use crate::matmul::simd::{Body, Shape, Simd};
use crate::matmul::source::Rows;
use crate::matmul::{Precision, quantise};

/// The table of a level.
macro_rules! table {
    ($kind:ty) => {
        MatTable {
            // Four bands: results of a task then begin on a cache line.
            band: 16,
            strip: |format, precision: Precision| -> StripFn {
                formats::strips::<Neon<$kind>>()[format.index][precision as usize]
            },
            quantise8: quantise::quantise8_with::<Neon<$kind>>,
            quantise16: quantise::quantise16_with::<Neon<$kind>>,
        }
    };
}
pub(crate) static BASE: MatTable = table!(Base);
pub(crate) static DOTPROD: MatTable = table!(Dotprod);
pub(crate) static I8MM: MatTable = table!(I8mm);

/// How 32 weights of four rows lie in eight vectors; vectors 0..4 are the first 16 weights.
#[derive(Clone, Copy)]
pub(crate) enum Layout {
    /// Vector r: 16 weights of row r.
    Rows,
    /// Vector q: four weights of each row.
    Quads,
    /// Vector 2 k + p: eight weights of row 2 p, the same of row 2 p + 1.
    Pairs,
}

/// What sets a level apart.
pub(crate) trait Kind: Copy {
    const LAYOUT: Layout;
    const PAIRS: bool = false;
    const FEW_THROUGH_PANELS: bool = false;
    type Few: Simd;
    type Many: Simd;
    /// As [`Simd::dot16`].
    unsafe fn dot16(acc: int32x4_t, w: &[int32x4_t; 4], a: *const i8, max: u32) -> int32x4_t;
    /// As [`Simd::tile`].
    #[inline(always)]
    unsafe fn tile<S: Shape, const N: usize, const P16: bool>(at: TileAt, sums: &mut [[f32; 16]; TILE]) {
        // SAFETY: the caller's promise.
        unsafe { Neon::<Self>::run(&mut Panel::<Neon<Self>, S, N, P16>::new(at, sums)) }
    }
}

/// Armv8.0.
#[derive(Clone, Copy)]
pub(crate) struct Base;

/// With `sdot`.
#[derive(Clone, Copy)]
pub(crate) struct Dotprod;

/// With `sdot`, and panels for `smmla`.
#[derive(Clone, Copy)]
pub(crate) struct I8mm;

#[allow(clippy::undocumented_unsafe_blocks, reason = "the contract of the trait, which is that of `Simd`")]
impl Kind for Base {
    const LAYOUT: Layout = Layout::Rows;
    // Processors of before 2018.
    const FEW_THROUGH_PANELS: bool = true;
    type Few = Neon<Base>;
    type Many = Neon<Base>;

    #[inline(always)]
    unsafe fn dot16(acc: int32x4_t, w: &[int32x4_t; 4], a: *const i8, max: u32) -> int32x4_t {
        unsafe {
            let a = vld1q_s8(a);
            // Two products: 2 * 128 * 127 < 2^15.
            let p = |r: usize| {
                let w = vreinterpretq_s8_s32(w[r]);
                vmlal_high_s8(vmull_s8(vget_low_s8(w), vget_low_s8(a)), w, a)
            };
            if max > 63 {
                let p = |r: usize| vpaddlq_s16(p(r));
                return vaddq_s32(acc, vpaddq_s32(vpaddq_s32(p(0), p(1)), vpaddq_s32(p(2), p(3))));
            }
            // Four: 4 * 63 * 127 < 2^15.
            let (p01, p23) = (vpaddq_s16(p(0), p(1)), vpaddq_s16(p(2), p(3)));
            if max > 32 {
                return vaddq_s32(acc, vpaddq_s32(vpaddlq_s16(p01), vpaddlq_s16(p23)));
            }
            // Eight: 8 * 32 * 127 < 2^15.
            vpadalq_s16(acc, vpaddq_s16(p01, p23))
        }
    }
}

/// Adds to each lane the products of its four weights with bytes 4 I .. 4 I + 4 of `a`.
#[inline(always)]
unsafe fn sdot<const I: usize>(mut acc: int32x4_t, w: int32x4_t, a: int8x16_t) -> int32x4_t {
    // SAFETY: the caller runs on a CPU with the dot product instructions; nothing but `acc` changes.
    unsafe {
        asm!(
            ".arch_extension dotprod",
            "sdot {acc:v}.4s, {w:v}.16b, {a:v}.4b[{i}]",
            acc = inlateout(vreg) acc,
            w = in(vreg) w,
            a = in(vreg) a,
            i = const I,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    acc
}

#[allow(clippy::undocumented_unsafe_blocks, reason = "the contract of the trait, which is that of `Simd`")]
impl Kind for Dotprod {
    const LAYOUT: Layout = Layout::Quads;
    type Few = Neon<Dotprod>;
    type Many = Neon<Dotprod>;

    #[inline(always)]
    unsafe fn dot16(acc: int32x4_t, w: &[int32x4_t; 4], a: *const i8, _max: u32) -> int32x4_t {
        unsafe {
            let a = vld1q_s8(a);
            let acc = sdot::<0>(acc, w[0], a);
            let acc = sdot::<1>(acc, w[1], a);
            let acc = sdot::<2>(acc, w[2], a);
            sdot::<3>(acc, w[3], a)
        }
    }
}

#[allow(clippy::undocumented_unsafe_blocks, reason = "the contract of the trait, which is that of `Simd`")]
impl Kind for I8mm {
    const LAYOUT: Layout = Layout::Quads;
    type Few = Neon<Dotprod>;
    type Many = Neon<neon_mmla::Panels>;

    #[inline(always)]
    unsafe fn dot16(acc: int32x4_t, w: &[int32x4_t; 4], a: *const i8, max: u32) -> int32x4_t {
        unsafe { Dotprod::dot16(acc, w, a, max) }
    }
}

/// The shape of the same weights stored as q itself; MAX is then the largest magnitude.
pub(crate) struct Signed<S>(PhantomData<S>);

impl<S: Shape> Shape for Signed<S> {
    const SCALED: bool = S::SCALED;
    const MINS: usize = S::MINS;
    const ZERO: u32 = 0;
    const MAX: u32 = if S::MAX == 255 || S::ZERO < S::MAX - S::ZERO { S::MAX - S::ZERO } else { S::ZERO };
}

/// NEON of one level.
#[derive(Clone, Copy)]
pub(crate) struct Neon<K>(PhantomData<K>);

/// Lane j of vector i becomes lane i of vector j.
#[inline(always)]
unsafe fn transpose4(r: [int32x4_t; 4]) -> [int32x4_t; 4] {
    // SAFETY: every AArch64 processor has NEON.
    unsafe {
        let wide = |x: int32x4_t| vreinterpretq_s64_s32(x);
        let even = [wide(vtrn1q_s32(r[0], r[1])), wide(vtrn1q_s32(r[2], r[3]))];
        let odd = [wide(vtrn2q_s32(r[0], r[1])), wide(vtrn2q_s32(r[2], r[3]))];
        [
            vreinterpretq_s32_s64(vzip1q_s64(even[0], even[1])),
            vreinterpretq_s32_s64(vzip1q_s64(odd[0], odd[1])),
            vreinterpretq_s32_s64(vzip2q_s64(even[0], even[1])),
            vreinterpretq_s32_s64(vzip2q_s64(odd[0], odd[1])),
        ]
    }
}

#[inline(always)]
unsafe fn load16(p: *const u8) -> int32x4_t {
    // SAFETY: the caller's promise: 16 readable bytes.
    unsafe { vreinterpretq_s32_u8(vld1q_u8(p)) }
}

/// 16 bytes of each row. (Written out: `array::map` is a function call unless the compiler happens to inline it.)
#[inline(always)]
unsafe fn load_rows(rows: &Rows, offset: usize) -> [int32x4_t; 4] {
    // SAFETY: the caller's promise: 16 readable bytes in each row.
    unsafe {
        let row = |r: usize| load16(rows.at(r, offset));
        [row(0), row(1), row(2), row(3)]
    }
}

/// The same in the layout of the weights.
#[inline(always)]
unsafe fn lay<K: Kind>(rows: &Rows, offset: usize) -> [int32x4_t; 4] {
    // SAFETY: the caller's promise: 16 readable bytes in each row.
    unsafe {
        let r = load_rows(rows, offset);
        match K::LAYOUT {
            Layout::Rows => r,
            Layout::Quads => transpose4(r),
            Layout::Pairs => {
                let wide = |i: usize| vreinterpretq_s64_s32(r[i]);
                let low = |i: usize| vreinterpretq_s32_s64(vzip1q_s64(wide(i), wide(i + 1)));
                let high = |i: usize| vreinterpretq_s32_s64(vzip2q_s64(wide(i), wide(i + 1)));
                [low(0), low(2), high(0), high(2)]
            }
        }
    }
}

/// For each of the eight vectors of a layout: which byte of the four rows' 32 bits each of its bytes looks at, and for which bit.
const fn fifth(layout: Layout) -> [([u8; 16], [u8; 16]); 8] {
    let mut table = [([0; 16], [0; 16]); 8];
    let mut i = 0;
    while i < 8 {
        let mut j = 0;
        while j < 16 {
            let (row, bit) = match layout {
                Layout::Rows => (i % 4, i / 4 * 16 + j),
                Layout::Quads => (j / 4, 4 * i + j % 4),
                Layout::Pairs => (i % 2 * 2 + j / 8, i / 2 * 8 + j % 8),
            };
            table[i].0[j] = (4 * row + bit / 8) as u8;
            table[i].1[j] = 1 << (bit % 8);
            j += 1;
        }
        i += 1;
    }
    table
}

/// Shifts by a number that is a constant after inlining.
macro_rules! shift {
    ($intrinsic:ident, $a:expr, $n:expr, $($k:literal)*) => {
        match $n {
            $($k => $intrinsic::<$k>($a),)*
            _ => unreachable!("formats shift bytes by less than 8"),
        }
    };
}

/// The second half of a block: scales and biases of both halves.
#[inline(always)]
unsafe fn scales(x: &QBlock) -> float32x4_t {
    // SAFETY: 16 bytes at byte 32 of a block of 64.
    unsafe { vld1q_f32(std::ptr::from_ref(x).cast::<f32>().add(8)) }
}

/// The offsets' factors: `xs`, then `xh` of both halves.
#[inline(always)]
unsafe fn sums(x: &QBlock) -> float32x4_t {
    // SAFETY: 16 bytes at byte 48 of a block of 64.
    unsafe { vld1q_f32(std::ptr::from_ref(x).cast::<f32>().add(12)) }
}

const _: () = {
    assert!(std::mem::offset_of!(QBlock, dx) == 32 && std::mem::offset_of!(QBlock, bias64) == 40);
    assert!(std::mem::offset_of!(QBlock, xs) == 48 && std::mem::offset_of!(QBlock, xh) == 52);
};

// SAFETY of all blocks below: the trait's contract (the CPU has the features that the list of tables asks for, and pointers and rows are readable
// for the bytes that the function names).
#[allow(clippy::undocumented_unsafe_blocks, reason = "stated once, above")]
impl<K: Kind> Simd for Neon<K> {
    const ROWS: usize = 4;
    const COLS: usize = 8;
    const DIRECT: usize = 2;
    const FLIP: u8 = 0;
    // Mid-range phones have 256 KiB of L2 per core, small cores less. Chosen by size, not by measurement.
    const SHARED: usize = 96 << 10;
    const PAIRS: bool = K::PAIRS;
    type I = int32x4_t;
    type F = float32x4_t;
    type L = neon_vec::Neon;
    type Few = K::Few;
    const FEW_THROUGH_PANELS: bool = K::FEW_THROUGH_PANELS;
    type Many = K::Many;
    type Stored<S: Shape> = Signed<S>;

    #[inline(always)]
    unsafe fn run<B: Body>(b: &mut B) {
        // NEON is always on. A function of its own nonetheless, so that each loop has the registers to itself.
        #[inline(never)]
        unsafe fn inner<B: Body>(b: &mut B) {
            unsafe { b.body() }
        }
        unsafe { inner(b) }
    }

    #[inline(always)]
    unsafe fn splat(x: u32) -> int32x4_t {
        unsafe { vdupq_n_s32(x as i32) }
    }
    #[inline(always)]
    unsafe fn splat_load(p: *const i32) -> int32x4_t {
        unsafe { vdupq_n_s32(p.read_unaligned()) }
    }
    #[inline(always)]
    unsafe fn and(a: int32x4_t, b: int32x4_t) -> int32x4_t {
        unsafe { vandq_s32(a, b) }
    }
    #[inline(always)]
    unsafe fn or(a: int32x4_t, b: int32x4_t) -> int32x4_t {
        unsafe { vorrq_s32(a, b) }
    }
    #[inline(always)]
    unsafe fn xor(a: int32x4_t, b: int32x4_t) -> int32x4_t {
        unsafe { veorq_s32(a, b) }
    }
    #[inline(always)]
    unsafe fn add(a: int32x4_t, b: int32x4_t) -> int32x4_t {
        unsafe { vaddq_s32(a, b) }
    }
    #[inline(always)]
    unsafe fn shl(a: int32x4_t, n: u32) -> int32x4_t {
        unsafe { vshlq_s32(a, vdupq_n_s32(n as i32)) }
    }
    #[inline(always)]
    unsafe fn shr(a: int32x4_t, n: u32) -> int32x4_t {
        unsafe {
            vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(a), vdupq_n_s32((n as i32).wrapping_neg())))
        }
    }
    #[inline(always)]
    unsafe fn sra(a: int32x4_t, n: u32) -> int32x4_t {
        unsafe { vshlq_s32(a, vdupq_n_s32((n as i32).wrapping_neg())) }
    }
    #[inline(always)]
    unsafe fn field(a: int32x4_t, n: i32, mask: u8) -> int32x4_t {
        unsafe {
            let a = vreinterpretq_u8_s32(a);
            // Shifts of bytes bring in zeros, which often makes the mask needless.
            let (a, left) = match n {
                0 => (a, 0xff),
                1.. => (shift!(vshrq_n_u8, a, n, 1 2 3 4 5 6 7), 0xff >> n),
                _ => (shift!(vshlq_n_u8, a, -n, 1 2 3 4 5 6 7), 0xff << -n & 0xff),
            };
            vreinterpretq_s32_u8(if left == i32::from(mask) { a } else { vandq_u8(a, vdupq_n_u8(mask)) })
        }
    }
    #[inline(always)]
    unsafe fn lookup(table: [u8; 16], a: int32x4_t) -> int32x4_t {
        unsafe { vreinterpretq_s32_u8(vqtbl1q_u8(vld1q_u8(table.as_ptr()), vreinterpretq_u8_s32(a))) }
    }
    #[inline(always)]
    unsafe fn fifth_bits(a: int32x4_t, i: usize) -> int32x4_t {
        unsafe {
            let (bytes, bits) = &const { &fifth(K::LAYOUT) }[i];
            let a = vqtbl1q_u8(vreinterpretq_u8_s32(a), vld1q_u8(bytes.as_ptr()));
            let set = vtstq_u8(a, vld1q_u8(bits.as_ptr()));
            vreinterpretq_s32_u8(vandq_u8(set, vdupq_n_u8(0x10)))
        }
    }

    #[inline(always)]
    unsafe fn zero_f() -> float32x4_t {
        unsafe { vdupq_n_f32(0.0) }
    }
    #[inline(always)]
    unsafe fn splat_load_f(p: *const f32) -> float32x4_t {
        unsafe { vdupq_n_f32(p.read_unaligned()) }
    }
    #[inline(always)]
    unsafe fn mul(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vmulq_f32(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        unsafe { vfmaq_f32(c, a, b) }
    }
    #[inline(always)]
    unsafe fn neg(a: float32x4_t) -> float32x4_t {
        unsafe { vnegq_f32(a) }
    }
    #[inline(always)]
    unsafe fn to_f32(a: int32x4_t) -> float32x4_t {
        unsafe { vcvtq_f32_s32(a) }
    }
    #[inline(always)]
    unsafe fn cast_f(a: int32x4_t) -> float32x4_t {
        unsafe { vreinterpretq_f32_s32(a) }
    }
    #[inline(always)]
    unsafe fn half(a: int32x4_t) -> float32x4_t {
        unsafe { vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(vreinterpretq_u32_s32(a)))) }
    }

    // A column's numbers are multiplied by element, so that one load serves all of them.
    #[inline(always)]
    unsafe fn bias(x: &QBlock, half: usize) -> int32x4_t {
        unsafe {
            let s = vreinterpretq_s32_f32(scales(x));
            if half == 0 { vdupq_laneq_s32::<2>(s) } else { vdupq_laneq_s32::<3>(s) }
        }
    }
    #[inline(always)]
    unsafe fn mul_dx(a: float32x4_t, x: &QBlock, half: usize) -> float32x4_t {
        unsafe {
            if half == 0 { vmulq_laneq_f32::<0>(a, scales(x)) } else { vmulq_laneq_f32::<1>(a, scales(x)) }
        }
    }
    #[inline(always)]
    unsafe fn fma_dx(a: float32x4_t, x: &QBlock, half: usize, c: float32x4_t) -> float32x4_t {
        unsafe {
            if half == 0 {
                vfmaq_laneq_f32::<0>(c, a, scales(x))
            } else {
                vfmaq_laneq_f32::<1>(c, a, scales(x))
            }
        }
    }
    #[inline(always)]
    unsafe fn fma_xs(a: float32x4_t, x: &QBlock, c: float32x4_t) -> float32x4_t {
        unsafe { vfmaq_laneq_f32::<0>(c, a, sums(x)) }
    }
    #[inline(always)]
    unsafe fn fma_xh(a: float32x4_t, x: &QBlock, half: usize, c: float32x4_t) -> float32x4_t {
        unsafe {
            if half == 0 { vfmaq_laneq_f32::<1>(c, a, sums(x)) } else { vfmaq_laneq_f32::<2>(c, a, sums(x)) }
        }
    }

    #[inline(always)]
    unsafe fn load(p: *const u8) -> int32x4_t {
        unsafe { load16(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut u8, a: int32x4_t) {
        unsafe { vst1q_u8(p, vreinterpretq_u8_s32(a)) }
    }
    #[inline(always)]
    unsafe fn load_words(p: *const u8) -> int32x4_t {
        unsafe { vreinterpretq_s32_u32(vmovl_u16(vld1_u16(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_f(p: *const f32) -> float32x4_t {
        unsafe { vld1q_f32(p) }
    }
    #[inline(always)]
    unsafe fn store_f(p: *mut f32, a: float32x4_t) {
        unsafe { vst1q_f32(p, a) }
    }

    #[inline(always)]
    unsafe fn rows_half(rows: &Rows, offset: usize) -> float32x4_t {
        unsafe {
            let word = |r: usize| rows.at(r, offset).cast::<u16>().read_unaligned();
            let x = vdup_n_u16(word(0));
            let x = vset_lane_u16::<1>(word(1), x);
            let x = vset_lane_u16::<2>(word(2), x);
            vcvt_f32_f16(vreinterpret_f16_u16(vset_lane_u16::<3>(word(3), x)))
        }
    }
    #[inline(always)]
    unsafe fn rows4(rows: &Rows, offset: usize) -> int32x4_t {
        unsafe {
            let word = |r: usize| rows.at(r, offset).cast::<i32>().read_unaligned();
            let x = vdupq_n_s32(word(0));
            let x = vsetq_lane_s32::<1>(word(1), x);
            let x = vsetq_lane_s32::<2>(word(2), x);
            vsetq_lane_s32::<3>(word(3), x)
        }
    }
    #[inline(always)]
    unsafe fn rows8(rows: &Rows, offset: usize) -> [int32x4_t; 2] {
        unsafe {
            let word = |r: usize| rows.at(r, offset).cast::<i64>().read_unaligned();
            let two =
                |r: usize| vreinterpretq_s32_s64(vsetq_lane_s64::<1>(word(r + 1), vdupq_n_s64(word(r))));
            let (a, b) = (two(0), two(2));
            [vuzp1q_s32(a, b), vuzp2q_s32(a, b)]
        }
    }
    #[inline(always)]
    unsafe fn rows16(rows: &Rows, offset: usize) -> [int32x4_t; 4] {
        unsafe { transpose4(load_rows(rows, offset)) }
    }
    #[inline(always)]
    unsafe fn rows32(rows: &Rows, offset: usize) -> [int32x4_t; 8] {
        unsafe {
            let [a, b, c, d] = Self::rows16(rows, offset);
            let [e, f, g, h] = Self::rows16(rows, offset + 16);
            [a, b, c, d, e, f, g, h]
        }
    }
    #[inline(always)]
    unsafe fn weights16(rows: &Rows, offset: usize) -> [int32x4_t; 4] {
        unsafe { lay::<K>(rows, offset) }
    }
    #[inline(always)]
    unsafe fn weights32(rows: &Rows, offset: usize) -> [int32x4_t; 8] {
        unsafe {
            let [a, b, c, d] = lay::<K>(rows, offset);
            let [e, f, g, h] = lay::<K>(rows, offset + 16);
            [a, b, c, d, e, f, g, h]
        }
    }
    #[inline(always)]
    unsafe fn order16(q: [int32x4_t; 4]) -> [int32x4_t; 4] {
        unsafe {
            match K::LAYOUT {
                Layout::Rows => transpose4(q),
                Layout::Quads => q,
                Layout::Pairs => {
                    let low = |i: usize| vzip1q_s32(q[i], q[i + 1]);
                    let high = |i: usize| vzip2q_s32(q[i], q[i + 1]);
                    [low(0), high(0), low(2), high(2)]
                }
            }
        }
    }
    #[inline(always)]
    unsafe fn less(a: int32x4_t, zero: u8) -> int32x4_t {
        unsafe { vreinterpretq_s32_u8(vsubq_u8(vreinterpretq_u8_s32(a), vdupq_n_u8(zero))) }
    }

    #[inline(always)]
    unsafe fn dot16(acc: int32x4_t, w: &[int32x4_t; 4], a: *const i8, max: u32) -> int32x4_t {
        unsafe { K::dot16(acc, w, a, max) }
    }
    #[inline(always)]
    unsafe fn tile<S: Shape, const N: usize, const P16: bool>(at: TileAt, sums: &mut [[f32; 16]; TILE]) {
        unsafe { K::tile::<S, N, P16>(at, sums) }
    }

    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        unsafe { asm!("prfm pldl2keep, [{}]", in(reg) p, options(nomem, nostack, preserves_flags)) }
    }
    /// Nothing: four rows are four streams, which the prefetchers of these cores follow.
    #[inline(always)]
    unsafe fn prefetch_again(_: *const u8) {}
}
