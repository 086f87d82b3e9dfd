//! Opening real files, split files and paths that are not files.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests, too")]

mod common;
use common::*;
use pannier_gguf::{Array, Error, GgmlType, Gguf, Value, Writer};
use std::path::{Path, PathBuf};

#[test]
fn a_tiny_model_opens() {
    let gguf = Gguf::open(tiny_model()).unwrap();
    let metadata = gguf.metadata();
    assert_eq!(metadata.str("general.architecture").unwrap(), "llama");
    let width = metadata.u32("llama.embedding_length").unwrap();
    assert_eq!(gguf.tensor("token_embd.weight").unwrap().dims[0], u64::from(width));
    assert_eq!(gguf.file_bytes(), std::fs::metadata(tiny_model()).unwrap().len());
    assert_eq!(gguf.shard_path(0), Some(tiny_model().as_path()));
    for tensor in gguf.tensors() {
        assert_eq!(gguf.tensor(&tensor.name), Some(tensor));
        assert_eq!(gguf.tensor_data(tensor).unwrap().len() as u64, tensor.bytes);
        assert!(tensor.offset.is_multiple_of(u64::from(gguf.alignment())));
        assert_eq!(tensor.row_bytes() * tensor.rows(), tensor.bytes);
        assert_eq!(Some(tensor.row_bytes()), tensor.ty.row_bytes(tensor.dims[0]));
    }
    assert!(gguf.tensors().iter().any(|tensor| tensor.ty == GgmlType::Q2_K));
}

#[test]
fn a_file_and_its_bytes_are_the_same_model() {
    let mapped = Gguf::open(tiny_model()).unwrap();
    let read = Gguf::from_vec(std::fs::read(tiny_model()).unwrap()).unwrap();
    assert_eq!(mapped.metadata(), read.metadata());
    assert_eq!(mapped.tensors(), read.tensors());
    for tensor in mapped.tensors() {
        assert_eq!(mapped.tensor_data(tensor).unwrap(), read.tensor_data(tensor).unwrap());
    }
}

#[test]
fn tensor_bytes_outlive_the_model() {
    let gguf = Gguf::open(tiny_model()).unwrap();
    let tensor = gguf.tensors()[0].clone();
    let expected = gguf.tensor_data(&tensor).unwrap().to_vec();
    let bytes = gguf.tensor_bytes(&tensor).unwrap();
    drop(gguf);
    assert_eq!(bytes, expected);
}

/// A model written by one program and read by this one comes out of our writer byte for byte.
#[test]
fn a_model_of_another_writer_is_rewritten_bit_for_bit() {
    let original = std::fs::read(tiny_model()).unwrap();
    let gguf = Gguf::open(tiny_model()).unwrap();
    let mut writer = Writer::with_metadata(gguf.metadata().clone());
    for tensor in gguf.tensors() {
        writer.tensor(&tensor.name, &tensor.dims, tensor.ty).unwrap();
    }
    let mut stream = writer.begin(Vec::new()).unwrap();
    for tensor in gguf.tensors() {
        stream.write(&tensor.name, gguf.tensor_data(tensor).unwrap()).unwrap();
    }
    assert!(stream.finish().unwrap() == original, "the bytes differ");
}

/// The real models on this machine; those that were not fetched are left out.
#[test]
fn real_models_open() {
    let folder = match std::env::var_os("PANNIER_MODELS") {
        Some(folder) => PathBuf::from(folder),
        None => std::env::home_dir().unwrap_or_default().join(".cache/pannier/models"),
    };
    let models = [
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "llama", 49_152),
        ("gemma-3-270m-q4_k_m.gguf", "gemma3", 262_144),
        ("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", "qwen2", 151_936),
        ("qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", "qwen2", 151_936),
    ];
    for (file, architecture, vocabulary) in models {
        let path = folder.join(file);
        if !path.exists() {
            eprintln!("not fetched: {file}");
            continue;
        }
        let gguf = Gguf::open(&path).unwrap();
        let metadata = gguf.metadata();
        assert_eq!(metadata.str("general.architecture").unwrap(), architecture);
        let tokens = metadata.strings("tokenizer.ggml.tokens").unwrap();
        assert_eq!(tokens.len(), vocabulary, "{file}");
        assert_eq!(metadata.i32s("tokenizer.ggml.token_type").unwrap().len(), vocabulary);
        assert_eq!(gguf.tensor("token_embd.weight").unwrap().dims[1], vocabulary as u64);
        assert!(
            metadata.u32_or_u32s(&format!("{architecture}.attention.head_count_kv")).unwrap().get(0)
                >= Some(1)
        );
    }
}

// ---- paths

fn error(path: &Path) -> Error {
    let error = Gguf::open(path).unwrap_err();
    assert_one_line(&error);
    assert!(error.to_string().contains(&path.display().to_string()), "{error} should name the file");
    error
}

#[test]
fn paths_that_are_not_files() {
    let folder = tempfile::tempdir().unwrap();
    assert!(matches!(error(&folder.path().join("none.gguf")).fault(), Error::NotFound));
    assert!(matches!(error(folder.path()).fault(), Error::NotAFile { kind: "directory" }));
    let empty = folder.path().join("empty.gguf");
    std::fs::write(&empty, b"").unwrap();
    assert!(matches!(error(&empty).fault(), Error::Empty));
    let text = folder.path().join("text.gguf");
    std::fs::write(&text, b"just text\n").unwrap();
    assert!(matches!(error(&text).fault(), Error::NotGguf { .. }));
    #[cfg(unix)]
    assert!(matches!(error(Path::new("/dev/null")).fault(), Error::NotAFile { .. }));
}

#[test]
fn a_real_model_cut_anywhere_says_what_is_missing() {
    let whole = std::fs::read(tiny_model()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut.gguf");
    let gguf = Gguf::open(tiny_model()).unwrap();
    let data = gguf.shards()[0].data_offset() as usize;
    for keep in [data + 1, data + 100_000, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&path, &whole[..keep]).unwrap();
        let error = error(&path);
        let Error::TruncatedTensor { name, offset, needed, available, .. } = error.fault() else {
            panic!("{error}")
        };
        assert_eq!(offset + available, keep as u64);
        let tensor = gguf.tensor(name).unwrap();
        assert_eq!((tensor.offset, tensor.bytes), (*offset, *needed));
    }
    for keep in [24, 100, data / 2, data - 100] {
        std::fs::write(&path, &whole[..keep]).unwrap();
        let error = error(&path);
        assert!(
            matches!(error.fault(), Error::TruncatedHeader { .. } | Error::CountTooLarge { .. }),
            "{error}"
        );
    }
}

// ---- metadata getters

#[test]
fn getters_name_the_key_and_the_type() {
    let mut writer = Writer::new();
    writer
        .set("u8", 200u8)
        .set("i64", -1i64)
        .set("u64", u64::MAX)
        .set("f64", 0.5f64)
        .set("huge", 1e300f64)
        .set("infinite", f64::INFINITY)
        .set("text", "t")
        .set("flag", true)
        .set("heads", vec![4i64, 8])
        .set("negative", vec![4i8, -1])
        .set("strings", vec!["a", "b"])
        .set("nested", Value::Array(Array::Array(vec![Array::U8([1].into_iter().collect())].into())));
    let gguf = Gguf::from_vec(writer.begin(Vec::new()).unwrap().finish().unwrap()).unwrap();
    let metadata = gguf.metadata();

    assert_eq!(metadata.u32("u8").unwrap(), 200);
    assert_eq!(metadata.u64("u64").unwrap(), u64::MAX);
    assert_eq!(metadata.i32("i64").unwrap(), -1);
    assert_eq!(metadata.f32("f64").unwrap(), 0.5);
    assert_eq!(metadata.f32("infinite").unwrap(), f32::INFINITY);
    assert!(metadata.bool("flag").unwrap());
    assert_eq!(metadata.opt_u32("absent").unwrap(), None);
    assert_eq!(metadata.u32_or_u32s("u8").unwrap().get(9), Some(200));
    let heads = metadata.u32_or_u32s("heads").unwrap();
    assert_eq!((heads.get(0), heads.get(1), heads.get(2)), (Some(4), Some(8), None));
    assert_eq!(metadata.i32s("negative").unwrap(), [4, -1]);
    assert_eq!(metadata.strings("strings").unwrap().get(1), Some("b"));

    let message = |error: Error| error.to_string();
    assert_eq!(message(metadata.u32("absent").unwrap_err()), r#"the metadata has no key "absent""#);
    assert_eq!(message(metadata.u32("text").unwrap_err()), r#"key "text" is string, expected u32"#);
    assert_eq!(message(metadata.opt_str("flag").unwrap_err()), r#"key "flag" is bool, expected string"#);
    assert_eq!(
        message(metadata.u32("i64").unwrap_err()),
        r#"key "i64" has the value -1, which does not fit u32"#
    );
    assert_eq!(
        message(metadata.u32_or_u32s("strings").unwrap_err()),
        r#"key "strings" is array of string, expected u32 or array of u32"#
    );
    assert!(matches!(metadata.u32("u64"), Err(Error::OutOfRange { .. })));
    assert!(matches!(metadata.u32s("negative"), Err(Error::OutOfRange { .. })));
    assert!(matches!(metadata.f32("huge"), Err(Error::OutOfRange { .. })));
    assert!(matches!(metadata.u32("flag"), Err(Error::WrongType { .. })));
}

// ---- split files

fn shard(no: u16, count: u16, total: i32, names: &[&str]) -> Vec<u8> {
    let mut writer = Writer::new();
    if no == 0 {
        writer.set("general.architecture", "llama");
    }
    writer.set("split.no", no).set("split.count", count).set("split.tensors.count", total);
    for name in names {
        writer.tensor(*name, &[8], GgmlType::F32).unwrap();
    }
    let mut stream = writer.begin(Vec::new()).unwrap();
    for name in names {
        let fill: Vec<u8> = (0..8).flat_map(|_| f32::from(name.as_bytes()[0]).to_le_bytes()).collect();
        stream.write(name, &fill).unwrap();
    }
    stream.finish().unwrap()
}

fn split_folder(shards: &[(&str, Vec<u8>)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in shards {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    folder
}

#[test]
fn a_split_model_opens_by_any_of_its_files() {
    let folder = split_folder(&[
        ("m-00001-of-00003.gguf", shard(0, 3, 3, &["a"])),
        ("m-00002-of-00003.gguf", shard(1, 3, 3, &[])),
        ("m-00003-of-00003.gguf", shard(2, 3, 3, &["b", "c"])),
    ]);
    for number in 1..=3 {
        let gguf = Gguf::open(folder.path().join(format!("m-0000{number}-of-00003.gguf"))).unwrap();
        assert_eq!(gguf.metadata().str("general.architecture").unwrap(), "llama");
        assert_eq!(gguf.shards().len(), 3);
        let names: Vec<_> =
            gguf.tensors().iter().map(|tensor| (tensor.name.as_str(), tensor.shard)).collect();
        assert_eq!(names, [("a", 0), ("b", 2), ("c", 2)]);
        for tensor in gguf.tensors() {
            let first = gguf.tensor_data(tensor).unwrap().first_chunk::<4>().copied().unwrap();
            assert_eq!(f32::from_le_bytes(first), f32::from(tensor.name.as_bytes()[0]));
        }
        assert!(gguf.shard_path(2).unwrap().ends_with("m-00003-of-00003.gguf"));
        assert_eq!(gguf.shard_path(3), None);
    }
}

#[test]
fn a_missing_shard_is_named() {
    let folder = split_folder(&[("m-00001-of-00002.gguf", shard(0, 2, 1, &["a"]))]);
    let error = Gguf::open(folder.path().join("m-00001-of-00002.gguf")).unwrap_err();
    assert!(matches!(error.fault(), Error::MissingShard { shard: 1, count: 2 }), "{error}");
    assert!(error.to_string().contains("m-00002-of-00002.gguf"), "{error}");
}

#[test]
fn a_renamed_shard_is_refused() {
    let folder = split_folder(&[
        ("model.gguf", shard(0, 2, 1, &["a"])),
        ("m-00002-of-00002.gguf", shard(0, 2, 1, &["a"])),
    ]);
    for name in ["model.gguf", "m-00002-of-00002.gguf"] {
        let error = Gguf::open(folder.path().join(name)).unwrap_err();
        assert!(matches!(error.fault(), Error::SplitName { shard: 0, count: 2 }), "{error}");
    }
}

#[test]
fn shards_that_do_not_belong_together() {
    let cases = [
        (shard(0, 2, 2, &["a"]), shard(0, 2, 2, &["b"]), "split.no"),
        (shard(0, 2, 2, &["a"]), shard(1, 3, 2, &["b"]), "split.count"),
        (shard(0, 2, 3, &["a"]), shard(1, 2, 3, &["b"]), "split.tensors.count"),
        (shard(0, 2, 2, &["a"]), small().0, "split.count"),
    ];
    for (first, second, wanted) in cases {
        let folder = split_folder(&[("m-00001-of-00002.gguf", first), ("m-00002-of-00002.gguf", second)]);
        let error = Gguf::open(folder.path().join("m-00001-of-00002.gguf")).unwrap_err();
        assert!(matches!(error.fault(), Error::SplitMismatch { key, .. } if *key == wanted), "{error}");
        assert_one_line(&error);
    }
    let twice = Gguf::from_shards([shard(0, 2, 2, &["a"]).into(), shard(1, 2, 2, &["a"]).into()]);
    assert!(matches!(twice, Err(Error::DuplicateTensor { .. })));
    let alone = Gguf::from_vec(shard(0, 2, 2, &["a"]));
    assert!(matches!(alone, Err(Error::SplitMismatch { .. })));
    assert!(Gguf::from_vec(shard(0, 1, 1, &["a"])).is_ok());
}

#[test]
fn split_numbers_out_of_range() {
    let error = Gguf::from_vec(shard(5, 2, 1, &["a"])).unwrap_err();
    assert!(matches!(error, Error::SplitMismatch { key: "split.no", found: 5, .. }), "{error}");
    let negative = Raw::header(3, 0, 1).text("split.count").u32(I32).u32(u32::MAX);
    assert!(matches!(negative.fault(), Error::OutOfRange { .. }));
    let lonely = Raw::header(3, 0, 1).text("split.count").u32(U16).bytes(&[9, 0]);
    assert!(matches!(lonely.fault(), Error::MissingKey { .. }));
}

/// Seeds that do not open would teach the fuzzer nothing.
#[test]
fn fuzz_seeds_are_good_files() {
    let seeds = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds/parse");
    let mut count = 0;
    for seed in std::fs::read_dir(seeds).unwrap() {
        let path = seed.unwrap().path();
        Gguf::open(&path).unwrap_or_else(|error| panic!("{error}"));
        count += 1;
    }
    assert_eq!(count, 5);
}
