//! Nobody is worth more than anybody else. For comparison: what a policy has to beat to be worth its code.

use super::{CachePolicy, Visit};

/// Evicts at random; the same sequence every time.
#[derive(Debug)]
pub struct RandomChoice {
    state: u64,
}

impl Default for RandomChoice {
    fn default() -> Self {
        RandomChoice { state: 0x9e37_79b9_7f4a_7c15 }
    }
}

impl CachePolicy for RandomChoice {
    fn name(&self) -> &'static str {
        "random"
    }

    fn visit(&mut self, _: &Visit<'_>, scores: &mut [f64]) {
        for score in scores {
            // xorshift* (Vigna, arXiv:1402.6246); the high half is the better one.
            self.state ^= self.state >> 12;
            self.state ^= self.state << 25;
            self.state ^= self.state >> 27;
            *score = (self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as f64;
        }
    }
}
