//! The lane traits and their scalar implementation, the oracle of all others.

use half::f16;

/// Lanes of one vector, and partial sums of one reduction (ARCHITECTURE.md, "Float weights and float dots").
pub(crate) const LANES: usize = 16;

/// Lane-wise operations, each with exactly one correct result on every ISA (NaN payloads apart).
pub(crate) trait Arith: Copy {
    type V: Copy;
    fn splat(self, x: f32) -> Self::V;
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `c - a * b`, rounded once.
    fn fnma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `a > b ? a : b`: a NaN on either side yields `b`.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a < b ? a : b`: a NaN on either side yields `b`.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    fn abs(self, a: Self::V) -> Self::V;
    /// The magnitude of `a` with the sign of `sign`.
    fn copysign(self, a: Self::V, sign: Self::V) -> Self::V;
    /// `a < b ? x : y`.
    fn select_lt(self, a: Self::V, b: Self::V, x: Self::V, y: Self::V) -> Self::V;
    /// The bits of `a` shifted left by 23: turns an integer kept in the low mantissa bits into an exponent.
    fn shl23(self, a: Self::V) -> Self::V;
}

/// Sixteen `f32` lanes.
///
/// A value of an implementing type is a proof that the running CPU has the ISA: the types other than [`ScalarLanes`] can only be made
/// by [`Lanes::assume`], whose precondition it is, so every method is safe.
pub(crate) trait Lanes: Arith + Send + Sync + 'static {
    /// Whether sixteen lanes are one register (and there are 32 of them), which decides how large register tiles may be.
    const WIDE: bool;
    /// # Safety
    /// The running CPU has the ISA.
    unsafe fn assume() -> Self;
    fn load(self, x: &[f32; LANES]) -> Self::V;
    fn store(self, v: Self::V, out: &mut [f32; LANES]);
    /// Exact.
    fn load_f16(self, x: &[u16; LANES]) -> Self::V;
    /// Rounds to nearest, ties to even.
    fn store_f16(self, v: Self::V, out: &mut [u16; LANES]);
    /// Lanes 0 and 1 exchanged, 2 and 3, and so on.
    fn swap_pairs(self, v: Self::V) -> Self::V;
    fn any_gt(self, a: Self::V, b: Self::V) -> bool;

    /// Exact.
    #[inline(always)]
    fn load_i8(self, x: &[i8; LANES]) -> Self::V {
        let mut out = [0.0; LANES];
        for i in 0..LANES {
            out[i] = f32::from(x[i]);
        }
        self.load(&out)
    }

    /// The low or the high nibbles, less 8. Exact.
    #[inline(always)]
    fn load_i4(self, x: &[u8; LANES], high: bool) -> Self::V {
        let mut out = [0.0; LANES];
        for i in 0..LANES {
            let nibble = if high { x[i] >> 4 } else { x[i] & 15 };
            out[i] = f32::from(nibble) - 8.0;
        }
        self.load(&out)
    }

    /// One half in all lanes. Exact.
    #[inline(always)]
    fn splat_f16(self, x: u16) -> Self::V {
        self.load_f16(&[x; LANES])
    }

    /// A hint that the cache line at `p` is read soon. Any address is allowed.
    #[inline(always)]
    fn prefetch<T>(self, p: *const T) {
        let _ = p;
    }

    /// The fixed tree: `p[i] += p[i + 8]`, `p[i] += p[i + 4]`, `p[i] += p[i + 2]`, `p[0] + p[1]`.
    #[inline(always)]
    fn sum(self, v: Self::V) -> f32 {
        let mut p = [0.0; LANES];
        self.store(v, &mut p);
        tree_sum(&mut p)
    }

    /// The same tree with [`Arith::max`].
    #[inline(always)]
    fn max_lane(self, v: Self::V) -> f32 {
        let mut p = [0.0; LANES];
        self.store(v, &mut p);
        for width in [8, 4, 2, 1] {
            for i in 0..width {
                p[i] = Single.max(p[i], p[i + width]);
            }
        }
        p[0]
    }

    /// Lane `i` of the result is [`Lanes::sum`] of `v[i]`.
    #[inline(always)]
    fn sum_each(self, v: &[Self::V; LANES]) -> Self::V {
        let mut sums = [0.0; LANES];
        for i in 0..LANES {
            sums[i] = self.sum(v[i]);
        }
        self.load(&sums)
    }

    /// Lane `i` of `v[j]` becomes lane `j` of `v[i]`.
    #[inline(always)]
    fn transpose(self, v: &mut [Self::V; LANES]) {
        let mut rows = [[0.0; LANES]; LANES];
        for i in 0..LANES {
            self.store(v[i], &mut rows[i]);
        }
        for i in 0..LANES {
            let mut column = [0.0; LANES];
            for j in 0..LANES {
                column[j] = rows[j][i];
            }
            v[i] = self.load(&column);
        }
    }
}

pub(crate) fn tree_sum(p: &mut [f32; LANES]) -> f32 {
    for width in [8, 4, 2, 1] {
        for i in 0..width {
            p[i] += p[i + width];
        }
    }
    p[0]
}

/// Fewer than sixteen values, the other lanes zero.
#[inline(always)]
pub(crate) fn load_part<S: Lanes>(s: S, x: &[f32]) -> S::V {
    let mut full = [0.0; LANES];
    full[..x.len()].copy_from_slice(x);
    s.load(&full)
}

#[inline(always)]
pub(crate) fn load_part_f16<S: Lanes>(s: S, x: &[u16]) -> S::V {
    let mut full = [0; LANES];
    full[..x.len()].copy_from_slice(x);
    s.load_f16(&full)
}

/// The first `out.len()` lanes.
#[inline(always)]
pub(crate) fn store_part<S: Lanes>(s: S, v: S::V, out: &mut [f32]) {
    let mut full = [0.0; LANES];
    s.store(v, &mut full);
    out.copy_from_slice(&full[..out.len()]);
}

/// One value: the meaning of every [`Arith`] operation.
#[derive(Clone, Copy)]
pub(crate) struct Single;

impl Arith for Single {
    type V = f32;
    #[inline(always)]
    fn splat(self, x: f32) -> f32 {
        x
    }
    #[inline(always)]
    fn add(self, a: f32, b: f32) -> f32 {
        a + b
    }
    #[inline(always)]
    fn sub(self, a: f32, b: f32) -> f32 {
        a - b
    }
    #[inline(always)]
    fn mul(self, a: f32, b: f32) -> f32 {
        a * b
    }
    #[inline(always)]
    fn div(self, a: f32, b: f32) -> f32 {
        a / b
    }
    #[inline(always)]
    fn fma(self, a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
    #[inline(always)]
    fn fnma(self, a: f32, b: f32, c: f32) -> f32 {
        (-a).mul_add(b, c)
    }
    #[inline(always)]
    fn max(self, a: f32, b: f32) -> f32 {
        if a > b { a } else { b }
    }
    #[inline(always)]
    fn min(self, a: f32, b: f32) -> f32 {
        if a < b { a } else { b }
    }
    #[inline(always)]
    fn abs(self, a: f32) -> f32 {
        a.abs()
    }
    #[inline(always)]
    fn copysign(self, a: f32, sign: f32) -> f32 {
        a.copysign(sign)
    }
    #[inline(always)]
    fn select_lt(self, a: f32, b: f32, x: f32, y: f32) -> f32 {
        if a < b { x } else { y }
    }
    #[inline(always)]
    fn shl23(self, a: f32) -> f32 {
        f32::from_bits(a.to_bits() << 23)
    }
}

/// Sixteen values, one after the other.
#[derive(Clone, Copy)]
pub(crate) struct ScalarLanes;

/// `ScalarLanes` methods that apply the method of `Single` to each lane.
macro_rules! each_lane {
    ($($name:ident($($arg:ident),+);)*) => {$(
        #[inline(always)]
        fn $name(self, $($arg: [f32; LANES]),+) -> [f32; LANES] {
            let mut out = [0.0; LANES];
            for i in 0..LANES {
                out[i] = Single.$name($($arg[i]),+);
            }
            out
        }
    )*};
}

impl Arith for ScalarLanes {
    type V = [f32; LANES];
    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        [x; LANES]
    }
    each_lane! {
        add(a, b);
        sub(a, b);
        mul(a, b);
        div(a, b);
        fma(a, b, c);
        fnma(a, b, c);
        max(a, b);
        min(a, b);
        abs(a);
        copysign(a, sign);
        select_lt(a, b, x, y);
        shl23(a);
    }
}

impl Lanes for ScalarLanes {
    const WIDE: bool = false;
    #[inline(always)]
    unsafe fn assume() -> Self {
        ScalarLanes
    }
    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> Self::V {
        *x
    }
    #[inline(always)]
    fn store(self, v: Self::V, out: &mut [f32; LANES]) {
        *out = v;
    }
    #[inline(always)]
    fn load_f16(self, x: &[u16; LANES]) -> Self::V {
        let mut out = [0.0; LANES];
        for i in 0..LANES {
            out[i] = f16::from_bits(x[i]).to_f32();
        }
        out
    }
    #[inline(always)]
    fn store_f16(self, v: Self::V, out: &mut [u16; LANES]) {
        for i in 0..LANES {
            out[i] = f16::from_f32(v[i]).to_bits();
        }
    }
    #[inline(always)]
    fn swap_pairs(self, v: Self::V) -> Self::V {
        let mut out = v;
        for i in 0..LANES / 2 {
            out.swap(2 * i, 2 * i + 1);
        }
        out
    }
    #[inline(always)]
    fn any_gt(self, a: Self::V, b: Self::V) -> bool {
        (0..LANES).any(|i| a[i] > b[i])
    }
}
