//! `pannier evaluate`: what a model can still do, as a number per task.

use clap::{Args, ValueEnum};
use pannier_forge::judge::{EvaluateOptions, Task, TaskScore, evaluate};
use serde::Serialize;

use crate::args::RunArgs;
use crate::engine;
use crate::error::Result;
use crate::output::{self, Output};

#[derive(Args)]
#[command(after_help = "\
Examples:
  pannier evaluate -m smollm2
  pannier evaluate -m model-q3.gguf --questions 100 --task arithmetic --task recall --json

Each task shows three solved examples and asks for one more; answers are greedy and count only if they are exactly right.
arithmetic: sums below 100. copying: six words. json: four facts as an object that parses and says the same. recall: one value out
of a list of eight. Compare a model with itself before and after quantising, with the same seed. Intervals are 95%.
JSON: tasks [{task, correct, total, score, low, high, wrong [[question, answer], …]}], score (mean over the tasks).")]
pub struct EvaluateArgs {
    #[command(flatten)]
    run: RunArgs,

    /// Only this task; may be given several times.
    #[arg(long, value_name = "TASK")]
    task: Vec<TaskName>,

    /// Questions per task.
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    questions: u32,

    /// Decides the questions.
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum TaskName {
    Arithmetic,
    Copying,
    Json,
    Recall,
}

impl TaskName {
    fn task(self) -> Task {
        match self {
            TaskName::Arithmetic => Task::Arithmetic,
            TaskName::Copying => Task::Copying,
            TaskName::Json => Task::Json,
            TaskName::Recall => Task::Recall,
        }
    }
}

/// Context, where `--ctx` says nothing: above the longest prompt of any vocabulary.
const CONTEXT: u32 = 2048;

#[derive(Serialize)]
struct Report {
    tasks: Vec<Score>,
    score: f64,
}

#[derive(Serialize)]
struct Score {
    task: &'static str,
    correct: usize,
    total: usize,
    score: f64,
    low: f64,
    high: f64,
    wrong: Vec<(String, String)>,
}

pub fn run(args: &EvaluateArgs, out: &mut Output) -> Result<()> {
    let mut options =
        EvaluateOptions { questions: args.questions as usize, seed: args.seed, ..EvaluateOptions::default() };
    if !args.task.is_empty() {
        options.tasks.retain(|task| args.task.iter().any(|name| name.task() == *task));
    }
    let mut run = args.run.clone();
    run.ctx.get_or_insert(CONTEXT);
    let loaded = engine::load(&run)?;
    let tokenizer = loaded.tokenizer()?;
    let bar = output::count_bar(0, "questions");
    let scores = loaded.with_forward(|forward, cancel| {
        Ok(evaluate(forward, tokenizer, &options, cancel, &mut |done, total| {
            bar.set_length(total as u64);
            bar.set_position(done as u64);
        })?)
    })?;
    bar.finish_and_clear();
    let mean = scores.iter().map(|score| score.share.value).sum::<f64>() / scores.len().max(1) as f64;
    for TaskScore { task, correct, total, share, .. } in &scores {
        let (low, high) = (100.0 * share.low, 100.0 * share.high);
        let share = 100.0 * share.value;
        out.line(&format!(
            "{:<11} {correct:>4}/{total:<4} {share:>5.1}%  95%: {low:.1}% to {high:.1}%",
            task.name()
        ))?;
    }
    let tasks = scores
        .into_iter()
        .map(|TaskScore { task, correct, total, share, wrong }| Score {
            task: task.name(),
            correct,
            total,
            score: share.value,
            low: share.low,
            high: share.high,
            wrong,
        })
        .collect();
    out.object(&Report { tasks, score: mean })
}
