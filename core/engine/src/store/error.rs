//! What can go wrong with stored models and downloads.

use std::path::PathBuf;

/// A fault of the model store. Each says what, where, and the limit that was broken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Neither a file nor a model that the catalogue knows.
    #[error(
        "no file and no known model is called `{name}`; known models: {known}; \
             `pannier pull NAME` fetches one, or give the path of a GGUF file"
    )]
    UnknownModel {
        /// What was asked for.
        name: String,
        /// Names in the catalogue, separated by commas.
        known: String,
    },
    /// The catalogue knows it, but it was not pulled yet.
    #[error(
        "model `{name}` is not on this machine yet: fetch it with `pannier pull {name}` ({bytes} bytes), or give the path of a GGUF file"
    )]
    NotDownloaded {
        /// Name in the catalogue.
        name: String,
        /// Size of the download.
        bytes: u64,
    },
    /// The file under the model's name has another size than the catalogue says.
    #[error("{} has {actual} bytes, but model `{name}` has {expected}: fetch it again with `pannier pull {name}`", path.display())]
    WrongStoredSize {
        /// Name in the catalogue.
        name: String,
        /// The stored file.
        path: PathBuf,
        /// Size from the catalogue.
        expected: u64,
        /// Size on disk.
        actual: u64,
    },
    /// No place for models: neither a cache directory of the system nor `PANNIER_MODELS`.
    #[error(
        "this system names no cache directory: set PANNIER_MODELS to the folder that should hold the models"
    )]
    NoDirectory,
    /// A file operation failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// Verb phrase, such as "write".
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// The disk has less free space than the download still needs.
    #[error("{} needs {needed} more bytes of disk, but only {available} are free", path.display())]
    NoSpace {
        /// The file being written.
        path: PathBuf,
        /// Bytes still to be written.
        needed: u64,
        /// Bytes free for this user.
        available: u64,
    },
    /// Another process or thread downloads the same file right now.
    #[error("{} is being downloaded by another process", path.display())]
    Busy {
        /// The final path.
        path: PathBuf,
    },
    /// Not an address that can be downloaded from.
    #[error("`{url}` cannot be downloaded: {reason}")]
    BadUrl {
        /// The address as given.
        url: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A digest that is not 64 hexadecimal digits.
    #[error("`{given}` is no SHA-256: that is 64 hexadecimal digits")]
    BadDigest {
        /// The text as given.
        given: String,
    },
    /// The catalogue has no public address for this model.
    #[error("model `{name}` has no public download address: get the file yourself and give its path")]
    NoSource {
        /// Name in the catalogue.
        name: String,
    },
    /// This machine cannot make secure connections.
    #[error("no secure connections on this machine: {reason}")]
    Tls {
        /// What is missing.
        reason: String,
    },
    /// No source worked. The bytes that arrived are kept for the next try.
    #[error("cannot download {file}: {}{}", faults.join("; "), kept(*done))]
    Unreachable {
        /// File name.
        file: String,
        /// Bytes already on disk.
        done: u64,
        /// The last fault of each source, in order.
        faults: Vec<String>,
    },
    /// All bytes arrived and are not the ones that were promised. They were deleted.
    #[error("{file} has sha256 {actual}, expected {expected}: the bytes were thrown away")]
    WrongDigest {
        /// File name.
        file: String,
        /// Promised digest.
        expected: String,
        /// Digest of what arrived.
        actual: String,
    },
    /// The caller cancelled. The bytes that arrived are kept.
    #[error("download cancelled; {done} bytes are kept for the next try")]
    Cancelled {
        /// Bytes already on disk.
        done: u64,
    },
}

fn kept(done: u64) -> String {
    if done == 0 { String::new() } else { format!(" ({done} bytes are kept for the next try)") }
}

impl StoreError {
    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        StoreError::Io { action, path: path.into(), source }
    }
}
