//! One tile and one partition of the context.

use std::ops::Range;

use super::rows::{F16Rows, F32Rows, Rows};
use super::schedule::Tile;
use super::scratch::{ROW_BLOCK, TILE_ROWS, padded};
use super::{PAGE_TOKENS, PART_TOKENS};
use crate::math::{self, LANES, Lanes};
use crate::vecops::soft_capped;

/// From this many rows on, converting a page to f32 first is faster than reading it once per few rows.
const TILED_FROM: usize = 8;

/// Online softmax of some rows: maximum, denominator and weighted sum of values (rows of whole vectors).
pub(crate) struct State<'a> {
    pub m: &'a mut [f32],
    pub l: &'a mut [f32],
    pub acc: &'a mut [f32],
}

impl<'a> State<'a> {
    /// Lays `rows` rows out in `memory`, which is `rows` times the padded value length plus two.
    pub(crate) fn new(memory: &'a mut [f32], rows: usize) -> Self {
        let (m, rest) = memory.split_at_mut(rows);
        let (l, acc) = rest.split_at_mut(rows);
        State { m, l, acc }
    }

    /// No position seen.
    pub(crate) fn clear(&mut self) {
        self.m.fill(f32::NEG_INFINITY);
        self.l.fill(0.0);
        self.acc.fill(0.0);
    }

    /// Takes the leading rows of `from`, as many as fit.
    pub(crate) fn copy_from(&mut self, from: &State<'_>) {
        self.m.copy_from_slice(&from.m[..self.m.len()]);
        self.l.copy_from_slice(&from.l[..self.l.len()]);
        self.acc.copy_from_slice(&from.acc[..self.acc.len()]);
    }
}

/// Working memory of one tile. Rows are padded to a multiple of [`ROW_BLOCK`].
pub(crate) struct Work<'a> {
    kp: usize,
    vp: usize,
    /// Direct: row by row. Tiled: in blocks of four rows, `[block][lane 16][chunk][row 4]`, so that the kernel walks through it.
    q: &'a mut [f32],
    /// A page's keys as `[lane 16][chunk][position 32]`, where lane and chunk are k % 16 and k / 16.
    keys: &'a mut [f32],
    /// A page's values as `[position 32][vp]`.
    values: &'a mut [f32],
    /// Scores, then probabilities: `[row][position 32]`.
    p: &'a mut [f32],
    pub state: State<'a>,
}

impl<'a> Work<'a> {
    /// Splits a thread's slot. The second state is for the caller, to merge partitions into.
    pub(crate) fn new(tile: &Tile<'_>, slot: &'a mut [f32]) -> (Self, State<'a>) {
        let (kp, vp) = (padded(tile.common.shape.k_dim), padded(tile.common.shape.v_dim));
        let rows = tile.rows.next_multiple_of(ROW_BLOCK);
        let (q, rest) = slot.split_at_mut(rows * kp);
        let (keys, rest) = rest.split_at_mut(PAGE_TOKENS * kp);
        let (values, rest) = rest.split_at_mut(PAGE_TOKENS * vp);
        let (p, rest) = rest.split_at_mut(rows * PAGE_TOKENS);
        let (state, rest) = rest.split_at_mut(rows * (vp + 2));
        let merged = State::new(&mut rest[..rows * (vp + 2)], rows);
        (Work { kp, vp, q, keys, values, p, state: State::new(state, rows) }, merged)
    }

    /// Copies the tile's queries in the order that its kernel reads them.
    pub(crate) fn load_queries(&mut self, tile: &Tile<'_>) {
        let (dim, heads) = (tile.common.shape.k_dim, tile.common.shape.heads);
        let query = |r: usize| {
            let (query, head) = tile.row(r);
            &tile.common.q[(query * heads + head) * dim..][..dim]
        };
        if !tiled(tile) {
            for (r, row) in self.q.chunks_exact_mut(self.kp).enumerate() {
                let (values, padding) = row.split_at_mut(dim);
                padding.fill(0.0);
                if r < tile.rows {
                    values.copy_from_slice(query(r));
                }
            }
            return;
        }
        let chunks = self.kp / LANES;
        for (b, block) in self.q.chunks_exact_mut(ROW_BLOCK * self.kp).enumerate() {
            block.fill(0.0);
            for i in 0..ROW_BLOCK.min(tile.rows - ROW_BLOCK * b) {
                let row = query(ROW_BLOCK * b + i);
                for (chunk, values) in row.chunks(LANES).enumerate() {
                    for (lane, &value) in values.iter().enumerate() {
                        block[(lane * chunks + chunk) * ROW_BLOCK + i] = value;
                    }
                }
            }
        }
    }
}

fn tiled(tile: &Tile<'_>) -> bool {
    tile.rows >= TILED_FROM
}

/// Computes `work.state` for one partition of the context.
#[inline(always)]
pub(crate) fn attend<S: Lanes>(s: S, tile: &Tile<'_>, part: usize, work: &mut Work<'_>) {
    work.state.clear();
    let spans = tile.spans();
    let span = spans.start.max(part * PART_TOKENS)..spans.end.min((part + 1) * PART_TOKENS);
    let shape = &tile.common.shape;
    let (k_len, v_len) = (PAGE_TOKENS * shape.k_dim, PAGE_TOKENS * shape.v_dim);
    for page in span.start / PAGE_TOKENS..span.end.div_ceil(PAGE_TOKENS) {
        let data = tile.common.kv.page(page);
        let keys = F16Rows::new(&data[shape.key_at(tile.kv_head, 0)..][..k_len], shape.k_dim);
        let values = F16Rows::new(&data[shape.value_at(tile.kv_head, 0)..][..v_len], shape.v_dim);
        if tiled(tile) {
            page_tiled(s, tile, page, keys, values, work);
        } else {
            page_direct(s, tile, page, keys, values, work);
        }
    }
}

/// The slots of a page that a row attends to.
#[inline(always)]
fn slots(tile: &Tile<'_>, row: usize, page: usize) -> Range<usize> {
    let span = tile.span(row);
    let first = page * PAGE_TOKENS;
    let end = span.end.saturating_sub(first).min(PAGE_TOKENS);
    span.start.saturating_sub(first).min(end)..end
}

#[inline(always)]
fn page_direct<S: Lanes, K: Rows, V: Rows>(
    s: S,
    tile: &Tile<'_>,
    page: usize,
    keys: K,
    values: V,
    work: &mut Work<'_>,
) {
    let mut row = 0;
    while row < tile.rows {
        // Rows of one query see the same slots; rows of different queries are separated here.
        let same = (tile.heads - row % tile.heads).min(tile.rows - row);
        let slots = slots(tile, row, page);
        let block = if same >= 4 {
            4
        } else if same >= 2 {
            2
        } else {
            1
        };
        if !slots.is_empty() {
            match block {
                4 => scores_direct::<S, K, 4>(s, keys, &slots, row, work),
                2 => scores_direct::<S, K, 2>(s, keys, &slots, row, work),
                _ => scores_direct::<S, K, 1>(s, keys, &slots, row, work),
            }
            let mut factors = [1.0; 4];
            for (r, factor) in factors.iter_mut().enumerate().take(block) {
                *factor = soften(s, tile, row + r, &slots, work);
            }
            add_values(s, values, &slots, row, block, &factors, work);
        }
        row += block;
    }
}

/// Dot products of `M` rows with the keys of `slots`, straight from the page.
#[inline(always)]
fn scores_direct<S: Lanes, K: Rows, const M: usize>(
    s: S,
    keys: K,
    slots: &Range<usize>,
    row: usize,
    work: &mut Work<'_>,
) {
    let chunks = work.kp / LANES;
    let q = &work.q[row * work.kp..(row + M) * work.kp];
    for half in 0..2 {
        let tokens = slots.start.max(half * LANES)..slots.end.min((half + 1) * LANES);
        if tokens.is_empty() {
            continue;
        }
        let mut sums = [[s.splat(0.0); LANES]; M];
        for t in tokens {
            let mut acc = [s.splat(0.0); M];
            for c in 0..chunks {
                // SAFETY: `t` is a slot of the page, and `chunks` is the padded row length.
                let k = unsafe { keys.load(s, t, c) };
                for m in 0..M {
                    // SAFETY: row `m < M` of `q`, chunk `c < chunks`.
                    acc[m] = s.fma(s.load(unsafe { sixteen(q, m * work.kp + c * LANES) }), k, acc[m]);
                }
            }
            for m in 0..M {
                sums[m][t % LANES] = acc[m];
            }
        }
        for m in 0..M {
            let at = (row + m) * PAGE_TOKENS + half * LANES;
            s.store(s.sum_each(&sums[m]), sixteen_mut(work.p, at));
        }
    }
}

/// Turns a row's dot products of a page into probabilities relative to the running maximum, and updates maximum and denominator.
/// Returns the factor by which the weighted sum so far shrinks.
#[inline(always)]
fn soften<S: Lanes>(s: S, tile: &Tile<'_>, row: usize, slots: &Range<usize>, work: &mut Work<'_>) -> f32 {
    let p = &mut work.p[row * PAGE_TOKENS..(row + 1) * PAGE_TOKENS];
    let scale = s.splat(tile.common.scale);
    let mut v = [s.splat(0.0); 2];
    for half in 0..2 {
        v[half] = s.mul(s.load(&*sixteen_mut(p, half * LANES)), scale);
        if let Some(cap) = tile.common.soft_cap {
            v[half] = soft_capped(s, v[half], s.splat(cap), s.splat(1.0 / cap));
        }
    }
    if *slots != (0..PAGE_TOKENS) {
        // Slots outside hold anything, even NaN: replaced, not multiplied away.
        let mut masked = [f32::NEG_INFINITY; PAGE_TOKENS];
        s.store(v[0], sixteen_mut(p, 0));
        s.store(v[1], sixteen_mut(p, LANES));
        masked[slots.clone()].copy_from_slice(&p[slots.clone()]);
        v = [s.load(&*sixteen_mut(&mut masked, 0)), s.load(&*sixteen_mut(&mut masked, LANES))];
    }
    let old = work.state.m[row];
    let new = math::Arith::max(math::Single, old, s.max_lane(s.max(v[0], v[1])));
    let m = s.splat(new);
    for half in 0..2 {
        v[half] = math::exp(s, s.sub(v[half], m));
        s.store(v[half], sixteen_mut(p, half * LANES));
    }
    let sum = s.sum(s.add(v[0], v[1]));
    // exp(0) is exactly 1, and most pages leave the maximum as it is.
    let factor = if new == old { 1.0 } else { math::exp(math::Single, old - new) };
    work.state.m[row] = new;
    work.state.l[row] = work.state.l[row].mul_add(factor, sum);
    factor
}

/// `acc = acc * factor + sum p[t] v[t]` for `block` rows that see the same slots.
#[inline(always)]
fn add_values<S: Lanes, V: Rows>(
    s: S,
    values: V,
    slots: &Range<usize>,
    row: usize,
    block: usize,
    factors: &[f32; 4],
    work: &mut Work<'_>,
) {
    let chunks = work.vp / LANES;
    // Accumulators stay in registers: sixteen lanes are two registers of sixteen without AVX-512.
    let most = if S::WIDE {
        4
    } else if block >= 4 {
        1
    } else {
        2
    };
    let mut c = 0;
    while c < chunks {
        let width = most.min(chunks - c);
        match (block, width) {
            (4, 4) => add_block::<S, V, 4, 4>(s, values, slots, row, c, factors, work),
            (4, 3) => add_block::<S, V, 4, 3>(s, values, slots, row, c, factors, work),
            (4, 2) => add_block::<S, V, 4, 2>(s, values, slots, row, c, factors, work),
            (4, _) => add_block::<S, V, 4, 1>(s, values, slots, row, c, factors, work),
            (2, 4) => add_block::<S, V, 2, 4>(s, values, slots, row, c, factors, work),
            (2, 3) => add_block::<S, V, 2, 3>(s, values, slots, row, c, factors, work),
            (2, 2) => add_block::<S, V, 2, 2>(s, values, slots, row, c, factors, work),
            (2, _) => add_block::<S, V, 2, 1>(s, values, slots, row, c, factors, work),
            (_, 4) => add_block::<S, V, 1, 4>(s, values, slots, row, c, factors, work),
            (_, 3) => add_block::<S, V, 1, 3>(s, values, slots, row, c, factors, work),
            (_, 2) => add_block::<S, V, 1, 2>(s, values, slots, row, c, factors, work),
            (_, _) => add_block::<S, V, 1, 1>(s, values, slots, row, c, factors, work),
        }
        c += width;
    }
}

#[inline(always)]
fn add_block<S: Lanes, V: Rows, const M: usize, const C: usize>(
    s: S,
    values: V,
    slots: &Range<usize>,
    row: usize,
    chunk: usize,
    factors: &[f32; 4],
    work: &mut Work<'_>,
) {
    let vp = work.vp;
    assert!(slots.end <= PAGE_TOKENS && (chunk + C) * LANES <= vp);
    let p = &work.p[row * PAGE_TOKENS..(row + M) * PAGE_TOKENS];
    let state = &mut work.state.acc[row * vp..(row + M) * vp];
    let mut acc = [[s.splat(0.0); C]; M];
    for m in 0..M {
        for c in 0..C {
            // SAFETY: row `m < M` of `state`, chunk `chunk + c < vp / 16`.
            let old = s.load(unsafe { sixteen(state, m * vp + (chunk + c) * LANES) });
            acc[m][c] = s.mul(old, s.splat(factors[m]));
        }
    }
    for t in slots.clone() {
        let mut v = [s.splat(0.0); C];
        for c in 0..C {
            // SAFETY: `t` is a slot of the page, `chunk + c` a chunk of its rows.
            v[c] = unsafe { values.load(s, t, chunk + c) };
        }
        for m in 0..M {
            // SAFETY: `p` is M rows of 32, and t < 32.
            let w = s.splat(unsafe { *p.get_unchecked(m * PAGE_TOKENS + t) });
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
}

#[inline(always)]
fn page_tiled<S: Lanes, K: Rows, V: Rows>(
    s: S,
    tile: &Tile<'_>,
    page: usize,
    keys: K,
    values: V,
    work: &mut Work<'_>,
) {
    convert_keys(s, keys, work);
    convert_values(s, values, work);
    for block in (0..tile.rows).step_by(ROW_BLOCK) {
        let rows = ROW_BLOCK.min(tile.rows - block);
        let mut spans = [const { 0..0 }; ROW_BLOCK];
        for r in 0..rows {
            spans[r] = slots(tile, block + r, page);
        }
        if spans.iter().all(|span| span.is_empty()) {
            continue;
        }
        if S::WIDE {
            scores_tiled::<S, 2>(s, block, 0, work);
        } else {
            scores_tiled::<S, 1>(s, block, 0, work);
            scores_tiled::<S, 1>(s, block, 1, work);
        }
        let mut factors = [1.0; ROW_BLOCK];
        for r in 0..rows {
            if !spans[r].is_empty() {
                factors[r] = soften(s, tile, block + r, &spans[r], work);
            }
        }
        add_values_tiled(s, block, rows, &spans, &mut factors, work);
    }
}

/// The positions that all four rows see first (they must begin together), then what single rows see beyond them.
#[inline(always)]
fn add_values_tiled<S: Lanes>(
    s: S,
    block: usize,
    rows: usize,
    spans: &[Range<usize>; ROW_BLOCK],
    factors: &mut [f32; ROW_BLOCK],
    work: &mut Work<'_>,
) {
    let vp = work.vp;
    // The converted values are read while the rest of the working memory is written.
    let page = std::mem::take(&mut work.values);
    let values = F32Rows::new(&page[..PAGE_TOKENS * vp], vp);
    let start = spans[0].start;
    let mut common = start..spans.iter().take(rows).map(|span| span.end).min().unwrap_or(0);
    if rows < ROW_BLOCK || common.is_empty() || spans.iter().any(|span| span.start != start) {
        common = start..start;
    }
    if !common.is_empty() {
        add_values(s, values, &common, block, ROW_BLOCK, factors, work);
        *factors = [1.0; ROW_BLOCK];
    }
    for r in 0..rows {
        let rest = if common.is_empty() { spans[r].clone() } else { common.end..spans[r].end };
        if !rest.is_empty() {
            add_values(s, values, &rest, block + r, 1, &[factors[r]; 4], work);
        }
    }
    work.values = page;
}

/// f16 rows to f32, `[lane][chunk][position]`: a vector holds one k of sixteen positions.
#[inline(always)]
fn convert_keys<S: Lanes, K: Rows>(s: S, keys: K, work: &mut Work<'_>) {
    let chunks = work.kp / LANES;
    for chunk in 0..chunks {
        for half in 0..2 {
            let mut v = [s.splat(0.0); LANES];
            for t in 0..LANES {
                // SAFETY: a slot of the page, a chunk of its rows.
                v[t] = unsafe { keys.load(s, half * LANES + t, chunk) };
            }
            s.transpose(&mut v);
            for lane in 0..LANES {
                let at = (lane * chunks + chunk) * PAGE_TOKENS + half * LANES;
                s.store(v[lane], sixteen_mut(work.keys, at));
            }
        }
    }
}

#[inline(always)]
fn convert_values<S: Lanes, V: Rows>(s: S, values: V, work: &mut Work<'_>) {
    for t in 0..PAGE_TOKENS {
        for chunk in 0..work.vp / LANES {
            // SAFETY: a slot of the page, a chunk of its rows.
            let v = unsafe { values.load(s, t, chunk) };
            s.store(v, sixteen_mut(work.values, t * work.vp + chunk * LANES));
        }
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
            s.store(sums[r][h], sixteen_mut(work.p, (block + r) * PAGE_TOKENS + (half + h) * LANES));
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
        let (a, b) = (math::exp(math::Single, old - new), math::exp(math::Single, part - new));
        into.m[r] = new;
        into.l[r] = into.l[r].mul_add(a, from.l[r] * b);
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
