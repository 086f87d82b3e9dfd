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
//! would have taken for the same tokens. Once it is above a small share of all decode time, the proposer is not asked until plain
//! passes have outgrown it; so the worst text, or the worst proposer, costs that share and no more.

use super::costs::PassCosts;
use super::odds::Odds;
use super::proposer::{Proposal, Proposer};
use std::time::Duration;

/// Speeds below this are not worth the risk of being wrong.
const WORTH: f64 = 1.02;
/// The share of the time that guesses may lose.
const SHARE: f64 = 0.006;
/// Passes that may be lost before there is any time to take a share of.
const CREDIT: f64 = 0.2;
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
    /// In seconds.
    lost: f64,
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
        // Reading many tokens at once is several times cheaper than guessing as many.
        self.tracks.push(Track { name, odds: Odds::new(who.prior()), cost, read: cost / 4.0, lost: 0.0 });
        self.tracks.len() - 1
    }

    pub(super) fn odds(&mut self, who: &dyn Proposer) -> Odds {
        let index = self.track(who);
        self.tracks[index].odds.clone()
    }

    /// Whether to ask a proposer at all.
    pub(super) fn terms(&mut self, who: &dyn Proposer, at: Outlook) -> Option<Terms> {
        let index = self.track(who);
        let unit = self.costs.unit()?;
        let max = at.room.min(self.costs.widest());
        if max == 0 || self.since_plain >= CALIBRATE {
            return None;
        }
        let track = &self.tracks[index];
        let allowance = SHARE * self.spent + CREDIT * unit - track.lost;
        if allowance <= 0.0 {
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
        if speed >= WORTH && reading <= 1.0 + (1.0 - 1.0 / speed) * at.left as f64 {
            return Some(Terms { max, floor, speed });
        }
        // A short guess now and then, if it can be afforded: perhaps this text is easier.
        let price = (reading + 2.0 * track.cost + self.costs.ratio(2) - 1.0) * unit;
        (price <= allowance).then_some(Terms { max: max.min(2), floor: 0.0, speed: 1.0 })
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
    pub(super) fn learn(&mut self, efforts: &[Effort], used: Option<(&'static str, &[usize])>, done: Done) {
        let pass = done.pass.as_secs_f64();
        let unit = self.costs.unit();
        self.spent += pass;
        for effort in efforts {
            let time = effort.time.as_secs_f64();
            self.spent += time;
            let (Some(track), Some(unit)) = (self.tracks.iter_mut().find(|t| t.name == effort.name), unit)
            else {
                continue;
            };
            track.lost += time;
            if track.cost <= 0.0 {
                continue;
            }
            let time = time / unit;
            if effort.read > 0 {
                let read = (time - effort.tokens as f64 * track.cost).max(0.0) / effort.read as f64;
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
        track.lost += pass - unit * done.rows as f64;
        track.lost = track.lost.max(-KEPT * unit);
    }
}
