//! Panels for `smmla`, which multiplies two rows with two columns, eight values each.
//!
//! The sums of a tile stay as the instruction leaves them, two rows times two columns to a register, from the first integer to the
//! last fused multiply-add: scales of rows and of columns are spread to match. Every lane is still one row and one column, so the order of
//! its sum is the usual one.
//!
//! ```text
//! lanes of acc[pair][p]:  row 2p, column 2 pair | 2p, 2 pair + 1 | 2p + 1, 2 pair | 2p + 1, 2 pair + 1
//! ```

#![allow(clippy::needless_range_loop, reason = "tiles are indexed by constants, to become registers")]

use std::arch::aarch64::*;
use std::arch::asm;
use std::marker::PhantomData;

use super::neon::{Kind, Layout, Neon};
use crate::act::TILE;
use crate::matmul::pairs::PairLo;
use crate::matmul::panels::{TileAt, panel_block};
use crate::matmul::simd::{Body, Shape, Simd};

/// The panels of the i8mm level.
#[derive(Clone, Copy)]
pub(crate) struct Panels;

impl Kind for Panels {
    const LAYOUT: Layout = Layout::Pairs;
    const PAIRS: bool = true;
    type Few = Neon<Panels>;
    type Many = Neon<Panels>;

    #[inline(always)]
    unsafe fn dot16(_: int32x4_t, _: &[int32x4_t; 4], _: *const i8, _: u32) -> int32x4_t {
        unreachable!("columns come in pairs")
    }
    #[inline(always)]
    unsafe fn tile<S: Shape, const N: usize, const P16: bool>(at: TileAt, sums: &mut [[f32; 16]; TILE]) {
        // SAFETY: the caller's promise.
        unsafe { Neon::<Panels>::run(&mut Tile::<S, N, P16> { at, sums, shape: PhantomData }) }
    }
}

/// Adds the four products of two rows and two columns of eight bytes.
#[inline(always)]
unsafe fn smmla(mut acc: int32x4_t, w: int32x4_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: the caller runs on a CPU with the 8-bit matrix instructions; nothing but `acc` changes.
    unsafe {
        asm!(
            ".arch_extension i8mm",
            "smmla {acc:v}.4s, {w:v}.16b, {x:v}.16b",
            acc = inlateout(vreg) acc,
            w = in(vreg) w,
            x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    acc
}

/// A number of each row, for rows 0, 1 and for rows 2, 3.
#[inline(always)]
unsafe fn of_rows(p: *const u8) -> [float32x4_t; 2] {
    // SAFETY: the caller's promise: 16 readable bytes.
    unsafe {
        let f = vld1q_f32(p.cast());
        [vzip1q_f32(f, f), vzip2q_f32(f, f)]
    }
}

/// A number of each column of a pair.
#[inline(always)]
unsafe fn of_columns(x: &[f32; 2]) -> float32x4_t {
    // SAFETY: an array of two.
    unsafe {
        let x = vld1_f32(x.as_ptr());
        vcombine_f32(x, x)
    }
}

/// Eight activations of both columns.
#[inline(always)]
unsafe fn eight(x: &PairLo, i: usize) -> int8x16_t {
    // SAFETY: 16 bytes of an array.
    unsafe { vld1q_s8(x.0[i].as_ptr().cast()) }
}

/// A panel times N columns.
struct Tile<'a, S, const N: usize, const P16: bool> {
    at: TileAt,
    /// Sums so far, in and out.
    sums: &'a mut [[f32; 16]; TILE],
    shape: PhantomData<S>,
}

impl<S: Shape, const N: usize, const P16: bool> Body for Tile<'_, S, N, P16> {
    #[inline(always)]
    unsafe fn body(&mut self) {
        // SAFETY: the maker's promise: the panel and the pairs have `blocks` blocks, and the CPU has the instructions.
        unsafe {
            let pairs = const { N.div_ceil(2) };
            let zero = vdupq_n_f32(0.0);
            let mut acc = [[zero; 2]; TILE / 2];
            for pair in 0..pairs {
                let a = vld1q_f32(self.sums[2 * pair].as_ptr());
                let b = vld1q_f32(self.sums[(2 * pair + 1).min(N - 1)].as_ptr());
                acc[pair] = [vzip1q_f32(a, b), vzip2q_f32(a, b)];
            }
            let mut panel = self.at.panel;
            let (mut x, mut lo) = (self.at.pairs, self.at.pairs_lo);
            for _ in 0..self.at.blocks {
                let mut t = [[zero; 2]; TILE / 2];
                for half in 0..2 {
                    let w =
                        |i: usize| vreinterpretq_s32_u8(vld1q_u8(panel.wrapping_add((4 * half + i) * 16)));
                    let w = [w(0), w(1), w(2), w(3)];
                    let s = if S::SCALED { of_rows(panel.wrapping_add((9 + half) * 16)) } else { [zero; 2] };
                    for pair in 0..pairs {
                        let block = &*x.add(pair);
                        let dx = of_columns(&block.dx[half]);
                        for p in 0..2 {
                            let mut i = smmla(vdupq_n_s32(0), w[p], eight(&block.hi, 2 * half));
                            i = smmla(i, w[2 + p], eight(&block.hi, 2 * half + 1));
                            if P16 {
                                let lo = &*lo.add(pair);
                                i = smmla(vshlq_n_s32::<7>(i), w[p], eight(lo, 2 * half));
                                i = smmla(i, w[2 + p], eight(lo, 2 * half + 1));
                            }
                            let mut f = vcvtq_f32_s32(i);
                            if S::SCALED {
                                f = vmulq_f32(s[p], f);
                            }
                            t[pair][p] =
                                if half == 0 { vmulq_f32(f, dx) } else { vfmaq_f32(t[pair][p], f, dx) };
                        }
                    }
                }
                let d = of_rows(panel.wrapping_add(8 * 16));
                for pair in 0..pairs {
                    for p in 0..2 {
                        acc[pair][p] = vfmaq_f32(acc[pair][p], d[p], t[pair][p]);
                    }
                }
                for i in 0..S::MINS {
                    let m = of_rows(panel.wrapping_add((9 + 2 * S::SCALED as usize + i) * 16));
                    for pair in 0..pairs {
                        let block = &*x.add(pair);
                        let sum = of_columns(if S::MINS == 1 { &block.xs } else { &block.xh[i] });
                        for p in 0..2 {
                            acc[pair][p] = vfmaq_f32(acc[pair][p], m[p], sum);
                        }
                    }
                }
                panel = panel.wrapping_add(panel_block::<Neon<Panels>, S>());
                x = x.wrapping_add(self.at.pairs_step);
                lo = lo.wrapping_add(if P16 { self.at.pairs_step } else { 0 });
            }
            for pair in 0..pairs {
                let [a, b] = acc[pair];
                vst1q_f32(self.sums[2 * pair].as_mut_ptr(), vuzp1q_f32(a, b));
                if 2 * pair + 1 < N {
                    vst1q_f32(self.sums[2 * pair + 1].as_mut_ptr(), vuzp2q_f32(a, b));
                }
            }
        }
    }
}
