//! Q6_K: `w = d s (n - 32)`, n of six bits, s a signed byte for each 16 weights. 6.5625 bits per weight.
//!
//! ```text
//! 128 bytes: lower four bits | 64 bytes: upper two bits | 16 signed bytes: s | d: f16
//! ```
//!
//! Each half of 128 weights has 64 bytes of low and 32 bytes of high bits: weight 32 j + k (k < 32) has its low bits in
//! nibble `j / 2` of low byte `32 (j % 2) + k` and its high bits in pair j of high byte k.

use super::{Block32, BlockFormat, half_at};
use crate::matmul::simd::{ShapeOf, Simd, Sink, Unpack, signed_byte_f32, unroll};
use crate::matmul::source::Source;

pub(crate) struct Q6K;

const _: () = assert!(Q6K::BYTES == 256 * 4 / 8 + 256 * 2 / 8 + 16 + 2);

impl BlockFormat for Q6K {
    const ID: u32 = 14;
    const NAME: &'static str = "Q6_K";
    const BLOCK: usize = 256;

    fn unpack32(row: &[u8], _: &[u8], b: usize) -> Block32 {
        let x = &row[b / 8 * Self::BYTES..][..Self::BYTES];
        let (half, j) = (b % 8 / 4, b % 4);
        let low = &x[64 * half + 32 * (j % 2)..][..32];
        let high = &x[128 + 32 * half..][..32];
        let mut q = [0; 32];
        for (k, q) in q.iter_mut().enumerate() {
            let n = low[k] >> (j / 2 * 4) & 15 | (high[k] >> (2 * j) & 3) << 4;
            *q = n as i8 - 32;
        }
        let s = |i: usize| f32::from(x[192 + i] as i8);
        Block32 { q, s: [s(b % 8 * 2), s(b % 8 * 2 + 1)], d: half_at(x, 208), m: [0.0; 2] }
    }
}

impl Unpack for Q6K {
    type Shape = ShapeOf<true, 0, 32, 63>;
    const BLOCKS: usize = 8;
    const BYTES: usize = 210;
    const LONE_HALF: Option<usize> = Some(208);

    #[inline(always)]
    unsafe fn unit<V: Simd, R: Source<V>>(rows: &R, _: &R, sink: &mut impl Sink<V>) {
        // SAFETY: the caller's promise; offsets stay below `BYTES`.
        unsafe {
            let d = rows.rows_half(208);
            let scales = rows.rows16(192);
            let zero = [V::zero_f(); 2];
            unroll!(H in [0, 1] {
                let high = rows.weights32(128 + 32 * H);
                // Two blocks share their low bytes: both are multiplied while these are in registers, and added in order later.
                unroll!(P in [0, 1] {
                    let low = rows.weights32(64 * H + 32 * P);
                    unroll!(L in [0, 1] {
                        const J: usize = 2 * L + P;
                        let mut n = low;
                        for q in 0..8 {
                            let high = V::field(high[q], 2 * J as i32 - 4, 48);
                            n[q] = V::or(V::field(low[q], 4 * L as i32, 15), high);
                        }
                        let (i, j) = (2 * H + J / 2, J % 2 * 2);
                        let s = [signed_byte_f32::<V>(scales[i], j), signed_byte_f32::<V>(scales[i], j + 1)];
                        sink.dot(4 * H + J, n, s);
                    });
                });
                unroll!(J in [0, 1, 2, 3] {
                    sink.add(4 * H + J, d, zero);
                });
            });
        }
    }
}
