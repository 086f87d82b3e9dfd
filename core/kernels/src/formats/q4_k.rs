//! Q4_K: `w = d s n - dmin t`, n a nibble, s and t of six bits for each 32 weights. 4.5 bits per weight.
//!
//!     d: f16 | dmin: f16 | 12 bytes: s and t (see `scale_min`) | 128 bytes of n
//!
//! Byte k of the i-th 32 bytes of n holds weight 64 i + k in its low and 64 i + 32 + k in its high nibble.

use super::{Block32, BlockFormat, Mins, half_at};

pub(crate) struct Q4K;

const _: () = assert!(Q4K::BYTES == 2 + 2 + 12 + 256 * 4 / 8);

impl BlockFormat for Q4K {
    const ID: u32 = 12;
    const NAME: &'static str = "Q4_K";
    const BLOCK: usize = 256;
    const BYTES: usize = 144;
    const MINS: Mins = Mins::PerBlock;
    const Q_RANGE: (i8, i8) = (0, 15);

    fn unpack32(row: &[u8], b: usize) -> Block32 {
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
