//! What a pass costs by its width, as measured.

use super::MAX_DRAFT;

/// What one more token in a pass is thought to cost before it was measured, as a share of a plain pass.
const SLOPE: f64 = 0.12;
/// How many measurements the guess of a width counts for.
const PRIOR: f64 = 2.0;
/// The weight of a new measurement once there are enough.
const RATE: f64 = 1.0 / 8.0;
/// Plain passes before their time is believed.
const ENOUGH: u32 = 5;
/// One measurement counts as at most this many times what was expected: a core that was taken away is no property of a width.
const OUTLIER: f64 = 3.0;

/// Time of passes: in seconds for a plain one, as ratios to it for wider ones. Ratios hold while a context grows.
#[derive(Clone, Debug)]
pub(super) struct PassCosts {
    unit: f64,
    plain: u32,
    slope: f64,
    wide: [Measured; MAX_DRAFT + 1],
}

#[derive(Clone, Copy, Debug, Default)]
struct Measured {
    ratio: f64,
    weight: f64,
}

impl Default for PassCosts {
    fn default() -> Self {
        Self { unit: 0.0, plain: 0, slope: SLOPE, wide: [Measured::default(); MAX_DRAFT + 1] }
    }
}

impl PassCosts {
    /// Seconds of a plain pass, once known.
    pub fn unit(&self) -> Option<f64> {
        (self.plain >= ENOUGH && self.unit > 0.0).then_some(self.unit)
    }

    /// The longest draft to try: twice what was measured. A machine on which width is dear is found out cheaply.
    pub fn widest(&self) -> usize {
        let measured = self.wide.iter().rposition(|seen| seen.weight > 0.0).unwrap_or(0);
        (2 * measured).clamp(1, MAX_DRAFT)
    }

    /// How much longer a pass takes with a draft of `len` tokens.
    pub fn ratio(&self, len: usize) -> f64 {
        if len == 0 {
            return 1.0;
        }
        let guess = 1.0 + self.slope * len as f64;
        match self.wide.get(len) {
            Some(seen) => (guess * PRIOR + seen.ratio * seen.weight) / (PRIOR + seen.weight),
            None => guess,
        }
    }

    /// What the token behind a draft of `len` tokens adds.
    pub fn step(&self, len: usize) -> f64 {
        (self.ratio(len + 1) - self.ratio(len)).max(0.0)
    }

    /// A pass with a draft of `len` tokens took this long.
    pub fn saw(&mut self, len: usize, seconds: f64) {
        if len == 0 {
            self.plain = self.plain.saturating_add(1);
            match self.plain {
                // The first one finds weights that nothing has touched yet.
                1 => {}
                2 => self.unit = seconds,
                n => {
                    let rate = (1.0 / f64::from(n - 1)).max(RATE);
                    self.unit += rate * (seconds.min(OUTLIER * self.unit) - self.unit);
                }
            }
            return;
        }
        let Some(unit) = self.unit() else { return };
        let ratio = (seconds / unit).min(OUTLIER * self.ratio(len));
        let slope = ((ratio - 1.0) / len as f64).max(0.0);
        self.slope += RATE * (slope - self.slope);
        if let Some(seen) = self.wide.get_mut(len) {
            seen.weight = (seen.weight + 1.0).min(1.0 / RATE);
            seen.ratio += (ratio - seen.ratio) / seen.weight;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_learned() {
        let mut costs = PassCosts::default();
        costs.saw(0, 9.0);
        (0..3).for_each(|_| costs.saw(0, 2.0));
        assert_eq!(costs.unit(), None);
        costs.saw(0, 2.0);
        assert_eq!(costs.unit(), Some(2.0));
        assert_eq!((costs.ratio(0), costs.widest()), (1.0, 1));
        for _ in 0..40 {
            costs.saw(4, 5.0);
        }
        assert_eq!(costs.widest(), 8);
        assert!((costs.ratio(4) - 2.5).abs() < 0.3, "{}", costs.ratio(4));
        // Widths that were not measured follow.
        assert!((costs.ratio(8) - 4.0).abs() < 0.2, "{}", costs.ratio(8));
        costs.saw(4, 1e6);
        assert!(costs.ratio(4) < 3.3);
        for _ in 0..100 {
            costs.saw(0, 4.0);
        }
        assert!((costs.unit().unwrap() - 4.0).abs() < 0.01);
    }
}
