//! Sixteen lanes as four NEON registers. All levels of NEON share it: the later extensions that matter here are about integers.

use std::arch::aarch64::*;

use crate::math::{Arith, LANES, Lanes};
use crate::vecops::fill_table;

fill_table!(Neon);

/// NEON belongs to every AArch64 processor, so there is nothing to prove.
#[derive(Clone, Copy)]
pub(crate) struct Neon;

/// Lanes 0..4, 4..8, 8..12, 12..16.
#[derive(Clone, Copy)]
pub(crate) struct V([float32x4_t; 4]);

/// Applies an expression of quarter `i` to all four.
macro_rules! quarters {
    ($i:ident => $e:expr) => {{
        let quarter = |$i: usize| $e;
        V([quarter(0), quarter(1), quarter(2), quarter(3)])
    }};
}

/// Methods that apply one intrinsic to each quarter.
macro_rules! each {
    ($($name:ident($($arg:ident),+) = $intrinsic:ident($($order:ident),+);)*) => {$(
        #[inline(always)]
        fn $name(self, $($arg: V),+) -> V {
            // SAFETY: every AArch64 processor has NEON.
            unsafe { quarters!(i => $intrinsic($($order.0[i]),+)) }
        }
    )*};
}

/// `a > b ? a : b` with the meaning of [`Arith::max`] for NaN, which `fmax` does not have.
#[inline(always)]
unsafe fn max4(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    // SAFETY: every AArch64 processor has NEON.
    unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) }
}

#[inline(always)]
unsafe fn min4(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    // SAFETY: every AArch64 processor has NEON.
    unsafe { vbslq_f32(vcltq_f32(a, b), a, b) }
}

impl Arith for Neon {
    type V = V;
    each! {
        add(a, b) = vaddq_f32(a, b);
        sub(a, b) = vsubq_f32(a, b);
        mul(a, b) = vmulq_f32(a, b);
        div(a, b) = vdivq_f32(a, b);
        fma(a, b, c) = vfmaq_f32(c, a, b);
        fnma(a, b, c) = vfmsq_f32(c, a, b);
        max(a, b) = max4(a, b);
        min(a, b) = min4(a, b);
        abs(a) = vabsq_f32(a);
    }
    #[inline(always)]
    fn splat(self, x: f32) -> V {
        // SAFETY: every AArch64 processor has NEON.
        V([unsafe { vdupq_n_f32(x) }; 4])
    }
    #[inline(always)]
    fn copysign(self, a: V, sign: V) -> V {
        // SAFETY: every AArch64 processor has NEON.
        unsafe {
            let bit = vdupq_n_u32(0x8000_0000);
            quarters!(i => vbslq_f32(bit, sign.0[i], a.0[i]))
        }
    }
    #[inline(always)]
    fn select_lt(self, a: V, b: V, x: V, y: V) -> V {
        // SAFETY: every AArch64 processor has NEON.
        unsafe { quarters!(i => vbslq_f32(vcltq_f32(a.0[i], b.0[i]), x.0[i], y.0[i])) }
    }
    #[inline(always)]
    fn shl23(self, a: V) -> V {
        // SAFETY: every AArch64 processor has NEON.
        unsafe { quarters!(i => vreinterpretq_f32_u32(vshlq_n_u32::<23>(vreinterpretq_u32_f32(a.0[i])))) }
    }
}

impl Lanes for Neon {
    /// 32 registers are eight times sixteen lanes, as with AVX2.
    const WIDE: bool = false;
    #[inline(always)]
    unsafe fn assume() -> Self {
        Neon
    }
    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> V {
        // SAFETY: the array holds 16 values, four loads of four.
        unsafe { quarters!(i => vld1q_f32(x.as_ptr().add(4 * i))) }
    }
    #[inline(always)]
    fn store(self, v: V, out: &mut [f32; LANES]) {
        for (i, v) in v.0.into_iter().enumerate() {
            // SAFETY: the array holds 16 values, four stores of four.
            unsafe { vst1q_f32(out.as_mut_ptr().add(4 * i), v) };
        }
    }
    #[inline(always)]
    fn load_f16(self, x: &[u16; LANES]) -> V {
        // SAFETY: the array holds 16 halves, four loads of four.
        unsafe { quarters!(i => vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(x.as_ptr().add(4 * i))))) }
    }
    #[inline(always)]
    fn store_f16(self, v: V, out: &mut [u16; LANES]) {
        for (i, v) in v.0.into_iter().enumerate() {
            // SAFETY: the array holds 16 halves, four stores of four. The rounding mode is never changed from nearest even.
            unsafe { vst1_u16(out.as_mut_ptr().add(4 * i), vreinterpret_u16_f16(vcvt_f16_f32(v))) };
        }
    }
    #[inline(always)]
    fn swap_pairs(self, v: V) -> V {
        // SAFETY: every AArch64 processor has NEON.
        unsafe { quarters!(i => vrev64q_f32(v.0[i])) }
    }
    #[inline(always)]
    fn any_gt(self, a: V, b: V) -> bool {
        // SAFETY: every AArch64 processor has NEON.
        unsafe {
            let gt = |i: usize| vcgtq_f32(a.0[i], b.0[i]);
            vmaxvq_u32(vorrq_u32(vorrq_u32(gt(0), gt(1)), vorrq_u32(gt(2), gt(3)))) != 0
        }
    }
    #[inline(always)]
    fn prefetch<T>(self, p: *const T) {
        // SAFETY: a prefetch never faults.
        unsafe {
            std::arch::asm!("prfm pldl1keep, [{}]", in(reg) p, options(nomem, nostack, preserves_flags));
        }
    }
    #[inline(always)]
    fn sum(self, v: V) -> f32 {
        // SAFETY: every AArch64 processor has NEON.
        unsafe {
            let s = four(&v);
            let s = vadd_f32(vget_low_f32(s), vget_high_f32(s));
            vget_lane_f32::<0>(vpadd_f32(s, s))
        }
    }
    #[inline(always)]
    fn max_lane(self, v: V) -> f32 {
        // SAFETY: every AArch64 processor has NEON.
        unsafe {
            let s = max4(max4(v.0[0], v.0[2]), max4(v.0[1], v.0[3]));
            // The upper half under the lower one, then its second lane under the first: only lane 0 matters in the end.
            let s = max4(s, vextq_f32::<2>(s, s));
            vgetq_lane_f32::<0>(max4(s, vextq_f32::<1>(s, s)))
        }
    }
    #[inline(always)]
    fn sum_each(self, v: &[V; LANES]) -> V {
        // SAFETY: every AArch64 processor has NEON.
        unsafe { quarters!(i => sum_four(v, 4 * i)) }
    }
    #[inline(always)]
    fn transpose(self, v: &mut [V; LANES]) {
        let t = *v;
        for column in 0..4 {
            for row in 0..4 {
                let at = |i: usize| t[4 * row + i].0[column];
                // SAFETY: every AArch64 processor has NEON.
                let block = unsafe { transpose4([at(0), at(1), at(2), at(3)]) };
                for i in 0..4 {
                    v[4 * column + i].0[row] = block[i];
                }
            }
        }
    }
}

/// Sixteen partial sums to four: `p[i] += p[i + 8]`, `p[i] += p[i + 4]`.
#[inline(always)]
unsafe fn four(v: &V) -> float32x4_t {
    // SAFETY: every AArch64 processor has NEON.
    unsafe { vaddq_f32(vaddq_f32(v.0[0], v.0[2]), vaddq_f32(v.0[1], v.0[3])) }
}

/// Lane `i` is the tree sum of `v[base + i]`: after the first two steps, two vectors share a register, then four.
#[inline(always)]
unsafe fn sum_four(v: &[V; LANES], base: usize) -> float32x4_t {
    // SAFETY: every AArch64 processor has NEON.
    unsafe {
        let two = |i: usize| {
            let a = vreinterpretq_f64_f32(four(&v[base + i]));
            let b = vreinterpretq_f64_f32(four(&v[base + i + 1]));
            vaddq_f32(vreinterpretq_f32_f64(vzip1q_f64(a, b)), vreinterpretq_f32_f64(vzip2q_f64(a, b)))
        };
        vpaddq_f32(two(0), two(2))
    }
}

#[inline(always)]
unsafe fn transpose4(r: [float32x4_t; 4]) -> [float32x4_t; 4] {
    // SAFETY: every AArch64 processor has NEON.
    unsafe {
        let wide = |x: float32x4_t| vreinterpretq_f64_f32(x);
        let even = [wide(vtrn1q_f32(r[0], r[1])), wide(vtrn1q_f32(r[2], r[3]))];
        let odd = [wide(vtrn2q_f32(r[0], r[1])), wide(vtrn2q_f32(r[2], r[3]))];
        [
            vreinterpretq_f32_f64(vzip1q_f64(even[0], even[1])),
            vreinterpretq_f32_f64(vzip1q_f64(odd[0], odd[1])),
            vreinterpretq_f32_f64(vzip2q_f64(even[0], even[1])),
            vreinterpretq_f32_f64(vzip2q_f64(odd[0], odd[1])),
        ]
    }
}
