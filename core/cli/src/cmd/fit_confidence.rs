//! `pannier fit-confidence`: from answers whose rightness is known to probabilities that mean what they say.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::BufReader;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use clap::Args;
use pannier_hybrid::confidence::{Features, FitReport, Logistic, ModelIdentity, calibration_path};
use pannier_hybrid::eval::{
    self, AnswerOptions, Label, Labelled, Question, Record, answer_all, fit_and_judge, read_labels,
    read_records, score_answers, write_record,
};
use serde::Serialize;

use crate::args::RunArgs;
use crate::engine::{self, Loaded};
use crate::error::{CliError, Result};
use crate::interrupt;
use crate::output::{self, Output};

#[derive(Args)]
#[command(after_help = "\
Examples:
  pannier fit-confidence -m smollm2                         on generated questions: sums, words, recall, programs, facts
  pannier fit-confidence -m model.gguf --file labels.jsonl  on your own, which is better
  pannier fit-confidence -m model.gguf --keep answers.jsonl --questions 1200    goes on where it was interrupted
  pannier fit-confidence -m edge.gguf --cloud-answers cloud.jsonl    with what the cloud's model answered (its own --keep)

A line of --file is {\"prompt\": …, \"expected\": \"42|forty-two\"}, and the model answers; or {\"prompt\": …, \"answer\": …, \"right\": true} with an
answer that this model gave. At least 20 right and 20 wrong answers are needed, some hundreds are good. Half of them are fitted on
and the other half judges; what is stored beside the model (MODEL.confidence.json) is fitted on all.
JSON: path, answers, report {fitted_on, judged_on, accuracy, auroc, ece, entropy_auroc, asked_auroc, asked_ece}.")]
pub struct FitArgs {
    #[command(flatten)]
    run: RunArgs,

    /// Labelled answers, one JSON object a line; without it, generated questions are asked.
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,

    /// How many questions to generate.
    #[arg(long, value_name = "N", default_value_t = 600, conflicts_with = "file",
          value_parser = clap::value_parser!(u32).range(80..=100_000))]
    questions: u32,

    /// Seed of the generated questions.
    #[arg(long, value_name = "S", default_value_t = 1, conflicts_with = "file")]
    seed: u64,

    /// Keep the model's answers in this file, and go on where it ends.
    #[arg(long, value_name = "PATH")]
    keep: Option<PathBuf>,

    /// Answers of the cloud's model to the same generated questions (its `--keep`): then also fits how often the cloud is right, so that
    /// only what it is likelier to get right is handed over.
    #[arg(long, value_name = "PATH", conflicts_with = "file")]
    cloud_answers: Option<PathBuf>,

    /// Do not ask the model about its answers: faster, and P(True) cannot be used later.
    #[arg(long)]
    no_p_true: bool,

    /// Instructions that come before every question of --file; use the app's own.
    #[arg(long, value_name = "TEXT", requires = "file")]
    system: Option<String>,

    /// At most this many tokens of an answer.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 32)]
    max_tokens: usize,

    /// Where to store the result; by default beside the model.
    #[arg(short, long, value_name = "PATH")]
    output: Option<PathBuf>,
}

#[derive(Serialize)]
struct Report {
    path: String,
    answers: usize,
    report: FitReport,
}

pub fn run(args: &FitArgs, out: &mut Output) -> Result<()> {
    let labels = args.file.as_deref().map(labels).transpose()?;
    let loaded = engine::load(&args.run)?;
    let model = ModelIdentity::of(loaded.file()).map_err(|e| CliError::io("look at", loaded.file(), &e))?;
    let mut answers = Vec::new();
    if let Some(labels) = &labels {
        let given = labels.iter().filter(|l| matches!(l.label, Label::Answer { .. })).count();
        if given > 0 {
            let bar = output::count_bar(labels.len() as u64, "reading answers");
            let ask = !args.no_p_true;
            answers = score_answers(&loaded.model, args.system.as_deref(), labels, ask, |done| {
                bar.set_position(done as u64);
            })?;
            bar.finish_and_clear();
        }
    }
    let asked = ask(args, labels.as_deref(), &loaded)?;
    let places: Vec<usize> = asked.iter().map(|(id, ..)| *id).collect();
    answers.extend(asked.into_iter().map(|(_, features, right)| (features, right)));
    let judged = fit_and_judge(&answers, &model).map_err(|e| CliError::failed(e.to_string()))?;
    let mut calibration = judged.calibration;
    let mut cloud = None;
    if let Some(path) = &args.cloud_answers {
        // There are no labelled answers then: all of them are to generated questions.
        let rights: BTreeMap<usize, bool> = kept(path)?.iter().map(|r| (r.id, r.right)).collect();
        let known: Vec<(Features, bool)> = answers
            .iter()
            .zip(&places)
            .filter_map(|((f, _), id)| Some((f.without_p_true(), *rights.get(id)?)))
            .collect();
        let fit = Logistic::fit_tuned(&known).map_err(|e| CliError::failed(e.to_string()))?;
        calibration = calibration.with_cloud(fit);
        cloud = Some(known.len());
    }
    let path = args.output.clone().unwrap_or_else(|| calibration_path(loaded.file()));
    calibration.save(&path).map_err(|e| CliError::failed(e.to_string()))?;
    let r = judged.report;
    out.line(&format!(
        "{} answers, {:.0}% right. On the half that was not fitted on:\n\
         AUROC {:.3}, calibration error {:.3}{}; the entropy rule has AUROC {:.3}.\n\
         Stored in {}",
        answers.len(),
        r.accuracy * 100.0,
        r.auroc,
        r.ece,
        match (r.asked_auroc, r.asked_ece) {
            (Some(auroc), Some(ece)) => format!(" (with P(True): {auroc:.3}, {ece:.3})"),
            _ => String::new(),
        },
        r.entropy_auroc,
        path.display()
    ))?;
    if let Some(cloud) = cloud {
        out.line(&format!("Knows the cloud from {cloud} answers: see --min-gain of `pannier chat`."))?;
    }
    out.object(&Report { path: path.display().to_string(), answers: answers.len(), report: r })
}

fn labels(path: &Path) -> Result<Vec<Labelled>> {
    let file = File::open(path).map_err(|e| CliError::io("open", path, &e))?;
    read_labels(BufReader::new(file)).map_err(|e| CliError::failed(format!("{}: {e}", path.display())))
}

/// Answers that were kept.
fn kept(path: &Path) -> Result<Vec<Record>> {
    let file = File::open(path).map_err(|e| CliError::io("open", path, &e))?;
    read_records(BufReader::new(file)).map_err(|e| CliError::failed(format!("{}: {e}", path.display())))
}

/// Places and features of the questions that the model is to answer, and whether it was right.
fn ask(args: &FitArgs, labels: Option<&[Labelled]>, loaded: &Loaded) -> Result<Vec<(usize, Features, bool)>> {
    let questions: Vec<Question> = match labels {
        Some(labels) => labels.iter().enumerate().filter_map(|(id, l)| l.question(id)).collect(),
        None => eval::questions(args.questions as usize, args.seed),
    };
    if questions.is_empty() {
        return Ok(Vec::new());
    }
    let defaults = AnswerOptions::default();
    let options = AnswerOptions {
        max_tokens: args.max_tokens,
        p_true: !args.no_p_true,
        // Examples and instructions of the generated questions are not those of an app.
        system: if labels.is_some() { args.system.clone().unwrap_or_default() } else { defaults.system },
        examples: if labels.is_some() { Vec::new() } else { defaults.examples },
        stop: if labels.is_some() { Vec::new() } else { defaults.stop },
    };
    let mut records = match &args.keep {
        Some(path) if path.exists() => kept(path)?,
        _ => Vec::new(),
    };
    let left = questions.get(records.len()..).unwrap_or_default();
    if records.iter().zip(&questions).any(|(r, q)| r.id != q.id) {
        return Err(CliError::failed(
            "the kept answers belong to other questions: use another file for --keep",
        ));
    }
    let mut keep = match &args.keep {
        Some(path) => {
            let open = OpenOptions::new().append(true).create(true).open(path);
            Some(open.map_err(|e| CliError::io("open", path, &e))?)
        }
        None => None,
    };
    let bar = output::count_bar(questions.len() as u64, "asking");
    bar.set_position(records.len() as u64);
    let stopped = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let flag = std::sync::Arc::clone(&stopped);
    let _guard = interrupt::on_interrupt(move || flag.store(true, std::sync::atomic::Ordering::Relaxed));
    let mut failed = None;
    answer_all(&loaded.model, left, &options, |_, record: Record| {
        if let Some(file) = &mut keep
            && let Err(error) = write_record(file, &record)
        {
            failed = Some(CliError::failed(error.to_string()));
            return ControlFlow::Break(());
        }
        records.push(record);
        bar.inc(1);
        if stopped.load(std::sync::atomic::Ordering::Relaxed) {
            failed = Some(CliError::Interrupted);
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    })?;
    bar.finish_and_clear();
    if let Some(error) = failed {
        return Err(error);
    }
    let features = |(r, q): (&Record, &Question)| Some((q.id, r.observed(&q.prompt).features()?, r.right));
    Ok(records.iter().zip(&questions).filter_map(features).collect())
}
