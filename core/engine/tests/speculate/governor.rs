//! The governor on machines that are made up: what a pass costs there, and how good guesses are, is known.

use pannier::sampling::{Draws, Lane, Sampler, SamplerOptions};
use pannier::speculate::{Ask, CLASSES, Done, Governor, MAX_DRAFT, Proposal, Proposer, Round, Speculator};
use pannier::{CancelFlag, Result};
use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Microseconds of a plain pass.
const UNIT: u64 = 10_000;

/// A machine: the time of a pass with some guessed tokens, and of guessing one; in thousandths of a plain pass.
#[derive(Clone, Copy)]
struct Machine {
    wide: fn(usize) -> u64,
    guess: u64,
    /// How often a guess is right, at this token of the text.
    right: fn(usize) -> f64,
    /// Timings are off by up to this many percent.
    noise: u64,
}

struct Guesser<'a> {
    machine: Machine,
    clock: &'a AtomicU64,
    draws: Draws,
    /// Tokens that it has to read before its first guess, each for a tenth of what guessing one costs.
    unread: usize,
}

impl Proposer for Guesser<'_> {
    fn name(&self) -> &'static str {
        "made up"
    }

    fn prior(&self) -> [f64; CLASSES] {
        [0.6; CLASSES]
    }

    fn cost(&self) -> f64 {
        self.machine.guess as f64 / 1000.0
    }

    fn backlog(&self, _: usize) -> usize {
        self.unread
    }

    fn propose(&mut self, ask: &Ask<'_>, out: &mut Proposal) -> Result<()> {
        let reading = self.unread as u64 * self.machine.guess * UNIT / 10_000;
        self.clock.fetch_add(reading, Ordering::Relaxed);
        out.tell_read(std::mem::take(&mut self.unread));
        for i in 0..ask.max {
            self.clock.fetch_add(self.machine.guess * UNIT / 1000, Ordering::Relaxed);
            let place = ask.len() + i;
            let right = self.draws.uniform(Lane::Draft, place as u64) < (self.machine.right)(place);
            if !out.push(ask, u32::from(right), 0) {
                break;
            }
        }
        Ok(())
    }
}

struct Outcome {
    /// Time without guesses over time with them.
    gain: f64,
    /// Mean length of guesses in the last half.
    len: f64,
}

/// A text of `n` tokens; token 1 is always right.
fn run(machine: Machine, n: usize, seed: u64) -> Outcome {
    run_with(&Mutex::new(Governor::default()), machine, 0, n, seed)
}

/// The same with what a governor has learned, behind a prompt that the proposer has not read.
fn run_with(governor: &Mutex<Governor>, machine: Machine, unread: usize, n: usize, seed: u64) -> Outcome {
    let clock = AtomicU64::new(0);
    let guesser = Guesser { machine, clock: &clock, draws: Draws::new(seed), unread };
    let mut speculator = Speculator::new(vec![Box::new(guesser)], governor, None).unwrap();
    let sampler = Sampler::new(SamplerOptions::greedy(), 2).unwrap();
    let cancel = CancelFlag::new();
    let text = vec![1u32; n];
    let (mut at, mut passes, mut guessed) = (1, 0u64, 0usize);
    let noise = Draws::new(seed + 1);
    let late = Cell::new(0u64);
    while at < n {
        let now = || Duration::from_micros(clock.load(Ordering::Relaxed));
        speculator
            .propose(&Round {
                fed: &text[..at - 1],
                pending: 1,
                room: n - at - 1,
                left: Some(n - at),
                sampler: &sampler,
                cancel: &cancel,
                now: &now,
            })
            .unwrap();
        let draft = speculator.draft();
        let right = draft.iter().take_while(|&&t| t == 1).count();
        let jitter = noise.bits(Lane::Token, passes) % (2 * machine.noise + 1);
        let time = (machine.wide)(draft.len()) * UNIT / 1000 * (100 + jitter - machine.noise) / 100;
        clock.fetch_add(time, Ordering::Relaxed);
        if at > n / 2 {
            late.set(late.get() + 1);
            guessed += draft.len();
        }
        speculator.learn(Done { rows: right + 1, right, pass: Duration::from_micros(time) });
        at += right + 1;
        passes += 1;
    }
    let plain = (n - 1) as u64 * UNIT;
    Outcome {
        gain: plain as f64 / clock.load(Ordering::Relaxed) as f64,
        len: guessed as f64 / late.get().max(1) as f64,
    }
}

const FLAT: fn(usize) -> u64 = |n| 1000 + 10 * n as u64;
const STEEP: fn(usize) -> u64 = |n| 1000 + 700 * n as u64;

#[test]
fn good_guesses_are_long_where_width_is_free() {
    let machine = Machine { wide: FLAT, guess: 0, right: |_| 0.9, noise: 5 };
    let outcome = run(machine, 600, 1);
    assert!(outcome.gain > 4.0 && outcome.len > 6.5, "{} {}", outcome.gain, outcome.len);
    // Streamed weights: even mediocre guesses pay.
    let outcome = run(Machine { right: |_| 0.5, ..machine }, 600, 2);
    assert!(outcome.gain > 1.6, "{}", outcome.gain);
}

#[test]
fn lengths_follow_costs() {
    let cheap = run(Machine { wide: |n| 1000 + 60 * n as u64, guess: 30, right: |_| 0.8, noise: 5 }, 800, 3);
    let dear = run(Machine { wide: |n| 1000 + 300 * n as u64, guess: 100, right: |_| 0.8, noise: 5 }, 800, 3);
    assert!(cheap.gain > 2.0 && dear.gain > 1.1 && dear.gain < cheap.gain, "{} {}", cheap.gain, dear.gain);
    assert!(cheap.len > dear.len + 1.0, "{} {}", cheap.len, dear.len);
}

#[test]
fn what_does_not_pay_costs_two_percent_at_most() {
    type Case = (&'static str, fn(usize) -> u64, u64, fn(usize) -> f64);
    let cases: [Case; 7] = [
        ("always wrong", FLAT, 0, |_| 0.0),
        ("always wrong, and width is dear", STEEP, 0, |_| 0.0),
        ("right, but width is dear", STEEP, 0, |_| 0.6),
        ("a draft model as slow as the model", FLAT, 900, |_| 0.9),
        ("a draft model that is wrong", FLAT, 200, |_| 0.1),
        ("good at first", STEEP, 0, |at| if at < 100 { 1.0 } else { 0.0 }),
        ("now and then", STEEP, 0, |_| 0.3),
    ];
    for (name, wide, guess, right) in cases {
        // The first answer of a model pays for what the others know. Where timings jitter, so does what is compared.
        for (n, noise, least) in
            [(64, 0, 0.965), (400, 0, 0.985), (2000, 0, 0.99), (400, 5, 0.975), (2000, 5, 0.98)]
        {
            for seed in 0..5 {
                let gain = run(Machine { wide, guess, right, noise }, n, seed).gain;
                assert!(gain >= least, "{name}, {n} tokens, noise {noise}: {gain}");
            }
        }
    }
}

#[test]
fn what_one_answer_won_is_not_lost_by_the_next() {
    // Width as dear as where the processor is the limit.
    let wide = |n| 1000 + 200 * n as u64;
    for seed in 0..20 {
        let governor = Mutex::default();
        let good = Machine { wide, guess: 0, right: |_| 0.95, noise: 0 };
        let bad = Machine { right: |_| 0.0, ..good };
        for (machine, n, least) in [(good, 200, 1.5), (bad, 48, 0.98), (good, 100, 1.3), (bad, 48, 0.98)] {
            let gain = run_with(&governor, machine, 0, n, seed).gain;
            assert!(gain >= least, "{n} tokens: {gain}, at least {least}");
        }
    }
}

#[test]
fn a_draft_model_is_tried_once_and_then_judged_by_what_it_did() {
    // Dearer by its size than it turns out, and better than is thought at first.
    let good = Machine { wide: |n| 1000 + 50 * n as u64, guess: 360, right: |_| 0.75, noise: 0 };
    let bad = Machine { right: |_| 0.2, ..good };
    for seed in 0..10 {
        let answers = |machine| {
            let governor = Mutex::default();
            let gains: Vec<f64> =
                (0..12).map(|i| run_with(&governor, machine, 60, 48, 100 * seed + i).gain).collect();
            (gains[0], 11.0 / gains[1..].iter().map(|gain| 1.0 / gain).sum::<f64>())
        };
        let (first, others) = answers(good);
        assert!(first != 1.0 && others > 1.03, "{first} {others}");
        let (first, others) = answers(bad);
        assert!(first > 0.88 && others >= 0.98, "{first} {others}");
    }
}

#[test]
fn a_text_that_turns_easy_is_noticed() {
    let right: fn(usize) -> f64 = |at| if at < 500 { 0.0 } else { 0.95 };
    let outcome = run(Machine { wide: FLAT, guess: 0, right, noise: 5 }, 1500, 4);
    assert!(outcome.gain > 1.7 && outcome.len > 3.0, "{} {}", outcome.gain, outcome.len);
    const { assert!(MAX_DRAFT >= 8) };
}
