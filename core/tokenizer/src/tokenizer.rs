//! Text to token ids and back.

use crate::bpe::{Merger, read_merges};
use crate::error::TokenizerError;
use crate::special::{Fragment, SpecialTexts};
use crate::split::{self, PreTokenizer, Splitter};
use crate::spm::{NeighbourFilter, ScoreMerger};
use crate::stream::StreamDecoder;
use crate::table::MergeTable;
use crate::vocab::{self, SpecialTokens, Spelling, TokenType, Vocab, attr};
use pannier_gguf::Metadata;
use std::borrow::Cow;

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const MERGES: &str = "tokenizer.ggml.merges";
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
const ADD_EOS: &str = "tokenizer.ggml.add_eos_token";

/// How text is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Add the BOS and EOS tokens that the model wants.
    pub add_special: bool,
    /// Read the text of control tokens (`<|im_start|>`) as these tokens. Off for text that users wrote: they must not
    /// be able to speak for the assistant. User-defined tokens are found in either case.
    pub parse_special: bool,
}

impl Default for EncodeOptions {
    fn default() -> Self {
        Self { add_special: true, parse_special: true }
    }
}

/// How ids become text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeOptions {
    /// Leave out control and unknown tokens.
    pub skip_special: bool,
    /// The ids go on from earlier text. Otherwise the space that SentencePiece vocabularies put in front of a text is
    /// taken away.
    pub continuation: bool,
}

impl Default for DecodeOptions {
    fn default() -> Self {
        Self { skip_special: true, continuation: false }
    }
}

enum Algorithm {
    Bpe { merges: MergeTable, pre: &'static PreTokenizer },
    Spm { neighbours: NeighbourFilter, add_space_prefix: bool },
}

/// A model's vocabulary: encodes text and decodes ids.
///
/// Gives exactly the ids of llama.cpp for the same file. The texts of pieces stay in the mapped file.
pub struct Tokenizer {
    vocab: Vocab,
    special: SpecialTexts,
    algorithm: Algorithm,
    add_bos: bool,
    add_eos: bool,
    model: String,
    pre: String,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("model", &self.model)
            .field("pre", &self.pre)
            .field("vocab_size", &self.vocab.len())
            .finish_non_exhaustive()
    }
}

/// What kind of vocabulary a name of `tokenizer.ggml.model` stands for, where it is not one of ours.
fn kind_of(model: &str) -> &'static str {
    match model {
        "bert" => "WordPiece",
        "t5" => "SentencePiece unigram",
        "rwkv" => "RWKV trie",
        "plamo2" => "PLaMo-2 Aho-Corasick",
        "hybriddna" => "DNA k-mers",
        "whitespace" => "white-space words",
        _ => "unknown",
    }
}

impl Tokenizer {
    /// Builds the tokenizer that a model file describes.
    ///
    /// Faults that leave a sound vocabulary are mended and listed in [`Tokenizer::notes`]: special ids out of range,
    /// equal texts, merges of unknown pieces.
    ///
    /// # Errors
    /// [`TokenizerError::NoVocabulary`] if the file has none: the model can still run on ids. Otherwise the kind of
    /// vocabulary or its pre-tokenizer is not known, or a list is missing, of the wrong type, empty or too short.
    pub fn from_metadata(metadata: &Metadata) -> Result<Self, TokenizerError> {
        let text =
            |key| metadata.opt_str(key).map_err(|e| TokenizerError::BadKey { key, reason: e.to_string() });
        let model = match text(MODEL)? {
            None => return Err(TokenizerError::NoVocabulary { model: "absent".into() }),
            Some(model @ ("no_vocab" | "none")) => {
                return Err(TokenizerError::NoVocabulary { model: model.into() });
            }
            Some(model) => model,
        };
        let pre = text(PRE)?.unwrap_or("");
        let flag =
            |key| metadata.opt_bool(key).map_err(|e| TokenizerError::BadKey { key, reason: e.to_string() });
        let (mut vocab, algorithm, mut add_bos) = match model {
            "llama" => {
                let vocab = Vocab::read(metadata, model, Spelling::Plain)?;
                let add_space_prefix = flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
                let neighbours = NeighbourFilter::new(&vocab);
                (vocab, Algorithm::Spm { neighbours, add_space_prefix }, true)
            }
            "gpt2" | "gemma4" => {
                let pre_name = if model == "gemma4" { model } else { pre };
                let pre = split::lookup(pre_name).ok_or_else(|| TokenizerError::UnknownPreTokenizer {
                    name: pre_name.to_owned(),
                    known: split::known_names().collect::<Vec<_>>().join(", "),
                })?;
                let spelling = if pre.raw { Spelling::Plain } else { Spelling::ByteLevel };
                let mut vocab = Vocab::read(metadata, model, spelling)?;
                if pre_name.is_empty() {
                    vocab
                        .notes
                        .push(format!("`{PRE}` is missing: `default` is used, which may give wrong ids"));
                }
                let (merges, left_out) = read_merges(vocab::strings(metadata, MERGES, model)?, &vocab)?;
                if left_out > 0 {
                    vocab
                        .notes
                        .push(format!("{left_out} merges of pieces that are not in the vocabulary: ignored"));
                }
                (vocab, Algorithm::Bpe { merges, pre }, pre.add_bos)
            }
            other => {
                return Err(TokenizerError::UnsupportedModel {
                    model: other.to_owned(),
                    what: kind_of(other),
                });
            }
        };
        add_bos = flag(ADD_BOS)?.unwrap_or(add_bos);
        if model == "gemma4" {
            // Published files say no, and the models break without it.
            add_bos = true;
        }
        let add_eos = flag(ADD_EOS)?.unwrap_or(false);
        for (on, token, key) in [(add_bos, vocab.special.bos, ADD_BOS), (add_eos, vocab.special.eos, ADD_EOS)]
        {
            if on && token.is_none() {
                vocab.notes.push(format!("`{key}` applies but no such token is named: none is added"));
            }
        }
        let special = SpecialTexts::new(&vocab);
        Ok(Self { vocab, special, algorithm, add_bos, add_eos, model: model.to_owned(), pre: pre.to_owned() })
    }

    /// Encodes `text`.
    ///
    /// Takes time linear in the length of the text but for a logarithm. Bytes that the vocabulary can't spell (a few
    /// byte-level vocabularies lack some) are left out, as in the reference; SentencePiece vocabularies have `<unk>`.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Vec<u32> {
        // About four bytes a token in most text: one growth at most.
        let mut out = Vec::with_capacity(text.len() / 4 + 2);
        if options.add_special && self.add_bos {
            out.extend(self.vocab.special.bos);
        }
        let mut encoder = Encoder::new(self);
        for fragment in self.special.split(&self.vocab, text, options.parse_special) {
            match fragment {
                Fragment::Token(id) => encoder.token(id, &mut out),
                Fragment::Text(range) => {
                    let mut rest = text.get(range).unwrap_or_default();
                    while !rest.is_empty() {
                        let (head, tail) = rest.split_at(rest.floor_char_boundary(MAX_FRAGMENT));
                        encoder.text(head, &mut out);
                        rest = tail;
                    }
                }
            }
        }
        if options.add_special && self.add_eos {
            out.extend(self.vocab.special.eos);
        }
        out
    }

    /// Encodes what a chat template rendered: control tokens are read, and BOS is added only if the template did not
    /// write it. (Many do, and a second BOS makes answers worse.)
    pub fn encode_rendered(&self, prompt: &str) -> Vec<u32> {
        let mut ids = self.encode(prompt, EncodeOptions { add_special: false, parse_special: true });
        if self.add_bos
            && let Some(bos) = self.vocab.special.bos
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        ids
    }

    /// Decodes `ids`. Bytes that are not UTF-8 become U+FFFD; ids out of range stand for nothing.
    pub fn decode(&self, ids: &[u32], options: DecodeOptions) -> String {
        let mut decoder = StreamDecoder::new(self, options);
        let mut out = String::new();
        for &id in ids {
            out.push_str(decoder.push(id).unwrap_or_default());
        }
        out.push_str(decoder.finish().unwrap_or_default());
        out
    }

    /// The bytes that a token stands for: its own text for special tokens, nothing for ids out of range.
    ///
    /// They may be a part of a character; [`StreamDecoder`] puts characters together.
    pub fn decode_token_bytes(&self, id: u32) -> Cow<'_, [u8]> {
        self.vocab.token_bytes(id)
    }

    /// A token's text as the vocabulary has it (`Ġworld`, `▁world`, `<0x0A>`).
    pub fn piece(&self, id: u32) -> Option<&str> {
        ((id as usize) < self.vocab.len()).then(|| self.vocab.text(id))
    }

    /// The token whose text in the vocabulary is `piece`.
    pub fn id_of_piece(&self, piece: &str) -> Option<u32> {
        self.vocab.id_of(piece.as_bytes())
    }

    /// How many tokens there are. A model's output may be padded to more.
    pub fn vocab_size(&self) -> usize {
        self.vocab.len()
    }

    /// What a token is. Tokens that are well known to end a turn are control tokens whatever the file says.
    pub fn token_type(&self, id: u32) -> TokenType {
        self.vocab.token_type(id)
    }

    /// Whether a token steers the model instead of being text: [`DecodeOptions::skip_special`] leaves it out.
    pub fn is_control(&self, id: u32) -> bool {
        self.vocab.attr(id) & (attr::CONTROL | attr::UNKNOWN) != 0
    }

    /// Whether a token ends the generation.
    pub fn is_eog(&self, id: u32) -> bool {
        self.vocab.eog.binary_search(&id).is_ok()
    }

    /// All tokens that end the generation, ascending: end of text, of turn and of message, and the field's well-known
    /// texts for these.
    pub fn eog_tokens(&self) -> &[u32] {
        &self.vocab.eog
    }

    /// The tokens with a role.
    pub fn special_tokens(&self) -> &SpecialTokens {
        &self.vocab.special
    }

    /// Whether the model wants a BOS token in front.
    pub fn add_bos(&self) -> bool {
        self.add_bos
    }

    /// Whether the model wants an EOS token behind.
    pub fn add_eos(&self) -> bool {
        self.add_eos
    }

    /// The kind of vocabulary, as in `tokenizer.ggml.model`.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// The name of the pre-tokenizer, as in `tokenizer.ggml.pre`; empty if the file names none.
    pub fn pre(&self) -> &str {
        &self.pre
    }

    /// What was wrong in the file and how it was mended, for a log.
    pub fn notes(&self) -> &[String] {
        &self.vocab.notes
    }

    /// Anonymous memory that the tokenizer holds, in bytes, without the texts (which are the file's) and without the
    /// table of their offsets (which the metadata owns).
    pub fn heap_bytes(&self) -> usize {
        let merges = match &self.algorithm {
            Algorithm::Bpe { merges, .. } => merges.heap_bytes(),
            Algorithm::Spm { neighbours, .. } => neighbours.heap_bytes(),
        };
        self.vocab.heap_bytes() + self.special.heap_bytes() + merges
    }

    /// Whether the text of a SentencePiece vocabulary gets a space in front.
    pub(crate) fn adds_space_prefix(&self) -> bool {
        matches!(self.algorithm, Algorithm::Spm { add_space_prefix: true, .. })
    }
}

/// Positions are `u32`. Longer text without a special token is cut here; a phone's context is far smaller.
const MAX_FRAGMENT: usize = 1 << 28;

/// The state of encoding one text.
struct Encoder<'t> {
    tokenizer: &'t Tokenizer,
    splitter: Splitter,
    merger: Merger,
    score_merger: ScoreMerger,
    buffer: String,
    /// The text begins, or a special token is before.
    after_special: bool,
}

impl<'t> Encoder<'t> {
    fn new(tokenizer: &'t Tokenizer) -> Self {
        Self {
            tokenizer,
            splitter: Splitter::default(),
            merger: Merger::default(),
            score_merger: ScoreMerger::default(),
            buffer: String::new(),
            after_special: true,
        }
    }

    fn token(&mut self, id: u32, out: &mut Vec<u32>) {
        out.push(id);
        self.after_special = true;
    }

    fn text(&mut self, text: &str, out: &mut Vec<u32>) {
        let vocab = &self.tokenizer.vocab;
        match &self.tokenizer.algorithm {
            Algorithm::Spm { neighbours, add_space_prefix } => {
                self.buffer.clear();
                if *add_space_prefix && self.after_special {
                    self.buffer.push('▁');
                }
                escape(text, &mut self.buffer);
                self.score_merger.encode(vocab, neighbours, &self.buffer, out);
            }
            Algorithm::Bpe { merges, pre } if pre.raw => {
                self.buffer.clear();
                escape(text, &mut self.buffer);
                let merger = &mut self.merger;
                self.splitter
                    .split(pre.stages, &self.buffer, |word| raw_word(vocab, merges, merger, word, out));
            }
            Algorithm::Bpe { merges, pre } => {
                let (merger, buffer) = (&mut self.merger, &mut self.buffer);
                self.splitter.split(pre.stages, text, |word| {
                    if pre.ignore_merges {
                        buffer.clear();
                        buffer.extend(word.bytes().map(vocab::byte_char));
                        if let Some(id) = vocab.id_of(buffer.as_bytes()) {
                            out.push(id);
                            return;
                        }
                    }
                    merger.clear();
                    word.bytes().for_each(|byte| merger.push(vocab.byte_piece(byte)));
                    merger.merge(merges, |id, _| out.extend(id));
                });
            }
        }
        self.after_special = false;
    }
}

/// Writes spaces as `▁`.
fn escape(text: &str, out: &mut String) {
    for (i, part) in text.split(' ').enumerate() {
        if i > 0 {
            out.push('▁');
        }
        out.push_str(part);
    }
}

/// Merges the characters of a word; those without a piece are spelled in byte pieces.
fn raw_word(vocab: &Vocab, merges: &MergeTable, merger: &mut Merger, word: &str, out: &mut Vec<u32>) {
    // Runs of line breaks are pieces, but there are no merges that make them.
    if word.bytes().all(|b| b == b'\n')
        && let Some(id) = vocab.id_of(word.as_bytes())
    {
        out.push(id);
        return;
    }
    let mut utf8 = [0; 4];
    merger.clear();
    for c in word.chars() {
        merger.push(vocab.id_of(c.encode_utf8(&mut utf8).as_bytes()));
    }
    // Characters without a piece come in order, so one pass over the word finds each.
    let (mut chars, mut at) = (word.chars(), 0);
    merger.merge(merges, |id, first| match id {
        Some(id) => out.push(id),
        None => {
            if let Some(c) = chars.nth(first - at) {
                let bytes = c.encode_utf8(&mut utf8).as_bytes();
                out.extend(bytes.iter().filter_map(|b| vocab.byte_piece(*b)));
            }
            at = first + 1;
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_space_is_escaped() {
        let mut out = String::new();
        escape("  a b ", &mut out);
        assert_eq!(out, "▁▁a▁b▁");
    }
}
