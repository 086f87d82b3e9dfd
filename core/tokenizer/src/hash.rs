//! A fast hash with a random seed.
//!
//! Each step multiplies 64 by 64 bits and folds the halves of the product, as wyhash and its relatives do. The secret
//! seed keeps a hostile file from choosing pieces that collide; std's SipHash does too but is four times slower, and
//! the SentencePiece merge is made of look-ups.

use std::hash::{BuildHasher, RandomState};

#[derive(Clone, Copy)]
pub(crate) struct Seed {
    a: u64,
    b: u64,
}

impl Seed {
    pub(crate) fn random() -> Self {
        let state = RandomState::new();
        Self { a: state.hash_one(0u8) | 1, b: state.hash_one(1u8) | 1 }
    }

    pub(crate) fn hash(self, bytes: &[u8]) -> u64 {
        let mut hash = self.a ^ bytes.len() as u64;
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            hash = fold(hash ^ u64::from_le_bytes(*word), self.b);
        }
        let mut last = [0; 8];
        for (to, from) in last.iter_mut().zip(rest) {
            *to = *from;
        }
        fold(fold(hash ^ u64::from_le_bytes(last), self.b), self.a)
    }

    pub(crate) fn hash_pair(self, left: u32, right: u32) -> u64 {
        fold(((u64::from(left) << 32) | u64::from(right)) ^ self.a, self.b)
    }
}

fn fold(a: u64, b: u64) -> u64 {
    let wide = u128::from(a) * u128::from(b);
    wide as u64 ^ (wide >> 64) as u64
}
