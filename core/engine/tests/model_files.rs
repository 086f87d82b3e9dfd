//! Model files that are wrong in one thing: the error names it.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod golden_support;

use golden_support::tiny;
use pannier::memory::Accountant;
use pannier::model::{LoadedModel, ModelOptions};
use pannier::{Error, Result};
use pannier_gguf::{GgmlType, Gguf, Value, Writer};
use std::sync::Arc;

/// A tensor of the file, as it may be changed.
struct Tensor {
    name: String,
    dims: Vec<u64>,
    ty: GgmlType,
    data: Vec<u8>,
}

/// A copy of a small real file with something changed.
struct File {
    writer: Writer,
    tensors: Vec<Tensor>,
}

impl File {
    fn new() -> File {
        let gguf = Gguf::open(tiny("arch-qwen3-dense.gguf")).unwrap();
        let tensors = gguf
            .tensors()
            .iter()
            .map(|t| Tensor {
                name: t.name.clone(),
                dims: t.dims.clone(),
                ty: t.ty,
                data: gguf.tensor_data(t).unwrap().to_vec(),
            })
            .collect();
        File { writer: Writer::with_metadata(gguf.metadata().clone()), tensors }
    }

    fn set(mut self, key: &str, value: impl Into<Value>) -> File {
        self.writer.set(key, value);
        self
    }

    fn remove_key(mut self, key: &str) -> File {
        self.writer.metadata_mut().remove(key).unwrap();
        self
    }

    fn remove(mut self, name: &str) -> File {
        self.tensors.retain(|tensor| tensor.name != name);
        self
    }

    fn change(mut self, name: &str, dims: &[u64], ty: GgmlType) -> File {
        let tensor = self.tensors.iter_mut().find(|tensor| tensor.name == name).unwrap();
        let rows: u64 = dims[1..].iter().product();
        tensor.data = vec![0; (ty.row_bytes(dims[0]).unwrap() * rows) as usize];
        (tensor.dims, tensor.ty) = (dims.to_vec(), ty);
        self
    }

    fn load(mut self) -> Result<LoadedModel> {
        for tensor in &self.tensors {
            self.writer.tensor(tensor.name.clone(), &tensor.dims, tensor.ty).unwrap();
        }
        let mut stream = self.writer.begin(Vec::new()).unwrap();
        for tensor in &self.tensors {
            stream.write(&tensor.name, &tensor.data).unwrap();
        }
        let gguf = Gguf::from_vec(stream.finish().unwrap()).unwrap();
        LoadedModel::new(Arc::new(gguf), &ModelOptions::default(), &Accountant::new(None))
    }
}

#[test]
fn the_unchanged_copy_loads() {
    let model = File::new().load().unwrap();
    let spec = model.spec();
    assert_eq!((spec.layers, spec.embd, spec.vocab, spec.context), (2, 256, 128, 256));
}

#[test]
fn a_missing_tensor_is_named_with_its_shape() {
    for (name, shape) in [
        ("blk.1.attn_k.weight", vec![256, 64]),
        ("blk.0.attn_k_norm.weight", vec![64]),
        ("blk.1.ffn_down.weight", vec![384, 256]),
        ("output_norm.weight", vec![256]),
    ] {
        let error = File::new().remove(name).load().unwrap_err();
        assert!(
            matches!(&error, Error::MissingTensor { name: n, expected } if n == name && *expected == shape),
            "{error}"
        );
    }
    let error = File::new().remove("token_embd.weight").load().unwrap_err();
    assert!(matches!(&error, Error::MissingTensor { name, .. } if name == "token_embd.weight"), "{error}");
}

#[test]
fn without_an_output_matrix_the_embedding_is_the_head() {
    assert!(File::new().remove("output.weight").load().is_ok());
}

#[test]
fn a_tensor_of_another_shape_is_named_with_both_shapes() {
    for (name, dims) in [
        ("blk.0.attn_q.weight", vec![256u64, 128]),
        ("blk.1.ffn_up.weight", vec![128, 384]),
        ("blk.0.attn_norm.weight", vec![255]),
        ("output.weight", vec![256, 127]),
        ("blk.0.attn_output.weight", vec![256, 256, 2]),
        ("token_embd.weight", vec![128, 128]),
    ] {
        let error = File::new().change(name, &dims, GgmlType::F32).load().unwrap_err();
        assert!(
            matches!(&error, Error::TensorShape { name: n, found, .. } if n == name && *found == dims),
            "{error}"
        );
        assert!(error.to_string().contains(&format!("{dims:?}")), "{error}");
    }
}

#[test]
fn a_type_without_kernels_is_named() {
    let error = File::new()
        .change("blk.1.attn_v.weight", &[256, 64], GgmlType::IQ2_XXS)
        .load()
        .unwrap_err()
        .to_string();
    assert!(error.contains("blk.1.attn_v.weight") && error.contains("IQ2_XXS"), "{error}");
}

#[test]
fn an_unknown_architecture_is_named_with_those_that_are_known() {
    let error = File::new().set("general.architecture", "perceptron").load().unwrap_err().to_string();
    assert!(error.contains("perceptron") && error.contains("qwen3"), "{error}");
    let error = File::new().remove_key("general.architecture").load().unwrap_err().to_string();
    assert!(error.contains("general.architecture"), "{error}");
}

#[test]
fn impossible_hyperparameters_are_refused_by_key() {
    for (key, value) in [
        ("qwen3.block_count", Value::U32(0)),
        ("qwen3.block_count", Value::U32(u32::MAX)),
        ("qwen3.embedding_length", Value::U32(u32::MAX)),
        ("qwen3.embedding_length", Value::I32(-1)),
        ("qwen3.attention.head_count", Value::U32(0)),
        ("qwen3.attention.head_count_kv", Value::U32(3)),
        ("qwen3.attention.key_length", Value::U32(0)),
        ("qwen3.attention.layer_norm_rms_epsilon", Value::F32(f32::NAN)),
        ("qwen3.attention.layer_norm_rms_epsilon", Value::String("small".into())),
        ("qwen3.rope.dimension_count", Value::U32(63)),
        ("qwen3.rope.dimension_count", Value::U32(66)),
        ("qwen3.rope.scaling.type", Value::String("spiral".into())),
        ("qwen3.context_length", Value::U32(0)),
    ] {
        let error = File::new().set(key, value).load().unwrap_err().to_string();
        assert!(error.contains(key), "{key}: {error}");
    }
    for key in ["qwen3.block_count", "qwen3.feed_forward_length", "qwen3.attention.layer_norm_rms_epsilon"] {
        let error = File::new().remove_key(key).load().unwrap_err().to_string();
        assert!(error.contains(key), "{key}: {error}");
    }
}

/// Nothing is allocated for what a file only claims to have.
#[test]
fn huge_claims_fail_on_the_first_tensor_that_is_not_there() {
    let error = File::new().set("qwen3.block_count", 4096u32).load().unwrap_err();
    assert!(matches!(&error, Error::MissingTensor { name, .. } if name.starts_with("blk.2.")), "{error}");
}
