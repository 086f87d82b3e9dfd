//! How often guesses are right.

/// Kinds of guesses that are told apart.
pub const CLASSES: usize = 8;

/// How many guesses the prior counts for.
const PRIOR: f64 = 4.0;
/// Each new guess takes this much weight from the old ones: the last fifty or so decide, so that a text that turns from prose to a
/// quotation is noticed.
const KEEP: f64 = 0.98;

/// For each class, the share of right guesses among those that were reached: a guess behind a wrong one tells nothing.
#[derive(Clone, Debug)]
pub struct Odds {
    prior: [f64; CLASSES],
    seen: [Seen; CLASSES],
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    right: f64,
    all: f64,
}

impl Odds {
    /// Nothing seen yet.
    #[must_use]
    pub fn new(prior: [f64; CLASSES]) -> Self {
        Self { prior, seen: [Seen::default(); CLASSES] }
    }

    /// Probability that a guess of a class is right if all before it were.
    #[must_use]
    pub fn chance(&self, class: usize) -> f64 {
        let (Some(prior), Some(seen)) = (self.prior.get(class), self.seen.get(class)) else { return 0.0 };
        (prior * PRIOR + seen.right) / (PRIOR + seen.all)
    }

    /// The same for a guess of which the class is not known yet.
    #[must_use]
    pub fn mean(&self) -> f64 {
        let all: f64 = self.seen.iter().map(|s| s.all).sum();
        let right: f64 = self.seen.iter().map(|s| s.right).sum();
        let prior = self.prior.iter().sum::<f64>() / CLASSES as f64;
        (prior * PRIOR + right) / (PRIOR + all)
    }

    /// How many guesses the chances rest on, besides the prior; old ones count less.
    #[must_use]
    pub fn weight(&self) -> f64 {
        self.seen.iter().map(|seen| seen.all).sum()
    }

    /// A guess was reached.
    pub fn learn(&mut self, class: usize, right: bool) {
        if let Some(seen) = self.seen.get_mut(class) {
            seen.right = seen.right * KEEP + f64::from(u8::from(right));
            seen.all = seen.all * KEEP + 1.0;
        }
    }

    /// A guess was not tried because its class does badly: what was seen slowly counts less, or it would never be tried again.
    pub fn forget(&mut self, class: usize) {
        if let Some(seen) = self.seen.get_mut(class) {
            seen.right *= KEEP;
            seen.all *= KEEP;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chances_follow_what_is_seen_and_come_back_to_the_prior() {
        let mut odds = Odds::new([0.5; CLASSES]);
        assert_eq!(odds.chance(3), 0.5);
        for i in 0..200 {
            odds.learn(3, i % 10 < 9);
        }
        assert!((odds.chance(3) - 0.87).abs() < 0.04, "{}", odds.chance(3));
        assert_eq!(odds.chance(2), 0.5);
        (0..200).for_each(|_| odds.learn(3, false));
        assert!(odds.chance(3) < 0.06);
        (0..300).for_each(|_| odds.forget(3));
        assert!(odds.chance(3) > 0.45);
        assert_eq!(odds.chance(CLASSES), 0.0);
    }
}
