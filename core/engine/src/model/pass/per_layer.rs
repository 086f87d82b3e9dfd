//! Embeddings that each layer has of a token for itself.

use super::{Pass, for_each_piece, gelu_halves_mul, norm_rows, product, rows, rows_mut};
use crate::Result;
use crate::model::per_layer::{PerLayerBlock, PerLayerInputs};
use crate::model::precision::Role;
use crate::residency::UnitGuard;
use std::sync::Mutex;

impl Pass<'_> {
    /// `e = (rms_norm(W x / sqrt(embd)) + sqrt(width) E'[token]) / sqrt(2)`, each layer's part normed by itself. To be called when x is
    /// the embedding and nothing else.
    ///
    /// # Errors
    /// What reading weights may bring.
    pub fn per_layer_inputs(
        &mut self,
        unit: &UnitGuard<'_>,
        inputs: &PerLayerInputs,
        eps: f32,
    ) -> Result<()> {
        let (n, embd, cx, s) = (self.n(), self.cx.embd, &self.cx, &mut *self.s);
        let all = s.per_layer_width();
        rows_mut(&mut s.h, n, embd).copy_from_slice(rows(&s.x, n, embd));
        let e = rows_mut(&mut s.per_layer, n, all);
        let outputs = [(inputs.project.weights(unit, cx.weights)?, &mut *e)];
        product(cx, Role::GateUp, &mut s.act, (rows_mut(&mut s.h, n, embd), n, embd), outputs);
        cx.kernels.scale_in_place(e, 1.0 / (embd as f32).sqrt());
        norm_rows(cx, e, inputs.norm, eps, inputs.width)?;
        let (scale, tokens) = ((inputs.width as f32).sqrt(), self.tokens);
        let failed = Mutex::new(None);
        for_each_piece(cx.par, e, all, &|index, e| {
            let mut row = vec![0.0; all];
            let token = tokens.get(index).copied().unwrap_or_default();
            if let Err(error) = cx.weights.row(inputs.table, token as usize, &mut row) {
                failed.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get_or_insert(error);
            }
            cx.kernels.scale_in_place(&mut row, scale);
            cx.kernels.add_in_place(e, &row);
            cx.kernels.scale_in_place(e, std::f32::consts::FRAC_1_SQRT_2);
        });
        failed.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()).map_or(Ok(()), Err)
    }

    /// `h = rms_norm(W' (gelu(W x) * e))`, where e is what [`Pass::per_layer_inputs`] left for this layer.
    ///
    /// # Errors
    /// Only for mistakes of the caller.
    pub fn per_layer_block(
        &mut self,
        unit: &UnitGuard<'_>,
        block: &PerLayerBlock,
        layer: usize,
        eps: f32,
    ) -> Result<()> {
        let (n, embd, cx, s) = (self.n(), self.cx.embd, &self.cx, &mut *self.s);
        let (all, width) = (s.per_layer_width(), block.gate.rows());
        rows_mut(&mut s.h, n, embd).copy_from_slice(rows(&s.x, n, embd));
        let outputs = [(block.gate.weights(unit, cx.weights)?, rows_mut(&mut s.gate, n, width))];
        product(cx, Role::GateUp, &mut s.act, (rows_mut(&mut s.h, n, embd), n, embd), outputs);
        let e = rows(&s.per_layer, n, all);
        for_each_piece(cx.par, rows_mut(&mut s.gate, n, width), width, &|index, gate| {
            gelu_halves_mul(cx.kernels, gate, &e[index * all + layer * width..][..width]);
        });
        let outputs = [(block.out.weights(unit, cx.weights)?, rows_mut(&mut s.h, n, embd))];
        product(cx, Role::Down, &mut s.act, (rows_mut(&mut s.gate, n, width), n, width), outputs);
        norm_rows(cx, rows_mut(&mut s.h, n, embd), block.norm, eps, embd)
    }
}
