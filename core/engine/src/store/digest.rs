//! SHA-256 of files.

use std::fmt;
use std::io::Read;
use std::path::Path;
use std::str::FromStr;

use sha2::{Digest, Sha256};

use super::StoreError;

/// A SHA-256 digest. Shown and parsed as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sha256Digest([u8; 32]);

impl fmt::Display for Sha256Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Sha256Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Sha256Digest {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        let bad = || StoreError::BadDigest { given: text.chars().take(80).collect() };
        let digits = text.trim().as_bytes();
        let mut out = [0u8; 32];
        if digits.len() != 64 {
            return Err(bad());
        }
        for (byte, pair) in out.iter_mut().zip(digits.chunks_exact(2)) {
            for &digit in pair {
                let value = char::from(digit).to_digit(16).ok_or_else(bad)?;
                *byte = (*byte << 4) | value as u8;
            }
        }
        Ok(Sha256Digest(out))
    }
}

/// Digest of a file, read once from start to end. `progress` gets the bytes read so far, once per mebibyte, and
/// answers whether to go on; `Ok(None)` means it said no.
pub fn sha256_file(
    path: &Path,
    progress: &mut dyn FnMut(u64) -> bool,
) -> Result<Option<Sha256Digest>, StoreError> {
    let mut file = std::fs::File::open(path).map_err(|e| StoreError::io("open", path, e))?;
    let mut hasher = Sha256::new();
    let mut block = vec![0u8; 1 << 20];
    let mut done = 0u64;
    loop {
        let n = match file.read(&mut block) {
            Ok(0) => break,
            Ok(n) => n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(StoreError::io("read", path, e)),
        };
        hasher.update(block.get(..n).unwrap_or_default());
        done += n as u64;
        if !progress(done) {
            return Ok(None);
        }
    }
    Ok(Some(Sha256Digest(hasher.finalize().into())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_text_goes_both_ways_and_nonsense_is_refused() {
        let text = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let digest: Sha256Digest = text.to_uppercase().parse().unwrap();
        assert_eq!(digest.to_string(), text);
        for bad in ["", "ba78", &text[1..], &format!("{text}0"), &text.replace('b', "g"), &"é".repeat(32)] {
            assert!(matches!(bad.parse::<Sha256Digest>(), Err(StoreError::BadDigest { .. })), "{bad}");
        }
    }

    #[test]
    fn a_file_has_the_digest_of_its_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("abc");
        std::fs::write(&path, b"abc").unwrap();
        let digest = sha256_file(&path, &mut |_| true).unwrap().unwrap();
        assert_eq!(digest.to_string(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(sha256_file(&path, &mut |_| false).unwrap(), None);
    }
}
