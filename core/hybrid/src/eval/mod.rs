//! Questions with checkable answers of graded difficulty, and how models do on them.
//!
//! [`questions`] generates them from a seed: arithmetic, sequences, strings, key-value recall, output of programs, and facts, in five
//! levels each. [`Question::is_right`] judges an answer, [`answer_all`] asks a model, [`Record`]s keep what it said with the scores
//! of its tokens, so that features can be tried without asking again. [`fit_and_judge`] fits a calibration on half of them and judges it
//! on the other half. [`Labelled`] are an app's own questions or answers.

mod check;
mod draw;
mod facts;
mod judge;
mod label;
mod programs;
mod questions;
mod run;

pub use draw::Draw;
pub use judge::{Judged, fit_and_judge};
pub use label::{Label, LabelError, Labelled, read_labels, score_answers};
pub use questions::{Question, Task, questions};
pub use run::{AnswerOptions, Record, RecordError, answer_all, read_records, write_record};
