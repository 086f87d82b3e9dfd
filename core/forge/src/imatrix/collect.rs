//! Collecting statistics while a model runs.

use super::{Entry, Imatrix};
use pannier::model::{ActivationObserver, MatrixInput};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Sums squares and magnitudes per column of everything that enters a weight matrix.
#[derive(Debug, Default)]
pub struct Collector {
    sums: Mutex<HashMap<String, Sums>>,
}

/// In f64: hundreds of thousands of tokens would wear an f32 down.
#[derive(Debug)]
struct Sums {
    columns: usize,
    squares: Vec<f64>,
    magnitudes: Vec<f64>,
    counts: Vec<u64>,
}

/// More values than all experts of any model have; a caller that passes more has mixed something up.
const LIMIT: usize = 1 << 28;

impl Collector {
    /// Nothing seen yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// What was seen so far.
    pub fn imatrix(&self) -> Imatrix {
        let sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        let floats = |values: &[f64]| values.iter().map(|value| *value as f32).collect();
        let entry = |sums: &Sums| Entry {
            columns: sums.columns,
            sum_squares: floats(&sums.squares),
            sum_magnitudes: floats(&sums.magnitudes),
            counts: sums.counts.iter().map(|count| *count as f32).collect(),
        };
        let entries = sums.iter().map(|(name, sums)| (name.clone(), entry(sums))).collect();
        Imatrix { entries, ..Imatrix::default() }
    }
}

impl ActivationObserver for Collector {
    fn observed(&self, input: &MatrixInput<'_>) {
        let (MatrixInput { tensor, cols: columns, rows, .. }, (matrix, matrices)) = (*input, input.matrix);
        let values = matrices.checked_mul(columns).filter(|values| (1..=LIMIT).contains(values));
        let Some(values) = values.filter(|_| matrix < matrices) else { return };
        let mut all = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        if !all.contains_key(tensor) {
            let empty = Sums {
                columns,
                squares: vec![0.0; values],
                magnitudes: vec![0.0; values],
                counts: vec![0; matrices],
            };
            all.insert(tensor.to_owned(), empty);
        }
        let fits = |sums: &&mut Sums| sums.columns == columns && sums.counts.len() == matrices;
        let Some(sums) = all.get_mut(tensor).filter(fits) else { return };
        let range = matrix * columns..(matrix + 1) * columns;
        let squares = sums.squares.get_mut(range.clone()).unwrap_or_default();
        let magnitudes = sums.magnitudes.get_mut(range).unwrap_or_default();
        let mut count = 0;
        for row in rows.chunks_exact(columns) {
            for ((square, magnitude), x) in squares.iter_mut().zip(magnitudes.iter_mut()).zip(row) {
                let x = f64::from(*x);
                *square += x * x;
                *magnitude += x.abs();
            }
            count += 1;
        }
        if let Some(total) = sums.counts.get_mut(matrix) {
            *total += count;
        }
    }
}
