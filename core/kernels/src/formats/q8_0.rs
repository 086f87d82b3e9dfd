//! Q8_0: `w = d q`, q a signed byte. 8.5 bits per weight.
//!
//! ```text
//! d: f16 | 32 signed bytes
//! ```

use super::{Block32, BlockFormat, half_at};
use crate::matmul::simd::{RowBlock, ShapeOf, Simd, Sink, Unpack};
use crate::matmul::source::Source;

pub(crate) struct Q8_0;

const _: () = assert!(Q8_0::BYTES == 2 + 32);

impl BlockFormat for Q8_0 {
    const ID: u32 = 8;
    const NAME: &'static str = "Q8_0";
    const BLOCK: usize = 32;

    fn unpack32(row: &[u8], _: &[u8], b: usize) -> Block32 {
        let x = &row[b * Self::BYTES..][..Self::BYTES];
        let mut q = [0; 32];
        for (q, &byte) in q.iter_mut().zip(&x[2..]) {
            *q = byte as i8;
        }
        Block32 { q, s: [1.0; 2], d: half_at(x, 0), m: [0.0; 2] }
    }
}

impl Unpack for Q8_0 {
    type Shape = ShapeOf<false, 0, 0, 255>;
    const BLOCKS: usize = 1;
    const BYTES: usize = 34;
    const LONE_HALF: Option<usize> = Some(0);

    #[inline(always)]
    unsafe fn unit<V: Simd, R: Source<V>>(rows: &R, _: &R, sink: &mut impl Sink<V>) {
        // SAFETY: the caller's promise; offsets stay below `BYTES`.
        unsafe {
            let mut n = rows.weights32(2);
            if V::FLIP != 0 {
                for n in &mut n {
                    *n = V::xor(*n, V::splat(u32::from_ne_bytes([V::FLIP; 4])));
                }
            }
            let zero = [V::zero_f(); 2];
            sink.block(0, RowBlock { n, d: rows.rows_half(0), s: zero, m: zero });
        }
    }
}
