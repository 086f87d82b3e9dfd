//! Recognising a pre-tokenizer by what it does, not by a hash of what it gives.
//!
//! `tokenizer.json` says how text is cut into words: a list of steps, most with a regular expression. GGUF names the whole list.
//! Here each step is brought to one spelling and the list is looked up.

use super::json::{TokenizerJson, kind};
use serde_json::Value;

const CONTRACTIONS: &str = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// `W` stands for `CONTRACTIONS`. A step is a regular expression, `digits` (each digit alone), or `gpt2` (that expression).
const KNOWN: &[(&[&str], &str)] = &[
    (&["gpt2"], "gpt-2"),
    (&["digits", "gpt2"], "smollm"),
    (
        &[r"W|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"],
        "llama-bpe",
    ),
    (&[r"W|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"], "qwen2"),
    (
        &[r"W|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"],
        "qwen35",
    ),
    (
        &[concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+W?",
            r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*W?",
            r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )],
        "gpt-4o",
    ),
    (
        &[concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
            r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
            r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )],
        "tekken",
    ),
    (
        &[
            r"\p{N}{1,3}",
            r"[一-龥぀-ゟ゠-ヿ]+",
            concat!(
                r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"##,
                r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
            ),
        ],
        "deepseek-v3",
    ),
];

/// The name for `tokenizer.ggml.pre`; otherwise what was found.
pub(super) fn name(tokenizer: &TokenizerJson) -> Result<&'static str, String> {
    let mut steps: Vec<String> = tokenizer.steps("pre_tokenizer").into_iter().filter_map(spell).collect();
    // Two spellings of one way.
    if steps.as_slice() == ["gpt2", "gpt2"] {
        steps.truncate(1);
    }
    let found = KNOWN.iter().find(|(known, _)| *known == steps.as_slice()).map(|(_, name)| *name);
    match found {
        // The same words, but whole words are not preferred to merges.
        Some("llama-bpe") if !tokenizer.ignores_merges() => Ok("dbrx"),
        Some(name) => Ok(name),
        None => Err(steps.join(" ; ").chars().take(300).collect()),
    }
}

/// One spelling of a step; `None` if it cuts nothing.
fn spell(step: &Value) -> Option<String> {
    match kind(step) {
        "ByteLevel" => {
            step.get("use_regex").and_then(Value::as_bool).unwrap_or(true).then(|| "gpt2".to_owned())
        }
        "Digits" => {
            let each = step.get("individual_digits").and_then(Value::as_bool).unwrap_or(false);
            Some(if each { "digits".to_owned() } else { r"\p{N}+".to_owned() })
        }
        "Split" => {
            let pattern = step.get("pattern")?;
            let regex = pattern.get("Regex").and_then(Value::as_str);
            let regex = regex.map_or_else(
                || pattern.get("String").and_then(Value::as_str).map(escape),
                |r| Some(r.to_owned()),
            )?;
            Some(normal(&regex))
        }
        other => Some(format!("{other}()")),
    }
}

fn escape(text: &str) -> String {
    format!("text {text:?}")
}

/// Different texts of equal expressions.
fn normal(regex: &str) -> String {
    if regex == GPT2 {
        return "gpt2".to_owned();
    }
    let mut regex = regex.to_owned();
    for spelling in
        [CONTRACTIONS, "'(?i:[sdmt]|ll|ve|re)", "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"]
    {
        regex = regex.replace(spelling, "W");
    }
    for (spelling, same) in [
        (r"\s*[\r\n]", r"\s*[\r\n]+"),
        (r"\p{N}{1}", r"\p{N}"),
        (r"[^\r\n\p{L}\p{N}]?+", r"[^\r\n\p{L}\p{N}]?"),
        (r"[^\s\p{L}\p{N}]++", r"[^\s\p{L}\p{N}]+"),
        (r"\s++$|", ""),
        (r"(?:$|\s+)", ""),
    ] {
        if !regex.contains(same) || same.is_empty() || spelling.len() > same.len() {
            regex = regex.replace(spelling, same);
        }
    }
    regex
}
