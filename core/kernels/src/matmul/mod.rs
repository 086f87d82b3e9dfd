//! Products of weight matrices with token rows.
//!
//! ```text
//! for each job, rows are cut into strips; strips of all jobs are the tasks of one parallel region
//! a strip:  y[token][row] = dot(w[row], x[token]) + bias[row]   for its rows and all tokens
//! ```
//!
//! What happens inside a strip belongs to the instruction set.

pub(crate) mod float;
pub(crate) mod pairs;
pub(crate) mod panels;
pub(crate) mod quantise;
pub(crate) mod simd;
pub(crate) mod source;
pub(crate) mod strip;

use std::ops::Range;

use crate::act::{ActRows, LoBlock, QBlock, place};
use crate::isa::Kernels;
use crate::matrix::Matrix;
use crate::parallel::{Lanes, Parallel};

/// How activations are rounded for quantised weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precision {
    /// 8 bits in groups of 16.
    Q8,
    /// 16 bits in groups of 16: twice the integer products, practically no rounding error.
    Q16,
}

/// One product, `y[token * w.rows() + row] = sum over k of w[row][k] * x[token][k], + bias[row]`.
#[derive(Debug)]
pub struct Job<'a> {
    /// Weights.
    pub w: Matrix<'a>,
    /// Token rows; `w.cols()` columns.
    pub x: ActRows<'a>,
    /// Rounding of the activations; float formats ignore it.
    pub precision: Precision,
    /// `x.rows() * w.rows()` results.
    pub y: &'a mut [f32],
    /// Added to each row's result.
    pub bias: Option<&'a [f32]>,
}

/// Rows of one product that one task computes, for all tokens.
pub(crate) struct Strip<'a> {
    pub w: Matrix<'a>,
    pub rows: Range<usize>,
    pub x: ActRows<'a>,
    pub precision: Precision,
    bias: Option<&'a [f32]>,
    y: *mut f32,
}

impl Strip<'_> {
    /// Blocks of a token (Q8: no lower parts) and the distance from one to the next.
    pub fn token(&self, token: usize) -> (&[QBlock], &[LoBlock], usize) {
        let (blocks, lo) = self.x.quantised(self.precision);
        let (at, step) = place(token, self.x.rows(), self.x.blocks());
        (&blocks[at..], lo.get(at..).unwrap_or(&[]), step)
    }

    /// Writes one result.
    ///
    /// # Safety
    /// `row` is in `self.rows` and `token` below `self.x.rows()`.
    #[inline]
    pub unsafe fn store(&self, token: usize, row: usize, value: f32) {
        let value = self.bias.map_or(value, |b| value + b[row]);
        // SAFETY: `matmul` checked that y holds `x.rows() * w.rows()` values, and only this strip writes these rows.
        unsafe { *self.y.add(token * self.w.rows() + row) = value };
    }
}

/// A job, and how its rows are cut.
struct Cut<'a> {
    strip: Strip<'a>,
    rows_per_task: usize,
    tasks: usize,
}

// SAFETY: tasks write disjoint rows of `y`, which the job borrows exclusively; all else is read only.
unsafe impl Sync for Cut<'_> {}

/// Bytes of weights per task: small enough that a thread which loses its core holds up little, large enough (5 us of
/// memory traffic) that claiming tasks costs nothing.
const TASK_BYTES: usize = 128 << 10;

impl Kernels {
    /// Computes all jobs in one parallel region.
    ///
    /// # Panics
    /// If shapes don't fit, or activations lack the form that a format needs: bugs of the caller.
    pub fn matmul(&self, par: &dyn Parallel, jobs: &mut [Job<'_>]) {
        let threads = par.threads().max(1);
        let total: usize = jobs.iter().map(|j| j.w.total_bytes()).sum();
        // At least eight tasks per thread, if the rows allow it.
        let task_bytes = (total / (threads * 8)).clamp(1, TASK_BYTES);
        let cuts: Vec<Cut<'_>> = jobs
            .iter_mut()
            .map(|job| {
                check(job);
                let rows = job.w.rows();
                let row = job.w.row_bytes() + job.w.fine_row_bytes();
                let step = (task_bytes / row.max(1))
                    .max(1)
                    .next_multiple_of(self.mat.band.max(job.w.format().interleaved));
                let strip = Strip {
                    w: job.w,
                    rows: 0..rows,
                    x: job.x,
                    precision: job.precision,
                    bias: job.bias,
                    y: job.y.as_mut_ptr(),
                };
                let tasks = if job.x.rows() == 0 { 0 } else { rows.div_ceil(step) };
                Cut { strip, rows_per_task: step, tasks }
            })
            .collect();
        let tasks = cuts.iter().map(|c| c.tasks).sum();
        let (cuts, lanes) = (&cuts, Lanes::new(tasks, threads));
        par.run(tasks, &|_| {
            // As many numbers as tasks.
            let Some(mut task) = lanes.take(par.lane()) else { return };
            for cut in cuts {
                if task >= cut.tasks {
                    task -= cut.tasks;
                    continue;
                }
                let s = &cut.strip;
                let start = task * cut.rows_per_task;
                let rows = start..s.w.rows().min(start + cut.rows_per_task);
                let kernel = self.strips[s.w.format().index][s.precision as usize];
                // SAFETY: tables are only built for machines that have the instructions, and `check` passed.
                unsafe { kernel(&Strip { rows, ..*s }) };
                return;
            }
        });
    }
}

fn check(job: &Job<'_>) {
    let (w, x) = (&job.w, job.x);
    assert_eq!(w.cols(), x.cols(), "columns of weights and activations");
    assert_eq!(Some(job.y.len()), w.rows().checked_mul(x.rows()), "results");
    assert!(job.bias.is_none_or(|b| b.len() == w.rows()), "bias");
    let have = x.have();
    let ready = match (w.format().is_quantised(), job.precision) {
        (false, _) => have.f32,
        (true, Precision::Q8) => have.q8,
        (true, Precision::Q16) => have.q16,
    };
    assert!(ready || x.rows() == 0, "activations lack the form that {} needs", w.format().name);
}
