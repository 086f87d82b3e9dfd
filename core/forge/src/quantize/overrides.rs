//! `PATTERN=TYPE`: a type for tensors by name.

use crate::encode::encoder;
use crate::{Error, Result};
use pannier_gguf::GgmlType;
use regex_lite::Regex;

/// A type for all tensors whose name matches a pattern.
#[derive(Debug, Clone)]
pub struct Override {
    pattern: Regex,
    ty: GgmlType,
}

/// Compiled patterns of a hostile length could take gigabytes; names are short.
const MAX_PATTERN: usize = 1000;

impl Override {
    /// From `PATTERN=TYPE`, such as `attn_v=Q8_0` or `blk\.[0-3]\..*=Q6_K`. The pattern is a regular expression that may match
    /// anywhere in the name.
    ///
    /// # Errors
    /// [`Error::BadOverride`], saying what is wrong.
    pub fn parse(given: &str) -> Result<Override> {
        let bad = |why: String| Error::BadOverride { given: given.chars().take(120).collect(), why };
        let (pattern, ty) = given.rsplit_once('=').ok_or_else(|| bad("expected PATTERN=TYPE".into()))?;
        if pattern.is_empty() || pattern.len() > MAX_PATTERN {
            return Err(bad(format!("the pattern must have 1 to {MAX_PATTERN} characters")));
        }
        let pattern = Regex::new(pattern).map_err(|error| bad(error.to_string()))?;
        let ty = GgmlType::from_name(ty).ok_or_else(|| bad(format!("there is no type {ty:?}")))?;
        if encoder(ty).is_none() {
            return Err(bad(format!("cannot write {ty} tensors")));
        }
        Ok(Override { pattern, ty })
    }

    /// Whether it is for the tensor of this name.
    pub fn matches(&self, name: &str) -> bool {
        self.pattern.is_match(name)
    }

    /// The type.
    pub fn ty(&self) -> GgmlType {
        self.ty
    }
}
