//! IQ4_XS: `w = d (s - 32) VALUES[n]`, n a nibble, s of six bits for each 32 weights. 4.25 bits per weight.
//!
//! ```text
//! d: f16 | u16: pair i is the upper two bits of s_i | 4 bytes: nibble i is the lower four bits of s_i
//! 128 bytes: 16 for each 32 weights, as in IQ4_NL
//! ```

use super::iq4_nl::{VALUES, levels};
use super::{Block32, BlockFormat, half_at, nibbles};
use crate::matmul::simd::{RowBlock, ShapeOf, Simd, Sink, Unpack, unroll};
use crate::matmul::source::Source;

pub(crate) struct Iq4Xs;

const _: () = assert!(Iq4Xs::BYTES == 2 + 2 + 4 + 256 * 4 / 8);

impl BlockFormat for Iq4Xs {
    const ID: u32 = 23;
    const NAME: &'static str = "IQ4_XS";
    const BLOCK: usize = 256;

    fn unpack32(row: &[u8], _: &[u8], b: usize) -> Block32 {
        let x = &row[b / 8 * Self::BYTES..][..Self::BYTES];
        let i = b % 8;
        let low = x[4 + i / 2] >> (4 * (i % 2)) & 15;
        let high = (u16::from_le_bytes([x[2], x[3]]) >> (2 * i) & 3) as u8;
        let s = (low | high << 4) as i8 - 32;
        Block32 {
            q: nibbles(&x[8 + 16 * i..], |n| VALUES[n as usize]),
            s: [1.0; 2],
            d: half_at(x, 0) * f32::from(s),
            m: [0.0; 2],
        }
    }
}

impl Unpack for Iq4Xs {
    type Shape = ShapeOf<false, 0, 0, 255>;
    const BLOCKS: usize = 8;
    const BYTES: usize = 136;

    #[inline(always)]
    unsafe fn unit<V: Simd, R: Source<V>>(rows: &R, _: &R, sink: &mut impl Sink<V>) {
        // SAFETY: the caller's promise; offsets stay below `BYTES`.
        unsafe {
            let head = rows.rows8(0);
            let d = V::half(head[0]);
            let zero = [V::zero_f(); 2];
            unroll!(B in [0, 1, 2, 3, 4, 5, 6, 7] {
                let low = V::and(V::shr(head[1], 4 * B as u32), V::splat(15));
                let high = V::and(V::shr(head[0], 16 + 2 * B as u32), V::splat(3));
                let s = V::add(V::or(low, V::shl(high, 4)), V::splat(-32i32 as u32));
                let n = levels::<V>(&rows.weights16(8 + 16 * B));
                sink.block(B, RowBlock { n, d: V::mul(d, V::to_f32(s)), s: zero, m: zero });
            });
        }
    }
}
