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
    /// An app's own question; not generated.
    Own,
}

impl Task {
    /// All that are generated.
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
            Task::Own => "own",
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
    /// What a right answer does not name: the other candidates of the prompt.
    pub decoys: Vec<String>,
}

impl Question {
    /// Whether this answer is right. Answers may be sentences that repeat the question: where a number is asked for, the last one
    /// counts; of letters, the last that stands alone; else the expected words must be there, and no decoy.
    #[must_use]
    pub fn is_right(&self, answer: &str) -> bool {
        self.expected.split('|').any(|expected| match expected.parse::<i64>() {
            // "There are 60 minutes in 1 hour": a fact may be followed by another number.
            Ok(number) if self.task != Task::Facts => check::last_number(answer) == Some(number),
            Err(_) if expected.chars().count() == 1 => {
                check::last_letter(answer) == expected.chars().next().map(|c| c.to_ascii_lowercase())
            }
            Err(_) if expected.len() == 2 => check::has_exact_word(answer, expected),
            _ => {
                check::has_words(answer, expected)
                    && !self.decoys.iter().any(|decoy| check::has_words(answer, decoy))
            }
        })
    }
}

/// A prompt with its answer, on the way to a [`Question`].
struct Drawn {
    prompt: String,
    expected: String,
    decoys: Vec<String>,
}

impl From<(String, String)> for Drawn {
    fn from((prompt, expected): (String, String)) -> Self {
        Self { prompt, expected, decoys: Vec::new() }
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
            let Drawn { prompt, expected, decoys } = one(&mut draw, task, level);
            if seen.insert(prompt.clone()) {
                out.push(Question { id: out.len(), task, level, prompt, expected, decoys });
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

fn one(draw: &mut Draw, task: Task, level: u8) -> Drawn {
    match task {
        Task::Arithmetic => arithmetic(draw, level).into(),
        Task::Sequence => sequence(draw, level).into(),
        Task::Strings => strings(draw, level).into(),
        Task::Recall => recall(draw, level),
        Task::Code => {
            let (program, output) = programs::program(draw, level);
            (format!("What does this Python program print?\n{program}"), output).into()
        }
        Task::Facts | Task::Own => fact(draw, level).into(),
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

fn recall(draw: &mut Draw, level: u8) -> Drawn {
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
            let decoys = keys.iter().filter(|k| **k != key).map(|k| (*k).to_owned()).collect();
            let prompt = format!("{}. Which key has the value {value}?", list.join(", "));
            Drawn { prompt, expected: key.to_owned(), decoys }
        }
        (4.., 1) => {
            let other = draw.below(pairs);
            let (b, second) =
                (keys.get(other).copied().unwrap_or_default(), values.get(other).copied().unwrap_or(0));
            (format!("{}. What is {key} plus {b}?", list.join(", ")), (value + second).to_string()).into()
        }
        _ => (format!("{}. What is the value of {key}?", list.join(", ")), value.to_string()).into(),
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
        let q = |task, expected: &str| Question {
            id: 0,
            task,
            level: 1,
            prompt: String::new(),
            expected: expected.into(),
            decoys: vec!["lamp".into()],
        };
        assert!(q(Task::Arithmetic, "19").is_right("12 + 7 = 19"));
        assert!(!q(Task::Arithmetic, "19").is_right("19 is not it, 20 is"));
        assert!(q(Task::Facts, "7|seven").is_right("There are seven days."));
        assert!(q(Task::Facts, "60|sixty").is_right("There are 60 minutes in 1 hour."));
        assert!(q(Task::Facts, "C").is_right("The symbol is C."));
        assert!(!q(Task::Facts, "C").is_right("Carbon"));
        assert!(
            q(Task::Facts, "He").is_right("It is He.") && !q(Task::Facts, "He").is_right("he does not know")
        );
        assert!(q(Task::Strings, "a").is_right("A first letter is \"a\"."));
        assert!(!q(Task::Strings, "a").is_right("A last letter of a word is \"t\"."));
        assert!(q(Task::Recall, "door").is_right("It is door."));
        assert!(!q(Task::Recall, "door").is_right("lamp=3, door=4"));
    }
}
