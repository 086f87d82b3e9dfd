//! Files made to hurt, each named after its attack. Every one is an error of its own kind with a one-line message.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests, too")]

mod common;
use common::*;
use pannier_gguf::{Error, GgmlType, Gguf};

fn tensors(list: &[(&str, &[u64], u32, u64)]) -> Raw {
    let mut raw = Raw::header(3, list.len() as u64, 0);
    for (name, dims, ty, offset) in list {
        raw = raw.tensor(name, dims, *ty, *offset);
    }
    raw.pad(32)
}

// ---- not a GGUF file

#[test]
fn empty_file() {
    assert!(matches!(Raw::default().fault(), Error::Empty));
}

#[test]
fn other_formats_are_called_by_their_name() {
    let cases: &[(&[u8], &str)] = &[
        (b"PK\x03\x04rest of it", "zip"),
        (b"Hello, this is a letter.\nYours", "text"),
        (b"GG", "text"),
        (b"<!DOCTYPE html><html>404</html>", "HTML"),
        (b"{\"error\": \"not found\"}", "JSON"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "git-lfs"),
        (b"\x40\x00\x00\x00\x00\x00\x00\x00{\"__metadata__\":{}}", "safetensors"),
        (b"tjgg\x01\x00\x00\x00", "GGJT"),
        (&[0; 64], "zeros"),
        (&[0xde, 0xad, 0xbe, 0xef, 0xff], "de ad be ef"),
    ];
    for (bytes, word) in cases {
        let error = Raw(bytes.to_vec()).fault();
        assert!(matches!(error, Error::NotGguf { .. }), "{error}");
        assert!(error.to_string().contains(word), "{error} should say {word}");
    }
}

#[test]
fn text_cut_inside_a_character_is_still_text() {
    let mut text = "x".repeat(511);
    text.push('日');
    assert!(Raw(text.into_bytes()).fault().to_string().contains("text"));
}

#[test]
fn version_1_and_the_future() {
    for version in [0, 1, 4, 70_000] {
        let error = Raw::header(version, 0, 0).fault();
        assert!(matches!(error, Error::UnsupportedVersion { version: v } if v == version), "{error}");
    }
}

#[test]
fn big_endian_by_version_and_by_magic() {
    let swapped = Raw(b"GGUF".to_vec()).bytes(&3u32.to_be_bytes()).zeros(16);
    assert!(matches!(swapped.fault(), Error::BigEndian));
    let reversed = Raw(b"FUGG".to_vec()).zeros(20);
    assert!(matches!(reversed.fault(), Error::BigEndian));
}

#[test]
fn version_2_has_the_layout_of_3() {
    let mut raw = small();
    raw.0[4] = 2;
    let gguf = raw.open().unwrap();
    assert_eq!((gguf.version(), gguf.tensors().len()), (2, 1));
}

// ---- truncation

#[test]
fn every_prefix_of_a_file_is_an_error() {
    let whole = small().0;
    for len in 0..whole.len() {
        let error = Raw(whole[..len].to_vec()).fault();
        let expected = match len {
            0 => matches!(error, Error::Empty),
            1..4 => matches!(error, Error::NotGguf { .. }),
            _ => matches!(
                error,
                Error::TruncatedHeader { .. } | Error::CountTooLarge { .. } | Error::TruncatedTensor { .. }
            ),
        };
        assert!(expected, "{len} bytes: {error}");
    }
    assert!(Raw(whole).open().is_ok());
}

#[test]
fn cut_inside_a_value_names_key_and_bytes() {
    let raw = Raw::header(3, 0, 1).text("general.name").u32(STRING).u64(100).bytes(b"short");
    match raw.fault() {
        Error::TruncatedHeader { what, offset, needed, available } => {
            assert!(what.contains("general.name"), "{what}");
            assert_eq!((offset, needed, available), (24 + 8 + 12 + 4 + 8, 100, 5));
        }
        other => panic!("{other}"),
    }
}

#[test]
fn cut_inside_a_tensor_names_it_and_counts_the_bytes() {
    // b is declared first but lies behind a: the first cut in the file is a.
    let raw = tensors(&[("b", &[8], 0, 32), ("a", &[8], 0, 0)]).zeros(12);
    match raw.fault() {
        Error::TruncatedTensor { name, needed, available, more, .. } => {
            assert_eq!((name.as_str(), needed, available, more), ("a", 32, 12, 1));
        }
        other => panic!("{other}"),
    }
}

#[test]
fn cut_by_exactly_one_byte() {
    let mut raw = small();
    raw.0.pop();
    let error = raw.fault();
    assert!(matches!(error, Error::TruncatedTensor { needed: 32, available: 31, more: 0, .. }), "{error}");
    assert!(error.to_string().contains("cut by 1 bytes"), "{error}");
}

#[test]
fn last_tensor_without_its_padding_is_whole() {
    assert!(tensors(&[("a", &[1], 0, 0)]).zeros(4).open().is_ok());
}

// ---- counts and lengths

#[test]
fn counts_beyond_the_file() {
    for count in [u64::MAX, u64::MAX / 13, 1 << 63, 1 << 40, 1000] {
        let keys = Raw::header(3, 0, count).zeros(64).fault();
        assert!(matches!(keys, Error::CountTooLarge { count: c, .. } if c == count), "{keys}");
        let tensors = Raw::header(3, count, 0).zeros(64).fault();
        assert!(matches!(tensors, Error::CountTooLarge { count: c, .. } if c == count), "{tensors}");
    }
}

#[test]
fn array_counts_beyond_the_file() {
    for element in 0..13 {
        for count in [u64::MAX, 1 << 61, 1 << 62, 5000] {
            let raw = Raw::header(3, 0, 1).text("k").u32(ARRAY).u32(element).u64(count).zeros(64);
            let error = raw.fault();
            assert!(matches!(&error, Error::CountTooLarge { what, .. } if what.contains("\"k\"")), "{error}");
        }
    }
}

#[test]
fn lengths_beyond_the_file() {
    for len in [u64::MAX, u64::MAX - 20, 1 << 40, 65] {
        let value = Raw::header(3, 0, 1).text("k").u32(STRING).u64(len).zeros(64);
        assert!(matches!(value.fault(), Error::TruncatedHeader { needed, .. } if needed == len));
        let element = Raw::header(3, 0, 1).text("k").u32(ARRAY).u32(STRING).u64(1).u64(len).zeros(64);
        assert!(matches!(element.fault(), Error::TruncatedHeader { needed, .. } if needed == len));
    }
}

#[test]
fn endless_key_and_tensor_name() {
    let key = Raw::header(3, 0, 1).u64(65_536).zeros(70_000);
    assert!(matches!(key.fault(), Error::NameTooLong { len: 65_536, limit: 65_535, .. }));
    let name = Raw::header(3, 1, 0).u64(257).zeros(1000);
    assert!(matches!(name.fault(), Error::NameTooLong { len: 257, limit: 256, .. }));
}

#[test]
fn longest_key_and_names_beyond_64_bytes_are_read() {
    let key = "k".repeat(65_535);
    let name = "n".repeat(256);
    let raw = Raw::header(3, 1, 1).key_u32(&key, 7).tensor(&name, &[8], 0, 0).pad(32).zeros(32);
    let gguf = raw.open().unwrap();
    assert_eq!(gguf.metadata().u32(&key).unwrap(), 7);
    assert!(gguf.tensor(&name).is_some());
}

/// A sparse file: 1 GiB that costs nothing on disk, and whose claims all fit into it.
fn sparse(head: Raw, bytes: u64) -> (tempfile::TempDir, Error) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sparse.gguf");
    std::fs::write(&path, head.0).unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(bytes).unwrap();
    let error = Gguf::open(&path).unwrap_err();
    assert_one_line(&error);
    (folder, error)
}

#[test]
fn claims_that_fit_the_file_but_not_the_memory() {
    let gib = 1 << 30;
    let heads = [
        Raw::header(3, 1 << 24, 0),
        Raw::header(3, 0, 1 << 24),
        Raw::header(3, 0, 1).text("k").u32(ARRAY).u32(STRING).u64(1 << 26),
        Raw::header(3, 0, 1).text("k").u32(ARRAY).u32(ARRAY).u64(1 << 26),
        Raw::header(3, 0, 1).text("k").u32(STRING).u64(100 << 20),
    ];
    for head in heads {
        let (_folder, error) = sparse(head, gib);
        assert!(matches!(error.fault(), Error::MetadataTooLarge { .. }), "{error}");
    }
}

#[test]
fn a_gibibyte_of_text_or_booleans_is_not_read_through() {
    let heads = [
        Raw::header(3, 0, 1).text("k").u32(STRING).u64(900 << 20),
        Raw::header(3, 0, 1).text("k").u32(ARRAY).u32(STRING).u64(1).u64(900 << 20),
        Raw::header(3, 0, 1).text("k").u32(ARRAY).u32(BOOL).u64(900 << 20),
    ];
    for head in heads {
        let (_folder, error) = sparse(head, 1 << 30);
        assert!(matches!(error.fault(), Error::TextTooLarge { .. }), "{error}");
    }
}

// ---- metadata

#[test]
fn nesting_without_end() {
    let nested = |depth: usize| {
        let mut raw = Raw::header(3, 0, 1).text("deep").u32(ARRAY);
        for _ in 1..depth {
            raw = raw.u32(ARRAY).u64(1);
        }
        raw.u32(U8).u64(1).u8(7)
    };
    assert!(nested(4).open().is_ok());
    for depth in [5, 10_000] {
        assert!(matches!(nested(depth).fault(), Error::NestingTooDeep { limit: 4, .. }));
    }
}

#[test]
fn the_same_key_twice() {
    let raw = Raw::header(3, 0, 3).key_u32("a", 1).key_u32("b", 2).key_u32("a", 1);
    assert!(matches!(raw.fault(), Error::DuplicateKey { key } if key == "a"));
}

#[test]
fn unknown_value_types() {
    for ty in [13, 255, u32::MAX] {
        let scalar = Raw::header(3, 0, 1).text("k").u32(ty).zeros(64);
        assert!(matches!(scalar.fault(), Error::UnknownValueType { id, .. } if id == ty));
        let array = Raw::header(3, 0, 1).text("k").u32(ARRAY).u32(ty).u64(0).zeros(64);
        assert!(matches!(array.fault(), Error::UnknownValueType { id, .. } if id == ty));
    }
}

#[test]
fn booleans_that_are_neither() {
    let scalar = Raw::header(3, 0, 1).text("k").u32(BOOL).u8(2);
    assert!(matches!(scalar.fault(), Error::InvalidBool { value: 2, .. }));
    let array = Raw::header(3, 0, 1).text("k").u32(ARRAY).u32(BOOL).u64(3).bytes(&[0, 1, 255]);
    assert!(matches!(array.fault(), Error::InvalidBool { value: 255, .. }));
}

#[test]
fn invalid_utf8_everywhere_text_can_be() {
    let bad = b"ab\xff\xfe";
    let key = Raw::header(3, 0, 1).u64(4).bytes(bad).zeros(32);
    let value = Raw::header(3, 0, 1).text("k").u32(STRING).u64(4).bytes(bad);
    let element = Raw::header(3, 0, 1).text("k").u32(ARRAY).u32(STRING).u64(2).text("fine").u64(4).bytes(bad);
    let name = Raw::header(3, 1, 0).u64(4).bytes(bad).zeros(64);
    for (raw, word, offset) in
        [(key, "key #0", 34), (value, "\"k\"", 47), (element, "\"k\"", 71), (name, "tensor #0", 34)]
    {
        match raw.fault() {
            Error::InvalidUtf8 { what, offset: found } => {
                assert!(what.contains(word), "{what}");
                assert_eq!(found, offset, "{what}");
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn alignment_that_is_no_power_of_two() {
    for value in [0, 3, 33, 1 << 25, u32::MAX] {
        let error = Raw::header(3, 0, 1).key_u32("general.alignment", value).fault();
        assert!(matches!(error, Error::BadAlignment { value: v, .. } if v == u64::from(value)), "{error}");
    }
    let text = Raw::header(3, 0, 1).key_text("general.alignment", "32").fault();
    assert!(matches!(text, Error::WrongType { .. }), "{text}");
}

#[test]
fn line_breaks_and_endless_names_do_not_reach_the_message() {
    let evil = "a\nrm -rf\x1b[31m";
    let key = Raw::header(3, 0, 2).key_u32(evil, 1).key_u32(evil, 1);
    assert!(matches!(key.fault(), Error::DuplicateKey { .. }));
    let long = "k".repeat(60_000);
    let error = Raw::header(3, 0, 1).text(&long).u32(99).zeros(8).fault();
    assert!(error.to_string().len() < 300);
}

// ---- tensors

#[test]
fn the_same_tensor_twice() {
    let raw = tensors(&[("a", &[8], 0, 0), ("b", &[8], 0, 32), ("a", &[8], 0, 64)]).zeros(96);
    assert!(matches!(raw.fault(), Error::DuplicateTensor { name } if name == "a"));
}

#[test]
fn no_dimensions_or_too_many() {
    assert!(matches!(tensors(&[("a", &[], 0, 0)]).fault(), Error::BadRank { dims: 0, .. }));
    assert!(matches!(tensors(&[("a", &[1; 5], 0, 0)]).fault(), Error::BadRank { dims: 5, .. }));
    let endless = Raw::header(3, 1, 0).text("a").u32(u32::MAX).zeros(64);
    assert!(matches!(endless.fault(), Error::BadRank { .. }));
}

#[test]
fn a_dimension_of_zero() {
    let raw = tensors(&[("a", &[8, 0, 2], 0, 0)]);
    assert!(matches!(raw.fault(), Error::ZeroDimension { dim: 1, .. }));
}

#[test]
fn dimensions_whose_product_wraps() {
    let q4_0 = GgmlType::Q4_0.id();
    let cases: &[(&[u64], u32)] = &[
        (&[1 << 32, 1 << 32], 0),
        (&[1 << 32, 1 << 31, 2], 0),
        (&[1 << 62], 0),
        (&[1 << 33, 1 << 31], q4_0),
        (&[u64::MAX - 31, 1], GgmlType::I8.id()),
    ];
    for (dims, ty) in cases {
        let error = tensors(&[("a", dims, *ty, 0)]).fault();
        assert!(
            matches!(
                error,
                Error::TensorTooLarge { .. } | Error::TensorOutOfRange { .. } | Error::TruncatedTensor { .. }
            ),
            "{dims:?}: {error}"
        );
    }
    // Without a check this product is 0 bytes, which any file has.
    assert!(matches!(tensors(&[("a", &[1 << 32, 1 << 32], 0, 0)]).fault(), Error::TensorTooLarge { .. }));
}

#[test]
fn rows_that_are_not_whole_blocks() {
    for (ty, row) in [(GgmlType::Q4_0, 33), (GgmlType::Q4_K, 128), (GgmlType::Q4_K, 1), (GgmlType::NVFP4, 32)]
    {
        match tensors(&[("odd", &[row, 4], ty.id(), 0)]).zeros(4096).fault() {
            Error::PartialBlock { name, row: found, block, ty: found_ty } => {
                assert_eq!((name.as_str(), found, block, found_ty), ("odd", row, ty.block_elements(), ty));
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn element_types_that_were_never_assigned() {
    for ty in [43, 1000, u32::MAX] {
        let error = tensors(&[("odd", &[8], ty, 0)]).fault();
        assert!(matches!(&error, Error::UnknownTensorType { name, id } if name == "odd" && *id == ty));
        assert!(error.to_string().contains(&ty.to_string()));
    }
}

#[test]
fn offsets_off_the_alignment() {
    let error = tensors(&[("a", &[1], 0, 4)]).zeros(64).fault();
    assert!(matches!(error, Error::MisalignedTensor { offset: 4, alignment: 32, .. }), "{error}");
    let raw = Raw::header(3, 1, 1).key_u32("general.alignment", 4096).tensor("a", &[1], 0, 64).zeros(9000);
    assert!(matches!(raw.fault(), Error::MisalignedTensor { alignment: 4096, .. }));
}

#[test]
fn offsets_that_wrap_around_into_the_header() {
    for offset in [u64::MAX - 31, u64::MAX - 63, 1 << 63] {
        let error = tensors(&[("a", &[8], 0, offset)]).zeros(64).fault();
        assert!(
            matches!(error, Error::TensorOutOfRange { .. } | Error::TruncatedTensor { .. }),
            "{offset:#x}: {error}"
        );
    }
}

#[test]
fn tensors_that_share_a_part_of_their_bytes() {
    let raw = tensors(&[("a", &[16], 0, 0), ("b", &[8], 0, 32)]).zeros(64);
    assert!(
        matches!(raw.fault(), Error::OverlappingTensors { first, second, .. } if first == "a" && second == "b")
    );
    let same_start = tensors(&[("a", &[16], 0, 0), ("b", &[8], 0, 0)]).zeros(64);
    assert!(matches!(same_start.fault(), Error::OverlappingTensors { .. }));
}

#[test]
fn tensors_that_share_all_their_bytes_are_tied() {
    let gguf = tensors(&[("a", &[8], 0, 0), ("b", &[2, 4], 0, 0)]).zeros(32).open().unwrap();
    assert_eq!(gguf.tensors()[0].offset, gguf.tensors()[1].offset);
}

#[test]
fn a_tensor_of_another_file() {
    let big = tensors(&[("a", &[1024], 0, 0)]).zeros(4096).open().unwrap();
    let small = small().open().unwrap();
    assert!(matches!(small.tensor_data(&big.tensors()[0]), Err(Error::ForeignTensor { .. })));
    assert!(matches!(small.tensor_bytes(&big.tensors()[0]), Err(Error::ForeignTensor { .. })));
}
