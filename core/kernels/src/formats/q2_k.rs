//! Q2_K: `w = d s n - dmin t`, n of two bits, s and t nibbles for each 16 weights. 2.625 bits per weight.
//!
//! ```text
//! 16 bytes: low nibble s, high nibble t of weights 16 i.. | 64 bytes of n | d: f16 | dmin: f16
//! ```
//!
//! Each half of 128 weights has 32 bytes of n; bits 2 j, 2 j + 1 of byte k belong to weight 32 j + k of that half.

use super::{Block32, BlockFormat, half_at};
use crate::matmul::simd::{RowBlock, ShapeOf, Simd, Sink, Unpack, byte_f32, unroll};
use crate::matmul::source::Source;

pub(crate) struct Q2K;

const _: () = assert!(Q2K::BYTES == 256 / 16 + 256 * 2 / 8 + 2 + 2);

impl BlockFormat for Q2K {
    const ID: u32 = 10;
    const NAME: &'static str = "Q2_K";
    const BLOCK: usize = 256;

    fn unpack32(row: &[u8], _: &[u8], b: usize) -> Block32 {
        let x = &row[b / 8 * Self::BYTES..][..Self::BYTES];
        let (half, j) = (b % 8 / 4, b % 4);
        let bytes = &x[16 + 32 * half..][..32];
        let mut q = [0; 32];
        for (q, byte) in q.iter_mut().zip(bytes) {
            *q = (byte >> (2 * j) & 3) as i8;
        }
        let st = [x[b % 8 * 2], x[b % 8 * 2 + 1]];
        let dmin = half_at(x, 82);
        Block32 {
            q,
            s: st.map(|v| f32::from(v & 15)),
            d: half_at(x, 80),
            m: st.map(|v| -(dmin * f32::from(v >> 4))),
        }
    }
}

impl Unpack for Q2K {
    type Shape = ShapeOf<true, 2, 0, 3>;
    const BLOCKS: usize = 8;
    const BYTES: usize = 84;

    #[inline(always)]
    unsafe fn unit<V: Simd, R: Source<V>>(rows: &R, _: &R, sink: &mut impl Sink<V>) {
        // SAFETY: the caller's promise; offsets stay below `BYTES`.
        unsafe {
            let st = rows.rows16(0);
            let dd = rows.rows4(80);
            let (d, dmin) = (V::half(dd), V::neg(V::half(V::shr(dd, 16))));
            unroll!(H in [0, 1] {
                let packed = rows.weights32(16 + 32 * H);
                unroll!(J in [0, 1, 2, 3] {
                    let mut n = packed;
                    for q in 0..8 {
                        n[q] = V::field(packed[q], 2 * J as i32, 3);
                    }
                    let (i, j) = (2 * H + J / 2, J % 2 * 2);
                    let (s, t) = (V::field(st[i], 0, 15), V::field(st[i], 4, 15));
                    let m = [
                        V::mul(dmin, byte_f32::<V>(t, j)),
                        V::mul(dmin, byte_f32::<V>(t, j + 1)),
                    ];
                    let s = [byte_f32::<V>(s, j), byte_f32::<V>(s, j + 1)];
                    sink.block(4 * H + J, RowBlock { n, d, s, m });
                });
            });
        }
    }
}
