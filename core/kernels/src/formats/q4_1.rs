//! Q4_1: `w = d n + m`, n a nibble. 5 bits per weight.
//!
//!     d: f16 | m: f16 | 16 bytes: low nibbles are weights 0..16, high nibbles 16..32

use super::{Block32, BlockFormat, Mins, half_at, nibbles};

pub(crate) struct Q4_1;

const _: () = assert!(Q4_1::BYTES == 2 + 2 + 32 * 4 / 8);

impl BlockFormat for Q4_1 {
    const ID: u32 = 3;
    const NAME: &'static str = "Q4_1";
    const BLOCK: usize = 32;
    const BYTES: usize = 20;
    const MINS: Mins = Mins::PerBlock;
    const Q_RANGE: (i8, i8) = (0, 15);

    fn unpack32(row: &[u8], b: usize) -> Block32 {
        let x = &row[b * Self::BYTES..][..Self::BYTES];
        Block32 { q: nibbles(&x[4..], |n| n as i8), s: [1.0; 2], d: half_at(x, 0), m: [half_at(x, 2); 2] }
    }
}
