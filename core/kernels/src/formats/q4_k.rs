//! Q4_K: `w = d s n - dmin t`, n a nibble, s and t of six bits for each 32 weights. 4.5 bits per weight.
//!
//! ```text
//! d: f16 | dmin: f16 | 12 bytes: s and t (see `scale_min`) | 128 bytes of n
//! ```
//!
//! Byte k of the i-th 32 bytes of n holds weight 64 i + k in its low and 64 i + 32 + k in its high nibble.

use super::{Block32, BlockFormat, half_at};
use crate::matmul::simd::{RowBlock, ShapeOf, Simd, Sink, Unpack, byte_f32, unroll};
use crate::matmul::source::Source;

pub(crate) struct Q4K;

const _: () = assert!(Q4K::BYTES == 2 + 2 + 12 + 256 * 4 / 8);

impl BlockFormat for Q4K {
    const ID: u32 = 12;
    const NAME: &'static str = "Q4_K";
    const BLOCK: usize = 256;

    fn unpack32(row: &[u8], _: &[u8], b: usize) -> Block32 {
        let x = &row[b / 8 * Self::BYTES..][..Self::BYTES];
        let bytes = &x[16 + b % 8 / 2 * 32..][..32];
        let mut q = [0; 32];
        for (q, byte) in q.iter_mut().zip(bytes) {
            *q = (byte >> (b % 2 * 4) & 15) as i8;
        }
        let (s, t) = scale_min(&x[4..16], b % 8);
        let (d, dmin) = (half_at(x, 0), half_at(x, 2));
        Block32 { q, s: [1.0; 2], d: d * f32::from(s), m: [-(dmin * f32::from(t)); 2] }
    }
}

/// The six-bit scale and minimum of 32-block `i` of 8. Blocks 0..4 have them whole in bytes `i` and `4 + i`; of blocks
/// 4..8 the low four bits share byte `4 + i` and the high two are the spare bits of bytes `i - 4` and `i`.
pub(super) fn scale_min(s: &[u8], i: usize) -> (u8, u8) {
    if i < 4 {
        (s[i] & 63, s[4 + i] & 63)
    } else {
        (s[4 + i] & 15 | s[i - 4] >> 6 << 4, s[4 + i] >> 4 | s[i] >> 6 << 4)
    }
}

impl Unpack for Q4K {
    type Shape = ShapeOf<false, 1, 0, 15>;
    const BLOCKS: usize = 8;
    const BYTES: usize = 144;

    #[inline(always)]
    unsafe fn unit<V: Simd, R: Source<V>>(rows: &R, _: &R, sink: &mut impl Sink<V>) {
        // SAFETY: the caller's promise; offsets stay below `BYTES`.
        unsafe {
            let head = rows.rows16(0);
            let (d, dmin) = (V::half(head[0]), V::neg(V::half(V::shr(head[0], 16))));
            let (s, t) = scales_mins::<V>(&head);
            unroll!(C in [0, 1, 2, 3] {
                let packed = rows.weights32(16 + 32 * C);
                let (i, j) = (C / 2, C % 2 * 2);
                let mut n = packed;
                for q in 0..8 {
                    n[q] = V::field(packed[q], 0, 15);
                }
                let m = [V::mul(dmin, byte_f32::<V>(t[i], j)); 2];
                sink.block(2 * C, RowBlock { n, d: V::mul(d, byte_f32::<V>(s[i], j)), s: m, m });
                for q in 0..8 {
                    n[q] = V::field(packed[q], 4, 15);
                }
                let m = [V::mul(dmin, byte_f32::<V>(t[i], j + 1)); 2];
                sink.block(2 * C + 1, RowBlock { n, d: V::mul(d, byte_f32::<V>(s[i], j + 1)), s: m, m });
            });
        }
    }
}

/// The same for all blocks of each row: byte j of vector i is block 4 i + j. `head` is d, dmin and the 12 bytes.
#[inline(always)]
pub(super) unsafe fn scales_mins<V: Simd>(head: &[V::I; 4]) -> ([V::I; 2], [V::I; 2]) {
    let [_, a, b, c] = *head;
    // SAFETY: the caller's promise.
    unsafe {
        let s = V::or(V::field(c, 0, 15), V::field(a, 2, 48));
        let t = V::or(V::field(c, 4, 15), V::field(b, 2, 48));
        ([V::field(a, 0, 63), s], [V::field(b, 0, 63), t])
    }
}
