//! A weight matrix as it lies in the file.

use std::ops::Range;

use crate::formats::Format;

/// Why bytes can't be the matrix they are said to be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// A row must be a whole number of blocks.
    #[error("{format}: a row of {cols} weights is no multiple of its block of {block}")]
    Columns {
        /// Name of the block format.
        format: &'static str,
        /// Weights per row.
        cols: usize,
        /// Weights per block.
        block: usize,
    },
    /// The number of bytes does not follow from the shape.
    #[error("{format}: {rows} x {cols} weights need {needed} bytes, {available} are there")]
    Bytes {
        /// Name of the block format.
        format: &'static str,
        /// Rows asked for.
        rows: usize,
        /// Weights per row.
        cols: usize,
        /// Bytes that the shape needs (`usize::MAX` if that overflows).
        needed: usize,
        /// Bytes given.
        available: usize,
    },
}

/// `rows x cols` weights, row by row in GGUF blocks: a view of the mapped file, never a copy.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    format: &'static Format,
    rows: usize,
    cols: usize,
    row_bytes: usize,
    bytes: &'a [u8],
}

impl<'a> Matrix<'a> {
    /// Checks that `bytes` holds exactly `rows` rows of `cols` weights.
    ///
    /// # Errors
    /// [`ShapeError`] if a row is no whole number of blocks or the bytes are too few or too many.
    pub fn new(
        format: &'static Format,
        rows: usize,
        cols: usize,
        bytes: &'a [u8],
    ) -> Result<Self, ShapeError> {
        let row_bytes = format.row_bytes(cols).ok_or(ShapeError::Columns {
            format: format.name,
            cols,
            block: format.block,
        })?;
        let needed = row_bytes.saturating_mul(rows);
        if needed != bytes.len() {
            return Err(ShapeError::Bytes {
                format: format.name,
                rows,
                cols,
                needed,
                available: bytes.len(),
            });
        }
        Ok(Matrix { format, rows, cols, row_bytes, bytes })
    }

    /// Number of rows (outputs).
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Weights per row (inputs).
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The block format.
    pub fn format(&self) -> &'static Format {
        self.format
    }

    /// All rows, as they lie in the file.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Bytes from one row to the next.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// The blocks of row `i`; empty if there is no such row.
    pub fn row(&self, i: usize) -> &'a [u8] {
        if i >= self.rows {
            return &[];
        }
        &self.bytes[i * self.row_bytes..(i + 1) * self.row_bytes]
    }

    /// The rows of `range` (cut at the last row) as a matrix of their own, for example one expert of many.
    pub fn rows_range(&self, range: Range<usize>) -> Matrix<'a> {
        let end = range.end.min(self.rows);
        let start = range.start.min(end);
        let bytes = &self.bytes[start * self.row_bytes..end * self.row_bytes];
        Matrix { rows: end - start, bytes, ..*self }
    }
}
