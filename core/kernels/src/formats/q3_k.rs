//! Q3_K: `w = d s (n - 4)`, n of three bits, s of six bits less 32 for each 16 weights. 3.4375 bits per weight.
//!
//! ```text
//! 32 bytes: bit b of byte k is the third bit of weight 32 b + k | 64 bytes: the lower two bits, as in Q2_K
//! 12 bytes: s (see `scale`) | d: f16
//! ```

use super::{Block32, BlockFormat, half_at};
use crate::matmul::simd::{RowBlock, ShapeOf, Simd, Sink, Unpack, unroll};
use crate::matmul::source::Source;

pub(crate) struct Q3K;

const _: () = assert!(Q3K::BYTES == 256 / 8 + 256 * 2 / 8 + 12 + 2);

impl BlockFormat for Q3K {
    const ID: u32 = 11;
    const NAME: &'static str = "Q3_K";
    const BLOCK: usize = 256;

    fn unpack32(row: &[u8], _: &[u8], b: usize) -> Block32 {
        let x = &row[b / 8 * Self::BYTES..][..Self::BYTES];
        let (half, j) = (b % 8 / 4, b % 4);
        let low = &x[32 + 32 * half..][..32];
        let mut q = [0; 32];
        for (k, q) in q.iter_mut().enumerate() {
            let n = low[k] >> (2 * j) & 3 | (x[k] >> (b % 8) & 1) << 2;
            *q = n as i8 - 4;
        }
        let s = |i| f32::from(scale(&x[96..108], i));
        Block32 { q, s: [s(b % 8 * 2), s(b % 8 * 2 + 1)], d: half_at(x, 108), m: [0.0; 2] }
    }
}

/// Scale `i` of 16: its low four bits are nibble `i / 8` of byte `i % 8`, its high two bits are pair `i / 4` of byte
/// `8 + i % 4`.
fn scale(s: &[u8], i: usize) -> i8 {
    let low = s[i % 8] >> (4 * (i / 8)) & 15;
    let high = s[8 + i % 4] >> (2 * (i / 4)) & 3;
    (low | high << 4) as i8 - 32
}

impl Unpack for Q3K {
    type Shape = ShapeOf<true, 0, 4, 7>;
    const BLOCKS: usize = 8;
    const BYTES: usize = 110;
    const LONE_HALF: Option<usize> = Some(108);

    #[inline(always)]
    unsafe fn unit<V: Simd, R: Source<V>>(rows: &R, _: &R, sink: &mut impl Sink<V>) {
        // SAFETY: the caller's promise; offsets stay below `BYTES`.
        unsafe {
            // The 12 bytes of scales begin two bytes into this.
            let head = rows.rows16(94);
            let word = |i: usize| V::or(V::shr(head[i], 16), V::shl(head[i + 1], 16));
            let (a, b, c) = (word(0), word(1), word(2));
            let d = V::half(V::shr(head[3], 16));
            let scales = [
                V::or(V::field(a, 0, 15), V::field(c, -4, 48)),
                V::or(V::field(b, 0, 15), V::field(c, -2, 48)),
                V::or(V::field(a, 4, 15), V::field(c, 0, 48)),
                V::or(V::field(b, 4, 15), V::field(c, 2, 48)),
            ];
            let third = rows.weights32(0);
            let zero = [V::zero_f(); 2];
            unroll!(H in [0, 1] {
                let low = rows.weights32(32 + 32 * H);
                unroll!(J in [0, 1, 2, 3] {
                    let mut n = low;
                    for q in 0..8 {
                        let third = V::field(third[q], (4 * H + J) as i32 - 2, 4);
                        n[q] = V::or(V::field(low[q], 2 * J as i32, 3), third);
                    }
                    let (i, j) = (2 * H + J / 2, J % 2 * 2);
                    let s = [scale_f32::<V>(scales[i], j), scale_f32::<V>(scales[i], j + 1)];
                    sink.block(4 * H + J, RowBlock { n, d, s, m: zero });
                });
            });
        }
    }
}

#[inline(always)]
unsafe fn scale_f32<V: Simd>(scales: V::I, j: usize) -> V::F {
    // SAFETY: the caller's promise.
    unsafe {
        let s = V::and(V::shr(scales, 8 * j as u32), V::splat(63));
        V::to_f32(V::add(s, V::splat(-32i32 as u32)))
    }
}
