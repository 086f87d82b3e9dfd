//! Layers that remember a text in a state of fixed size, instead of keys and values of every token.
//!
//! Two recurrences, each token by token in the order of the text, so that the bits do not depend on how many tokens are
//! computed together:
//!
//! ```text
//! causal convolution:   y[t][c] = sum over j of w[c][j] * x[t - taps + 1 + j][c]            j ascending, fused
//! gated delta rule:     f    = S^T k                                                        rows of S ascending, fused
//! (arXiv:2412.06464)    d    = beta * (v - decay * f)
//!                       S    = fma(k, d, decay * S)
//!                       y    = S^T q                                                        rows ascending, fused
//! ```
//!
//! S is k_dim x v_dim for each head of values. Heads are independent: they are the tasks, and each walks through all tokens.

pub(crate) mod steps;

use crate::isa::Kernels;
use crate::parallel::Parallel;
use crate::vecops::call;
use steps::Step;

/// A convolution over the last `taps` tokens.
#[derive(Debug)]
pub struct ConvJob<'a> {
    /// taps - 1 rows of `channels`: the tokens before the first, oldest first.
    pub before: &'a [f32],
    /// n x channels.
    pub x: &'a [f32],
    /// channels x taps; the last tap is the token itself.
    pub weight: &'a [f32],
    /// Channels.
    pub channels: usize,
    /// n x channels.
    pub out: &'a mut [f32],
}

/// Which head of keys (and queries) a head of values uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyHeads {
    /// Neighbouring heads of values share one.
    Grouped,
    /// Head of values `h` uses `h % k_heads`.
    Tiled,
}

/// Sizes of a gated delta rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaShape {
    /// Heads of queries and keys; they divide the heads of values.
    pub k_heads: usize,
    /// Heads of values, and so states.
    pub v_heads: usize,
    /// Length of a query and a key.
    pub k_dim: usize,
    /// Length of a value.
    pub v_dim: usize,
    /// How heads are matched.
    pub heads: KeyHeads,
}

impl DeltaShape {
    /// Width of queries, keys and values of a token, one after the other.
    pub fn qkv_width(&self) -> usize {
        2 * self.k_heads * self.k_dim + self.v_width()
    }

    /// Width of all values of a token.
    pub fn v_width(&self) -> usize {
        self.v_heads * self.v_dim
    }

    /// Values in the states of all heads.
    pub fn state_len(&self) -> usize {
        self.v_heads * self.k_dim * self.v_dim
    }

    fn key_head(&self, head: usize) -> usize {
        match self.heads {
            KeyHeads::Grouped => head / (self.v_heads / self.k_heads),
            KeyHeads::Tiled => head % self.k_heads,
        }
    }
}

/// Some tokens for the gated delta rule.
#[derive(Debug)]
pub struct DeltaJob<'a> {
    /// Sizes.
    pub shape: DeltaShape,
    /// n x (queries, keys, values).
    pub qkv: &'a [f32],
    /// n x v_heads.
    pub decay: &'a [f32],
    /// n x v_heads.
    pub beta: &'a [f32],
    /// v_heads x k_dim x v_dim, before the first token and then after the last.
    pub state: &'a mut [f32],
    /// n x v_heads x v_dim, or empty if only the state is wanted.
    pub out: &'a mut [f32],
}

/// Pointers that tasks share; each makes slices of its own parts.
struct Parts {
    state: *mut f32,
    out: *mut f32,
}

// SAFETY: a task touches the state and the outputs of its own head only.
unsafe impl Sync for Parts {}

impl Parts {
    /// # Safety
    /// `len` values from `at` on are inside the states, and no other task touches them.
    #[allow(clippy::mut_from_ref, reason = "the promise is that parts are disjoint")]
    unsafe fn state(&self, at: usize, len: usize) -> &mut [f32] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.state.add(at), len) }
    }

    /// # Safety
    /// As for `state`, for the outputs.
    #[allow(clippy::mut_from_ref, reason = "the promise is that parts are disjoint")]
    unsafe fn out(&self, at: usize, len: usize) -> &mut [f32] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.out.add(at), len) }
    }
}

/// Values per task of a convolution.
const CONV_PIECE: usize = 16384;

impl Kernels {
    /// Convolves over time, channel by channel.
    ///
    /// # Panics
    /// If shapes do not fit together: a bug of the caller.
    pub fn causal_conv(&self, par: &dyn Parallel, job: ConvJob<'_>) {
        let ConvJob { before, x, weight, channels, out } = job;
        assert!(channels > 0 && weight.len().is_multiple_of(channels), "weights of channels");
        let taps = weight.len() / channels;
        assert_eq!(before.len() + channels, taps * channels, "rows before the first");
        assert_eq!(x.len(), out.len(), "inputs and outputs");
        let rows_per_piece = (CONV_PIECE / channels).max(1);
        crate::fanout::for_each_piece(par, out, rows_per_piece * channels, &|index, out| {
            let first = index * rows_per_piece;
            let mut rows: Vec<&[f32]> = Vec::with_capacity(taps);
            for (t, out) in (first..).zip(out.chunks_exact_mut(channels)) {
                rows.clear();
                for row in t..t + taps {
                    // Counted from the oldest row before the first token.
                    let source = if row + 1 < taps { before } else { x };
                    let row = if row + 1 < taps { row } else { row + 1 - taps };
                    rows.push(&source[row * channels..(row + 1) * channels]);
                }
                call!(self, conv(out, &rows, weight));
            }
        });
    }

    /// Takes the tokens of `job` into its state.
    ///
    /// # Panics
    /// If shapes do not fit together: a bug of the caller.
    pub fn delta_rule(&self, par: &dyn Parallel, job: DeltaJob<'_>) {
        let DeltaJob { shape, qkv, decay, beta, state, out } = job;
        let DeltaShape { k_heads, v_heads, k_dim, v_dim, .. } = shape;
        assert!(k_heads > 0 && k_dim > 0 && v_dim > 0 && v_heads.is_multiple_of(k_heads), "heads");
        let width = shape.qkv_width();
        let n = qkv.len() / width;
        assert_eq!(qkv.len(), n * width, "queries, keys and values");
        assert!(decay.len() == n * v_heads && beta.len() == n * v_heads, "gates");
        assert_eq!(state.len(), shape.state_len(), "state");
        assert!(out.is_empty() || out.len() == n * shape.v_width(), "results");
        let has_out = !out.is_empty();
        let parts = Parts { state: state.as_mut_ptr(), out: out.as_mut_ptr() };
        par.run(v_heads, &|head| {
            // SAFETY: `head < v_heads`, so its state lies inside all of them, and heads do not overlap.
            let state = unsafe { parts.state(head * k_dim * v_dim, k_dim * v_dim) };
            let key = shape.key_head(head) * k_dim;
            let mut unused = vec![0.0; if has_out { 0 } else { v_dim }];
            for (t, qkv) in qkv.chunks_exact(width).enumerate() {
                let value = 2 * k_heads * k_dim + head * v_dim;
                let step = Step {
                    q: &qkv[key..key + k_dim],
                    k: &qkv[k_heads * k_dim + key..][..k_dim],
                    v: &qkv[value..value + v_dim],
                    decay: decay[t * v_heads + head],
                    beta: beta[t * v_heads + head],
                };
                let out = if has_out {
                    // SAFETY: `t < n` and `head < v_heads`: inside the `n * v_heads * v_dim` results, and only this task
                    // writes this head's.
                    unsafe { parts.out((t * v_heads + head) * v_dim, v_dim) }
                } else {
                    &mut unused[..]
                };
                call!(self, delta(state, &step, out));
            }
        });
    }
}

#[cfg(test)]
mod tests;
