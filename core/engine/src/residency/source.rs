//! Reading weights from files, past the page cache where that works.
//!
//! Direct reads leave memory to others and are faster than buffered ones when a file is read once. Not every file system has
//! them: the first refusal switches the file to buffered reads, whose pages are dropped right after.

use crate::{Error, Result};
use pannier_gguf::Gguf;
use std::fmt;
use std::fs::{File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

/// Offsets, lengths and addresses of direct reads are multiples of this.
pub(crate) const DIRECT_ALIGN: usize = 4096;

/// Where weights are read from. Tests put faults in by another implementation.
pub trait WeightSource: Send + Sync + fmt::Debug {
    /// Reads at `offset` of file `shard` into `out`, as far as one call of the system goes; 0 is the end of the file.
    ///
    /// # Errors
    /// What the system says.
    fn read_at(&self, shard: usize, offset: u64, out: &mut [u8]) -> io::Result<usize>;

    /// Whether the files are still those that were opened.
    ///
    /// # Errors
    /// [`Error::ModelChanged`], [`Error::Io`].
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// The file, for messages.
    fn path(&self, shard: usize) -> &Path;
}

/// The files of a model.
#[derive(Debug)]
pub struct FileSource {
    files: Vec<Opened>,
}

#[derive(Debug)]
struct Opened {
    path: PathBuf,
    buffered: File,
    direct: Option<File>,
    direct_works: AtomicBool,
    bytes: u64,
    modified: Option<SystemTime>,
}

impl FileSource {
    /// Opens all files of a model.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Unsupported`] for a model that is not in files.
    pub fn open(gguf: &Gguf) -> Result<FileSource> {
        let mut source = Self::watch(gguf)?
            .ok_or_else(|| Error::Unsupported { what: "streaming a model that is in no file".into() })?;
        for file in &mut source.files {
            file.direct = open_direct(&file.path).ok();
            *file.direct_works.get_mut() = file.direct.is_some();
            // Only rows and vectors are read through the page cache: reading ahead would bring what nobody wants.
            #[cfg(any(target_os = "linux", target_os = "android"))]
            let _ = rustix::fs::fadvise(&file.buffered, 0, None, rustix::fs::Advice::Random);
        }
        Ok(source)
    }

    /// Opens the files only to notice changes. `None` for a model that is not in files.
    pub(super) fn watch(gguf: &Gguf) -> Result<Option<FileSource>> {
        let mut files = Vec::with_capacity(gguf.shards().len());
        for shard in gguf.shards() {
            let Some(path) = shard.path() else { return Ok(None) };
            let io = |action| move |source| Error::Io { action, path: path.to_owned(), source };
            let buffered = File::open(path).map_err(io("open"))?;
            let meta = buffered.metadata().map_err(io("stat"))?;
            if meta.len() != shard.bytes().len() as u64 {
                return Err(Error::ModelChanged { path: path.to_owned(), what: "its size" });
            }
            files.push(Opened {
                path: path.to_owned(),
                buffered,
                direct: None,
                direct_works: AtomicBool::new(false),
                bytes: meta.len(),
                modified: modified(&meta),
            });
        }
        Ok(Some(FileSource { files }))
    }

    pub(super) fn check(&self) -> Result<()> {
        for file in &self.files {
            let meta = file.buffered.metadata().map_err(|source| Error::Io {
                action: "stat",
                path: file.path.clone(),
                source,
            })?;
            let what = if meta.len() != file.bytes {
                "its size"
            } else if modified(&meta) != file.modified {
                "its contents"
            } else {
                continue;
            };
            return Err(Error::ModelChanged { path: file.path.clone(), what });
        }
        Ok(())
    }

    /// Whether reads go past the page cache.
    pub fn is_direct(&self) -> bool {
        self.files.iter().all(|file| file.direct_works.load(Ordering::Relaxed))
    }
}

fn modified(meta: &Metadata) -> Option<SystemTime> {
    meta.modified().ok()
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn open_direct(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let flags = i32::try_from(rustix::fs::OFlags::DIRECT.bits()).map_err(|_| io::ErrorKind::Unsupported)?;
    File::options().read(true).custom_flags(flags).open(path)
}

#[cfg(target_vendor = "apple")]
fn open_direct(path: &Path) -> io::Result<File> {
    let file = File::open(path)?;
    rustix::fs::fcntl_nocache(&file, true)?;
    Ok(file)
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
fn open_direct(_: &Path) -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(unix)]
fn pread(file: &File, out: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, out, offset)
}

#[cfg(windows)]
fn pread(file: &File, out: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, out, offset)
}

fn drop_pages(file: &File, offset: u64, len: usize) {
    // Advice: a system that does not take it has no harm from it.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    {
        let len = std::num::NonZeroU64::new(len as u64);
        let _ = rustix::fs::fadvise(file, offset, len, rustix::fs::Advice::DontNeed);
    }
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let _ = (file, offset, len);
}

fn is_aligned(offset: u64, out: &[u8]) -> bool {
    let align = DIRECT_ALIGN as u64;
    offset.is_multiple_of(align)
        && (out.len() as u64).is_multiple_of(align)
        && (out.as_ptr() as usize).is_multiple_of(DIRECT_ALIGN)
}

impl WeightSource for FileSource {
    fn read_at(&self, shard: usize, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        let file = self.files.get(shard).ok_or(io::ErrorKind::NotFound)?;
        if let Some(direct) = file.direct.as_ref().filter(|_| file.direct_works.load(Ordering::Relaxed))
            && is_aligned(offset, out)
        {
            match pread(direct, out, offset) {
                // The file system refuses direct reads only when one is tried.
                Err(e) if e.kind() == io::ErrorKind::InvalidInput => {
                    file.direct_works.store(false, Ordering::Relaxed);
                }
                // Some give back an unaligned rest, which cannot be continued directly.
                done => return done,
            }
        }
        let got = pread(&file.buffered, out, offset)?;
        // Rows of embeddings are small and read again; whole units are neither.
        if got >= 1 << 16 {
            drop_pages(&file.buffered, offset, got);
        }
        Ok(got)
    }

    fn check(&self) -> Result<()> {
        FileSource::check(self)
    }

    fn path(&self, shard: usize) -> &Path {
        self.files.get(shard).map_or(Path::new("the model"), |file| &file.path)
    }
}

/// Reads until `needed` bytes of `out` are there. `out` may be longer, so that its end is aligned; a file may end in it.
pub(super) fn read_needed(
    source: &dyn WeightSource,
    shard: usize,
    offset: u64,
    out: &mut [u8],
    needed: usize,
) -> Result<()> {
    let fail = |error| Error::Io { action: "read", path: source.path(shard).to_owned(), source: error };
    let mut got = 0usize;
    while got < needed {
        let rest = out.get_mut(got..).unwrap_or_default();
        match source.read_at(shard, offset + got as u64, rest) {
            Ok(0) => return Err(fail(io::ErrorKind::UnexpectedEof.into())),
            Ok(n) => got += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(fail(e)),
        }
    }
    Ok(())
}
