//! Model files on this device.

use std::sync::Arc;

use pannier::store::{
    CATALOGUE, CatalogueEntry, DownloadEvent, DownloadOptions, DownloadRequest, ModelStore, Sha256Digest,
};

use crate::border::{CancelOnDrop, guarded, on_thread};
use crate::{CancelHandle, Model, PannierError};

/// A model that is known by name.
#[derive(Debug, Clone, PartialEq, Eq, uniffi::Record)]
pub struct KnownModel {
    /// The name.
    pub name: String,
    /// What it is, in one line.
    pub about: String,
    /// Its licence.
    pub licence: String,
    /// Name of its file in the store.
    pub file: String,
    /// Size of the file.
    pub bytes: u64,
    /// SHA-256 of the file.
    pub sha256: String,
    /// Whether it was tuned to chat.
    pub instruct: bool,
}

impl From<&CatalogueEntry> for KnownModel {
    fn from(e: &CatalogueEntry) -> Self {
        Self {
            name: e.name.into(),
            about: e.about.into(),
            licence: e.licence.into(),
            file: e.file.into(),
            bytes: e.bytes,
            sha256: e.sha256.into(),
            instruct: e.instruct,
        }
    }
}

/// A model file in the store.
#[derive(Debug, Clone, PartialEq, Eq, uniffi::Record)]
pub struct ModelFile {
    /// The file.
    pub path: String,
    /// Its size.
    pub bytes: u64,
    /// The name, if it is a known model.
    pub name: Option<String>,
}

/// What a download tells.
#[derive(Debug, Clone, PartialEq, uniffi::Enum)]
pub enum DownloadUpdate {
    /// A source answered and bytes are about to arrive.
    Started {
        /// Bytes that were there before.
        resumed_from: u64,
        /// Size of the file, where known.
        total: Option<u64>,
    },
    /// Bytes arrived.
    Progress {
        /// Bytes on disk.
        done: u64,
        /// Size of the file, where known.
        total: Option<u64>,
        /// Speed over the last seconds.
        bytes_per_second: f64,
        /// Expected milliseconds to the last byte, where it can be told.
        remaining_ms: Option<u64>,
    },
    /// The bytes on disk could not be continued; the download began again.
    Restarted {
        /// Why.
        reason: String,
    },
    /// A source failed and is tried again after a pause.
    Retrying {
        /// What happened.
        reason: String,
        /// The pause.
        after_ms: u64,
    },
    /// A source failed for good; the next one is tried, if there is one.
    SourceFailed {
        /// What happened.
        reason: String,
    },
    /// The digest is being computed.
    Verifying {
        /// Bytes read so far.
        done: u64,
        /// Bytes to read.
        total: u64,
    },
}

impl DownloadUpdate {
    /// `None` for an event that this version has no word for.
    fn convert(event: DownloadEvent) -> Option<Self> {
        let ms = |d: std::time::Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
        Some(match event {
            DownloadEvent::Started { resumed_from, total, .. } => Self::Started { resumed_from, total },
            DownloadEvent::Progress { done, total, bytes_per_second, remaining } => {
                Self::Progress { done, total, bytes_per_second, remaining_ms: remaining.map(ms) }
            }
            DownloadEvent::Restarted { reason } => Self::Restarted { reason },
            DownloadEvent::Retrying { reason, after, .. } => Self::Retrying { reason, after_ms: ms(after) },
            DownloadEvent::SourceFailed { reason, .. } => Self::SourceFailed { reason },
            DownloadEvent::Verifying { done, total } => Self::Verifying { done, total },
            _ => return None,
        })
    }
}

/// Hears how a download goes on, on its thread.
#[uniffi::export(callback_interface)]
pub trait DownloadSink: Send + Sync {
    /// An event.
    fn on_update(&self, update: DownloadUpdate);
}

/// A folder of model files.
#[derive(Debug, uniffi::Object)]
pub struct Store {
    inner: ModelStore,
}

#[uniffi::export]
impl Store {
    /// The store in this folder, which is created when something is downloaded.
    #[uniffi::constructor]
    pub fn new(dir: String) -> Arc<Self> {
        Arc::new(Self { inner: ModelStore::at(dir) })
    }

    /// The models that are known by name, smallest first.
    pub fn known(&self) -> Vec<KnownModel> {
        CATALOGUE.iter().map(Into::into).collect()
    }

    /// The model files in the folder.
    pub fn list(&self) -> Result<Vec<ModelFile>, PannierError> {
        let models = guarded(|| self.inner.list())?;
        let file = |m: pannier::store::StoredModel| ModelFile {
            path: m.path.to_string_lossy().into_owned(),
            bytes: m.bytes,
            name: m.entry.map(|e| e.name.to_owned()),
        };
        Ok(models.into_iter().map(file).collect())
    }

    /// The file of a known model that was downloaded, or of a path.
    pub fn locate(&self, name: String) -> Result<String, PannierError> {
        Ok(guarded(|| self.inner.locate(&name))?.to_string_lossy().into_owned())
    }

    /// Bytes that the folder takes, unfinished downloads included.
    pub fn disk_use(&self) -> Result<u64, PannierError> {
        guarded(|| self.inner.disk_use())
    }

    /// Deletes a model's file, finished or not; answers whether something was there. A model that is loaded from it goes on.
    pub fn delete(&self, name: String) -> Result<bool, PannierError> {
        guarded(|| self.inner.delete(&name))
    }

    /// Downloads a known model, or from addresses that hold the same bytes, best first. Resumes what was begun before.
    ///
    /// `name` is a known model, or else the file's name when `urls` are given. Dropping the future cancels; the bytes are kept.
    /// `model`: the model whose state is to follow.
    #[allow(clippy::too_many_arguments)] // a record would hide which are usual
    pub async fn download(
        &self,
        name: String,
        urls: Vec<String>,
        bytes: Option<u64>,
        sha256: Option<String>,
        model: Option<Arc<Model>>,
        sink: Box<dyn DownloadSink>,
        cancel: Arc<CancelHandle>,
    ) -> Result<ModelFile, PannierError> {
        let request = self.request(name, urls, bytes, sha256)?;
        let store = self.inner.clone();
        let canceller = cancel.download.clone();
        let armed = CancelOnDrop(Some(cancel));
        let result = on_thread(move || {
            let mut observer = move |event| {
                if let Some(update) = DownloadUpdate::convert(event) {
                    sink.on_update(update);
                }
            };
            let options = DownloadOptions::default();
            let downloaded = match &model {
                Some(model) => model.inner.download(&store, &request, options, &canceller, &mut observer),
                None => store.pull_blocking(&request, options, &canceller, &mut observer),
            }?;
            let path = downloaded.path.to_string_lossy().into_owned();
            let entry = CATALOGUE.iter().find(|e| e.file == request.file);
            Ok(ModelFile { path, bytes: downloaded.bytes, name: entry.map(|e| e.name.to_owned()) })
        })
        .await;
        armed.disarm();
        result
    }

    /// Reads the file of a known model again; answers whether it is what it should be.
    pub async fn verify(&self, name: String) -> Result<bool, PannierError> {
        let store = self.inner.clone();
        on_thread(move || Ok(store.verify(&name, &mut |_| true)? == Some(true))).await
    }
}

impl Store {
    fn request(
        &self,
        name: String,
        urls: Vec<String>,
        bytes: Option<u64>,
        sha256: Option<String>,
    ) -> Result<DownloadRequest, PannierError> {
        let sha256 = sha256.map(|hex| guarded(|| hex.parse::<Sha256Digest>())).transpose()?;
        guarded(|| {
            if urls.is_empty() {
                return self.inner.request(&name, sha256);
            }
            let file = (!name.is_empty()).then_some(name);
            self.inner.request_from(urls, file, bytes, sha256)
        })
    }
}
