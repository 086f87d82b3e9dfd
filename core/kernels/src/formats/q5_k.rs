//! Q5_K: `w = d s n - dmin t`, n of five bits, s and t of six bits for each 32 weights. 5.5 bits per weight.
//!
//!     d: f16 | dmin: f16 | 12 bytes: s and t as in Q4_K | 32 bytes: bit b of byte k is the fifth bit of weight 32 b + k
//!     128 bytes: the lower four bits, as in Q4_K

use super::q4_k::scale_min;
use super::{Block32, BlockFormat, Mins, half_at};

pub(crate) struct Q5K;

const _: () = assert!(Q5K::BYTES == 2 + 2 + 12 + 256 / 8 + 256 * 4 / 8);

impl BlockFormat for Q5K {
    const ID: u32 = 13;
    const NAME: &'static str = "Q5_K";
    const BLOCK: usize = 256;
    const BYTES: usize = 176;
    const MINS: Mins = Mins::PerBlock;
    const Q_RANGE: (i8, i8) = (0, 31);

    fn unpack32(row: &[u8], b: usize) -> Block32 {
        let x = &row[b / 8 * Self::BYTES..][..Self::BYTES];
        let (high, low) = (&x[16..48], &x[48 + b % 8 / 2 * 32..][..32]);
        let mut q = [0; 32];
        for (k, q) in q.iter_mut().enumerate() {
            *q = (low[k] >> (b % 2 * 4) & 15 | (high[k] >> (b % 8) & 1) << 4) as i8;
        }
        let (s, t) = scale_min(&x[4..16], b % 8);
        let (d, dmin) = (half_at(x, 0), half_at(x, 2));
        Block32 { q, s: [1.0; 2], d: d * f32::from(s), m: [-(dmin * f32::from(t)); 2] }
    }
}
