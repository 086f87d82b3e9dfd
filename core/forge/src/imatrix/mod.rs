//! Activation statistics per column of a weight matrix, and the files they are kept in.
//!
//! Two forms are read: GGUF files (`general.type = imatrix`, tensors `NAME.in_sum2` and `NAME.counts`, as llama.cpp writes them)
//! and the older binary form of its `imatrix` tool. Ours is the GGUF form with one more tensor per matrix, `NAME.in_abs`, the
//! sum of magnitudes, which other readers skip.

mod collect;
mod file;

pub use collect::Collector;

use crate::encode::{Importance, ImportanceError};
use std::collections::BTreeMap;

/// What is wrong with an importance matrix file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImatrixError {
    /// It is no valid GGUF file.
    #[error(transparent)]
    Gguf(#[from] pannier_gguf::Error),
    /// It is a GGUF file of another kind.
    #[error("is a GGUF file of type {found:?}, not an importance matrix")]
    NotAnImatrix {
        /// Its `general.type`.
        found: String,
    },
    /// It ends too early.
    #[error("truncated: {what} needs {needed} bytes at offset {offset}, {available} are left")]
    Truncated {
        /// What is cut.
        what: &'static str,
        /// Where it starts.
        offset: usize,
        /// Bytes needed.
        needed: usize,
        /// Bytes left.
        available: usize,
    },
    /// A count that cannot be.
    #[error("{what} is {value}, which cannot be right; is this an importance matrix?")]
    BadCount {
        /// What is counted.
        what: &'static str,
        /// The claim.
        value: i64,
    },
    /// A name that is not text.
    #[error("the name of entry {entry} is not UTF-8")]
    BadName {
        /// Its place in the file.
        entry: usize,
    },
    /// Sums without counts, or sums and counts that do not fit each other.
    #[error("entry {name:?} has {sums} sums for {matrices} counts")]
    Mismatch {
        /// The tensor.
        name: String,
        /// Number of sums.
        sums: usize,
        /// Number of counts.
        matrices: usize,
    },
    /// A value is negative, NaN or infinite.
    #[error("entry {name:?}: {fault}")]
    Value {
        /// The tensor.
        name: String,
        /// Which value.
        fault: ImportanceError,
    },
    /// There is nothing in it.
    #[error("has no entries")]
    Empty,
}

/// Sums over all activations that one tensor saw. `matrices` is 1, or the number of experts.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Entry {
    columns: usize,
    /// Σ x² per matrix and column.
    sum_squares: Vec<f32>,
    /// Σ |x| per matrix and column; empty if the file has none.
    sum_magnitudes: Vec<f32>,
    /// Activations per matrix.
    counts: Vec<f32>,
}

impl Entry {
    fn new(
        columns: usize,
        sum_squares: Vec<f32>,
        sum_magnitudes: Vec<f32>,
        counts: Vec<f32>,
    ) -> Option<Entry> {
        let values = columns.checked_mul(counts.len())?;
        let fits = columns > 0
            && values > 0
            && sum_squares.len() == values
            && (sum_magnitudes.is_empty() || sum_magnitudes.len() == values);
        fits.then_some(Entry { columns, sum_squares, sum_magnitudes, counts })
    }

    /// Columns of each matrix.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Activations that each matrix saw.
    pub fn counts(&self) -> &[f32] {
        &self.counts
    }

    fn means(&self, sums: &[f32], matrix: usize) -> Option<Vec<f32>> {
        let count = *self.counts.get(matrix)?;
        let start = matrix.checked_mul(self.columns)?;
        let sums = sums.get(start..start.checked_add(self.columns)?)?;
        // An expert that never ran says nothing about its columns.
        let mean = |sum: &f32| if count > 0.0 { sum / count } else { 1.0 };
        Some(sums.iter().map(mean).collect())
    }

    /// E[x²] per column of one matrix; ones if it never ran.
    pub fn mean_squares(&self, matrix: usize) -> Option<Vec<f32>> {
        self.means(&self.sum_squares, matrix)
    }

    /// E[|x|] per column of one matrix, if the file has it.
    pub fn mean_magnitudes(&self, matrix: usize) -> Option<Vec<f32>> {
        self.means(&self.sum_magnitudes, matrix)
    }

    /// The importance of the columns of each of a tensor's matrices, whose weights are multiplied with `scales` (none if empty);
    /// `Err` with the number of values if they do not fit it.
    pub(crate) fn for_matrices(
        &self,
        columns: u64,
        matrices: u64,
        scales: &[f32],
    ) -> Result<Result<Vec<Importance>, ImportanceError>, usize> {
        let values = self.sum_squares.len();
        let fits = columns.checked_mul(matrices) == Some(values as u64)
            && (self.counts.len() as u64 == matrices || self.counts.len() == 1);
        let (Ok(columns), true) = (usize::try_from(columns), fits) else { return Err(values) };
        if self.counts.len() as u64 == matrices {
            return Ok((0..self.counts.len())
                .map(|matrix| {
                    let mut squares = self.mean_squares(matrix).unwrap_or_default();
                    // What enters a scaled column is as much smaller.
                    squares.iter_mut().zip(scales).for_each(|(square, scale)| *square /= scale * scale);
                    Importance::new(&squares)
                })
                .collect());
        }
        // The older files put all experts into one run of values.
        Ok(self.sum_squares.chunks_exact(columns).map(Importance::new).collect())
    }

    fn check(&self) -> Result<(), ImportanceError> {
        let bad = |value: &f32| !(value.is_finite() && *value >= 0.0);
        for values in [&self.sum_squares, &self.sum_magnitudes, &self.counts] {
            if let Some(column) = values.iter().position(bad) {
                let value = values.get(column).copied().unwrap_or(f32::NAN);
                return Err(ImportanceError { column, value });
            }
        }
        Ok(())
    }
}

/// Activation statistics of a whole model.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Imatrix {
    entries: BTreeMap<String, Entry>,
    /// The texts it was made from.
    pub datasets: Vec<String>,
    /// How many windows of text.
    pub chunks: u32,
    /// Tokens per window.
    pub chunk_tokens: u32,
}

/// An expert that saw too few tokens for its statistics to mean much.
#[derive(Debug, Clone, PartialEq)]
pub struct RareExpert {
    /// The tensor.
    pub tensor: String,
    /// The expert.
    pub expert: usize,
    /// Activations it saw.
    pub count: u64,
}

impl Imatrix {
    /// The statistics of one tensor, by its name in the model.
    pub fn get(&self, tensor: &str) -> Option<&Entry> {
        self.entries.get(tensor)
    }

    /// All tensors, by name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Entry)> {
        self.entries.iter().map(|(name, entry)| (name.as_str(), entry))
    }

    /// How many tensors.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no tensor.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds statistics of more text.
    ///
    /// # Errors
    /// [`ImatrixError::Mismatch`] when the two are of different models.
    pub fn merge(&mut self, other: Imatrix) -> Result<(), ImatrixError> {
        for (name, entry) in other.entries {
            let Some(ours) = self.entries.get_mut(&name) else {
                self.entries.insert(name, entry);
                continue;
            };
            if ours.columns != entry.columns || ours.counts.len() != entry.counts.len() {
                let (sums, matrices) = (entry.sum_squares.len(), ours.counts.len());
                return Err(ImatrixError::Mismatch { name, sums, matrices });
            }
            let add =
                |to: &mut [f32], from: &[f32]| to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
            add(&mut ours.sum_squares, &entry.sum_squares);
            add(&mut ours.counts, &entry.counts);
            if entry.sum_magnitudes.len() == ours.sum_magnitudes.len() {
                add(&mut ours.sum_magnitudes, &entry.sum_magnitudes);
            } else {
                ours.sum_magnitudes.clear();
            }
        }
        self.datasets.extend(other.datasets);
        self.chunks = self.chunks.saturating_add(other.chunks);
        Ok(())
    }

    /// Keeps the entries whose name `keep` accepts.
    pub fn retain(&mut self, mut keep: impl FnMut(&str) -> bool) {
        self.entries.retain(|name, _| keep(name));
    }

    /// Experts with fewer than `least` activations.
    pub fn rare_experts(&self, least: u64) -> Vec<RareExpert> {
        let mut rare = Vec::new();
        for (name, entry) in self.entries.iter().filter(|(_, entry)| entry.counts.len() > 1) {
            for (expert, count) in entry.counts.iter().enumerate() {
                if (*count as u64) < least {
                    rare.push(RareExpert { tensor: name.clone(), expert, count: *count as u64 });
                }
            }
        }
        rare
    }
}
