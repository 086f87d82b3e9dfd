//! Q3_K: `w = d s (n - 4)`, n of three bits, s of six bits less 32 for each 16 weights. 3.4375 bits per weight.
//!
//!     32 bytes: bit b of byte k is the third bit of weight 32 b + k | 64 bytes: the lower two bits, as in Q2_K
//!     12 bytes: s (see `scale`) | d: f16

use super::{Block32, BlockFormat, half_at};

pub(crate) struct Q3K;

const _: () = assert!(Q3K::BYTES == 256 / 8 + 256 * 2 / 8 + 12 + 2);

impl BlockFormat for Q3K {
    const ID: u32 = 11;
    const NAME: &'static str = "Q3_K";
    const BLOCK: usize = 256;
    const BYTES: usize = 110;
    const SCALED: bool = true;
    const Q_RANGE: (i8, i8) = (-4, 3);

    fn unpack32(row: &[u8], b: usize) -> Block32 {
        let x = &row[b / 8 * Self::BYTES..][..Self::BYTES];
        let (half, j) = (b % 8 / 4, b % 4);
        let low = &x[32 + 32 * half..][..32];
        let mut q = [0; 32];
        for (k, q) in q.iter_mut().enumerate() {
            let n = low[k] >> (2 * j) & 3 | (x[k] >> (b % 8) & 1) << 2;
            *q = n as i8 - 4;
        }
        let s = |i| f32::from(scale(&x[96..108], i));
        Block32 { q, s: [s(b % 8 * 2), s(b % 8 * 2 + 1)], d: half_at(x, 108), m: [0.0; 2] }
    }
}

/// Scale `i` of 16: its low four bits are nibble `i / 8` of byte `i % 8`, its high two bits are pair `i / 4` of byte
/// `8 + i % 4`.
fn scale(s: &[u8], i: usize) -> i8 {
    let low = s[i % 8] >> (4 * (i / 8)) & 15;
    let high = s[8 + i % 4] >> (2 * (i / 4)) & 3;
    (low | high << 4) as i8 - 32
}
