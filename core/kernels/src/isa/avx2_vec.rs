//! Sixteen lanes as two AVX registers (AVX2, FMA, F16C).

use std::arch::x86_64::*;

use crate::math::{Arith, LANES, Lanes};
use crate::vecops::fill_table;

fill_table!(Avx2, #[target_feature(enable = "avx2,fma,f16c")]);

/// Proof that the CPU has AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

/// Lanes 0..8 and 8..16.
#[derive(Clone, Copy)]
pub(crate) struct V(__m256, __m256);

/// Methods that apply one intrinsic to both halves.
macro_rules! both {
    ($($name:ident($($arg:ident),+) = $intrinsic:ident;)*) => {$(
        #[inline(always)]
        fn $name(self, $($arg: V),+) -> V {
            // SAFETY: `self` proves AVX2 and FMA.
            unsafe { V($intrinsic($($arg.0),+), $intrinsic($($arg.1),+)) }
        }
    )*};
}

impl Arith for Avx2 {
    type V = V;
    both! {
        add(a, b) = _mm256_add_ps;
        sub(a, b) = _mm256_sub_ps;
        mul(a, b) = _mm256_mul_ps;
        div(a, b) = _mm256_div_ps;
        fma(a, b, c) = _mm256_fmadd_ps;
        fnma(a, b, c) = _mm256_fnmadd_ps;
        max(a, b) = _mm256_max_ps;
        min(a, b) = _mm256_min_ps;
    }
    #[inline(always)]
    fn splat(self, x: f32) -> V {
        // SAFETY: `self` proves AVX2.
        unsafe { V(_mm256_set1_ps(x), _mm256_set1_ps(x)) }
    }
    #[inline(always)]
    fn abs(self, a: V) -> V {
        // SAFETY: `self` proves AVX2.
        unsafe {
            let sign = _mm256_set1_ps(-0.0);
            V(_mm256_andnot_ps(sign, a.0), _mm256_andnot_ps(sign, a.1))
        }
    }
    #[inline(always)]
    fn copysign(self, a: V, sign: V) -> V {
        // SAFETY: `self` proves AVX2.
        unsafe {
            let bit = _mm256_set1_ps(-0.0);
            V(
                _mm256_or_ps(_mm256_andnot_ps(bit, a.0), _mm256_and_ps(bit, sign.0)),
                _mm256_or_ps(_mm256_andnot_ps(bit, a.1), _mm256_and_ps(bit, sign.1)),
            )
        }
    }
    #[inline(always)]
    fn select_lt(self, a: V, b: V, x: V, y: V) -> V {
        // SAFETY: `self` proves AVX2.
        unsafe {
            V(
                _mm256_blendv_ps(y.0, x.0, _mm256_cmp_ps::<_CMP_LT_OQ>(a.0, b.0)),
                _mm256_blendv_ps(y.1, x.1, _mm256_cmp_ps::<_CMP_LT_OQ>(a.1, b.1)),
            )
        }
    }
    #[inline(always)]
    fn shl23(self, a: V) -> V {
        // SAFETY: `self` proves AVX2.
        unsafe {
            V(
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_castps_si256(a.0))),
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_castps_si256(a.1))),
            )
        }
    }
}

impl Lanes for Avx2 {
    const WIDE: bool = false;
    #[inline(always)]
    unsafe fn assume() -> Self {
        Avx2(())
    }
    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> V {
        // SAFETY: `self` proves AVX2; the array holds 16 values.
        unsafe { V(_mm256_loadu_ps(x.as_ptr()), _mm256_loadu_ps(x.as_ptr().add(8))) }
    }
    #[inline(always)]
    fn store(self, v: V, out: &mut [f32; LANES]) {
        // SAFETY: `self` proves AVX2; the array holds 16 values.
        unsafe {
            _mm256_storeu_ps(out.as_mut_ptr(), v.0);
            _mm256_storeu_ps(out.as_mut_ptr().add(8), v.1);
        }
    }
    #[inline(always)]
    fn load_f16(self, x: &[u16; LANES]) -> V {
        // SAFETY: `self` proves F16C; the array holds 16 halves, two loads of 16 bytes.
        unsafe {
            let p = x.as_ptr().cast::<__m128i>();
            V(_mm256_cvtph_ps(_mm_loadu_si128(p)), _mm256_cvtph_ps(_mm_loadu_si128(p.add(1))))
        }
    }
    #[inline(always)]
    fn store_f16(self, v: V, out: &mut [u16; LANES]) {
        // SAFETY: `self` proves F16C; the array holds 16 halves, two stores of 16 bytes.
        unsafe {
            let p = out.as_mut_ptr().cast::<__m128i>();
            _mm_storeu_si128(p, _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v.0));
            _mm_storeu_si128(p.add(1), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v.1));
        }
    }
    #[inline(always)]
    fn swap_pairs(self, v: V) -> V {
        // SAFETY: `self` proves AVX2.
        unsafe { V(_mm256_permute_ps::<0b10_11_00_01>(v.0), _mm256_permute_ps::<0b10_11_00_01>(v.1)) }
    }
    #[inline(always)]
    fn any_gt(self, a: V, b: V) -> bool {
        // SAFETY: `self` proves AVX2.
        unsafe {
            let lo = _mm256_cmp_ps::<_CMP_GT_OQ>(a.0, b.0);
            let hi = _mm256_cmp_ps::<_CMP_GT_OQ>(a.1, b.1);
            _mm256_movemask_ps(_mm256_or_ps(lo, hi)) != 0
        }
    }
    #[inline(always)]
    fn load_i8(self, x: &[i8; LANES]) -> V {
        // SAFETY: `self` proves AVX2; the array holds 16 bytes, two loads of 8.
        unsafe {
            let p = x.as_ptr().cast::<u8>();
            let (lo, hi) = (_mm_loadl_epi64(p.cast()), _mm_loadl_epi64(p.add(8).cast()));
            V(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(lo)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(hi)))
        }
    }
    #[inline(always)]
    fn load_i4(self, x: &[u8; LANES], high: bool) -> V {
        // SAFETY: `self` proves AVX2; the array holds 16 bytes.
        unsafe {
            let bytes = _mm_loadu_si128(x.as_ptr().cast());
            let bytes = if high { _mm_srli_epi16::<4>(bytes) } else { bytes };
            let ints = _mm_sub_epi8(_mm_and_si128(bytes, _mm_set1_epi8(15)), _mm_set1_epi8(8));
            let (lo, hi) = (ints, _mm_srli_si128::<8>(ints));
            V(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(lo)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(hi)))
        }
    }
    #[inline(always)]
    fn splat_f16(self, x: u16) -> V {
        // SAFETY: `self` proves F16C.
        unsafe {
            let v = _mm256_cvtph_ps(_mm_set1_epi16(x.cast_signed()));
            V(v, v)
        }
    }
    #[inline(always)]
    fn prefetch<T>(self, p: *const T) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
    #[inline(always)]
    fn sum(self, v: V) -> f32 {
        // SAFETY: `self` proves AVX2.
        unsafe {
            let s = _mm256_add_ps(v.0, v.1);
            let s = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps::<1>(s));
            let s = _mm_add_ps(s, _mm_movehl_ps(s, s));
            _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)))
        }
    }
    #[inline(always)]
    fn max_lane(self, v: V) -> f32 {
        // SAFETY: `self` proves AVX2.
        unsafe {
            let s = _mm256_max_ps(v.0, v.1);
            let s = _mm_max_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps::<1>(s));
            let s = _mm_max_ps(s, _mm_movehl_ps(s, s));
            _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)))
        }
    }
    #[inline(always)]
    fn sum_each(self, v: &[V; LANES]) -> V {
        // SAFETY: `self` proves AVX2.
        unsafe { V(sum_eight(v, 0), sum_eight(v, 8)) }
    }
    #[inline(always)]
    fn transpose(self, v: &mut [V; LANES]) {
        let t = *v;
        // SAFETY: `self` proves AVX2.
        unsafe {
            let a = transpose8([t[0].0, t[1].0, t[2].0, t[3].0, t[4].0, t[5].0, t[6].0, t[7].0]);
            let b = transpose8([t[8].0, t[9].0, t[10].0, t[11].0, t[12].0, t[13].0, t[14].0, t[15].0]);
            for i in 0..8 {
                v[i] = V(a[i], b[i]);
            }
            let a = transpose8([t[0].1, t[1].1, t[2].1, t[3].1, t[4].1, t[5].1, t[6].1, t[7].1]);
            let b = transpose8([t[8].1, t[9].1, t[10].1, t[11].1, t[12].1, t[13].1, t[14].1, t[15].1]);
            for i in 0..8 {
                v[8 + i] = V(a[i], b[i]);
            }
        }
    }
}

/// Lane `i` is the tree sum of `v[base + i]`: the tree of eight vectors at once, halves of two vectors sharing a register after
/// each step.
///
/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn sum_eight(v: &[V; LANES], base: usize) -> __m256 {
    // SAFETY: AVX2 by the precondition.
    unsafe {
        // Eight partial sums each, then four each: `q[i]` holds those of vector i (low half) and of vector i + 4 (high half).
        let mut q = [_mm256_setzero_ps(); 4];
        for i in 0..4 {
            let a = _mm256_add_ps(v[base + i].0, v[base + i].1);
            let b = _mm256_add_ps(v[base + i + 4].0, v[base + i + 4].1);
            q[i] = _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(a, b), _mm256_permute2f128_ps::<0x31>(a, b));
        }
        // Two each, lanes (a0 a1 b0 b1) of both halves, then one each.
        let r0 = _mm256_add_ps(_mm256_shuffle_ps::<0x44>(q[0], q[1]), _mm256_shuffle_ps::<0xee>(q[0], q[1]));
        let r1 = _mm256_add_ps(_mm256_shuffle_ps::<0x44>(q[2], q[3]), _mm256_shuffle_ps::<0xee>(q[2], q[3]));
        _mm256_add_ps(_mm256_shuffle_ps::<0x88>(r0, r1), _mm256_shuffle_ps::<0xdd>(r0, r1))
    }
}

/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn transpose8(r: [__m256; 8]) -> [__m256; 8] {
    // SAFETY: AVX2 by the precondition.
    unsafe {
        let t0 = _mm256_unpacklo_ps(r[0], r[1]);
        let t1 = _mm256_unpackhi_ps(r[0], r[1]);
        let t2 = _mm256_unpacklo_ps(r[2], r[3]);
        let t3 = _mm256_unpackhi_ps(r[2], r[3]);
        let t4 = _mm256_unpacklo_ps(r[4], r[5]);
        let t5 = _mm256_unpackhi_ps(r[4], r[5]);
        let t6 = _mm256_unpacklo_ps(r[6], r[7]);
        let t7 = _mm256_unpackhi_ps(r[6], r[7]);
        let u0 = _mm256_shuffle_ps::<0x44>(t0, t2);
        let u1 = _mm256_shuffle_ps::<0xee>(t0, t2);
        let u2 = _mm256_shuffle_ps::<0x44>(t1, t3);
        let u3 = _mm256_shuffle_ps::<0xee>(t1, t3);
        let u4 = _mm256_shuffle_ps::<0x44>(t4, t6);
        let u5 = _mm256_shuffle_ps::<0xee>(t4, t6);
        let u6 = _mm256_shuffle_ps::<0x44>(t5, t7);
        let u7 = _mm256_shuffle_ps::<0xee>(t5, t7);
        [
            _mm256_permute2f128_ps::<0x20>(u0, u4),
            _mm256_permute2f128_ps::<0x20>(u1, u5),
            _mm256_permute2f128_ps::<0x20>(u2, u6),
            _mm256_permute2f128_ps::<0x20>(u3, u7),
            _mm256_permute2f128_ps::<0x31>(u0, u4),
            _mm256_permute2f128_ps::<0x31>(u1, u5),
            _mm256_permute2f128_ps::<0x31>(u2, u6),
            _mm256_permute2f128_ps::<0x31>(u3, u7),
        ]
    }
}
