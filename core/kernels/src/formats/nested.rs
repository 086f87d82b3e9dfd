//! Nested precision: the blocks of [`Q5_K`](super::q5_k) in two planes, so that the first alone is a model of three bits.
//!
//! ```text
//! q of five bits = 4 * n + r          n of three bits, r of two
//! low plane    16 bytes: d, dmin, s and t as in Q5_K | 64 bytes: the lower two bits of n | 32 bytes: its third bit     3.5 bits per weight
//! fine plane   64 bytes: r                                                                                             2 bits
//! ```
//!
//! Two bits lie as in Q2_K, single bits as in Q3_K. The full view is Q5_K, weight for weight: `w = d s (4 n + r) - dmin t`. The low view puts
//! r in its middle: `w = 4 d s n + (1.5 d s - dmin t)`, which is the canonical form with one minimum per 32 weights. The products with s, t, 4
//! and 1.5 are exact, so that only the sum in the minimum is rounded, once, on every instruction set.

use super::q4_k::{scale_min, scales_mins};
use super::{Block32, BlockFormat, half_at};
use crate::matmul::simd::{RowBlock, ShapeOf, Simd, Sink, Unpack, byte_f32, unroll};
use crate::matmul::source::Source;

/// Weights of a block.
pub const BLOCK: usize = 256;
/// Bytes of a block in the low plane.
pub const LOW_BYTES: usize = HEAD + 64 + 32;
/// Bytes of a block in the fine plane.
pub const FINE_BYTES: usize = BLOCK * 2 / 8;
/// Bytes of the same block as Q5_K.
pub const WHOLE_BYTES: usize = HEAD + 32 + 128;

/// The middle of r.
const MIDDLE: f32 = 1.5;
/// d, dmin, s and t.
const HEAD: usize = 2 + 2 + 12;

const _: () = assert!(LOW_BYTES + FINE_BYTES == WHOLE_BYTES);

/// Both planes.
pub(crate) struct NestedFull;
/// The low plane alone.
pub(crate) struct NestedLow;

/// The five bits of weight `i` in a block of Q5_K.
fn five(whole: &[u8; WHOLE_BYTES], i: usize) -> u8 {
    let (b, k) = (i / 32, i % 32);
    let low = whole[HEAD + 32 + b / 2 * 32 + k] >> (b % 2 * 4) & 15;
    low | (whole[HEAD + k] >> b & 1) << 4
}

/// Takes a block of Q5_K apart.
pub fn split(whole: &[u8; WHOLE_BYTES], low: &mut [u8; LOW_BYTES], fine: &mut [u8; FINE_BYTES]) {
    *low = [0; LOW_BYTES];
    *fine = [0; FINE_BYTES];
    low[..HEAD].copy_from_slice(&whole[..HEAD]);
    for i in 0..BLOCK {
        let q = five(whole, i);
        let (n, r, b, k) = (q >> 2, q & 3, i / 32, i % 32);
        let (byte, shift) = (b / 4 * 32 + k, b % 4 * 2);
        fine[byte] |= r << shift;
        low[HEAD + byte] |= (n & 3) << shift;
        low[HEAD + 64 + k] |= (n >> 2) << b;
    }
}

/// The block of Q5_K that [`split`] took apart.
pub fn join(low: &[u8; LOW_BYTES], fine: &[u8; FINE_BYTES]) -> [u8; WHOLE_BYTES] {
    let mut whole = [0; WHOLE_BYTES];
    whole[..HEAD].copy_from_slice(&low[..HEAD]);
    for i in 0..BLOCK {
        let (b, k) = (i / 32, i % 32);
        let q = three(low, b, k) << 2 | two(fine, b, k);
        whole[HEAD + 32 + b / 2 * 32 + k] |= (q & 15) << (b % 2 * 4);
        whole[HEAD + k] |= (q >> 4) << b;
    }
    whole
}

/// n of weight k of 32-block b.
fn three(low: &[u8], b: usize, k: usize) -> u8 {
    low[HEAD + b / 4 * 32 + k] >> (b % 4 * 2) & 3 | (low[HEAD + 64 + k] >> b & 1) << 2
}

/// r of the same.
fn two(fine: &[u8], b: usize, k: usize) -> u8 {
    fine[b / 4 * 32 + k] >> (b % 4 * 2) & 3
}

impl BlockFormat for NestedFull {
    const ID: u32 = super::PRIVATE + 1;
    const NAME: &'static str = "Q5_K_nested";
    const BLOCK: usize = BLOCK;

    fn unpack32(row: &[u8], fine: &[u8], b: usize) -> Block32 {
        let x = &row[b / 8 * LOW_BYTES..][..LOW_BYTES];
        let y = &fine[b / 8 * FINE_BYTES..][..FINE_BYTES];
        let mut q = [0; 32];
        for (k, q) in q.iter_mut().enumerate() {
            *q = (three(x, b % 8, k) << 2 | two(y, b % 8, k)) as i8;
        }
        let (s, t) = scale_min(&x[4..16], b % 8);
        let (d, dmin) = (half_at(x, 0), half_at(x, 2));
        Block32 { q, s: [1.0; 2], d: d * f32::from(s), m: [-(dmin * f32::from(t)); 2] }
    }
}

impl BlockFormat for NestedLow {
    const ID: u32 = super::PRIVATE;
    const NAME: &'static str = "Q5_K_nested_low";
    const BLOCK: usize = BLOCK;

    fn unpack32(row: &[u8], _: &[u8], b: usize) -> Block32 {
        let x = &row[b / 8 * LOW_BYTES..][..LOW_BYTES];
        let mut q = [0; 32];
        for (k, q) in q.iter_mut().enumerate() {
            *q = three(x, b % 8, k) as i8;
        }
        let (s, t) = scale_min(&x[4..16], b % 8);
        let (d, dmin) = (half_at(x, 0) * f32::from(s), half_at(x, 2) * f32::from(t));
        Block32 { q, s: [1.0; 2], d: 4.0 * d, m: [d.mul_add(MIDDLE, -dmin); 2] }
    }
}

impl Unpack for NestedFull {
    type Shape = ShapeOf<false, 1, 0, 31>;
    const BLOCKS: usize = 8;
    const BYTES: usize = LOW_BYTES;
    const FINE: usize = FINE_BYTES;

    #[inline(always)]
    unsafe fn unit<V: Simd, R: Source<V>>(rows: &R, fine: &R, sink: &mut impl Sink<V>) {
        // SAFETY: the caller's promise; offsets stay below `BYTES` and `FINE`.
        unsafe {
            let head = rows.rows16(0);
            let (d, dmin) = (V::half(head[0]), V::neg(V::half(V::shr(head[0], 16))));
            let (s, t) = scales_mins::<V>(&head);
            let third = rows.weights32(HEAD + 64);
            unroll!(H in [0, 1] {
                let low = rows.weights32(HEAD + 32 * H);
                let last = fine.weights32(32 * H);
                unroll!(J in [0, 1, 2, 3] {
                    let mut n = low;
                    for q in 0..8 {
                        let middle = V::field(low[q], 2 * J as i32 - 2, 12);
                        let top = V::field(third[q], (4 * H + J) as i32 - 4, 16);
                        n[q] = V::or(V::or(top, middle), V::field(last[q], 2 * J as i32, 3));
                    }
                    let m = [V::mul(dmin, byte_f32::<V>(t[H], J)); 2];
                    sink.block(4 * H + J, RowBlock { n, d: V::mul(d, byte_f32::<V>(s[H], J)), s: m, m });
                });
            });
        }
    }
}

impl Unpack for NestedLow {
    type Shape = ShapeOf<false, 1, 0, 7>;
    const BLOCKS: usize = 8;
    const BYTES: usize = LOW_BYTES;

    #[inline(always)]
    unsafe fn unit<V: Simd, R: Source<V>>(rows: &R, _: &R, sink: &mut impl Sink<V>) {
        // SAFETY: the caller's promise; offsets stay below `BYTES`.
        unsafe {
            let head = rows.rows16(0);
            let (d, dmin) = (V::half(head[0]), V::neg(V::half(V::shr(head[0], 16))));
            let (s, t) = scales_mins::<V>(&head);
            let third = rows.weights32(HEAD + 64);
            let middle = V::cast_f(V::splat(MIDDLE.to_bits()));
            let four = V::cast_f(V::splat(4.0f32.to_bits()));
            unroll!(H in [0, 1] {
                let low = rows.weights32(HEAD + 32 * H);
                unroll!(J in [0, 1, 2, 3] {
                    let mut n = low;
                    for q in 0..8 {
                        let third = V::field(third[q], (4 * H + J) as i32 - 2, 4);
                        n[q] = V::or(V::field(low[q], 2 * J as i32, 3), third);
                    }
                    let d = V::mul(d, byte_f32::<V>(s[H], J));
                    let m = [V::fma(d, middle, V::mul(dmin, byte_f32::<V>(t[H], J))); 2];
                    sink.block(4 * H + J, RowBlock { n, d: V::mul(four, d), s: m, m });
                });
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::q5_k::Q5K;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn split_and_join_are_inverse(half: [u8; 32], seed: u64) {
            let mut state = seed;
            let mut whole = [0u8; WHOLE_BYTES];
            for (i, byte) in whole.iter_mut().enumerate() {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                *byte = (state >> 56) as u8 ^ half[i % 32];
            }
            let (mut low, mut fine) = ([0xff; LOW_BYTES], [0xff; FINE_BYTES]);
            split(&whole, &mut low, &mut fine);
            prop_assert_eq!(join(&low, &fine), whole);
            // And the other way round: no bit of a plane is unused.
            let (mut low2, mut fine2) = ([0; LOW_BYTES], [0; FINE_BYTES]);
            split(&join(&low, &fine), &mut low2, &mut fine2);
            prop_assert_eq!((low, fine), (low2, fine2));
            for b in 0..8 {
                let (full, plain) = (NestedFull::unpack32(&low, &fine, b), Q5K::unpack32(&whole, &[], b));
                prop_assert_eq!(full.q, plain.q);
                prop_assert_eq!(full.d.to_bits(), plain.d.to_bits());
                prop_assert_eq!(full.m[0].to_bits(), plain.m[0].to_bits());
                let coarse = NestedLow::unpack32(&low, &[], b);
                for k in 0..32 {
                    prop_assert_eq!(coarse.q[k], plain.q[k] >> 2);
                }
            }
        }
    }
}
