//! Q5_0: `w = d (n - 16)`, n of five bits. 5.5 bits per weight.
//!
//! ```text
//! d: f16 | u32: bit k is the fifth bit of weight k | 16 bytes: low nibbles are weights 0..16, high nibbles 16..32
//! ```

use super::{Block32, BlockFormat, half_at, nibbles};
use crate::matmul::simd::{RowBlock, ShapeOf, Simd, Sink, Unpack, nibbles as unpack_nibbles};
use crate::matmul::source::Source;

pub(crate) struct Q5_0;

const _: () = assert!(Q5_0::BYTES == 2 + 4 + 32 * 4 / 8);

impl BlockFormat for Q5_0 {
    const ID: u32 = 6;
    const NAME: &'static str = "Q5_0";
    const BLOCK: usize = 32;

    fn unpack32(row: &[u8], _: &[u8], b: usize) -> Block32 {
        let x = &row[b * Self::BYTES..][..Self::BYTES];
        let mut q = nibbles(&x[6..], |n| n as i8 - 16);
        add_fifth_bits(&mut q, &x[2..]);
        Block32 { q, s: [1.0; 2], d: half_at(x, 0), m: [0.0; 2] }
    }
}

/// Adds 16 where bit k of the little-endian word at the start of `bits` is set.
pub(super) fn add_fifth_bits(q: &mut [i8; 32], bits: &[u8]) {
    let bits = u32::from_le_bytes([bits[0], bits[1], bits[2], bits[3]]);
    for (k, q) in q.iter_mut().enumerate() {
        *q += ((bits >> k & 1) << 4) as i8;
    }
}

impl Unpack for Q5_0 {
    type Shape = ShapeOf<false, 0, 16, 31>;
    const BLOCKS: usize = 1;
    const BYTES: usize = 22;
    const LONE_HALF: Option<usize> = Some(0);

    #[inline(always)]
    unsafe fn unit<V: Simd, R: Source<V>>(rows: &R, _: &R, sink: &mut impl Sink<V>) {
        // SAFETY: the caller's promise; offsets stay below `BYTES`.
        unsafe {
            let mut n = unpack_nibbles::<V>(&rows.weights16(6));
            let head = rows.rows8(0);
            let bits = V::or(V::shr(head[0], 16), V::shl(head[1], 16));
            for (i, n) in n.iter_mut().enumerate() {
                *n = V::or(*n, V::fifth_bits(bits, i));
            }
            let zero = [V::zero_f(); 2];
            sink.block(0, RowBlock { n, d: V::half(head[0]), s: zero, m: zero });
        }
    }
}
