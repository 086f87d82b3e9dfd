use crate::tiny;
use pannier::model::{Forward, Outputs};
use pannier::residency::{FileSource, StreamOptions, WeightSource};
use pannier::{CancelFlag, Error};
use pannier_gguf::Gguf;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Fails one read after some successful ones, and gives the others in small pieces.
#[derive(Debug)]
struct Faulty {
    files: FileSource,
    left: AtomicU64,
}

impl WeightSource for Faulty {
    fn read_at(&self, shard: usize, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        let left = self.left.fetch_sub(1, Ordering::Relaxed);
        if left == 1 {
            return Err(io::Error::other("injected"));
        }
        // Short reads are allowed anywhere.
        let most = out.len().min(if left.is_multiple_of(3) { 5000 } else { usize::MAX });
        self.files.read_at(shard, offset, &mut out[..most])
    }

    fn path(&self, shard: usize) -> &Path {
        self.files.path(shard)
    }
}

#[test]
fn a_failed_read_is_an_error_once_and_the_next_step_is_right() {
    let folder = tempfile::tempdir().unwrap();
    let path = tiny::model(folder.path());
    let budget = tiny::dense_bytes(&path) / 2;
    let expected = tiny::logits(&mut tiny::runner(&path, None, &StreamOptions::default()).unwrap()).unwrap();
    let mut failed = 0;
    for left in (20..400).step_by(9) {
        let files = FileSource::open(&Gguf::open(&path).unwrap()).unwrap();
        let source = Faulty { files, left: AtomicU64::new(left) };
        let stream = StreamOptions { source: Some(Arc::new(source)), ..StreamOptions::default() };
        let mut runner = match tiny::runner(&path, Some(budget), &stream) {
            Ok(runner) => runner,
            Err(error) => {
                assert!(error.to_string().contains("injected"), "{error}");
                continue;
            }
        };
        match tiny::logits(&mut runner) {
            Ok(bits) => assert_eq!(bits, expected),
            Err(error) => {
                assert!(
                    matches!(error, Error::Io { .. }) && error.to_string().contains("injected"),
                    "{error}"
                );
                failed += 1;
                assert_eq!(tiny::logits(&mut runner).unwrap(), expected, "after {error}");
            }
        }
    }
    assert!(failed > 5, "{failed}");
}

fn in_the_middle(change: impl Fn(&Path)) -> Result<(), Error> {
    let folder = tempfile::tempdir().unwrap();
    let path = tiny::model(folder.path());
    let budget = tiny::dense_bytes(&path) / 2;
    let mut runner = tiny::runner(&path, Some(budget), &StreamOptions::default()).unwrap();
    let mut seq = runner.new_seq().unwrap();
    let cancel = CancelFlag::default();
    runner.step(&mut seq, &[1, 2, 3], Outputs::Last, &cancel).unwrap();
    change(&path);
    for token in 0..20 {
        runner.step(&mut seq, &[token], Outputs::Last, &cancel)?;
    }
    Ok(())
}

#[test]
fn a_truncated_or_overwritten_file_is_an_error() {
    let truncated = in_the_middle(|path| {
        let file = std::fs::File::options().write(true).open(path).unwrap();
        file.set_len(50_000).unwrap();
    });
    assert!(matches!(truncated, Err(Error::ModelChanged { .. } | Error::Io { .. })), "{truncated:?}");
    let overwritten = in_the_middle(|path| {
        let bytes = std::fs::read(path).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        std::fs::write(path, bytes).unwrap();
    });
    assert!(matches!(overwritten, Err(Error::ModelChanged { .. } | Error::Io { .. })), "{overwritten:?}");
}

#[test]
fn an_unlinked_or_replaced_file_goes_on_being_read() {
    in_the_middle(|path| std::fs::remove_file(path).unwrap()).unwrap();
    in_the_middle(|path| {
        let other = path.with_extension("other");
        std::fs::write(&other, b"another model").unwrap();
        std::fs::rename(other, path).unwrap();
    })
    .unwrap();
}
