//! `tokenizer.model`: the part of SentencePiece's protobuf that a vocabulary needs.
//!
//! ```text
//! ModelProto      1: SentencePiece (repeated)   3: NormalizerSpec
//! SentencePiece   1: text   2: score (fixed32)  3: type
//! NormalizerSpec  3: add_dummy_prefix
//! ```
//! Four message types of a format that does not change: a reader of 60 lines instead of a protobuf library and generated code.

use super::{Added, Kind, MAX_TOKENS, NEVER, Tokens};

/// What the file says.
#[derive(Debug, Default)]
pub(super) struct SentencePiece {
    pieces: Vec<(String, f32, Kind)>,
    pub add_dummy_prefix: Option<bool>,
}

impl SentencePiece {
    /// Tokens by id, at least `rows` of them.
    pub fn tokens(&self, rows: u64, added: &[Added]) -> Tokens {
        let mut tokens = Tokens::unused((self.pieces.len()).max(rows as usize));
        for (id, (text, score, kind)) in (0..).zip(&self.pieces) {
            tokens.set(id, text, *kind, *score);
        }
        for token in added {
            let known = tokens.kind(token.id);
            // What the file itself calls unknown, control or byte stays so.
            if matches!(known, Some(Kind::Unknown | Kind::Control | Kind::Byte)) {
                continue;
            }
            let kind = token.kind();
            let text =
                if kind == Kind::UserDefined { token.text.replace('▁', " ") } else { token.text.clone() };
            tokens.set(token.id, &text, kind, NEVER);
        }
        tokens
    }
}

enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    Fixed32([u8; 4]),
    Skipped,
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn varint(&mut self) -> Result<u64, String> {
        let mut value = 0u64;
        for shift in (0..70).step_by(7) {
            let (byte, rest) = self.0.split_first().ok_or("ends inside a number")?;
            self.0 = rest;
            value |= u64::from(byte & 127).checked_shl(shift).unwrap_or(0);
            if byte & 128 == 0 {
                return Ok(value);
            }
        }
        Err("has a number of more than ten bytes".to_owned())
    }

    fn take(&mut self, len: u64) -> Result<&'a [u8], String> {
        let len = usize::try_from(len).ok().filter(|len| *len <= self.0.len());
        let len = len.ok_or("is cut: a field is longer than the file")?;
        let (taken, rest) = self.0.split_at(len);
        self.0 = rest;
        Ok(taken)
    }

    /// The next field's number and content.
    fn next(&mut self) -> Result<Option<(u64, Field<'a>)>, String> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let field = match tag & 7 {
            0 => Field::Number(self.varint()?),
            1 => {
                self.take(8)?;
                Field::Skipped
            }
            2 => {
                let len = self.varint()?;
                Field::Bytes(self.take(len)?)
            }
            5 => Field::Fixed32(self.take(4)?.first_chunk().copied().unwrap_or_default()),
            other => return Err(format!("has a field of the unknown kind {other}: no SentencePiece model?")),
        };
        Ok(Some((tag >> 3, field)))
    }
}

/// Reads the file.
pub(super) fn parse(bytes: &[u8]) -> Result<SentencePiece, String> {
    let mut model = SentencePiece::default();
    let mut reader = Reader(bytes);
    while let Some((number, field)) = reader.next()? {
        match (number, field) {
            (1, Field::Bytes(piece)) => model.pieces.push(parse_piece(piece, model.pieces.len())?),
            (3, Field::Bytes(normalizer)) => {
                let mut reader = Reader(normalizer);
                while let Some((number, field)) = reader.next()? {
                    if let (3, Field::Number(value)) = (number, field) {
                        model.add_dummy_prefix = Some(value != 0);
                    }
                }
            }
            _ => {}
        }
        if model.pieces.len() as u64 > MAX_TOKENS {
            return Err(format!("has more than {MAX_TOKENS} pieces"));
        }
    }
    if model.pieces.is_empty() {
        return Err("has no pieces: is it a SentencePiece model?".to_owned());
    }
    Ok(model)
}

fn parse_piece(bytes: &[u8], index: usize) -> Result<(String, f32, Kind), String> {
    let (mut text, mut score, mut kind) = (String::new(), 0f32, Kind::Normal);
    let mut reader = Reader(bytes);
    while let Some((number, field)) = reader.next()? {
        match (number, field) {
            (1, Field::Bytes(bytes)) => {
                let utf8 = std::str::from_utf8(bytes);
                utf8.map_err(|_| format!("piece {index} is not UTF-8"))?.clone_into(&mut text);
            }
            (2, Field::Fixed32(raw)) => score = f32::from_le_bytes(raw),
            (3, Field::Number(number)) => {
                kind = match number {
                    2 => Kind::Unknown,
                    3 => Kind::Control,
                    4 => Kind::UserDefined,
                    5 => Kind::Unused,
                    6 => Kind::Byte,
                    _ => Kind::Normal,
                };
            }
            _ => {}
        }
    }
    Ok((text, score, kind))
}
