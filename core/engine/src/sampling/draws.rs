//! Uniform numbers that are a pure function of (seed, lane, position).
//!
//! The generator is SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014). Its state
//! after `i` steps is `seed + i * GAMMA`, so any draw can be computed without those before it. That is why it was taken
//! over generators with a longer period: a generation draws a few thousand numbers, but speculation rolls back, sessions
//! are saved and restored, and with random access none of them has a generator's state to keep in step.

const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// What a number is drawn for. Each lane is a sequence of its own, so that turning speculation on does not move the numbers
/// that plain sampling would have used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// The token itself.
    Token,
    /// The draft model's token.
    Draft,
    /// Whether a drafted token is accepted.
    Accept,
    /// The replacement of a rejected one.
    Residual,
}

impl Lane {
    const fn salt(self) -> u64 {
        match self {
            Self::Token => 0,
            Self::Draft => 1,
            Self::Accept => 2,
            Self::Residual => 3,
        }
    }
}

/// All random numbers of one generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Draws {
    seed: u64,
}

impl Draws {
    /// The numbers of `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// 64 random bits for draw `position` of a lane.
    #[must_use]
    pub const fn bits(self, lane: Lane, position: u64) -> u64 {
        // The seed is hashed first: users pick 1, 2, 3 …, and sequences of nearby raw seeds could overlap.
        let key = mix(self.seed.wrapping_add(lane.salt().wrapping_mul(0xd1b5_4a32_d192_ed03)));
        nth(key, position)
    }

    /// A uniform number in `[0, 1)` with 53 random bits.
    #[must_use]
    #[allow(clippy::cast_precision_loss)] // 53 bits are exact
    pub const fn uniform(self, lane: Lane, position: u64) -> f64 {
        (self.bits(lane, position) >> 11) as f64 * (1.0 / 9_007_199_254_740_992.0)
    }
}

/// Number `i` of the SplitMix64 sequence that starts at `seed`.
const fn nth(seed: u64, i: u64) -> u64 {
    mix(seed.wrapping_add(i.wrapping_add(1).wrapping_mul(GAMMA)))
}

const fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitmix64_gives_the_published_sequence() {
        let expected = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        for (i, e) in expected.into_iter().enumerate() {
            assert_eq!(nth(1_234_567, i as u64), e);
        }
    }

    #[test]
    fn numbers_fill_the_unit_interval_and_lanes_differ() {
        let draws = Draws::new(7);
        let mut bins = [0u32; 16];
        for i in 0..16_000 {
            let u = draws.uniform(Lane::Token, i);
            assert!((0.0..1.0).contains(&u));
            bins[(u * 16.0) as usize] += 1;
        }
        // 15 degrees of freedom: chi-square above 37.7 has probability 0.001.
        let chi: f64 = bins.iter().map(|&n| (f64::from(n) - 1000.0).powi(2) / 1000.0).sum();
        assert!(chi < 37.7, "{chi}");
        assert_ne!(draws.bits(Lane::Token, 0), draws.bits(Lane::Accept, 0));
        assert_ne!(draws.bits(Lane::Token, 0), Draws::new(8).bits(Lane::Token, 0));
    }
}
