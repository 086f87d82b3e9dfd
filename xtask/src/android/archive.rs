//! Zip files that are the same every time: sorted, one date.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

use crate::Result;

/// A name in the archive, and the file.
pub type Entry = (String, PathBuf);

/// All files below a folder, named from there.
pub fn files_below(folder: &Path) -> Result<Vec<Entry>> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(dir) = open.pop() {
        let entries = std::fs::read_dir(&dir).map_err(|e| format!("cannot list {}: {e}", dir.display()))?;
        for entry in entries.flatten() {
            let path = entry.path();
            if path.is_dir() {
                open.push(path);
            } else if let Ok(name) = path.strip_prefix(folder) {
                found.push((name.to_string_lossy().into_owned(), path));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Writes an archive of these files.
pub fn create(files: &[Entry], to: &Path) -> Result {
    extend_with(None, files, to)
}

/// Writes an archive of what another one has and these files.
pub fn extend(from: &Path, files: &[Entry], to: &Path) -> Result {
    extend_with(Some(from), files, to)
}

fn extend_with(from: Option<&Path>, files: &[Entry], to: &Path) -> Result {
    let fail = |e: &dyn std::fmt::Display| format!("cannot write {}: {e}", to.display());
    if let Some(parent) = to.parent() {
        std::fs::create_dir_all(parent).map_err(|e| fail(&e))?;
    }
    let mut zip = ZipWriter::new(std::fs::File::create(to).map_err(|e| fail(&e))?);
    let options = SimpleFileOptions::default()
        .compression_method(CompressionMethod::Deflated)
        .last_modified_time(zip::DateTime::default())
        .unix_permissions(0o644);
    if let Some(from) = from {
        let file = std::fs::File::open(from).map_err(|e| format!("cannot read {}: {e}", from.display()))?;
        let mut old = ZipArchive::new(file).map_err(|e| fail(&e))?;
        for i in 0..old.len() {
            let entry = old.by_index_raw(i).map_err(|e| fail(&e))?;
            if !entry.is_dir() {
                zip.raw_copy_file(entry).map_err(|e| fail(&e))?;
            }
        }
    }
    let mut files: Vec<&Entry> = files.iter().collect();
    files.sort();
    for (name, path) in files {
        let mut bytes = Vec::new();
        std::fs::File::open(path)
            .and_then(|mut f| f.read_to_end(&mut bytes))
            .map_err(|e| format!("cannot read {}: {e}", path.display()))?;
        zip.start_file(name.as_str(), options).map_err(|e| fail(&e))?;
        zip.write_all(&bytes).map_err(|e| fail(&e))?;
    }
    zip.finish().map_err(|e| fail(&e))?;
    Ok(())
}
