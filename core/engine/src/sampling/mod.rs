//! From logits to the next token: penalties, filters, temperature, the draw, and what the confidence room wants to know.
//!
//! # Order
//!
//! 1. repetition, frequency and presence penalties, over the last `penalty_window` tokens of prompt and answer
//! 2. logit bias
//! 3. [`LogitHook`]s, in the order they were added: last among the adjustments, so that nothing puts back what a hook banned
//! 4. top-k
//! 5. top-p, over the mass of what top-k left
//! 6. min-p, relative to the most likely token
//! 7. temperature
//! 8. the draw
//!
//! Temperature comes last of the shaping steps, as in most engines that read GGUF files. The filters then judge what the
//! model itself believes: the set of candidates does not depend on the temperature, and a hot setting mixes the plausible
//! tokens instead of letting the tail in. (With temperature first, top-p 0.95 at temperature 1.5 admits thousands of
//! tokens.) Presets published for GGUF models also assume this order.
//!
//! Temperature 0 is greedy: the highest logit after steps 1 to 3 wins, the lowest id among equals.
//!
//! # Same bits everywhere
//!
//! Probabilities are computed in f64 from plain multiplications and additions in one fixed order (the exponential is our
//! own, logarithms are `libm`'s), candidates stand in ascending order of id, and the uniform number of draw `i` is a pure
//! function of (seed, `i`). So equal logits and an equal seed give the same token on every machine, and a draw can be
//! repeated after a rollback without saving a generator's state.

mod dist;
mod draws;
mod error;
mod hook;
mod info;
mod math;
mod options;
mod penalties;
mod sampler;
mod select;
#[cfg(test)]
mod tests;

pub use dist::{Distribution, accept_draft};
pub use draws::{Draws, Lane};
pub use error::SamplingError;
pub use hook::{HookError, LogitHook};
pub use info::{LogitStats, TokenInfo, top_logprobs};
pub use options::{MAX_LOGIT_BIAS, MAX_TOP_LOGPROBS, SamplerOptions};
pub use sampler::Sampler;
