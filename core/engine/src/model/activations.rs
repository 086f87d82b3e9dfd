//! What enters the weight matrices, for whoever collects statistics.

use super::blocks::Weights;
use super::pass::Context;
use std::fmt;

/// Sees the activations that are about to be multiplied with each weight matrix, in f32, before anything is rounded.
///
/// It is called on the thread of the forward pass. Matrices that share an input are reported one after the other with the
/// same rows. A pass that nobody observes does no work for it, and one that is observed gives the same bits.
pub trait ActivationObserver: Send + Sync + fmt::Debug {
    /// Some rows for one matrix.
    fn observed(&self, input: &MatrixInput<'_>);
}

/// Rows that are about to be multiplied with a matrix.
#[derive(Clone, Copy, Debug)]
pub struct MatrixInput<'a> {
    /// The tensor's name in the file.
    pub tensor: &'a str,
    /// Which matrix of the tensor, and how many it has: (0, 1) unless it is a stack of experts.
    pub matrix: (usize, usize),
    /// Columns of the matrix.
    pub cols: usize,
    /// Rows of `cols` values.
    pub rows: &'a [f32],
}

/// Tells the observer, if there is one, about the inputs of some matrices.
pub(super) fn observe<'w>(
    cx: &Context<'_>,
    weights: impl IntoIterator<Item = &'w Weights<'w>>,
    cols: usize,
    rows: &[f32],
) {
    let Some(observer) = cx.activations else { return };
    for weights in weights {
        // A fused matrix comes in parts that all have this input: it counts once.
        if weights.first > 0 {
            continue;
        }
        let unit = cx.weights.layout().unit(weights.tensor.unit());
        let Ok(tensor) = unit.and_then(|unit| unit.tensor(weights.tensor)) else { continue };
        observer.observed(&MatrixInput { tensor: &tensor.name, matrix: weights.of_stack, cols, rows });
    }
}

/// Values that are copied together: little memory, and many enough that a call costs nothing beside its work.
const GATHERED: usize = 1 << 16;

/// [`observe`] for the rows of a buffer that `index` lists.
pub(super) fn observe_some(
    cx: &Context<'_>,
    weights: &Weights<'_>,
    cols: usize,
    buffer: &[f32],
    index: &[u32],
) {
    if cx.activations.is_none() {
        return;
    }
    let mut gathered = Vec::new();
    for index in index.chunks((GATHERED / cols.max(1)).max(1)) {
        gathered.clear();
        for &row in index {
            let start = row as usize * cols;
            gathered.extend_from_slice(buffer.get(start..start + cols).unwrap_or_default());
        }
        observe(cx, [weights], cols, &gathered);
    }
}
