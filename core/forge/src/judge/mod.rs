//! How good a model still is.
//!
//! * [`perplexity`]: how well it predicts a text, with a confidence interval.
//! * [`compare`]: how far its predictions are from those of another model: Kullback-Leibler divergence, agreement.
//! * [`evaluate`]: what it still can do: small tasks with one right answer, generated from a seed.

mod compare;
mod generate;
mod interval;
mod perplexity;
mod tasks;

pub use compare::{Comparison, compare};
pub use interval::Interval;
pub use perplexity::{Perplexity, TextOptions, perplexity};
pub use tasks::{EvaluateOptions, Task, TaskScore, evaluate};
