//! What a generation tells about itself, as a fixed list of numbers.

use pannier::TokenInfo;
use pannier::session::FinishReason;

/// What a token is made of, which decides how much of the answer hangs on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TokenKind {
    /// Punctuation, spaces, control tokens; also what nobody looked at.
    #[default]
    Other,
    /// Has a letter.
    Word,
    /// Has a digit.
    Number,
}

impl TokenKind {
    /// Of a token with this text.
    #[must_use]
    pub fn of(text: &str) -> Self {
        if text.chars().any(char::is_numeric) {
            Self::Number
        } else if text.chars().any(char::is_alphabetic) {
            Self::Word
        } else {
            Self::Other
        }
    }
}

/// What is kept of a token: 20 bytes, so that a long answer costs little.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenScore {
    /// The token.
    pub id: u32,
    /// What it is made of.
    pub kind: TokenKind,
    /// Natural logarithm of its probability.
    pub logprob: f32,
    /// Probability of the first minus that of the second.
    pub margin: f32,
    /// Entropy in nats.
    pub entropy: f32,
}

impl TokenScore {
    /// Of a token of this kind.
    #[must_use]
    pub fn new(token: &TokenInfo, kind: TokenKind) -> Self {
        Self { id: token.id, kind, logprob: token.logprob, margin: token.margin, entropy: token.entropy }
    }
}

/// The names of the features, in their order. A stored calibration names those it was fitted on, so that an old file is not
/// applied to other numbers.
pub const FEATURES: [&str; 26] = [
    "mean_logprob",
    "min_logprob",
    "p10_logprob",
    "sum_logprob",
    "first_logprob",
    "mean_margin",
    "min_margin",
    "first_margin",
    "mean_entropy",
    "max_entropy",
    "first_entropy",
    "unsure_share",
    "log_length",
    "repetition",
    "ended_itself",
    "p_true",
    "p_true_known",
    "last_content_logprob",
    "word_min_logprob",
    "number_min_logprob",
    "number_sum_logprob",
    "log_number_tokens",
    "prompt_log_words",
    "prompt_log_digits",
    "prompt_longest_number",
    "prompt_symbol_share",
];

/// The features that look at the question, not at the answer.
pub const PROMPT_FEATURES: [&str; 4] =
    ["prompt_log_words", "prompt_log_digits", "prompt_longest_number", "prompt_symbol_share"];

/// How the question looks: small models fail on long numbers and on code, however sure they are.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct PromptShape {
    log_words: f64,
    log_digits: f64,
    longest_number: f64,
    symbol_share: f64,
}

impl PromptShape {
    #[allow(clippy::cast_precision_loss)] // lengths of texts
    fn of(text: &str) -> Self {
        let count = |f: &dyn Fn(char) -> bool| text.chars().filter(|c| f(*c)).count() as f64;
        let longest = text.split(|c: char| !c.is_ascii_digit()).map(str::len).max().unwrap_or(0);
        let symbols =
            count(&|c| !c.is_alphanumeric() && !c.is_whitespace() && !matches!(c, '.' | ',' | '?' | '!'));
        Self {
            log_words: (text.split_whitespace().count() as f64).ln_1p(),
            log_digits: count(&|c| c.is_ascii_digit()).ln_1p(),
            longest_number: longest.min(12) as f64,
            symbol_share: symbols / count(&|_| true).max(1.0),
        }
    }
}

/// The numbers that a calibration weighs.
#[derive(Debug, Clone, PartialEq)]
pub struct Features(pub [f64; FEATURES.len()]);

/// Log-odds are cut here: beyond, they are noise of the arithmetic.
const MAX_LOG_ODDS: f64 = 8.0;

impl Features {
    /// The mean entropy over `ln(vocab)`, subtracted from 1: the rule that is common in the field, for comparison.
    #[must_use]
    pub fn entropy_rule(&self, vocab: usize) -> f64 {
        #[allow(clippy::cast_precision_loss)] // vocabularies are small
        let most = (vocab.max(2) as f64).ln();
        (1.0 - self.get("mean_entropy") / most).clamp(0.0, 1.0)
    }

    /// A feature by its name; 0 for a name that is none.
    #[must_use]
    pub fn get(&self, name: &str) -> f64 {
        FEATURES.iter().zip(self.0).find(|(n, _)| **n == name).map_or(0.0, |(_, x)| x)
    }

    /// Whether the model was asked about its answer.
    #[must_use]
    pub fn knows_p_true(&self) -> bool {
        self.get("p_true_known") > 0.5
    }

    /// The same without the model's own opinion.
    #[must_use]
    pub fn without_p_true(&self) -> Self {
        self.without(&["p_true", "p_true_known"])
    }

    /// The same with 0 for these: what is always the same gets no weight.
    #[must_use]
    pub fn without(&self, names: &[&str]) -> Self {
        let mut all = self.clone();
        for (name, x) in FEATURES.iter().zip(&mut all.0) {
            if names.contains(name) {
                *x = 0.0;
            }
        }
        all
    }
}

/// The scores of an answer or of a piece of it, growing as it comes.
#[derive(Debug, Clone, Default)]
pub struct Observed {
    tokens: Vec<TokenScore>,
    finish: Option<FinishReason>,
    p_true: Option<f64>,
    prompt: PromptShape,
}

impl Observed {
    /// Nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Nothing yet, of an answer to this question.
    #[must_use]
    pub fn answer_to(prompt: &str) -> Self {
        Self { prompt: PromptShape::of(prompt), ..Self::default() }
    }

    /// Adds a token.
    pub fn push(&mut self, token: TokenScore) {
        self.tokens.push(token);
    }

    /// Adds all of these, whose kinds `kind` tells.
    pub fn extend<'a>(
        &mut self,
        tokens: impl IntoIterator<Item = &'a TokenInfo>,
        kind: impl Fn(u32) -> TokenKind,
    ) {
        self.tokens.extend(tokens.into_iter().map(|t| TokenScore::new(t, kind(t.id))));
    }

    /// Says how the answer ended. Not said for pieces and for answers under way.
    pub fn finish(&mut self, reason: FinishReason) {
        self.finish = Some(reason);
    }

    /// Says what probability the model itself gives to being right.
    pub fn set_p_true(&mut self, p: f64) {
        self.p_true = Some(p.clamp(0.0, 1.0));
    }

    /// How many tokens there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there is no token yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Begins the next piece of the same answer; keeps the memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.finish = None;
        self.p_true = None;
    }

    /// The features of what there is. `None` without a token: nothing can be said then.
    #[must_use]
    #[allow(clippy::cast_precision_loss)] // token counts are small
    pub fn features(&self) -> Option<Features> {
        let first = self.tokens.first()?;
        let n = self.tokens.len() as f64;
        // A banned or impossible token has minus infinity; e^-30 is as good as never.
        let finite = |x: f32, low: f64, high: f64| {
            let x = f64::from(x);
            if x.is_nan() { low } else { x.clamp(low, high) }
        };
        let logprob = |t: &TokenScore| finite(t.logprob, -30.0, 0.0);
        let margin = |t: &TokenScore| finite(t.margin, 0.0, 1.0);
        let entropy = |t: &TokenScore| finite(t.entropy, 0.0, 20.0);
        let mut sorted: Vec<f64> = self.tokens.iter().map(logprob).collect();
        sorted.sort_by(f64::total_cmp);
        let sum: f64 = sorted.iter().sum();
        let mean = |f: &dyn Fn(&TokenScore) -> f64| self.tokens.iter().map(f).sum::<f64>() / n;
        let unsure = self.tokens.iter().filter(|t| logprob(t) < -0.5).count() as f64 / n;
        let ended = match self.finish {
            None => 0.5,
            Some(FinishReason::Stop { .. } | FinishReason::StopString { .. }) => 1.0,
            Some(_) => 0.0,
        };
        let of = |kind: TokenKind| self.tokens.iter().filter(move |t| t.kind == kind);
        let least = |kind| of(kind).map(logprob).fold(0.0, f64::min);
        let numbers = of(TokenKind::Number).count() as f64;
        // Answers end with what was asked for more often than they begin with it.
        let last = self.tokens.iter().rfind(|t| t.kind != TokenKind::Other).unwrap_or(first);
        let odds = self.p_true.map_or(0.0, |p| (p / (1.0 - p)).ln().clamp(-MAX_LOG_ODDS, MAX_LOG_ODDS));
        let ask = self.prompt;
        Some(Features([
            sum / n,
            sorted.first().copied().unwrap_or(0.0),
            quantile(&sorted, 0.1),
            // Long answers are not wrong for being long: beyond a paragraph the sum says nothing more.
            sum.max(-40.0),
            logprob(first),
            mean(&margin),
            self.tokens.iter().map(margin).fold(1.0, f64::min),
            margin(first),
            mean(&entropy),
            self.tokens.iter().map(entropy).fold(0.0, f64::max),
            entropy(first),
            unsure,
            n.ln(),
            self.repetition(),
            ended,
            odds,
            if self.p_true.is_some() { 1.0 } else { 0.0 },
            logprob(last),
            least(TokenKind::Word),
            least(TokenKind::Number),
            of(TokenKind::Number).map(logprob).sum::<f64>().max(-40.0),
            numbers.ln_1p(),
            ask.log_words,
            ask.log_digits,
            ask.longest_number,
            ask.symbol_share,
        ]))
    }

    /// Share of three-token windows that occurred before: 0 for ordinary text, towards 1 for a loop.
    #[allow(clippy::cast_precision_loss)]
    fn repetition(&self) -> f64 {
        let windows = self.tokens.len().saturating_sub(2);
        if windows == 0 {
            return 0.0;
        }
        let ids = self.tokens.windows(3).filter_map(|w| match w {
            [a, b, c] => Some((a.id, b.id, c.id)),
            _ => None,
        });
        let distinct: std::collections::HashSet<(u32, u32, u32)> = ids.collect();
        1.0 - distinct.len() as f64 / windows as f64
    }
}

/// The value below which a share `q` of the sorted values lies, interpolated.
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn quantile(sorted: &[f64], q: f64) -> f64 {
    let at = q * sorted.len().saturating_sub(1) as f64;
    let low = at.floor() as usize;
    let a = sorted.get(low).copied().unwrap_or(0.0);
    let b = sorted.get(low + 1).copied().unwrap_or(a);
    a + (b - a) * (at - low as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(id: u32, logprob: f32) -> TokenScore {
        TokenScore { id, kind: TokenKind::Other, logprob, margin: 0.5, entropy: 1.0 }
    }

    fn of(logprobs: &[f32]) -> Observed {
        let mut seen = Observed::new();
        for (id, &p) in (0u32..).zip(logprobs) {
            seen.push(token(id, p));
        }
        seen
    }

    fn get(features: &Features, name: &str) -> f64 {
        assert!(FEATURES.contains(&name), "{name}");
        features.get(name)
    }

    #[test]
    fn features_are_what_their_names_say() {
        let mut seen = of(&[-1.0, -0.1, -0.2, -3.0]);
        seen.finish(FinishReason::Length);
        let f = seen.features().unwrap();
        let near =
            |name, want: f64| assert!((get(&f, name) - want).abs() < 1e-6, "{name}: {}", get(&f, name));
        near("mean_logprob", -1.075);
        near("min_logprob", -3.0);
        near("p10_logprob", -2.4);
        near("sum_logprob", -4.3);
        near("first_logprob", -1.0);
        near("unsure_share", 0.5);
        near("log_length", 4f64.ln());
        near("mean_entropy", 1.0);
        near("ended_itself", 0.0);
        near("p_true", 0.0);
        near("p_true_known", 0.0);
        seen.set_p_true(0.75);
        let f = seen.features().unwrap();
        assert!((get(&f, "p_true") - 3f64.ln()).abs() < 1e-9 && f.knows_p_true());
        assert!(!f.without_p_true().knows_p_true());
        assert!((f.entropy_rule(2) - (1.0 - 1.0 / 2f64.ln()).max(0.0)).abs() < 1e-9);
        assert!((f.entropy_rule(1000) - (1.0 - 1.0 / 1000f64.ln())).abs() < 1e-9);
    }

    #[test]
    fn what_carries_the_answer_is_told_apart() {
        assert_eq!(TokenKind::of(" 7th"), TokenKind::Number);
        assert_eq!(TokenKind::of(" Paris"), TokenKind::Word);
        assert_eq!(TokenKind::of("\".\n"), TokenKind::Other);
        let mut seen = Observed::answer_to("What is 12 + 3456?");
        for (text, logprob) in [("It", -0.1), (" is", -0.2), (" 3", -0.3), ("4", -0.4), (".", -0.9)] {
            seen.push(TokenScore { kind: TokenKind::of(text), ..token(0, logprob) });
        }
        let f = seen.features().unwrap();
        for (name, want) in [
            ("last_content_logprob", -0.4),
            ("word_min_logprob", -0.2),
            ("number_min_logprob", -0.4),
            ("number_sum_logprob", -0.7),
            ("log_number_tokens", 3f64.ln()),
            ("prompt_log_words", 6f64.ln()),
            ("prompt_log_digits", 7f64.ln()),
            ("prompt_longest_number", 4.0),
            ("prompt_symbol_share", 1.0 / 18.0),
        ] {
            assert!((get(&f, name) - want).abs() < 1e-6, "{name}: {}", get(&f, name));
        }
    }

    #[test]
    fn loops_are_seen() {
        let mut seen = Observed::new();
        for i in 0..40 {
            seen.push(token(i % 2, -0.1));
        }
        assert!(get(&seen.features().unwrap(), "repetition") > 0.9);
        assert_eq!(get(&of(&[-0.1; 40]).features().unwrap(), "repetition"), 0.0);
    }

    #[test]
    fn odd_numbers_stay_finite_and_nothing_gives_nothing() {
        assert!(Observed::new().features().is_none());
        let mut seen = of(&[f32::NEG_INFINITY, f32::NAN, 0.0]);
        seen.push(TokenScore { margin: f32::NAN, entropy: f32::INFINITY, ..token(9, 3.0) });
        seen.set_p_true(1.0);
        assert!(seen.features().unwrap().0.iter().all(|x| x.is_finite()));
        seen.clear();
        assert!(seen.features().is_none() && seen.is_empty());
    }
}
