//! A weight matrix as it lies in the file.

use std::borrow::Cow;
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
    /// Interleaved rows come in groups.
    #[error("{format}: {rows} rows are no multiple of the {interleaved} that lie interleaved")]
    Rows {
        /// Name of the block format.
        format: &'static str,
        /// Rows asked for.
        rows: usize,
        /// Rows of a group.
        interleaved: usize,
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
///
/// Formats of [nested](crate::nested) precision have the rows of a second plane besides, which may be elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    format: &'static Format,
    rows: usize,
    cols: usize,
    /// In the first plane.
    row_bytes: usize,
    bytes: &'a [u8],
    /// 0 without a second plane.
    fine_row_bytes: usize,
    fine: &'a [u8],
}

impl<'a> Matrix<'a> {
    /// Checks that `bytes` holds exactly `rows` rows of `cols` weights: of a format with two planes, the first and right behind it the second.
    ///
    /// # Errors
    /// [`ShapeError`] if a row is no whole number of blocks or the bytes are too few or too many.
    pub fn new(
        format: &'static Format,
        rows: usize,
        cols: usize,
        bytes: &'a [u8],
    ) -> Result<Self, ShapeError> {
        let fine = (cols / format.block).saturating_mul(format.fine).saturating_mul(rows);
        let at = bytes.len().saturating_sub(fine);
        Self::planes(format, rows, cols, &bytes[..at], &bytes[at..])
    }

    /// Checks that `bytes` and `fine` hold exactly the two planes of `rows` rows of `cols` weights. `fine` is empty for formats that have one.
    ///
    /// # Errors
    /// [`ShapeError`] if a row is no whole number of blocks or the bytes of a plane are too few or too many.
    pub fn planes(
        format: &'static Format,
        rows: usize,
        cols: usize,
        bytes: &'a [u8],
        fine: &'a [u8],
    ) -> Result<Self, ShapeError> {
        let row = format.row_bytes(cols).ok_or(ShapeError::Columns {
            format: format.name,
            cols,
            block: format.block,
        })?;
        let interleaved = format.interleaved;
        if !rows.is_multiple_of(interleaved) {
            return Err(ShapeError::Rows { format: format.name, rows, interleaved });
        }
        // At most `row`, which did not overflow.
        let fine_row_bytes = cols / format.block * format.fine;
        let row_bytes = row - fine_row_bytes;
        for (plane, row) in [(bytes, row_bytes), (fine, fine_row_bytes)] {
            let needed = row.saturating_mul(rows);
            if needed != plane.len() {
                let available = plane.len();
                return Err(ShapeError::Bytes { format: format.name, rows, cols, needed, available });
            }
        }
        Ok(Matrix { format, rows, cols, row_bytes, bytes, fine_row_bytes, fine })
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

    /// All rows, as they lie in the file, without a second plane.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Bytes of all planes.
    pub fn total_bytes(&self) -> usize {
        self.bytes.len() + self.fine.len()
    }

    /// Bytes from one row to the next, in the first plane.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// The same in the second plane; 0 if there is none.
    pub fn fine_row_bytes(&self) -> usize {
        self.fine_row_bytes
    }

    /// The blocks of row `i` in the first plane; empty if there is no such row.
    pub fn row(&self, i: usize) -> Cow<'a, [u8]> {
        self.row_planes(i).0
    }

    /// The blocks of row `i` in both planes; empty if there is no such row. A copy if it lies interleaved with others.
    pub fn row_planes(&self, i: usize) -> (Cow<'a, [u8]>, &'a [u8]) {
        if i >= self.rows {
            return (Cow::Borrowed(&[]), &[]);
        }
        let together = self.format.interleaved;
        if together > 1 {
            let sixteen = &self.planes_from(i - i % together).0[..together * self.row_bytes];
            return (Cow::Owned(self.format.row_of_sixteen(sixteen, i % together)), &[]);
        }
        let (low, fine) = self.planes_from(i);
        (Cow::Borrowed(&low[..self.row_bytes]), &fine[..self.fine_row_bytes])
    }

    /// What lies from row `i` on in both planes; of interleaved rows, `i` is the first of a group.
    pub(crate) fn planes_from(&self, i: usize) -> (&'a [u8], &'a [u8]) {
        (&self.bytes[i * self.row_bytes..], &self.fine[i * self.fine_row_bytes..])
    }

    /// Decodes the first `out.len()` weights of row `i`; zeros if there is no such row.
    pub fn decode_row(&self, i: usize, out: &mut [f32]) {
        let (low, fine) = self.row_planes(i);
        if fine.is_empty() {
            return self.format.decode_row(&low, out);
        }
        self.format.decode_row(&[&*low, fine].concat(), out);
    }

    /// The rows of `range` (cut at the last row) as a matrix of their own, for example one expert of many. Of interleaved rows, those of the
    /// groups that `range` touches.
    pub fn rows_range(&self, range: Range<usize>) -> Matrix<'a> {
        let together = self.format.interleaved;
        let end = range.end.next_multiple_of(together).min(self.rows);
        let start = range.start.min(end) / together * together;
        let bytes = &self.bytes[start * self.row_bytes..end * self.row_bytes];
        let fine = &self.fine[start * self.fine_row_bytes..end * self.fine_row_bytes];
        Matrix { rows: end - start, bytes, fine, ..*self }
    }
}
