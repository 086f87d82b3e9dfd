//! Judges recorded answers and writes the calibrations that come with the library:
//! `cargo run --release -p pannier-hybrid --example confidence_report -- ANSWERS_DIR MODELS_DIR [CALIBRATIONS_DIR] > REPORT.md`
//!
//! `ANSWERS_DIR` has a file `NAME.jsonl` for each model `NAME.gguf` of `MODELS_DIR`, made by the example `answer`. Answers with an even place in the
//! list are fitted on, the others judge. Nothing here is chosen after looking at the second half.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use pannier_hybrid::confidence::{
    Calibration, Features, HandOffPoint, Logistic, ModelIdentity, PROMPT_FEATURES, auroc,
    equal_mass_calibration_error, expected_calibration_error, hand_off_curve, share_needed,
};
use pannier_hybrid::eval::{self, Question, Record, Task, fit_and_judge};

type Failure = Box<dyn std::error::Error>;

/// The seed and the length of the list that `answer` asks.
const SEED: u64 = 1;
const QUESTIONS: usize = 2000;
const BINS: usize = 10;
const EDGE: &str = "qwen2.5-coder-0.5b-instruct-q4_k_m";
const CLOUD: &str = "qwen2.5-coder-1.5b-instruct-q4_k_m";
/// Parts of the way from the edge's accuracy to the cloud's at which hand-offs are compared.
const GOALS: [f64; 4] = [0.25, 0.5, 0.75, 0.9];

struct Answers {
    name: String,
    vocab: usize,
    model: ModelIdentity,
    records: Vec<Record>,
    features: Vec<(Features, bool)>,
}

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().collect();
    let (Some(answers), Some(models)) = (args.get(1), args.get(2)) else {
        return Err("ANSWERS_DIR MODELS_DIR [CALIBRATIONS_DIR]".into());
    };
    let questions = eval::questions(QUESTIONS, SEED);
    let mut names: Vec<String> = std::fs::read_dir(answers)?
        .flatten()
        .filter_map(|e| e.file_name().to_string_lossy().strip_suffix(".jsonl").map(str::to_owned))
        .collect();
    names.sort();
    let all = names
        .iter()
        .map(|name| load(name, Path::new(answers), Path::new(models), &questions))
        .collect::<Result<Vec<_>, _>>()?;
    let mut halves = Vec::new();
    println!("## Each model\n");
    println!(
        "| model | answers | right | entropy AUROC | AUROC | ECE | with P(True): AUROC | ECE | ECE, equal mass |"
    );
    println!("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    for a in &all {
        let judged = fit_and_judge(&a.features, &a.model)?;
        let r = judged.report;
        let scored = scores(&judged.half, &a.features);
        let number = |x: Option<f64>| x.map_or("-".into(), |x| format!("{x:.3}"));
        println!(
            "| {} | {} | {:.1}% | {:.3} | {:.3} | {:.3} | {} | {} | {:.3} |",
            a.name,
            a.features.len(),
            r.accuracy * 100.0,
            r.entropy_auroc,
            r.auroc,
            r.ece,
            number(r.asked_auroc),
            number(r.asked_ece),
            equal_mass_calibration_error(&scored, BINS)
        );
        if let Some(dir) = args.get(3) {
            judged.calibration.save(&Path::new(dir).join(calibration_name(&a.name)))?;
        }
        halves.push(judged.half);
    }
    println!("\nThe entropy rule as it is, 1 - entropy / ln(vocabulary), taken for a probability:\n");
    for a in &all {
        let rule: Vec<(f64, bool)> =
            a.features.iter().skip(1).step_by(2).map(|(f, y)| (f.entropy_rule(a.vocab), *y)).collect();
        println!("* {}: ECE {:.3}", a.name, expected_calibration_error(&rule, BINS));
    }
    println!("\n## Without a look at the question\n\nThe features of the generation alone, and P(True).\n");
    for a in &all {
        let blind: Vec<(Features, bool)> =
            a.features.iter().map(|(f, y)| (f.without(&PROMPT_FEATURES), *y)).collect();
        let r = fit_and_judge(&blind, &a.model)?.report;
        let (asked, ece) = (r.asked_auroc.unwrap_or(r.auroc), r.asked_ece.unwrap_or(r.ece));
        println!(
            "* {}: AUROC {asked:.3}, ECE {ece:.3} (without P(True): {:.3}, {:.3})",
            a.name, r.auroc, r.ece
        );
    }
    by_task(&all, &halves, &questions);
    for a in &all {
        reliability(a, &halves, &all);
    }
    match (find(&all, EDGE), find(&all, CLOUD)) {
        (Some(edge), Some(cloud)) => {
            let half = halves.get(edge).ok_or("no calibration of the edge")?;
            hand_off(&all[edge], half, &all[cloud])?;
        }
        _ => println!("\nThe answers of {EDGE} and {CLOUD} are not both there: no curve."),
    }
    Ok(())
}

fn find(all: &[Answers], name: &str) -> Option<usize> {
    all.iter().position(|a| a.name == name)
}

/// `qwen2.5-coder-0.5b-instruct-q4_k_m` -> `qwen2.5-coder-0.5b-instruct.q4_k_m.json`.
fn calibration_name(model: &str) -> String {
    let mut name = model.to_lowercase();
    if let Some(at) = name.rfind("-q").filter(|_| !name.contains(".q")) {
        name.replace_range(at..at + 1, ".");
    }
    name + ".json"
}

fn load(name: &str, answers: &Path, models: &Path, questions: &[Question]) -> Result<Answers, Failure> {
    let file = File::open(answers.join(format!("{name}.jsonl")))?;
    let records = eval::read_records(BufReader::new(file))?;
    let path = models.join(format!("{name}.gguf"));
    let gguf = pannier_gguf::Gguf::open(&path)?;
    let vocab = pannier_tokenizer::Tokenizer::from_metadata(gguf.metadata())?.vocab_size();
    let mut features = Vec::new();
    for (at, (record, question)) in records.iter().zip(questions).enumerate() {
        if record.id != at || record.id != question.id {
            return Err(format!("{name}: answer {at} is to question {}", record.id).into());
        }
        // Judged anew: the rules may have changed since it was asked.
        let right = question.is_right(&record.answer);
        let seen = record.observed(&question.prompt).features().ok_or("an answer without a token")?;
        features.push((seen, right));
    }
    Ok(Answers { name: name.to_owned(), vocab, model: ModelIdentity::of(&path)?, records, features })
}

/// The judging half, scored.
fn scores(half: &Calibration, features: &[(Features, bool)]) -> Vec<(f64, bool)> {
    features.iter().skip(1).step_by(2).map(|(f, y)| (half.probability(f), *y)).collect()
}

#[allow(clippy::cast_precision_loss)] // counts are small
fn by_task(all: &[Answers], halves: &[Calibration], questions: &[Question]) {
    println!("\n## Tasks\n");
    println!(
        "Share of right answers and AUROC within a task, on the judging half. In brackets: of a fit that saw no answer of the task."
    );
    println!("\n| model | {} |", Task::ALL.map(Task::name).join(" | "));
    println!("| --- |{}", " --- |".repeat(Task::ALL.len()));
    for (a, half) in all.iter().zip(halves) {
        let cells = Task::ALL.map(|task| {
            let of = |(i, _): &(usize, &(Features, bool))| questions.get(*i).is_some_and(|q| q.task == task);
            let pick = |half: &Calibration| -> Vec<(f64, bool)> {
                let odd = a.features.iter().enumerate().skip(1).step_by(2).filter(of);
                odd.map(|(_, (f, y))| (half.probability(f), *y)).collect()
            };
            let scored = pick(half);
            let right = scored.iter().filter(|(_, y)| *y).count() as f64 / scored.len().max(1) as f64;
            // The fitting half without the task, twice: once to fit on, once in the place of what judges.
            let others: Vec<(Features, bool)> = a
                .features
                .iter()
                .enumerate()
                .step_by(2)
                .filter(|x| !of(x))
                .flat_map(|(_, x)| [x.clone(), x.clone()])
                .collect();
            let blind = fit_and_judge(&others, &a.model).ok().and_then(|j| auroc(&pick(&j.half)));
            let number = |x: Option<f64>| x.map_or("-".into(), |x| format!("{x:.2}"));
            format!("{:.0}%, {} ({})", right * 100.0, number(auroc(&scored)), number(blind))
        });
        println!("| {} | {} |", a.name, cells.join(" | "));
    }
}

#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn reliability(a: &Answers, halves: &[Calibration], all: &[Answers]) {
    let Some(half) = find(all, &a.name).and_then(|at| halves.get(at)) else { return };
    println!(
        "\n## Reliability of {}\n\n| score | answers | mean score | right |\n| --- | ---: | ---: | ---: |",
        a.name
    );
    let scored = scores(half, &a.features);
    for bin in 0..BINS {
        let within: Vec<&(f64, bool)> =
            scored.iter().filter(|(p, _)| ((p * BINS as f64) as usize).min(BINS - 1) == bin).collect();
        let n = within.len().max(1) as f64;
        println!(
            "| {:.1} to {:.1} | {} | {:.2} | {:.2} |",
            bin as f64 / BINS as f64,
            (bin + 1) as f64 / BINS as f64,
            within.len(),
            within.iter().map(|(p, _)| p).sum::<f64>() / n,
            within.iter().filter(|(_, y)| *y).count() as f64 / n
        );
    }
}

fn hand_off(edge: &Answers, half: &Calibration, cloud: &Answers) -> Result<(), Failure> {
    let both = edge.records.len().min(cloud.records.len());
    // Whether the cloud would be right, from what the edge knows; fitted on the fitting half, as all else.
    let cloud_right: Vec<(Features, bool)> = edge
        .features
        .iter()
        .zip(&cloud.features)
        .step_by(2)
        .map(|((f, _), (_, right))| (f.clone(), *right))
        .collect();
    let cloud_right = Logistic::fit_tuned(&cloud_right)?;
    let curve = |score: &dyn Fn(&Features) -> f64| -> Vec<HandOffPoint> {
        let odd = (1..both).step_by(2);
        let questions: Vec<(f64, bool, bool)> = odd
            .filter_map(|i| {
                let (f, right) = edge.features.get(i)?;
                Some((score(f), *right, cloud.features.get(i)?.1))
            })
            .collect();
        hand_off_curve(&questions)
    };
    let ours = curve(&|f| half.probability(f));
    let plain = curve(&|f| half.probability(&f.without_p_true()));
    let entropy = curve(&|f| f.entropy_rule(edge.vocab));
    let gain = curve(&|f| half.probability(f) - cloud_right.probability(f));
    let (Some(first), Some(last)) = (ours.first(), ours.last()) else { return Ok(()) };
    println!("\n## Accuracy over the share handed over\n");
    println!(
        "Edge {}, cloud {}, {} questions of the judging half: {:.1}% right at the edge, {:.1}% in the cloud.\n",
        edge.name,
        cloud.name,
        ours.len() - 1,
        first.accuracy * 100.0,
        last.accuracy * 100.0
    );
    println!("| handed over | by confidence | without P(True) | by expected gain | by entropy |");
    println!("| ---: | ---: | ---: | ---: | ---: |");
    for tenth in 0..=10 {
        let at = |c: &[HandOffPoint]| c.get(tenth * (c.len() - 1) / 10).map_or(0.0, |p| p.accuracy * 100.0);
        let cells = [&ours, &plain, &gain, &entropy].map(|c| format!("{:.1}%", at(c)));
        println!("| {}% | {} |", tenth * 10, cells.join(" | "));
    }
    println!("\nHand-offs needed for a part of the way from the edge's accuracy to the cloud's:\n");
    println!(
        "| part of the way | accuracy | by confidence | by expected gain | by entropy | fewer, by confidence | by gain |"
    );
    println!("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    for goal in GOALS {
        let accuracy = first.accuracy + goal * (last.accuracy - first.accuracy);
        let need = |c: &[HandOffPoint]| share_needed(c, accuracy);
        if let (Some(ours), Some(gain), Some(entropy)) = (need(&ours), need(&gain), need(&entropy)) {
            let percent = |x: f64| format!("{:.1}%", x * 100.0);
            let fewer = |x: f64| format!("{:.0}%", (1.0 - x / entropy) * 100.0);
            println!(
                "| {:.0}% | {} | {} | {} | {} | {} | {} |",
                goal * 100.0,
                percent(accuracy),
                percent(ours),
                percent(gain),
                percent(entropy),
                fewer(ours),
                fewer(gain)
            );
        }
    }
    Ok(())
}
