//! Notices when loading a model kills the process, again and again.
//!
//! A model that is too large for a phone gets the app killed while it is loaded; an app that loads it at start is then
//! killed at every start. So a file marks each load while it runs:
//!
//! ```text
//! begin: the mark is there, from a process that is gone  ->  one more death;  two or more: refuse
//!        write the mark with our process id and the number of deaths
//! end:   delete the mark                                     (also when loading failed: that is no death)
//! ```

use std::io::Write;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::LifecycleError;

/// After so many deaths a model is not loaded without being forced.
const MAX_DEATHS: u32 = 2;

/// A folder of marks; without one, nothing is guarded.
#[derive(Debug, Clone)]
pub(super) struct CrashGuard {
    dir: Option<PathBuf>,
}

/// Something dangerous is under way. Dropping it says that the process survived.
#[derive(Debug)]
pub(super) struct Mark {
    file: Option<PathBuf>,
    deaths: u32,
}

impl Drop for Mark {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            let _ = std::fs::remove_file(file);
        }
    }
}

impl Mark {
    /// Ends this part. The memory of a mapped model is touched only when it is first used, so the danger is not over: the
    /// first use marks again, and does not forget earlier deaths. In between, an idle app may be killed without suspicion.
    pub fn pause(self) -> Paused {
        Paused { file: self.file.clone(), deaths: self.deaths }
    }
}

/// A load that succeeded, before the model's first use.
#[derive(Debug)]
pub(super) struct Paused {
    file: Option<PathBuf>,
    deaths: u32,
}

impl Paused {
    /// Marks the first use.
    pub fn resume(self) -> Mark {
        let file = self.file.filter(|file| write_mark(file, self.deaths).is_ok());
        Mark { file, deaths: self.deaths }
    }
}

impl CrashGuard {
    pub fn new(dir: Option<PathBuf>) -> Self {
        Self { dir }
    }

    /// Marks a load. A mark that cannot be written does not hinder it: the guard is a help, not a duty.
    pub fn begin(&self, model: &Path, forced: bool) -> Result<Mark, LifecycleError> {
        let Some(dir) = &self.dir else { return Ok(Mark { file: None, deaths: 0 }) };
        let file = dir.join(mark_name(model));
        let deaths = if forced { 0 } else { deaths(&file) };
        if deaths >= MAX_DEATHS {
            let model = model.file_name().unwrap_or_default().to_string_lossy().into_owned();
            return Err(LifecycleError::CrashLoop { model, deaths });
        }
        let written = std::fs::create_dir_all(dir).and_then(|()| write_mark(&file, deaths));
        Ok(Mark { file: written.is_ok().then_some(file), deaths })
    }
}

/// The same for the same file name: an app's folder may move from start to start (iOS does that).
fn mark_name(model: &Path) -> String {
    let name = model.file_name().unwrap_or_default().to_string_lossy();
    let digest = Sha256::digest(name.as_bytes());
    let mut hex = String::with_capacity(24);
    for byte in digest.iter().take(8) {
        hex.push_str(&format!("{byte:02x}"));
    }
    format!("{hex}.loading")
}

/// Deaths that the mark tells of. Unreadable or ours (another load of the same file in this process): no new one.
fn deaths(file: &Path) -> u32 {
    let Ok(text) = std::fs::read_to_string(file) else { return 0 };
    let mut words = text.split_ascii_whitespace();
    let (pid, before) = (words.next(), words.next().and_then(|n| n.parse::<u32>().ok()).unwrap_or(0));
    if pid == Some(std::process::id().to_string().as_str()) { before } else { before.saturating_add(1) }
}

fn write_mark(file: &Path, deaths: u32) -> std::io::Result<()> {
    let mut out = std::fs::File::create(file)?;
    out.write_all(format!("{} {deaths}\n", std::process::id()).as_bytes())?;
    // A process that is killed loses nothing that was written; only a crash of the whole device does.
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn die(dir: &Path, model: &Path) {
        let file = dir.join(mark_name(model));
        let before = deaths(&file);
        std::fs::write(&file, format!("1 {before}\n")).unwrap();
    }

    #[test]
    fn two_deaths_refuse_and_force_forgives() {
        let dir = tempfile::tempdir().unwrap();
        let guard = CrashGuard::new(Some(dir.path().to_owned()));
        let model = Path::new("/somewhere/big.gguf");
        drop(guard.begin(model, false).unwrap());
        die(dir.path(), model);
        // One death: it may have been anything. This load succeeds, and the first use kills.
        let paused = guard.begin(model, false).unwrap().pause();
        assert!(std::fs::read_dir(dir.path()).unwrap().next().is_none());
        std::mem::forget(paused.resume());
        die(dir.path(), model);
        match guard.begin(Path::new("/elsewhere/big.gguf"), false) {
            Err(LifecycleError::CrashLoop { model, deaths: 2 }) => assert_eq!(model, "big.gguf"),
            other => panic!("{other:?}"),
        }
        assert!(guard.begin(Path::new("other.gguf"), false).is_ok());
        drop(guard.begin(model, true).unwrap());
        assert!(guard.begin(model, false).is_ok());
    }

    #[test]
    fn no_folder_and_an_unwritable_folder_do_not_hinder() {
        assert!(CrashGuard::new(None).begin(Path::new("a"), false).is_ok());
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(CrashGuard::new(Some(file.path().join("x"))).begin(Path::new("a"), false).is_ok());
    }
}
