//! Any bytes at all: open them, and use everything a caller can use of what opened.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pannier_gguf::{Array, Gguf, Value, Writer};

fuzz_target!(|data: &[u8]| {
    let gguf = match Gguf::from_vec(data.to_vec()) {
        Ok(gguf) => gguf,
        Err(error) => {
            assert!(!error.to_string().chars().any(char::is_control), "{error:?}");
            return;
        }
    };
    for (key, value) in gguf.metadata().iter() {
        assert!(gguf.metadata().get(key).is_some());
        let _ = value.to_string();
        if let Value::Array(Array::String(strings)) = value {
            assert_eq!((0..strings.len()).filter(|&index| strings.get(index).is_some()).count(), strings.len());
        }
    }
    let mut writer = Writer::with_metadata(gguf.metadata().clone());
    for tensor in gguf.tensors() {
        assert_eq!(gguf.tensor_data(tensor).map(|data| data.len() as u64).ok(), Some(tensor.bytes));
        writer.tensor(&tensor.name, &tensor.dims, tensor.ty).expect("what was read can be declared");
    }
    // A small file may set a huge alignment; padding it out here would only cost time.
    if gguf.alignment() > 4096 {
        return;
    }
    let mut stream = writer.begin(Vec::new()).expect("what was read can be written");
    for tensor in gguf.tensors() {
        stream.write(&tensor.name, gguf.tensor_data(tensor).expect("checked above")).expect("the same size");
    }
    let again = Gguf::from_vec(stream.finish().expect("all tensors were written")).expect("what was written can be read");
    assert_eq!(again.tensors().len(), gguf.tensors().len());
    assert_eq!(again.metadata().len(), gguf.metadata().len());
});
