//! Q6_K: `w = d s (n - 32)`, n of six bits, s a signed byte for each 16 weights. 6.5625 bits per weight.
//!
//!     128 bytes: lower four bits | 64 bytes: upper two bits | 16 signed bytes: s | d: f16
//!
//! Each half of 128 weights has 64 bytes of low and 32 bytes of high bits: weight 32 j + k (k < 32) has its low bits in
//! nibble `j / 2` of low byte `32 (j % 2) + k` and its high bits in pair j of high byte k.

use super::{Block32, BlockFormat, half_at};

pub(crate) struct Q6K;

const _: () = assert!(Q6K::BYTES == 256 * 4 / 8 + 256 * 2 / 8 + 16 + 2);

impl BlockFormat for Q6K {
    const ID: u32 = 14;
    const NAME: &'static str = "Q6_K";
    const BLOCK: usize = 256;
    const BYTES: usize = 210;
    const SCALED: bool = true;
    const Q_RANGE: (i8, i8) = (-32, 31);

    fn unpack32(row: &[u8], b: usize) -> Block32 {
        let x = &row[b / 8 * Self::BYTES..][..Self::BYTES];
        let (half, j) = (b % 8 / 4, b % 4);
        let low = &x[64 * half + 32 * (j % 2)..][..32];
        let high = &x[128 + 32 * half..][..32];
        let mut q = [0; 32];
        for (k, q) in q.iter_mut().enumerate() {
            let n = low[k] >> (j / 2 * 4) & 15 | (high[k] >> (2 * j) & 3) << 4;
            *q = n as i8 - 32;
        }
        let s = |i: usize| f32::from(x[192 + i] as i8);
        Block32 { q, s: [s(b % 8 * 2), s(b % 8 * 2 + 1)], d: half_at(x, 208), m: [0.0; 2] }
    }
}
