//! Sequences as files: read back after a restart, a prompt need not be computed again.
//!
//! ```text
//! magic 8, version u32, fingerprint 32          of the model and of all settings that its keys and values depend on
//! tokens: count u32, then u32 each
//! layers: count u32, then for each              first u32, gap u32, floor u32 (see `Table`), words of a page u32, pages u32,
//!                                               and the words of each page, u16, its summary among them if it has one; words of the fresh page that the end is in u32 (0 if
//!                                               there is none, see `fresh.rs`), and these words, u16
//! state:  count u32, then f32 each              of recurrent layers
//! SHA-256 of all before it
//! ```
//!
//! All numbers are little-endian. The checksum comes first when reading: nothing of a damaged file is looked at. It proves
//! nothing about who wrote the file, so every count is checked against the cache it is read into before memory is taken.

use std::io::{self, Read, Seek, SeekFrom, Write};

use pannier_kernels::PAGE_TOKENS;
use sha2::{Digest, Sha256};

use super::{KvCache, Sequence};
use crate::{Error, Result};

const MAGIC: [u8; 8] = *b"PANNIEKV";
const VERSION: u32 = 3;
/// Bytes of the checksum.
const SUM: u64 = 32;

/// What a sequence's keys and values depend on besides its tokens.
pub type Fingerprint = [u8; 32];

/// What a file holds besides keys and values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Saved {
    /// The tokens of the sequence.
    pub tokens: Vec<u32>,
    /// The states of recurrent layers, one after the other; empty if there are none.
    pub state: Vec<f32>,
}

fn bad(reason: impl Into<String>) -> Error {
    Error::BadCacheFile { reason: reason.into() }
}

fn unreadable(error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => bad("it ends too early"),
        kind => bad(format!("it cannot be read: {kind}")),
    }
}

/// Hashes what it passes on.
struct Summed<'a> {
    out: &'a mut dyn Write,
    sum: Sha256,
}

impl Summed<'_> {
    fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sum.update(bytes);
        self.out.write_all(bytes)
    }

    fn words(&mut self, words: &[u16], bytes: &mut Vec<u8>) -> io::Result<()> {
        bytes.clear();
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        self.bytes(bytes)
    }

    fn count(&mut self, n: usize) -> io::Result<()> {
        let n = u32::try_from(n).map_err(|_| io::Error::other("a count above 2^32"))?;
        self.bytes(&n.to_le_bytes())
    }
}

/// Writes a sequence. `saved.tokens` are its tokens.
pub(super) fn write(
    cache: &KvCache,
    seq: &Sequence,
    fingerprint: &Fingerprint,
    saved: &Saved,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut out = Summed { out, sum: Sha256::new() };
    out.bytes(&MAGIC)?;
    out.bytes(&VERSION.to_le_bytes())?;
    out.bytes(fingerprint)?;
    out.count(saved.tokens.len())?;
    for token in &saved.tokens {
        out.bytes(&token.to_le_bytes())?;
    }
    out.count(seq.tables().len())?;
    for (layer, table) in seq.tables().iter().enumerate() {
        let (Ok(info), Some(pool)) = (cache.layer(layer), cache.pools.get(table.pool)) else {
            return Err(io::Error::other("a layer without pages"));
        };
        for n in [table.first, table.gap, table.floor, pool.page_len(), table.held().len()] {
            out.count(n)?;
        }
        let (slots, layout) = (table.slot(seq.len()), info.geometry.layout());
        let mut page = vec![0u16; pool.page_len()];
        let mut bytes = Vec::with_capacity(2 * page.len());
        for (index, &held) in (table.first..).zip(table.held()) {
            page.copy_from_slice(pool.page(held).ok_or_else(|| io::Error::other("a page that is gone"))?);
            // What lies behind the end is of no sequence, and may be of a text that was taken back.
            for slot in slots.saturating_sub(index * PAGE_TOKENS)..PAGE_TOKENS {
                layout.clear_row(&mut page, slot);
            }
            if info.fresh.is_some() && (index + 1) * PAGE_TOKENS > slots {
                // Nor are keys that were rounded when the page was full once.
                layout.clear_keys(&mut page);
            }
            if layout.summaries && (index + 1) * PAGE_TOKENS > slots {
                layout.clear_summary(&mut page);
            }
            out.words(&page, &mut bytes)?;
        }
        let tail = table.fresh.as_ref().and_then(|fresh| Some((fresh.pool, fresh.tail(slots)?)));
        let tail = tail.and_then(|(pool, page)| cache.pools.get(pool)?.page(page));
        out.count(tail.map_or(0, <[u16]>::len))?;
        if let Some(tail) = tail {
            let mut tail = tail.to_vec();
            for slot in slots % PAGE_TOKENS..PAGE_TOKENS {
                layout.fresh().clear_row(&mut tail, slot);
            }
            out.words(&tail, &mut bytes)?;
        }
    }
    out.count(saved.state.len())?;
    for value in &saved.state {
        out.bytes(&value.to_le_bytes())?;
    }
    let sum = out.sum.finalize();
    out.out.write_all(&sum)
}

/// What is left of the checked part of a file.
struct Checked<'a, R> {
    input: &'a mut R,
    left: u64,
}

impl<R: Read> Checked<'_, R> {
    fn bytes(&mut self, out: &mut [u8]) -> Result<()> {
        self.left = self.left.checked_sub(out.len() as u64).ok_or_else(|| bad("it ends too early"))?;
        self.input.read_exact(out).map_err(|error| unreadable(&error))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut out = [0; N];
        self.bytes(&mut out)?;
        Ok(out)
    }

    fn count(&mut self) -> Result<usize> {
        Ok(u32::from_le_bytes(self.array()?) as usize)
    }

    /// A count of things that take `each` bytes, all of which the file still has.
    fn count_of(&mut self, each: u64) -> Result<usize> {
        let n = self.count()?;
        if (n as u64).checked_mul(each).is_none_or(|bytes| bytes > self.left) {
            return Err(bad("it promises more than it holds"));
        }
        Ok(n)
    }
}

/// Checks the sum of the whole file, and goes back to its beginning.
fn check_sum<R: Read + Seek>(input: &mut R) -> Result<u64> {
    let len = input.seek(SeekFrom::End(0)).map_err(|error| unreadable(&error))?;
    let body = len.checked_sub(SUM).ok_or_else(|| bad("it ends too early"))?;
    input.rewind().map_err(|error| unreadable(&error))?;
    let mut sum = Sha256::new();
    let mut block = [0u8; 16 << 10];
    let mut left = body;
    while left > 0 {
        let n = usize::try_from(left).unwrap_or(usize::MAX).min(block.len());
        let part = block.get_mut(..n).unwrap_or_default();
        input.read_exact(part).map_err(|error| unreadable(&error))?;
        sum.update(&*part);
        left -= n as u64;
    }
    let mut stored = [0u8; SUM as usize];
    input.read_exact(&mut stored).map_err(|error| unreadable(&error))?;
    if sum.finalize().as_slice() != stored {
        return Err(bad("its checksum is wrong"));
    }
    input.rewind().map_err(|error| unreadable(&error))?;
    Ok(body)
}

/// Reads a sequence into a cache. On failure nothing of it stays.
pub(super) fn read<R: Read + Seek>(
    cache: &mut KvCache,
    fingerprint: &Fingerprint,
    limits: &Limits,
    input: &mut R,
) -> Result<(Sequence, Saved)> {
    let left = check_sum(input)?;
    let mut input = Checked { input, left };
    if input.array::<8>()? != MAGIC {
        return Err(bad("it is no saved sequence"));
    }
    let version = u32::from_le_bytes(input.array()?);
    if version != VERSION {
        return Err(bad(format!("it has version {version}, this engine reads {VERSION}")));
    }
    if input.array::<32>()? != *fingerprint {
        return Err(bad("it was saved with another model or with other settings"));
    }
    let n = input.count_of(4)?;
    if n > limits.context {
        return Err(bad(format!("it has {n} tokens, above the context of {}", limits.context)));
    }
    let mut saved = Saved::default();
    for _ in 0..n {
        let token = u32::from_le_bytes(input.array()?);
        if token as usize >= limits.vocab {
            return Err(bad(format!("token {token} is outside the vocabulary of {}", limits.vocab)));
        }
        saved.tokens.push(token);
    }
    let mut seq = cache.new_sequence();
    if input.count()? != seq.tables().len() {
        return Err(bad("its layers are not the model's"));
    }
    for layer in 0..seq.tables().len() {
        read_layer(cache, &mut seq, layer, n, &mut input)?;
    }
    let values = input.count_of(4)?;
    if values != limits.state {
        return Err(bad("its states are not the model's"));
    }
    for _ in 0..values {
        saved.state.push(f32::from_le_bytes(input.array()?));
    }
    if input.left != 0 {
        return Err(bad("there is more behind its end"));
    }
    seq.set_len(n);
    Ok((seq, saved))
}

/// What a file may hold.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Tokens.
    pub context: usize,
    /// Token ids.
    pub vocab: usize,
    /// Values of the states of recurrent layers.
    pub state: usize,
}

fn read_layer<R: Read>(
    cache: &mut KvCache,
    seq: &mut Sequence,
    layer: usize,
    n: usize,
    input: &mut Checked<'_, R>,
) -> Result<()> {
    let geometry = cache.layer(layer)?.geometry;
    let (first, gap, floor) = (input.count()?, input.count()?, input.count()?);
    let page_len = input.count()?;
    let pages = input.count_of(2 * page_len as u64)?;
    let table = seq.tables_mut().get_mut(layer).ok_or_else(|| Error::internal("KV layer"))?;
    let pool = cache.pools.get_mut(table.pool).ok_or_else(|| Error::internal("page pool"))?;
    if page_len != pool.page_len() {
        return Err(bad("its pages are not the model's"));
    }
    // Nothing behind the window is missing, and nothing was evicted that was not there.
    let needed = geometry.window.map_or(0, |window| super::needed_from(n, window)) / PAGE_TOKENS;
    let evicts = geometry.window.is_none() && table.fresh.is_none() && !geometry.summaries;
    let fits = gap <= floor && floor <= n && (gap == 0 || evicts);
    if !fits || first > needed || (n - gap).div_ceil(PAGE_TOKENS) != first.saturating_add(pages) {
        return Err(bad("its pages are not those of its tokens"));
    }
    pool.ensure_free(pages)?;
    (table.first, table.gap, table.floor) = (first, gap, floor);
    table.pages.resize(first, 0);
    let mut bytes = vec![0u8; 2 * page_len];
    for _ in 0..pages {
        input.bytes(&mut bytes)?;
        let page = pool.take()?;
        // From here on the sequence gives the page back when it is dropped.
        table.pages.push(page);
        to_words(&bytes, pool.page_mut(page))?;
    }
    let words = input.count_of(2)?;
    let Some(fresh) = &mut table.fresh else {
        return if words == 0 {
            Ok(())
        } else {
            Err(bad("it has fresh keys that the model's types have not"))
        };
    };
    let pool = cache.pools.get_mut(fresh.pool).ok_or_else(|| Error::internal("page pool"))?;
    let expected = if n.is_multiple_of(PAGE_TOKENS) { 0 } else { pool.page_len() };
    if words != expected {
        return Err(bad("its fresh keys are not those of its last page"));
    }
    if words > 0 {
        pool.ensure_free(1)?;
        bytes.resize(2 * words, 0);
        input.bytes(&mut bytes)?;
        let page = pool.take()?;
        fresh.push(n, page);
        to_words(&bytes, pool.page_mut(page))?;
    }
    Ok(())
}

fn to_words(bytes: &[u8], words: Option<&mut [u16]>) -> Result<()> {
    let words = words.ok_or_else(|| Error::internal("a page that is gone"))?;
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<2>().0) {
        *word = u16::from_le_bytes(*bytes);
    }
    Ok(())
}
