use crate::tiny;
use pannier::Error;
use pannier::model::{Blueprint, ModelOptions};
use pannier::pack::{is_pack, pack, verify};
use pannier::residency::StreamOptions;
use pannier_gguf::interleaved::SUFFIX;
use pannier_gguf::{GgmlType, Gguf, Writer};
use std::path::Path;
use std::sync::Arc;

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
    let interleaved = gguf.tensors().iter().filter(|tensor| tensor.name.ends_with(SUFFIX));
    assert_eq!(interleaved.count(), 5 * 7 + 2, "all matrices, embedding and output too");
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

/// Whoever writes such a name must mean it: groups of whole rows, of a format that has them.
#[test]
fn interleaved_rows_that_cannot_be_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let source = Gguf::open(tiny::model(folder.path())).unwrap();
    let changed = |name: &str, ty: GgmlType, rows: u64| {
        let mut writer = Writer::with_metadata(source.metadata().clone());
        let dims =
            |tensor: &str, dims: &[u64]| if tensor == name { vec![dims[0], rows] } else { dims.to_vec() };
        let named =
            |tensor: &str| if tensor == name { format!("{tensor}{SUFFIX}") } else { tensor.to_owned() };
        let typed = |tensor: &str, old: GgmlType| if tensor == name { ty } else { old };
        for t in source.tensors() {
            writer.tensor(named(&t.name), &dims(&t.name, &t.dims), typed(&t.name, t.ty)).unwrap();
        }
        let path = folder.path().join("changed.gguf");
        writer
            .write_file(&path, |out| -> Result<(), pannier_gguf::Error> {
                for t in source.tensors() {
                    let (block, bytes) =
                        (typed(&t.name, t.ty).block_elements(), typed(&t.name, t.ty).block_bytes());
                    let size = dims(&t.name, &t.dims).iter().product::<u64>() / block * bytes;
                    let mut data = source.tensor_data(t)?.to_vec();
                    data.resize(size as usize, 0);
                    out.write(&named(&t.name), &data)?;
                }
                Ok(())
            })
            .unwrap();
        Blueprint::read(Arc::new(Gguf::open(&path).unwrap()), &ModelOptions::default()).map(drop)
    };
    assert!(changed("blk.1.ffn_up.weight", GgmlType::Q8_0, 704).is_ok());
    let float = changed("blk.1.ffn_up.weight", GgmlType::F32, 704);
    assert!(matches!(float, Err(Error::Unsupported { .. })), "{float:?}");
    let cut = changed("output.weight", GgmlType::Q8_0, 321);
    assert!(matches!(cut, Err(Error::TensorShape { .. } | Error::Unsupported { .. })), "{cut:?}");
}
