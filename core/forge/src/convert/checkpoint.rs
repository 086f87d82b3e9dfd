//! Safetensors files: where each tensor is, and reading parts of it.
//!
//! ```text
//! u64 length of the header, the header (JSON: name -> dtype, shape, [start, end]), then the data
//! ```
//! Parsed here rather than with the `safetensors` crate, which wants the whole file in memory or mapped: pages of a mapping count
//! as resident memory, and a file that shrinks meanwhile would end the process.

use super::ConvertError;
use crate::positional::read_at;
use crate::{Error, Result};
use half::{bf16, f16};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

/// The format's own limit on headers.
const MAX_HEADER: u64 = 100_000_000;

/// Element types that occur in checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dtype {
    F32,
    F16,
    BF16,
    U8,
    /// Something that only matters if the tensor is used.
    Other(u64),
}

impl Dtype {
    fn parse(name: &str) -> Option<Dtype> {
        Some(match name {
            "F32" => Dtype::F32,
            "F16" => Dtype::F16,
            "BF16" => Dtype::BF16,
            "U8" => Dtype::U8,
            "I8" | "BOOL" | "F8_E4M3" | "F8_E5M2" | "F8_E8M0" => Dtype::Other(1),
            "I16" | "U16" => Dtype::Other(2),
            "I32" | "U32" => Dtype::Other(4),
            "I64" | "U64" | "F64" | "C64" => Dtype::Other(8),
            _ => return None,
        })
    }

    pub fn bytes(self) -> u64 {
        match self {
            Dtype::F32 => 4,
            Dtype::F16 | Dtype::BF16 => 2,
            Dtype::U8 => 1,
            Dtype::Other(bytes) => bytes,
        }
    }
}

/// One tensor.
#[derive(Debug, Clone)]
pub(super) struct Tensor {
    pub name: String,
    pub dtype: Dtype,
    /// Slowest dimension first.
    pub shape: Vec<u64>,
    file: usize,
    /// From the start of the file.
    offset: u64,
}

/// All files of a checkpoint.
pub(super) struct Checkpoint {
    files: Vec<(PathBuf, File)>,
    tensors: BTreeMap<String, Tensor>,
}

impl Checkpoint {
    pub fn open(folder: &Path) -> Result<Checkpoint> {
        let mut checkpoint = Checkpoint { files: Vec::new(), tensors: BTreeMap::new() };
        for name in shard_names(folder)? {
            checkpoint.add(&folder.join(name))?;
        }
        Ok(checkpoint)
    }

    fn add(&mut self, path: &Path) -> Result<()> {
        let file = File::open(path).map_err(Error::io("open", path))?;
        let size = file.metadata().map_err(Error::io("look at", path))?.len();
        let bad = |why: String| Error::from(ConvertError::BadFile { path: path.to_path_buf(), why });
        let mut length = [0; 8];
        if size < 8 {
            return Err(bad(format!("truncated: {size} bytes are no safetensors file")));
        }
        read_at(&file, &mut length, 0).map_err(Error::io("read", path))?;
        let length = u64::from_le_bytes(length);
        if length > MAX_HEADER || length > size - 8 {
            return Err(bad(format!(
                "truncated or no safetensors file: the header claims {length} of {size} bytes"
            )));
        }
        let mut header = vec![0; length as usize];
        read_at(&file, &mut header, 8).map_err(Error::io("read", path))?;
        let header: Value =
            serde_json::from_slice(&header).map_err(|error| bad(format!("header is not JSON: {error}")))?;
        let Value::Object(header) = header else { return Err(bad("header is no JSON object".to_owned())) };
        let (data, file_index) = (8 + length, self.files.len());
        for (name, entry) in header {
            if name == "__metadata__" {
                continue;
            }
            let shown: String = name.chars().take(120).collect();
            let tensor = parse_entry(name, &entry, file_index, data, size)
                .map_err(|why| bad(format!("tensor {shown:?}: {why}")))?;
            if self.tensors.insert(tensor.name.clone(), tensor).is_some() {
                return Err(bad(format!("tensor {shown:?} appears twice")));
            }
        }
        self.files.push((path.to_path_buf(), file));
        Ok(())
    }

    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|(path, _)| path.as_path())
    }

    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.tensors.values()
    }

    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(name)
    }

    /// The tensor's bytes from element `first` on.
    pub fn read_raw(&self, tensor: &Tensor, first: u64, out: &mut [u8]) -> Result<()> {
        let Some((path, file)) = self.files.get(tensor.file) else { return Ok(()) };
        // Recipes stay inside the shape, and the shape was found inside the file.
        read_at(file, out, tensor.offset + first * tensor.dtype.bytes()).map_err(Error::io("read", path))
    }

    /// Elements from `first` on, as f32.
    pub fn read(&self, tensor: &Tensor, first: u64, out: &mut [f32]) -> Result<()> {
        let mut raw = vec![0; out.len() * tensor.dtype.bytes() as usize];
        self.read_raw(tensor, first, &mut raw)?;
        match tensor.dtype {
            Dtype::F32 => {
                for (out, raw) in out.iter_mut().zip(raw.as_chunks::<4>().0) {
                    *out = f32::from_le_bytes(*raw);
                }
            }
            Dtype::F16 => {
                for (out, raw) in out.iter_mut().zip(raw.as_chunks::<2>().0) {
                    *out = f16::from_le_bytes(*raw).to_f32();
                }
            }
            Dtype::BF16 => {
                for (out, raw) in out.iter_mut().zip(raw.as_chunks::<2>().0) {
                    *out = bf16::from_le_bytes(*raw).to_f32();
                }
            }
            other => {
                let dtype = format!("{other:?}");
                return Err(ConvertError::BadDtype { name: tensor.name.clone(), dtype }.into());
            }
        }
        Ok(())
    }
}

/// The files of the checkpoint: those that the index names, else the single one, else all there are.
fn shard_names(folder: &Path) -> Result<Vec<String>> {
    let missing = |what: &str| ConvertError::Missing { folder: folder.to_path_buf(), what: what.to_owned() };
    const INDEX: &str = "model.safetensors.index.json";
    if let Some(index) = super::config::json(folder, INDEX)? {
        let map = index.get("weight_map").and_then(Value::as_object).ok_or_else(|| {
            ConvertError::BadFile { path: folder.join(INDEX), why: "has no weight_map".to_owned() }
        })?;
        let names: std::collections::BTreeSet<&str> = map.values().filter_map(Value::as_str).collect();
        for name in &names {
            // A name with a path in it could point anywhere on the disk.
            if name.contains(['/', '\\']) || !folder.join(name).is_file() {
                return Err(missing(&format!("the shard {name:?}")).into());
            }
        }
        return Ok(names.into_iter().map(str::to_owned).collect());
    }
    if folder.join("model.safetensors").is_file() {
        return Ok(vec!["model.safetensors".to_owned()]);
    }
    let entries = std::fs::read_dir(folder).map_err(Error::io("list", folder))?;
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.ends_with(".safetensors") && !name.starts_with('.'))
        .collect();
    names.sort();
    if names.is_empty() {
        return Err(missing("a .safetensors file").into());
    }
    Ok(names)
}

fn parse_entry(name: String, entry: &Value, file: usize, data: u64, size: u64) -> Result<Tensor, String> {
    let dtype = entry.get("dtype").and_then(Value::as_str).ok_or("has no dtype")?;
    let dtype = Dtype::parse(dtype).ok_or_else(|| format!("has the unknown dtype {dtype:?}"))?;
    let list =
        |key: &str| -> Option<Vec<u64>> { entry.get(key)?.as_array()?.iter().map(Value::as_u64).collect() };
    let shape = list("shape").ok_or("has no shape")?;
    let offsets = list("data_offsets").ok_or("has no data_offsets")?;
    let [start, end] = offsets.as_slice() else { return Err("data_offsets are not two numbers".to_owned()) };
    let elements = shape.iter().try_fold(1u64, |product, dim| product.checked_mul(*dim));
    let bytes = elements.and_then(|elements| elements.checked_mul(dtype.bytes()));
    if bytes.is_none() || end.checked_sub(*start) != bytes {
        return Err(format!("has the shape {shape:?} but bytes {start} to {end}"));
    }
    if data.checked_add(*end).is_none_or(|end| end > size) {
        return Err(format!("ends at byte {end} of the data, but the file is shorter: download it again"));
    }
    Ok(Tensor { name, dtype, shape, file, offset: data + start })
}
