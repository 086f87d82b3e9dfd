//! Whether two models mean the same by their token ids.

use super::SpeculationError;
use pannier_tokenizer::Tokenizer;

/// How many more ids one of the two may have: matrices are padded to round numbers, differently for models of different size.
const PADDING: usize = 1024;

/// What a model's token ids mean.
#[derive(Clone, Copy, Debug)]
pub struct Vocabulary<'a> {
    /// The vocabulary, if it has one.
    pub tokenizer: Option<&'a Tokenizer>,
    /// Number of ids.
    pub ids: usize,
}

impl Vocabulary<'_> {
    fn describe(&self) -> String {
        let kind = if self.tokenizer.is_some() { "a vocabulary of" } else { "no vocabulary, only" };
        format!("{kind} {} ids", self.ids)
    }
}

/// Compares token by token: the same text and the same kind for every id that both have.
///
/// # Errors
/// [`SpeculationError::OtherVocabulary`] with the first difference, [`SpeculationError::OtherSize`].
pub fn same_vocabulary(target: Vocabulary<'_>, draft: Vocabulary<'_>) -> Result<(), SpeculationError> {
    let other_size = || SpeculationError::OtherSize { target: target.describe(), draft: draft.describe() };
    let (of_target, of_draft) = match (target.tokenizer, draft.tokenizer) {
        (Some(of_target), Some(of_draft)) => (of_target, of_draft),
        (None, None) if target.ids == draft.ids => return Ok(()),
        _ => return Err(other_size()),
    };
    let common = of_target.vocab_size().min(of_draft.vocab_size());
    for id in (0u32..).take(common) {
        let same =
            of_target.token_type(id) == of_draft.token_type(id) && of_target.piece(id) == of_draft.piece(id);
        if !same {
            let describe =
                |t: &Tokenizer| format!("{:?} ({:?})", t.piece(id).unwrap_or_default(), t.token_type(id));
            return Err(SpeculationError::OtherVocabulary {
                id,
                target: describe(of_target),
                draft: describe(of_draft),
            });
        }
    }
    let padding = of_target.vocab_size().abs_diff(of_draft.vocab_size());
    if common == 0 || padding > PADDING || target.ids.abs_diff(draft.ids) > PADDING {
        Err(other_size())
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pannier_gguf::Metadata;

    fn tokenizer(pieces: &[&str]) -> Tokenizer {
        let mut metadata = Metadata::new();
        let tokens: Vec<String> = pieces.iter().map(|&p| p.to_owned()).collect();
        metadata.insert("tokenizer.ggml.model", "gpt2");
        metadata.insert("tokenizer.ggml.pre", "gpt-2");
        metadata.insert("tokenizer.ggml.token_type", vec![1i32; tokens.len()]);
        metadata.insert("tokenizer.ggml.tokens", tokens);
        metadata.insert("tokenizer.ggml.merges", Vec::<String>::new());
        Tokenizer::from_metadata(&metadata).unwrap()
    }

    #[test]
    fn the_first_difference_is_named() {
        let (a, b, c) =
            (tokenizer(&["a", "b", "c"]), tokenizer(&["a", "x", "c"]), tokenizer(&["a", "b", "c", "d"]));
        let of = |t| Vocabulary { tokenizer: Some(t), ids: t.vocab_size() };
        assert_eq!(same_vocabulary(of(&a), of(&a)), Ok(()));
        // Padding.
        assert_eq!(same_vocabulary(of(&a), of(&c)), Ok(()));
        let refused = same_vocabulary(of(&a), of(&b)).unwrap_err();
        assert!(matches!(refused, SpeculationError::OtherVocabulary { id: 1, .. }), "{refused}");
        let bare = |ids| Vocabulary { tokenizer: None, ids };
        assert_eq!(same_vocabulary(bare(5), bare(5)), Ok(()));
        for (x, y) in [(bare(5), bare(6)), (of(&a), bare(3)), (bare(3), of(&a))] {
            assert!(matches!(same_vocabulary(x, y), Err(SpeculationError::OtherSize { .. })));
        }
        let long = Vocabulary { tokenizer: Some(&a), ids: 5000 };
        assert!(matches!(same_vocabulary(long, of(&a)), Err(SpeculationError::OtherSize { .. })));
    }
}
