//! Whole characters, stop strings, and which tokens belong to which text.

use pannier::session::{FinishReason, GenerationOptions, Notice};
use pannier::{Error, sampling::SamplerOptions};
use proptest::prelude::*;

use crate::fake::*;

fn greedy() -> GenerationOptions {
    GenerationOptions { sampler: SamplerOptions::greedy(), ..GenerationOptions::default() }
}

#[test]
fn characters_of_many_tokens_arrive_whole() {
    let text = "a🙂é漢字👨‍👩‍👧‍👦🏳️‍🌈🇩🇪\u{301}ß\u{10ffff}end";
    let session = Fake::answering(3, bytes(text)).with_bytes().session();
    let (told, result) = listen(|sink| session.generate("abc", greedy(), sink));
    let completion = result.unwrap();
    assert_eq!((told.text.as_str(), completion.text.as_str()), (text, text));
    assert_eq!(completion.finish_reason, FinishReason::Stop { eog: END });
    assert_eq!(completion.ids().collect::<Vec<_>>(), bytes(text));
    // One token is one byte here, so each event is one character, with as many tokens as it has bytes.
    assert_eq!(told.parts, text.chars().map(String::from).collect::<Vec<_>>());
    assert_eq!(told.ids, bytes(text));
    assert_eq!(completion.stats.generated_tokens, text.len() + 1);
}

#[test]
fn a_cut_character_is_left_out_and_said() {
    let session = Fake::answering(1, bytes("ok🙂")).with_bytes().session();
    let options = GenerationOptions { max_tokens: Some(4), ..greedy() };
    let (told, result) = listen(|sink| session.generate("x", options, sink));
    let completion = result.unwrap();
    assert_eq!((completion.text.as_str(), completion.finish_reason), ("ok", FinishReason::Length));
    assert_eq!(told.notices, [Notice::IncompleteCharacter]);
    assert_eq!(completion.tokens.len(), 4);
}

#[test]
fn bytes_that_never_become_a_character_are_shown_as_such() {
    let session = Fake::answering(1, vec![0xf0, 0x9f, u32::from(b'a'), 0xff]).with_bytes().session();
    let (told, result) = listen(|sink| session.generate("x", greedy(), sink));
    assert_eq!(result.unwrap().text, "\u{fffd}a\u{fffd}");
    assert_eq!(told.notices, []);
    // Cut short by the model itself.
    let session = Fake::answering(1, vec![0xf0, 0x9f]).with_bytes().session();
    let (_, result) = listen(|sink| session.generate("x", greedy(), sink));
    assert_eq!(result.unwrap().text, "\u{fffd}");
}

#[test]
fn control_tokens_are_no_text_and_end_tokens_can_be_ignored() {
    let answer = vec![u32::from(b'a'), START, u32::from(b'b'), END, u32::from(b'c')];
    let session = Fake::answering(1, answer).with_bytes().session();
    let (_, result) = listen(|sink| session.generate("x", greedy(), sink));
    assert_eq!(result.unwrap().text, "ab");
    let options = GenerationOptions { max_tokens: Some(5), ignore_eog: true, ..greedy() };
    let (_, result) = listen(|sink| session.generate("x", options, sink));
    assert_eq!(result.unwrap().text, "abc");
}

#[test]
fn a_model_without_vocabulary_tells_tokens() {
    let session = Fake::answering(2, vec![5, 6, 7]).bare().session();
    let options = GenerationOptions { max_tokens: Some(3), ..greedy() };
    let (told, result) = listen(|sink| session.generate(vec![1, 2], options.clone(), sink));
    assert_eq!(result.unwrap().text, "");
    assert_eq!((told.ids, told.parts.len()), (vec![5, 6, 7], 3));
    // Text and stop strings need one.
    let (_, result) = listen(|sink| session.generate("x", options.clone(), sink));
    assert!(matches!(result, Err(Error::Tokenizer(_))));
    let stop = GenerationOptions { stop: vec!["x".into()], ..options };
    let (_, result) = listen(|sink| session.generate(vec![1], stop, sink));
    assert!(matches!(result, Err(Error::Tokenizer(_))));
}

/// What the answer must be: the text before the stop string that ends first, the longest of these.
fn naive(text: &str, stop: &[String]) -> (String, Option<usize>) {
    for end in 1..=text.len() {
        let ends = (0..stop.len()).filter(|i| text.as_bytes()[..end].ends_with(stop[*i].as_bytes()));
        if let Some(i) = ends.rev().max_by_key(|i| stop[*i].len()) {
            return (text[..end - stop[i].len()].to_owned(), Some(i));
        }
    }
    (text.to_owned(), None)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn stop_strings_are_found_across_any_token_borders(
        // Bytes of single characters and whole pieces, in any mix.
        parts in prop::collection::vec(prop_oneof![
            (0..PIECES.len()).prop_map(|i| PIECES[i].to_owned()),
            "[abs</>é🙂]".prop_map(|s| s)], 0..20),
        pieces in any::<u32>(),
        stop in prop::collection::vec("[ab]{1,3}|</s>|é🙂a?|🙂|s>a", 0..4),
    ) {
        let text = parts.concat();
        let mut answer = Vec::new();
        for (i, part) in parts.iter().enumerate() {
            match PIECES.iter().position(|p| p == part) {
                Some(p) if pieces >> (i % 32) & 1 == 1 => answer.push(258 + p as u32),
                _ => answer.extend(bytes(part)),
            }
        }
        let session = Fake::answering(1, answer).with_bytes().session();
        let options = GenerationOptions { stop: stop.clone(), ..greedy() };
        let (told, result) = listen(|sink| session.generate("x", options, sink));
        let completion = result.unwrap();
        let (want, index) = naive(&text, &stop);
        prop_assert_eq!(&completion.text, &want);
        let reason = index.map_or(FinishReason::Stop { eog: END }, |index| FinishReason::StopString { index });
        prop_assert_eq!(completion.finish_reason, reason);
        prop_assert_eq!(told.text, want);
    }

    #[test]
    fn any_text_streams_to_itself(text in "\\PC{0,40}") {
        prop_assume!(!text.contains(char::REPLACEMENT_CHARACTER));
        let session = Fake::answering(1, bytes(&text)).with_bytes().session();
        let (told, result) = listen(|sink| session.generate("x", greedy(), sink));
        prop_assert_eq!(&result.unwrap().text, &text);
        let whole = told.parts.iter().all(|p| !p.is_empty() && !p.contains(char::REPLACEMENT_CHARACTER));
        prop_assert!(whole);
    }
}

#[test]
fn stop_string_limits_are_errors_of_the_call() {
    let session = Fake::babbling().with_bytes().session();
    for stop in [vec![String::new()], vec!["a".repeat(2000)], vec!["a".into(); 100]] {
        let options = GenerationOptions { stop, ..greedy() };
        let (told, result) = listen(|sink| session.generate("x", options, sink));
        assert!(result.unwrap_err().to_string().contains("stop"));
        assert_eq!(told.events, 1);
    }
}
