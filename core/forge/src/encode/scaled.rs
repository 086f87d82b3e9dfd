//! Best scale for weights without a minimum: `x ≈ a * q`, q from a set of levels.
//!
//! ```text
//! for 16 starting scales at once, one per lane:
//!     twice: q = nearest level of x / a;  a = Σ w q x / Σ w q²        (the best a for these q)
//! keep the lane that leaves least of Σ w (x - a q)²
//! ```
//! Lanes hold *candidates*, not weights: the sums then have one order on every machine and need no horizontal step. For a
//! super-block, the scales of its sub-blocks are integers times one f16: after the search, each sub-block tries the integers
//! around its ideal one with that f16, and the f16 is fitted again to what was chosen.

use half::f16;

pub(super) const LANES: usize = 16;
pub(super) type Lanes = [f32; LANES];

/// Rounds to the nearest integer, ties to even, for |x| < 2²²: adding 1.5 · 2²³ leaves no room for a fraction.
#[inline(always)]
pub(super) fn round(x: f32) -> f32 {
    const MAGIC: f32 = 12_582_912.0;
    (x + MAGIC) - MAGIC
}

/// Plain comparisons: they become one instruction each, unlike `clamp`, which has to think about NaN.
#[inline(always)]
pub(super) fn clamp(x: f32, low: f32, high: f32) -> f32 {
    let x = if x > low { x } else { low };
    if x < high { x } else { high }
}

/// The values a quant can take.
pub(super) trait Levels {
    /// Lowest level; the negative one of largest magnitude.
    const STARTS: Lanes;
    fn nearest(&self, x: f32) -> f32;
    fn low(&self) -> f32;
}

/// The integers `low..=high`.
pub(super) struct Uniform {
    pub low: f32,
    pub high: f32,
}

impl Levels for Uniform {
    // Where the largest weight lands, in steps beyond the lowest level (negative: with the other sign, beyond the highest).
    const STARTS: Lanes =
        [-0.9, -0.6, -0.4, -0.2, 0.0, 0.2, 0.4, 0.6, 0.9, 1.3, 1.8, 2.5, -0.7, -0.3, 0.0, 0.5];

    #[inline(always)]
    fn nearest(&self, x: f32) -> f32 {
        round(clamp(x, self.low, self.high))
    }

    fn low(&self) -> f32 {
        self.low
    }
}

/// From this lane on, the starting scale has the other sign.
const MIRRORED: usize = 12;

struct Moments {
    qq: Lanes,
    qx: Lanes,
}

#[inline(always)]
fn moments<L: Levels, const N: usize>(levels: &L, x: &[f32; N], w: &[f32; N], inverse: &Lanes) -> Moments {
    let mut qq = [0f32; LANES];
    let mut qx = [0f32; LANES];
    for i in 0..N {
        let wx = w[i] * x[i];
        for lane in 0..LANES {
            let q = levels.nearest(x[i] * inverse[lane]);
            qq[lane] += w[i] * q * q;
            qx[lane] += wx * q;
        }
    }
    Moments { qq, qx }
}

/// The lane of the largest value; the first of several.
#[inline(always)]
pub(super) fn best(values: &Lanes) -> usize {
    let mut best = 0;
    for lane in 1..LANES {
        if values[lane] > values[best] {
            best = lane;
        }
    }
    best
}

#[derive(Clone, Copy, Default)]
struct Fit {
    /// The scale.
    a: f32,
    /// Σ w q² there: how fast the error grows when the scale is moved.
    qq: f32,
}

#[inline(always)]
pub(super) fn inverse(a: f32) -> f32 {
    if a == 0.0 { 0.0 } else { 1.0 / a }
}

/// The best free scale.
#[inline(always)]
fn search<L: Levels, const N: usize>(levels: &L, x: &[f32; N], w: &[f32; N]) -> Fit {
    let mut extreme = 0f32;
    for &x in x {
        if x.abs() > extreme.abs() {
            extreme = x;
        }
    }
    // Weights whose square vanishes would make every sum zero.
    if extreme.abs() < 1e-18 {
        return Fit::default();
    }
    let mut inverses = [0f32; LANES];
    for (lane, (inverse, start)) in inverses.iter_mut().zip(L::STARTS).enumerate() {
        let sign = if lane < MIRRORED { 1.0 } else { -1.0 };
        *inverse = sign * (levels.low() - start) / extreme;
    }
    let mut fit = [0f32; LANES];
    let mut sums = Moments { qq: [0.0; LANES], qx: [0.0; LANES] };
    let mut explained = [0f32; LANES];
    for _ in 0..2 {
        sums = moments(levels, x, w, &inverses);
        for lane in 0..LANES {
            let used = sums.qq[lane] > 0.0;
            fit[lane] = if used { sums.qx[lane] / sums.qq[lane] } else { 0.0 };
            explained[lane] = fit[lane] * sums.qx[lane];
            inverses[lane] = inverse(fit[lane]);
        }
    }
    let lane = best(&explained);
    Fit { a: fit[lane], qq: sums.qq[lane] }
}

/// One f16 scale for a block. Gives the levels, not their numbers.
#[inline(always)]
pub(super) fn block<L: Levels, const N: usize>(levels: &L, x: &[f32; N], w: &[f32; N]) -> (f16, [f32; N]) {
    let d = f16::from_f32(search(levels, x, w).a);
    (d, quants(levels, x, d.to_f32()))
}

#[inline(always)]
fn quants<L: Levels, const N: usize>(levels: &L, x: &[f32; N], a: f32) -> [f32; N] {
    let inverse = inverse(a);
    let mut q = [0f32; N];
    for i in 0..N {
        // An f16 scale that underflowed leaves x as large as it was, and 0 is not a level of every set.
        q[i] = levels.nearest(x[i] * inverse);
    }
    q
}

/// A super-block: `x = d * scale[j] * q` in sub-block j.
pub(super) struct SuperBlock<const SUB: usize> {
    pub d: f16,
    pub scales: [f32; SUB],
    pub q: [f32; 256],
}

/// Fits a super-block of `SUB` sub-blocks of `N` weights with integer scales `low..=high` (`SUB * N` is 256).
#[inline(always)]
pub(super) fn super_block<L: Levels, const SUB: usize, const N: usize>(
    levels: &L,
    x: &[f32; 256],
    w: &[f32; 256],
    scale_low: f32,
    scale_high: f32,
) -> SuperBlock<SUB> {
    let (xs, _) = x.as_chunks::<N>();
    let (ws, _) = w.as_chunks::<N>();
    let mut fits = [Fit::default(); SUB];
    let mut extreme = 0f32;
    for j in 0..SUB {
        fits[j] = search(levels, &xs[j], &ws[j]);
        if fits[j].a.abs() > extreme.abs() {
            extreme = fits[j].a;
        }
    }
    let mut result = SuperBlock { d: f16::ZERO, scales: [0.0; SUB], q: [levels.nearest(0.0); 256] };
    if extreme == 0.0 {
        return result;
    }
    let mut d = f16::from_f32(first_d(&fits, extreme, scale_low, scale_high));
    let mut least = f32::INFINITY;
    for _ in 0..2 {
        if d == f16::ZERO {
            break;
        }
        let step = d.to_f32();
        let mut scales = [0f32; SUB];
        let mut error = 0f32;
        let (mut numerator, mut denominator) = (0f32, 0f32);
        for j in 0..SUB {
            let choice = nearby(levels, &xs[j], &ws[j], step, fits[j].a, scale_low, scale_high);
            scales[j] = choice.scale;
            error += choice.error;
            numerator += choice.scale * choice.qx;
            denominator += choice.scale * choice.scale * choice.qq;
        }
        if error < least {
            least = error;
            result.d = d;
            result.scales = scales;
        } else {
            break;
        }
        let next = f16::from_f32(if denominator > 0.0 { numerator / denominator } else { 0.0 });
        if next == d {
            break;
        }
        d = next;
    }
    let (q, _) = result.q.as_chunks_mut::<N>();
    for j in 0..SUB {
        q[j] = quants(levels, &xs[j], result.d.to_f32() * result.scales[j]);
    }
    result
}

/// The f16 step under which the ideal scales round best, among 16 that bring the largest one near an end of its range.
#[inline(always)]
fn first_d<const SUB: usize>(fits: &[Fit; SUB], extreme: f32, low: f32, high: f32) -> f32 {
    let mut steps = [0f32; LANES];
    let mut inverses = [0f32; LANES];
    for lane in 0..LANES {
        let back = (lane / 2) as f32 * 0.7;
        let end = if lane % 2 == 0 { low + back } else { high - back };
        steps[lane] = extreme / end;
        inverses[lane] = end / extreme;
    }
    let mut error = [0f32; LANES];
    for fit in fits {
        for lane in 0..LANES {
            let miss = fit.a - steps[lane] * round(clamp(fit.a * inverses[lane], low, high));
            error[lane] -= fit.qq * miss * miss;
        }
    }
    steps[best(&error)]
}

struct Choice {
    scale: f32,
    error: f32,
    qq: f32,
    qx: f32,
}

/// The best integer scale around the ideal one; the error is relative to Σ w x².
#[inline(always)]
fn nearby<L: Levels, const N: usize>(
    levels: &L,
    x: &[f32; N],
    w: &[f32; N],
    step: f32,
    ideal: f32,
    low: f32,
    high: f32,
) -> Choice {
    let centre = round(clamp(ideal / step, low, high));
    let mut scales = [0f32; LANES];
    let mut inverses = [0f32; LANES];
    for lane in 0..LANES {
        scales[lane] = clamp(centre + lane as f32 - (LANES / 2) as f32, low, high);
        inverses[lane] = inverse(scales[lane] * step);
    }
    let sums = moments(levels, x, w, &inverses);
    let mut gain = [0f32; LANES];
    for lane in 0..LANES {
        let a = scales[lane] * step;
        gain[lane] = a * (2.0 * sums.qx[lane] - a * sums.qq[lane]);
    }
    let lane = best(&gain);
    Choice { scale: scales[lane], error: -gain[lane], qq: sums.qq[lane], qx: sums.qx[lane] }
}
