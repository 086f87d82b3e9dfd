//! Q5_K: `w = d s n - dmin t`, n of five bits, s and t of six bits for each 32 weights. 5.5 bits per weight.
//!
//! ```text
//! d: f16 | dmin: f16 | 12 bytes: s and t as in Q4_K | 32 bytes: bit b of byte k is the fifth bit of weight 32 b + k
//! 128 bytes: the lower four bits, as in Q4_K
//! ```

use super::q4_k::{scale_min, scales_mins};
use super::{Block32, BlockFormat, half_at};
use crate::matmul::simd::{RowBlock, ShapeOf, Simd, Sink, Unpack, byte_f32, unroll};
use crate::matmul::source::Source;

pub(crate) struct Q5K;

const _: () = assert!(Q5K::BYTES == 2 + 2 + 12 + 256 / 8 + 256 * 4 / 8);

impl BlockFormat for Q5K {
    const ID: u32 = 13;
    const NAME: &'static str = "Q5_K";
    const BLOCK: usize = 256;

    fn unpack32(row: &[u8], _: &[u8], b: usize) -> Block32 {
        let x = &row[b / 8 * Self::BYTES..][..Self::BYTES];
        let (high, low) = (&x[16..48], &x[48 + b % 8 / 2 * 32..][..32]);
        let mut q = [0; 32];
        for (k, q) in q.iter_mut().enumerate() {
            *q = (low[k] >> (b % 2 * 4) & 15 | (high[k] >> (b % 8) & 1) << 4) as i8;
        }
        let (s, t) = scale_min(&x[4..16], b % 8);
        let (d, dmin) = (half_at(x, 0), half_at(x, 2));
        Block32 { q, s: [1.0; 2], d: d * f32::from(s), m: [-(dmin * f32::from(t)); 2] }
    }
}

impl Unpack for Q5K {
    type Shape = ShapeOf<false, 1, 0, 31>;
    const BLOCKS: usize = 8;
    const BYTES: usize = 176;

    #[inline(always)]
    unsafe fn unit<V: Simd, R: Source<V>>(rows: &R, _: &R, sink: &mut impl Sink<V>) {
        // SAFETY: the caller's promise; offsets stay below `BYTES`.
        unsafe {
            let head = rows.rows16(0);
            let (d, dmin) = (V::half(head[0]), V::neg(V::half(V::shr(head[0], 16))));
            let (s, t) = scales_mins::<V>(&head);
            let high = rows.weights32(16);
            unroll!(C in [0, 1, 2, 3] {
                let packed = rows.weights32(48 + 32 * C);
                let (i, j) = (C / 2, C % 2 * 2);
                let mut n = packed;
                for q in 0..8 {
                    n[q] = V::or(V::field(packed[q], 0, 15), V::field(high[q], 2 * C as i32 - 4, 16));
                }
                let m = [V::mul(dmin, byte_f32::<V>(t[i], j)); 2];
                sink.block(2 * C, RowBlock { n, d: V::mul(d, byte_f32::<V>(s[i], j)), s: m, m });
                for q in 0..8 {
                    n[q] = V::or(V::field(packed[q], 4, 15), V::field(high[q], 2 * C as i32 - 3, 16));
                }
                let m = [V::mul(dmin, byte_f32::<V>(t[i], j + 1)); 2];
                sink.block(2 * C + 1, RowBlock { n, d: V::mul(d, byte_f32::<V>(s[i], j + 1)), s: m, m });
            });
        }
    }
}
