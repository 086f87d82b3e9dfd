//! Asks a model the generated questions and appends its answers to a file, going on where that ends:
//! `cargo run --release -p pannier-hybrid --example answer -- MODEL.gguf ANSWERS.jsonl [FIRST..END] [SEED] [p-true]`

use std::fs::{File, OpenOptions};
use std::io::BufReader;
use std::ops::ControlFlow;

use pannier::session::{LoadOptions, Model};
use pannier_hybrid::eval::{self, AnswerOptions};

/// How many questions the list has.
const QUESTIONS: usize = 2000;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().collect();
    let (Some(model), Some(path)) = (args.get(1), args.get(2)) else {
        return Err("MODEL.gguf ANSWERS.jsonl [FIRST..END] [SEED] [p-true]".into());
    };
    // The list is always the same; several processes may each take a part of it.
    let (first, end) = args.get(3).and_then(|r| r.split_once("..")).unwrap_or(("0", "2000"));
    let (first, end): (usize, usize) = (first.parse()?, end.parse()?);
    let seed = args.get(4).map_or(Ok(1), |n| n.parse())?;
    let options =
        AnswerOptions { p_true: args.get(5).is_some_and(|a| a == "p-true"), ..AnswerOptions::default() };
    let done = match File::open(path) {
        Ok(file) => eval::read_records(BufReader::new(file))?.len(),
        Err(_) => 0,
    };
    // One thread: several models can be asked at the same time, each at its own pace.
    let load = LoadOptions { context: Some(1024), threads: Some(1), ..LoadOptions::default() };
    let model = Model::load(model, &load, &mut |_| {})?;
    let mut out = OpenOptions::new().append(true).create(true).open(path)?;
    let questions = eval::questions(QUESTIONS, seed);
    let mut failed = None;
    eval::answer_all(&model, questions.get(first + done..end).unwrap_or_default(), &options, |_, record| {
        match eval::write_record(&mut out, &record) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        }
    })?;
    failed.map_or(Ok(()), |e| Err(e.into()))
}
