//! Frequencies of sampled tokens with guesses and without.
//!
//! The text of a seed is the same either way, which says more than frequencies do. This test does not rely on it: each side draws from seeds of
//! its own, so that a rule that is wrong shows as a wrong distribution.

use crate::golden_support::tiny;
use crate::models::{answer, full, model, runner};
use pannier::CancelFlag;
use pannier::model::{Forward, Outputs, Runner};
use pannier::sampling::{Sampler, SamplerOptions};
use pannier::session::GenerationOptions;
use pannier::speculate::{Ask, CLASSES, Proposal, Proposer, Speculation, verify};
use std::collections::BTreeMap;
use std::sync::Arc;

/// In the long version; a fifth in the short one.
const DRAWS: usize = 100_000;
/// Tokens per answer: the first one comes from the prompt's pass, the others from passes with guesses.
const TOKENS: usize = 5;
/// Each seed is one answer, of one prompt.
const PROMPT: [u32; 4] = [3, 17, 5, 9];
/// A pair of tokens is told apart by its first token's bucket and its second's.
const BUCKETS: u32 = 12;

/// Guesses the same token at the same place, a probable one: right often, not always.
struct Stubborn(Vec<u32>);

impl Proposer for Stubborn {
    fn name(&self) -> &'static str {
        "stubborn"
    }

    fn prior(&self) -> [f64; CLASSES] {
        [0.2; CLASSES]
    }

    fn propose(&mut self, ask: &Ask<'_>, out: &mut Proposal) -> pannier::Result<()> {
        for i in 0..ask.max {
            let place = ask.len() - PROMPT.len() + i;
            if !self.0.get(place).is_some_and(|&id| out.push(ask, id, 0)) {
                break;
            }
        }
        Ok(())
    }
}

type Counts = BTreeMap<(usize, u32, u32), u32>;

/// Chi-square of two samples of equal size (Numerical Recipes, 14.3), over cells with enough in them, and its degrees of freedom.
fn chi_square(a: &Counts, b: &Counts) -> (f64, f64) {
    let (mut chi, mut cells, mut rest) = (0.0, 0.0, (0.0, 0.0));
    let keys: std::collections::BTreeSet<_> = a.keys().chain(b.keys()).collect();
    for key in keys {
        let of = |counts: &Counts| f64::from(counts.get(key).copied().unwrap_or(0));
        let (x, y) = (of(a), of(b));
        if x + y < 20.0 {
            rest = (rest.0 + x, rest.1 + y);
            continue;
        }
        chi += (x - y).powi(2) / (x + y);
        cells += 1.0;
    }
    if rest.0 + rest.1 > 0.0 {
        chi += (rest.0 - rest.1).powi(2) / (rest.0 + rest.1);
        cells += 1.0;
    }
    (chi, cells - 1.0)
}

/// The value that chi-square exceeds by chance once in 10 000 times (Wilson and Hilferty, 1931).
fn limit(freedom: f64) -> f64 {
    let x = 2.0 / (9.0 * freedom);
    freedom * (1.0 - x + 3.719 * x.sqrt()).powi(3)
}

fn add(counts: &mut Counts, ids: impl Iterator<Item = u32>) {
    let ids: Vec<u32> = ids.collect();
    for (place, pair) in ids.windows(2).enumerate() {
        *counts.entry((place, pair[0] % BUCKETS, pair[1] % BUCKETS)).or_insert(0) += 1;
    }
}

#[test]
fn frequencies_do_not_tell_whether_tokens_were_guessed() {
    let model = model(&tiny("tiny-llama-Q4_K_M.gguf"), None, None);
    let session = model.session();
    // A temperature at which the random model has some favourites.
    let options = |seed: u64| GenerationOptions {
        max_tokens: Some(TOKENS),
        sampler: SamplerOptions {
            temperature: 0.2,
            top_k: 0,
            seed: Some(seed),
            ..SamplerOptions::unfiltered()
        },
        ..GenerationOptions::default()
    };
    // What it says most often at a place becomes the guess there.
    let mut said: [BTreeMap<u32, u32>; TOKENS] = Default::default();
    for seed in 0..200 {
        for (said, id) in said.iter_mut().zip(answer(&session, &PROMPT, options(1_000_000 + seed)).ids()) {
            *said.entry(id).or_insert(0) += 1;
        }
    }
    let most = |said: &BTreeMap<u32, u32>| said.iter().max_by_key(|(_, n)| **n).map_or(0, |(id, _)| *id);
    let heads: Vec<u32> = said.iter().map(most).collect();
    let guesses = heads.clone();
    let stubborn =
        Speculation::Custom(Arc::new(move || -> Box<dyn Proposer> { Box::new(Stubborn(guesses.clone())) }));

    let answers = if full() { DRAWS } else { DRAWS / 5 } / TOKENS;
    let (mut plain, mut guessed) = (Counts::new(), Counts::new());
    let mut accepted = 0;
    for i in 0..answers as u64 {
        add(&mut plain, answer(&session, &PROMPT, options(2 * i)).ids());
        let options = GenerationOptions {
            speculation: Some(stubborn.clone()),
            draft_len: Some(3),
            ..options(2 * i + 1)
        };
        let done = answer(&session, &PROMPT, options);
        accepted += done.stats.speculation.accepted_tokens;
        add(&mut guessed, done.ids());
    }
    assert!(accepted > answers / 20, "only {accepted} guesses were right: the test would see nothing");
    let (chi, freedom) = chi_square(&plain, &guessed);
    assert!(freedom > 50.0, "{freedom} cells");
    assert!(
        chi < limit(freedom),
        "chi-square {chi:.1} with {freedom} degrees of freedom, limit {:.1}",
        limit(freedom)
    );

    // The same test finds rules that are off by one; by hand, with the right one to show that it is the rule.
    let mut runner = runner(&tiny("tiny-llama-Q4_K_M.gguf"), None);
    for (name, row) in RULES {
        let mut counts = Counts::new();
        for i in 0..answers as u64 {
            let mut sampler = Sampler::new(options(2 * i + 1).sampler, runner.vocab()).unwrap();
            add(&mut counts, by_hand(&mut runner, &mut sampler, &heads, row).into_iter());
        }
        let (chi, freedom) = chi_square(&plain, &counts);
        let found = chi > limit(freedom);
        assert_eq!(found, name != "right", "{name}: chi-square {chi:.1}, limit {:.1}", limit(freedom));
    }
}

/// Which row of a pass is drawn from for the token at an index.
type Rule = fn(usize) -> usize;

const RULES: [(&str, Rule); 3] = [
    ("right", |index| index),
    ("one late", |index| index.saturating_sub(1)),
    ("one early", |index| (index + 1).min(3)),
];

/// An answer with three guesses in each pass.
fn by_hand(runner: &mut Runner, sampler: &mut Sampler, guesses: &[u32], rule: Rule) -> Vec<u32> {
    let (cancel, vocab) = (CancelFlag::new(), runner.vocab());
    let mut seq = runner.new_seq().unwrap();
    let mut ids =
        vec![sampler.sample(runner.step(&mut seq, &PROMPT, Outputs::Last, &cancel).unwrap()).unwrap().id];
    while ids.len() < TOKENS {
        let fed = PROMPT.len() + ids.len() - 1;
        let mut tokens = vec![ids[ids.len() - 1]];
        tokens.extend((0..3).map(|i| guesses[(ids.len() + i).min(TOKENS - 1)]));
        let rows = runner.step(&mut seq, &tokens, Outputs::All, &cancel).unwrap();
        let done = verify(rows, vocab, &tokens[1..], |index, _| {
            let row = &rows[rule(index) * vocab..][..vocab];
            let id = sampler.sample(row)?.id;
            ids.push(id);
            Ok::<_, pannier::sampling::SamplingError>((id, id, ids.len() == TOKENS))
        });
        runner.truncate(&mut seq, fed + done.unwrap().rows).unwrap();
    }
    ids
}
