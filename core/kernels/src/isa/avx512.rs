//! AVX-512: sixteen rows in a register, `vpdpbusd` for the products (unsigned weights, signed activations).

use std::arch::x86_64::*;

use super::{MatTable, StripFn, avx512_vec};
use crate::formats;
use crate::matmul::simd::{Body, Shape, Simd};
use crate::matmul::source::Rows;
use crate::matmul::{Precision, quantise};

pub(crate) static TABLE: MatTable = MatTable {
    band: 16,
    strip: |format, precision: Precision| -> StripFn {
        formats::strips::<Avx512>()[format.index][precision as usize]
    },
    quantise8: quantise::quantise8_with::<Avx512>,
    quantise16: quantise::quantise16_with::<Avx512>,
};

#[derive(Clone, Copy)]
pub(crate) struct Avx512;

/// In each 128-bit lane: dword j of register i becomes dword i of register j.
#[inline(always)]
unsafe fn transpose4(a: [__m512i; 4]) -> [__m512i; 4] {
    // SAFETY: the caller runs on AVX-512.
    unsafe {
        let lo01 = _mm512_unpacklo_epi32(a[0], a[1]);
        let hi01 = _mm512_unpackhi_epi32(a[0], a[1]);
        let lo23 = _mm512_unpacklo_epi32(a[2], a[3]);
        let hi23 = _mm512_unpackhi_epi32(a[2], a[3]);
        [
            _mm512_unpacklo_epi64(lo01, lo23),
            _mm512_unpackhi_epi64(lo01, lo23),
            _mm512_unpacklo_epi64(hi01, hi23),
            _mm512_unpackhi_epi64(hi01, hi23),
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

#[inline(always)]
unsafe fn join(a: __m128i, b: __m128i, c: __m128i, d: __m128i) -> __m512i {
    // SAFETY: the caller runs on AVX-512.
    unsafe {
        // Half-width instructions cost half as much.
        let lo = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(a), b);
        let hi = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(c), d);
        _mm512_inserti64x4::<1>(_mm512_castsi256_si512(lo), hi)
    }
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
impl Simd for Avx512 {
    const ROWS: usize = 16;
    const COLS: usize = 8;
    const DIRECT: usize = 4;
    const FLIP: u8 = 0x80;
    type I = __m512i;
    type F = __m512;
    type L = avx512_vec::Avx512;
    type Few = Self;
    type Many = Self;
    type Stored<S: Shape> = S;

    #[inline(always)]
    unsafe fn run<B: Body>(b: &mut B) {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,gfni,avx2,fma,f16c")]
        unsafe fn inner<B: Body>(b: &mut B) {
            unsafe { b.body() }
        }
        unsafe { inner(b) }
    }

    #[inline(always)]
    unsafe fn splat(x: u32) -> __m512i {
        unsafe { _mm512_set1_epi32(x as i32) }
    }
    #[inline(always)]
    unsafe fn splat_load(p: *const i32) -> __m512i {
        unsafe { _mm512_set1_epi32(p.read_unaligned()) }
    }
    #[inline(always)]
    unsafe fn and(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_and_si512(a, b) }
    }
    #[inline(always)]
    unsafe fn or(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_or_si512(a, b) }
    }
    #[inline(always)]
    unsafe fn xor(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_xor_si512(a, b) }
    }
    #[inline(always)]
    unsafe fn add(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_add_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn shl(a: __m512i, n: u32) -> __m512i {
        unsafe { _mm512_sllv_epi32(a, _mm512_set1_epi32(n as i32)) }
    }
    #[inline(always)]
    unsafe fn shr(a: __m512i, n: u32) -> __m512i {
        unsafe { _mm512_srlv_epi32(a, _mm512_set1_epi32(n as i32)) }
    }
    #[inline(always)]
    unsafe fn sra(a: __m512i, n: u32) -> __m512i {
        unsafe { _mm512_srav_epi32(a, _mm512_set1_epi32(n as i32)) }
    }
    #[inline(always)]
    unsafe fn field(a: __m512i, n: i32, mask: u8) -> __m512i {
        unsafe {
            if n == 0 {
                return Self::and(a, Self::splat(u32::from_ne_bytes([mask; 4])));
            }
            // A bit matrix per byte does it in one instruction, on ports that shuffles don't need. Its byte 7 - i selects what becomes
            // bit i.
            let mut matrix = 0u64;
            let mut i = 0;
            while i < 8 {
                if mask >> i & 1 == 1 {
                    matrix |= 1 << (i + n) << (8 * (7 - i));
                }
                i += 1;
            }
            _mm512_gf2p8affine_epi64_epi8::<0>(a, _mm512_set1_epi64(matrix as i64))
        }
    }
    #[inline(always)]
    unsafe fn lookup(table: [u8; 16], a: __m512i) -> __m512i {
        unsafe { _mm512_shuffle_epi8(_mm512_broadcast_i32x4(load16(table.as_ptr())), a) }
    }
    #[inline(always)]
    unsafe fn fifth_bits(a: __m512i, quad: usize) -> __m512i {
        // The permutation reads the low four bits of each lane: an index into all combinations of four bits.
        const SPREAD: [u32; 16] = {
            let mut t = [0u32; 16];
            let mut i = 0;
            while i < 16 {
                t[i as usize] = ((i & 1) | (i & 2) << 7 | (i & 4) << 14 | (i & 8) << 21) << 4;
                i += 1;
            }
            t
        };
        unsafe {
            let table = _mm512_loadu_si512(SPREAD.as_ptr().cast());
            _mm512_permutexvar_epi32(Self::shr(a, 4 * quad as u32), table)
        }
    }

    #[inline(always)]
    unsafe fn zero_f() -> __m512 {
        unsafe { _mm512_setzero_ps() }
    }
    #[inline(always)]
    unsafe fn splat_load_f(p: *const f32) -> __m512 {
        unsafe { _mm512_set1_ps(p.read_unaligned()) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn neg(a: __m512) -> __m512 {
        unsafe { _mm512_xor_ps(a, _mm512_set1_ps(-0.0)) }
    }
    #[inline(always)]
    unsafe fn to_f32(a: __m512i) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(a) }
    }
    #[inline(always)]
    unsafe fn cast_f(a: __m512i) -> __m512 {
        unsafe { _mm512_castsi512_ps(a) }
    }
    #[inline(always)]
    unsafe fn half(a: __m512i) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm512_cvtepi32_epi16(a)) }
    }

    #[inline(always)]
    unsafe fn load(p: *const u8) -> __m512i {
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut u8, a: __m512i) {
        unsafe { _mm512_storeu_si512(p.cast(), a) }
    }
    #[inline(always)]
    unsafe fn load_words(p: *const u8) -> __m512i {
        unsafe { _mm512_cvtepu16_epi32(load32(p)) }
    }
    #[inline(always)]
    unsafe fn load_halves(p: *const u8) -> __m512 {
        unsafe { _mm512_cvtph_ps(load32(p)) }
    }
    #[inline(always)]
    unsafe fn load_f(p: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store_f(p: *mut f32, a: __m512) {
        unsafe { _mm512_storeu_ps(p, a) }
    }

    #[inline(always)]
    unsafe fn rows_half(rows: &Rows, offset: usize) -> __m512 {
        unsafe {
            let lo = eight_words(rows, 0, offset);
            let hi = eight_words(rows, 8, offset);
            _mm512_cvtph_ps(_mm256_set_m128i(hi, lo))
        }
    }
    #[inline(always)]
    unsafe fn rows4(rows: &Rows, offset: usize) -> __m512i {
        unsafe {
            let word = |r: usize| _mm_cvtsi32_si128(rows.at(r, offset).cast::<i32>().read_unaligned());
            let four = |r: usize| {
                let lo = _mm_unpacklo_epi32(word(r), word(r + 1));
                _mm_unpacklo_epi64(lo, _mm_unpacklo_epi32(word(r + 2), word(r + 3)))
            };
            join(four(0), four(4), four(8), four(12))
        }
    }
    #[inline(always)]
    unsafe fn rows8(rows: &Rows, offset: usize) -> [__m512i; 2] {
        unsafe {
            let two = |r: usize| load8x2(rows.at(r, offset), rows.at(r + 1, offset));
            let even = _mm512_castsi512_ps(join(two(0), two(4), two(8), two(12)));
            let odd = _mm512_castsi512_ps(join(two(2), two(6), two(10), two(14)));
            [
                _mm512_castps_si512(_mm512_shuffle_ps::<0x88>(even, odd)),
                _mm512_castps_si512(_mm512_shuffle_ps::<0xdd>(even, odd)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn rows16(rows: &Rows, offset: usize) -> [__m512i; 4] {
        unsafe {
            let row = |r: usize| load16(rows.at(r, offset));
            let four = |r: usize| join(row(r), row(r + 4), row(r + 8), row(r + 12));
            transpose4([four(0), four(1), four(2), four(3)])
        }
    }
    #[inline(always)]
    unsafe fn rows32(rows: &Rows, offset: usize) -> [__m512i; 8] {
        unsafe {
            let row = |r: usize| load32(rows.at(r, offset));
            let two = |r: usize| _mm512_inserti64x4::<1>(_mm512_castsi256_si512(row(r)), row(r + 4));
            // Lanes: rows 0..4 bytes 0..16, the same rows' bytes 16..32, rows 4..8 likewise.
            let a = transpose4([two(0), two(1), two(2), two(3)]);
            let b = transpose4([two(8), two(9), two(10), two(11)]);
            let lo = |i: usize| _mm512_shuffle_i32x4::<0x88>(a[i], b[i]);
            let hi = |i: usize| _mm512_shuffle_i32x4::<0xdd>(a[i], b[i]);
            [lo(0), lo(1), lo(2), lo(3), hi(0), hi(1), hi(2), hi(3)]
        }
    }

    #[inline(always)]
    unsafe fn less(a: __m512i, zero: u8) -> __m512i {
        unsafe { _mm512_sub_epi8(a, _mm512_set1_epi8(zero as i8)) }
    }

    #[inline(always)]
    unsafe fn dot16(acc: __m512i, w: &[__m512i; 4], a: *const i8, _max: u32) -> __m512i {
        unsafe {
            let a = |i: usize| _mm512_set1_epi32(a.cast::<i32>().add(i).read_unaligned());
            let acc = _mm512_dpbusd_epi32(acc, w[0], a(0));
            let acc = _mm512_dpbusd_epi32(acc, w[1], a(1));
            let acc = _mm512_dpbusd_epi32(acc, w[2], a(2));
            _mm512_dpbusd_epi32(acc, w[3], a(3))
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
