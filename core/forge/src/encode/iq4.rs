//! IQ4_NL and IQ4_XS: four bits that number sixteen unevenly spaced levels, denser around zero as weights are.

use super::pack::{Fields, blocks, by_magnitude, nibbles};
use super::scaled::{self, LANES, Levels};
use multiversion::multiversion;

/// The levels of the format.
const CODEBOOK: [f32; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0,
];

/// Halfway between neighbours, and the distance to the next level.
const STEPS: [(f32, f32); 15] = {
    let mut steps = [(0.0, 0.0); 15];
    let mut i = 0;
    while i < 15 {
        steps[i] = ((CODEBOOK[i] + CODEBOOK[i + 1]) / 2.0, CODEBOOK[i + 1] - CODEBOOK[i]);
        i += 1;
    }
    steps
};

struct Codebook;

impl Levels for Codebook {
    const STARTS: [f32; LANES] =
        [-9.0, -6.0, -4.0, -2.0, 0.0, 2.0, 4.0, 7.0, 11.0, 16.0, 22.0, 30.0, -12.0, -8.0, 0.0, 8.0];

    // Without a branch or a table, so that lanes can do it: climb from the lowest level, one step per boundary passed.
    #[inline(always)]
    fn nearest(&self, x: f32) -> f32 {
        let mut level = CODEBOOK[0];
        for (boundary, step) in STEPS {
            level += if x > boundary { step } else { 0.0 };
        }
        level
    }

    fn low(&self) -> f32 {
        CODEBOOK[0]
    }
}

fn number(level: f32) -> u8 {
    STEPS.iter().map(|(boundary, _)| u8::from(level > *boundary)).sum()
}

#[multiversion(targets("x86_64+avx2", "x86_64+sse4.1"))]
pub(super) fn iq4_nl(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    blocks::<32>(row, importance, out, 18, |x, w, block| {
        let w = &by_magnitude(x, w, importance);
        let (d, q) = scaled::block(&Codebook, x, w);
        let mut fields = Fields::new(block);
        fields.f16(d);
        fields.put(&nibbles::<16>(&q.map(number), 16));
    });
}

#[multiversion(targets("x86_64+avx2", "x86_64+sse4.1"))]
pub(super) fn iq4_xs(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    blocks::<256>(row, importance, out, 136, |x, w, block| {
        let w = &by_magnitude(x, w, importance);
        let fit = scaled::super_block::<_, 8, 32>(&Codebook, x, w, -32.0, 31.0);
        let (mut low, mut high) = ([0u8; 4], 0u16);
        for (j, scale) in fit.scales.iter().enumerate() {
            let scale = (scale + 32.0) as i32 as u8;
            low[j / 2] |= (scale & 15) << (4 * (j % 2));
            high |= u16::from(scale >> 4) << (2 * j);
        }
        let mut fields = Fields::new(block);
        fields.f16(fit.d);
        fields.put(&high.to_le_bytes());
        fields.put(&low);
        fields.put(&nibbles::<128>(&fit.q.map(number), 16));
    });
}
