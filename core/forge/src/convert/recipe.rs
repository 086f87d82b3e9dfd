//! Where the weights of an output tensor come from.
//!
//! Every output tensor is a list of rows; a recipe says for each row which source it is in and where. That covers stacking of
//! experts, splitting of fused matrices, and the reordering of heads, without holding more than a piece in memory.

use super::ConvertError;
use super::checkpoint::{Checkpoint, Dtype, Tensor};
use crate::{Error, Result};
use pannier_gguf::GgmlType;

/// How rows of a matrix in the output follow from rows in the checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    Same,
    /// Row i is row `start + step * i`.
    Strided {
        start: u64,
        step: u64,
    },
    /// Each head of `dim` rows goes from two halves (rotated in pairs i, i + dim / 2) to interleaved pairs (2 i, 2 i + 1).
    Interleave {
        dim: u64,
    },
    /// From row `from` on, heads of `dim` rows go from grouped by key head to the order that repeats all key heads.
    Tile {
        from: u64,
        keys: u64,
        per_key: u64,
        dim: u64,
    },
}

impl Order {
    fn source(self, row: u64) -> u64 {
        match self {
            Order::Same => row,
            Order::Strided { start, step } => start + step * row,
            Order::Interleave { dim } => {
                let (head, within) = (row / dim, row % dim);
                head * dim + within % 2 * (dim / 2) + within / 2
            }
            Order::Tile { from, keys, per_key, dim } => {
                let Some(row) = row.checked_sub(from) else { return row };
                let (head, within) = (row / dim, row % dim);
                let (copy, key) = (head / keys, head % keys);
                from + (key * per_key + copy) * dim + within
            }
        }
    }
}

/// What is done to each weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    None,
    /// Gemma and its kin store norm weights minus one.
    AddOne,
    /// Decay rates are stored as logarithms.
    NegativeExp,
}

/// One output tensor.
#[derive(Debug, Clone)]
pub(super) struct Recipe {
    pub name: String,
    /// Fastest first.
    pub dims: Vec<u64>,
    pub ty: GgmlType,
    pub from: From,
    pub change: Change,
}

#[derive(Debug, Clone)]
pub(super) enum From {
    /// Numbers that are not in the checkpoint.
    Values(Vec<f32>),
    Rows(Rows),
    /// Like `Rows`, but the sources are stored column by column.
    Columns(Rows),
    /// 4-bit blocks and their scales, to be packed into the other order.
    Mxfp4 {
        blocks: Tensor,
        scales: Tensor,
        rows: Rows,
    },
}

#[derive(Debug, Clone)]
pub(super) struct Rows {
    /// One per matrix (expert), or one with all matrices.
    pub sources: Vec<Tensor>,
    pub columns: u64,
    /// Rows per matrix in the output.
    pub rows: u64,
    /// Rows per matrix in the checkpoint.
    pub source_rows: u64,
    pub order: Order,
    /// How columns are reordered.
    pub column_order: Order,
}

impl Rows {
    /// The source of an output row, and the row in it.
    fn locate(&self, row: u64) -> (usize, u64) {
        let (matrix, within) = (row / self.rows, row % self.rows);
        let row = self.order.source(within);
        if self.sources.len() == 1 {
            (0, matrix * self.source_rows + row)
        } else {
            (usize::try_from(matrix).unwrap_or(usize::MAX), row)
        }
    }

    fn source(&self, index: usize, name: &str) -> Result<&Tensor> {
        let missing = || Error::from(ConvertError::MissingTensor { name: name.to_owned() });
        self.sources.get(index).ok_or_else(missing)
    }
}

impl Recipe {
    /// The weights from element `first` on.
    pub fn read(&self, checkpoint: &Checkpoint, first: u64, out: &mut [f32]) -> Result<()> {
        match &self.from {
            From::Values(values) => {
                let start = usize::try_from(first).unwrap_or(usize::MAX);
                for (out, value) in out.iter_mut().zip(values.get(start..).unwrap_or_default()) {
                    *out = *value;
                }
            }
            From::Rows(rows) if rows.column_order == Order::Same => {
                self.read_rows(checkpoint, rows, first, out)?;
            }
            From::Rows(rows) => self.read_reordered(checkpoint, rows, first, out)?,
            From::Columns(rows) => self.read_columns(checkpoint, rows, first, out)?,
            From::Mxfp4 { .. } => return Err(Error::CannotEncode { ty: self.ty }),
        }
        match self.change {
            Change::None => {}
            Change::AddOne => out.iter_mut().for_each(|x| *x += 1.0),
            Change::NegativeExp => out.iter_mut().for_each(|x| *x = -x.exp()),
        }
        Ok(())
    }

    fn read_rows(&self, checkpoint: &Checkpoint, rows: &Rows, first: u64, out: &mut [f32]) -> Result<()> {
        // Rows that follow each other in the source, too, are read in one go.
        let mut done = 0usize;
        while done < out.len() {
            let element = first + done as u64;
            let (row, column) = (element / rows.columns, element % rows.columns);
            let (source, source_row) = rows.locate(row);
            let start = source_row * rows.columns + column;
            let mut run = rows.columns - column;
            let mut next = row + 1;
            while (run as usize) < out.len() - done
                && rows.locate(next) == (source, source_row + (next - row))
            {
                run += rows.columns;
                next += 1;
            }
            let run = (run as usize).min(out.len() - done);
            let part = out.get_mut(done..done + run).unwrap_or_default();
            checkpoint.read(rows.source(source, &self.name)?, start, part)?;
            done += run;
        }
        Ok(())
    }

    fn read_reordered(
        &self,
        checkpoint: &Checkpoint,
        rows: &Rows,
        first: u64,
        out: &mut [f32],
    ) -> Result<()> {
        let mut whole = vec![0f32; usize::try_from(rows.columns).unwrap_or(0)];
        let mut held = None;
        for (index, out) in out.iter_mut().enumerate() {
            let element = first + index as u64;
            let (row, column) = (element / rows.columns, element % rows.columns);
            if held != Some(row) {
                let (source, source_row) = rows.locate(row);
                checkpoint.read(rows.source(source, &self.name)?, source_row * rows.columns, &mut whole)?;
                held = Some(row);
            }
            let column = rows.column_order.source(column) as usize;
            *out = whole.get(column).copied().unwrap_or(0.0);
        }
        Ok(())
    }

    fn read_columns(&self, checkpoint: &Checkpoint, rows: &Rows, first: u64, out: &mut [f32]) -> Result<()> {
        let columns = rows.columns;
        let mut done = 0usize;
        while done < out.len() {
            let element = first + done as u64;
            // As many whole or partial rows as lie in one matrix.
            let matrix = element / columns / rows.rows;
            let end = ((matrix + 1) * rows.rows * columns).min(first + out.len() as u64);
            let (first_row, last_row) = (element / columns, (end - 1) / columns);
            let from = rows.order.source(first_row % rows.rows);
            let to = rows.order.source(last_row % rows.rows);
            let (source, base) = if rows.sources.len() == 1 {
                (0, matrix * rows.source_rows * columns)
            } else {
                (usize::try_from(matrix).unwrap_or(usize::MAX), 0)
            };
            let source = rows.source(source, &self.name)?;
            let mut line = vec![0f32; (to - from + 1) as usize];
            for column in 0..columns {
                checkpoint.read(source, base + column * rows.source_rows + from, &mut line)?;
                for row in first_row..=last_row {
                    let at = row * columns + column;
                    let (Some(place), true) = (at.checked_sub(first), (element..end).contains(&at)) else {
                        continue;
                    };
                    let value = line.get((rows.order.source(row % rows.rows) - from) as usize);
                    if let (Some(out), Some(value)) = (out.get_mut(place as usize), value) {
                        *out = *value;
                    }
                }
            }
            done += (end - element) as usize;
        }
        Ok(())
    }

    /// The checkpoint keeps weights 2i and 2i + 1 in byte i; GGUF keeps weights i and i + 16 there, behind the block's scale.
    pub fn repack_mxfp4(&self, checkpoint: &Checkpoint, first: u64, out: &mut [u8]) -> Result<()> {
        let From::Mxfp4 { blocks, scales, rows } = &self.from else {
            return Err(Error::CannotEncode { ty: self.ty });
        };
        let per_row = (rows.columns / 32).max(1);
        let mut packed = vec![0u8; (per_row * 16) as usize];
        let mut exponents = vec![0u8; per_row as usize];
        let mut held = None;
        for (index, out) in out.chunks_exact_mut(17).enumerate() {
            let block = first / 32 + index as u64;
            let (row, within) = (block / per_row, (block % per_row) as usize);
            if held != Some(row) {
                let (_, source_row) = rows.locate(row);
                checkpoint.read_raw(blocks, source_row * per_row * 16, &mut packed)?;
                checkpoint.read_raw(scales, source_row * per_row, &mut exponents)?;
                held = Some(row);
            }
            let weights = packed.get(within * 16..within * 16 + 16).unwrap_or_default();
            let nibble = |k: usize| weights.get(k / 2).map_or(0, |byte| byte >> (4 * (k % 2)) & 15);
            if let Some((scale, bytes)) = out.split_first_mut() {
                *scale = exponents.get(within).copied().unwrap_or(0);
                for (j, byte) in bytes.iter_mut().enumerate() {
                    *byte = nibble(j) | nibble(j + 16) << 4;
                }
            }
        }
        Ok(())
    }
}

/// Fails for a tensor that cannot be read as numbers.
pub(super) fn check_numbers(tensor: &Tensor) -> Result<()> {
    match tensor.dtype {
        Dtype::F32 | Dtype::F16 | Dtype::BF16 => Ok(()),
        other => {
            let dtype = format!("{other:?}");
            Err(ConvertError::BadDtype { name: tensor.name.clone(), dtype }.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_permutations() {
        let orders = [
            (Order::Same, 24),
            (Order::Interleave { dim: 8 }, 24),
            (Order::Tile { from: 0, keys: 3, per_key: 2, dim: 4 }, 24),
            (Order::Tile { from: 8, keys: 2, per_key: 4, dim: 2 }, 24),
        ];
        for (order, rows) in orders {
            let mut sources: Vec<u64> = (0..rows).map(|row| order.source(row)).collect();
            sources.sort_unstable();
            assert_eq!(sources, (0..rows).collect::<Vec<_>>(), "{order:?}");
        }
        // Head 0: pairs (0, 4), (1, 5), … side by side.
        let interleave = Order::Interleave { dim: 8 };
        assert_eq!((0..8).map(|row| interleave.source(row)).collect::<Vec<_>>(), [0, 4, 1, 5, 2, 6, 3, 7]);
        // Value heads 0, 1 belong to key 0, 2, 3 to key 1; tiled, the keys alternate.
        let tile = Order::Tile { from: 0, keys: 2, per_key: 2, dim: 1 };
        assert_eq!((0..4).map(|row| tile.source(row)).collect::<Vec<_>>(), [0, 2, 1, 3]);
    }
}
