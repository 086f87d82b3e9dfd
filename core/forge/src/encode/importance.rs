//! How much each column of a tensor matters.

/// A checked importance vector: one positive, finite weight per column, with a mean of about 1.
///
/// Made from the mean squared activation of each column, E[x²]: the expected squared error of a matrix-vector product is the sum
/// over the columns of E[x²] times the squared error of the weight, if columns are taken as uncorrelated.
#[derive(Debug, Clone, PartialEq)]
pub struct Importance {
    weights: Vec<f32>,
}

/// Why an importance vector is unusable.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("importance of column {column} is {value}; it must be finite and not negative")]
pub struct ImportanceError {
    /// The column.
    pub column: usize,
    /// Its value.
    pub value: f32,
}

/// A column that was never active still counts a little: its weights must not become arbitrary.
const FLOOR: f32 = 1e-5;
/// Beyond this ratio to the mean, sums in f32 would forget the other columns.
const CEILING: f32 = 1e6;

impl Importance {
    /// Checks and normalises E[x²] per column.
    ///
    /// # Errors
    /// A value is negative, NaN or infinite.
    pub fn new(mean_squares: &[f32]) -> Result<Importance, ImportanceError> {
        let bad = mean_squares.iter().position(|value| !(value.is_finite() && *value >= 0.0));
        if let Some(column) = bad {
            let value = mean_squares.get(column).copied().unwrap_or(f32::NAN);
            return Err(ImportanceError { column, value });
        }
        let sum: f64 = mean_squares.iter().map(|&value| f64::from(value)).sum();
        let mean = sum / mean_squares.len().max(1) as f64;
        let weights = if mean > 0.0 {
            mean_squares
                .iter()
                .map(|&value| ((f64::from(value) / mean) as f32).clamp(FLOOR, CEILING))
                .collect()
        } else {
            vec![1.0; mean_squares.len()]
        };
        Ok(Importance { weights })
    }

    /// One weight per column.
    pub fn weights(&self) -> &[f32] {
        &self.weights
    }

    /// How many columns.
    pub fn len(&self) -> usize {
        self.weights.len()
    }

    /// Whether there is no column.
    pub fn is_empty(&self) -> bool {
        self.weights.is_empty()
    }
}
