//! Vector operations: norms, gates, softmax, and what sampling needs of the logits.
//!
//! Rows lie one after the other. Sums have the sixteen-lane order of ARCHITECTURE.md. Lengths that do not fit together are a mistake of
//! the caller and panic; no file or prompt can cause them.

pub(crate) mod elementwise;
pub(crate) mod half;
pub(crate) mod norm;
pub(crate) mod select;
mod table;

pub(crate) use elementwise::soft_capped;
pub(crate) use table::{VecTable, entry, fill_entries, fill_table, vec_ops};

use crate::isa::Kernels;
use crate::math::scalar;

/// Calls an entry of the vector table.
macro_rules! call {
    ($kernels:expr, $op:ident($($arg:expr),*)) => {
        // SAFETY: a `Kernels` exists only for an instruction set that detection found on this CPU, which is all that entries need.
        unsafe { ($kernels.vec.$op)($($arg),*) }
    };
}
pub(crate) use call;

impl Kernels {
    /// Root mean square norm of each row of `d`: `out = x / sqrt(mean(x^2) + eps) * weight`.
    pub fn rms_norm(&self, x: &[f32], weight: Option<&[f32]>, eps: f32, out: &mut [f32], d: usize) {
        out.copy_from_slice(x);
        self.rms_norm_in_place(out, weight, eps, d);
    }

    /// [`Kernels::rms_norm`] that overwrites its input.
    pub fn rms_norm_in_place(&self, x: &mut [f32], weight: Option<&[f32]>, eps: f32, d: usize) {
        check_rows(x, d, &[weight]);
        call!(self, rms_norm(x, weight, eps, d));
    }

    /// Layer norm of each row of `d`: `out = (x - mean) / sqrt(variance + eps) * weight + bias`.
    pub fn layer_norm(
        &self,
        x: &[f32],
        weight: Option<&[f32]>,
        bias: Option<&[f32]>,
        eps: f32,
        out: &mut [f32],
        d: usize,
    ) {
        check_rows(x, d, &[weight, bias]);
        out.copy_from_slice(x);
        call!(self, layer_norm(out, weight, bias, eps, d));
    }

    /// Each row of `d` divided by the larger of its Euclidean length and `eps`.
    pub fn l2_norm(&self, x: &[f32], eps: f32, out: &mut [f32], d: usize) {
        out.copy_from_slice(x);
        self.l2_norm_in_place(out, eps, d);
    }

    /// [`Kernels::l2_norm`] that overwrites its input.
    pub fn l2_norm_in_place(&self, x: &mut [f32], eps: f32, d: usize) {
        check_rows(x, d, &[]);
        call!(self, l2_norm(x, eps, d));
    }

    /// SwiGLU: `gate = silu(gate) * up`.
    pub fn silu_mul(&self, gate: &mut [f32], up: &[f32]) {
        assert_eq!(gate.len(), up.len(), "gate and up");
        call!(self, silu_mul(gate, up));
    }

    /// GeGLU with the tanh approximation: `gate = gelu(gate) * up`.
    pub fn gelu_mul(&self, gate: &mut [f32], up: &[f32]) {
        assert_eq!(gate.len(), up.len(), "gate and up");
        call!(self, gelu_mul(gate, up));
    }

    /// GeGLU with the exact error function, in f64 and slow.
    pub fn gelu_erf_mul(&self, gate: &mut [f32], up: &[f32]) {
        assert_eq!(gate.len(), up.len(), "gate and up");
        for (g, u) in gate.iter_mut().zip(up) {
            *g = scalar::gelu_erf(*g) * u;
        }
    }

    /// The clamped gate of gpt-oss (there alpha = 1.702 and limit = 7): with `g = min(gate, limit)` and `u = clamp(up, -limit, limit)`,
    /// `gate = g * sigmoid(alpha * g) * (u + 1)`.
    pub fn swiglu_oai(&self, gate: &mut [f32], up: &[f32], alpha: f32, limit: f32) {
        assert_eq!(gate.len(), up.len(), "gate and up");
        call!(self, swiglu_oai(gate, up, alpha, limit));
    }

    /// `x += y`.
    pub fn add_in_place(&self, x: &mut [f32], y: &[f32]) {
        assert_eq!(x.len(), y.len(), "x and y");
        call!(self, add(x, y));
    }

    /// `x *= y`.
    pub fn mul_in_place(&self, x: &mut [f32], y: &[f32]) {
        assert_eq!(x.len(), y.len(), "x and y");
        call!(self, mul(x, y));
    }

    /// `x += factor * y`, rounded once.
    pub fn add_scaled_in_place(&self, x: &mut [f32], y: &[f32], factor: f32) {
        assert_eq!(x.len(), y.len(), "x and y");
        call!(self, add_scaled(x, y, factor));
    }

    /// `x *= factor`.
    pub fn scale_in_place(&self, x: &mut [f32], factor: f32) {
        call!(self, scale(x, factor));
    }

    /// `x = cap * tanh(x / cap)`.
    pub fn soft_cap(&self, x: &mut [f32], cap: f32) {
        call!(self, soft_cap(x, cap));
    }

    /// `x = 1 / (1 + e^-x)`.
    pub fn sigmoid_in_place(&self, x: &mut [f32]) {
        call!(self, sigmoid(x));
    }

    /// `x = x * sigmoid(x)`.
    pub fn silu_in_place(&self, x: &mut [f32]) {
        call!(self, silu(x));
    }

    /// `x = gelu(x)`, tanh approximation.
    pub fn gelu_in_place(&self, x: &mut [f32]) {
        call!(self, gelu(x));
    }

    /// `x = e^x`.
    pub fn exp_in_place(&self, x: &mut [f32]) {
        call!(self, exp(x));
    }

    /// `x = ln(1 + e^x)`.
    pub fn softplus_in_place(&self, x: &mut [f32]) {
        x.iter_mut().for_each(|v| *v = scalar::softplus(*v));
    }

    /// Softmax over the whole slice. All zeros if every value is minus infinity.
    pub fn softmax_in_place(&self, x: &mut [f32]) {
        call!(self, softmax(x));
    }

    /// `ln(sum(e^x))`: `x[i]` minus this is the log-probability of `i`. Minus infinity for an empty slice.
    pub fn log_sum_exp(&self, x: &[f32]) -> f64 {
        call!(self, log_sum_exp(x))
    }

    /// The inner product.
    pub fn dot(&self, a: &[f32], b: &[f32]) -> f32 {
        assert_eq!(a.len(), b.len(), "a and b");
        call!(self, dot(a, b))
    }

    /// Index of the largest value, the first of equals. NaN loses to everything; `None` if there is nothing else.
    pub fn argmax(&self, x: &[f32]) -> Option<usize> {
        call!(self, argmax(x))
    }

    /// The `k` largest values with their indices, largest first, the lower index first among equals. NaN is never among them.
    /// `out` is overwritten; it grows to at most `2 k + 16` entries.
    pub fn top_k(&self, x: &[f32], k: usize, out: &mut Vec<(u32, f32)>) {
        call!(self, top_k(x, k, out));
    }

    /// Rounds to IEEE half precision, ties to even.
    pub fn to_f16(&self, x: &[f32], out: &mut [u16]) {
        assert_eq!(x.len(), out.len(), "x and out");
        call!(self, to_f16(x, out));
    }

    /// Rounds to the nearest half precision value, ties to even, and widens again.
    pub fn round_f16_in_place(&self, x: &mut [f32]) {
        call!(self, round_f16(x));
    }

    /// Widens IEEE half precision, exactly.
    pub fn from_f16(&self, x: &[u16], out: &mut [f32]) {
        assert_eq!(x.len(), out.len(), "x and out");
        call!(self, from_f16(x, out));
    }
}

fn check_rows(x: &[f32], d: usize, per_column: &[Option<&[f32]>]) {
    assert!(d > 0 && x.len().is_multiple_of(d), "{} values are no rows of {d}", x.len());
    for w in per_column.iter().flatten() {
        assert_eq!(w.len(), d, "weights of a row");
    }
}

#[cfg(test)]
mod tests;
