//! Vocabulary, special tokens and chat template.

mod json;
mod pre;
mod sentencepiece;

use super::config::{self, Config};
use super::{ConvertError, Warning};
use crate::Result;
use json::TokenizerJson;
use pannier_gguf::Metadata;
use serde_json::Value;
use std::collections::HashMap;
use std::path::Path;

/// What a token is, as `tokenizer.ggml.token_type` numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Normal = 1,
    Unknown = 2,
    Control = 3,
    UserDefined = 4,
    Unused = 5,
    Byte = 6,
}

/// Tokens by id.
#[derive(Debug, Default)]
struct Tokens {
    texts: Vec<String>,
    kinds: Vec<Kind>,
    /// Empty for byte-pair vocabularies.
    scores: Vec<f32>,
}

/// More tokens than any vocabulary has; an id beyond would only allocate memory.
const MAX_TOKENS: u64 = 1 << 22;

/// The score of a token that never comes out of merging.
const NEVER: f32 = -1000.0;

impl Tokens {
    /// Placeholders.
    fn unused(count: usize) -> Tokens {
        Tokens {
            texts: (0..count).map(|id| format!("[PAD{id}]")).collect(),
            kinds: vec![Kind::Unused; count],
            scores: vec![NEVER; count],
        }
    }

    fn set(&mut self, id: u64, text: &str, kind: Kind, score: f32) {
        let Ok(id) = usize::try_from(id) else { return };
        let (Some(to_text), Some(to_kind), Some(to_score)) =
            (self.texts.get_mut(id), self.kinds.get_mut(id), self.scores.get_mut(id))
        else {
            return;
        };
        text.clone_into(to_text);
        (*to_kind, *to_score) = (kind, score);
    }

    fn kind(&self, id: u64) -> Option<Kind> {
        self.kinds.get(usize::try_from(id).ok()?).copied()
    }
}

/// Whether a token that its file calls ordinary is a marker all the same.
fn looks_special(text: &str) -> bool {
    matches!(text, "<pad>" | "<mask>" | "<2mass>" | "[@BOS@]")
        || text.starts_with("<|") && text.ends_with("|>")
        || text.starts_with("<｜") && text.ends_with("｜>")
        || text.starts_with("<unused") && text.ends_with('>')
}

/// A token that was added to a vocabulary.
#[derive(Debug, Clone)]
struct Added {
    id: u64,
    text: String,
    special: bool,
}

impl Added {
    fn kind(&self) -> Kind {
        if self.special || looks_special(&self.text) { Kind::Control } else { Kind::UserDefined }
    }

    fn parse(id: Option<u64>, entry: &Value) -> Option<Added> {
        Some(Added {
            id: id.or_else(|| entry.get("id")?.as_u64())?,
            text: entry.get("content")?.as_str()?.to_owned(),
            special: entry.get("special").and_then(Value::as_bool).unwrap_or(false),
        })
    }
}

/// Writes everything about text to `metadata`.
pub(super) fn write(
    folder: &Path,
    config: &Config,
    metadata: &mut Metadata,
    warnings: &mut Vec<Warning>,
) -> Result<()> {
    let settings = config::json(folder, "tokenizer_config.json")?.unwrap_or(Value::Null);
    let tokenizer = config::json(folder, "tokenizer.json")?.map(TokenizerJson);
    let model = config::bytes(folder, "tokenizer.model")?;
    let rows = config.opt_count(&["vocab_size"])?.unwrap_or(0);
    if rows > MAX_TOKENS {
        return Err(config::bad("vocab_size", format!("is {rows}; the limit is {MAX_TOKENS}")));
    }
    let mut added: Vec<Added> = tokenizer.as_ref().map(TokenizerJson::added).unwrap_or_default();
    if let Some(decoder) = settings.get("added_tokens_decoder").and_then(Value::as_object) {
        let parsed = decoder.iter().filter_map(|(id, entry)| Added::parse(id.parse().ok(), entry));
        // tokenizer.json is what the model was trained with; this only adds what is not there.
        for token in parsed {
            if added.iter().all(|known| known.id != token.id) {
                added.push(token);
            }
        }
    }
    let bad = |name: &str, why: String| ConvertError::BadFile { path: folder.join(name), why };
    let as_json = tokenizer.as_ref();
    let tokens = match (&model, as_json) {
        (Some(bytes), json) if json.is_none_or(TokenizerJson::is_sentencepiece) => {
            let vocab = sentencepiece::parse(bytes).map_err(|why| bad("tokenizer.model", why))?;
            let mut tokens = vocab.tokens(rows, &added);
            if let Some(extra) =
                config::json(folder, "added_tokens.json")?.as_ref().and_then(Value::as_object)
            {
                for (text, id) in extra {
                    let id = id.as_u64().unwrap_or(u64::MAX);
                    if tokens.kind(id) == Some(Kind::Unused) {
                        tokens.set(id, text, Kind::UserDefined, NEVER);
                    }
                }
            }
            metadata.insert("tokenizer.ggml.model", "llama");
            metadata.insert("tokenizer.ggml.pre", "default");
            if let Some(prefix) = add_prefix_space(&settings, metadata).or(vocab.add_dummy_prefix) {
                metadata.insert("tokenizer.ggml.add_space_prefix", prefix);
            }
            warn_padding(&tokens, warnings);
            tokens
        }
        (_, Some(json)) if json.is_sentencepiece() => {
            let tokens = json.tokens(rows, &added).map_err(|why| bad("tokenizer.json", why))?;
            metadata.insert("tokenizer.ggml.model", "llama");
            metadata.insert("tokenizer.ggml.pre", "default");
            let prefix = add_prefix_space(&settings, metadata).unwrap_or_else(|| json.prepends_space());
            metadata.insert("tokenizer.ggml.add_space_prefix", prefix);
            warnings.push(Warning::ScoresFromMerges);
            warn_padding(&tokens, warnings);
            tokens
        }
        (_, Some(json)) => {
            let mut tokens = json.tokens(rows, &added).map_err(|why| bad("tokenizer.json", why))?;
            tokens.scores.clear();
            metadata.insert("tokenizer.ggml.model", "gpt2");
            let name = pre::name(json).unwrap_or_else(|found| {
                warnings.push(Warning::UnknownPreTokenizer { found });
                "default"
            });
            metadata.insert("tokenizer.ggml.pre", name);
            metadata
                .insert("tokenizer.ggml.merges", json.merges().map_err(|why| bad("tokenizer.json", why))?);
            warn_padding(&tokens, warnings);
            tokens
        }
        _ => {
            metadata.insert("tokenizer.ggml.model", "no_vocab");
            warnings.push(Warning::NoTokenizer);
            return Ok(());
        }
    };
    special(folder, config, &settings, as_json, &tokens, metadata)?;
    metadata.insert("tokenizer.ggml.tokens", tokens.texts);
    if !tokens.scores.is_empty() {
        metadata.insert("tokenizer.ggml.scores", tokens.scores);
    }
    metadata.insert(
        "tokenizer.ggml.token_type",
        tokens.kinds.iter().map(|kind| *kind as i32).collect::<Vec<_>>(),
    );
    template(folder, &settings, metadata, warnings)
}

fn add_prefix_space(settings: &Value, metadata: &Metadata) -> Option<bool> {
    // Gemma's file claims a prefix that its tokenizer does not add.
    let gemma =
        metadata.opt_str("general.architecture").ok().flatten().is_some_and(|name| name.starts_with("gemma"));
    if gemma { Some(false) } else { settings.get("add_prefix_space").and_then(Value::as_bool) }
}

fn warn_padding(tokens: &Tokens, warnings: &mut Vec<Warning>) {
    let padded =
        tokens.texts.iter().enumerate().rev().take_while(|(id, text)| **text == format!("[PAD{id}]")).count();
    if padded > 0 {
        warnings.push(Warning::PaddedVocabulary { tokens: padded as u64 });
    }
}

/// Names of special tokens: in the checkpoint, and in GGUF (`seperator` is the format's spelling).
const SPECIAL: &[(&str, &str)] = &[
    ("bos", "bos"),
    ("eos", "eos"),
    ("unk", "unknown"),
    ("sep", "seperator"),
    ("pad", "padding"),
    ("mask", "mask"),
];

fn special(
    folder: &Path,
    config: &Config,
    settings: &Value,
    tokenizer: Option<&TokenizerJson>,
    tokens: &Tokens,
    metadata: &mut Metadata,
) -> Result<()> {
    let generation = config::json(folder, "generation_config.json")?.unwrap_or(Value::Null);
    let map = config::json(folder, "special_tokens_map.json")?.unwrap_or(Value::Null);
    let ids: HashMap<&str, u64> = tokens.texts.iter().map(String::as_str).zip(0..).collect();
    let mut found: HashMap<&str, u64> = HashMap::new();
    for (theirs, ours) in SPECIAL {
        let named = format!("{theirs}_token");
        let by_text = [settings, &map].into_iter().find_map(|file| {
            let entry = file.get(&named)?;
            let text = entry.as_str().or_else(|| entry.get("content")?.as_str())?;
            ids.get(text).copied()
        });
        let key = format!("{theirs}_token_id");
        // A list of ends of generation: the first is the model's own.
        let one = |value: &Value| value.as_u64().or_else(|| value.as_array()?.first()?.as_u64());
        let by_id = || config.get(&key).and_then(one).or_else(|| generation.get(&key).and_then(one));
        let id = by_text.or_else(by_id).filter(|id| tokens.kind(*id).is_some());
        if let Some(id) = id {
            found.insert(theirs, id);
            // Fits: ids are below the limit on tokens.
            metadata.insert(format!("tokenizer.ggml.{ours}_token_id"), id as u32);
        }
    }
    for (theirs, position) in [("bos", 0usize), ("eos", 1)] {
        let said = settings.get(format!("add_{theirs}_token")).and_then(Value::as_bool);
        let done = tokenizer.and_then(TokenizerJson::surroundings).map(|around| {
            let around = if position == 0 { around.0 } else { around.1 };
            around.is_some_and(|text| {
                ids.get(text).copied() == found.get(theirs).copied() && found.contains_key(theirs)
            })
        });
        // What the tokenizer does counts more than what its settings say.
        if let Some(add) = done.or(said) {
            metadata.insert(format!("tokenizer.ggml.add_{theirs}_token"), add);
        }
    }
    Ok(())
}

fn template(
    folder: &Path,
    settings: &Value,
    metadata: &mut Metadata,
    warnings: &mut Vec<Warning>,
) -> Result<()> {
    const KEY: &str = "tokenizer.chat_template";
    if let Some(text) = config::text(folder, "chat_template.jinja")? {
        metadata.insert(KEY, text);
        return Ok(());
    }
    let file = config::json(folder, "chat_template.json")?;
    let from_file = file.as_ref().and_then(|file| file.get("chat_template"));
    match from_file.or_else(|| settings.get("chat_template")) {
        Some(Value::String(text)) => metadata.insert(KEY, text.clone()),
        Some(Value::Array(variants)) => {
            let mut names = Vec::new();
            for variant in variants {
                let text = |key: &str| variant.get(key).and_then(Value::as_str);
                let (Some(name), Some(template)) = (text("name"), text("template")) else { continue };
                if name == "default" {
                    metadata.insert(KEY, template);
                } else {
                    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' };
                    let name: String = name.chars().take(60).map(plain).collect();
                    metadata.insert(format!("{KEY}.{name}"), template);
                    names.push(name);
                }
            }
            if !names.is_empty() {
                metadata.insert("tokenizer.chat_templates", names);
            }
        }
        _ => {}
    }
    if metadata.get(KEY).is_none() {
        warnings.push(Warning::NoChatTemplate);
    }
    Ok(())
}
