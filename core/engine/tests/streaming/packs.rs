use crate::tiny;
use pannier::pack::{is_pack, pack, verify};
use pannier::residency::StreamOptions;
use pannier_gguf::Gguf;
use std::path::Path;

fn packed(source: &Path, out: &Path) -> pannier::pack::Packed {
    pack(&Gguf::open(source).unwrap(), out, &mut |done, total| assert!(done <= total)).unwrap()
}

#[test]
fn a_pack_runs_with_the_same_bits_mapped_and_streamed() {
    let folder = tempfile::tempdir().unwrap();
    let path = tiny::model(folder.path());
    let out = folder.path().join("tiny.pack");
    let report = packed(&path, &out);
    let gguf = Gguf::open(&out).unwrap();
    assert!(is_pack(&gguf) && !report.reused && verify(&gguf).unwrap() == report.sha256);
    assert!(gguf.tensors().iter().all(|tensor| tensor.offset % 16384 == 0));
    let expected = tiny::logits(&mut tiny::runner(&path, None, &StreamOptions::default()).unwrap()).unwrap();
    for budget in [None, Some(tiny::dense_bytes(&path) / 2)] {
        let mut runner = tiny::runner(&out, budget, &StreamOptions::default()).unwrap();
        assert_eq!(tiny::logits(&mut runner).unwrap(), expected);
    }
}

#[test]
fn packs_are_reused_resumed_and_rebuilt() {
    let folder = tempfile::tempdir().unwrap();
    let path = tiny::model(folder.path());
    let (out, part) = (folder.path().join("tiny.pack"), folder.path().join("tiny.pack.part"));
    let first = packed(&path, &out);
    assert!(packed(&path, &out).reused);
    let whole = std::fs::read(&out).unwrap();

    // Interrupted: a part is there, with rubbish at its end.
    std::fs::remove_file(&out).unwrap();
    let mut torn = whole[..whole.len() / 2].to_vec();
    torn.extend_from_slice(&[0xaa; 100_000]);
    std::fs::write(&part, torn).unwrap();
    let resumed = packed(&path, &out);
    assert!(!part.exists() && resumed.resumed_bytes > 100_000 && resumed.sha256 == first.sha256);
    assert_eq!(std::fs::read(&out).unwrap(), whole);

    // Torn, and damaged in one bit.
    for change in
        [(|bytes: &mut Vec<u8>| bytes.truncate(bytes.len() - 20_000)) as fn(&mut Vec<u8>), |bytes| {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
        }]
    {
        let mut bytes = whole.clone();
        change(&mut bytes);
        std::fs::write(&out, bytes).unwrap();
        assert!(!packed(&path, &out).reused);
        assert_eq!(std::fs::read(&out).unwrap(), whole);
    }

    // Of another source.
    let mut other = std::fs::read(&path).unwrap();
    let last = other.len() - 100;
    other[last] ^= 1;
    std::fs::write(&path, other).unwrap();
    let rebuilt = packed(&path, &out);
    assert!(!rebuilt.reused && rebuilt.sha256 != first.sha256);
    assert!(pack(&Gguf::open(&out).unwrap(), &path, &mut |_, _| {}).is_err());
}
