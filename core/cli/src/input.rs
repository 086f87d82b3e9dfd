//! Text from arguments, files and stdin.

use std::io::Read;
use std::path::{Path, PathBuf};

use pannier::store::ModelStore;
use pannier_gguf::Gguf;
use pannier_tokenizer::Tokenizer;

use crate::error::{CliError, Result};

/// The largest text that is read whole: far above every context, and below what could exhaust a phone.
const MAX_TEXT: u64 = 1 << 30;

/// Reads a text file, or stdin for `-`.
pub fn text_file(path: &Path) -> Result<String> {
    let stdin = path == Path::new("-");
    let mut bytes = Vec::new();
    let read = if stdin {
        std::io::stdin().lock().take(MAX_TEXT + 1).read_to_end(&mut bytes)
    } else {
        // Opening a folder works on Unix, and reading it then says something odd.
        if path.is_dir() {
            return Err(CliError::failed(format!("{} is a directory, not a text file", path.display())));
        }
        std::fs::File::open(path).and_then(|f| f.take(MAX_TEXT + 1).read_to_end(&mut bytes))
    };
    read.map_err(|e| CliError::io("read", path, &e))?;
    let name = if stdin { "stdin".to_owned() } else { path.display().to_string() };
    if bytes.len() as u64 > MAX_TEXT {
        return Err(CliError::failed(format!("{name} has more than {MAX_TEXT} bytes of text")));
    }
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        let byte = e.as_bytes().get(at).copied().unwrap_or(0);
        CliError::failed(format!("{name} is not valid UTF-8: byte 0x{byte:02x} at offset {at}"))
    })
}

/// `TEXT` or `--file P`: exactly one of them, which clap sees to.
pub fn text(direct: Option<&str>, file: Option<&PathBuf>) -> Result<String> {
    match (direct, file) {
        (Some(text), _) => Ok(text.to_owned()),
        (None, Some(path)) => text_file(path),
        (None, None) => Err(CliError::failed("no text given")),
    }
}

/// The file that `-m` means.
pub fn model_path(name: &str) -> Result<PathBuf> {
    Ok(ModelStore::user()?.locate(name)?)
}

/// A model's metadata and its tokenizer, without its weights.
pub fn tokenizer(name: &str) -> Result<Tokenizer> {
    let path = model_path(name)?;
    let gguf = Gguf::open(&path)?;
    Tokenizer::from_metadata(gguf.metadata())
        .map_err(|e| CliError::failed(format!("{}: {e}", path.display())))
}

/// A secret from the environment: never on the command line, where every process of the machine can read it.
pub fn secret(variable: &str) -> Result<String> {
    match std::env::var(variable) {
        Ok(value) if !value.is_empty() => Ok(value),
        Ok(_) => Err(CliError::failed(format!("the environment variable {variable} is empty"))),
        Err(_) => Err(CliError::failed(format!("the environment variable {variable} is not set"))),
    }
}
