//! What it saves to have read a prompt before: `cargo run --release -p pannier --example prefix -- MODEL.gguf [TOKENS] [ROUNDS]`
//!
//! ```text
//! cold      a process reads a system prompt of TOKENS tokens and a first question                    saves what it has read
//! second    in the same process another session asks a second question behind the same prompt
//! restart   a new process takes the prompt from the file and asks the second question                the file's reading counts
//! cold too  a new process asks the second question without the file                                  its bits are the judge
//! ```
//!
//! Times are from the request to the first token, the model being loaded. The bits of all log-probabilities must be equal.

#![allow(clippy::unwrap_used, reason = "a program for measurements")]

use pannier::session::{Completion, GenerationOptions, Model};
use pannier::{LoadOptions, Session};
use std::fmt::Write;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

const QUESTIONS: [&str; 2] =
    ["\nQuestion: what is a page?\nAnswer:", "\nQuestion: who keeps the budget?\nAnswer:"];

/// A question's answer, and the milliseconds until its first token came.
fn ask(session: &Session, prompt: &[u32], question: &str) -> (f64, Completion) {
    let mut ids = prompt.to_vec();
    ids.extend(session.model().tokenizer().unwrap().encode_rendered(question));
    let start = Instant::now();
    let mut first = None;
    let done = session
        .generate(ids.as_slice(), GenerationOptions::greedy(16), &mut |event| {
            if first.is_none() && matches!(event, pannier::GenerationEvent::Text { .. }) {
                first = Some(start.elapsed().as_secs_f64() * 1e3);
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    (first.unwrap(), done)
}

fn bits(done: &Completion) -> String {
    done.tokens.iter().fold(String::new(), |mut out, t| {
        write!(out, "{:x}:{:x} ", t.id, t.logprob.to_bits()).unwrap();
        out
    })
}

/// One process' part: prints times, and the bits of the second answer, one a line.
fn part(what: &str, model: &Path, tokens: usize, file: &Path) {
    let load = LoadOptions { context: Some(tokens + 256), ..LoadOptions::default() };
    let model = Model::load(model, &load, &mut |_| {}).unwrap();
    let text = include_str!("../../../ARCHITECTURE.md");
    let mut prompt = model.tokenizer().unwrap().encode_rendered(text);
    assert!(prompt.len() >= tokens, "the text has only {} tokens", prompt.len());
    prompt.truncate(tokens);
    // Weights are touched, workers are up; the text has nothing in common with the prompt.
    model
        .session()
        .generate([1u32, 2, 3].as_slice(), GenerationOptions::greedy(4), &mut |_| ControlFlow::Continue(()))
        .unwrap();
    match what {
        "cold" => {
            let session = model.session();
            let (cold, _) = ask(&session, &prompt, QUESTIONS[0]);
            session.save(file).unwrap();
            let (second, done) = ask(&model.session(), &prompt, QUESTIONS[1]);
            println!("{cold}\n{second}\n{}", bits(&done));
        }
        "restart" => {
            let start = Instant::now();
            let known = model.restore_prefix(file).unwrap();
            let reading = start.elapsed().as_secs_f64() * 1e3;
            let (first, done) = ask(&model.session(), &prompt, QUESTIONS[1]);
            eprintln!("{known} of {tokens} tokens from the file, read in {reading:.1} ms");
            println!("{}\n{}", reading + first, bits(&done));
        }
        _ => {
            let (cold, done) = ask(&model.session(), &prompt, QUESTIONS[1]);
            println!("{cold}\n{}", bits(&done));
        }
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: usize| args.get(at).map_or(default, |n| n.parse().unwrap());
    let Some(model) = args.first() else {
        eprintln!("MODEL.gguf [TOKENS] [ROUNDS]");
        std::process::exit(2);
    };
    let tokens = number(1, 2000);
    if let (Some(what), Some(file)) = (args.get(3), args.get(4)) {
        return part(what, Path::new(model), tokens, Path::new(file));
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prefix");
    let run = |what: &str| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg(model).args([&tokens.to_string(), "1", what]).arg(&file);
        let output = command.stderr(std::process::Stdio::inherit()).output().unwrap();
        assert!(output.status.success(), "{what}");
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect::<Vec<_>>()
    };
    println!("cold, ms  second, ms       share  after a restart, ms   share");
    for _ in 0..number(2, 3) {
        let (first, restart, judge) = (run("cold"), run("restart"), run("cold too"));
        assert_eq!(first[2], judge[1], "other bits in the same process");
        assert_eq!(restart[1], judge[1], "other bits after a restart");
        let [cold, second, restart]: [f64; 3] =
            [&first[0], &first[1], &restart[0]].map(|n| n.parse().unwrap());
        println!(
            "{cold:8.0}  {second:10.1}  {:9.1}%  {restart:19.1}  {:5.1}%",
            100.0 * second / cold,
            100.0 * restart / cold
        );
    }
}
