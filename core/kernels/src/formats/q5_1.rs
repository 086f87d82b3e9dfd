//! Q5_1: `w = d n + m`, n of five bits. 6 bits per weight.
//!
//!     d: f16 | m: f16 | u32: bit k is the fifth bit of weight k | 16 bytes: low nibbles are weights 0..16, high 16..32

use super::q5_0::add_fifth_bits;
use super::{Block32, BlockFormat, Mins, half_at, nibbles};

pub(crate) struct Q5_1;

const _: () = assert!(Q5_1::BYTES == 2 + 2 + 4 + 32 * 4 / 8);

impl BlockFormat for Q5_1 {
    const ID: u32 = 7;
    const NAME: &'static str = "Q5_1";
    const BLOCK: usize = 32;
    const BYTES: usize = 24;
    const MINS: Mins = Mins::PerBlock;
    const Q_RANGE: (i8, i8) = (0, 31);

    fn unpack32(row: &[u8], b: usize) -> Block32 {
        let x = &row[b * Self::BYTES..][..Self::BYTES];
        let mut q = nibbles(&x[8..], |n| n as i8);
        add_fifth_bits(&mut q, &x[4..]);
        Block32 { q, s: [1.0; 2], d: half_at(x, 0), m: [half_at(x, 2); 2] }
    }
}
