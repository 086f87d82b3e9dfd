//! AVX2: eight rows in a register.
//!
//! `vpmaddubsw` multiplies unsigned weights with signed activations and adds pairs to 16 bits with saturation. Weights of up to 7 bits
//! can't reach it (2 * 127 * 127 < 2^15); for wide formats the sign moves from the weight to the activation (2 * 128 * 127 < 2^15).

use std::arch::x86_64::*;

use super::{MatTable, StripFn, avx2_vec};
use crate::formats;
use crate::matmul::simd::{Body, Shape, Simd};
use crate::matmul::source::Rows;
use crate::matmul::{Precision, quantise};

pub(crate) static TABLE: MatTable = MatTable {
    band: 8,
    strip: |format, precision: Precision| -> StripFn {
        formats::strips::<Avx2>()[format.index][precision as usize]
    },
    quantise8: quantise::quantise8_with::<Avx2>,
    quantise16: quantise::quantise16_with::<Avx2>,
};

#[derive(Clone, Copy)]
pub(crate) struct Avx2;

/// In each 128-bit lane: dword j of register i becomes dword i of register j.
#[inline(always)]
unsafe fn transpose4(a: [__m256i; 4]) -> [__m256i; 4] {
    // SAFETY: the caller runs on AVX2.
    unsafe {
        let lo01 = _mm256_unpacklo_epi32(a[0], a[1]);
        let hi01 = _mm256_unpackhi_epi32(a[0], a[1]);
        let lo23 = _mm256_unpacklo_epi32(a[2], a[3]);
        let hi23 = _mm256_unpackhi_epi32(a[2], a[3]);
        [
            _mm256_unpacklo_epi64(lo01, lo23),
            _mm256_unpackhi_epi64(lo01, lo23),
            _mm256_unpacklo_epi64(hi01, hi23),
            _mm256_unpackhi_epi64(hi01, hi23),
        ]
    }
}

#[inline(always)]
unsafe fn load16(p: *const u8) -> __m128i {
    // SAFETY: the caller's promise: 16 readable bytes.
    unsafe { _mm_loadu_si128(p.cast()) }
}

#[inline(always)]
unsafe fn load32(p: *const u8) -> __m256i {
    // SAFETY: the caller's promise: 32 readable bytes.
    unsafe { _mm256_loadu_si256(p.cast()) }
}

/// Two rows of 8 bytes.
#[inline(always)]
unsafe fn load8x2(a: *const u8, b: *const u8) -> __m128i {
    // SAFETY: the caller's promise: 8 readable bytes each.
    unsafe {
        let lo = _mm_castsi128_pd(_mm_loadl_epi64(a.cast()));
        _mm_castpd_si128(_mm_loadh_pd(lo, b.cast()))
    }
}

/// Two rows, one in each half.
#[inline(always)]
unsafe fn join(a: __m128i, b: __m128i) -> __m256i {
    // SAFETY: the caller runs on AVX2.
    unsafe { _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(a), b) }
}

/// The 16 bits at `offset` of eight rows.
#[inline(always)]
unsafe fn eight_words(rows: &Rows, first: usize, offset: usize) -> __m128i {
    // SAFETY: the caller's promise: 2 readable bytes; a block has no fewer than 4 from its start.
    unsafe {
        if offset == 0 {
            // Plain loads and a tree of unpacks are cheaper than inserting words one by one, but read 4 bytes.
            let word = |r: usize| _mm_cvtsi32_si128(rows.at(first + r, 0).cast::<i32>().read_unaligned());
            let two = |r: usize| _mm_unpacklo_epi16(word(r), word(r + 1));
            let four = |r: usize| _mm_unpacklo_epi32(two(r), two(r + 2));
            return _mm_unpacklo_epi64(four(0), four(4));
        }
        let word = |r: usize| i32::from(rows.at(first + r, offset).cast::<u16>().read_unaligned());
        let x = _mm_cvtsi32_si128(word(0));
        let x = _mm_insert_epi16::<1>(x, word(1));
        let x = _mm_insert_epi16::<2>(x, word(2));
        let x = _mm_insert_epi16::<3>(x, word(3));
        let x = _mm_insert_epi16::<4>(x, word(4));
        let x = _mm_insert_epi16::<5>(x, word(5));
        let x = _mm_insert_epi16::<6>(x, word(6));
        _mm_insert_epi16::<7>(x, word(7))
    }
}

// SAFETY of all blocks below: the trait's contract (the CPU has the features that the list of tables asks for, and pointers and rows are readable
// for the bytes that the function names).
#[allow(clippy::undocumented_unsafe_blocks, reason = "stated once, above")]
impl Simd for Avx2 {
    const ROWS: usize = 8;
    const COLS: usize = 4;
    const DIRECT: usize = 2;
    const FLIP: u8 = 0;
    type I = __m256i;
    type F = __m256;
    type L = avx2_vec::Avx2;
    type Few = Self;
    type Many = Self;
    type Stored<S: Shape> = S;

    #[inline(always)]
    unsafe fn run<B: Body>(b: &mut B) {
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn inner<B: Body>(b: &mut B) {
            unsafe { b.body() }
        }
        unsafe { inner(b) }
    }

    #[inline(always)]
    unsafe fn splat(x: u32) -> __m256i {
        unsafe { _mm256_set1_epi32(x as i32) }
    }
    #[inline(always)]
    unsafe fn splat_load(p: *const i32) -> __m256i {
        unsafe { _mm256_set1_epi32(p.read_unaligned()) }
    }
    #[inline(always)]
    unsafe fn and(a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_and_si256(a, b) }
    }
    #[inline(always)]
    unsafe fn or(a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_or_si256(a, b) }
    }
    #[inline(always)]
    unsafe fn xor(a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_xor_si256(a, b) }
    }
    #[inline(always)]
    unsafe fn add(a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_add_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn shl(a: __m256i, n: u32) -> __m256i {
        unsafe { _mm256_sllv_epi32(a, _mm256_set1_epi32(n as i32)) }
    }
    #[inline(always)]
    unsafe fn shr(a: __m256i, n: u32) -> __m256i {
        unsafe { _mm256_srlv_epi32(a, _mm256_set1_epi32(n as i32)) }
    }
    #[inline(always)]
    unsafe fn sra(a: __m256i, n: u32) -> __m256i {
        unsafe { _mm256_srav_epi32(a, _mm256_set1_epi32(n as i32)) }
    }
    #[inline(always)]
    unsafe fn lookup(table: [u8; 16], a: __m256i) -> __m256i {
        unsafe { _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load16(table.as_ptr())), a) }
    }
    #[inline(always)]
    unsafe fn fifth_bits(a: __m256i, quad: usize) -> __m256i {
        unsafe {
            // Byte quad / 2 of each lane, four times; then one bit of each.
            let byte = (quad / 2) as i32 * 0x0101_0101;
            let lane = |i: i32| byte + i * 0x0404_0404;
            let copy =
                _mm256_setr_epi32(lane(0), lane(1), lane(2), lane(3), lane(0), lane(1), lane(2), lane(3));
            let bits =
                _mm256_set1_epi32(if quad.is_multiple_of(2) { 0x0804_0201 } else { 0x8040_2010u32 as i32 });
            let a = _mm256_and_si256(_mm256_shuffle_epi8(a, copy), bits);
            _mm256_and_si256(_mm256_cmpeq_epi8(a, bits), _mm256_set1_epi8(0x10))
        }
    }

    #[inline(always)]
    unsafe fn zero_f() -> __m256 {
        unsafe { _mm256_setzero_ps() }
    }
    #[inline(always)]
    unsafe fn splat_load_f(p: *const f32) -> __m256 {
        unsafe { _mm256_set1_ps(p.read_unaligned()) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn neg(a: __m256) -> __m256 {
        unsafe { _mm256_xor_ps(a, _mm256_set1_ps(-0.0)) }
    }
    #[inline(always)]
    unsafe fn to_f32(a: __m256i) -> __m256 {
        unsafe { _mm256_cvtepi32_ps(a) }
    }
    #[inline(always)]
    unsafe fn cast_f(a: __m256i) -> __m256 {
        unsafe { _mm256_castsi256_ps(a) }
    }
    #[inline(always)]
    unsafe fn half(a: __m256i) -> __m256 {
        unsafe {
            {
                // Within each half, the low words of four lanes; then the halves together.
                const LOW: [i8; 16] = [0, 1, 4, 5, 8, 9, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1];
                let low = _mm256_broadcastsi128_si256(load16(LOW.as_ptr().cast()));
                let a = _mm256_permute4x64_epi64::<0b00_00_10_00>(_mm256_shuffle_epi8(a, low));
                _mm256_cvtph_ps(_mm256_castsi256_si128(a))
            }
        }
    }

    #[inline(always)]
    unsafe fn load(p: *const u8) -> __m256i {
        unsafe { _mm256_loadu_si256(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut u8, a: __m256i) {
        unsafe { _mm256_storeu_si256(p.cast(), a) }
    }
    #[inline(always)]
    unsafe fn load_words(p: *const u8) -> __m256i {
        unsafe { _mm256_cvtepu16_epi32(load16(p)) }
    }
    #[inline(always)]
    unsafe fn load_halves(p: *const u8) -> __m256 {
        unsafe { _mm256_cvtph_ps(load16(p)) }
    }
    #[inline(always)]
    unsafe fn load_f(p: *const f32) -> __m256 {
        unsafe { _mm256_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store_f(p: *mut f32, a: __m256) {
        unsafe { _mm256_storeu_ps(p, a) }
    }

    #[inline(always)]
    unsafe fn rows_half(rows: &Rows, offset: usize) -> __m256 {
        unsafe { _mm256_cvtph_ps(eight_words(rows, 0, offset)) }
    }
    #[inline(always)]
    unsafe fn rows4(rows: &Rows, offset: usize) -> __m256i {
        unsafe {
            let word = |r: usize| _mm_cvtsi32_si128(rows.at(r, offset).cast::<i32>().read_unaligned());
            let four = |r: usize| {
                let lo = _mm_unpacklo_epi32(word(r), word(r + 1));
                _mm_unpacklo_epi64(lo, _mm_unpacklo_epi32(word(r + 2), word(r + 3)))
            };
            join(four(0), four(4))
        }
    }
    #[inline(always)]
    unsafe fn rows8(rows: &Rows, offset: usize) -> [__m256i; 2] {
        unsafe {
            let two = |r: usize| load8x2(rows.at(r, offset), rows.at(r + 1, offset));
            let even = _mm256_castsi256_ps(join(two(0), two(4)));
            let odd = _mm256_castsi256_ps(join(two(2), two(6)));
            [
                _mm256_castps_si256(_mm256_shuffle_ps::<0x88>(even, odd)),
                _mm256_castps_si256(_mm256_shuffle_ps::<0xdd>(even, odd)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn rows16(rows: &Rows, offset: usize) -> [__m256i; 4] {
        unsafe {
            let row = |r: usize| load16(rows.at(r, offset));
            let four = |r: usize| join(row(r), row(r + 4));
            transpose4([four(0), four(1), four(2), four(3)])
        }
    }
    #[inline(always)]
    unsafe fn rows32(rows: &Rows, offset: usize) -> [__m256i; 8] {
        unsafe {
            let row = |r: usize| load32(rows.at(r, offset));
            // Lanes: rows 0..4 (4..8) bytes 0..16, and the same rows' bytes 16..32.
            let a = transpose4([row(0), row(1), row(2), row(3)]);
            let b = transpose4([row(4), row(5), row(6), row(7)]);
            let lo = |i: usize| _mm256_permute2x128_si256::<0x20>(a[i], b[i]);
            let hi = |i: usize| _mm256_permute2x128_si256::<0x31>(a[i], b[i]);
            [lo(0), lo(1), lo(2), lo(3), hi(0), hi(1), hi(2), hi(3)]
        }
    }

    #[inline(always)]
    unsafe fn less(a: __m256i, zero: u8) -> __m256i {
        unsafe { _mm256_sub_epi8(a, _mm256_set1_epi8(zero as i8)) }
    }

    #[inline(always)]
    unsafe fn dot16(acc: __m256i, w: &[__m256i; 4], a: *const i8, max: u32) -> __m256i {
        unsafe {
            let a = |i: usize| _mm256_set1_epi32(a.cast::<i32>().add(i).read_unaligned());
            let ones = _mm256_set1_epi16(1);
            let widen = |x: __m256i| _mm256_madd_epi16(x, ones);
            if max == 255 {
                let p = |i: usize| _mm256_maddubs_epi16(_mm256_abs_epi8(w[i]), _mm256_sign_epi8(a(i), w[i]));
                let lo = _mm256_add_epi32(widen(p(0)), widen(p(1)));
                let hi = _mm256_add_epi32(widen(p(2)), widen(p(3)));
                return _mm256_add_epi32(acc, _mm256_add_epi32(lo, hi));
            }
            // A pair is at most 2 * 127 * max: four of them (8 * 127 * 31) or two (4 * 127 * 63) fit in 16 bits.
            let p = |i: usize| _mm256_maddubs_epi16(w[i], a(i));
            let lo = _mm256_add_epi16(p(0), p(1));
            let hi = _mm256_add_epi16(p(2), p(3));
            if max <= 31 {
                return _mm256_add_epi32(acc, widen(_mm256_add_epi16(lo, hi)));
            }
            debug_assert!(max <= 63);
            _mm256_add_epi32(acc, _mm256_add_epi32(widen(lo), widen(hi)))
        }
    }

    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }
    #[inline(always)]
    unsafe fn prefetch_again(p: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }
}
