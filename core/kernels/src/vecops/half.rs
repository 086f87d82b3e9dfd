//! Conversion between f32 and IEEE half precision.

use crate::math::{LANES, Lanes, load_part, load_part_f16, store_part};

#[inline(always)]
pub(crate) fn to_f16<S: Lanes>(s: S, x: &[f32], out: &mut [u16]) {
    let (full, rest) = x.as_chunks::<LANES>();
    let (out_full, out_rest) = out.as_chunks_mut::<LANES>();
    for (x, out) in full.iter().zip(out_full) {
        s.store_f16(s.load(x), out);
    }
    if !rest.is_empty() {
        let mut last = [0; LANES];
        s.store_f16(load_part(s, rest), &mut last);
        out_rest.copy_from_slice(&last[..rest.len()]);
    }
}

#[inline(always)]
pub(crate) fn from_f16<S: Lanes>(s: S, x: &[u16], out: &mut [f32]) {
    let (full, rest) = x.as_chunks::<LANES>();
    let (out_full, out_rest) = out.as_chunks_mut::<LANES>();
    for (x, out) in full.iter().zip(out_full) {
        s.store(s.load_f16(x), out);
    }
    if !rest.is_empty() {
        store_part(s, load_part_f16(s, rest), out_rest);
    }
}

#[inline(always)]
pub(crate) fn round_f16<S: Lanes>(s: S, x: &mut [f32]) {
    let (full, rest) = x.as_chunks_mut::<LANES>();
    let mut half = [0; LANES];
    for x in full {
        s.store_f16(s.load(x), &mut half);
        s.store(s.load_f16(&half), x);
    }
    if !rest.is_empty() {
        s.store_f16(load_part(s, rest), &mut half);
        store_part(s, s.load_f16(&half), rest);
    }
}
