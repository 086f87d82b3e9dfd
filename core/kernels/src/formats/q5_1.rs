//! Q5_1: `w = d n + m`, n of five bits. 6 bits per weight.
//!
//! ```text
//! d: f16 | m: f16 | u32: bit k is the fifth bit of weight k | 16 bytes: low nibbles are weights 0..16, high 16..32
//! ```

use super::q5_0::add_fifth_bits;
use super::{Block32, BlockFormat, half_at, nibbles};
use crate::matmul::simd::{RowBlock, ShapeOf, Simd, Sink, Unpack, nibbles as unpack_nibbles};
use crate::matmul::source::Source;

pub(crate) struct Q5_1;

const _: () = assert!(Q5_1::BYTES == 2 + 2 + 4 + 32 * 4 / 8);

impl BlockFormat for Q5_1 {
    const ID: u32 = 7;
    const NAME: &'static str = "Q5_1";
    const BLOCK: usize = 32;

    fn unpack32(row: &[u8], _: &[u8], b: usize) -> Block32 {
        let x = &row[b * Self::BYTES..][..Self::BYTES];
        let mut q = nibbles(&x[8..], |n| n as i8);
        add_fifth_bits(&mut q, &x[4..]);
        Block32 { q, s: [1.0; 2], d: half_at(x, 0), m: [half_at(x, 2); 2] }
    }
}

impl Unpack for Q5_1 {
    type Shape = ShapeOf<false, 1, 0, 31>;
    const BLOCKS: usize = 1;
    const BYTES: usize = 24;

    #[inline(always)]
    unsafe fn unit<V: Simd, R: Source<V>>(rows: &R, _: &R, sink: &mut impl Sink<V>) {
        // SAFETY: the caller's promise; offsets stay below `BYTES`.
        unsafe {
            let mut n = unpack_nibbles::<V>(&rows.weights16(8));
            let head = rows.rows8(0);
            for (i, n) in n.iter_mut().enumerate() {
                *n = V::or(*n, V::fifth_bits(head[1], i));
            }
            let m = [V::half(V::shr(head[0], 16)); 2];
            sink.block(0, RowBlock { n, d: V::half(head[0]), s: m, m });
        }
    }
}
