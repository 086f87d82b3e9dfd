//! Best scale and minimum: `x ≈ a * q + b`, q in `0..=top`.
//!
//! The same plan as in `scaled`: 16 candidates at once, each improved by turns (nearest q for a and b, then the best a and b
//! for these q, a 2 × 2 system), then integers around the ideal ones under the super-block's two f16 steps.
//!
//! For nested precision every weight counts twice: as the level q that the full view gives it, and as the middle `4 * (q / 4) + 1.5` of the four
//! levels that the low view cannot tell apart. Both are levels of the same a and b, so the moments are sums over both, and all else is the
//! same. The nearest q is also in the nearest group of four: the views do not disagree about q, only about a and b.

use super::scaled::{LANES, Lanes, best, clamp, inverse, round};
use half::f16;

/// Σ w q, Σ w q², Σ w q x of each lane.
struct Moments {
    q: Lanes,
    qq: Lanes,
    qx: Lanes,
}

/// How much an error of the full view counts, relative to one of the low view. Its steps are a quarter as long, so its squared error is about a
/// sixteenth: at 16, a tenth more of the one would weigh as much as a tenth more of the other. But a tenth more of an error that costs 0.3% of
/// perplexity is nothing beside a tenth more of one that costs 15%. On real rows (`both_views_of_real_rows_…` in `q45k.rs`), error against that of Q3_K and
/// Q5_K alone: 16 gives 1.083 and 1.025, 8 gives 1.043 and 1.075, 2 gives 0.988 and 1.263, 0.5 gives 0.969 and 1.471. What 2 and 0.5 do to the perplexity of
/// a model is in `benches/record/2026-11-30-nested.md`.
const FULL: f32 = 0.5;

/// Times that a weight counts.
const fn counts(nested: bool) -> f32 {
    if nested { 1.0 + FULL } else { 1.0 }
}

#[inline(always)]
fn moments<const N: usize, const NESTED: bool>(
    x: &[f32; N],
    w: &[f32; N],
    inverse: &Lanes,
    b: &Lanes,
    top: f32,
) -> Moments {
    let mut sums = Moments { q: [0.0; LANES], qq: [0.0; LANES], qx: [0.0; LANES] };
    for i in 0..N {
        for lane in 0..LANES {
            let q = round(clamp((x[i] - b[lane]) * inverse[lane], 0.0, top));
            if NESTED {
                let middle = 4.0 * round((q - 1.5) * 0.25) + 1.5;
                let both = FULL * q + middle;
                sums.q[lane] += w[i] * both;
                sums.qq[lane] += w[i] * (FULL * q * q + middle * middle);
                sums.qx[lane] += w[i] * both * x[i];
            } else {
                let wq = w[i] * q;
                sums.q[lane] += wq;
                sums.qq[lane] += wq * q;
                sums.qx[lane] += wq * x[i];
            }
        }
    }
    sums
}

#[derive(Clone, Copy, Default)]
struct Fit {
    a: f32,
    b: f32,
    w: f32,
    x: f32,
    q: f32,
    /// How fast the error grows when a is moved and b follows: Σ w q² - (Σ w q)² / Σ w.
    curvature: f32,
}

/// Steps that the range is longer or shorter than the levels, and how much of the range's low end is cut off.
const STARTS: [(f32, f32); LANES] = [
    (-0.8, 0.0),
    (-0.6, 0.0),
    (-0.4, 0.0),
    (-0.25, 0.0),
    (-0.1, 0.0),
    (0.0, 0.0),
    (0.1, 0.0),
    (0.25, 0.0),
    (0.4, 0.0),
    (0.6, 0.0),
    (0.8, 0.0),
    (1.1, 0.0),
    (0.5, 0.5),
    (1.0, 0.5),
    (1.0, 1.0),
    (1.8, 0.9),
];

/// The same for nested precision, whose low view covers half a step more at either end.
const NESTED_STARTS: [(f32, f32); LANES] = [
    (-2.0, 0.0),
    (-1.0, 0.0),
    (0.0, 0.0),
    (0.5, 0.25),
    (1.0, 0.5),
    (2.0, 1.0),
    (3.0, 1.5),
    (4.0, 2.0),
    (5.0, 2.5),
    (6.5, 3.2),
    (3.0, 0.5),
    (3.0, 2.5),
    (5.0, 0.5),
    (5.0, 4.5),
    (1.5, 0.0),
    (1.5, 1.5),
];

/// The best free a and b; with `negative`, b is at most 0 as the K-quants need it.
#[inline(always)]
fn search<const N: usize, const NESTED: bool>(x: &[f32; N], w: &[f32; N], top: f32, negative: bool) -> Fit {
    let (mut low, mut high) = (f32::MAX, f32::MIN);
    let (mut sum_w, mut sum_x) = (0f32, 0f32);
    for i in 0..N {
        low = if x[i] < low { x[i] } else { low };
        high = if x[i] > high { x[i] } else { high };
        sum_w += w[i];
        sum_x += w[i] * x[i];
    }
    sum_w *= counts(NESTED);
    sum_x *= counts(NESTED);
    if negative {
        low = if low > 0.0 { 0.0 } else { low };
        high = if high < low { low } else { high };
    }
    let range = high - low;
    if range < 1e-18 {
        // All alike. The value goes where the format has room for it.
        return Fit { a: 0.0, b: low, w: sum_w, x: sum_x, ..Fit::default() };
    }
    let mut inverses = [0f32; LANES];
    let mut b = [0f32; LANES];
    for lane in 0..LANES {
        let (beyond, cut) = if NESTED { NESTED_STARTS[lane] } else { STARTS[lane] };
        inverses[lane] = (top + beyond) / range;
        b[lane] = low + cut / inverses[lane];
    }
    let mut a = [0f32; LANES];
    let mut explained = [0f32; LANES];
    let mut sums = Moments { q: [0.0; LANES], qq: [0.0; LANES], qx: [0.0; LANES] };
    for _ in 0..2 {
        sums = moments::<N, NESTED>(x, w, &inverses, &b, top);
        for lane in 0..LANES {
            let (q, qq, qx) = (sums.q[lane], sums.qq[lane], sums.qx[lane]);
            let determinant = sum_w * qq - q * q;
            let mut slope = (sum_w * qx - sum_x * q) / determinant;
            let mut base = (qq * sum_x - q * qx) / determinant;
            if negative && base > 0.0 {
                base = 0.0;
                slope = qx / qq;
            }
            // One single level in use: the system is singular.
            let regular = determinant > 1e-6 * sum_w * qq && slope > 0.0;
            a[lane] = if regular { slope } else { 0.0 };
            b[lane] = if regular { base } else { low };
            explained[lane] = if regular { slope * qx + base * sum_x } else { f32::MIN };
            inverses[lane] = inverse(a[lane]);
        }
    }
    let lane = best(&explained);
    if a[lane] == 0.0 {
        // Only possible where rounding ate the differences between the weights.
        return Fit { a: range / top, b: low, w: sum_w, x: sum_x, q: sums.q[lane], curvature: sum_w };
    }
    let curvature = sums.qq[lane] - sums.q[lane] * sums.q[lane] / sum_w;
    Fit { a: a[lane], b: b[lane], w: sum_w, x: sum_x, q: sums.q[lane], curvature }
}

#[inline(always)]
fn quants<const N: usize>(x: &[f32; N], a: f32, b: f32, top: f32) -> [u8; N] {
    let inverse = inverse(a);
    let mut q = [0u8; N];
    for i in 0..N {
        q[i] = round(clamp((x[i] - b) * inverse, 0.0, top)) as i32 as u8;
    }
    q
}

/// One f16 scale and one f16 minimum for a block.
#[inline(always)]
pub(super) fn block<const N: usize>(x: &[f32; N], w: &[f32; N], top: f32) -> (f16, f16, [u8; N]) {
    let fit = search::<N, false>(x, w, top, false);
    let d = f16::from_f32(fit.a);
    let m = f16::from_f32(fit.b);
    (d, m, quants(x, d.to_f32(), m.to_f32(), top))
}

/// A super-block: `x = d * scale[j] * q - dmin * min[j]` in sub-block j.
pub(super) struct SuperBlock<const SUB: usize> {
    pub d: f16,
    pub dmin: f16,
    pub scales: [u8; SUB],
    pub mins: [u8; SUB],
    pub q: [u8; 256],
}

/// Fits a super-block of `SUB` sub-blocks of `N` weights, scales and minima in `0..=scale_top` (`SUB * N` is 256); for both views if `NESTED`.
#[inline(always)]
pub(super) fn super_block<const SUB: usize, const N: usize, const NESTED: bool>(
    x: &[f32; 256],
    w: &[f32; 256],
    top: f32,
    scale_top: f32,
) -> SuperBlock<SUB> {
    let (xs, _) = x.as_chunks::<N>();
    let (ws, _) = w.as_chunks::<N>();
    let mut fits = [Fit::default(); SUB];
    let mut scales = [(0f32, 0f32); SUB];
    for j in 0..SUB {
        fits[j] = search::<N, NESTED>(&xs[j], &ws[j], top, true);
        scales[j] = (fits[j].a, fits[j].curvature);
    }
    let d = f16::from_f32(first_step(&scales, scale_top));
    let step = d.to_f32();
    // The minima that suit the scales as they will be, not as they should be.
    let mut mins = [(0f32, 0f32); SUB];
    for j in 0..SUB {
        let fit = &fits[j];
        let a = step * round(clamp(fit.a * inverse(step), 0.0, scale_top));
        let b = if fit.w > 0.0 { (fit.x - a * fit.q) / fit.w } else { fit.b };
        mins[j] = (if b < 0.0 { -b } else { 0.0 }, fit.w);
    }
    let dmin = f16::from_f32(first_step(&mins, scale_top));
    let mut result = SuperBlock { d, dmin, scales: [0; SUB], mins: [0; SUB], q: [0; 256] };
    let (mut d, mut dmin) = (d, dmin);
    let mut least = f32::INFINITY;
    for _ in 0..2 {
        let mut chosen = [(0f32, 0f32); SUB];
        let mut error = 0f32;
        // The normal equations of d and dmin with everything else as chosen.
        let (mut a11, mut a12, mut a22, mut r1, mut r2) = (0f32, 0f32, 0f32, 0f32, 0f32);
        for j in 0..SUB {
            let fit = &fits[j];
            let choice = nearby::<N, NESTED>(&xs[j], &ws[j], fit, d.to_f32(), dmin.to_f32(), top, scale_top);
            let (scale, min) = (choice.scale, choice.min);
            chosen[j] = (scale, min);
            error += choice.error;
            a11 += scale * scale * choice.qq;
            a12 -= scale * min * choice.q;
            a22 += min * min * fit.w;
            r1 += scale * choice.qx;
            r2 -= min * fit.x;
        }
        if error >= least {
            break;
        }
        least = error;
        (result.d, result.dmin) = (d, dmin);
        result.scales = chosen.map(|(scale, _)| scale as i32 as u8);
        result.mins = chosen.map(|(_, min)| min as i32 as u8);
        let determinant = a11 * a22 - a12 * a12;
        let (next, next_min) = if determinant > 1e-6 * a11 * a22 {
            ((r1 * a22 - r2 * a12) / determinant, (a11 * r2 - a12 * r1) / determinant)
        } else if a11 > 0.0 && a22 == 0.0 {
            (r1 / a11, 0.0)
        } else {
            break;
        };
        let (next, next_min) = (f16::from_f32(next), f16::from_f32(next_min));
        if (next, next_min) == (d, dmin) || next <= f16::ZERO || next_min < f16::ZERO {
            break;
        }
        (d, dmin) = (next, next_min);
    }
    let (q, _) = result.q.as_chunks_mut::<N>();
    let (d, dmin) = (result.d.to_f32(), result.dmin.to_f32());
    for j in 0..SUB {
        let a = d * f32::from(result.scales[j]);
        let b = -(dmin * f32::from(result.mins[j]));
        q[j] = quants(&xs[j], a, b, top);
    }
    result
}

/// The step under which non-negative ideal values round best; each comes with the weight of its error.
#[inline(always)]
fn first_step<const SUB: usize>(ideals: &[(f32, f32); SUB], top: f32) -> f32 {
    let mut largest = 0f32;
    for &(ideal, _) in ideals {
        largest = if ideal > largest { ideal } else { largest };
    }
    if largest == 0.0 {
        return 0.0;
    }
    let mut steps = [0f32; LANES];
    let mut inverses = [0f32; LANES];
    for lane in 0..LANES {
        // Half the range back at most, and slightly beyond it: with few levels the largest may be worth cutting.
        let end = top * (1.04 - 0.03 * lane as f32);
        steps[lane] = largest / end;
        inverses[lane] = end / largest;
    }
    let mut error = [0f32; LANES];
    for &(ideal, weight) in ideals {
        for lane in 0..LANES {
            let miss = ideal - steps[lane] * round(clamp(ideal * inverses[lane], 0.0, top));
            error[lane] -= weight * miss * miss;
        }
    }
    steps[best(&error)]
}

struct Choice {
    scale: f32,
    min: f32,
    /// Relative to Σ w x².
    error: f32,
    q: f32,
    qq: f32,
    qx: f32,
}

/// Distance of each lane's scale from the ideal one, and of its minimum from the best for that scale.
const AROUND: [(f32, f32); LANES] = [
    (0.0, 0.0),
    (0.0, -1.0),
    (0.0, 1.0),
    (-1.0, 0.0),
    (-1.0, -1.0),
    (-1.0, 1.0),
    (1.0, 0.0),
    (1.0, -1.0),
    (1.0, 1.0),
    (-2.0, 0.0),
    (-2.0, -1.0),
    (-2.0, 1.0),
    (2.0, 0.0),
    (2.0, -1.0),
    (2.0, 1.0),
    (0.0, 2.0),
];

/// The best pair of integers around the ideal scale and minimum.
#[inline(always)]
fn nearby<const N: usize, const NESTED: bool>(
    x: &[f32; N],
    w: &[f32; N],
    fit: &Fit,
    step: f32,
    min_step: f32,
    top: f32,
    scale_top: f32,
) -> Choice {
    let centre = round(clamp(fit.a * inverse(step), 0.0, scale_top));
    let (inverse_min, inverse_w) = (inverse(min_step), inverse(fit.w));
    let mut scales = [0f32; LANES];
    let mut mins = [0f32; LANES];
    let mut inverses = [0f32; LANES];
    let mut b = [0f32; LANES];
    for lane in 0..LANES {
        let (scale_off, min_off) = AROUND[lane];
        scales[lane] = clamp(centre + scale_off, 0.0, scale_top);
        let a = scales[lane] * step;
        let ideal = (a * fit.q - fit.x) * inverse_w;
        mins[lane] = clamp(round(clamp(ideal * inverse_min, 0.0, scale_top)) + min_off, 0.0, scale_top);
        inverses[lane] = inverse(a);
        b[lane] = -(min_step * mins[lane]);
    }
    let sums = moments::<N, NESTED>(x, w, &inverses, &b, top);
    let mut gain = [0f32; LANES];
    for lane in 0..LANES {
        let (a, b) = (scales[lane] * step, b[lane]);
        let (q, qq, qx) = (sums.q[lane], sums.qq[lane], sums.qx[lane]);
        gain[lane] = a * (2.0 * qx - a * qq) + b * (2.0 * fit.x - b * fit.w) - 2.0 * a * b * q;
    }
    let lane = best(&gain);
    Choice {
        scale: scales[lane],
        min: mins[lane],
        error: -gain[lane],
        q: sums.q[lane],
        qq: sums.qq[lane],
        qx: sums.qx[lane],
    }
}
