//! Which element types keys and values have.

use pannier_kernels::KvFormat;
use std::fmt;
use std::str::FromStr;

/// The element type of keys, or of values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KvType {
    /// IEEE halves.
    #[default]
    F16,
    /// int8 with a scale per token and head.
    Q8,
    /// int4 with a scale (of 8 bits) per 16 values of a token and head.
    Q4,
    /// [`KvType::Q8`] after a Hadamard rotation of queries and keys, which spreads channels that stand out (arXiv:2404.00456). Values,
    /// whose channels do not stand out, are not rotated.
    Q8Rotated,
    /// [`KvType::Q4`] after the same rotation.
    Q4Rotated,
    /// Keys only: int4 with a scale and an offset per channel of a page, the newest page in half precision (arXiv:2402.02750). Nothing of it
    /// can be evicted.
    Q4Channel,
    /// Keys only: int8 with a scale and an offset per channel of a page, otherwise as [`KvType::Q4Channel`].
    Q8Channel,
}

impl KvType {
    /// How it lies in a page.
    pub fn format(self) -> KvFormat {
        match self {
            KvType::F16 => KvFormat::F16,
            KvType::Q8 | KvType::Q8Rotated => KvFormat::Q8,
            KvType::Q4 | KvType::Q4Rotated => KvFormat::Q4,
            KvType::Q4Channel => KvFormat::Q4Channel,
            KvType::Q8Channel => KvFormat::Q8Channel,
        }
    }

    /// Whether keys of this type, and the queries that meet them, are rotated.
    pub fn is_rotated(self) -> bool {
        matches!(self, KvType::Q8Rotated | KvType::Q4Rotated)
    }

    /// Whether scales belong to channels of a page, so that no position can leave it.
    pub fn is_per_channel(self) -> bool {
        self.format().per_channel()
    }

    fn is_int4(self) -> bool {
        matches!(self.format(), KvFormat::Q4 | KvFormat::Q4Channel)
    }
}

/// The element types of a cache. Everything but [`KvTypes::F16`] changes the answers a little, and is reported with them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct KvTypes {
    /// Of keys.
    pub k: KvType,
    /// Of values.
    pub v: KvType,
    /// So many of the first and of the last attention layers hold in int8 what would be int4: they are the most sensitive.
    pub edges: usize,
}

/// The names, and what they stand for.
const NAMES: [(&str, KvTypes); 13] = [
    ("f16", KvTypes::F16),
    ("q8", KvTypes::Q8),
    ("q8-channel", KvTypes::Q8_CHANNEL),
    ("k8v4", KvTypes::K8V4),
    ("k8v4-channel", KvTypes { k: KvType::Q8Channel, ..KvTypes::K8V4 }),
    ("q4", KvTypes::Q4),
    ("q4-channel", KvTypes::Q4_CHANNEL),
    ("q4-everywhere", KvTypes { edges: 0, ..KvTypes::Q4 }),
    ("q8-naive", KvTypes { k: KvType::Q8, ..KvTypes::Q8 }),
    ("q4-naive", KvTypes { k: KvType::Q4, v: KvType::Q4, edges: 0 }),
    // Keys alone, to measure what the rotation and what scales per channel do.
    ("k4-only", KvTypes { k: KvType::Q4Rotated, v: KvType::F16, edges: 0 }),
    ("k4-only-naive", KvTypes { k: KvType::Q4, v: KvType::F16, edges: 0 }),
    ("k4-only-channel", KvTypes { k: KvType::Q4Channel, v: KvType::F16, edges: 0 }),
];

impl KvTypes {
    /// Keys and values in half precision: nothing is lost that the field keeps.
    pub const F16: KvTypes = KvTypes { k: KvType::F16, v: KvType::F16, edges: 0 };
    /// Both in int8, keys rotated: about half.
    pub const Q8: KvTypes = KvTypes { k: KvType::Q8Rotated, v: KvType::Q8, edges: 0 };
    /// Both in int8, keys per channel.
    pub const Q8_CHANNEL: KvTypes = KvTypes { k: KvType::Q8Channel, v: KvType::Q8, edges: 0 };
    /// Rotated keys in int8, values in int4.
    pub const K8V4: KvTypes = KvTypes { k: KvType::Q8Rotated, v: KvType::Q4, edges: 1 };
    /// Rotated keys and values in int4: about a quarter.
    pub const Q4: KvTypes = KvTypes { k: KvType::Q4Rotated, v: KvType::Q4, edges: 1 };

    /// Both in int4, keys per channel.
    pub const Q4_CHANNEL: KvTypes = KvTypes { k: KvType::Q4Channel, v: KvType::Q4, edges: 1 };

    /// The types of one attention layer of `layers`.
    pub fn of_layer(self, layer: usize, layers: usize) -> (KvType, KvType) {
        let edge = layer < self.edges || layer.saturating_add(self.edges) >= layers;
        let of = |ty: KvType, eight| if edge && ty.is_int4() { eight } else { ty };
        let keys = if self.k.is_per_channel() { KvType::Q8Channel } else { KvType::Q8Rotated };
        (of(self.k, keys), of(self.v, KvType::Q8))
    }

    /// The names that [`FromStr`] knows.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMES.into_iter().map(|(name, _)| name)
    }
}

impl fmt::Display for KvTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.iter().find(|(_, types)| types == self) {
            Some((name, _)) => f.write_str(name),
            None => write!(f, "{:?}/{:?}/{}", self.k, self.v, self.edges),
        }
    }
}

impl FromStr for KvTypes {
    type Err = String;

    fn from_str(name: &str) -> Result<KvTypes, String> {
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, types)| *types).ok_or_else(|| {
            let names: Vec<&str> = KvTypes::names().collect();
            format!("no KV type {name:?}; there are {}", names.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_layers() {
        for name in KvTypes::names() {
            assert_eq!(name.parse::<KvTypes>().unwrap().to_string(), name);
        }
        assert!("q5".parse::<KvTypes>().unwrap_err().contains("k8v4"));
        assert_eq!(KvTypes::default(), KvTypes::F16);
        let layers: Vec<_> = (0..4).map(|layer| KvTypes::Q4.of_layer(layer, 4)).collect();
        let (edge, middle) = ((KvType::Q8Rotated, KvType::Q8), (KvType::Q4Rotated, KvType::Q4));
        assert_eq!(layers, [edge, middle, middle, edge]);
        assert_eq!(KvTypes::Q4_CHANNEL.of_layer(3, 4), (KvType::Q8Channel, KvType::Q8));
        assert_eq!(KvTypes::Q4_CHANNEL.of_layer(2, 4), (KvType::Q4Channel, KvType::Q4));
        assert_eq!(KvTypes::F16.of_layer(0, 4), (KvType::F16, KvType::F16));
        assert_eq!(KvTypes::Q4.of_layer(0, 1), edge);
    }
}
