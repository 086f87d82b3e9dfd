//! A reading position that never leaves the file and never allocates on a claim it has not checked.

use crate::error::shown;
use crate::{Error, Result};
use bytes::Bytes;
use std::fmt;

/// What the memory for one file's keys, values, names and offset tables may come to.
///
/// The largest real directories (262 144 tokens with merges, or 47 000 expert tensors) need under 10 MiB. Array elements
/// stay in the mapping and do not count. Without a limit, a 4 GiB file of empty strings would ask for 2 GiB.
pub(crate) const METADATA_MEMORY: u64 = 64 << 20;

/// How much text (and how many booleans) one file's directory may hold: all of it is read and checked at opening, and a
/// file must not be able to make that take seconds. The largest real vocabularies have under 10 MiB.
pub(crate) const METADATA_TEXT: u64 = 256 << 20;

/// Where in the file we are, for messages; built into text only when something is wrong.
#[derive(Clone, Copy)]
pub(crate) enum Site<'a> {
    Header,
    Metadata,
    Directory,
    Key(u64),
    Value(&'a str),
    TensorName(u64),
    Tensor(&'a str),
}

impl fmt::Display for Site<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Site::Header => f.write_str("the header"),
            Site::Metadata => f.write_str("the metadata"),
            Site::Directory => f.write_str("the tensor directory"),
            Site::Key(index) => write!(f, "the name of key #{index}"),
            Site::Value(key) => write!(f, "the value of key {:?}", shown(key)),
            Site::TensorName(index) => write!(f, "the name of tensor #{index}"),
            Site::Tensor(name) => write!(f, "the description of tensor {:?}", shown(name)),
        }
    }
}

pub(crate) struct Cursor<'a> {
    bytes: &'a Bytes,
    pos: usize,
    memory_left: u64,
    text_left: u64,
}

impl<'a> Cursor<'a> {
    pub fn new(bytes: &'a Bytes) -> Self {
        Cursor { bytes, pos: 0, memory_left: METADATA_MEMORY, text_left: METADATA_TEXT }
    }

    pub fn offset(&self) -> u64 {
        self.pos as u64
    }

    pub fn remaining(&self) -> u64 {
        self.bytes.len().saturating_sub(self.pos) as u64
    }

    pub fn take(&mut self, needed: u64, site: Site<'_>) -> Result<&'a [u8]> {
        let slice = usize::try_from(needed)
            .ok()
            .and_then(|needed| self.pos.checked_add(needed))
            .and_then(|end| self.bytes.get(self.pos..end));
        let Some(slice) = slice else {
            return Err(Error::TruncatedHeader {
                what: site.to_string(),
                offset: self.offset(),
                needed,
                available: self.remaining(),
            });
        };
        self.pos += slice.len();
        Ok(slice)
    }

    /// Like [`Cursor::take`], but the result shares ownership of the file.
    pub fn take_shared(&mut self, needed: u64, site: Site<'_>) -> Result<Bytes> {
        let slice = self.take(needed, site)?;
        Ok(self.bytes.slice_ref(slice))
    }

    /// The bytes from `start` (an earlier [`Cursor::offset`]) up to here.
    pub fn since(&self, start: u64) -> Bytes {
        let start = usize::try_from(start).unwrap_or(self.pos).min(self.pos);
        self.bytes.slice(start..self.pos)
    }

    fn array<const N: usize>(&mut self, site: Site<'_>) -> Result<[u8; N]> {
        let slice = self.take(N as u64, site)?;
        let mut array = [0; N];
        array.copy_from_slice(slice);
        Ok(array)
    }

    pub fn u8(&mut self, site: Site<'_>) -> Result<u8> {
        self.array::<1>(site).map(|[byte]| byte)
    }

    pub fn u32(&mut self, site: Site<'_>) -> Result<u32> {
        self.array(site).map(u32::from_le_bytes)
    }

    pub fn u64(&mut self, site: Site<'_>) -> Result<u64> {
        self.array(site).map(u64::from_le_bytes)
    }

    /// A key or name: text of at most `limit` bytes.
    pub fn name(&mut self, limit: u64, site: Site<'_>) -> Result<&'a str> {
        let offset = self.offset();
        let len = self.u64(site)?;
        if len > limit {
            return Err(Error::NameTooLong { what: site.to_string(), len, offset, limit });
        }
        self.utf8(len, site)
    }

    /// Text with its `u64` length in front. The slice lives in the file.
    pub fn text(&mut self, site: Site<'_>) -> Result<&'a str> {
        let len = self.u64(site)?;
        self.utf8(len, site)
    }

    fn utf8(&mut self, len: u64, site: Site<'_>) -> Result<&'a str> {
        let start = self.offset();
        let slice = self.take(len, site)?;
        self.charge_text(len, site)?;
        std::str::from_utf8(slice).map_err(|error| Error::InvalidUtf8 {
            what: site.to_string(),
            offset: start + error.valid_up_to() as u64,
        })
    }

    /// Checks that `count` entries of at least `entry_bytes` can be in the rest of the file.
    pub fn check_count(&self, count: u64, entry_bytes: u64, site: Site<'_>) -> Result<usize> {
        let available = self.remaining();
        let fits = count.checked_mul(entry_bytes).is_some_and(|needed| needed <= available);
        match usize::try_from(count) {
            Ok(count) if fits => Ok(count),
            _ => Err(Error::CountTooLarge {
                what: site.to_string(),
                count,
                entry_bytes,
                offset: self.offset(),
                available,
            }),
        }
    }

    /// Counts `bytes` about to be read and checked against [`METADATA_TEXT`].
    pub fn charge_text(&mut self, bytes: u64, site: Site<'_>) -> Result<()> {
        match self.text_left.checked_sub(bytes) {
            Some(left) => {
                self.text_left = left;
                Ok(())
            }
            None => Err(Error::TextTooLarge { what: site.to_string(), limit: METADATA_TEXT }),
        }
    }

    /// Counts `bytes` of memory about to be allocated against [`METADATA_MEMORY`].
    pub fn charge(&mut self, bytes: u64, site: Site<'_>) -> Result<()> {
        match self.memory_left.checked_sub(bytes) {
            Some(left) => {
                self.memory_left = left;
                Ok(())
            }
            None => Err(Error::MetadataTooLarge { what: site.to_string(), limit: METADATA_MEMORY }),
        }
    }
}
