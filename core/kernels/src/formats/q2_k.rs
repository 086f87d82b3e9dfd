//! Q2_K: `w = d s n - dmin t`, n of two bits, s and t nibbles for each 16 weights. 2.625 bits per weight.
//!
//!     16 bytes: low nibble s, high nibble t of weights 16 i.. | 64 bytes of n | d: f16 | dmin: f16
//!
//! Each half of 128 weights has 32 bytes of n; bits 2 j, 2 j + 1 of byte k belong to weight 32 j + k of that half.

use super::{Block32, BlockFormat, Mins, half_at};

pub(crate) struct Q2K;

const _: () = assert!(Q2K::BYTES == 256 / 16 + 256 * 2 / 8 + 2 + 2);

impl BlockFormat for Q2K {
    const ID: u32 = 10;
    const NAME: &'static str = "Q2_K";
    const BLOCK: usize = 256;
    const BYTES: usize = 84;
    const SCALED: bool = true;
    const MINS: Mins = Mins::PerHalf;
    const Q_RANGE: (i8, i8) = (0, 3);

    fn unpack32(row: &[u8], b: usize) -> Block32 {
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
