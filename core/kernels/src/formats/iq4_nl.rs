//! IQ4_NL: `w = d VALUES[n]`, n a nibble. 4.5 bits per weight.
//!
//! ```text
//! d: f16 | 16 bytes: low nibbles are weights 0..16, high nibbles 16..32
//! ```

use super::{Block32, BlockFormat, half_at, nibbles};
use crate::matmul::simd::{RowBlock, ShapeOf, Simd, Sink, Unpack, nibbles as unpack_nibbles};
use crate::matmul::source::Source;

pub(crate) struct Iq4Nl;

const _: () = assert!(Iq4Nl::BYTES == 2 + 32 * 4 / 8);

/// The format's 16 levels: denser near zero, where weights are.
pub(crate) const VALUES: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

impl BlockFormat for Iq4Nl {
    const ID: u32 = 20;
    const NAME: &'static str = "IQ4_NL";
    const BLOCK: usize = 32;

    fn unpack32(row: &[u8], _: &[u8], b: usize) -> Block32 {
        let x = &row[b * Self::BYTES..][..Self::BYTES];
        Block32 { q: nibbles(&x[2..], |n| VALUES[n as usize]), s: [1.0; 2], d: half_at(x, 0), m: [0.0; 2] }
    }
}

impl Unpack for Iq4Nl {
    type Shape = ShapeOf<false, 0, 0, 255>;
    const BLOCKS: usize = 1;
    const BYTES: usize = 18;
    const LONE_HALF: Option<usize> = Some(0);

    #[inline(always)]
    unsafe fn unit<V: Simd, R: Source<V>>(rows: &R, _: &R, sink: &mut impl Sink<V>) {
        // SAFETY: the caller's promise; offsets stay below `BYTES`.
        unsafe {
            let n = levels::<V>(&rows.weights16(2));
            let zero = [V::zero_f(); 2];
            sink.block(0, RowBlock { n, d: rows.rows_half(0), s: zero, m: zero });
        }
    }
}

/// 16 bytes of nibbles as levels, XOR `FLIP`.
#[inline(always)]
pub(super) unsafe fn levels<V: Simd>(packed: &[V::I; 4]) -> [V::I; 8] {
    let table = const {
        let mut table = [0; 16];
        let mut i = 0;
        while i < 16 {
            table[i] = VALUES[i] as u8 ^ V::FLIP;
            i += 1;
        }
        table
    };
    // SAFETY: the caller's promise.
    unsafe {
        let mut n = unpack_nibbles::<V>(packed);
        for n in &mut n {
            *n = V::lookup(table, *n);
        }
        n
    }
}
