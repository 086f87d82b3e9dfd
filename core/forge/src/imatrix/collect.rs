//! Collecting statistics while a model runs.

use super::{Entry, Imatrix};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Sees the activations that enter each weight matrix.
pub trait ActivationSink: Send + Sync {
    /// `activations` are rows of `columns` floats that are about to be multiplied with `tensor` (with its matrix `expert`, out of
    /// `experts`, if it is a stack of experts; otherwise 0 of 1).
    fn observe(&self, tensor: &str, expert: usize, experts: usize, columns: usize, activations: &[f32]);
}

/// Sums squares and magnitudes per column.
#[derive(Debug, Default)]
pub struct Collector {
    entries: Mutex<HashMap<String, Entry>>,
}

/// More experts or columns than any model has; a caller that passes more has mixed something up.
const LIMIT: usize = 1 << 24;

impl Collector {
    /// Nothing seen yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// What was seen so far.
    pub fn imatrix(&self) -> Imatrix {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let entries = entries.iter().map(|(name, entry)| (name.clone(), entry.clone())).collect();
        Imatrix { entries, ..Imatrix::default() }
    }
}

impl ActivationSink for Collector {
    fn observe(&self, tensor: &str, expert: usize, experts: usize, columns: usize, activations: &[f32]) {
        let values = experts.checked_mul(columns).filter(|values| (1..=LIMIT * 16).contains(values));
        let Some(values) = values.filter(|_| expert < experts) else { return };
        // Summed over the batch first: a long run of small additions to a large sum would lose them in f32.
        let mut squares = vec![0f32; columns];
        let mut magnitudes = vec![0f32; columns];
        let mut count = 0f32;
        for row in activations.chunks_exact(columns) {
            for ((square, magnitude), x) in squares.iter_mut().zip(&mut magnitudes).zip(row) {
                *square += x * x;
                *magnitude += x.abs();
            }
            count += 1.0;
        }
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if !entries.contains_key(tensor) {
            let empty = Entry {
                columns,
                sum_squares: vec![0.0; values],
                sum_magnitudes: vec![0.0; values],
                counts: vec![0.0; experts],
            };
            entries.insert(tensor.to_owned(), empty);
        }
        let Some(entry) =
            entries.get_mut(tensor).filter(|entry| entry.columns == columns && entry.counts.len() == experts)
        else {
            return;
        };
        let range = expert * columns..(expert + 1) * columns;
        let add = |to: &mut [f32], from: &[f32]| to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
        add(entry.sum_squares.get_mut(range.clone()).unwrap_or_default(), &squares);
        add(entry.sum_magnitudes.get_mut(range).unwrap_or_default(), &magnitudes);
        if let Some(total) = entry.counts.get_mut(expert) {
            *total += count;
        }
    }
}
