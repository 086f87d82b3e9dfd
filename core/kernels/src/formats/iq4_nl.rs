//! IQ4_NL: `w = d VALUES[n]`, n a nibble. 4.5 bits per weight.
//!
//!     d: f16 | 16 bytes: low nibbles are weights 0..16, high nibbles 16..32

use super::{Block32, BlockFormat, half_at, nibbles};

pub(crate) struct Iq4Nl;

const _: () = assert!(Iq4Nl::BYTES == 2 + 32 * 4 / 8);

/// The format's 16 levels: denser near zero, where weights are.
pub(crate) const VALUES: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

impl BlockFormat for Iq4Nl {
    const ID: u32 = 20;
    const NAME: &'static str = "IQ4_NL";
    const BLOCK: usize = 32;
    const BYTES: usize = 18;
    const Q_RANGE: (i8, i8) = (-127, 113);

    fn unpack32(row: &[u8], b: usize) -> Block32 {
        let x = &row[b * Self::BYTES..][..Self::BYTES];
        Block32 { q: nibbles(&x[2..], |n| VALUES[n as usize]), s: [1.0; 2], d: half_at(x, 0), m: [0.0; 2] }
    }
}
