//! Writing GGUF version 3, with as much memory as the header takes.
//!
//! Metadata and tensor declarations come first, because the directory with all offsets precedes the data; then the data
//! streams through in pieces of any size. A 20 GB conversion holds one piece at a time.

use crate::error::shown;
use crate::parse::{self, ALIGNMENT_KEY, MAGIC};
use crate::value::{Array, Value, id, with_array};
use crate::{Error, GgmlType, Metadata, Result};
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// What goes into a new file: metadata, and the declarations of its tensors.
///
/// ```
/// use pannier_gguf::{GgmlType, Gguf, Writer};
///
/// let mut writer = Writer::new();
/// writer.set("general.architecture", "llama");
/// writer.tensor("token_embd.weight", &[4, 2], GgmlType::F32)?;
/// let mut data = writer.begin(Vec::new())?;
/// data.write("token_embd.weight", &[0; 16])?; // in pieces
/// data.write("token_embd.weight", &[0; 16])?;
/// let file = data.finish()?;
/// assert_eq!(Gguf::from_vec(file)?.tensors().len(), 1);
/// # Ok::<(), pannier_gguf::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Writer {
    metadata: Metadata,
    tensors: Vec<Declared>,
    names: std::collections::HashSet<String>,
}

#[derive(Clone, Debug)]
struct Declared {
    name: String,
    dims: Vec<u64>,
    ty: GgmlType,
    bytes: u64,
}

const VERSION: u32 = 3;
const ZEROS: [u8; 4096] = [0; 4096];

impl Writer {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts from existing metadata.
    pub fn with_metadata(metadata: Metadata) -> Self {
        Writer { metadata, ..Self::default() }
    }

    /// Sets the alignment of the tensors, a power of two, under its key; without it that is 32.
    pub fn set_alignment(&mut self, alignment: u32) -> &mut Self {
        self.set(ALIGNMENT_KEY, alignment)
    }

    /// Sets a key.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<Value>) -> &mut Self {
        self.metadata.insert(key, value);
        self
    }

    /// The metadata so far.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.metadata
    }

    /// Declares the next tensor: `dims` fastest first.
    ///
    /// # Errors
    /// The name is taken or too long, or the shape does not fit the type.
    pub fn tensor(&mut self, name: impl Into<String>, dims: &[u64], ty: GgmlType) -> Result<&mut Self> {
        let name = name.into();
        parse::check_tensor_name(&name)?;
        let bytes = parse::tensor_bytes(&name, dims, ty)?;
        if !self.names.insert(name.clone()) {
            return Err(Error::DuplicateTensor { name: shown(&name) });
        }
        self.tensors.push(Declared { name, dims: dims.to_vec(), ty, bytes });
        Ok(self)
    }

    /// Writes the header to `out` and gives the sink for the tensors' data.
    ///
    /// # Errors
    /// Bad alignment, a key that is too long, sizes beyond 64 bits, or the output refuses.
    pub fn begin<W: Write>(self, out: W) -> Result<TensorStream<W>> {
        let alignment = u64::from(parse::alignment_of(&self.metadata)?);
        for (key, _) in self.metadata.iter() {
            parse::check_key(key)?;
        }
        let mut out = Counted { out, written: 0 };
        out.put(MAGIC)?;
        out.put(&VERSION.to_le_bytes())?;
        out.put(&(self.tensors.len() as u64).to_le_bytes())?;
        out.put(&(self.metadata.len() as u64).to_le_bytes())?;
        for (key, value) in self.metadata.iter() {
            out.text(key)?;
            out.value(value)?;
        }
        let mut offset = 0u64;
        for tensor in &self.tensors {
            out.text(&tensor.name)?;
            out.put(&(tensor.dims.len() as u32).to_le_bytes())?;
            for dim in &tensor.dims {
                out.put(&dim.to_le_bytes())?;
            }
            out.put(&tensor.ty.id().to_le_bytes())?;
            out.put(&offset.to_le_bytes())?;
            offset = offset
                .checked_add(tensor.bytes)
                .and_then(|end| end.checked_next_multiple_of(alignment))
                .ok_or_else(|| Error::TensorOutOfRange {
                    name: shown(&tensor.name),
                    offset,
                    bytes: tensor.bytes,
                })?;
        }
        out.pad(alignment)?;
        Ok(TensorStream { out, tensors: self.tensors.into(), got: 0, alignment })
    }

    /// Writes a file so that it is there whole or not at all: `fill` streams the data into a temporary file in the same
    /// folder, which is flushed to the disk and then renamed to `path`. On any error the temporary file is removed and
    /// whatever was at `path` stays.
    ///
    /// # Errors
    /// As [`Writer::begin`] and [`TensorStream::finish`]; those of `fill`; or the file system refuses.
    pub fn write_file<E: From<Error>>(
        self,
        path: impl AsRef<Path>,
        fill: impl FnOnce(&mut TensorStream<BufWriter<File>>) -> Result<(), E>,
    ) -> Result<(), E> {
        let path = path.as_ref();
        let in_file = |error: Error| E::from(error.in_file(path));
        let (temporary, file) = Temporary::beside(path).map_err(in_file)?;
        let mut stream = self.begin(BufWriter::with_capacity(1 << 20, file)).map_err(in_file)?;
        fill(&mut stream)?;
        let file = stream
            .finish()
            .and_then(|buffered| buffered.into_inner().map_err(|error| write_error(error.into_error())))
            .map_err(in_file)?;
        file.sync_all().map_err(|source| in_file(Error::Io { action: "flush the file", source }))?;
        drop(file);
        temporary.rename_to(path).map_err(in_file)
    }
}

/// The sink for the data of the declared tensors, in their order.
#[derive(Debug)]
pub struct TensorStream<W> {
    out: Counted<W>,
    /// The tensors that are not complete; the first is the one being written.
    tensors: std::collections::VecDeque<Declared>,
    /// How many bytes the first has.
    got: u64,
    alignment: u64,
}

impl<W: Write> TensorStream<W> {
    /// The next piece of the data of `name`, which must be the first declared tensor that is not complete.
    ///
    /// # Errors
    /// Another tensor is due, there is more data than declared, or the output refuses.
    pub fn write(&mut self, name: &str, piece: &[u8]) -> Result<()> {
        let Some(tensor) = self.tensors.front().filter(|tensor| tensor.name == name) else {
            return Err(Error::WrongTensorOrder {
                found: shown(name),
                expected: self.tensors.front().map_or("nothing".to_owned(), |due| shown(&due.name)),
            });
        };
        let got = self.got.saturating_add(piece.len() as u64);
        if got > tensor.bytes {
            return Err(Error::TooMuchTensorData { name: shown(name), declared: tensor.bytes, got });
        }
        self.out.put(piece)?;
        self.got = got;
        if got == tensor.bytes {
            self.out.pad(self.alignment)?;
            self.tensors.pop_front();
            self.got = 0;
        }
        Ok(())
    }

    /// The tensor whose data is due: its name, and how many bytes it still needs.
    pub fn due(&self) -> Option<(&str, u64)> {
        self.tensors.front().map(|tensor| (tensor.name.as_str(), tensor.bytes - self.got))
    }

    /// Bytes written so far, the header included.
    pub fn written(&self) -> u64 {
        self.out.written
    }

    /// Ends the file and gives the output back.
    ///
    /// # Errors
    /// A tensor has not all of its data, or the output refuses.
    pub fn finish(mut self) -> Result<W> {
        if let Some(tensor) = self.tensors.front() {
            return Err(Error::MissingTensorData {
                name: shown(&tensor.name),
                declared: tensor.bytes,
                got: self.got,
            });
        }
        self.out.out.flush().map_err(write_error)?;
        Ok(self.out.out)
    }
}

fn write_error(source: std::io::Error) -> Error {
    Error::Io { action: "write", source }
}

/// An output that knows its position.
#[derive(Debug)]
struct Counted<W> {
    out: W,
    written: u64,
}

impl<W: Write> Counted<W> {
    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).map_err(write_error)?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    fn pad(&mut self, alignment: u64) -> Result<()> {
        let mut left = self.written.next_multiple_of(alignment) - self.written;
        while left > 0 {
            let piece = ZEROS.get(..left.min(ZEROS.len() as u64) as usize).unwrap_or(&ZEROS);
            self.put(piece)?;
            left -= piece.len() as u64;
        }
        Ok(())
    }

    fn text(&mut self, text: &str) -> Result<()> {
        self.put(&(text.len() as u64).to_le_bytes())?;
        self.put(text.as_bytes())
    }

    fn value(&mut self, value: &Value) -> Result<()> {
        macro_rules! scalar {
            ($id:expr, $value:expr) => {{
                self.put(&u32::to_le_bytes($id))?;
                self.put(&$value.to_le_bytes())
            }};
        }
        match value {
            Value::U8(value) => scalar!(id::U8, value),
            Value::I8(value) => scalar!(id::I8, value),
            Value::U16(value) => scalar!(id::U16, value),
            Value::I16(value) => scalar!(id::I16, value),
            Value::U32(value) => scalar!(id::U32, value),
            Value::I32(value) => scalar!(id::I32, value),
            Value::F32(value) => scalar!(id::F32, value),
            Value::Bool(value) => scalar!(id::BOOL, u8::from(*value)),
            Value::U64(value) => scalar!(id::U64, value),
            Value::I64(value) => scalar!(id::I64, value),
            Value::F64(value) => scalar!(id::F64, value),
            Value::String(text) => {
                self.put(&id::STRING.to_le_bytes())?;
                self.text(text)
            }
            Value::Array(array) => {
                self.put(&id::ARRAY.to_le_bytes())?;
                self.array(array)
            }
        }
    }

    fn array(&mut self, array: &Array) -> Result<()> {
        self.put(&array.element_id().to_le_bytes())?;
        self.put(&(array.len() as u64).to_le_bytes())?;
        with_array!(array,
            packed => self.put(packed.encoded()),
            strings => self.put(strings.encoded()),
            nested => nested.arrays().iter().try_for_each(|inner| self.array(inner)))
    }
}

/// A file that is removed unless it is renamed.
struct Temporary {
    path: Option<PathBuf>,
}

impl Temporary {
    fn beside(path: &Path) -> Result<(Temporary, File)> {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let name = path.file_name().ok_or(Error::NotAFile { kind: "path without a file name" })?;
        let unique = COUNTER.fetch_add(1, Ordering::Relaxed);
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}-{unique}.part", std::process::id()));
        let temporary = path.with_file_name(hidden);
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&temporary)
            .map_err(|source| Error::Io { action: "create the file", source })?;
        Ok((Temporary { path: Some(temporary) }, file))
    }

    fn rename_to(mut self, path: &Path) -> Result<()> {
        let Some(temporary) = self.path.as_ref() else { return Ok(()) };
        std::fs::rename(temporary, path).map_err(|source| Error::Io { action: "rename the file", source })?;
        self.path = None;
        // The new name itself is durable only once its folder is; where folders cannot be synced, the data already is.
        #[cfg(unix)]
        if let Some(folder) =
            path.parent().map(|folder| if folder.as_os_str().is_empty() { Path::new(".") } else { folder })
            && let Ok(folder) = File::open(folder)
        {
            folder.sync_all().ok();
        }
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // There is nobody left to tell; the error that brought us here is the one to report.
            std::fs::remove_file(path).ok();
        }
    }
}
