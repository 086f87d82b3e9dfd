//! The generator.

use super::check;
use super::draw::Draw;
use super::facts::{CAPITALS, FACTS, SYMBOLS, WORDS};
use super::programs;

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Task {
    /// Sums, differences, products of whole numbers.
    Arithmetic,
    /// The next number of a sequence.
    Sequence,
    /// Letters and lengths of words, reversal, order.
    Strings,
    /// Finding a value in a list of pairs.
    Recall,
    /// The output of a short program.
    Code,
    /// Facts.
    Facts,
}

impl Task {
    /// All of them.
    pub const ALL: [Task; 6] =
        [Task::Arithmetic, Task::Sequence, Task::Strings, Task::Recall, Task::Code, Task::Facts];

    /// The name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Task::Arithmetic => "arithmetic",
            Task::Sequence => "sequence",
            Task::Strings => "strings",
            Task::Recall => "recall",
            Task::Code => "code",
            Task::Facts => "facts",
        }
    }
}

/// A question with a known answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// Its place in the list.
    pub id: usize,
    /// What it asks for.
    pub task: Task,
    /// From 1, easy, to 5.
    pub level: u8,
    /// The text for the model.
    pub prompt: String,
    /// What is right; alternatives are separated by `|`.
    pub expected: String,
}

impl Question {
    /// Whether this answer is right: its last number for tasks with numbers, else the expected words in it.
    #[must_use]
    pub fn is_right(&self, answer: &str) -> bool {
        self.expected.split('|').any(|expected| match expected.parse::<i64>() {
            Ok(number) => check::last_number(answer) == Some(number),
            Err(_) => check::has_words(answer, expected),
        })
    }
}

/// `n` different questions; the tasks and levels take turns. The same seed gives the same list.
#[must_use]
pub fn questions(n: usize, seed: u64) -> Vec<Question> {
    let mut draw = Draw::new(seed);
    let mut seen = std::collections::HashSet::new();
    let mut out: Vec<Question> = Vec::with_capacity(n.min(1 << 20));
    let mut turn = 0usize;
    // Facts run out; the other tasks do not. A turn that only repeats is given up.
    while out.len() < n && turn < n.saturating_mul(8).saturating_add(64) {
        let task = Task::ALL.get(turn % Task::ALL.len()).copied().unwrap_or(Task::Arithmetic);
        let level = u8::try_from(turn / Task::ALL.len() % 5).unwrap_or(0) + 1;
        turn += 1;
        for _ in 0..12 {
            let (prompt, expected) = one(&mut draw, task, level);
            if seen.insert(prompt.clone()) {
                out.push(Question { id: out.len(), task, level, prompt, expected });
                break;
            }
        }
    }
    // Halves, and any prefix, must not differ in kind.
    let mut order = Draw::new(seed ^ 0x5eed);
    order.shuffle(&mut out);
    for (id, question) in out.iter_mut().enumerate() {
        question.id = id;
    }
    out
}

fn one(draw: &mut Draw, task: Task, level: u8) -> (String, String) {
    match task {
        Task::Arithmetic => arithmetic(draw, level),
        Task::Sequence => sequence(draw, level),
        Task::Strings => strings(draw, level),
        Task::Recall => recall(draw, level),
        Task::Code => {
            let (program, output) = programs::program(draw, level);
            (format!("What does this Python program print?\n{program}"), output)
        }
        Task::Facts => fact(draw, level),
    }
}

fn arithmetic(draw: &mut Draw, level: u8) -> (String, String) {
    // Digits of the operands of sums; products are harder, so they have fewer.
    let (sum, product) = match level {
        1 => ((1, 9), (2, 5)),
        2 => ((10, 50), (3, 9)),
        3 => ((50, 500), (6, 15)),
        4 => ((500, 9_999), (12, 60)),
        _ => ((10_000, 999_999), (60, 999)),
    };
    match draw.below(3) {
        0 => {
            let (a, b) = (draw.range(sum.0, sum.1), draw.range(sum.0, sum.1));
            (format!("What is {a} + {b}?"), (a + b).to_string())
        }
        1 => {
            let (a, b) = (draw.range(sum.0, sum.1), draw.range(sum.0, sum.1));
            let (a, b) = (a.max(b), a.min(b));
            (format!("What is {a} - {b}?"), (a - b).to_string())
        }
        _ => {
            let (a, b) = (draw.range(product.0, product.1), draw.range(product.0, product.1));
            (format!("What is {a} * {b}?"), (a * b).to_string())
        }
    }
}

fn sequence(draw: &mut Draw, level: u8) -> (String, String) {
    let (a, d) = (draw.range(1, 9), draw.range(2, 9));
    let terms: Vec<u64> = match level {
        1 => (0..6).map(|i| a + i).collect(),
        2 => (0..6).map(|i| a + i * d.min(5)).collect(),
        3 => (0..6).map(|i| a * 10 + i * (d + 4)).collect(),
        4 => (0..6).map(|i| a * 2u64.saturating_pow(i)).collect(),
        _ => (0..6).map(|i| a + i * i * d.min(5)).collect(),
    };
    let list: Vec<String> = terms.iter().map(u64::to_string).collect();
    let (shown, next) = list.split_at(list.len() - 1);
    let next = next.first().cloned().unwrap_or_default();
    (format!("What is the next number: {}, ?", shown.join(", ")), next)
}

fn strings(draw: &mut Draw, level: u8) -> (String, String) {
    let range = match level {
        1 => 0..8,
        2 => 4..16,
        3 => 10..24,
        4 => 16..32,
        _ => 24..WORDS.len(),
    };
    let pool = WORDS.get(range).unwrap_or(WORDS);
    let word = draw.pick(pool).unwrap_or("cat");
    let letters: Vec<char> = word.chars().collect();
    let n = letters.len();
    match draw.below(6) {
        0 => (format!("What is the first letter of \"{word}\"?"), letter(&letters, 0)),
        1 => (format!("What is the last letter of \"{word}\"?"), letter(&letters, n - 1)),
        2 => (format!("How many letters are in \"{word}\"?"), n.to_string()),
        3 => (format!("Write \"{word}\" backwards."), letters.iter().rev().collect()),
        4 => {
            let at = draw.below(n);
            (format!("What is letter number {} of \"{word}\"?", at + 1), letter(&letters, at))
        }
        _ => {
            let other = draw.pick(pool).unwrap_or("dog");
            (format!("Join \"{word}\" and \"{other}\" into one word."), format!("{word}{other}"))
        }
    }
}

fn letter(of: &[char], at: usize) -> String {
    of.get(at).map(char::to_string).unwrap_or_default()
}

fn recall(draw: &mut Draw, level: u8) -> (String, String) {
    let pairs = match level {
        1 => 2,
        2 => 4,
        3 => 7,
        4 => 11,
        _ => 16,
    };
    let mut keys: Vec<&str> = WORDS.iter().copied().take(24).collect();
    draw.shuffle(&mut keys);
    keys.truncate(pairs);
    let values: Vec<u64> = keys.iter().map(|_| draw.range(10, 99)).collect();
    let list: Vec<String> = keys.iter().zip(&values).map(|(k, v)| format!("{k}={v}")).collect();
    let at = draw.below(pairs);
    let value = values.get(at).copied().unwrap_or(0);
    let key = keys.get(at).copied().unwrap_or_default();
    // The hard half asks backwards, or for the neighbour.
    match (level, draw.below(3)) {
        (3.., 0) if values.iter().filter(|v| **v == value).count() == 1 => {
            (format!("{}. Which key has the value {value}?", list.join(", ")), key.to_owned())
        }
        (4.., 1) => {
            let other = draw.below(pairs);
            let (b, second) =
                (keys.get(other).copied().unwrap_or_default(), values.get(other).copied().unwrap_or(0));
            (format!("{}. What is {key} plus {b}?", list.join(", ")), (value + second).to_string())
        }
        _ => (format!("{}. What is the value of {key}?", list.join(", ")), value.to_string()),
    }
}

fn fact(draw: &mut Draw, level: u8) -> (String, String) {
    let mut of_level: Vec<(String, &str)> = Vec::new();
    of_level.extend(FACTS.iter().filter(|f| f.0 == level).map(|f| (f.1.to_owned(), f.2)));
    let capitals = CAPITALS.iter().filter(|f| f.0 == level);
    of_level.extend(capitals.map(|f| (format!("What is the capital of {}?", f.1), f.2)));
    let symbols = SYMBOLS.iter().filter(|f| f.0 == level);
    of_level.extend(symbols.map(|f| (format!("What is the chemical symbol of {}?", f.1), f.2)));
    let at = draw.below(of_level.len());
    of_level.get(at).map(|(q, a)| (q.clone(), (*a).to_owned())).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_many_different_and_repeatable() {
        let list = questions(1500, 7);
        assert_eq!(list.len(), 1500);
        assert_eq!(list, questions(1500, 7));
        assert_ne!(list[..50], questions(1500, 8)[..50]);
        let prompts: std::collections::HashSet<_> = list.iter().map(|q| &q.prompt).collect();
        assert_eq!(prompts.len(), list.len());
        for task in Task::ALL {
            for level in 1..=5 {
                let n = list.iter().filter(|q| q.task == task && q.level == level).count();
                assert!(n >= 5, "{} {level}: {n}", task.name());
            }
        }
        for q in &list {
            assert!(q.expected.split('|').all(|right| q.is_right(right)), "{q:?}");
        }
    }

    #[test]
    fn answers_are_judged() {
        let q = |expected: &str| Question {
            id: 0,
            task: Task::Facts,
            level: 1,
            prompt: String::new(),
            expected: expected.into(),
        };
        assert!(q("19").is_right("12 + 7 = 19"));
        assert!(!q("19").is_right("19 is not it, 20 is"));
        assert!(q("7|seven").is_right("There are seven days."));
        assert!(q("C").is_right("The symbol is C."));
        assert!(!q("C").is_right("Carbon"));
    }
}
