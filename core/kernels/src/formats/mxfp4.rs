//! MXFP4 (OCP Microscaling, E2M1 elements): `w = 2^(e - 128) VALUES[n]`, n a nibble. 4.25 bits per weight.
//!
//!     e: u8 | 16 bytes: low nibbles are weights 0..16, high nibbles 16..32
//!
//! VALUES are twice the elements of the standard, so that they are integers; the exponent bias is one larger for it.

use super::{Block32, BlockFormat, nibbles};

pub(crate) struct Mxfp4;

const _: () = assert!(Mxfp4::BYTES == 1 + 32 * 4 / 8);

/// Twice the sixteen E2M1 values.
pub(crate) const VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

impl BlockFormat for Mxfp4 {
    const ID: u32 = 39;
    const NAME: &'static str = "MXFP4";
    const BLOCK: usize = 32;
    const BYTES: usize = 17;
    const Q_RANGE: (i8, i8) = (-12, 12);

    fn unpack32(row: &[u8], b: usize) -> Block32 {
        let x = &row[b * Self::BYTES..][..Self::BYTES];
        Block32 { q: nibbles(&x[1..], |n| VALUES[n as usize]), s: [1.0; 2], d: exponent(x[0]), m: [0.0; 2] }
    }
}

/// `2^(e - 128)`. The two smallest are subnormal.
pub(crate) fn exponent(e: u8) -> f32 {
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { (u32::from(e) - 1) << 23 })
}
