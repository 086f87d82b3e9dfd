//! Small tasks with one right answer each, generated from a seed.
//!
//! A model that lost something by quantising loses it somewhere: sums fail before words do, and looking something up in a list
//! fails before copying does. Every task shows three solved examples and asks for the fourth as a plain continuation, so that models
//! with and without a chat template can be compared. Answers are greedy, so a score changes only when the model does.

use super::generate::Answerer;
use super::interval::{Interval, share};
use crate::Result;
use pannier::CancelFlag;
use pannier::model::Forward;
use pannier_tokenizer::Tokenizer;
use serde_json::{Value, json};

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Task {
    /// Sums and differences of numbers below 50.
    Arithmetic,
    /// Six words, again in the same order.
    Copying,
    /// Facts as a JSON object: right if it parses and says the same.
    Json,
    /// One value out of a list of eight names with values.
    Recall,
}

/// How much is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EvaluateOptions {
    /// Which tasks.
    pub tasks: Vec<Task>,
    /// Questions per task.
    pub questions: usize,
    /// Decides the questions.
    pub seed: u64,
}

impl Default for EvaluateOptions {
    fn default() -> Self {
        EvaluateOptions { tasks: Task::ALL.to_vec(), questions: 40, seed: 1 }
    }
}

/// How a model did at one task.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskScore {
    /// The task.
    pub task: Task,
    /// Right answers.
    pub correct: usize,
    /// Questions.
    pub total: usize,
    /// Share of right answers.
    pub share: Interval,
    /// Questions that were answered wrongly, with the answers: a few, to see how it fails.
    pub wrong: Vec<(String, String)>,
}

/// Wrong answers that are kept.
const KEPT: usize = 5;
/// Solved examples in front of a question.
const SHOTS: usize = 3;

const WORDS: [&str; 32] = [
    "river", "stone", "green", "table", "cloud", "seven", "music", "horse", "paper", "light", "winter",
    "bread", "silver", "garden", "window", "yellow", "engine", "forest", "bottle", "candle", "market",
    "planet", "button", "ladder", "summer", "pencil", "island", "copper", "basket", "lemon", "tiger",
    "anchor",
];
const NAMES: [&str; 16] = [
    "Anna", "Boris", "Clara", "David", "Emma", "Felix", "Grace", "Henry", "Irene", "Jacob", "Karen", "Louis",
    "Maria", "Nina", "Oscar", "Paula",
];

impl Task {
    /// All of them.
    pub const ALL: [Task; 4] = [Task::Arithmetic, Task::Copying, Task::Json, Task::Recall];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Task::Arithmetic => "arithmetic",
            Task::Copying => "copying",
            Task::Json => "json",
            Task::Recall => "recall",
        }
    }

    fn question(self, draw: &mut Draw) -> Question {
        match self {
            Task::Arithmetic => {
                let (a, b) = (draw.below(50), draw.below(50));
                let (a, b) = (a.max(b), a.min(b));
                if draw.below(2) == 0 {
                    Question::new(format!("{a} + {b} ="), (a + b).to_string())
                } else {
                    Question::new(format!("{a} - {b} ="), (a - b).to_string())
                }
            }
            Task::Copying => {
                let words = draw.some(&WORDS, 6).join(" ");
                Question::new(format!("Input: {words}\nOutput:"), words)
            }
            Task::Json => {
                let (name, age) = (draw.some(&NAMES, 1).concat(), 18 + draw.below(70));
                let (thing, many) = (draw.some(&WORDS, 1).concat(), draw.below(2) == 0);
                let facts = format!("name {name}, age {age}, item {thing}, member {many}");
                let object = json!({"name": name, "age": age, "item": thing, "member": many});
                Question::new(format!("Facts: {facts}\nJSON:"), object.to_string())
            }
            Task::Recall => {
                let names = draw.some(&NAMES, 8);
                let list: Vec<(&str, u64)> =
                    names.iter().map(|name| (*name, 100 + draw.below(900))).collect();
                let asked = list.get(draw.below(8) as usize).copied().unwrap_or(("", 0));
                let lines: Vec<String> =
                    list.iter().map(|(name, value)| format!("{name}: {value}")).collect();
                let text = format!("{}\nWhat is the number of {}?", lines.join("\n"), asked.0);
                Question::new(text, asked.1.to_string())
            }
        }
    }

    fn is_right(self, answer: &str, expected: &str) -> bool {
        let answer = answer.trim();
        match self {
            Task::Json => {
                let parse = |text: &str| serde_json::from_str::<Value>(text).ok();
                parse(answer).is_some_and(|answer| parse(expected) == Some(answer))
            }
            _ => answer == expected,
        }
    }
}

struct Question {
    text: String,
    answer: String,
}

impl Question {
    fn new(text: String, answer: String) -> Question {
        Question { text, answer }
    }
}

/// Draws that are the same everywhere: splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators").
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// 0 to `n - 1`; the tiny bias towards small ones does not matter here.
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    /// `n` different ones.
    fn some<'w>(&mut self, from: &[&'w str], n: usize) -> Vec<&'w str> {
        let mut rest = from.to_vec();
        (0..n.min(from.len())).map(|_| rest.swap_remove(self.below(rest.len() as u64) as usize)).collect()
    }
}

/// Solved examples and a question behind them.
fn prompts(task: Task, options: &EvaluateOptions) -> Vec<(String, Question)> {
    // Each task has draws of its own: choosing fewer tasks changes none of the others.
    let mut draw = Draw(options.seed ^ (task as u64 + 1).wrapping_mul(0x1000_0000_01b3));
    let examples: String = (0..SHOTS)
        .map(|_| task.question(&mut draw))
        .map(|example| format!("{} {}\n\n", example.text, example.answer))
        .collect();
    (0..options.questions)
        .map(|_| {
            let question = task.question(&mut draw);
            (format!("{examples}{}", question.text), question)
        })
        .collect()
}

/// Asks the model. `progress` gets the questions done and their number.
///
/// # Errors
/// A context too short for a prompt, [`crate::Error::Cancelled`], and what a forward pass may bring.
pub fn evaluate<F: Forward>(
    forward: &mut F,
    tokenizer: &Tokenizer,
    options: &EvaluateOptions,
    cancel: &CancelFlag,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Vec<TaskScore>> {
    let total = options.tasks.len() * options.questions;
    let mut done = 0;
    let mut answerer = Answerer::new(forward, tokenizer)?;
    let mut scores = Vec::new();
    for &task in &options.tasks {
        let (mut correct, mut wrong) = (0, Vec::new());
        for (prompt, question) in prompts(task, options) {
            // Twice as many tokens as the right answer has bytes would be a wrong one anyway.
            let most = 2 * question.answer.len() + 8;
            let answer = answerer.answer(&prompt, "\n", most, cancel)?;
            if task.is_right(&answer, &question.answer) {
                correct += 1;
            } else if wrong.len() < KEPT {
                wrong.push((question.text, answer.trim().to_owned()));
            }
            done += 1;
            progress(done, total);
        }
        let total = options.questions;
        scores.push(TaskScore { task, correct, total, share: share(correct, total), wrong });
    }
    Ok(scores)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_follow_from_the_seed() {
        let ask = |seed, questions| {
            let options = EvaluateOptions { seed, questions, ..EvaluateOptions::default() };
            Task::ALL.map(|task| prompts(task, &options).into_iter().map(|(p, q)| p + " " + &q.answer))
        };
        let texts = |seed, questions| ask(seed, questions).map(Iterator::collect::<Vec<_>>);
        assert_eq!(texts(1, 5), texts(1, 5));
        assert_ne!(texts(1, 5), texts(2, 5));
        // More questions keep the first ones.
        for (few, many) in texts(3, 4).iter().zip(texts(3, 9)) {
            assert_eq!(few[..], many[..4]);
        }
    }

    #[test]
    fn the_expected_answer_is_right_and_others_are_not() {
        let mut draw = Draw(5);
        for task in Task::ALL {
            for _ in 0..50 {
                let question = task.question(&mut draw);
                assert!(task.is_right(&format!(" {}", question.answer), &question.answer));
                assert!(!task.is_right("", &question.answer));
                assert!(!task.is_right(&format!("{}0", question.answer), &question.answer));
            }
        }
        let expected = r#"{"a":1,"b":true}"#;
        assert!(Task::Json.is_right(r#" { "b": true, "a": 1 }"#, expected));
        assert!(!Task::Json.is_right(r#"{"b": true, "a": 1"#, expected));
    }

    #[test]
    fn sums_are_right_and_lists_hold_what_is_asked_for() {
        let mut draw = Draw(9);
        for _ in 0..200 {
            let sum = Task::Arithmetic.question(&mut draw);
            let parts: Vec<&str> = sum.text.split(' ').collect();
            let (a, b): (i64, i64) = (parts[0].parse().unwrap_or(-1), parts[2].parse().unwrap_or(-1));
            let expected = if parts[1] == "+" { a + b } else { a - b };
            assert!(a >= b && expected.to_string() == sum.answer, "{} {}", sum.text, sum.answer);
            let recall = Task::Recall.question(&mut draw);
            let name = recall.text.rsplit(' ').next().unwrap_or_default().trim_end_matches('?');
            assert!(recall.text.contains(&format!("{name}: {}\n", recall.answer)), "{}", recall.text);
        }
    }
}
