use super::*;
use crate::Silent;
use std::sync::atomic::{AtomicBool, AtomicUsize};

fn assembly<'a>(path: &'a Path, progress: &'a dyn Progress) -> Assembly<'a> {
    let mut metadata = Metadata::new();
    metadata.insert("general.architecture", "test");
    let target = |name: &str, dims: &[u64], ty| Target::whole(name.to_owned(), dims.to_vec(), ty);
    let targets = vec![
        target("a", &[256, 3000], GgmlType::Q8_0),
        target("b", &[7], GgmlType::F32),
        target("c", &[512, 513, 2], GgmlType::Q4_K),
    ];
    Assembly { path, metadata, targets, fingerprint: 7, threads: 2, progress }
}

/// Bytes that say where they belong.
fn fill(piece: &Piece, out: &mut [u8]) -> Result<()> {
    for (index, byte) in out.iter_mut().enumerate() {
        *byte = (piece.tensor as u64 * 31 + piece.spans[0].offset + index as u64) as u8;
    }
    Ok(())
}

fn whole(folder: &Path) -> Vec<u8> {
    let path = folder.join("whole.gguf");
    assembly(&path, &Silent).run(fill).unwrap();
    std::fs::read(path).unwrap()
}

struct StopAfter(AtomicUsize);

impl Progress for StopAfter {
    fn cancelled(&self) -> bool {
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_err()
    }
}

/// Holds so many bytes and no more, until `grown`.
struct SmallDisk {
    file: File,
    left: AtomicU64,
}

impl Medium for SmallDisk {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_at(bytes, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let take = |left: u64| left.checked_sub(bytes.len() as u64);
        match self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            Ok(_) => self.file.write_at(bytes, offset),
            Err(_) => Err(io::ErrorKind::StorageFull.into()),
        }
    }
}

/// Says that it wrote what it did not.
struct LyingDisk(File, AtomicBool);

impl Medium for LyingDisk {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_at(bytes, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        // The header must be right, or opening the file would find it first.
        if bytes.starts_with(b"GGUF") || self.1.swap(true, Ordering::Relaxed) {
            self.0.write_at(bytes, offset)
        } else {
            let wrong: Vec<u8> = bytes.iter().map(|byte| byte ^ 1).collect();
            self.0.write_at(&wrong, offset)
        }
    }
}

#[test]
fn a_stopped_run_is_continued_and_gives_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let expected = whole(folder.path());
    for stop_after in [0, 1, 2, 3, 4, 5] {
        let path = folder.path().join(format!("stopped-{stop_after}.gguf"));
        let stopped = assembly(&path, &StopAfter(AtomicUsize::new(stop_after))).run(fill);
        assert!(matches!(stopped, Err(Error::Cancelled)), "{stopped:?}");
        assert!(!path.exists());
        let made = AtomicUsize::new(0);
        let counting = |piece: &Piece, out: &mut [u8]| {
            made.fetch_add(1, Ordering::Relaxed);
            fill(piece, out)
        };
        assembly(&path, &Silent).run(counting).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), expected);
        assert_eq!(made.into_inner() + stop_after, 7, "no finished piece is made again");
        assert!(!part_path(&path).exists());
        assert!(!with_suffix(&part_path(&path), ".state").exists());
    }
}

#[test]
fn damaged_pieces_and_cut_state_lines_are_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let expected = whole(folder.path());
    let path = folder.path().join("damaged.gguf");
    assembly(&path, &StopAfter(AtomicUsize::new(5))).run(fill).unwrap_err();
    let part = part_path(&path);
    let mut bytes = std::fs::read(&part).unwrap();
    for byte in bytes.iter_mut().step_by(100_000) {
        *byte = !*byte;
    }
    std::fs::write(&part, bytes).unwrap();
    let state = with_suffix(&part, ".state");
    let mut lines = std::fs::read(&state).unwrap();
    lines.truncate(lines.len() - 9);
    lines.extend(b"\xff\xfe nonsense");
    std::fs::write(&state, lines).unwrap();
    assembly(&path, &Silent).run(fill).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), expected);
}

#[test]
fn a_part_of_something_else_is_started_afresh() {
    let folder = tempfile::tempdir().unwrap();
    let expected = whole(folder.path());
    let path = folder.path().join("other.gguf");
    let stop = StopAfter(AtomicUsize::new(6));
    let mut other = assembly(&path, &stop);
    other.fingerprint = 8;
    let wrong = |_: &Piece, out: &mut [u8]| {
        out.fill(9);
        Ok(())
    };
    other.run(wrong).unwrap_err();
    assembly(&path, &Silent).run(fill).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), expected);
}

#[test]
fn a_full_disk_leaves_no_file_and_a_rerun_completes() {
    let folder = tempfile::tempdir().unwrap();
    let expected = whole(folder.path());
    for room in [0u64, 10, 300, 300_000, 900_000] {
        let path = folder.path().join(format!("full-{room}.gguf"));
        let full =
            assembly(&path, &Silent).run_on(fill, |file| SmallDisk { file, left: AtomicU64::new(room) });
        assert!(matches!(full, Err(Error::DiskFull { .. })), "{full:?}");
        assert!(!path.exists());
        assembly(&path, &Silent).run(fill).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), expected);
    }
}

#[test]
fn what_does_not_read_back_is_no_result() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lied.gguf");
    let lied = assembly(&path, &Silent).run_on(fill, |file| LyingDisk(file, AtomicBool::new(false)));
    assert!(matches!(lied, Err(Error::Verification { .. })), "{lied:?}");
    assert!(!path.exists());
    // The rerun finds the piece whose bytes are not what was recorded.
    assembly(&path, &Silent).run(fill).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), whole(folder.path()));
}

#[test]
fn two_writers_do_not_mix() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("busy.gguf");
    let inner = |piece: &Piece, out: &mut [u8]| {
        let second = assembly(&path, &Silent).run(fill);
        assert!(matches!(second, Err(Error::Busy { .. })), "{second:?}");
        fill(piece, out)
    };
    assembly(&path, &Silent).run(inner).unwrap();
    assert!(path.exists());
}

#[test]
fn an_old_file_stays_until_the_new_one_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("old.gguf");
    std::fs::write(&path, b"old").unwrap();
    assembly(&path, &StopAfter(AtomicUsize::new(3))).run(fill).unwrap_err();
    assert_eq!(std::fs::read(&path).unwrap(), b"old");
    assembly(&path, &Silent).run(fill).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), whole(folder.path()));
}
