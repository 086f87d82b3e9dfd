//! The ordered keys and values of a file, with getters whose errors name the key.

use crate::error::shown;
use crate::value::{Array, Scalar, StrArray, Value};
use crate::{Error, Result};

/// Keys and values in file order.
///
/// The typed getters come in pairs: `u32(key)` fails when the key is absent, `opt_u32(key)` gives `Ok(None)`. Both fail
/// when the key is there with another type: a wrong type is a broken file, not a default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
    /// Indices into `entries`, sorted by key. A second copy of the keys would be the alternative.
    by_key: Vec<u32>,
}

/// A hyperparameter that a file gives once for all layers or once per layer.
#[derive(Clone, Debug, PartialEq)]
pub enum OneOrMany<T> {
    /// The same for all layers.
    One(T),
    /// One per layer.
    Many(Vec<T>),
}

impl<T: Copy> OneOrMany<T> {
    /// The value of layer `layer`; `None` when there are fewer.
    pub fn get(&self, layer: usize) -> Option<T> {
        match self {
            OneOrMany::One(value) => Some(*value),
            OneOrMany::Many(values) => values.get(layer).copied(),
        }
    }
}

impl Metadata {
    /// No keys.
    pub fn new() -> Self {
        Self::default()
    }

    pub(crate) fn from_entries(entries: Vec<(String, Value)>) -> Result<Self> {
        let mut by_key: Vec<u32> = (0..entries.len() as u32).collect();
        by_key.sort_unstable_by_key(|&index| key_at(&entries, index));
        for pair in by_key.windows(2) {
            if let [a, b] = *pair
                && key_at(&entries, a) == key_at(&entries, b)
            {
                return Err(Error::DuplicateKey { key: shown(key_at(&entries, a)) });
            }
        }
        Ok(Metadata { entries, by_key })
    }

    fn find(&self, key: &str) -> Result<usize, usize> {
        self.by_key.binary_search_by(|&index| key_at(&self.entries, index).cmp(key))
    }

    /// How many keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        let place = self.find(key).ok()?;
        let index = *self.by_key.get(place)?;
        self.entries.get(index as usize).map(|(_, value)| value)
    }

    /// Keys and values in file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> + '_ {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Sets `key`; a key that is there keeps its place in the order.
    pub fn insert(&mut self, key: impl Into<String>, value: impl Into<Value>) {
        let (key, value) = (key.into(), value.into());
        match self.find(&key) {
            Ok(place) => {
                let index = self.by_key.get(place).copied().unwrap_or_default();
                if let Some(entry) = self.entries.get_mut(index as usize) {
                    entry.1 = value;
                }
            }
            Err(place) => {
                self.by_key.insert(place, self.entries.len() as u32);
                self.entries.push((key, value));
            }
        }
    }

    /// Removes `key` and gives its value.
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        let place = self.find(key).ok()?;
        let index = self.by_key.remove(place);
        for other in &mut self.by_key {
            if *other > index {
                *other -= 1;
            }
        }
        Some(self.entries.remove(index as usize).1)
    }

    fn opt<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        read: impl FnOnce(&'a Value) -> Read<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match read(value) {
            Read::Ok(read) => Ok(Some(read)),
            Read::WrongType => Err(Error::WrongType { key: shown(key), found: value.type_name(), expected }),
            Read::OutOfRange(value) => Err(Error::OutOfRange { key: shown(key), value, expected }),
        }
    }
}

fn key_at(entries: &[(String, Value)], index: u32) -> &str {
    entries.get(index as usize).map_or("", |(key, _)| key.as_str())
}

/// What reading a value as some type gave.
enum Read<T> {
    Ok(T),
    WrongType,
    OutOfRange(String),
}

impl<T> Read<T> {
    fn of(read: Option<T>) -> Self {
        read.map_or(Read::WrongType, Read::Ok)
    }

    fn map<U>(self, f: impl FnOnce(T) -> U) -> Read<U> {
        match self {
            Read::Ok(value) => Read::Ok(f(value)),
            Read::WrongType => Read::WrongType,
            Read::OutOfRange(value) => Read::OutOfRange(value),
        }
    }

    fn or_else(self, f: impl FnOnce() -> Read<T>) -> Read<T> {
        match self {
            Read::WrongType => f(),
            other => other,
        }
    }
}

fn integer<T: TryFrom<i128>>(value: &Value) -> Read<T> {
    match value.as_integer() {
        Some(wide) => T::try_from(wide).map_or_else(|_| Read::OutOfRange(wide.to_string()), Read::Ok),
        None => Read::WrongType,
    }
}

fn narrow(wide: f64) -> Read<f32> {
    let narrow = wide as f32;
    // Infinity and NaN pass as they are; only a finite value that becomes infinite is lost.
    if narrow.is_finite() || !wide.is_finite() {
        Read::Ok(narrow)
    } else {
        Read::OutOfRange(wide.to_string())
    }
}

fn float(value: &Value) -> Read<f32> {
    match value {
        Value::F32(value) => Read::Ok(*value),
        Value::F64(value) => narrow(*value),
        _ => Read::WrongType,
    }
}

fn boolean(value: &Value) -> Read<bool> {
    Read::of(match value {
        Value::Bool(value) => Some(*value),
        _ => None,
    })
}

fn integers<T: TryFrom<i128>>(value: &Value) -> Read<Vec<T>> {
    fn all<S: Scalar + Into<i128>, T: TryFrom<i128>>(values: &crate::Packed<S>) -> Read<Vec<T>> {
        let mut out = Vec::with_capacity(values.len());
        for value in values.iter() {
            let wide: i128 = value.into();
            match T::try_from(wide) {
                Ok(value) => out.push(value),
                Err(_) => return Read::OutOfRange(wide.to_string()),
            }
        }
        Read::Ok(out)
    }
    let Value::Array(array) = value else { return Read::WrongType };
    match array {
        Array::U8(values) => all(values),
        Array::I8(values) => all(values),
        Array::U16(values) => all(values),
        Array::I16(values) => all(values),
        Array::U32(values) => all(values),
        Array::I32(values) => all(values),
        Array::U64(values) => all(values),
        Array::I64(values) => all(values),
        _ => Read::WrongType,
    }
}

fn floats(value: &Value) -> Read<Vec<f32>> {
    match value {
        Value::Array(Array::F32(values)) => Read::Ok(values.to_vec()),
        Value::Array(Array::F64(values)) => {
            let mut out = Vec::with_capacity(values.len());
            for value in values.iter() {
                match narrow(value) {
                    Read::Ok(value) => out.push(value),
                    Read::OutOfRange(value) => return Read::OutOfRange(value),
                    Read::WrongType => return Read::WrongType,
                }
            }
            Read::Ok(out)
        }
        _ => Read::WrongType,
    }
}

fn booleans(value: &Value) -> Read<Vec<bool>> {
    Read::of(match value {
        Value::Array(Array::Bool(values)) => Some(values.to_vec()),
        _ => None,
    })
}

macro_rules! getters {
    ($($(#[$doc:meta])* $name:ident, $opt:ident -> $ty:ty, $expected:literal, $read:expr;)*) => {
        impl Metadata {
            $(
                $(#[$doc])*
                ///
                /// # Errors
                /// The key is absent, has another type, or does not fit.
                pub fn $name(&self, key: &str) -> Result<$ty> {
                    self.$opt(key)?.ok_or_else(|| Error::MissingKey { key: shown(key) })
                }

                #[doc = concat!("[`Metadata::", stringify!($name), "`], or `None` when the key is absent.")]
                ///
                /// # Errors
                /// The key has another type or does not fit.
                pub fn $opt(&self, key: &str) -> Result<Option<$ty>> {
                    self.opt(key, $expected, $read)
                }
            )*
        }
    };
}

getters! {
    /// Text.
    str, opt_str -> &str, "string", |value| Read::of(match value {
        Value::String(text) => Some(text.as_str()),
        _ => None,
    });
    /// An integer of any width and sign whose value fits `u32`.
    u32, opt_u32 -> u32, "u32", integer;
    /// An integer of any width and sign whose value fits `i32`.
    i32, opt_i32 -> i32, "i32", integer;
    /// An integer of any width and sign whose value fits `u64`.
    u64, opt_u64 -> u64, "u64", integer;
    /// A float; an `f64` is rounded.
    f32, opt_f32 -> f32, "f32", float;
    /// A boolean.
    bool, opt_bool -> bool, "bool", boolean;
    /// An array of strings, still in the file's bytes.
    strings, opt_strings -> &StrArray, "array of string", |value| Read::of(match value {
        Value::Array(Array::String(strings)) => Some(strings),
        _ => None,
    });
    /// An array of floats; `f64` elements are rounded.
    f32s, opt_f32s -> Vec<f32>, "array of f32", floats;
    /// An array of integers of any width and sign whose values fit `i32`.
    i32s, opt_i32s -> Vec<i32>, "array of i32", integers;
    /// An array of integers of any width and sign whose values fit `u32`.
    u32s, opt_u32s -> Vec<u32>, "array of u32", integers;
    /// An array of booleans.
    bools, opt_bools -> Vec<bool>, "array of bool", booleans;
    /// An integer, or an array of them with one per layer (such as `attention.head_count_kv`).
    u32_or_u32s, opt_u32_or_u32s -> OneOrMany<u32>, "u32 or array of u32",
        |value| integer(value).map(OneOrMany::One).or_else(|| integers(value).map(OneOrMany::Many));
    /// A float, or an array of them with one per layer.
    f32_or_f32s, opt_f32_or_f32s -> OneOrMany<f32>, "f32 or array of f32",
        |value| float(value).map(OneOrMany::One).or_else(|| floats(value).map(OneOrMany::Many));
    /// A boolean, or an array of them with one per layer.
    bool_or_bools, opt_bool_or_bools -> OneOrMany<bool>, "bool or array of bool",
        |value| boolean(value).map(OneOrMany::One).or_else(|| booleans(value).map(OneOrMany::Many));
}
