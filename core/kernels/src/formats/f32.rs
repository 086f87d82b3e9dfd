//! F32: IEEE single, little-endian. 32 bits per weight.

use super::FloatFormat;
use crate::matmul::float::LoadF32;

pub(crate) struct F32;

impl FloatFormat for F32 {
    const ID: u32 = 0;
    const NAME: &'static str = "F32";
    const BYTES: usize = 4;
    type Load = LoadF32;

    fn decode(row: &[u8], out: &mut [f32]) {
        for (o, b) in out.iter_mut().zip(row.chunks_exact(4)) {
            *o = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        }
    }
}
