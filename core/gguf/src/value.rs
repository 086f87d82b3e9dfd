//! Metadata values. Arrays stay in the file's bytes: a vocabulary of 262 144 strings costs one table of offsets.

use bytes::{BufMut, Bytes, BytesMut};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

/// One metadata value.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "each variant is the type it is named after")]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// An array value; all elements have one type.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "each variant is the type it is named after")]
pub enum Array {
    U8(Packed<u8>),
    I8(Packed<i8>),
    U16(Packed<u16>),
    I16(Packed<i16>),
    U32(Packed<u32>),
    I32(Packed<i32>),
    F32(Packed<f32>),
    Bool(Packed<bool>),
    String(StrArray),
    Array(Nested),
    U64(Packed<u64>),
    I64(Packed<i64>),
    F64(Packed<f64>),
}

/// An array of arrays.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Nested(pub(crate) Vec<Array>);

impl Nested {
    /// The inner arrays.
    pub fn arrays(&self) -> &[Array] {
        &self.0
    }
}

impl From<Vec<Array>> for Nested {
    fn from(arrays: Vec<Array>) -> Self {
        Nested(arrays)
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A number (or boolean) with a fixed little-endian encoding in the file.
pub trait Scalar: Copy + sealed::Sealed + 'static {
    /// Bytes of one element in the file.
    const BYTES: usize;
    /// Decodes one element; `bytes` has [`Scalar::BYTES`] bytes.
    #[doc(hidden)]
    fn decode(bytes: &[u8]) -> Self;
    #[doc(hidden)]
    fn encode(self, out: &mut BytesMut);
}

macro_rules! scalars {
    ($($ty:ty, $variant:ident;)*) => {$(
        impl sealed::Sealed for $ty {}
        impl Scalar for $ty {
            const BYTES: usize = size_of::<$ty>();
            fn decode(bytes: &[u8]) -> Self {
                let mut raw = [0; size_of::<$ty>()];
                for (to, from) in raw.iter_mut().zip(bytes) {
                    *to = *from;
                }
                <$ty>::from_le_bytes(raw)
            }
            fn encode(self, out: &mut BytesMut) {
                out.put_slice(&self.to_le_bytes());
            }
        }
        impl From<$ty> for Value {
            fn from(value: $ty) -> Self { Value::$variant(value) }
        }
        impl From<Vec<$ty>> for Value {
            fn from(values: Vec<$ty>) -> Self { Value::Array(Array::$variant(values.into_iter().collect())) }
        }
    )*};
}

scalars! {
    u8, U8; i8, I8; u16, U16; i16, I16; u32, U32; i32, I32; f32, F32; u64, U64; i64, I64; f64, F64;
}

impl sealed::Sealed for bool {}
impl Scalar for bool {
    const BYTES: usize = 1;
    fn decode(bytes: &[u8]) -> Self {
        bytes.first().is_some_and(|&byte| byte != 0)
    }
    fn encode(self, out: &mut BytesMut) {
        out.put_u8(u8::from(self));
    }
}
impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Value::Bool(value)
    }
}
impl From<Vec<bool>> for Value {
    fn from(values: Vec<bool>) -> Self {
        Value::Array(Array::Bool(values.into_iter().collect()))
    }
}
impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Value::String(value.to_owned())
    }
}
impl From<String> for Value {
    fn from(value: String) -> Self {
        Value::String(value)
    }
}
impl From<Array> for Value {
    fn from(array: Array) -> Self {
        Value::Array(array)
    }
}
impl From<StrArray> for Value {
    fn from(strings: StrArray) -> Self {
        Value::Array(Array::String(strings))
    }
}
impl From<Vec<String>> for Value {
    fn from(strings: Vec<String>) -> Self {
        strings.iter().collect::<StrArray>().into()
    }
}
impl From<Vec<&str>> for Value {
    fn from(strings: Vec<&str>) -> Self {
        strings.iter().collect::<StrArray>().into()
    }
}

/// Numbers as they lie in the file, decoded one by one when read. Cloning is cheap.
#[derive(Clone, PartialEq)]
pub struct Packed<T> {
    bytes: Bytes,
    element: PhantomData<T>,
}

impl<T: Scalar> Packed<T> {
    /// Wraps encoded elements. A last, partial element is not visible.
    pub(crate) fn from_encoded(bytes: Bytes) -> Self {
        Packed { bytes, element: PhantomData }
    }

    pub(crate) fn encoded(&self) -> &Bytes {
        &self.bytes
    }

    /// How many elements.
    pub fn len(&self) -> usize {
        self.bytes.len() / T::BYTES
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Element `index`.
    pub fn get(&self, index: usize) -> Option<T> {
        let start = index.checked_mul(T::BYTES)?;
        self.bytes.get(start..start.checked_add(T::BYTES)?).map(T::decode)
    }

    /// All elements in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = T> + '_ {
        self.bytes.chunks_exact(T::BYTES).map(T::decode)
    }

    /// A decoded copy.
    pub fn to_vec(&self) -> Vec<T> {
        self.iter().collect()
    }
}

impl<T: Scalar> FromIterator<T> for Packed<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        let mut bytes = BytesMut::new();
        for value in values {
            value.encode(&mut bytes);
        }
        Packed::from_encoded(bytes.freeze())
    }
}

impl<T: Scalar + fmt::Debug> fmt::Debug for Packed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Strings that stay in the file's bytes. Cloning is cheap.
///
/// Only a table of `u32` offsets is allocated. The strings were checked to be UTF-8 once, when the file was read; each
/// access checks again, because a mapped file can be changed by somebody else and a `str` must not be.
#[derive(Clone)]
pub struct StrArray {
    /// The encoded elements: for each a `u64` length, then its bytes.
    encoded: Bytes,
    /// Where element `i` starts in `encoded`; one more entry marks the end, so `len + 1` entries.
    starts: Arc<Vec<u32>>,
}

/// Bytes of the length in front of each string.
pub(crate) const LEN_BYTES: usize = 8;

impl StrArray {
    pub(crate) fn from_encoded(encoded: Bytes, starts: Vec<u32>) -> Self {
        StrArray { encoded, starts: Arc::new(starts) }
    }

    pub(crate) fn encoded(&self) -> &Bytes {
        &self.encoded
    }

    /// How many strings.
    pub fn len(&self) -> usize {
        self.starts.len().saturating_sub(1)
    }

    /// Whether there is no string.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// String `index`; `None` past the end (or when the file under the mapping was changed to invalid UTF-8).
    pub fn get(&self, index: usize) -> Option<&str> {
        let start = *self.starts.get(index)? as usize;
        let end = *self.starts.get(index + 1)? as usize;
        std::str::from_utf8(self.encoded.get(start + LEN_BYTES..end)?).ok()
    }

    /// All strings in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> + Clone + '_ {
        (0..self.len()).map(|index| self.get(index).unwrap_or(""))
    }
}

impl<S: AsRef<str>> FromIterator<S> for StrArray {
    /// Collects strings; those that would bring the array above 4 GiB are left out.
    fn from_iter<I: IntoIterator<Item = S>>(strings: I) -> Self {
        let mut encoded = BytesMut::new();
        let mut starts = vec![0];
        for string in strings {
            let string = string.as_ref();
            let Ok(end) = u32::try_from(encoded.len() + LEN_BYTES + string.len()) else { break };
            encoded.put_u64_le(string.len() as u64);
            encoded.put_slice(string.as_bytes());
            starts.push(end);
        }
        StrArray::from_encoded(encoded.freeze(), starts)
    }
}

impl PartialEq for StrArray {
    fn eq(&self, other: &Self) -> bool {
        self.starts == other.starts && self.encoded == other.encoded
    }
}

impl fmt::Debug for StrArray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Runs `$body` with `$packed` bound to the array's [`Packed`], or `$strings` / `$nested` for the other two.
macro_rules! with_array {
    ($array:expr, $packed:ident => $body:expr, $strings:ident => $on_strings:expr, $nested:ident => $on_nested:expr) => {
        match $array {
            Array::U8($packed) => $body,
            Array::I8($packed) => $body,
            Array::U16($packed) => $body,
            Array::I16($packed) => $body,
            Array::U32($packed) => $body,
            Array::I32($packed) => $body,
            Array::F32($packed) => $body,
            Array::Bool($packed) => $body,
            Array::U64($packed) => $body,
            Array::I64($packed) => $body,
            Array::F64($packed) => $body,
            Array::String($strings) => $on_strings,
            Array::Array($nested) => $on_nested,
        }
    };
}
pub(crate) use with_array;

impl Array {
    /// How many elements.
    pub fn len(&self) -> usize {
        with_array!(self, packed => packed.len(), strings => strings.len(), nested => nested.0.len())
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements as integers, if they are integers.
    pub fn integers(&self) -> Option<Vec<i128>> {
        fn wide<T: Scalar + Into<i128>>(packed: &Packed<T>) -> Option<Vec<i128>> {
            Some(packed.iter().map(Into::into).collect())
        }
        match self {
            Array::U8(values) => wide(values),
            Array::I8(values) => wide(values),
            Array::U16(values) => wide(values),
            Array::I16(values) => wide(values),
            Array::U32(values) => wide(values),
            Array::I32(values) => wide(values),
            Array::U64(values) => wide(values),
            Array::I64(values) => wide(values),
            _ => None,
        }
    }

    /// "array of u32" and the like.
    pub fn type_name(&self) -> &'static str {
        match self {
            Array::U8(_) => "array of u8",
            Array::I8(_) => "array of i8",
            Array::U16(_) => "array of u16",
            Array::I16(_) => "array of i16",
            Array::U32(_) => "array of u32",
            Array::I32(_) => "array of i32",
            Array::F32(_) => "array of f32",
            Array::Bool(_) => "array of bool",
            Array::String(_) => "array of string",
            Array::Array(_) => "array of array",
            Array::U64(_) => "array of u64",
            Array::I64(_) => "array of i64",
            Array::F64(_) => "array of f64",
        }
    }

    /// The file's id of the element type.
    pub(crate) fn element_id(&self) -> u32 {
        match self {
            Array::U8(_) => id::U8,
            Array::I8(_) => id::I8,
            Array::U16(_) => id::U16,
            Array::I16(_) => id::I16,
            Array::U32(_) => id::U32,
            Array::I32(_) => id::I32,
            Array::F32(_) => id::F32,
            Array::Bool(_) => id::BOOL,
            Array::String(_) => id::STRING,
            Array::Array(_) => id::ARRAY,
            Array::U64(_) => id::U64,
            Array::I64(_) => id::I64,
            Array::F64(_) => id::F64,
        }
    }
}

impl Value {
    /// The value as an integer, if it is one (booleans are not).
    pub fn as_integer(&self) -> Option<i128> {
        match *self {
            Value::U8(value) => Some(value.into()),
            Value::I8(value) => Some(value.into()),
            Value::U16(value) => Some(value.into()),
            Value::I16(value) => Some(value.into()),
            Value::U32(value) => Some(value.into()),
            Value::I32(value) => Some(value.into()),
            Value::U64(value) => Some(value.into()),
            Value::I64(value) => Some(value.into()),
            _ => None,
        }
    }

    /// "u32", "string", "array of f32" and the like.
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::U8(_) => "u8",
            Value::I8(_) => "i8",
            Value::U16(_) => "u16",
            Value::I16(_) => "i16",
            Value::U32(_) => "u32",
            Value::I32(_) => "i32",
            Value::F32(_) => "f32",
            Value::Bool(_) => "bool",
            Value::String(_) => "string",
            Value::Array(array) => array.type_name(),
            Value::U64(_) => "u64",
            Value::I64(_) => "i64",
            Value::F64(_) => "f64",
        }
    }
}

/// One line for people: text quoted, arrays as their length, type and first elements.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::U8(value) => value.fmt(f),
            Value::I8(value) => value.fmt(f),
            Value::U16(value) => value.fmt(f),
            Value::I16(value) => value.fmt(f),
            Value::U32(value) => value.fmt(f),
            Value::I32(value) => value.fmt(f),
            Value::F32(value) => value.fmt(f),
            Value::Bool(value) => value.fmt(f),
            Value::String(text) => write!(f, "{:?}", crate::error::shown(text)),
            Value::Array(array) => array.fmt(f),
            Value::U64(value) => value.fmt(f),
            Value::I64(value) => value.fmt(f),
            Value::F64(value) => value.fmt(f),
        }
    }
}

impl fmt::Display for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 6;
        write!(f, "{} × {}: [", self.len(), self.type_name().trim_start_matches("array of "))?;
        for index in 0..self.len().min(SHOWN) {
            if index > 0 {
                f.write_str(", ")?;
            }
            with_array!(self,
                packed => if let Some(element) = packed.get(index) { write!(f, "{element}")? },
                strings => write!(f, "{:?}", crate::error::shown(strings.get(index).unwrap_or("")))?,
                nested => if let Some(inner) = nested.0.get(index) { inner.fmt(f)? });
        }
        f.write_str(if self.len() > SHOWN { ", …]" } else { "]" })
    }
}

/// Value type ids in the file.
pub(crate) mod id {
    pub const U8: u32 = 0;
    pub const I8: u32 = 1;
    pub const U16: u32 = 2;
    pub const I16: u32 = 3;
    pub const U32: u32 = 4;
    pub const I32: u32 = 5;
    pub const F32: u32 = 6;
    pub const BOOL: u32 = 7;
    pub const STRING: u32 = 8;
    pub const ARRAY: u32 = 9;
    pub const U64: u32 = 10;
    pub const I64: u32 = 11;
    pub const F64: u32 = 12;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_come_back_from_their_array() {
        let strings: StrArray = ["", "a", "ü", "日本"].into_iter().collect();
        assert_eq!(strings.len(), 4);
        assert_eq!(strings.iter().collect::<Vec<_>>(), ["", "a", "ü", "日本"]);
        assert_eq!(strings.get(3), Some("日本"));
        assert_eq!(strings.get(4), None);
        assert_eq!(strings.get(usize::MAX - 1), None);
    }

    #[test]
    fn values_are_shown_on_one_line() {
        assert_eq!(Value::from("a\nb").to_string(), r#""a\nb""#);
        assert_eq!(Value::from(vec![1u8, 2]).to_string(), "2 × u8: [1, 2]");
        let many = Value::from(vec!["x"; 9]).to_string();
        assert_eq!(many, r#"9 × string: ["x", "x", "x", "x", "x", "x", …]"#);
    }

    #[test]
    fn numbers_come_back_from_their_array() {
        let numbers: Packed<i16> = [-1, 0, i16::MAX].into_iter().collect();
        assert_eq!(numbers.to_vec(), [-1, 0, i16::MAX]);
        assert_eq!(numbers.get(2), Some(i16::MAX));
        assert_eq!(numbers.get(3), None);
        assert_eq!(numbers.get(usize::MAX), None);
    }
}
