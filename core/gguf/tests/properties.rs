//! Properties: writing and reading are inverse, and no change to a file can make the reader panic.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests, too")]

mod common;

use pannier_gguf::{Array, GgmlType, Gguf, Metadata, Packed, Scalar, StrArray, Value, Writer};
use proptest::collection::vec;
use proptest::prelude::*;

fn packed<T: Scalar + Arbitrary + std::fmt::Debug>() -> impl Strategy<Value = Packed<T>> {
    vec(any::<T>(), 0..20).prop_map(|values| values.into_iter().collect())
}

fn array() -> impl Strategy<Value = Array> {
    let flat = prop_oneof![
        packed().prop_map(Array::U8),
        packed().prop_map(Array::I8),
        packed().prop_map(Array::U16),
        packed().prop_map(Array::I16),
        packed().prop_map(Array::U32),
        packed().prop_map(Array::I32),
        packed().prop_map(Array::F32),
        packed().prop_map(Array::Bool),
        packed().prop_map(Array::U64),
        packed().prop_map(Array::I64),
        packed().prop_map(Array::F64),
        vec(".{0,12}", 0..20).prop_map(|strings| Array::String(strings.iter().collect::<StrArray>())),
    ];
    flat.prop_recursive(3, 24, 4, |inner| vec(inner, 0..4).prop_map(|arrays| Array::Array(arrays.into())))
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<i8>().prop_map(Value::I8),
        any::<u16>().prop_map(Value::U16),
        any::<i16>().prop_map(Value::I16),
        any::<u32>().prop_map(Value::U32),
        any::<i32>().prop_map(Value::I32),
        any::<f32>().prop_map(Value::F32),
        any::<bool>().prop_map(Value::Bool),
        any::<u64>().prop_map(Value::U64),
        any::<i64>().prop_map(Value::I64),
        any::<f64>().prop_map(Value::F64),
        ".{0,40}".prop_map(Value::String),
        array().prop_map(Value::Array),
    ]
}

#[derive(Clone, Debug)]
struct Model {
    metadata: Metadata,
    tensors: Vec<(String, Vec<u64>, GgmlType)>,
}

fn model() -> impl Strategy<Value = Model> {
    let alignment = proptest::option::of((0u32..13).prop_map(|shift| 1u32 << shift));
    let keys = vec(("[a-z.]{1,12}", value()), 0..8);
    let types: Vec<GgmlType> = GgmlType::all().collect();
    let shape = (vec(1u64..4, 1..=4), proptest::sample::select(types)).prop_map(|(mut dims, ty)| {
        dims[0] *= ty.block_elements();
        (dims, ty)
    });
    let tensors = proptest::collection::btree_map(".{0,20}", shape, 0..6);
    (alignment, keys, tensors).prop_map(|(alignment, keys, tensors)| {
        let mut metadata = Metadata::new();
        if let Some(alignment) = alignment {
            metadata.insert("general.alignment", alignment);
        }
        for (key, value) in keys {
            metadata.insert(format!("k.{key}"), value);
        }
        Model { metadata, tensors: tensors.into_iter().map(|(name, (dims, ty))| (name, dims, ty)).collect() }
    })
}

fn data(index: usize, bytes: u64) -> Vec<u8> {
    (0..bytes).map(|at| (at as u8).wrapping_mul(31).wrapping_add(index as u8)).collect()
}

fn write(model: &Model) -> Vec<u8> {
    let mut writer = Writer::with_metadata(model.metadata.clone());
    for (name, dims, ty) in &model.tensors {
        writer.tensor(name, dims, *ty).unwrap();
    }
    let mut stream = writer.begin(Vec::new()).unwrap();
    let mut index = 0;
    while let Some((name, bytes)) = stream.due().map(|(name, bytes)| (name.to_owned(), bytes)) {
        for piece in data(index, bytes).chunks(100) {
            stream.write(&name, piece).unwrap();
        }
        index += 1;
    }
    stream.finish().unwrap()
}

/// Everything a caller can do with an open file; must not panic whatever the file.
fn touch(gguf: &Gguf) {
    for (key, value) in gguf.metadata().iter() {
        assert_eq!(gguf.metadata().get(key).map(Value::type_name), Some(value.type_name()));
        let _ = value.to_string();
        if let Value::Array(Array::String(strings)) = value {
            assert!(strings.iter().count() == strings.len());
        }
    }
    for tensor in gguf.tensors() {
        assert_eq!(gguf.tensor_data(tensor).unwrap().len() as u64, tensor.bytes);
        assert!(gguf.tensor(&tensor.name).is_some());
        assert_eq!(tensor.row_bytes() * tensor.rows(), tensor.bytes);
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read(model in model()) {
        let gguf = Gguf::from_vec(write(&model)).unwrap();
        // Compared in their encoded form, because a NaN is not equal to itself.
        let again = Writer::with_metadata(gguf.metadata().clone()).begin(Vec::new()).unwrap().finish().unwrap();
        let first = Writer::with_metadata(model.metadata.clone()).begin(Vec::new()).unwrap().finish().unwrap();
        prop_assert_eq!(first, again);
        prop_assert_eq!(gguf.metadata().len(), model.metadata.len());
        prop_assert_eq!(gguf.tensors().len(), model.tensors.len());
        for (index, (tensor, (name, dims, ty))) in gguf.tensors().iter().zip(&model.tensors).enumerate() {
            prop_assert_eq!((&tensor.name, &tensor.dims, tensor.ty), (name, dims, *ty));
            prop_assert_eq!(gguf.tensor_data(tensor).unwrap(), data(index, tensor.bytes));
        }
        touch(&gguf);
    }

    #[test]
    fn a_file_cut_short_is_an_error_or_lacks_only_padding(model in model(), keep in any::<prop::sample::Index>()) {
        let whole = write(&model);
        let mut cut = whole.clone();
        cut.truncate(keep.index(whole.len()));
        if let Ok(gguf) = Gguf::from_vec(cut) {
            touch(&gguf);
        }
    }

    #[test]
    fn a_changed_file_never_panics(
        model in model(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut file = write(&model);
        for (at, byte) in changes {
            let at = at.index(file.len());
            file[at] = byte;
        }
        match Gguf::from_vec(file) {
            Ok(gguf) => touch(&gguf),
            Err(error) => common::assert_one_line(&error),
        }
    }

    // Single bytes rarely hit the counts and lengths; whole words of hostile numbers do.
    #[test]
    fn hostile_numbers_anywhere_never_panic(
        model in model(),
        at in any::<prop::sample::Index>(),
        number in prop_oneof![
            Just(u64::MAX), Just(0), Just(1 << 63), Just(u64::from(u32::MAX)), (0u32..64).prop_map(|bit| 1 << bit), any::<u64>()
        ],
    ) {
        let mut file = write(&model);
        let at = at.index(file.len());
        for (byte, new) in file.iter_mut().skip(at).zip(number.to_le_bytes()) {
            *byte = new;
        }
        match Gguf::from_vec(file) {
            Ok(gguf) => touch(&gguf),
            Err(error) => common::assert_one_line(&error),
        }
    }

    #[test]
    fn noise_after_a_good_start_never_panics(version in 2u32..4, noise in vec(any::<u8>(), 0..200)) {
        let raw = common::Raw(b"GGUF".to_vec()).u32(version).bytes(&noise);
        if let Ok(gguf) = raw.open() {
            touch(&gguf);
        }
    }

    #[test]
    fn metadata_is_an_ordered_map(ops in vec((0u8..6, proptest::option::of(any::<u32>())), 0..40)) {
        let mut metadata = Metadata::new();
        let mut expected: Vec<(String, u32)> = Vec::new();
        for (key, value) in ops {
            let key = key.to_string();
            let place = expected.iter().position(|(other, _)| *other == key);
            match (value, place) {
                (Some(value), Some(place)) => expected[place].1 = value,
                (Some(value), None) => expected.push((key.clone(), value)),
                (None, Some(place)) => drop(expected.remove(place)),
                (None, None) => {}
            }
            match value {
                Some(value) => metadata.insert(key, value),
                None => drop(metadata.remove(&key)),
            }
        }
        let found: Vec<(String, u32)> =
            metadata.iter().map(|(key, _)| (key.to_owned(), metadata.u32(key).unwrap())).collect();
        prop_assert_eq!(found, expected);
    }
}
