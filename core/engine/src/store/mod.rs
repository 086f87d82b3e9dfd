//! Model files on this device: which are known, where they lie, how they get here.
//!
//! [`CATALOGUE`] names models by size and SHA-256. [`ModelStore`] is a folder of them: the user's cache directory, or
//! wherever an app keeps its files. [`ModelStore::pull`] downloads with resume, several sources, and verification; a
//! file has its final name only when it is whole.

pub mod catalogue;
mod digest;
mod download;
mod error;
mod http;
mod part;
mod progress;
mod space;

use std::path::{Path, PathBuf};

pub use catalogue::{CATALOGUE, CatalogueEntry, DEFAULT_MODEL};
pub use digest::{Sha256Digest, sha256_file};
pub use download::{DownloadCanceller, DownloadOptions, DownloadRequest, Downloaded, download};
pub use error::StoreError;
pub use http::tls_client_config;
pub use progress::DownloadEvent;

/// Environment variable that overrides the folder of the models.
pub const MODELS_DIR_VARIABLE: &str = "PANNIER_MODELS";

/// A folder of model files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelStore {
    dir: PathBuf,
}

/// A model file in a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredModel {
    /// The file.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// The catalogue's entry, if it is a known model.
    pub entry: Option<&'static CatalogueEntry>,
}

impl ModelStore {
    /// The store in this folder, which is created when something is pulled. Apps pass their private directory.
    pub fn at(dir: impl Into<PathBuf>) -> Self {
        ModelStore { dir: dir.into() }
    }

    /// The user's store: `PANNIER_MODELS`, or `pannier/models` in the system's cache directory.
    pub fn user() -> Result<Self, StoreError> {
        match std::env::var_os(MODELS_DIR_VARIABLE).filter(|v| !v.is_empty()) {
            Some(dir) => Ok(Self::at(dir)),
            None => {
                let cache = dirs::cache_dir().ok_or(StoreError::NoDirectory)?;
                Ok(Self::at(cache.join("pannier").join("models")))
            }
        }
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The file that `name` means: a path of something that exists, or a known model that was pulled.
    ///
    /// Paths win. A known model that is not here, or not whole, is an error that says how to get it.
    pub fn locate(&self, name: &str) -> Result<PathBuf, StoreError> {
        let path = Path::new(name);
        if !name.is_empty() && path.exists() {
            return Ok(path.to_owned());
        }
        let Some(entry) = catalogue::find(name) else {
            // Something that looks like a path gets the system's own answer.
            let looks_like_path = name.contains(['/', '\\']) || name.to_ascii_lowercase().ends_with(".gguf");
            if looks_like_path && let Err(e) = std::fs::metadata(path) {
                return Err(StoreError::io("open", path, e));
            }
            let known = CATALOGUE.iter().map(|e| e.name).collect::<Vec<_>>().join(", ");
            return Err(StoreError::UnknownModel { name: name.chars().take(120).collect(), known });
        };
        let path = self.dir.join(entry.file);
        match std::fs::metadata(&path) {
            Ok(meta) if meta.len() == entry.bytes => Ok(path),
            Ok(meta) => Err(StoreError::WrongStoredSize {
                name: entry.name.into(),
                path,
                expected: entry.bytes,
                actual: meta.len(),
            }),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                Err(StoreError::NotDownloaded { name: entry.name.into(), bytes: entry.bytes })
            }
            Err(e) => Err(StoreError::io("open", path, e)),
        }
    }

    /// What to download for a known name or an address. `sha256` is for addresses; a known model has its own.
    pub fn request(&self, what: &str, sha256: Option<Sha256Digest>) -> Result<DownloadRequest, StoreError> {
        if let Some(entry) = catalogue::find(what) {
            let expected: Sha256Digest = entry.sha256.parse()?;
            return Ok(DownloadRequest {
                urls: entry.urls.iter().map(|u| (*u).to_owned()).collect(),
                file: entry.file.to_owned(),
                bytes: Some(entry.bytes),
                sha256: Some(sha256.unwrap_or(expected)),
            });
        }
        if !what.contains("://") {
            let known = CATALOGUE.iter().map(|e| e.name).collect::<Vec<_>>().join(", ");
            return Err(StoreError::UnknownModel { name: what.chars().take(120).collect(), known });
        }
        let url = download::check_url(what, sha256.is_some())?;
        Ok(DownloadRequest { urls: vec![what.to_owned()], file: file_name(&url), bytes: None, sha256 })
    }

    /// What to download from several addresses that hold the same bytes, best first, into a file of this name. Without a name
    /// the file is called as in the first address.
    pub fn request_from(
        &self,
        urls: Vec<String>,
        file: Option<String>,
        bytes: Option<u64>,
        sha256: Option<Sha256Digest>,
    ) -> Result<DownloadRequest, StoreError> {
        let first = urls.first().map_or("", String::as_str);
        let url = download::check_url(first, sha256.is_some())?;
        let file = match file {
            None => file_name(&url),
            Some(file) => {
                let plain = Path::new(&file).file_name().is_some_and(|n| n == file.as_str());
                if !plain || file.starts_with('.') || !file.to_ascii_lowercase().ends_with(".gguf") {
                    let reason = "the file's name must be a plain one that ends in .gguf";
                    return Err(StoreError::BadUrl { url: file.chars().take(200).collect(), reason });
                }
                file
            }
        };
        Ok(DownloadRequest { urls, file, bytes, sha256 })
    }

    /// Downloads into this store. See [`download`]. A known model without a public address is an error only if it is
    /// not here already.
    pub async fn pull(
        &self,
        request: &DownloadRequest,
        options: DownloadOptions,
        cancel: &DownloadCanceller,
        observer: &mut (dyn FnMut(DownloadEvent) + Send),
    ) -> Result<Downloaded, StoreError> {
        match download(&self.dir, request, options, cancel, observer).await {
            Err(StoreError::Unreachable { faults, file, .. }) if faults.is_empty() => {
                Err(StoreError::NoSource { name: file })
            }
            other => other,
        }
    }

    /// [`pull`](Self::pull) for callers without a runtime: blocks this thread.
    pub fn pull_blocking(
        &self,
        request: &DownloadRequest,
        options: DownloadOptions,
        cancel: &DownloadCanceller,
        observer: &mut (dyn FnMut(DownloadEvent) + Send),
    ) -> Result<Downloaded, StoreError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| StoreError::io("start a download in", &self.dir, e))?;
        runtime.block_on(self.pull(request, options, cancel, observer))
    }

    /// Bytes that the folder's files take, unfinished downloads included.
    pub fn disk_use(&self) -> Result<u64, StoreError> {
        let entries = match std::fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(0),
            Err(e) => return Err(StoreError::io("list", &self.dir, e)),
        };
        let mut sum = 0u64;
        for entry in entries {
            let path = entry.map_err(|e| StoreError::io("list", &self.dir, e))?.path();
            let bytes =
                std::fs::metadata(&path).ok().filter(std::fs::Metadata::is_file).map_or(0, |m| m.len());
            sum = sum.saturating_add(bytes);
        }
        Ok(sum)
    }

    /// Reads the file of a known model that was pulled, and compares its digest with the catalogue's. `progress` as in
    /// [`sha256_file`]; `Ok(None)` means it said no.
    pub fn verify(
        &self,
        name: &str,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Option<bool>, StoreError> {
        let path = self.locate(name)?;
        let Some(entry) = catalogue::find(name) else {
            let known = CATALOGUE.iter().map(|e| e.name).collect::<Vec<_>>().join(", ");
            return Err(StoreError::UnknownModel { name: name.chars().take(120).collect(), known });
        };
        let expected: Sha256Digest = entry.sha256.parse()?;
        Ok(sha256_file(&path, progress)?.map(|digest| digest == expected))
    }

    /// The model files in the folder, by name. A folder that does not exist has none.
    pub fn list(&self) -> Result<Vec<StoredModel>, StoreError> {
        let entries = match std::fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(StoreError::io("list", &self.dir, e)),
        };
        let mut models = Vec::new();
        for entry in entries {
            let path = entry.map_err(|e| StoreError::io("list", &self.dir, e))?.path();
            let Ok(meta) = std::fs::metadata(&path) else { continue };
            if !meta.is_file() || path.extension().is_none_or(|e| !e.eq_ignore_ascii_case("gguf")) {
                continue;
            }
            let known = CATALOGUE.iter().find(|e| path.file_name().is_some_and(|name| name == e.file));
            models.push(StoredModel { path, bytes: meta.len(), entry: known });
        }
        models.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(models)
    }

    /// Deletes a known model or a file of this folder, finished or not; answers whether something was there.
    ///
    /// A model that is open stays readable until it is closed: its pages are mapped.
    pub fn delete(&self, name: &str) -> Result<bool, StoreError> {
        let file = catalogue::find(name).map_or(name, |entry| entry.file);
        let plain = Path::new(file).file_name().is_some_and(|n| n == file);
        if !plain {
            return Err(StoreError::BadUrl {
                url: name.into(),
                reason: "only files directly in the store are deleted",
            });
        }
        let mut found = false;
        for suffix in ["", ".part", ".part.json"] {
            let path = self.dir.join(format!("{file}{suffix}"));
            match std::fs::remove_file(&path) {
                Ok(()) => found = true,
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                Err(e) => return Err(StoreError::io("delete", path, e)),
            }
        }
        Ok(found)
    }
}

/// A safe file name from an address: its last segment, reduced to characters that every file system takes.
fn file_name(url: &reqwest::Url) -> String {
    let last = url.path_segments().and_then(|mut s| s.next_back()).unwrap_or_default();
    let mut name: String = last
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_') { c } else { '_' })
        .take(180)
        .collect();
    if name.trim_matches(['.', '_']).is_empty() {
        name = "model".into();
    }
    // No hidden files, and nothing that collides with an unfinished download.
    let name = name.trim_start_matches('.');
    if name.to_ascii_lowercase().ends_with(".gguf") { name.to_owned() } else { format!("{name}.gguf") }
}

#[cfg(test)]
mod tests;
