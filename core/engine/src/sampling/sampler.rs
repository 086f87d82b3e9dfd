//! The sampler: one per generation.
//!
//! ```text
//! stats   = max, top two, softmax sum, entropy of the raw logits      (also the NaN check)
//! logits' = hooks(bias(penalties(logits)))                            (a copy, only if any of them does something)
//! greedy:   argmax(logits')
//! else:     ranked = top-k(logits'), or its shortest prefix that settles top-p and min-p
//!           probabilities of the survivors at the temperature, ids ascending
//!           token = inverse of the cumulative sum at uniform(seed, position)
//! ```

use super::info::{fresh_seed, top_two};
use super::math::{exp, exp_sum};
use super::penalties::Window;
use super::select::{Candidate, by_rank, top_k};
use super::{Distribution, Draws, Lane, LogitHook, LogitStats, SamplerOptions, SamplingError, TokenInfo};

/// Chooses the tokens of one generation.
pub struct Sampler {
    options: SamplerOptions,
    vocab: usize,
    draws: Draws,
    seed: u64,
    position: u64,
    window: Window,
    hooks: Vec<Box<dyn LogitHook>>,
    // Buffers, kept from token to token.
    adjusted: Vec<f32>,
    ranked: Vec<Candidate>,
    dist: Distribution,
}

impl Sampler {
    /// A sampler for a vocabulary of `vocab` tokens.
    ///
    /// # Errors
    /// If an option is out of range, or the bias names a token that does not exist.
    pub fn new(options: SamplerOptions, vocab: usize) -> Result<Self, SamplingError> {
        options.validate(vocab)?;
        let seed = options.seed.unwrap_or_else(fresh_seed);
        let window = Window::new(if options.penalises() { options.penalty_window } else { 0 });
        Ok(Self {
            options,
            vocab,
            draws: Draws::new(seed),
            seed,
            position: 0,
            window,
            hooks: Vec::new(),
            adjusted: Vec::new(),
            ranked: Vec::new(),
            dist: Distribution::default(),
        })
    }

    /// Adds a hook; it runs after those added before.
    pub fn add_hook(&mut self, hook: Box<dyn LogitHook>) {
        self.hooks.push(hook);
    }

    /// An independent sampler in the same state, for trying out tokens that may be rejected.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self {
            options: self.options.clone(),
            window: self.window.clone(),
            hooks: self.hooks.iter().map(|h| h.fork()).collect(),
            adjusted: Vec::new(),
            ranked: Vec::new(),
            dist: Distribution::default(),
            ..*self
        }
    }

    /// The options.
    #[must_use]
    pub fn options(&self) -> &SamplerOptions {
        &self.options
    }

    /// The seed in use, chosen by the app or freshly.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// All random numbers of this generation.
    #[must_use]
    pub fn draws(&self) -> Draws {
        self.draws
    }

    /// How many tokens were accepted: the position of the next draw.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The most bytes that the buffers grow to, for whoever keeps the budget.
    #[must_use]
    pub fn buffer_bytes(&self) -> usize {
        let (o, vocab) = (&self.options, self.vocab);
        let adjusted = if self.adjusts() { vocab } else { 0 };
        // Without top-k, a filter may have to look at everything.
        let filters = o.top_k > 0 || o.top_p < 1.0 || o.min_p > 0.0;
        let ranked = match (o.temperature > 0.0 && filters, o.top_k) {
            (false, _) => o.top_logprobs,
            (true, 0) => vocab,
            (true, k) => k.min(vocab).max(o.top_logprobs),
        };
        let drawable = match (o.temperature > 0.0, o.top_k) {
            (false, _) => 1,
            (true, 0) => vocab,
            (true, k) => k.min(vocab),
        };
        // A vector may grow to twice what it holds; selection also keeps twice the k.
        let ranked = ranked.saturating_mul(2).max(64).saturating_mul(2 * size_of::<Candidate>());
        let drawable = drawable.saturating_mul(2 * (4 + 8));
        adjusted.saturating_mul(4).saturating_add(ranked).saturating_add(drawable)
    }

    fn adjusts(&self) -> bool {
        self.options.penalises() || !self.options.logit_bias.is_empty() || !self.hooks.is_empty()
    }

    /// Tells the penalties about the prompt. Draws are not affected.
    pub fn observe(&mut self, prompt: &[u32]) {
        self.window.extend(prompt);
    }

    /// Draws the next token and accepts it.
    ///
    /// # Errors
    /// If the logits are unusable (wrong length, NaN, plus infinity), everything is banned, or a hook fails. The state
    /// is then as before.
    pub fn sample(&mut self, logits: &[f32]) -> Result<TokenInfo, SamplingError> {
        let token = self.pick(logits)?;
        self.accept(token.id)?;
        Ok(token)
    }

    /// Draws the next token without accepting it: picking again from the same logits gives the same token.
    ///
    /// # Errors
    /// As for [`sample`](Self::sample).
    pub fn pick(&mut self, logits: &[f32]) -> Result<TokenInfo, SamplingError> {
        let stats = self.check(logits)?;
        self.fill(logits, &stats)?;
        let uniform = self.draws.uniform(Lane::Token, self.position);
        let id = self.dist.pick(uniform).ok_or(SamplingError::NothingLeft { vocab: self.vocab })?;
        self.describe(logits, &stats, id)
    }

    /// What would be reported if `id` were chosen from these logits.
    ///
    /// # Errors
    /// If the logits are unusable, or the vocabulary has no such token.
    pub fn info(&mut self, logits: &[f32], id: u32) -> Result<TokenInfo, SamplingError> {
        let stats = self.check(logits)?;
        self.describe(logits, &stats, id)
    }

    /// Makes a token part of the answer: hooks and penalties see it, and the next draw is another one.
    ///
    /// # Errors
    /// If a hook refuses the token.
    pub fn accept(&mut self, token: u32) -> Result<(), SamplingError> {
        for hook in &mut self.hooks {
            hook.accept(token)?;
        }
        self.window.extend(&[token]);
        self.position = self.position.wrapping_add(1);
        Ok(())
    }

    /// The distribution that [`sample`](Self::sample) draws from, after penalties, bias, hooks, filters and temperature.
    ///
    /// # Errors
    /// As for [`sample`](Self::sample).
    pub fn distribution(&mut self, logits: &[f32]) -> Result<&Distribution, SamplingError> {
        let stats = self.check(logits)?;
        self.fill(logits, &stats)?;
        Ok(&self.dist)
    }

    fn check(&self, logits: &[f32]) -> Result<LogitStats, SamplingError> {
        if logits.len() != self.vocab {
            return Err(SamplingError::WrongLength { found: logits.len(), vocab: self.vocab });
        }
        LogitStats::of(logits)
    }

    #[allow(clippy::cast_possible_truncation)]
    fn describe(&mut self, logits: &[f32], stats: &LogitStats, id: u32) -> Result<TokenInfo, SamplingError> {
        let unknown = SamplingError::UnknownToken { option: "token", id, vocab: self.vocab };
        let logit = usize::try_from(id).ok().and_then(|i| logits.get(i)).copied().ok_or(unknown)?;
        let mut token = stats.token(id, logit);
        if self.options.top_logprobs > 0 {
            top_k(logits, self.options.top_logprobs, &mut self.ranked);
            token.top = self.ranked.iter().map(|c| (c.id, stats.logprob(c.logit) as f32)).collect();
        }
        Ok(token)
    }

    /// Steps 1 to 7: leaves the distribution in `self.dist`.
    fn fill(&mut self, raw: &[f32], stats: &LogitStats) -> Result<(), SamplingError> {
        self.dist.clear();
        let adjusts = self.adjusts();
        let o = &self.options;
        let (logits, best, max) = if adjusts {
            adjust(o, &self.window, &mut self.hooks, raw, &mut self.adjusted)?;
            let (best, max, _) = top_two(&self.adjusted, "after penalties, bias and constraints")?;
            (self.adjusted.as_slice(), best, max)
        } else {
            (raw, stats.best, stats.max)
        };

        if o.temperature == 0.0 {
            self.dist.ids.push(best);
            self.dist.probs.push(1.0);
            return Ok(());
        }
        if o.top_k == 0 && o.top_p >= 1.0 && o.min_p <= 0.0 {
            for (id, &x) in (0u32..).zip(logits) {
                push(&mut self.dist, id, x, max, o.temperature);
            }
        } else {
            filter(o, logits, max, &mut self.ranked);
            self.ranked.sort_unstable_by_key(|c| c.id);
            for c in &self.ranked {
                push(&mut self.dist, c.id, c.logit, max, o.temperature);
            }
        }
        if self.dist.normalise() { Ok(()) } else { Err(SamplingError::NothingLeft { vocab: self.vocab }) }
    }
}

impl std::fmt::Debug for Sampler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sampler")
            .field("options", &self.options)
            .field("seed", &self.seed)
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}

/// Steps 1 to 3, into a copy.
fn adjust(
    options: &SamplerOptions,
    window: &Window,
    hooks: &mut [Box<dyn LogitHook>],
    raw: &[f32],
    out: &mut Vec<f32>,
) -> Result<(), SamplingError> {
    out.clear();
    out.extend_from_slice(raw);
    if options.penalises() {
        window.apply(options, out);
    }
    for (&id, &bias) in &options.logit_bias {
        if let Some(x) = usize::try_from(id).ok().and_then(|i| out.get_mut(i)) {
            *x += bias;
        }
    }
    for hook in hooks {
        hook.apply(out)?;
    }
    Ok(())
}

fn push(dist: &mut Distribution, id: u32, logit: f32, max: f32, temperature: f32) {
    let p = exp((f64::from(logit) - f64::from(max)) / f64::from(temperature));
    if p > 0.0 {
        dist.ids.push(id);
        dist.probs.push(p);
    }
}

/// Steps 4 to 6: leaves the survivors in `ranked`, best first.
///
/// Without top-k, the number of candidates that top-p and min-p need is unknown beforehand. It is nearly always small, so
/// the best 64 are tried first, then eight times as many: each try is one pass over the vocabulary.
fn filter(options: &SamplerOptions, logits: &[f32], max: f32, ranked: &mut Vec<Candidate>) {
    let weight = |c: &Candidate| exp(f64::from(c.logit) - f64::from(max));
    if options.top_k > 0 {
        top_k(logits, options.top_k.min(logits.len()), ranked);
        let mass = if options.top_p < 1.0 { ranked.iter().map(weight).sum() } else { 0.0 };
        let keep = prefix(options, ranked, mass, max).unwrap_or(ranked.len());
        ranked.truncate(keep);
        return;
    }
    let mass = if options.top_p < 1.0 { exp_sum(logits, max) } else { 0.0 };
    let mut k = 64;
    loop {
        top_k(logits, k.min(logits.len()), ranked);
        if let Some(keep) = prefix(options, ranked, mass, max) {
            ranked.truncate(keep);
            return;
        }
        if k >= logits.len() {
            return;
        }
        k = k.saturating_mul(8);
    }
}

/// How many of the ranked candidates top-p and min-p keep; `None` if neither has cut yet, so that more are needed.
fn prefix(options: &SamplerOptions, ranked: &[Candidate], mass: f64, max: f32) -> Option<usize> {
    debug_assert!(ranked.is_sorted_by(|a, b| by_rank(a, b).is_le()));
    let enough = f64::from(options.top_p) * mass;
    // min-p in the log domain: p < min_p * p_max is the same as logit < max + ln(min_p).
    let floor = f64::from(max) + libm::log(f64::from(options.min_p));
    let mut sum = 0.0;
    for (i, c) in ranked.iter().enumerate() {
        if options.min_p > 0.0 && i > 0 && f64::from(c.logit) < floor {
            return Some(i);
        }
        if options.top_p < 1.0 {
            sum += exp(f64::from(c.logit) - f64::from(max));
            if sum >= enough {
                return Some(i + 1);
            }
        }
    }
    None
}
