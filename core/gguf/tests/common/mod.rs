//! Builds GGUF bytes by hand, right or wrong, independently of the crate's own writer.

#![allow(dead_code, clippy::expect_used, reason = "test helpers; each test binary uses a part")]

use pannier_gguf::{Error, Gguf};
use std::path::PathBuf;

pub const U8: u32 = 0;
pub const U16: u32 = 2;
pub const U32: u32 = 4;
pub const I32: u32 = 5;
pub const BOOL: u32 = 7;
pub const STRING: u32 = 8;
pub const ARRAY: u32 = 9;

/// Little-endian bytes in the making.
#[derive(Clone, Default)]
pub struct Raw(pub Vec<u8>);

impl Raw {
    pub fn header(version: u32, tensors: u64, keys: u64) -> Raw {
        Raw(b"GGUF".to_vec()).u32(version).u64(tensors).u64(keys)
    }
    pub fn bytes(mut self, bytes: &[u8]) -> Raw {
        self.0.extend_from_slice(bytes);
        self
    }
    pub fn u8(self, value: u8) -> Raw {
        self.bytes(&[value])
    }
    pub fn u32(self, value: u32) -> Raw {
        self.bytes(&value.to_le_bytes())
    }
    pub fn u64(self, value: u64) -> Raw {
        self.bytes(&value.to_le_bytes())
    }
    pub fn text(self, text: &str) -> Raw {
        self.u64(text.len() as u64).bytes(text.as_bytes())
    }
    pub fn key_u32(self, key: &str, value: u32) -> Raw {
        self.text(key).u32(U32).u32(value)
    }
    pub fn key_text(self, key: &str, value: &str) -> Raw {
        self.text(key).u32(STRING).text(value)
    }
    pub fn tensor(self, name: &str, dims: &[u64], ty: u32, offset: u64) -> Raw {
        let mut raw = self.text(name).u32(dims.len() as u32);
        for &dim in dims {
            raw = raw.u64(dim);
        }
        raw.u32(ty).u64(offset)
    }
    pub fn pad(mut self, alignment: usize) -> Raw {
        self.0.resize(self.0.len().next_multiple_of(alignment), 0);
        self
    }
    pub fn zeros(mut self, count: usize) -> Raw {
        self.0.resize(self.0.len() + count, 0);
        self
    }
    pub fn open(self) -> Result<Gguf, Error> {
        Gguf::from_vec(self.0)
    }
    /// The error, and that its message is one line without control characters.
    pub fn fault(self) -> Error {
        let error = self.open().expect_err("the file is hostile");
        assert_one_line(&error);
        error
    }
}

pub fn assert_one_line(error: &Error) {
    let message = error.to_string();
    assert!(!message.chars().any(char::is_control), "not one line: {message:?}");
    assert!(message.len() < 1000, "endless: {message}");
}

/// One F32 tensor of 8 elements, whole.
pub fn small() -> Raw {
    Raw::header(3, 1, 1).key_text("general.architecture", "llama").tensor("a", &[8], 0, 0).pad(32).zeros(32)
}

pub fn tiny_model() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny-llama-Q2_K.gguf")
}
