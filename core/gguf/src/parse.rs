//! One file's bytes to its metadata and tensor directory.
//!
//! ```text
//! magic "GGUF", version u32, tensor count u64, key count u64
//! keys:    name, value type u32, value
//! tensors: name, rank u32, dims u64 × rank (fastest first), type u32, offset u64 (from the data section)
//! padding to general.alignment, then the data section
//! string = length u64 + UTF-8;  array = element type u32 + count u64 + elements
//! ```
//!
//! Versions 2 and 3 have the same little-endian layout. Nothing is allocated for a count before the rest of the file was
//! found long enough to hold it, and what is allocated is counted against one limit.

use crate::cursor::{Cursor, Site};
use crate::error::shown;
use crate::sniff;
use crate::value::{Array, LEN_BYTES, Nested, Packed, Scalar, StrArray, Value, id};
use crate::{Error, GgmlType, Metadata, Result};
use bytes::Bytes;

pub(crate) const MAGIC: &[u8; 4] = b"GGUF";
pub(crate) const DEFAULT_ALIGNMENT: u32 = 32;
pub(crate) const ALIGNMENT_KEY: &str = "general.alignment";
/// Real files use 32 to 16 384; more would only hide an attack on the offset arithmetic.
const MAX_ALIGNMENT: u64 = 1 << 24;
/// The format's limit on keys.
const MAX_KEY: u64 = 65_535;
/// The format says 64 for names; published files go beyond it.
const MAX_TENSOR_NAME: u64 = 256;
const MAX_RANK: u64 = 4;
const MAX_NESTING: usize = 4;

/// The least bytes a key takes in the file: empty name, type, one byte.
const MIN_KEY_BYTES: u64 = 8 + 4 + 1;
/// The least bytes a tensor takes in the directory: empty name, rank, one dimension, type, offset.
const MIN_TENSOR_BYTES: u64 = 8 + 4 + 8 + 4 + 8;

/// Name, shape, type and place of one tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// The name, such as `blk.0.attn_q.weight`.
    pub name: String,
    /// Elements per dimension, fastest first; 1 to 4 of them, none is 0. A row is `dims[0]` elements.
    pub dims: Vec<u64>,
    /// The element type.
    pub ty: GgmlType,
    /// Which file of a split model holds the data.
    pub shard: usize,
    /// Where the data starts, in bytes from the start of that file.
    pub offset: u64,
    /// How many bytes the data has.
    pub bytes: u64,
}

impl TensorInfo {
    /// How many elements (the product of the dimensions; it was checked to fit).
    pub fn elements(&self) -> u64 {
        self.dims.iter().fold(1, |product, &dim| product.saturating_mul(dim))
    }

    /// How many rows: all dimensions but the first.
    pub fn rows(&self) -> u64 {
        self.dims.iter().skip(1).fold(1, |product, &dim| product.saturating_mul(dim))
    }

    /// Bytes of one row.
    pub fn row_bytes(&self) -> u64 {
        self.bytes / self.rows().max(1)
    }
}

/// One parsed file.
pub(crate) struct Parsed {
    pub version: u32,
    pub metadata: Metadata,
    pub alignment: u32,
    pub tensors: Vec<TensorInfo>,
    /// Where the data section starts.
    pub data_offset: u64,
}

pub(crate) fn parse(bytes: &Bytes, shard: usize) -> Result<Parsed> {
    let version = check_magic(bytes)?;
    let mut cursor = Cursor::new(bytes);
    cursor.take(8, Site::Header)?;
    let tensor_count = cursor.u64(Site::Header)?;
    let key_count = cursor.u64(Site::Header)?;

    let metadata = parse_metadata(&mut cursor, key_count)?;
    let alignment = alignment_of(&metadata)?;
    let mut tensors = parse_directory(&mut cursor, tensor_count, shard, alignment)?;
    let data_offset = cursor.offset().next_multiple_of(u64::from(alignment));
    for tensor in &mut tensors {
        let relative = tensor.offset;
        tensor.offset = data_offset
            .checked_add(relative)
            .filter(|start| start.checked_add(tensor.bytes).is_some())
            .ok_or_else(|| Error::TensorOutOfRange {
                name: shown(&tensor.name),
                offset: relative,
                bytes: tensor.bytes,
            })?;
    }
    check_ranges(&tensors, bytes.len() as u64)?;
    Ok(Parsed { version, metadata, alignment, tensors, data_offset })
}

fn check_magic(bytes: &Bytes) -> Result<u32> {
    if bytes.is_empty() {
        return Err(Error::Empty);
    }
    match bytes.first_chunk::<4>() {
        Some(magic) if magic == MAGIC => {}
        Some(b"FUGG") => return Err(Error::BigEndian),
        _ => return Err(Error::NotGguf { looks_like: sniff::describe(bytes) }),
    }
    let mut cursor = Cursor::new(bytes);
    cursor.take(4, Site::Header)?;
    match cursor.u32(Site::Header)? {
        version @ (2 | 3) => Ok(version),
        // A small version number read with the wrong byte order: only the high half is set.
        version if version != 0 && version & 0xffff == 0 => Err(Error::BigEndian),
        version => Err(Error::UnsupportedVersion { version }),
    }
}

fn parse_metadata(cursor: &mut Cursor<'_>, count: u64) -> Result<Metadata> {
    let capacity = cursor.check_count(count, MIN_KEY_BYTES, Site::Metadata)?;
    // The entry, and its place in the sorted index.
    cursor.charge(count.saturating_mul(size_of::<(String, Value)>() as u64 + 4), Site::Metadata)?;
    let mut entries = Vec::with_capacity(capacity);
    for index in 0..count {
        let key = cursor.name(MAX_KEY, Site::Key(index))?;
        cursor.charge(key.len() as u64, Site::Key(index))?;
        let ty = cursor.u32(Site::Value(key))?;
        let value = parse_value(cursor, ty, key)?;
        entries.push((key.to_owned(), value));
    }
    Metadata::from_entries(entries)
}

fn parse_value(cursor: &mut Cursor<'_>, ty: u32, key: &str) -> Result<Value> {
    let site = Site::Value(key);
    fn scalar<T: Scalar>(cursor: &mut Cursor<'_>, site: Site<'_>) -> Result<T> {
        cursor.take(T::BYTES as u64, site).map(T::decode)
    }
    Ok(match ty {
        id::U8 => Value::U8(scalar(cursor, site)?),
        id::I8 => Value::I8(scalar(cursor, site)?),
        id::U16 => Value::U16(scalar(cursor, site)?),
        id::I16 => Value::I16(scalar(cursor, site)?),
        id::U32 => Value::U32(scalar(cursor, site)?),
        id::I32 => Value::I32(scalar(cursor, site)?),
        id::F32 => Value::F32(scalar(cursor, site)?),
        id::BOOL => match cursor.u8(site)? {
            value @ (0 | 1) => Value::Bool(value == 1),
            value => return Err(Error::InvalidBool { key: shown(key), value }),
        },
        id::STRING => {
            let text = cursor.text(site)?;
            cursor.charge(text.len() as u64, site)?;
            Value::String(text.to_owned())
        }
        id::ARRAY => Value::Array(parse_array(cursor, key, 1)?),
        id::U64 => Value::U64(scalar(cursor, site)?),
        id::I64 => Value::I64(scalar(cursor, site)?),
        id::F64 => Value::F64(scalar(cursor, site)?),
        id => return Err(Error::UnknownValueType { key: shown(key), id }),
    })
}

fn parse_array(cursor: &mut Cursor<'_>, key: &str, depth: usize) -> Result<Array> {
    if depth > MAX_NESTING {
        return Err(Error::NestingTooDeep { key: shown(key), limit: MAX_NESTING });
    }
    let site = Site::Value(key);
    let ty = cursor.u32(site)?;
    let count = cursor.u64(site)?;
    fn packed<T: Scalar>(cursor: &mut Cursor<'_>, count: u64, site: Site<'_>) -> Result<Packed<T>> {
        cursor.check_count(count, T::BYTES as u64, site)?;
        cursor.take_shared(count.saturating_mul(T::BYTES as u64), site).map(Packed::from_encoded)
    }
    Ok(match ty {
        id::U8 => Array::U8(packed(cursor, count, site)?),
        id::I8 => Array::I8(packed(cursor, count, site)?),
        id::U16 => Array::U16(packed(cursor, count, site)?),
        id::I16 => Array::I16(packed(cursor, count, site)?),
        id::U32 => Array::U32(packed(cursor, count, site)?),
        id::I32 => Array::I32(packed(cursor, count, site)?),
        id::F32 => Array::F32(packed(cursor, count, site)?),
        id::BOOL => {
            let bools = packed::<bool>(cursor, count, site)?;
            cursor.charge_text(count, site)?;
            if let Some(&value) = bools.encoded().iter().find(|&&byte| byte > 1) {
                return Err(Error::InvalidBool { key: shown(key), value });
            }
            Array::Bool(bools)
        }
        id::STRING => Array::String(parse_strings(cursor, count, key)?),
        id::ARRAY => {
            // An inner array has at least its element type and count.
            let capacity = cursor.check_count(count, 4 + 8, site)?;
            cursor.charge(count.saturating_mul(size_of::<Array>() as u64), site)?;
            let mut arrays = Vec::with_capacity(capacity);
            for _ in 0..count {
                arrays.push(parse_array(cursor, key, depth + 1)?);
            }
            Array::Array(Nested(arrays))
        }
        id::U64 => Array::U64(packed(cursor, count, site)?),
        id::I64 => Array::I64(packed(cursor, count, site)?),
        id::F64 => Array::F64(packed(cursor, count, site)?),
        id => return Err(Error::UnknownValueType { key: shown(key), id }),
    })
}

fn parse_strings(cursor: &mut Cursor<'_>, count: u64, key: &str) -> Result<StrArray> {
    let site = Site::Value(key);
    let capacity = cursor.check_count(count, LEN_BYTES as u64, site)?;
    cursor.charge(count.saturating_add(1).saturating_mul(size_of::<u32>() as u64), site)?;
    let begin = cursor.offset();
    let mut starts: Vec<u32> = Vec::with_capacity(capacity.saturating_add(1));
    starts.push(0);
    for _ in 0..count {
        cursor.text(site)?;
        let end = cursor.offset() - begin;
        // The limit on text keeps this below 4 GiB; a change of that limit must not wrap offsets silently.
        let end = u32::try_from(end)
            .map_err(|_| Error::TextTooLarge { what: site.to_string(), limit: u64::from(u32::MAX) })?;
        starts.push(end);
    }
    Ok(StrArray::from_encoded(cursor.since(begin), starts))
}

/// `general.alignment`, or the default.
pub(crate) fn alignment_of(metadata: &Metadata) -> Result<u32> {
    let Some(value) = metadata.opt_u64(ALIGNMENT_KEY)? else { return Ok(DEFAULT_ALIGNMENT) };
    match u32::try_from(value) {
        Ok(alignment) if alignment.is_power_of_two() && value <= MAX_ALIGNMENT => Ok(alignment),
        _ => Err(Error::BadAlignment { value, limit: MAX_ALIGNMENT }),
    }
}

fn parse_directory(
    cursor: &mut Cursor<'_>,
    count: u64,
    shard: usize,
    alignment: u32,
) -> Result<Vec<TensorInfo>> {
    let capacity = cursor.check_count(count, MIN_TENSOR_BYTES, Site::Directory)?;
    // The entry, its place in the index by name and in the one by offset.
    cursor.charge(count.saturating_mul(size_of::<TensorInfo>() as u64 + 12), Site::Directory)?;
    let mut tensors = Vec::with_capacity(capacity);
    for index in 0..count {
        let name = cursor.name(MAX_TENSOR_NAME, Site::TensorName(index))?;
        let site = Site::Tensor(name);
        let rank = u64::from(cursor.u32(site)?);
        if rank == 0 || rank > MAX_RANK {
            return Err(Error::BadRank { name: shown(name), dims: rank, limit: MAX_RANK });
        }
        cursor.charge(name.len() as u64 + rank * 8, site)?;
        let mut dims = Vec::with_capacity(rank as usize);
        for _ in 0..rank {
            dims.push(cursor.u64(site)?);
        }
        let type_id = cursor.u32(site)?;
        let ty = GgmlType::from_id(type_id)
            .ok_or_else(|| Error::UnknownTensorType { name: shown(name), id: type_id })?;
        let bytes = tensor_bytes(name, &dims, ty)?;
        let offset = cursor.u64(site)?;
        if !offset.is_multiple_of(u64::from(alignment)) {
            return Err(Error::MisalignedTensor {
                name: shown(name),
                offset,
                alignment: u64::from(alignment),
            });
        }
        tensors.push(TensorInfo { name: name.to_owned(), dims, ty, shard, offset, bytes });
    }
    Ok(tensors)
}

/// The size of a tensor's data, with every reason why there is none.
pub(crate) fn tensor_bytes(name: &str, dims: &[u64], ty: GgmlType) -> Result<u64> {
    let rank = dims.len() as u64;
    let Some((&row, rest)) = dims.split_first().filter(|_| rank <= MAX_RANK) else {
        return Err(Error::BadRank { name: shown(name), dims: rank, limit: MAX_RANK });
    };
    if let Some(dim) = dims.iter().position(|&dim| dim == 0) {
        return Err(Error::ZeroDimension { name: shown(name), dim });
    }
    if !row.is_multiple_of(ty.block_elements()) {
        return Err(Error::PartialBlock { name: shown(name), row, block: ty.block_elements(), ty });
    }
    let too_large = || Error::TensorTooLarge { name: shown(name), dims: dims.to_vec() };
    // Elements are checked too: types of less than a byte per element can have more elements than bytes.
    dims.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim)).ok_or_else(too_large)?;
    let row_bytes = ty.row_bytes(row).ok_or_else(too_large)?;
    rest.iter().try_fold(row_bytes, |product, &dim| product.checked_mul(dim)).ok_or_else(too_large)
}

/// The name length limit of the format, for the writer too.
pub(crate) fn check_tensor_name(name: &str) -> Result<()> {
    check_len(name, MAX_TENSOR_NAME, || format!("the name of tensor {:?}", shown(name)))
}

/// The key length limit of the format, for the writer.
pub(crate) fn check_key(key: &str) -> Result<()> {
    check_len(key, MAX_KEY, || format!("key {:?}", shown(key)))
}

fn check_len(text: &str, limit: u64, what: impl FnOnce() -> String) -> Result<()> {
    let len = text.len() as u64;
    if len > limit { Err(Error::NameTooLong { what: what(), len, offset: 0, limit }) } else { Ok(()) }
}

/// No tensor past the end of the file, and none that shares part of its bytes with another.
///
/// Two tensors with exactly the same bytes are fine: that is how a tied weight can be stored once.
fn check_ranges(tensors: &[TensorInfo], file_bytes: u64) -> Result<()> {
    let mut order: Vec<&TensorInfo> = tensors.iter().collect();
    order.sort_by_key(|tensor| (tensor.offset, tensor.bytes));
    let end = |tensor: &TensorInfo| tensor.offset.saturating_add(tensor.bytes);
    for pair in order.windows(2) {
        if let [a, b] = *pair
            && b.offset < end(a)
            && (a.offset, a.bytes) != (b.offset, b.bytes)
        {
            return Err(Error::OverlappingTensors {
                first: shown(&a.name),
                second: shown(&b.name),
                offset: b.offset,
            });
        }
    }
    let cut = order.partition_point(|tensor| end(tensor) <= file_bytes);
    if let Some((first, more)) = order.get(cut..).and_then(|rest| rest.split_first()) {
        return Err(Error::TruncatedTensor {
            name: shown(&first.name),
            offset: first.offset,
            needed: first.bytes,
            available: file_bytes.saturating_sub(first.offset),
            more: more.len(),
        });
    }
    Ok(())
}
