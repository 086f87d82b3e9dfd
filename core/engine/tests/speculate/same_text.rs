//! The same tokens, probabilities and ends with guesses and without.

use crate::golden_support::{real, tiny};
use crate::models::{answer, full, model, model_with, prompt, scripted};
use pannier::kv::KvTypes;
use pannier::model::Runner;
use pannier::sampling::SamplerOptions;
use pannier::session::{Completion, GenerationOptions, Model};
use pannier::speculate::{MAX_DRAFT, Speculation, SpeculationError};
use pannier::{DraftOptions, Error, LoadOptions};
use std::sync::Arc;

/// What must not depend on guesses: tokens with the bits of their probabilities, text, end.
fn essence(done: &Completion) -> (Vec<(u32, u32, u32)>, String, pannier::FinishReason) {
    let bits = done.tokens.iter().map(|t| (t.id, t.logprob.to_bits(), t.entropy.to_bits())).collect();
    (bits, done.text.clone(), done.finish_reason)
}

/// Greedy; hot with penalties, which must see guessed tokens as they would have come; filtered.
fn samplers(seed: u64) -> [SamplerOptions; 3] {
    let hot = SamplerOptions {
        repetition_penalty: 1.2,
        frequency_penalty: 0.1,
        penalty_window: 24,
        seed: Some(seed),
        ..SamplerOptions::unfiltered()
    };
    let filtered = SamplerOptions { temperature: 0.5, seed: Some(seed), ..SamplerOptions::default() };
    [SamplerOptions::greedy(), hot, filtered]
}

fn compare(name: &str, model: &Arc<Model<Runner>>, prompts: std::ops::Range<usize>, lens: &[Option<usize>]) {
    let (session, plain) = (model.session(), model.session());
    let mut accepted = [0; 4];
    for index in prompts {
        let ids = prompt(index, model.vocab());
        // All prompts greedily; draws with some of them, where there are many.
        let some = if index < 8 || index % 8 == 0 { 3 } else { 1 };
        for sampler in samplers(index as u64).into_iter().take(some) {
            let options = GenerationOptions {
                max_tokens: Some(14 + index % 7),
                sampler,
                ..GenerationOptions::default()
            };
            let expected = answer(&plain, &ids, options.clone());
            let ways = [
                Speculation::Ngram,
                Speculation::Draft,
                scripted(&ids, &expected, model.vocab(), 0.7, index as u64),
                Speculation::Auto,
            ];
            for (way, speculation) in ways.into_iter().enumerate() {
                for &draft_len in lens {
                    // Each length with some of the prompts, in the short version.
                    if !full() && draft_len.is_some_and(|len| (len + index + way) % 4 != 0) {
                        continue;
                    }
                    let options = GenerationOptions {
                        speculation: Some(speculation.clone()),
                        draft_len,
                        ..options.clone()
                    };
                    let done = answer(&session, &ids, options);
                    assert_eq!(
                        essence(&done),
                        essence(&expected),
                        "{name}, prompt {index}, {speculation:?}, length {draft_len:?}"
                    );
                    assert_eq!(session.cached_tokens(), plain.cached_tokens(), "{name}, prompt {index}");
                    let stats = done.stats;
                    let passes = stats.generated_tokens - 1 - stats.speculation.accepted_tokens;
                    // A guessed token that ends the answer saves no pass.
                    assert!(stats.decode_passes == passes || stats.decode_passes == passes + 1, "{stats:?}");
                    accepted[way] += stats.speculation.accepted_tokens;
                }
            }
        }
    }
    // Random models repeat nothing, so n-grams are right by chance only; a real model's answers test them below.
    assert!(accepted.iter().skip(1).all(|&n| n > 0), "{name}: guesses were never right: {accepted:?}");
}

fn lens() -> Vec<Option<usize>> {
    (1..=MAX_DRAFT).map(Some).chain([None]).collect()
}

/// Dense, with experts, and with recurrent layers. Each drafts for itself; another one's guesses are mostly wrong.
const MODELS: [&str; 6] = [
    "tiny-llama-Q4_K_M",
    "arch-gemma3-dense",
    "tiny-qwen3moe-16e-Q8_0",
    "arch-qwen35-dense",
    "arch-lfm2moe-moe",
    "arch-qwen3next-moe",
];

fn check(share: Option<u64>) {
    for name in MODELS {
        let path = tiny(&format!("{name}.gguf"));
        let model = model(&path, share, Some(&path));
        compare(name, &model, 0..if full() { 200 } else { 4 }, &lens());
    }
}

#[test]
fn guesses_change_no_bit_of_an_answer() {
    check(None);
}

#[test]
fn guesses_change_no_bit_of_an_answer_of_streamed_models() {
    check(Some(50));
}

/// Guesses end pages that are taken back, and the halves of their keys must come back with them.
#[test]
fn guesses_change_no_bit_with_keys_per_channel() {
    let types = KvTypes { edges: 0, ..KvTypes::Q4_CHANNEL };
    for name in ["tiny-llama-Q4_K_M", "arch-gemma3-dense", "arch-qwen35-dense"] {
        let path = tiny(&format!("{name}.gguf"));
        let model = model_with(&path, None, Some(&path), types);
        compare(name, &model, 0..if full() { 200 } else { 4 }, &lens());
    }
}

#[test]
fn a_draft_model_that_is_mostly_wrong_changes_nothing() {
    // Both run on ids; their weights have nothing to do with each other.
    let (target, draft) = (tiny("tiny-llama-Q4_K_M.gguf"), tiny("tiny-llama-Q2_K.gguf"));
    let model = model(&target, None, Some(&draft));
    let (session, plain) = (model.session(), model.session());
    let (mut proposed, mut accepted) = (0, 0);
    for index in 0..8 {
        let ids = prompt(index, model.vocab());
        for sampler in samplers(index as u64) {
            let options = GenerationOptions { max_tokens: Some(24), sampler, ..GenerationOptions::default() };
            let expected = answer(&plain, &ids, options.clone());
            let options =
                GenerationOptions { speculation: Some(Speculation::Draft), draft_len: Some(5), ..options };
            let done = answer(&session, &ids, options);
            assert_eq!(essence(&done), essence(&expected));
            proposed += done.stats.speculation.proposed_tokens;
            accepted += done.stats.speculation.accepted_tokens;
        }
    }
    assert!(accepted > 0 && accepted < proposed, "{accepted} of {proposed}");
}

/// Beginnings that a text goes on from in different ways: by repeating, by quoting, freely.
const BEGINNINGS: [&str; 4] = [
    "red, green, blue, red, green, blue, red, green,",
    "<|im_start|>user\nRepeat this sentence: The ferry to Holm leaves at ten past six.<|im_end|>\n<|im_start|>assistant\n",
    "Once upon a time",
    "fn add(a: i32, b: i32) -> i32 {\n    a + b\n}\n\nfn sub(a: i32, b: i32) -> i32 {\n",
];

fn texts_of(target: &std::path::Path, draft: &std::path::Path, tokens: usize) {
    let load = LoadOptions { threads: Some(2), context: Some(256), ..LoadOptions::default() };
    let options =
        LoadOptions { draft: Some(DraftOptions::new(draft)), speculation: Some(Speculation::Off), ..load };
    let model = Model::load(target, &options, &mut |_| {}).unwrap();
    let (session, plain) = (model.session(), model.session());
    let mut accepted = [0; 3];
    for (index, text) in BEGINNINGS.into_iter().enumerate() {
        let ids = model.tokenizer().unwrap().encode_rendered(text);
        for sampler in samplers(index as u64) {
            let options =
                GenerationOptions { max_tokens: Some(tokens), sampler, ..GenerationOptions::default() };
            let expected = answer(&plain, &ids, options.clone());
            let ways =
                [(Speculation::Ngram, Some(4)), (Speculation::Draft, Some(3)), (Speculation::Auto, None)];
            for (way, (speculation, draft_len)) in ways.into_iter().enumerate() {
                let options = GenerationOptions {
                    speculation: Some(speculation.clone()),
                    draft_len,
                    ..options.clone()
                };
                let done = answer(&session, &ids, options);
                assert_eq!(essence(&done), essence(&expected), "{text:?} {speculation:?}");
                accepted[way] += done.stats.speculation.accepted_tokens;
            }
        }
    }
    assert!(accepted.iter().all(|&n| n > 0), "guesses were never right: {accepted:?}");
}

#[test]
fn guesses_change_no_bit_of_a_real_models_answer() {
    let smollm2 = real("SmolLM2-135M-Instruct.Q4_1.gguf");
    texts_of(&smollm2, &smollm2, if full() { 64 } else { 20 });
}

#[test]
fn another_vocabulary_is_refused_by_its_first_token() {
    if !full() {
        // Needs models that only the long version fetches.
        return;
    }
    let (small, large) =
        (real("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"), real("qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"));
    texts_of(&large, &small, 32);
    let draft = Some(DraftOptions::new(real("SmolLM2-135M-Instruct.Q4_1.gguf")));
    let refused =
        Model::load(&large, &LoadOptions { draft, ..LoadOptions::default() }, &mut |_| {}).map(|_| ());
    assert!(
        matches!(refused, Err(Error::Speculation(SpeculationError::OtherVocabulary { .. }))),
        "{refused:?}"
    );
}
