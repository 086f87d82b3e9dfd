//! Q4_1: `w = d n + m`, n a nibble. 5 bits per weight.
//!
//! ```text
//! d: f16 | m: f16 | 16 bytes: low nibbles are weights 0..16, high nibbles 16..32
//! ```

use super::{Block32, BlockFormat, half_at, nibbles};
use crate::matmul::simd::{RowBlock, ShapeOf, Simd, Sink, Unpack, nibbles as unpack_nibbles};
use crate::matmul::source::Source;

pub(crate) struct Q4_1;

const _: () = assert!(Q4_1::BYTES == 2 + 2 + 32 * 4 / 8);

impl BlockFormat for Q4_1 {
    const ID: u32 = 3;
    const NAME: &'static str = "Q4_1";
    const BLOCK: usize = 32;

    fn unpack32(row: &[u8], _: &[u8], b: usize) -> Block32 {
        let x = &row[b * Self::BYTES..][..Self::BYTES];
        Block32 { q: nibbles(&x[4..], |n| n as i8), s: [1.0; 2], d: half_at(x, 0), m: [half_at(x, 2); 2] }
    }
}

impl Unpack for Q4_1 {
    type Shape = ShapeOf<false, 1, 0, 15>;
    const BLOCKS: usize = 1;
    const BYTES: usize = 20;

    #[inline(always)]
    unsafe fn unit<V: Simd, R: Source<V>>(rows: &R, _: &R, sink: &mut impl Sink<V>) {
        // SAFETY: the caller's promise; offsets stay below `BYTES`.
        unsafe {
            let n = unpack_nibbles::<V>(&rows.weights16(4));
            let dm = rows.rows4(0);
            let m = [V::half(V::shr(dm, 16)); 2];
            sink.block(0, RowBlock { n, d: V::half(dm), s: m, m });
        }
    }
}
