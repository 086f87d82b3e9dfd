//! Q8_0: `w = d q`, q a signed byte. 8.5 bits per weight.
//!
//!     d: f16 | 32 signed bytes

use super::{Block32, BlockFormat, half_at};

pub(crate) struct Q8_0;

const _: () = assert!(Q8_0::BYTES == 2 + 32);

impl BlockFormat for Q8_0 {
    const ID: u32 = 8;
    const NAME: &'static str = "Q8_0";
    const BLOCK: usize = 32;
    const BYTES: usize = 34;
    const Q_RANGE: (i8, i8) = (-128, 127);

    fn unpack32(row: &[u8], b: usize) -> Block32 {
        let x = &row[b * Self::BYTES..][..Self::BYTES];
        let mut q = [0; 32];
        for (q, &byte) in q.iter_mut().zip(&x[2..]) {
            *q = byte as i8;
        }
        Block32 { q, s: [1.0; 2], d: half_at(x, 0), m: [0.0; 2] }
    }
}
