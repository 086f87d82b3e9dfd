//! F16: IEEE half, little-endian. 16 bits per weight.

use super::FloatFormat;
use crate::matmul::float::LoadF16;

pub(crate) struct F16;

impl FloatFormat for F16 {
    const ID: u32 = 1;
    const NAME: &'static str = "F16";
    const BYTES: usize = 2;
    type Load = LoadF16;

    fn decode(row: &[u8], out: &mut [f32]) {
        for (o, b) in out.iter_mut().zip(row.chunks_exact(2)) {
            *o = half::f16::from_le_bytes([b[0], b[1]]).to_f32();
        }
    }
}
