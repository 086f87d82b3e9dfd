//! When to guess, and how far.
//!
//! All in units of a plain pass, which makes one token. With `p[i]` the probability that token i of a guess is right if those before
//! it are, `r(n)` what a pass costs with n guessed tokens, and `c` what a guessed token costs:
//!
//! ```text
//! tokens of a pass   E(n) = 1 + p1 + p1 p2 + ... + p1 ... pn
//! speed              E(n) / (r(n) + n c)               the n with the highest speed is taken; below 1.02 there is no guess
//! ```
//!
//! `p`, `r` and `c` are measured while generating; they hold the union of experts that a wider pass touches, a context that grew, a core that
//! another app took. Streamed dense weights make r nearly 1 for every n, and so long guesses, without a rule for them.
//!
//! Measuring needs guesses that may fail. What they cost is booked: `lost` is the time of passes with a guess above what plain ones
//! would have taken for the same tokens. It is kept for each answer, so that what one answer has won is not spent on the next: once it
//! is above a small share of the answer's decode time, the proposer is not asked until plain passes have outgrown it, and a guess that
//! could lose much more than what is left of that share is cut. So the worst text, or the worst proposer, costs every answer that share
//! and no more. A draft model's reading of the prompt is apart from this, as it is spent when its first guess comes: it is weighed
//! against what the rest of the answer is expected to win.

use super::costs::PassCosts;
use super::odds::Odds;
use super::proposer::{Proposal, Proposer};
use std::time::Duration;

/// Speeds below this are not worth the risk of being wrong.
const WORTH: f64 = 1.02;
/// The share of the time that guesses may lose.
const SHARE: f64 = 0.006;
/// Passes that may be lost before there is any time to take a share of.
const CREDIT: f64 = 0.15;
/// One guess may lose this much more than what may still be lost.
const BET: f64 = 0.25;
/// Reading a text may take this share of what guesses are expected to win.
const HOPED: f64 = 0.6;
/// A proposer that costs is judged by what it did only after this many guesses. What is thought of it before is too rough to turn down for
/// ever a draft model that an app has loaded on purpose.
const TRIAL: f64 = 12.0;
/// Until then, reading a text may take this share of the answer's time,
const TRIAL_SHARE: f64 = 0.1;
/// and this many passes more may be lost.
const TRIAL_CREDIT: f64 = 1.5;
/// What was won counts for at most this many passes against later losses: a text that turned bad is left soon.
const KEPT: f64 = 3.0;
/// A measured cost's weight.
const RATE: f64 = 0.2;
/// After so many passes with a guess there is one without, to see what it costs now.
const CALIBRATE: u32 = 128;

/// What is known of a proposer.
#[derive(Clone, Debug)]
struct Track {
    name: &'static str,
    odds: Odds,
    /// Of a guessed token, and of a token that has to be read first, in units.
    cost: f64,
    read: f64,
    /// In seconds, in all answers.
    lost: f64,
}

/// What guesses have cost one answer, in seconds.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger {
    spent: f64,
    lost: Vec<(&'static str, f64)>,
}

impl Ledger {
    fn lost(&mut self, name: &'static str) -> &mut f64 {
        let index = match self.lost.iter().position(|(n, _)| *n == name) {
            Some(index) => index,
            None => {
                self.lost.push((name, 0.0));
                self.lost.len() - 1
            }
        };
        &mut self.lost[index].1
    }
}

/// Measures and decides. One per model: what it learned serves the next generation.
#[derive(Clone, Debug, Default)]
pub struct Governor {
    costs: PassCosts,
    tracks: Vec<Track>,
    /// Seconds of all decode passes and guesses.
    spent: f64,
    since_plain: u32,
}

/// What a proposer may do now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub max: usize,
    pub floor: f64,
    /// The speed that is hoped for.
    pub speed: f64,
}

/// What a proposer did in a round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    pub name: &'static str,
    pub tokens: usize,
    pub read: usize,
    pub time: Duration,
}

/// What a pass gave.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    /// Tokens of the answer.
    pub rows: usize,
    /// Tokens of the guess that were right.
    pub right: usize,
    /// Time of the pass, without guessing.
    pub pass: Duration,
}

/// Where a generation is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outlook {
    /// The most tokens that a guess may have here.
    pub room: usize,
    /// Tokens that the answer may still get.
    pub left: usize,
    /// Tokens of the text.
    pub len: usize,
}

impl Governor {
    fn track(&mut self, who: &dyn Proposer) -> usize {
        let name = who.name();
        if let Some(index) = self.tracks.iter().position(|t| t.name == name) {
            return index;
        }
        let cost = who.cost();
        // Reading many tokens at once is about ten times cheaper than guessing as many.
        self.tracks.push(Track { name, odds: Odds::new(who.prior()), cost, read: cost / 10.0, lost: 0.0 });
        self.tracks.len() - 1
    }

    pub(super) fn odds(&mut self, who: &dyn Proposer) -> Odds {
        let index = self.track(who);
        self.tracks[index].odds.clone()
    }

    /// Whether to ask a proposer at all.
    pub(super) fn terms(&mut self, who: &dyn Proposer, at: Outlook, answer: &mut Ledger) -> Option<Terms> {
        let index = self.track(who);
        let unit = self.costs.unit()?;
        let track = &self.tracks[index];
        let trial = track.cost > 0.0 && track.odds.weight() < TRIAL;
        let credit = if trial { CREDIT + TRIAL_CREDIT } else { CREDIT };
        let left = credit + (SHARE * answer.spent - *answer.lost(track.name)) / unit;
        if left <= 0.0 || self.since_plain >= CALIBRATE {
            return None;
        }
        let wide = at.room.min(self.costs.widest());
        let loss = |n: usize| self.costs.ratio(n) - 1.0 + n as f64 * track.cost;
        let max = (1..=wide).take_while(|&n| n == 1 || loss(n) <= left + BET).count();
        if max == 0 {
            return None;
        }
        if track.cost <= 0.0 {
            // It is free to look.
            return Some(Terms { max, floor: self.costs.step(1), speed: f64::INFINITY });
        }
        let chance = track.odds.mean();
        let (mut reach, mut tokens, mut best) = (1.0, 1.0, (0, 1.0));
        for n in 1..=max {
            reach *= chance;
            tokens += reach;
            let speed = tokens / (self.costs.ratio(n) + n as f64 * track.cost);
            if speed > best.1 {
                best = (n, speed);
            }
        }
        let (n, speed) = best;
        let reading = who.backlog(at.len) as f64 * track.read;
        let floor = (track.cost + self.costs.step(n)) * speed;
        let share = if trial { TRIAL_SHARE } else { HOPED * (1.0 - 1.0 / speed) };
        if speed >= WORTH && reading <= CREDIT + share * at.left as f64 {
            return Some(Terms { max, floor, speed });
        }
        // A short guess now and then, if it can be afforded: perhaps this text is easier.
        let price = reading + loss(max.min(2));
        let afforded = CREDIT + (SHARE * self.spent - track.lost) / unit;
        (price <= left.min(afforded)).then_some(Terms { max: max.min(2), floor: 0.0, speed: 1.0 })
    }

    /// How much of a guess to use, and the speed to expect. What it cost is spent either way.
    pub(super) fn choose(&mut self, who: &dyn Proposer, guess: &Proposal) -> (usize, f64) {
        let index = self.track(who);
        let track = &mut self.tracks[index];
        // Trying out what is not worth it is for proposers that were asked in spite of their cost.
        let worth = if track.cost > 0.0 { 1.0 } else { WORTH };
        let (mut reach, mut tokens, mut best) = (1.0, 1.0, (0, worth));
        for (i, &class) in guess.classes().iter().enumerate() {
            reach *= track.odds.chance(class);
            tokens += reach;
            let speed = tokens / self.costs.ratio(i + 1);
            if speed > best.1 {
                best = (i + 1, speed);
            }
        }
        if best.0 == 0
            && let Some(&class) = guess.classes().first()
        {
            track.odds.forget(class);
        }
        best
    }

    /// A pass is done. `used`: whose guess it had, and the classes of the guessed tokens.
    pub(super) fn learn(
        &mut self,
        answer: &mut Ledger,
        efforts: &[Effort],
        used: Option<(&'static str, &[usize])>,
        done: Done,
    ) {
        let pass = done.pass.as_secs_f64();
        let unit = self.costs.unit();
        self.spent += pass;
        answer.spent += pass;
        for effort in efforts {
            let time = effort.time.as_secs_f64();
            self.spent += time;
            answer.spent += time;
            let (Some(track), Some(unit)) = (self.tracks.iter_mut().find(|t| t.name == effort.name), unit)
            else {
                continue;
            };
            track.lost += time;
            let guessing =
                if effort.read > 0 { time.min(effort.tokens as f64 * track.cost * unit) } else { time };
            *answer.lost(effort.name) += guessing;
            if track.cost <= 0.0 {
                continue;
            }
            let time = time / unit;
            if effort.read > 0 {
                let read = (time - guessing / unit) / effort.read as f64;
                track.read += RATE * (read - track.read);
            } else if effort.tokens > 0 {
                track.cost += RATE * ((time / effort.tokens as f64).min(3.0 * track.cost) - track.cost);
            }
        }
        let len = used.map_or(0, |(_, classes)| classes.len());
        self.costs.saw(len, pass);
        self.since_plain = if len == 0 { 0 } else { self.since_plain + 1 };
        let (Some((name, classes)), Some(unit)) = (used, unit) else { return };
        let Some(track) = self.tracks.iter_mut().find(|t| t.name == name) else { return };
        // Tokens up to the first wrong one were tried, or up to the end of the answer.
        for (i, &class) in classes.iter().enumerate().take(done.rows) {
            track.odds.learn(class, i < done.right);
        }
        let loss = pass - unit * done.rows as f64;
        for lost in [&mut track.lost, answer.lost(name)] {
            *lost = (*lost + loss).max(-KEPT * unit);
        }
    }
}
