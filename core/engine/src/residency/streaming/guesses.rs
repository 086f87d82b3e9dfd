//! What the next layer will probably need, and whether knowing that pays.
//!
//! A guess costs a read of a lane that has nothing else to do, and the slot of the least valuable expert. It pays when what it brought is used
//! at once. In the field this was right for 80 to 89 of 100 experts and still made decoding slower, because flash had no idle time; so a guess never
//! goes before what is needed, and guessing stops for a while when too few come true.

use crate::residency::ExpertKey;
use std::collections::VecDeque;

/// Fewer right ones than this do not pay for the evictions.
const LEAST_RIGHT: f64 = 0.5;
/// Judged after so many.
const SAMPLE: u64 = 48;
/// Passes without guesses after a bad sample.
const PAUSE: u64 = 64;

/// Guesses that are to be read, and those that were.
#[derive(Debug, Default)]
pub(super) struct Guesses {
    allowed: bool,
    waiting: VecDeque<ExpertKey>,
    /// Read, and not judged yet.
    read: Vec<ExpertKey>,
    sample: (u64, u64),
    total: (u64, u64),
    pause: u64,
}

impl Guesses {
    pub fn allow(&mut self, on: bool) {
        self.allowed = on;
    }

    pub fn is_on(&self) -> bool {
        self.allowed && self.pause == 0
    }

    /// Guesses read, and right ones.
    pub fn counts(&self) -> (u64, u64) {
        self.total
    }

    /// New guesses; older ones are too late.
    pub fn set(&mut self, keys: impl Iterator<Item = ExpertKey>) -> bool {
        self.waiting.clear();
        self.waiting.extend(keys);
        !self.waiting.is_empty()
    }

    pub fn next(&mut self) -> Option<ExpertKey> {
        if self.is_on() { self.waiting.pop_front() } else { None }
    }

    pub fn was_read(&mut self, key: ExpertKey) {
        self.total.0 += 1;
        self.read.push(key);
    }

    /// A layer's experts are known.
    pub fn judge(&mut self, needed: &[ExpertKey]) {
        self.waiting.clear();
        let Some(layer) = needed.first().map(|key| key.layer) else { return };
        for key in self.read.extract_if(.., |key| key.layer == layer) {
            let right = u64::from(needed.contains(&key));
            self.sample = (self.sample.0 + 1, self.sample.1 + right);
            self.total.1 += right;
        }
        if self.sample.0 >= SAMPLE {
            if (self.sample.1 as f64) < LEAST_RIGHT * self.sample.0 as f64 {
                self.pause = PAUSE;
            }
            self.sample = (0, 0);
        }
    }

    pub fn pass_begins(&mut self) {
        self.waiting.clear();
        self.pause = self.pause.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(layer: u32, expert: u32) -> ExpertKey {
        ExpertKey { layer, expert }
    }

    /// Reads four guesses of a layer, of which `right` are needed.
    fn round(guesses: &mut Guesses, layer: u32, right: u32) {
        guesses.set((0..4).map(|expert| key(layer, expert)));
        while let Some(key) = guesses.next() {
            guesses.was_read(key);
        }
        let needed: Vec<ExpertKey> = (4 - right..8 - right).map(|expert| key(layer, expert)).collect();
        guesses.judge(&needed);
    }

    #[test]
    fn guessing_goes_on_while_it_pays_and_pauses_when_not() {
        let mut guesses = Guesses::default();
        round(&mut guesses, 0, 4);
        assert_eq!(guesses.counts(), (0, 0), "not asked for");
        guesses.allow(true);
        (0..24).for_each(|layer| round(&mut guesses, layer, 3));
        assert!(guesses.is_on());
        assert_eq!(guesses.counts(), (96, 72));
        (0..12).for_each(|layer| round(&mut guesses, layer, 1));
        assert!(!guesses.is_on());
        (0..PAUSE).for_each(|_| guesses.pass_begins());
        assert!(guesses.is_on(), "tried again later");
    }

    #[test]
    fn late_guesses_are_not_read() {
        let mut guesses = Guesses::default();
        guesses.allow(true);
        assert!(guesses.set([key(1, 1), key(1, 2)].into_iter()));
        guesses.judge(&[key(1, 1)]);
        assert_eq!(guesses.next(), None);
    }
}
