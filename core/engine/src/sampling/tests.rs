//! The sampler against a naive one that sorts the whole vocabulary, against its own distribution, and against bad input.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// Logits that look like a model's: a bell around 0 with a few favourites; from integers only.
fn logits(vocab: usize, salt: u64) -> Vec<f32> {
    let draws = Draws::new(salt);
    (0..vocab as u64)
        .map(|i| {
            let bits = draws.bits(Lane::Token, i);
            let bell: i32 = (0..4).map(|k| ((bits >> (8 * k)) & 0xff) as i32).sum::<i32>() - 510;
            let favourite = if bits >> 54 == 0 { 700 } else { 0 };
            (bell + favourite) as f32 * 0.015_625
        })
        .collect()
}

/// Softmax over everything, a full sort, then each filter in the documented order.
fn naive(o: &SamplerOptions, logits: &[f32]) -> Vec<(u32, f64)> {
    let mut all: Vec<(u32, f64)> =
        logits.iter().enumerate().map(|(i, &x)| (i as u32, f64::from(x))).collect();
    for (id, x) in &mut all {
        *x += f64::from(o.logit_bias.get(id).copied().unwrap_or(0.0));
    }
    all.retain(|(_, x)| *x > f64::NEG_INFINITY);
    all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    if o.temperature == 0.0 {
        return vec![(all[0].0, 1.0)];
    }
    if o.top_k > 0 {
        all.truncate(o.top_k);
    }
    let max = all[0].1;
    let mass: f64 = all.iter().map(|a| (a.1 - max).exp()).sum();
    if o.top_p < 1.0 {
        let mut sum = 0.0;
        let keep = all.iter().take_while(|a| {
            let more = sum < f64::from(o.top_p) * mass;
            sum += (a.1 - max).exp();
            more
        });
        let keep = keep.count();
        all.truncate(keep);
    }
    all.retain(|a| (a.1 - max).exp() >= f64::from(o.min_p) * (1.0 - 1e-12));
    let total: f64 = all.iter().map(|a| ((a.1 - max) / f64::from(o.temperature)).exp()).sum();
    let mut out: Vec<_> =
        all.iter().map(|a| (a.0, ((a.1 - max) / f64::from(o.temperature)).exp() / total)).collect();
    out.sort_by_key(|a| a.0);
    out
}

fn compare(o: &SamplerOptions, logits: &[f32]) {
    let mut sampler = Sampler::new(o.clone(), logits.len()).unwrap();
    let got: Vec<_> = sampler.distribution(logits).unwrap().iter().collect();
    let want = naive(o, logits);
    assert_eq!(
        got.iter().map(|a| a.0).collect::<Vec<_>>(),
        want.iter().map(|a| a.0).collect::<Vec<_>>(),
        "{o:?}"
    );
    for (g, w) in got.iter().zip(&want) {
        assert!((g.1 - w.1).abs() < 1e-12, "{g:?} {w:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn distributions_equal_the_naive_ones(
        salt in any::<u64>(), vocab in 1usize..3000,
        temperature in prop_oneof![Just(0.0f32), Just(1.0f32), 0.05f32..3.0],
        top_k in prop_oneof![Just(0usize), Just(1usize), 1usize..200, Just(5000usize)],
        // Odd values, so that no cumulative sum lands on the border within rounding.
        top_p in prop_oneof![Just(1.0f32), 0.013f32..0.9987],
        min_p in prop_oneof![Just(0.0f32), 0.0013f32..0.97],
        bias in prop::collection::btree_map(0u32..3000, prop_oneof![Just(f32::NEG_INFINITY), Just(3.5f32), Just(-2.25f32)], 0..4),
    ) {
        let row = logits(vocab, salt);
        let mut logit_bias: BTreeMap<u32, f32> = bias.into_iter().filter(|(id, _)| (*id as usize) < vocab).collect();
        if logit_bias.len() == vocab {
            logit_bias.clear();
        }
        let o = SamplerOptions { temperature, top_k, top_p, min_p, logit_bias, ..SamplerOptions::default() };
        compare(&o, &row);
    }

    #[test]
    fn hostile_logits_give_an_error_or_a_real_token(
        row in prop::collection::vec(prop_oneof![
            6 => any::<f32>(), 1 => Just(f32::MAX), 1 => Just(f32::MIN), 1 => Just(f32::NEG_INFINITY), 3 => -3.0f32..3.0], 0..80),
        temperature in prop_oneof![Just(0.0f32), Just(f32::MIN_POSITIVE), Just(f32::MAX), 0.1f32..2.0],
        penalty in prop_oneof![Just(1.0f32), Just(f32::MIN_POSITIVE), Just(f32::MAX)],
        frequency in prop_oneof![Just(0.0f32), Just(f32::MAX), Just(f32::MIN)],
        top_k in 0usize..5, top_p in prop_oneof![Just(1.0f32), Just(f32::MIN_POSITIVE), Just(0.5f32)],
        min_p in prop_oneof![Just(0.0f32), Just(1.0f32), Just(f32::MIN_POSITIVE)],
    ) {
        let o = SamplerOptions {
            temperature, repetition_penalty: penalty, frequency_penalty: frequency, top_k, top_p, min_p, top_logprobs: 3,
            ..SamplerOptions::default()
        };
        let mut sampler = Sampler::new(o, row.len()).unwrap();
        sampler.observe(&[0, 1, 1, 7_000_000]);
        if let Ok(token) = sampler.sample(&row) {
            prop_assert!(row[token.id as usize].is_finite());
            prop_assert!(token.logprob <= 0.0 && token.entropy >= 0.0 && (0.0..=1.0).contains(&token.margin));
        }
    }
}

#[test]
fn a_nucleus_wider_than_the_first_tries_is_found() {
    // Flat logits: the nucleus is most of the vocabulary.
    let flat: Vec<f32> = (0..40_000).map(|i| ((i * 7919) % 97) as f32 * 0.001).collect();
    compare(&SamplerOptions { top_k: 0, top_p: 0.913, min_p: 0.0, ..SamplerOptions::default() }, &flat);
}

#[test]
fn frequencies_follow_the_distribution() {
    let row: Vec<f32> = vec![0.1, 1.2, -0.7, 2.0, 0.4, 1.9, -3.0, 0.0, 1.0, -1.0];
    for o in [
        SamplerOptions {
            temperature: 1.3,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            seed: Some(5),
            ..SamplerOptions::default()
        },
        SamplerOptions {
            temperature: 0.7,
            top_k: 6,
            top_p: 0.93,
            min_p: 0.02,
            seed: Some(6),
            ..SamplerOptions::default()
        },
    ] {
        let mut sampler = Sampler::new(o, row.len()).unwrap();
        let dist = sampler.distribution(&row).unwrap().clone();
        let n = 50_000u32;
        let mut counts = vec![0u32; row.len()];
        for _ in 0..n {
            counts[sampler.sample(&row).unwrap().id as usize] += 1;
        }
        let chi: f64 = dist
            .iter()
            .map(|(id, p)| (f64::from(counts[id as usize]) - p * f64::from(n)).powi(2) / (p * f64::from(n)))
            .sum();
        // At most 9 degrees of freedom: above 27.9 with probability 0.001.
        assert!(chi < 27.9, "{chi}: {counts:?}");
        let drawn: u32 = dist.ids().iter().map(|&id| counts[id as usize]).sum();
        assert_eq!(drawn, n, "a filtered token was drawn");
    }
}

#[test]
fn a_seed_gives_the_same_tokens_on_every_machine() {
    let o = SamplerOptions {
        temperature: 1.1,
        top_k: 50,
        top_p: 0.98,
        min_p: 0.01,
        repetition_penalty: 1.1,
        frequency_penalty: 0.2,
        seed: Some(42),
        ..SamplerOptions::default()
    };
    let run = |o: &SamplerOptions| {
        let mut sampler = Sampler::new(o.clone(), 1000).unwrap();
        (0..24).map(|step| sampler.sample(&logits(1000, step)).unwrap().id).collect::<Vec<_>>()
    };
    assert_eq!(run(&o), GOLDEN);
    assert_eq!(run(&o), GOLDEN);
    assert_ne!(run(&SamplerOptions { seed: Some(43), ..o.clone() }), GOLDEN);
    // Without a seed two samplers pick different ones, and say which.
    let free = SamplerOptions { seed: None, ..o };
    let (a, b) = (Sampler::new(free.clone(), 9).unwrap().seed(), Sampler::new(free, 9).unwrap().seed());
    assert_ne!(a, b);
}

/// Written down once; a change here changes every user's answers.
const GOLDEN: [u32; 24] = [
    821, 240, 872, 151, 979, 409, 58, 111, 786, 327, 286, 658, 875, 522, 178, 101, 113, 206, 118, 626, 851,
    753, 779, 494,
];

#[test]
fn picking_is_repeatable_and_a_fork_goes_its_own_way() {
    let row = logits(500, 3);
    let mut sampler =
        Sampler::new(SamplerOptions { seed: Some(1), ..SamplerOptions::unfiltered() }, 500).unwrap();
    let first = sampler.pick(&row).unwrap();
    assert_eq!(sampler.pick(&row).unwrap(), first);
    let mut fork = sampler.fork();
    fork.accept(first.id).unwrap();
    assert_eq!((fork.position(), sampler.position()), (1, 0));
    sampler.accept(first.id).unwrap();
    assert_eq!(fork.sample(&row).unwrap(), sampler.sample(&row).unwrap());
}

#[test]
fn greedy_takes_the_lowest_id_among_equals() {
    let mut sampler = Sampler::new(SamplerOptions::greedy(), 5).unwrap();
    assert_eq!(sampler.sample(&[0.0, 2.0, 2.0, 1.0, 2.0]).unwrap().id, 1);
}

#[test]
fn penalties_see_the_prompt_and_the_answer() {
    let o = SamplerOptions { presence_penalty: 5.0, penalty_window: 2, ..SamplerOptions::greedy() };
    let mut sampler = Sampler::new(o, 4).unwrap();
    sampler.observe(&[3, 3, 0]);
    let row = [4.0, 3.0, 2.0, 8.0];
    // The window holds 3 and 0; then 0 and 1; …
    let got: Vec<_> = (0..4).map(|_| sampler.sample(&row).unwrap()).collect();
    assert_eq!(got.iter().map(|t| t.id).collect::<Vec<_>>(), [1, 3, 0, 1]);
    // The report is about the model's own opinion, whatever the penalties did.
    let stats = LogitStats::of(&row).unwrap();
    assert!((f64::from(got[0].logprob) - stats.logprob(3.0)).abs() < 1e-6);
}

/// Allows even tokens only, and counts what it saw.
struct Even(Vec<u32>);

impl LogitHook for Even {
    fn apply(&mut self, logits: &mut [f32]) -> Result<(), HookError> {
        if self.0.len() == 3 {
            return Err(HookError { hook: "even".into(), reason: "three are enough".into() });
        }
        for x in logits.iter_mut().skip(1).step_by(2) {
            *x = f32::NEG_INFINITY;
        }
        Ok(())
    }
    fn accept(&mut self, token: u32) -> Result<(), HookError> {
        self.0.push(token);
        Ok(())
    }
    fn fork(&self) -> Box<dyn LogitHook> {
        Box::new(Self(self.0.clone()))
    }
}

#[test]
fn hooks_have_the_last_word_and_their_errors_surface() {
    let o = SamplerOptions { logit_bias: BTreeMap::from([(1, 100.0), (2, 1.0)]), ..SamplerOptions::greedy() };
    let mut sampler = Sampler::new(o, 4).unwrap();
    sampler.add_hook(Box::new(Even(Vec::new())));
    let row = [0.0, 9.0, 0.5, 9.0];
    let ids: Vec<_> = (0..3).map(|_| sampler.sample(&row).unwrap().id).collect();
    assert_eq!(ids, [2, 2, 2]);
    assert!(matches!(sampler.sample(&row), Err(SamplingError::Hook(_))));
    // The only allowed tokens banned: nothing is left.
    let ban = SamplerOptions {
        logit_bias: BTreeMap::from([(0, f32::NEG_INFINITY), (2, f32::NEG_INFINITY)]),
        ..SamplerOptions::default()
    };
    let mut sampler = Sampler::new(ban, 4).unwrap();
    sampler.add_hook(Box::new(Even(Vec::new())));
    assert_eq!(sampler.sample(&row), Err(SamplingError::NothingLeft { vocab: 4 }));
}

#[test]
fn bad_rows_and_bad_options_are_typed_errors() {
    let mut sampler = Sampler::new(SamplerOptions::default(), 3).unwrap();
    assert_eq!(sampler.sample(&[0.0; 2]), Err(SamplingError::WrongLength { found: 2, vocab: 3 }));
    assert!(matches!(sampler.sample(&[0.0, f32::NAN, 1.0]), Err(SamplingError::NotFinite { id: 1, .. })));
    assert_eq!(sampler.position(), 0);
    let bad = |o: SamplerOptions| match Sampler::new(o, 10) {
        Err(SamplingError::InvalidOption { option, .. } | SamplingError::UnknownToken { option, .. }) => {
            option
        }
        other => panic!("{other:?}"),
    };
    let d = SamplerOptions::default;
    assert_eq!(bad(SamplerOptions { temperature: -0.1, ..d() }), "temperature");
    assert_eq!(bad(SamplerOptions { temperature: f32::NAN, ..d() }), "temperature");
    assert_eq!(bad(SamplerOptions { top_p: 0.0, ..d() }), "top_p");
    assert_eq!(bad(SamplerOptions { top_p: f32::NAN, ..d() }), "top_p");
    assert_eq!(bad(SamplerOptions { min_p: 1.5, ..d() }), "min_p");
    assert_eq!(bad(SamplerOptions { repetition_penalty: 0.0, ..d() }), "repetition_penalty");
    assert_eq!(bad(SamplerOptions { frequency_penalty: f32::INFINITY, ..d() }), "frequency_penalty");
    assert_eq!(bad(SamplerOptions { presence_penalty: f32::NAN, ..d() }), "presence_penalty");
    assert_eq!(bad(SamplerOptions { top_logprobs: 101, ..d() }), "top_logprobs");
    assert_eq!(bad(SamplerOptions { logit_bias: BTreeMap::from([(10, 1.0)]), ..d() }), "logit_bias");
    assert_eq!(bad(SamplerOptions { logit_bias: BTreeMap::from([(1, f32::INFINITY)]), ..d() }), "logit_bias");
}

#[test]
fn alternatives_are_reported_best_first() {
    let o = SamplerOptions { top_logprobs: 2, ..SamplerOptions::greedy() };
    let token = Sampler::new(o, 4).unwrap().sample(&[1.0, 3.0, 2.0, 0.0]).unwrap();
    assert_eq!(token.top.iter().map(|t| t.0).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(token.top[0].1, token.logprob);
}
