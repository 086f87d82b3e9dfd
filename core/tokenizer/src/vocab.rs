//! The pieces of a vocabulary: their texts, kinds and scores, and which of them are special.

use crate::error::TokenizerError;
use crate::known;
use crate::table::PieceTable;
use pannier_gguf::{Array, Metadata, Packed, StrArray, Value};
use std::borrow::Cow;

pub(crate) const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";

/// What a token is (`tokenizer.ggml.token_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenType {
    /// No type, or one that the format does not define.
    Undefined,
    /// A piece of text.
    Normal,
    /// Stands for text that has no piece.
    Unknown,
    /// Steers the model (`<|im_start|>`); not text.
    Control,
    /// Added by the model's author: text, but always one token.
    UserDefined,
    /// Reserved.
    Unused,
    /// One byte, written `<0xNN>`.
    Byte,
}

/// Attribute bits. A token can have several: the reference engine marks some user-defined tokens control as well.
pub(crate) mod attr {
    pub(crate) const NORMAL: u8 = 1;
    pub(crate) const UNKNOWN: u8 = 2;
    pub(crate) const CONTROL: u8 = 4;
    pub(crate) const USER_DEFINED: u8 = 8;
    pub(crate) const UNUSED: u8 = 16;
    pub(crate) const BYTE: u8 = 32;
    /// White space behind the token is dropped.
    pub(crate) const RSTRIP: u8 = 64;
    /// Split out of the text before anything else.
    pub(crate) const SPECIAL: u8 = UNKNOWN | CONTROL | USER_DEFINED;
}

/// Ids of the tokens with a role, where the file (or a well-known text) names them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpecialTokens {
    /// Beginning of the text.
    pub bos: Option<u32>,
    /// End of the text.
    pub eos: Option<u32>,
    /// End of a turn.
    pub eot: Option<u32>,
    /// End of a message (a tool call follows).
    pub eom: Option<u32>,
    /// Text that has no piece.
    pub unk: Option<u32>,
    /// Separator.
    pub sep: Option<u32>,
    /// Padding.
    pub pad: Option<u32>,
    /// Fill-in-the-middle: before the prefix.
    pub fim_pre: Option<u32>,
    /// Fill-in-the-middle: before the suffix.
    pub fim_suf: Option<u32>,
    /// Fill-in-the-middle: before what is to be filled in.
    pub fim_mid: Option<u32>,
    /// Fill-in-the-middle: padding.
    pub fim_pad: Option<u32>,
    /// Fill-in-the-middle: name of the repository.
    pub fim_rep: Option<u32>,
    /// Fill-in-the-middle: between files.
    pub fim_sep: Option<u32>,
}

/// How pieces spell text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spelling {
    /// One printable character per byte (GPT-2's alphabet).
    ByteLevel,
    /// UTF-8 with `▁` for a space.
    Plain,
}

pub(crate) struct Vocab {
    pieces: StrArray,
    table: PieceTable,
    attrs: Vec<u8>,
    scores: Option<Packed<f32>>,
    spelling: Spelling,
    /// Pieces of the bytes as spelled in this vocabulary.
    bytes: [Option<u32>; 256],
    pub(crate) special: SpecialTokens,
    pub(crate) eog: Vec<u32>,
    /// What was wrong in the file and how it was mended.
    pub(crate) notes: Vec<String>,
}

impl Vocab {
    pub(crate) fn read(metadata: &Metadata, model: &str, spelling: Spelling) -> Result<Self, TokenizerError> {
        const LIMIT: usize = 1 << 28;
        let pieces = strings(metadata, TOKENS, model)?.clone();
        let tokens = pieces.len();
        if tokens == 0 {
            return Err(TokenizerError::EmptyVocabulary);
        }
        if tokens > LIMIT {
            return Err(TokenizerError::TooManyTokens { tokens, limit: LIMIT });
        }
        let attrs = read_types(metadata, tokens)?;
        let scores = read_scores(metadata, tokens)?;
        let table = PieceTable::new(&pieces);
        let mut vocab = Self {
            pieces,
            table,
            attrs,
            scores,
            spelling,
            bytes: [None; 256],
            special: SpecialTokens::default(),
            eog: Vec::new(),
            notes: Vec::new(),
        };
        if vocab.table.duplicates() > 0 {
            let n = vocab.table.duplicates();
            vocab.notes.push(format!("{n} tokens have the text of an earlier one and are never chosen"));
        }
        for byte in 0..=255u8 {
            let id = match spelling {
                Spelling::ByteLevel => vocab.id_of(byte_char(byte).encode_utf8(&mut [0; 4]).as_bytes()),
                Spelling::Plain => {
                    vocab.id_of(format!("<0x{byte:02X}>").as_bytes()).or_else(|| vocab.id_of(&[byte]))
                }
            };
            if let Some(slot) = vocab.bytes.get_mut(usize::from(byte)) {
                *slot = id;
            }
        }
        known::find_special(&mut vocab, metadata, model);
        known::fix_attributes(&mut vocab, metadata);
        if spelling == Spelling::Plain {
            // What has neither a piece nor a byte piece becomes <unk>.
            for slot in vocab.bytes.iter_mut().filter(|slot| slot.is_none()) {
                *slot = vocab.special.unk;
            }
        }
        Ok(vocab)
    }

    pub(crate) fn len(&self) -> usize {
        self.pieces.len()
    }

    /// The text of a token as the file has it.
    pub(crate) fn text(&self, id: u32) -> &str {
        self.pieces.get(id as usize).unwrap_or("")
    }

    pub(crate) fn id_of(&self, text: &[u8]) -> Option<u32> {
        self.table.get(&self.pieces, text)
    }

    /// The piece of a single byte.
    pub(crate) fn byte_piece(&self, byte: u8) -> Option<u32> {
        self.bytes.get(usize::from(byte)).copied().flatten()
    }

    pub(crate) fn score(&self, id: u32) -> f32 {
        self.scores.as_ref().and_then(|s| s.get(id as usize)).unwrap_or(0.0)
    }

    pub(crate) fn attr(&self, id: u32) -> u8 {
        self.attrs.get(id as usize).copied().unwrap_or(0)
    }

    pub(crate) fn set_attr(&mut self, id: u32, attr: u8) {
        if let Some(slot) = self.attrs.get_mut(id as usize) {
            *slot = attr;
        }
    }

    pub(crate) fn token_type(&self, id: u32) -> TokenType {
        let attr = self.attr(id);
        [
            (attr::CONTROL, TokenType::Control),
            (attr::UNKNOWN, TokenType::Unknown),
            (attr::USER_DEFINED, TokenType::UserDefined),
            (attr::BYTE, TokenType::Byte),
            (attr::UNUSED, TokenType::Unused),
            (attr::NORMAL, TokenType::Normal),
        ]
        .into_iter()
        .find(|(bit, _)| attr & bit != 0)
        .map_or(TokenType::Undefined, |(_, ty)| ty)
    }

    /// The bytes of text that a token stands for. Special tokens stand for their own text.
    pub(crate) fn token_bytes(&self, id: u32) -> Cow<'_, [u8]> {
        let text = self.text(id);
        let attr = self.attr(id);
        if attr & attr::SPECIAL != 0 {
            return Cow::Borrowed(text.as_bytes());
        }
        if attr & attr::BYTE != 0
            && let Some(byte) = byte_of_piece(text)
        {
            return Cow::Owned(vec![byte]);
        }
        match self.spelling {
            Spelling::Plain if !text.contains('▁') => Cow::Borrowed(text.as_bytes()),
            Spelling::Plain => Cow::Owned(text.replace('▁', " ").into_bytes()),
            Spelling::ByteLevel if text.bytes().all(|b| b.is_ascii_graphic()) => {
                Cow::Borrowed(text.as_bytes())
            }
            Spelling::ByteLevel => {
                let mut out = Vec::with_capacity(text.len());
                for c in text.chars() {
                    match byte_of_char(c) {
                        Some(byte) => out.push(byte),
                        None => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
                    }
                }
                Cow::Owned(out)
            }
        }
    }

    /// Memory that is not the file's.
    pub(crate) fn heap_bytes(&self) -> usize {
        // The table of string offsets is shared with the metadata and counted there.
        self.table.heap_bytes() + self.attrs.capacity() + self.eog.capacity() * size_of::<u32>()
    }
}

/// An array of strings that must be there.
pub(crate) fn strings<'m>(
    metadata: &'m Metadata,
    key: &'static str,
    model: &str,
) -> Result<&'m StrArray, TokenizerError> {
    metadata
        .opt_strings(key)
        .map_err(|e| TokenizerError::BadKey { key, reason: e.to_string() })?
        .ok_or_else(|| TokenizerError::MissingKey { key, model: model.to_owned() })
}

fn check_len(key: &'static str, len: usize, tokens: usize) -> Result<(), TokenizerError> {
    if len < tokens { Err(TokenizerError::LengthMismatch { key, len, tokens }) } else { Ok(()) }
}

fn read_types(metadata: &Metadata, tokens: usize) -> Result<Vec<u8>, TokenizerError> {
    let Some(types) =
        metadata.opt_i32s(TYPES).map_err(|e| TokenizerError::BadKey { key: TYPES, reason: e.to_string() })?
    else {
        return Ok(vec![attr::NORMAL; tokens]);
    };
    check_len(TYPES, types.len(), tokens)?;
    let attr_of = |ty: &i32| match ty {
        1 => attr::NORMAL,
        2 => attr::UNKNOWN,
        3 => attr::CONTROL,
        4 => attr::USER_DEFINED,
        5 => attr::UNUSED,
        6 => attr::BYTE,
        _ => 0,
    };
    Ok(types.iter().take(tokens).map(attr_of).collect())
}

fn read_scores(metadata: &Metadata, tokens: usize) -> Result<Option<Packed<f32>>, TokenizerError> {
    let scores = match metadata.get(SCORES) {
        None => return Ok(None),
        // The usual type stays in the file's bytes.
        Some(Value::Array(Array::F32(scores))) => scores.clone(),
        Some(Value::Array(Array::I32(scores))) => scores.iter().map(|s| s as f32).collect(),
        Some(_) => metadata
            .f32s(SCORES)
            .map_err(|e| TokenizerError::BadKey { key: SCORES, reason: e.to_string() })?
            .into_iter()
            .collect(),
    };
    check_len(SCORES, scores.len(), tokens)?;
    Ok(Some(scores))
}

/// The printable character that byte-level vocabularies write for a byte: itself if it is printable Latin-1, else the
/// next free one from U+0100 on.
pub(crate) const fn byte_char(byte: u8) -> char {
    let code = match byte {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => byte as u32,
        0x00..=0x20 => 0x100 + byte as u32,
        0x7F..=0xA0 => 0x121 + (byte - 0x7F) as u32,
        0xAD => 0x143,
    };
    match char::from_u32(code) {
        Some(c) => c,
        None => char::REPLACEMENT_CHARACTER,
    }
}

/// The inverse of [`byte_char`].
const fn byte_of_char(c: char) -> Option<u8> {
    match c as u32 {
        code @ (0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) => Some(code as u8),
        code @ 0x100..=0x120 => Some((code - 0x100) as u8),
        code @ 0x121..=0x142 => Some((code - 0x121 + 0x7F) as u8),
        0x143 => Some(0xAD),
        _ => None,
    }
}

/// `<0x0A>` to 10.
fn byte_of_piece(text: &str) -> Option<u8> {
    let hex = text.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() == 2 && hex.bytes().all(|b| b.is_ascii_hexdigit()) {
        u8::from_str_radix(hex, 16).ok()
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_byte_alphabet_is_a_bijection_of_printable_characters() {
        let mut seen = std::collections::HashSet::new();
        for byte in 0..=255u8 {
            let c = byte_char(byte);
            assert!(seen.insert(c) && !c.is_whitespace() && !c.is_control(), "{byte:#x} {c:?}");
            assert_eq!(byte_of_char(c), Some(byte));
        }
        assert_eq!((byte_char(b' '), byte_char(b'\n')), ('Ġ', 'Ċ'));
        assert_eq!(byte_of_char('中'), None);
    }

    #[test]
    fn byte_pieces_are_two_hex_digits() {
        assert_eq!(byte_of_piece("<0x0A>"), Some(10));
        for text in ["<0xA>", "<0x+1>", "<0x0A", "0x0A", "<0xGG>", "<0x0é>"] {
            assert_eq!(byte_of_piece(text), None, "{text}");
        }
    }
}
