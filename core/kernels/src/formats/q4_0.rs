//! Q4_0: `w = d (n - 8)`, n a nibble. 4.5 bits per weight.
//!
//! ```text
//! d: f16 | 16 bytes: low nibbles are weights 0..16, high nibbles 16..32
//! ```

use super::{Block32, BlockFormat, half_at, nibbles};
use crate::matmul::simd::{RowBlock, ShapeOf, Simd, Sink, Unpack, nibbles as unpack_nibbles};
use crate::matmul::source::Source;

pub(crate) struct Q4_0;

const _: () = assert!(Q4_0::BYTES == 2 + 32 * 4 / 8);

impl BlockFormat for Q4_0 {
    const ID: u32 = 2;
    const NAME: &'static str = "Q4_0";
    const BLOCK: usize = 32;

    fn unpack32(row: &[u8], _: &[u8], b: usize) -> Block32 {
        let x = &row[b * Self::BYTES..][..Self::BYTES];
        Block32 { q: nibbles(&x[2..], |n| n as i8 - 8), s: [1.0; 2], d: half_at(x, 0), m: [0.0; 2] }
    }
}

impl Unpack for Q4_0 {
    type Shape = ShapeOf<false, 0, 8, 15>;
    const BLOCKS: usize = 1;
    const BYTES: usize = 18;
    const LONE_HALF: Option<usize> = Some(0);

    #[inline(always)]
    unsafe fn unit<V: Simd, R: Source<V>>(rows: &R, _: &R, sink: &mut impl Sink<V>) {
        // SAFETY: the caller's promise; offsets stay below `BYTES`.
        unsafe {
            let n = unpack_nibbles::<V>(&rows.weights16(2));
            let zero = [V::zero_f(); 2];
            sink.block(0, RowBlock { n, d: rows.rows_half(0), s: zero, m: zero });
        }
    }
}
