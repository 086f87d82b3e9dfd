//! Rotary position embedding (Su et al., "RoFormer", arXiv:2104.09864).
//!
//! Pair i of a head turns by `position * frequency[i]`. All scalings only change the frequencies and one common magnitude:
//!
//! ```text
//! base[i]      = freq_base^(-2 i / n_rot) / factors[i]              factors: the rope_freqs tensor (Llama 3, LongRoPE)
//! frequency[i] = freq_scale * base[i]                               linear (Chen et al., arXiv:2306.15595)
//!              = mix[i] * base[i] + (1 - mix[i]) * freq_scale * base[i]          YaRN (Peng et al., arXiv:2309.00071)
//! mix[i]       = ext_factor * (1 - clamp((i - low) / max(0.001, high - low), 0, 1))
//! low, high    = floor / ceil of n_rot * ln(original_context / (2 pi beta)) / (2 ln freq_base) for beta_fast / beta_slow,
//!                low at least 0, high at most n_rot - 1
//! magnitude    = attn_factor * (1 + 0.1 ln(1 / freq_scale))         the bracket with YaRN only
//! ```
//!
//! Angles are f32, `position * base^(-2 i / n_rot)` made by one multiplication per pair, then divided by the pair's factor and scaled:
//! models are trained and published with angles of this precision. Sines and cosines of them are computed in f64 with `libm`, so that no
//! platform's C library shows in the bits. A sine costs some
//! 40 ns, a model has dozens of layers, and a table over all positions would cost anonymous memory in proportion to the context. So a
//! [`RopeTable`] holds the rows of one batch: [`RopeTable::prepare`] fills them once per forward pass and all layers use them.

pub(crate) mod rotate;

use crate::isa::Kernels;
use crate::vecops::call;

/// Which values of a head form a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// Neighbours: (0, 1), (2, 3), …
    Normal,
    /// The two halves of the rotated part: (0, n/2), (1, n/2 + 1), …
    Neox,
}

/// YaRN's parameters, with the names of GGUF's `rope.scaling.*`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yarn {
    /// Strength of the mix; 1 in published models.
    pub ext_factor: f32,
    /// Rotations over the original context above which a pair is left alone; 32.
    pub beta_fast: f32,
    /// Rotations below which a pair is fully interpolated; 1.
    pub beta_slow: f32,
    /// Context the model was trained with before it was extended.
    pub original_context: usize,
}

/// How positions turn into angles.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeSpec<'a> {
    /// Pairing.
    pub style: RopeStyle,
    /// Leading values of each head that are rotated; the others pass unchanged.
    pub n_rot: usize,
    /// Base of the geometric series of frequencies.
    pub freq_base: f32,
    /// 1 / scaling factor; 1 without scaling.
    pub freq_scale: f32,
    /// Divisor of each pair's frequency, `n_rot / 2` of them (the `rope_freqs` tensors).
    pub factors: Option<&'a [f32]>,
    /// YaRN, if that is the kind of scaling.
    pub yarn: Option<Yarn>,
    /// Factor on all sines and cosines.
    pub attn_factor: f32,
}

impl Default for RopeSpec<'_> {
    fn default() -> Self {
        RopeSpec {
            style: RopeStyle::Neox,
            n_rot: 0,
            freq_base: 10_000.0,
            freq_scale: 1.0,
            factors: None,
            yarn: None,
            attn_factor: 1.0,
        }
    }
}

/// A [`RopeSpec`] that makes no sense.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RopeError {
    /// The number of rotated values is odd, zero or absurd.
    #[error("RoPE over {0} values: expected an even number from 2 to {MAX_ROT}")]
    Width(usize),
    /// Wrong length of the factors tensor.
    #[error("RoPE factors: {found} values, expected {expected}")]
    Factors {
        /// Values in the tensor.
        found: usize,
        /// `n_rot / 2`.
        expected: usize,
    },
    /// A parameter that is not finite, or not positive where it divides.
    #[error("RoPE parameter {name} is {value}")]
    Parameter {
        /// Name of the field.
        name: &'static str,
        /// Its value.
        value: f64,
    },
}

/// Widest rotation that is accepted; bounds the stack buffer for positions outside the prepared batch.
pub const MAX_ROT: usize = 1024;

/// Sines and cosines for the positions of one batch.
#[derive(Clone, Debug)]
pub struct RopeTable {
    style: RopeStyle,
    n_rot: usize,
    /// Radians per position.
    frequencies: Vec<f64>,
    angles: Angles,
    magnitude: f64,
    positions: Vec<u32>,
    max_rows: usize,
    /// Rows of [`RopeTable::row_len`].
    rows: Vec<f32>,
}

/// What the angles of a position follow from.
#[derive(Clone, Debug)]
struct Angles {
    /// From one pair to the next.
    step: f32,
    freq_scale: f32,
    /// Per pair; empty: all 1.
    factors: Vec<f32>,
    /// Share of the angle that is not scaled, per pair; empty: none.
    mixes: Vec<f32>,
}

impl Angles {
    fn of(&self, position: u32) -> impl Iterator<Item = f32> + '_ {
        let mut base = position as f32;
        (0..).map(move |i| {
            let angle = self.factors.get(i).map_or(base, |factor| base / factor);
            base *= self.step;
            let scaled = self.freq_scale * angle;
            self.mixes.get(i).map_or(scaled, |mix| scaled * (1.0 - mix) + angle * mix)
        })
    }
}

/// One position's factors, as the kernel of the style wants them (see [`rotate`]).
#[derive(Clone, Copy)]
pub(crate) struct Turn<'a> {
    pub style: RopeStyle,
    pub cos: &'a [f32],
    pub sin: &'a [f32],
}

impl RopeTable {
    /// A table for batches of up to `max_rows` positions. Allocates everything it will ever use.
    ///
    /// # Errors
    /// The specification is inconsistent.
    pub fn new(spec: &RopeSpec<'_>, max_rows: usize) -> Result<Self, RopeError> {
        let (frequencies, angles) = frequencies(spec)?;
        let mut magnitude = f64::from(spec.attn_factor);
        if spec.yarn.is_some_and(|y| y.ext_factor != 0.0) {
            magnitude *= 1.0 - 0.1 * libm::log(f64::from(spec.freq_scale));
        }
        let mut table = RopeTable {
            style: spec.style,
            n_rot: spec.n_rot,
            frequencies,
            angles,
            magnitude,
            positions: Vec::with_capacity(max_rows),
            max_rows,
            rows: Vec::new(),
        };
        table.rows = vec![0.0; max_rows * table.row_len()];
        Ok(table)
    }

    /// Bytes that a table takes, with factors and YaRN.
    pub fn bytes(style: RopeStyle, n_rot: usize, max_rows: usize) -> usize {
        let row = if style == RopeStyle::Normal { 2 * n_rot } else { n_rot };
        max_rows * (4 * row + 4) + 16 * (n_rot / 2)
    }

    /// Values of each head that are rotated.
    pub fn n_rot(&self) -> usize {
        self.n_rot
    }

    /// Pairing.
    pub fn style(&self) -> RopeStyle {
        self.style
    }

    /// Radians per position of each pair, scalings included.
    pub fn frequencies(&self) -> &[f64] {
        &self.frequencies
    }

    /// The factor on all sines and cosines.
    pub fn magnitude(&self) -> f64 {
        self.magnitude
    }

    /// Computes the rows of these positions, at most `max_rows`; further ones are computed each time they are needed. A position's
    /// bits do not depend on whether it was prepared.
    pub fn prepare(&mut self, positions: &[u32]) {
        let positions = &positions[..positions.len().min(self.max_rows)];
        if self.positions == positions {
            return;
        }
        self.positions.clear();
        self.positions.extend_from_slice(positions);
        let len = self.row_len();
        let mut rows = std::mem::take(&mut self.rows);
        for (row, &position) in rows.chunks_exact_mut(len).zip(positions) {
            self.fill(position, row);
        }
        self.rows = rows;
    }

    /// Cosines, then sines. The Normal style has them once per value, ready for neighbouring lanes, the sine negated for the first of
    /// each pair.
    fn row_len(&self) -> usize {
        if self.style == RopeStyle::Normal { 2 * self.n_rot } else { self.n_rot }
    }

    fn fill(&self, position: u32, row: &mut [f32]) {
        let (cos, sin) = row.split_at_mut(row.len() / 2);
        for (i, angle) in self.angles.of(position).take(self.n_rot / 2).enumerate() {
            let (s, c) = libm::sincos(f64::from(angle));
            let (s, c) = ((s * self.magnitude) as f32, (c * self.magnitude) as f32);
            match self.style {
                RopeStyle::Neox => (cos[i], sin[i]) = (c, s),
                RopeStyle::Normal => {
                    cos[2 * i..2 * i + 2].fill(c);
                    (sin[2 * i], sin[2 * i + 1]) = (-s, s);
                }
            }
        }
    }

    /// The prepared row of a position. Batches are mostly runs of consecutive positions, so the offset from the first is tried first.
    fn row(&self, position: u32) -> Option<&[f32]> {
        let guess = position.wrapping_sub(*self.positions.first()?) as usize;
        let at = match self.positions.get(guess) {
            Some(&p) if p == position => guess,
            _ => self.positions.iter().position(|&p| p == position)?,
        };
        Some(&self.rows[at * self.row_len()..][..self.row_len()])
    }
}

impl Kernels {
    /// Rotates `x` (tokens x heads x head_dim) in place, token `i` to `positions[i]`.
    pub fn rope(&self, x: &mut [f32], heads: usize, head_dim: usize, rope: &RopeTable, positions: &[u32]) {
        assert!(rope.n_rot <= head_dim, "RoPE over {} of {head_dim} values", rope.n_rot);
        assert_eq!(x.len(), positions.len() * heads * head_dim, "tokens x heads x head_dim");
        if x.is_empty() {
            return;
        }
        let mut buffer = [0.0; 2 * MAX_ROT];
        for (token, &position) in x.chunks_exact_mut(heads * head_dim).zip(positions) {
            let row = match rope.row(position) {
                Some(row) => row,
                None => {
                    let row = &mut buffer[..rope.row_len()];
                    rope.fill(position, row);
                    row
                }
            };
            let (cos, sin) = row.split_at(row.len() / 2);
            let turn = Turn { style: rope.style, cos, sin };
            call!(self, rope_heads(token, head_dim, turn));
        }
    }
}

fn frequencies(spec: &RopeSpec<'_>) -> Result<(Vec<f64>, Angles), RopeError> {
    let n = spec.n_rot;
    if n == 0 || !n.is_multiple_of(2) || n > MAX_ROT {
        return Err(RopeError::Width(n));
    }
    if let Some(f) = spec.factors
        && f.len() != n / 2
    {
        return Err(RopeError::Factors { found: f.len(), expected: n / 2 });
    }
    let positive = |name, value: f32| {
        let value = f64::from(value);
        if value.is_finite() && value > 0.0 { Ok(value) } else { Err(RopeError::Parameter { name, value }) }
    };
    let base = positive("freq_base", spec.freq_base)?;
    let scale = positive("freq_scale", spec.freq_scale)?;
    positive("attn_factor", spec.attn_factor)?;
    // A negative divisor turns the other way: odd, but it has a meaning.
    let divisor = |value: f32| {
        let value = f64::from(value);
        if value.is_finite() && value != 0.0 {
            Ok(value)
        } else {
            Err(RopeError::Parameter { name: "factors", value })
        }
    };
    let ramp = spec.yarn.map(|y| ramp(&y, n, base)).transpose()?;
    let mix = |i: usize| {
        ramp.map_or(0.0, |(low, high, ext_factor)| {
            let y = ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
            (1.0 - y) * ext_factor
        })
    };
    let frequencies = (0..n / 2)
        .map(|i| {
            let factor = spec.factors.map_or(Ok(1.0), |f| divisor(f[i]))?;
            let extrapolated = libm::pow(base, -2.0 * i as f64 / n as f64) / factor;
            Ok(extrapolated * mix(i) + scale * extrapolated * (1.0 - mix(i)))
        })
        .collect::<Result<_, _>>()?;
    let mixes = if ramp.is_some() { (0..n / 2).map(|i| mix(i) as f32).collect() } else { Vec::new() };
    let angles = Angles {
        step: libm::pow(base, -2.0 / n as f64) as f32,
        freq_scale: spec.freq_scale,
        factors: spec.factors.map_or(Vec::new(), <[f32]>::to_vec),
        mixes,
    };
    Ok((frequencies, angles))
}

/// First and last pair of YaRN's ramp, and its strength.
fn ramp(yarn: &Yarn, n_rot: usize, base: f64) -> Result<(f64, f64, f64), RopeError> {
    let check = |name, value: f64, good: bool| {
        if good && value.is_finite() { Ok(value) } else { Err(RopeError::Parameter { name, value }) }
    };
    let (fast, slow) = (f64::from(yarn.beta_fast), f64::from(yarn.beta_slow));
    check("yarn beta_fast", fast, fast > 0.0)?;
    check("yarn beta_slow", slow, slow > 0.0)?;
    let ext = check("yarn ext_factor", f64::from(yarn.ext_factor), true)?;
    let context = yarn.original_context as f64;
    check("yarn original_context", context, context > 0.0)?;
    // ln 1 = 0 would divide by zero.
    check("freq_base", base, base != 1.0)?;
    let pair = |beta: f64| {
        n_rot as f64 * libm::log(context / (beta * 2.0 * std::f64::consts::PI)) / (2.0 * libm::log(base))
    };
    Ok((libm::floor(pair(fast)).max(0.0), libm::ceil(pair(slow)).min(n_rot as f64 - 1.0), ext))
}

/// Whether multi-section RoPE (the `rope.dimension_sections` of Qwen2-VL and Qwen3.5: time, height, width, extra) is plain Neox RoPE
/// for a text of which every token has one position.
///
/// A pair takes its position from the section it belongs to: sections in sequence, or time, height and width in turn
/// (`interleaved`). A text token has the same position in the first three and zero in the fourth; so the answer is no exactly if a pair
/// falls into the fourth.
pub fn sections_are_plain(sections: [usize; 4], interleaved: bool, n_rot: usize) -> bool {
    let Some(total) = sections.iter().try_fold(0usize, |sum, &s| sum.checked_add(s)) else {
        return false;
    };
    if total == 0 {
        return false;
    }
    (0..n_rot / 2).map(|pair| pair % total).all(|sector| {
        if interleaved { sector / 3 < sections[sector % 3] } else { sector < total - sections[3] }
    })
}

#[cfg(test)]
mod tests;
