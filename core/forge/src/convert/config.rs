//! `config.json`, with getters whose errors name the key.

use super::ConvertError;
use crate::{Error, Result};
use serde_json::{Map, Value};
use std::path::Path;

/// The largest JSON file we read; real tokenizers are up to 35 MB.
const MAX_JSON: u64 = 256 << 20;

/// Reads a JSON file of the checkpoint, `None` if it is not there.
pub(super) fn json(folder: &Path, name: &str) -> Result<Option<Value>> {
    let path = folder.join(name);
    let Some(text) = text(folder, name)? else { return Ok(None) };
    let value = serde_json::from_str(&text)
        .map_err(|error| ConvertError::BadFile { path, why: format!("not valid JSON: {error}") })?;
    Ok(Some(value))
}

/// Reads a text file of the checkpoint, `None` if it is not there.
pub(super) fn text(folder: &Path, name: &str) -> Result<Option<String>> {
    let Some(bytes) = bytes(folder, name)? else { return Ok(None) };
    let text = String::from_utf8(bytes)
        .map_err(|_| ConvertError::BadFile { path: folder.join(name), why: "not valid UTF-8".to_owned() })?;
    Ok(Some(text))
}

/// Reads a file of the checkpoint, `None` if it is not there.
pub(super) fn bytes(folder: &Path, name: &str) -> Result<Option<Vec<u8>>> {
    let path = folder.join(name);
    let size = match std::fs::metadata(&path) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io("look at", &path)(error)),
    };
    if size > MAX_JSON {
        let why = format!("{size} bytes are more than such a file can have ({MAX_JSON})");
        return Err(ConvertError::BadFile { path, why }.into());
    }
    std::fs::read(&path).map(Some).map_err(Error::io("read", &path))
}

/// The hyperparameters. Those of the text part of a multimodal model stand before those of the whole.
#[derive(Debug)]
pub(super) struct Config {
    text: Map<String, Value>,
    whole: Map<String, Value>,
}

impl Config {
    pub fn read(folder: &Path) -> Result<Config> {
        let value = json(folder, "config.json")?.ok_or_else(|| ConvertError::Missing {
            folder: folder.to_path_buf(),
            what: "config.json".to_owned(),
        })?;
        let Value::Object(whole) = value else {
            let why = "not a JSON object".to_owned();
            return Err(ConvertError::BadFile { path: folder.join("config.json"), why }.into());
        };
        let text = match whole.get("text_config").or_else(|| whole.get("llm_config")) {
            Some(Value::Object(text)) => text.clone(),
            _ => Map::new(),
        };
        Ok(Config { text, whole })
    }

    /// The names of the model's class.
    pub fn architectures(&self) -> impl Iterator<Item = &str> {
        [&self.whole, &self.text]
            .into_iter()
            .filter_map(|map| map.get("architectures")?.as_array())
            .flatten()
            .filter_map(Value::as_str)
    }

    pub fn get(&self, key: &str) -> Option<&Value> {
        self.text.get(key).or_else(|| self.whole.get(key)).filter(|value| !value.is_null())
    }

    /// The first of several names for one thing.
    pub fn opt_count(&self, keys: &[&str]) -> Result<Option<u64>> {
        for key in keys {
            if let Some(value) = self.get(key) {
                let count = value.as_u64().filter(|count| *count <= u32::MAX.into());
                return count.map(Some).ok_or_else(|| bad(key, format!("is {value}, not a count")));
            }
        }
        Ok(None)
    }

    pub fn count(&self, keys: &[&str]) -> Result<u64> {
        self.opt_count(keys)?.ok_or_else(|| missing(keys))
    }

    /// A count that is used as a divisor or size.
    pub fn size(&self, keys: &[&str]) -> Result<u64> {
        match self.count(keys)? {
            0 => Err(bad(keys.first().copied().unwrap_or_default(), "is 0".to_owned())),
            size => Ok(size),
        }
    }

    pub fn opt_float(&self, keys: &[&str]) -> Result<Option<f32>> {
        for key in keys {
            if let Some(value) = self.get(key) {
                return float(key, value).map(Some);
            }
        }
        Ok(None)
    }

    pub fn flag(&self, key: &str) -> bool {
        self.get(key).and_then(Value::as_bool).unwrap_or(false)
    }

    /// Width of one head.
    pub fn head_dim(&self) -> Result<u64> {
        match self.opt_count(&["head_dim"])? {
            Some(0) => Err(bad("head_dim", "is 0".to_owned())),
            Some(width) => Ok(width),
            None => Ok(self.size(&["hidden_size"])? / self.size(&["num_attention_heads"])?),
        }
    }

    /// The parameters of rotary embedding, wherever this version of the format keeps them.
    pub fn rope(&self, key: &str) -> Option<&Value> {
        let within = |name: &str| {
            let map = self.get(name)?;
            // Models with two kinds of attention keep one set for each.
            let map = map.get("full_attention").unwrap_or(map);
            map.get(key).filter(|value| !value.is_null())
        };
        within("rope_parameters").or_else(|| within("rope_scaling"))
    }

    pub fn rope_float(&self, key: &str) -> Result<Option<f32>> {
        self.rope(key).map(|value| float(key, value)).transpose()
    }

    pub fn rope_count(&self, key: &str) -> Result<Option<u64>> {
        let Some(value) = self.rope(key) else { return Ok(None) };
        let count = value.as_u64().filter(|count| *count <= u32::MAX.into());
        count.map(Some).ok_or_else(|| bad(key, format!("is {value}, not a count")))
    }

    /// `rope_theta`, from either place.
    pub fn rope_theta(&self) -> Result<Option<f32>> {
        match self.rope_float("rope_theta")? {
            Some(theta) => Ok(Some(theta)),
            None => self.opt_float(&["rope_theta"]),
        }
    }

    /// `yarn`, `linear`, `llama3`, `longrope` and the like.
    pub fn rope_type(&self) -> &str {
        let named = self.rope("rope_type").or_else(|| self.rope("type"));
        named.and_then(Value::as_str).unwrap_or("default")
    }

    /// An array of numbers among the rotary parameters.
    pub fn rope_floats(&self, key: &str) -> Result<Option<Vec<f32>>> {
        let Some(value) = self.rope(key) else { return Ok(None) };
        let values = value.as_array().ok_or_else(|| bad(key, "is not a list".to_owned()))?;
        values.iter().map(|value| float(key, value)).collect::<Result<_>>().map(Some)
    }
}

fn float(key: &str, value: &Value) -> Result<f32> {
    let float = value.as_f64().map(|float| float as f32).filter(|float| float.is_finite());
    float.ok_or_else(|| bad(key, format!("is {value}, not a number")))
}

fn missing(keys: &[&str]) -> Error {
    bad(keys.first().copied().unwrap_or_default(), "is missing".to_owned())
}

pub(super) fn bad(key: &str, why: String) -> Error {
    ConvertError::BadConfig { key: key.to_owned(), why: why.chars().take(200).collect() }.into()
}
