//! Free space on the disk that holds a folder.

use std::path::Path;

/// Bytes that this user may still write below `dir`; `None` where the system does not tell.
#[cfg(unix)]
pub(crate) fn available(dir: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(dir).ok()?;
    stat.f_bavail.checked_mul(stat.f_frsize)
}

/// Bytes that this user may still write below `dir`; `None` where the system does not tell.
#[cfg(not(unix))]
pub(crate) fn available(_dir: &Path) -> Option<u64> {
    None
}
