//! The unfinished file: `NAME.part` with the bytes, `NAME.part.json` with where they came from.
//!
//! How many bytes are there is the length of the file itself, so a crash at any moment leaves a state that is true.
//! The file is locked while a download runs: two processes never write the same one.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{StoreError, space};

/// A GGUF file begins so. A hub's login page or a hotel's portal does not.
const GGUF_MAGIC: &[u8; 4] = b"GGUF";

/// Where the bytes of a part came from: what a server needs to say whether they may be continued.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Origin {
    /// Address that was asked (before redirects).
    pub url: String,
    /// Strong validator that the server gave: an ETag, or else the modification date.
    pub validator: Option<String>,
    /// Size of the whole file, where the server told.
    pub total: Option<u64>,
    /// Digest that the bytes should have in the end, where known.
    pub sha256: Option<String>,
}

/// An open, locked part file.
pub(crate) struct Part {
    file: File,
    path: PathBuf,
    state_path: PathBuf,
    final_path: PathBuf,
    len: u64,
    pub origin: Option<Origin>,
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

impl Part {
    /// Opens or creates the part of `final_path` and locks it.
    pub fn open(final_path: &Path) -> Result<Part, StoreError> {
        let path = with_suffix(final_path, ".part");
        let state_path = with_suffix(final_path, ".part.json");
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir).map_err(|e| StoreError::io("create", dir, e))?;
        }
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&path)
            .map_err(|e| StoreError::io("open", &path, e))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(StoreError::Busy { path: final_path.into() }),
            // A file system without locks: the digest still catches two writers.
            Err(TryLockError::Error(e)) if e.kind() == std::io::ErrorKind::Unsupported => {}
            Err(TryLockError::Error(e)) => return Err(StoreError::io("lock", &path, e)),
        }
        let len = file.metadata().map_err(|e| StoreError::io("read", &path, e))?.len();
        // An unreadable state is the same as none: the bytes cannot be continued without a digest.
        let origin = std::fs::read(&state_path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        Ok(Part { file, path, state_path, final_path: final_path.into(), len, origin })
    }

    /// Bytes on disk.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The unfinished file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Throws all bytes away.
    pub fn clear(&mut self) -> Result<(), StoreError> {
        self.file.set_len(0).map_err(|e| StoreError::io("truncate", &self.path, e))?;
        self.len = 0;
        self.origin = None;
        match std::fs::remove_file(&self.state_path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                Err(StoreError::io("delete", &self.state_path, e))
            }
            _ => Ok(()),
        }
    }

    /// Notes where the bytes come from. Written before the first of them.
    pub fn set_origin(&mut self, origin: Origin) -> Result<(), StoreError> {
        if self.origin.as_ref() != Some(&origin) {
            let text = serde_json::to_vec_pretty(&origin)
                .map_err(|e| StoreError::io("write", &self.state_path, std::io::Error::other(e)))?;
            let fresh = with_suffix(&self.state_path, ".new");
            std::fs::write(&fresh, text)
                .and_then(|()| std::fs::rename(&fresh, &self.state_path))
                .map_err(|e| self.fault("write", &self.state_path, e, 0))?;
            self.origin = Some(origin);
        }
        Ok(())
    }

    /// Appends bytes.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.file
            .seek(SeekFrom::Start(self.len))
            .and_then(|_| self.file.write_all(bytes))
            .map_err(|e| self.fault("write", &self.path, e, bytes.len() as u64))?;
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Whether the bytes so far can be the start of a GGUF file.
    pub fn looks_like_gguf(&mut self) -> Result<bool, StoreError> {
        let mut head = [0u8; 4];
        let n = self.len.min(4) as usize;
        let head = head.get_mut(..n).unwrap_or_default();
        self.file
            .seek(SeekFrom::Start(0))
            .and_then(|_| self.file.read_exact(head))
            .map_err(|e| StoreError::io("read", &self.path, e))?;
        Ok(GGUF_MAGIC.starts_with(head))
    }

    /// Bytes reach the disk, then the file gets its name: after a power cut the name never stands for half a file.
    pub fn publish(self) -> Result<PathBuf, StoreError> {
        self.file.sync_all().map_err(|e| self.fault("write", &self.path, e, 0))?;
        std::fs::rename(&self.path, &self.final_path).map_err(|e| StoreError::io("rename", &self.path, e))?;
        let _ = std::fs::remove_file(&self.state_path);
        #[cfg(unix)]
        if let Some(dir) = self.final_path.parent() {
            // The rename itself is durable only once the folder is; a file system that cannot do it loses nothing else.
            let _ = File::open(dir).and_then(|d| d.sync_all());
        }
        Ok(self.final_path)
    }

    /// Removes the part if nothing was written to it, so that a failed first try leaves no litter.
    pub fn tidy(self) {
        if self.len == 0 {
            let _ = std::fs::remove_file(&self.path);
            let _ = std::fs::remove_file(&self.state_path);
        }
    }

    /// A failed write is a full disk, if that is what it is.
    fn fault(&self, action: &'static str, path: &Path, e: std::io::Error, needed: u64) -> StoreError {
        if matches!(e.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded) {
            let total = self.origin.as_ref().and_then(|o| o.total);
            let needed = total.map_or(needed, |t| t.saturating_sub(self.len));
            let available = path.parent().and_then(space::available).unwrap_or(0);
            return StoreError::NoSpace { path: path.into(), needed, available };
        }
        StoreError::io(action, path, e)
    }
}
