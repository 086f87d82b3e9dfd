//! Sixteen lanes as one AVX-512 register.

use std::arch::x86_64::*;

use crate::math::{Arith, LANES, Lanes};
use crate::vecops::fill_table;

fill_table!(Avx512, #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]);

/// Proof that the CPU has AVX-512 F, BW, DQ and VL (and with them AVX2, FMA and F16C).
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

/// Methods that are one intrinsic.
macro_rules! one {
    ($($name:ident($($arg:ident),+) = $intrinsic:ident;)*) => {$(
        #[inline(always)]
        fn $name(self, $($arg: __m512),+) -> __m512 {
            // SAFETY: `self` proves AVX-512.
            unsafe { $intrinsic($($arg),+) }
        }
    )*};
}

impl Arith for Avx512 {
    type V = __m512;
    one! {
        add(a, b) = _mm512_add_ps;
        sub(a, b) = _mm512_sub_ps;
        mul(a, b) = _mm512_mul_ps;
        div(a, b) = _mm512_div_ps;
        fma(a, b, c) = _mm512_fmadd_ps;
        fnma(a, b, c) = _mm512_fnmadd_ps;
        max(a, b) = _mm512_max_ps;
        min(a, b) = _mm512_min_ps;
        abs(a) = _mm512_abs_ps;
    }
    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    fn copysign(self, a: __m512, sign: __m512) -> __m512 {
        // SAFETY: `self` proves AVX-512.
        unsafe {
            let bit = _mm512_set1_ps(-0.0);
            _mm512_or_ps(_mm512_andnot_ps(bit, a), _mm512_and_ps(bit, sign))
        }
    }
    #[inline(always)]
    fn select_lt(self, a: __m512, b: __m512, x: __m512, y: __m512) -> __m512 {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), y, x) }
    }
    #[inline(always)]
    fn shl23(self, a: __m512) -> __m512 {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_castps_si512(a))) }
    }
}

impl Lanes for Avx512 {
    const WIDE: bool = true;
    #[inline(always)]
    unsafe fn assume() -> Self {
        Avx512(())
    }
    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> __m512 {
        // SAFETY: `self` proves AVX-512; the array holds 16 values.
        unsafe { _mm512_loadu_ps(x.as_ptr()) }
    }
    #[inline(always)]
    fn store(self, v: __m512, out: &mut [f32; LANES]) {
        // SAFETY: `self` proves AVX-512; the array holds 16 values.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), v) }
    }
    #[inline(always)]
    fn load_f16(self, x: &[u16; LANES]) -> __m512 {
        // SAFETY: `self` proves AVX-512; the array holds 16 halves, 32 bytes.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(x.as_ptr().cast())) }
    }
    #[inline(always)]
    fn store_f16(self, v: __m512, out: &mut [u16; LANES]) {
        // SAFETY: `self` proves AVX-512; the array holds 16 halves, 32 bytes.
        unsafe {
            let h = _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v);
            _mm256_storeu_si256(out.as_mut_ptr().cast(), h);
        }
    }
    #[inline(always)]
    fn swap_pairs(self, v: __m512) -> __m512 {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_permute_ps::<0b10_11_00_01>(v) }
    }
    #[inline(always)]
    fn any_gt(self, a: __m512, b: __m512) -> bool {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, b) != 0 }
    }
    #[inline(always)]
    fn load_i8(self, x: &[i8; LANES]) -> __m512 {
        // SAFETY: `self` proves AVX-512; the array holds 16 bytes.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(x.as_ptr().cast()))) }
    }
    #[inline(always)]
    fn load_i4(self, x: &[u8; LANES], high: bool) -> __m512 {
        // SAFETY: `self` proves AVX-512; the array holds 16 bytes.
        unsafe {
            let wide = _mm512_cvtepu8_epi32(_mm_loadu_si128(x.as_ptr().cast()));
            let nibbles = if high {
                _mm512_srli_epi32::<4>(wide)
            } else {
                _mm512_and_si512(wide, _mm512_set1_epi32(15))
            };
            _mm512_cvtepi32_ps(_mm512_sub_epi32(nibbles, _mm512_set1_epi32(8)))
        }
    }
    #[inline(always)]
    fn splat_f16(self, x: u16) -> __m512 {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_cvtph_ps(_mm256_set1_epi16(x.cast_signed())) }
    }
    #[inline(always)]
    fn prefetch<T>(self, p: *const T) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
    #[inline(always)]
    fn sum(self, v: __m512) -> f32 {
        // SAFETY: `self` proves AVX-512 (DQ for the 256-bit extract).
        unsafe {
            let s = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
            let s = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps::<1>(s));
            let s = _mm_add_ps(s, _mm_movehl_ps(s, s));
            _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)))
        }
    }
    #[inline(always)]
    fn max_lane(self, v: __m512) -> f32 {
        // SAFETY: `self` proves AVX-512 (DQ for the 256-bit extract).
        unsafe {
            let s = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
            let s = _mm_max_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps::<1>(s));
            let s = _mm_max_ps(s, _mm_movehl_ps(s, s));
            _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)))
        }
    }
    #[inline(always)]
    fn sum_each(self, v: &[__m512; LANES]) -> __m512 {
        // SAFETY: `self` proves AVX-512.
        unsafe {
            // Each step adds the two halves of the partial sums that are left, and packs the results of two vectors into one.
            // Eight left: halves are 256 bits. `a[i]` = (vector i, vector i + 8).
            let mut a = [_mm512_setzero_ps(); 8];
            for i in 0..8 {
                let lo = _mm512_shuffle_f32x4::<0x44>(v[i], v[i + 8]);
                let hi = _mm512_shuffle_f32x4::<0xee>(v[i], v[i + 8]);
                a[i] = _mm512_add_ps(lo, hi);
            }
            // Four left: 128-bit quarters. `b[i]` = (i, i + 8, i + 4, i + 12).
            let mut b = [_mm512_setzero_ps(); 4];
            for i in 0..4 {
                let even = _mm512_shuffle_f32x4::<0x88>(a[i], a[i + 4]);
                let odd = _mm512_shuffle_f32x4::<0xdd>(a[i], a[i + 4]);
                b[i] = _mm512_add_ps(even, odd);
            }
            // Two left, then one: within the quarters, lane j of a quarter comes from `b[j]`.
            let c0 =
                _mm512_add_ps(_mm512_shuffle_ps::<0x44>(b[0], b[1]), _mm512_shuffle_ps::<0xee>(b[0], b[1]));
            let c1 =
                _mm512_add_ps(_mm512_shuffle_ps::<0x44>(b[2], b[3]), _mm512_shuffle_ps::<0xee>(b[2], b[3]));
            let d = _mm512_add_ps(_mm512_shuffle_ps::<0x88>(c0, c1), _mm512_shuffle_ps::<0xdd>(c0, c1));
            // Quarters are in the order 0, 8, 4, 12: exchange the middle two.
            _mm512_shuffle_f32x4::<0b11_01_10_00>(d, d)
        }
    }
    #[inline(always)]
    fn transpose(self, v: &mut [__m512; LANES]) {
        // SAFETY: `self` proves AVX-512.
        unsafe {
            // 4x4 blocks inside the quarters first, then the quarters themselves.
            let mut t = [_mm512_setzero_ps(); LANES];
            for i in 0..4 {
                let r = 4 * i;
                let a = _mm512_unpacklo_ps(v[r], v[r + 1]);
                let b = _mm512_unpackhi_ps(v[r], v[r + 1]);
                let c = _mm512_unpacklo_ps(v[r + 2], v[r + 3]);
                let d = _mm512_unpackhi_ps(v[r + 2], v[r + 3]);
                t[r] = _mm512_shuffle_ps::<0x44>(a, c);
                t[r + 1] = _mm512_shuffle_ps::<0xee>(a, c);
                t[r + 2] = _mm512_shuffle_ps::<0x44>(b, d);
                t[r + 3] = _mm512_shuffle_ps::<0xee>(b, d);
            }
            // Quarter q of t[4 r + c] holds column 4 q + c of rows 4 r .. 4 r + 4.
            for c in 0..4 {
                let lo_even = _mm512_shuffle_f32x4::<0x88>(t[c], t[4 + c]);
                let lo_odd = _mm512_shuffle_f32x4::<0xdd>(t[c], t[4 + c]);
                let hi_even = _mm512_shuffle_f32x4::<0x88>(t[8 + c], t[12 + c]);
                let hi_odd = _mm512_shuffle_f32x4::<0xdd>(t[8 + c], t[12 + c]);
                v[c] = _mm512_shuffle_f32x4::<0x88>(lo_even, hi_even);
                v[8 + c] = _mm512_shuffle_f32x4::<0xdd>(lo_even, hi_even);
                v[4 + c] = _mm512_shuffle_f32x4::<0x88>(lo_odd, hi_odd);
                v[12 + c] = _mm512_shuffle_f32x4::<0xdd>(lo_odd, hi_odd);
            }
        }
    }
}
