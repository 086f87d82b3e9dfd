//! BF16: the upper half of an IEEE single, little-endian. 16 bits per weight.

use super::FloatFormat;
use crate::matmul::float::LoadBf16;

pub(crate) struct Bf16;

impl FloatFormat for Bf16 {
    const ID: u32 = 30;
    const NAME: &'static str = "BF16";
    const BYTES: usize = 2;
    type Load = LoadBf16;

    fn decode(row: &[u8], out: &mut [f32]) {
        for (o, b) in out.iter_mut().zip(row.chunks_exact(2)) {
            *o = f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16);
        }
    }
}
