//! The input model's weights, by element.

use crate::positional::read_at;
use crate::{Error, Result};
use pannier_gguf::{Gguf, TensorInfo};
use pannier_kernels::format;
use std::fs::File;

/// Reads tensors from the files of a model (from memory for a model made from bytes).
pub(super) struct Source<'a> {
    model: &'a Gguf,
    files: Vec<Option<File>>,
}

impl<'a> Source<'a> {
    pub fn new(model: &'a Gguf) -> Result<Source<'a>> {
        let open = |path| File::open(path).map_err(Error::io("open", path));
        let files =
            model.shards().iter().map(|shard| shard.path().map(open).transpose()).collect::<Result<_>>()?;
        Ok(Source { model, files })
    }

    /// The bytes of `count` elements from `first`, both whole blocks.
    pub fn read(
        &self,
        tensor: &TensorInfo,
        first: u64,
        count: usize,
        take: impl FnOnce(&[u8]),
    ) -> Result<()> {
        let (block, block_bytes) = (tensor.ty.block_elements(), tensor.ty.block_bytes());
        let start = first / block * block_bytes;
        // A piece is at most a few MiB.
        let bytes = (count as u64 / block * block_bytes) as usize;
        match self.files.get(tensor.shard) {
            Some(Some(file)) => {
                let mut buffer = vec![0; bytes];
                let path = self.model.shard_path(tensor.shard).unwrap_or(std::path::Path::new(""));
                read_at(file, &mut buffer, tensor.offset + start).map_err(Error::io("read", path))?;
                take(&buffer);
            }
            _ => {
                let data = self.model.tensor_data(tensor)?;
                let start = usize::try_from(start).unwrap_or(usize::MAX);
                take(data.get(start..start.saturating_add(bytes)).unwrap_or_default());
            }
        }
        Ok(())
    }

    /// Decodes elements from `first` on.
    pub fn decode(&self, tensor: &TensorInfo, first: u64, out: &mut [f32]) -> Result<()> {
        let Some(format) = format(tensor.ty.id()) else {
            return Err(Error::CannotDecode { tensor: tensor.name.clone(), ty: tensor.ty });
        };
        self.read(tensor, first, out.len(), |bytes| format.decode_row(bytes, out))
    }
}
