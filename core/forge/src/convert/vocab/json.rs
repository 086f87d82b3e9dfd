//! `tokenizer.json`.

use super::{Added, Kind, MAX_TOKENS, NEVER, Tokens};
use serde_json::Value;
use std::collections::HashMap;

/// The file, looked at through what the conversion needs.
#[derive(Debug)]
pub(super) struct TokenizerJson(pub Value);

impl TokenizerJson {
    fn model(&self, key: &str) -> Option<&Value> {
        self.0.get("model")?.get(key)
    }

    /// Tokens that were added to the vocabulary.
    pub fn added(&self) -> Vec<Added> {
        let list = self.0.get("added_tokens").and_then(Value::as_array);
        list.into_iter().flatten().filter_map(|entry| Added::parse(None, entry)).collect()
    }

    /// Steps of one part, with sequences unfolded.
    pub fn steps(&self, part: &str) -> Vec<&Value> {
        let Some(part) = self.0.get(part).filter(|part| !part.is_null()) else { return Vec::new() };
        let nested =
            ["pretokenizers", "normalizers", "processors"].iter().find_map(|key| part.get(key)?.as_array());
        nested.map_or_else(|| vec![part], |steps| steps.iter().collect())
    }

    /// Whether the vocabulary came from SentencePiece: bytes as `<0x0A>`, spaces as `▁`, instead of the byte-level alphabet.
    pub fn is_sentencepiece(&self) -> bool {
        let bytes = self.model("byte_fallback").and_then(Value::as_bool).unwrap_or(false);
        let byte_level = self.steps("pre_tokenizer").iter().any(|step| kind(step) == "ByteLevel");
        bytes && !byte_level
    }

    /// Whether a space is put in front of text.
    pub fn prepends_space(&self) -> bool {
        self.steps("normalizer").iter().any(|step| kind(step) == "Prepend")
            || self.steps("pre_tokenizer").iter().any(|step| {
                kind(step) == "Metaspace" && step.get("prepend_scheme").is_none_or(|scheme| scheme != "never")
            })
    }

    /// A word that is a token as a whole is taken without looking at merges.
    pub fn ignores_merges(&self) -> bool {
        self.model("ignore_merges").and_then(Value::as_bool).unwrap_or(false)
    }

    /// Merges, each as two pieces with a space between.
    pub fn merges(&self) -> Result<Vec<String>, String> {
        let list =
            self.model("merges").and_then(Value::as_array).ok_or("has no merges: is it a BPE tokenizer?")?;
        let one = |(index, merge): (usize, &Value)| match merge {
            Value::String(text) => Ok(text.clone()),
            Value::Array(pair) => match pair.as_slice() {
                [Value::String(left), Value::String(right)] => Ok(format!("{left} {right}")),
                _ => Err(format!("merge {index} is not a pair")),
            },
            _ => Err(format!("merge {index} is not a pair")),
        };
        list.iter().enumerate().map(one).collect()
    }

    /// Texts put in front of and behind every input.
    pub fn surroundings(&self) -> Option<(Option<&str>, Option<&str>)> {
        let steps = self.steps("post_processor");
        let template = steps.iter().find(|step| kind(step) == "TemplateProcessing")?;
        let single = template.get("single")?.as_array()?;
        let before = single.first().and_then(|piece| piece.get("SpecialToken")?.get("id")?.as_str());
        let behind = single.last().and_then(|piece| piece.get("SpecialToken")?.get("id")?.as_str());
        Some((before, behind))
    }

    /// All tokens by id, at least `rows` of them.
    pub fn tokens(&self, rows: u64, added: &[Added]) -> Result<Tokens, String> {
        let vocab = self
            .model("vocab")
            .and_then(Value::as_object)
            .ok_or("has no vocabulary: is it a BPE tokenizer?")?;
        let ids = vocab.values().map(|id| id.as_u64().ok_or("has a token whose id is not a number"));
        let largest =
            ids.chain(added.iter().map(|token| Ok(token.id))).try_fold(0, |a, b| b.map(|b| b.max(a)))?;
        if largest >= MAX_TOKENS {
            return Err(format!("has the token id {largest}; the limit is {MAX_TOKENS}"));
        }
        let mut tokens = Tokens::unused(rows.max(largest + 1) as usize);
        let byte_pairs = !self.is_sentencepiece();
        // SentencePiece merges the pair whose result has the best score. In the order of merges that is the first pair that gives
        // the piece.
        let mut scores: HashMap<String, f32> = HashMap::new();
        if !byte_pairs {
            for (rank, merge) in self.merges()?.into_iter().enumerate() {
                let piece = merge.replacen(' ', "", 1);
                scores.entry(piece).or_insert(-(rank as f32));
            }
        }
        for (text, id) in vocab {
            let byte = !byte_pairs && text.len() == 6 && text.starts_with("<0x") && text.ends_with('>');
            let unknown = !byte_pairs && text == "<unk>";
            let kind = if byte {
                Kind::Byte
            } else if unknown {
                Kind::Unknown
            } else {
                Kind::Normal
            };
            let score = scores.get(text).copied().unwrap_or(if byte_pairs { 0.0 } else { -1e6 });
            tokens.set(id.as_u64().unwrap_or(u64::MAX), text, kind, score);
        }
        for token in added {
            if tokens.kind(token.id) == Some(Kind::Unknown) || tokens.kind(token.id) == Some(Kind::Byte) {
                continue;
            }
            let kind = token.kind();
            // Texts of markers are matched as written; spaces in user-defined ones are spaces.
            let text =
                if kind == Kind::UserDefined { token.text.replace('▁', " ") } else { token.text.clone() };
            tokens.set(token.id, &text, kind, NEVER);
        }
        Ok(tokens)
    }
}

/// The `type` of a step.
pub(super) fn kind(step: &Value) -> &str {
    step.get("type").and_then(Value::as_str).unwrap_or_default()
}
