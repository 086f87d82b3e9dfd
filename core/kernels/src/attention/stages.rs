//! The stages of a page: scores, softmax, weighted values. Each is one function per ISA, small enough to keep its loops in registers.

// Register tiles are arrays with constant bounds; a closure or iterator adaptor between a loop and an intrinsic would be compiled
// without the ISA's features.
#![allow(clippy::needless_range_loop)]

use std::mem::MaybeUninit;
use std::ops::Range;

use super::channel4::Channel4Rows;
use super::channel8::Channel8Rows;
use super::rows::{F16Rows, F32Rows, Q4Rows, Q8Rows, Rows};
use super::scratch::{ROW_BLOCK, SCORE_STRIDE, TILE_ROWS};
use super::work::{State, Work};
use super::{PAGE_TOKENS, PART_TOKENS};
use crate::math::{self, LANES, Lanes};
use crate::vecops::soft_capped;

/// Factors and cap of the scores.
#[derive(Clone, Copy)]
pub(crate) struct Scores<'a> {
    /// Scales of the keys, a half for each slot, where they are not part of the dot products.
    pub factors: Option<&'a [u16; PAGE_TOKENS]>,
    pub scale: f32,
    pub soft_cap: Option<f32>,
}

/// Up to seven rows of a tile that see the same slots of a page: so many heads may share a KV head before a page is converted first.
#[derive(Clone, Copy)]
pub(crate) struct Block<'a, R> {
    /// Keys or values of the page.
    pub page: R,
    /// Those of the next page, which are fetched meanwhile: the rows of one head in one page are a short stream at a distant
    /// address, on which hardware prefetch starts anew, and late.
    pub next: R,
    pub slots: &'a Range<usize>,
    /// First row.
    pub row: usize,
    pub rows: usize,
}

/// Dot products of a block with the keys of a page, straight from it. Whole halves of the page are computed; what lies outside the slots
/// is not used later.
#[inline(always)]
pub(crate) fn scores_f16<S: Lanes>(s: S, block: &Block<'_, F16Rows<'_>>, work: &mut Work<'_>) {
    scores_direct(s, block, work);
}

/// [`scores_f16`] with int8 keys.
#[inline(always)]
pub(crate) fn scores_q8<S: Lanes>(s: S, block: &Block<'_, Q8Rows<'_>>, work: &mut Work<'_>) {
    scores_direct(s, block, work);
}

/// [`scores_f16`] with int4 keys.
#[inline(always)]
pub(crate) fn scores_q4<S: Lanes>(s: S, block: &Block<'_, Q4Rows<'_>>, work: &mut Work<'_>) {
    scores_direct(s, block, work);
}

/// [`scores_f16`] with int4 keys that are scaled per channel.
#[inline(always)]
pub(crate) fn scores_q4_channel<S: Lanes>(s: S, block: &Block<'_, Channel4Rows<'_>>, work: &mut Work<'_>) {
    scores_direct(s, block, work);
}

/// [`scores_f16`] with int8 keys that are scaled per channel.
#[inline(always)]
pub(crate) fn scores_q8_channel<S: Lanes>(s: S, block: &Block<'_, Channel8Rows<'_>>, work: &mut Work<'_>) {
    scores_direct(s, block, work);
}

impl<R: Copy> Block<'_, R> {
    /// The block as two, if it has more rows than sums fit into registers that are not wide.
    #[inline(always)]
    fn narrow(&self) -> Option<(Self, Self)> {
        let (rows, rest) = (ROW_BLOCK, self.rows.checked_sub(ROW_BLOCK)?);
        (rest > 0).then(|| (Block { rows, ..*self }, Block { row: self.row + rows, rows: rest, ..*self }))
    }
}

#[inline(always)]
fn scores_direct<S: Lanes, K: Rows>(s: S, block: &Block<'_, K>, work: &mut Work<'_>) {
    if !S::WIDE
        && let Some((first, rest)) = block.narrow()
    {
        scores_rows(s, &first, work);
        return scores_rows(s, &rest, work);
    }
    scores_rows(s, block, work);
}

#[inline(always)]
fn scores_rows<S: Lanes, K: Rows>(s: S, block: &Block<'_, K>, work: &mut Work<'_>) {
    for half in block.slots.start / LANES..block.slots.end.div_ceil(LANES) {
        match (block.rows, S::WIDE) {
            (1, true) => scores_half::<S, _, 1, 8>(s, block, half, work),
            (2, true) => scores_half::<S, _, 2, 8>(s, block, half, work),
            (3, true) => scores_half::<S, _, 3, 4>(s, block, half, work),
            (4, true) => scores_half::<S, _, 4, 4>(s, block, half, work),
            (5, true) => scores_half::<S, _, 5, 4>(s, block, half, work),
            (6, true) => scores_half::<S, _, 6, 4>(s, block, half, work),
            (_, true) => scores_half::<S, _, 7, 4>(s, block, half, work),
            (1, false) => scores_half::<S, _, 1, 4>(s, block, half, work),
            (2, false) => scores_half::<S, _, 2, 2>(s, block, half, work),
            (3, false) => scores_half::<S, _, 3, 1>(s, block, half, work),
            (_, false) => scores_half::<S, _, 4, 1>(s, block, half, work),
        }
    }
}

/// `M` rows with 16 positions, `T` positions at a time: `M * T` sums are in registers.
#[inline(always)]
fn scores_half<S: Lanes, K: Rows, const M: usize, const T: usize>(
    s: S,
    block: &Block<'_, K>,
    half: usize,
    work: &mut Work<'_>,
) {
    let Block { page: keys, next, row, .. } = *block;
    let chunks = work.kp / LANES;
    let q = &work.q[row * work.kp..(row + M) * work.kp];
    assert!(half < 2 && keys.whole_chunks() >= chunks);
    let mut sums: [[MaybeUninit<S::V>; LANES]; M] = [[const { MaybeUninit::uninit() }; LANES]; M];
    for first in (0..LANES).step_by(T) {
        for t in 0..T {
            keys.prefetch(s, half * LANES + first + t, next);
        }
        let mut acc = [[s.splat(0.0); M]; T];
        for c in 0..chunks {
            let mut queries = [s.splat(0.0); M];
            for m in 0..M {
                // SAFETY: row `m < M` of `q`, chunk `c < chunks`.
                queries[m] = s.load(unsafe { sixteen(q, m * work.kp + c * LANES) });
            }
            for t in 0..T {
                // SAFETY: a slot of the page, and a whole chunk by the assertion.
                let k = unsafe { keys.load(s, half * LANES + first + t, c) };
                for m in 0..M {
                    acc[t][m] = s.fma(queries[m], k, acc[t][m]);
                }
            }
        }
        for t in 0..T {
            for m in 0..M {
                sums[m][first + t].write(acc[t][m]);
            }
        }
    }
    for m in 0..M {
        // SAFETY: T divides 16, so the loop above has written all sixteen.
        let sums = unsafe { &*sums[m].as_ptr().cast::<[S::V; LANES]>() };
        s.store(s.sum_each(sums), sixteen_mut(work.p, (row + m) * SCORE_STRIDE + work.at + half * LANES));
    }
}

/// Scales and caps a row's dot products of a page, hides what lies outside the slots, and updates the maximum.
#[inline(always)]
pub(crate) fn scale_scores<S: Lanes>(
    s: S,
    scores: Scores<'_>,
    slots: &Range<usize>,
    row: usize,
    work: &mut Work<'_>,
) {
    let p = &mut work.p[row * SCORE_STRIDE + work.at..][..PAGE_TOKENS];
    let scale = s.splat(scores.scale);
    let mut v = [s.splat(0.0); 2];
    for half in 0..2 {
        v[half] = s.load(&*sixteen_mut(p, half * LANES));
        if let Some(factors) = scores.factors {
            v[half] = s.mul(v[half], s.load_f16(halves(factors, half)));
        }
        v[half] = s.mul(v[half], scale);
        if let Some(cap) = scores.soft_cap {
            v[half] = soft_capped(s, v[half], s.splat(cap), s.splat(1.0 / cap));
        }
        s.store(v[half], sixteen_mut(p, half * LANES));
    }
    if *slots != (0..PAGE_TOKENS) {
        // Slots outside hold anything, even NaN: replaced, not multiplied away.
        p[..slots.start].fill(f32::NEG_INFINITY);
        p[slots.end..].fill(f32::NEG_INFINITY);
        v = [s.load(&*sixteen_mut(p, 0)), s.load(&*sixteen_mut(p, LANES))];
    }
    work.state.m[row] = math::Arith::max(math::Single, work.state.m[row], s.max_lane(s.max(v[0], v[1])));
}

/// Turns a row's scores of a partition (those of the pages that it reads, a bit each) into probabilities in half precision.
#[inline(always)]
pub(crate) fn soften<S: Lanes>(s: S, pages: u16, row: usize, work: &mut Work<'_>) {
    let p = &mut work.p[row * SCORE_STRIDE..][..PART_TOKENS];
    let m = s.splat(work.state.m[row]);
    let mut l = 0.0;
    let mut left = pages;
    while left != 0 {
        let page = &mut p[left.trailing_zeros() as usize * PAGE_TOKENS..][..PAGE_TOKENS];
        left &= left - 1;
        let mut e = [s.splat(0.0); 2];
        for half in 0..2 {
            e[half] = math::exp(s, s.sub(s.load(&*sixteen_mut(page, half * LANES)), m));
            s.store(e[half], sixteen_mut(page, half * LANES));
        }
        l += s.sum(s.add(e[0], e[1]));
    }
    work.state.l[row] = l;
    let factor = s.splat(1.0 / l);
    let mut half = [0; LANES];
    left = pages;
    while left != 0 {
        let page = &mut p[left.trailing_zeros() as usize * PAGE_TOKENS..][..PAGE_TOKENS];
        left &= left - 1;
        for v in page.as_chunks_mut::<LANES>().0 {
            s.store_f16(s.mul(s.load(v), factor), &mut half);
            s.store(s.load_f16(&half), v);
        }
    }
}

/// Multiplies a row's probabilities of the current page with the scales of its values.
#[inline(always)]
pub(crate) fn fold_factors<S: Lanes>(s: S, factors: &[u16; PAGE_TOKENS], row: usize, work: &mut Work<'_>) {
    let p = &mut work.p[row * SCORE_STRIDE + work.at..][..PAGE_TOKENS];
    for half in 0..2 {
        let v = s.mul(s.load(&*sixteen_mut(p, half * LANES)), s.load_f16(halves(factors, half)));
        s.store(v, sixteen_mut(p, half * LANES));
    }
}

/// One half of the factors of a page.
#[inline(always)]
fn halves(factors: &[u16; PAGE_TOKENS], half: usize) -> &[u16; LANES] {
    let (both, _) = factors.as_chunks::<LANES>();
    &both[half]
}

/// `acc = acc + sum p[t] v[t]` over the slots, straight from the page.
#[inline(always)]
pub(crate) fn values_f16<S: Lanes>(s: S, block: &Block<'_, F16Rows<'_>>, work: &mut Work<'_>) {
    values_direct(s, block, work);
}

/// [`values_f16`] with int8 values.
#[inline(always)]
pub(crate) fn values_q8<S: Lanes>(s: S, block: &Block<'_, Q8Rows<'_>>, work: &mut Work<'_>) {
    values_direct(s, block, work);
}

/// [`values_f16`] with int4 values.
#[inline(always)]
pub(crate) fn values_q4<S: Lanes>(s: S, block: &Block<'_, Q4Rows<'_>>, work: &mut Work<'_>) {
    values_direct(s, block, work);
}

#[inline(always)]
fn values_direct<S: Lanes, V: Rows>(s: S, block: &Block<'_, V>, work: &mut Work<'_>) {
    if !S::WIDE
        && let Some((first, rest)) = block.narrow()
    {
        values_rows(s, &first, work);
        return values_rows(s, &rest, work);
    }
    values_rows(s, block, work);
}

#[inline(always)]
fn values_rows<S: Lanes, V: Rows>(s: S, block: &Block<'_, V>, work: &mut Work<'_>) {
    match block.rows {
        1 => add_rows::<S, _, 1>(s, block, work),
        2 => add_rows::<S, _, 2>(s, block, work),
        3 => add_rows::<S, _, 3>(s, block, work),
        5 if S::WIDE => add_rows::<S, _, 5>(s, block, work),
        6 if S::WIDE => add_rows::<S, _, 6>(s, block, work),
        7 if S::WIDE => add_rows::<S, _, 7>(s, block, work),
        _ => add_rows::<S, _, 4>(s, block, work),
    }
}

/// The same for one row or four rows of a tile, from the converted page.
#[inline(always)]
pub(crate) fn values_f32<S: Lanes>(s: S, block: &Block<'_, ()>, work: &mut Work<'_>) {
    // The converted values are read while the rest of the working memory is written.
    let values = std::mem::take(&mut work.values);
    let page = F32Rows::new(values, work.vp);
    let block = Block { page, next: page, slots: block.slots, row: block.row, rows: block.rows };
    match block.rows {
        1 => add_rows::<S, _, 1>(s, &block, work),
        _ => add_rows::<S, _, ROW_BLOCK>(s, &block, work),
    }
    work.values = values;
}

#[inline(always)]
fn add_rows<S: Lanes, V: Rows, const M: usize>(s: S, block: &Block<'_, V>, work: &mut Work<'_>) {
    let chunks = work.vp / LANES;
    // Accumulators stay in registers: 32 of sixteen lanes with AVX-512, else 16 of eight.
    let most = match (S::WIDE, M) {
        (true, 7) | (false, 2) => 2,
        (true, _) | (false, 1) => 4,
        _ => 1,
    };
    let mut c = 0;
    while c < chunks {
        c += match most.min(chunks - c) {
            4.. => add_block::<S, V, M, 4>(s, block, c, work),
            2..4 => add_block::<S, V, M, 2>(s, block, c, work),
            _ => add_block::<S, V, M, 1>(s, block, c, work),
        };
    }
}

/// `M` rows, `C` chunks of the values from `chunk` on. Returns `C`.
#[inline(always)]
fn add_block<S: Lanes, V: Rows, const M: usize, const C: usize>(
    s: S,
    block: &Block<'_, V>,
    chunk: usize,
    work: &mut Work<'_>,
) -> usize {
    let Block { page: values, next, slots, row, .. } = *block;
    let vp = work.vp;
    assert!(slots.end <= PAGE_TOKENS && (chunk + C) * LANES <= vp && chunk + C <= values.whole_chunks());
    let p = &work.p[row * SCORE_STRIDE + work.at..][..(M - 1) * SCORE_STRIDE + PAGE_TOKENS];
    let state = &mut work.state.acc[row * vp..(row + M) * vp];
    let mut acc = [[s.splat(0.0); C]; M];
    for m in 0..M {
        for c in 0..C {
            // SAFETY: row `m < M` of `state`, chunk `chunk + c < vp / 16`.
            acc[m][c] = s.load(unsafe { sixteen(state, m * vp + (chunk + c) * LANES) });
        }
    }
    for t in slots.clone() {
        if chunk == 0 {
            values.prefetch(s, t, next);
        }
        let mut v = [s.splat(0.0); C];
        for c in 0..C {
            // SAFETY: `t` is a slot of the page, `chunk + c` a whole chunk by the assertion.
            v[c] = unsafe { values.load(s, t, chunk + c) };
        }
        for m in 0..M {
            // SAFETY: `p` ends 32 values after the beginning of its last row, and t < 32.
            let w = s.splat(unsafe { *p.get_unchecked(m * SCORE_STRIDE + t) });
            for c in 0..C {
                acc[m][c] = s.fma(w, v[c], acc[m][c]);
            }
        }
    }
    for m in 0..M {
        for c in 0..C {
            s.store(acc[m][c], sixteen_mut(state, m * vp + (chunk + c) * LANES));
        }
    }
    C
}

/// Converts a page's keys to f32, `[lane][chunk][position]`, so that a vector holds one k of sixteen positions.
#[inline(always)]
pub(crate) fn convert_keys<S: Lanes>(s: S, keys: F16Rows<'_>, next: F16Rows<'_>, work: &mut Work<'_>) {
    convert_any_keys(s, keys, next, work);
}

/// [`convert_keys`] of int8 keys, not scaled.
#[inline(always)]
pub(crate) fn convert_keys_q8<S: Lanes>(s: S, keys: Q8Rows<'_>, next: Q8Rows<'_>, work: &mut Work<'_>) {
    convert_any_keys(s, keys, next, work);
}

/// [`convert_keys`] of int4 keys.
#[inline(always)]
pub(crate) fn convert_keys_q4<S: Lanes>(s: S, keys: Q4Rows<'_>, next: Q4Rows<'_>, work: &mut Work<'_>) {
    convert_any_keys(s, keys, next, work);
}

/// [`convert_keys`] of int4 keys that are scaled per channel.
#[inline(always)]
pub(crate) fn convert_keys_q4_channel<S: Lanes>(
    s: S,
    keys: Channel4Rows<'_>,
    next: Channel4Rows<'_>,
    work: &mut Work<'_>,
) {
    convert_any_keys(s, keys, next, work);
}

/// [`convert_keys`] of int8 keys that are scaled per channel.
#[inline(always)]
pub(crate) fn convert_keys_q8_channel<S: Lanes>(
    s: S,
    keys: Channel8Rows<'_>,
    next: Channel8Rows<'_>,
    work: &mut Work<'_>,
) {
    convert_any_keys(s, keys, next, work);
}

#[inline(always)]
fn convert_any_keys<S: Lanes, K: Rows>(s: S, keys: K, next: K, work: &mut Work<'_>) {
    let chunks = work.kp / LANES;
    for t in 0..PAGE_TOKENS {
        keys.prefetch(s, t, next);
    }
    for chunk in 0..chunks {
        for half in 0..2 {
            let mut v = [s.splat(0.0); LANES];
            for t in 0..LANES {
                v[t] = keys.load_padded(s, half * LANES + t, chunk);
            }
            s.transpose(&mut v);
            for lane in 0..LANES {
                let at = (lane * chunks + chunk) * PAGE_TOKENS + half * LANES;
                s.store(v[lane], sixteen_mut(work.keys, at));
            }
        }
    }
}

/// Converts a page's values to f32, row by row.
#[inline(always)]
pub(crate) fn convert_values<S: Lanes>(s: S, values: F16Rows<'_>, next: F16Rows<'_>, work: &mut Work<'_>) {
    convert_any_values(s, values, next, work);
}

/// [`convert_values`] of int8 values, not scaled.
#[inline(always)]
pub(crate) fn convert_values_q8<S: Lanes>(s: S, values: Q8Rows<'_>, next: Q8Rows<'_>, work: &mut Work<'_>) {
    convert_any_values(s, values, next, work);
}

/// [`convert_values`] of int4 values.
#[inline(always)]
pub(crate) fn convert_values_q4<S: Lanes>(s: S, values: Q4Rows<'_>, next: Q4Rows<'_>, work: &mut Work<'_>) {
    convert_any_values(s, values, next, work);
}

#[inline(always)]
fn convert_any_values<S: Lanes, V: Rows>(s: S, values: V, next: V, work: &mut Work<'_>) {
    for t in 0..PAGE_TOKENS {
        values.prefetch(s, t, next);
        for chunk in 0..work.vp / LANES {
            let v = values.load_padded(s, t, chunk);
            s.store(v, sixteen_mut(work.values, t * work.vp + chunk * LANES));
        }
    }
}

/// Dot products of four rows of a tile, from `row` on, with the converted page.
#[inline(always)]
pub(crate) fn scores_f32<S: Lanes>(s: S, row: usize, work: &mut Work<'_>) {
    if S::WIDE {
        scores_tiled::<S, 2>(s, row, 0, work);
    } else {
        scores_tiled::<S, 1>(s, row, 0, work);
        scores_tiled::<S, 1>(s, row, 1, work);
    }
}

/// Sums of four rows over `H` times sixteen positions.
type Sums<S, const H: usize> = [[<S as math::Arith>::V; H]; ROW_BLOCK];

/// Dot products of four rows with `H` half pages. Lanes are positions, so the sixteen partial sums of the fixed order are sixteen
/// registers' worth of chains; they are computed in the order in which the tree combines them, so that few are alive at a time.
#[inline(always)]
fn scores_tiled<S: Lanes, const H: usize>(s: S, block: usize, half: usize, work: &mut Work<'_>) {
    let chunks = work.kp / LANES;
    let q = &work.q[block * work.kp..(block + ROW_BLOCK) * work.kp];
    let keys = &work.keys[half * LANES..];
    let even = add_sums(s, quarter(s, q, keys, chunks, 0), quarter(s, q, keys, chunks, 2));
    let odd = add_sums(s, quarter(s, q, keys, chunks, 1), quarter(s, q, keys, chunks, 3));
    let sums: Sums<S, H> = add_sums(s, even, odd);
    for r in 0..ROW_BLOCK {
        for h in 0..H {
            s.store(
                sums[r][h],
                sixteen_mut(work.p, (block + r) * SCORE_STRIDE + work.at + (half + h) * LANES),
            );
        }
    }
}

/// Partial sums `(p[j] + p[j + 8]) + (p[j + 4] + p[j + 12])`.
#[inline(always)]
fn quarter<S: Lanes, const H: usize>(s: S, q: &[f32], keys: &[f32], chunks: usize, j: usize) -> Sums<S, H> {
    let a = add_sums(s, chain(s, q, keys, chunks, j), chain(s, q, keys, chunks, j + 8));
    let b = add_sums(s, chain(s, q, keys, chunks, j + 4), chain(s, q, keys, chunks, j + 12));
    add_sums(s, a, b)
}

#[inline(always)]
fn add_sums<S: Lanes, const H: usize>(s: S, a: Sums<S, H>, b: Sums<S, H>) -> Sums<S, H> {
    let mut out = a;
    for r in 0..ROW_BLOCK {
        for h in 0..H {
            out[r][h] = s.add(a[r][h], b[r][h]);
        }
    }
    out
}

/// Partial sum `p[j]`: k = j, j + 16, j + 32, …
#[inline(always)]
fn chain<S: Lanes, const H: usize>(s: S, q: &[f32], keys: &[f32], chunks: usize, j: usize) -> Sums<S, H> {
    assert!((j + 1) * chunks * ROW_BLOCK <= q.len());
    assert!(((j + 1) * chunks - 1) * PAGE_TOKENS + H * LANES <= keys.len());
    let mut acc = [[s.splat(0.0); H]; ROW_BLOCK];
    for i in j * chunks..(j + 1) * chunks {
        let mut k = [s.splat(0.0); H];
        for h in 0..H {
            // SAFETY: i < (j + 1) * chunks, for which the end is checked above.
            k[h] = s.load(unsafe { sixteen(keys, i * PAGE_TOKENS + h * LANES) });
        }
        for r in 0..ROW_BLOCK {
            // SAFETY: as above.
            let w = s.splat(unsafe { *q.get_unchecked(i * ROW_BLOCK + r) });
            for h in 0..H {
                acc[r][h] = s.fma(w, k[h], acc[r][h]);
            }
        }
    }
    acc
}

/// Merges the partition `from` into the result of all partitions before it. Rows that saw no position of it stay untouched.
#[inline(always)]
pub(crate) fn merge<S: Lanes>(s: S, into: &mut State<'_>, from: &State<'_>) {
    let rows = into.m.len().min(from.m.len());
    let vp = from.acc.len() / from.m.len();
    for r in 0..rows.min(TILE_ROWS) {
        // The largest score contributes exp(0) = 1, so zero means none.
        if from.l[r] == 0.0 {
            continue;
        }
        let (old, part) = (into.m[r], from.m[r]);
        let new = math::Arith::max(math::Single, old, part);
        let a = math::exp(math::Single, old - new);
        let b = math::exp(math::Single, part - new) * from.l[r];
        into.m[r] = new;
        into.l[r] = into.l[r].mul_add(a, b);
        let (a, b) = (s.splat(a), s.splat(b));
        let (to, _) = into.acc[r * vp..(r + 1) * vp].as_chunks_mut::<LANES>();
        let (add, _) = from.acc[r * vp..(r + 1) * vp].as_chunks::<LANES>();
        for (to, add) in to.iter_mut().zip(add) {
            let v = s.fma(s.load(to), a, s.mul(s.load(add), b));
            s.store(v, to);
        }
    }
}

/// Sixteen values from `at` on, unchecked: these loads are the innermost loops.
///
/// # Safety
/// `at + 16 <= x.len()`.
#[inline(always)]
unsafe fn sixteen(x: &[f32], at: usize) -> &[f32; LANES] {
    debug_assert!(at + LANES <= x.len());
    // SAFETY: in bounds by the precondition; an array has the alignment of its elements.
    unsafe { &*x.as_ptr().add(at).cast() }
}

/// Sixteen values from `at` on.
#[inline(always)]
fn sixteen_mut(x: &mut [f32], at: usize) -> &mut [f32; LANES] {
    let values = &mut x[at..at + LANES];
    // SAFETY: the slice is sixteen values long; an array has the alignment of its elements.
    unsafe { &mut *values.as_mut_ptr().cast() }
}
