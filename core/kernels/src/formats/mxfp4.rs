//! MXFP4 (OCP Microscaling, E2M1 elements): `w = 2^(e - 128) VALUES[n]`, n a nibble. 4.25 bits per weight.
//!
//! ```text
//! e: u8 | 16 bytes: low nibbles are weights 0..16, high nibbles 16..32
//! ```
//!
//! VALUES are twice the elements of the standard, so that they are integers; the exponent bias is one larger for it.

use super::{Block32, BlockFormat, nibbles};
use crate::matmul::simd::{RowBlock, ShapeOf, Simd, Sink, Unpack, nibbles as unpack_nibbles};
use crate::matmul::source::Source;

pub(crate) struct Mxfp4;

const _: () = assert!(Mxfp4::BYTES == 1 + 32 * 4 / 8);

/// Twice the sixteen E2M1 values.
pub(crate) const VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

impl BlockFormat for Mxfp4 {
    const ID: u32 = 39;
    const NAME: &'static str = "MXFP4";
    const BLOCK: usize = 32;

    fn unpack32(row: &[u8], _: &[u8], b: usize) -> Block32 {
        let x = &row[b * Self::BYTES..][..Self::BYTES];
        Block32 { q: nibbles(&x[1..], |n| VALUES[n as usize]), s: [1.0; 2], d: exponent(x[0]), m: [0.0; 2] }
    }
}

/// `2^(e - 128)`. The two smallest are subnormal.
pub(crate) fn exponent(e: u8) -> f32 {
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { (u32::from(e) - 1) << 23 })
}

impl Unpack for Mxfp4 {
    type Shape = ShapeOf<false, 0, 16, 28>;
    const BLOCKS: usize = 1;
    const BYTES: usize = 17;

    #[inline(always)]
    unsafe fn unit<V: Simd, R: Source<V>>(rows: &R, _: &R, sink: &mut impl Sink<V>) {
        // SAFETY: the caller's promise; offsets stay below `BYTES`.
        unsafe {
            let table = const {
                let mut table = [0; 16];
                let mut i = 0;
                while i < 16 {
                    table[i] = (VALUES[i] + 16) as u8;
                    i += 1;
                }
                table
            };
            let mut n = unpack_nibbles::<V>(&rows.weights16(1));
            for n in &mut n {
                *n = V::lookup(table, *n);
            }
            // 2^(e - 128) as a product of two powers that are normal numbers, for any e.
            let e = V::and(rows.rows4(0), V::splat(255));
            let half = V::shr(e, 1);
            let bias = V::splat(63);
            let a = V::shl(V::add(half, bias), 23);
            let b = V::shl(V::add(V::add(half, V::and(e, V::splat(1))), bias), 23);
            let zero = [V::zero_f(); 2];
            sink.block(0, RowBlock { n, d: V::mul(V::cast_f(a), V::cast_f(b)), s: zero, m: zero });
        }
    }
}
