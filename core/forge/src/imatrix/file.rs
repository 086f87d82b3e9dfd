//! Importance matrix files.

use super::{Entry, Imatrix, ImatrixError};
use crate::{Error, Result};
use pannier_gguf::{GgmlType, Gguf, TensorInfo, Writer};
use std::collections::BTreeMap;
use std::path::Path;

const SQUARES: &str = ".in_sum2";
const MAGNITUDES: &str = ".in_abs";
const COUNTS: &str = ".counts";

impl Imatrix {
    /// Reads either form of file.
    ///
    /// # Errors
    /// [`Error::Imatrix`] with what is wrong, or the system refuses.
    pub fn open(path: impl AsRef<Path>) -> Result<Imatrix> {
        let path = path.as_ref();
        let magic = {
            let mut magic = [0; 4];
            let mut file = std::fs::File::open(path).map_err(Error::io("open", path))?;
            // A shorter file is no GGUF file, and the other reader says what it is.
            std::io::Read::read_exact(&mut file, &mut magic).ok();
            magic
        };
        let legacy = if &magic == b"GGUF" {
            None
        } else {
            Some(std::fs::read(path).map_err(Error::io("read", path))?)
        };
        let read = || match legacy {
            Some(bytes) => Imatrix::from_legacy(&bytes),
            None => Imatrix::from_gguf(&Gguf::open(path)?),
        };
        read().map_err(|fault| Error::Imatrix { path: path.to_path_buf(), fault })
    }

    /// From an open GGUF file.
    ///
    /// # Errors
    /// It is of another kind, or its tensors do not fit each other.
    pub fn from_gguf(file: &Gguf) -> Result<Imatrix, ImatrixError> {
        let metadata = file.metadata();
        let kind = metadata.opt_str("general.type")?.unwrap_or("model");
        if kind != "imatrix" {
            return Err(ImatrixError::NotAnImatrix { found: kind.to_owned() });
        }
        let mut entries = BTreeMap::new();
        for sums in file.tensors() {
            let Some(name) = sums.name.strip_suffix(SQUARES) else { continue };
            let values = |suffix: &str| -> Result<Vec<f32>, ImatrixError> {
                file.tensor(&format!("{name}{suffix}")).map_or(Ok(Vec::new()), |tensor| floats(file, tensor))
            };
            let (squares, counts) = (floats(file, sums)?, values(COUNTS)?);
            let mismatch = || ImatrixError::Mismatch {
                name: name.to_owned(),
                sums: squares.len(),
                matrices: counts.len(),
            };
            let columns = sums.dims.first().and_then(|columns| usize::try_from(*columns).ok());
            let columns = columns.ok_or_else(mismatch)?;
            let entry = Entry::new(columns, squares.clone(), values(MAGNITUDES)?, counts.clone());
            let entry = entry.ok_or_else(mismatch)?;
            entry.check().map_err(|fault| ImatrixError::Value { name: name.to_owned(), fault })?;
            entries.insert(name.to_owned(), entry);
        }
        if entries.is_empty() {
            return Err(ImatrixError::Empty);
        }
        let datasets = metadata.opt_strings("imatrix.datasets")?;
        Ok(Imatrix {
            entries,
            datasets: datasets.map(|names| names.iter().map(str::to_owned).collect()).unwrap_or_default(),
            chunks: metadata.opt_u32("imatrix.chunk_count")?.unwrap_or(0),
            chunk_tokens: metadata.opt_u32("imatrix.chunk_size")?.unwrap_or(0),
        })
    }

    /// From the older binary form:
    ///
    /// ```text
    /// i32 entries, then for each: i32 length + name, i32 calls, i32 values, f32 × values (means times calls)
    /// optionally: i32 chunks, i32 length + data set
    /// ```
    /// It does not say how many experts an entry has; that comes from the model's tensor.
    ///
    /// # Errors
    /// It is not such a file, or ends too early.
    pub fn from_legacy(bytes: &[u8]) -> Result<Imatrix, ImatrixError> {
        let mut reader = Reader { bytes, at: 0 };
        let count = reader.count("the number of entries", 1 << 20)?;
        let mut imatrix = Imatrix::default();
        for index in 0..count {
            let name = reader.text("the name of an entry", index)?;
            let calls = reader.i32("the number of calls")?;
            let values = reader.count("the number of values", 1 << 28)?;
            let raw = reader.take("the values of an entry", values.saturating_mul(4))?;
            let sums = raw.as_chunks::<4>().0.iter().map(|raw| f32::from_le_bytes(*raw)).collect();
            let calls = if calls > 0 { calls as f32 } else { 1.0 };
            let entry = Entry::new(values, sums, Vec::new(), vec![calls]);
            let entry =
                entry.ok_or(ImatrixError::Mismatch { name: name.clone(), sums: values, matrices: 1 })?;
            entry.check().map_err(|fault| ImatrixError::Value { name: name.clone(), fault })?;
            imatrix.entries.insert(name, entry);
        }
        if reader.at < bytes.len() {
            imatrix.chunks = reader.count("the number of chunks", i32::MAX)? as u32;
            if reader.at < bytes.len() {
                imatrix.datasets.push(reader.text("the name of the data set", 0)?);
            }
        }
        if imatrix.entries.is_empty() {
            return Err(ImatrixError::Empty);
        }
        Ok(imatrix)
    }

    /// Writes the GGUF form.
    ///
    /// # Errors
    /// The system refuses.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let mut writer = Writer::new();
        writer.set("general.type", "imatrix");
        writer.set("imatrix.datasets", self.datasets.clone());
        writer.set("imatrix.chunk_count", self.chunks);
        writer.set("imatrix.chunk_size", self.chunk_tokens);
        let parts = |entry: &Entry| {
            let mut parts = vec![(SQUARES, entry.sum_squares.clone()), (COUNTS, entry.counts.clone())];
            if !entry.sum_magnitudes.is_empty() {
                parts.push((MAGNITUDES, entry.sum_magnitudes.clone()));
            }
            parts
        };
        for (name, entry) in &self.entries {
            let matrices = entry.counts.len() as u64;
            for (suffix, _) in parts(entry) {
                let columns = if suffix == COUNTS { 1 } else { entry.columns as u64 };
                writer.tensor(format!("{name}{suffix}"), &[columns, matrices], GgmlType::F32)?;
            }
        }
        writer.write_file(path, |out| {
            for (name, entry) in &self.entries {
                for (suffix, values) in parts(entry) {
                    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                    out.write(&format!("{name}{suffix}"), &bytes).map_err(|error| error.in_file(path))?;
                }
            }
            Ok(())
        })
    }
}

fn floats(file: &Gguf, tensor: &TensorInfo) -> Result<Vec<f32>, ImatrixError> {
    if tensor.ty != GgmlType::F32 {
        return Err(ImatrixError::NotAnImatrix { found: format!("with {} tensors", tensor.ty) });
    }
    let (raw, _) = file.tensor_data(tensor)?.as_chunks::<4>();
    Ok(raw.iter().map(|raw| f32::from_le_bytes(*raw)).collect())
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, what: &'static str, needed: usize) -> Result<&'a [u8], ImatrixError> {
        let taken = self.at.checked_add(needed).and_then(|end| self.bytes.get(self.at..end));
        let available = self.bytes.len().saturating_sub(self.at);
        let taken = taken.ok_or(ImatrixError::Truncated { what, offset: self.at, needed, available })?;
        self.at += needed;
        Ok(taken)
    }

    fn i32(&mut self, what: &'static str) -> Result<i32, ImatrixError> {
        let (raw, _) = self.take(what, 4)?.as_chunks::<4>();
        Ok(raw.first().map_or(0, |raw| i32::from_le_bytes(*raw)))
    }

    fn count(&mut self, what: &'static str, limit: i32) -> Result<usize, ImatrixError> {
        let value = self.i32(what)?;
        if !(0..=limit).contains(&value) {
            return Err(ImatrixError::BadCount { what, value: value.into() });
        }
        Ok(value as usize)
    }

    fn text(&mut self, what: &'static str, entry: usize) -> Result<String, ImatrixError> {
        let len = self.count(what, 1 << 16)?;
        let text = std::str::from_utf8(self.take(what, len)?).map_err(|_| ImatrixError::BadName { entry })?;
        Ok(text.to_owned())
    }
}
