//! Failures as one line.

use std::fmt;
use std::io::Write;
use std::path::Path;

pub type Result<T, E = CliError> = std::result::Result<T, E>;

/// Why a command failed.
#[derive(Debug)]
pub enum CliError {
    /// In words for a person.
    Failed(String),
    /// Ctrl-C.
    Interrupted,
    /// Whoever read our stdout has gone away; there is nobody to tell.
    ReaderGone,
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CliError::Failed(what) => f.write_str(what),
            CliError::Interrupted => f.write_str("interrupted"),
            CliError::ReaderGone => f.write_str("nobody reads the output"),
        }
    }
}

impl CliError {
    pub fn failed(what: impl Into<String>) -> Self {
        CliError::Failed(what.into())
    }

    /// A file operation that failed.
    pub fn io(action: &str, path: &Path, e: &std::io::Error) -> Self {
        CliError::Failed(format!("cannot {action} {}: {e}", path.display()))
    }

    pub fn code(&self) -> u8 {
        match self {
            CliError::Failed(_) => 1,
            CliError::Interrupted => 130,
            CliError::ReaderGone => 141,
        }
    }
}

impl From<pannier::Error> for CliError {
    fn from(e: pannier::Error) -> Self {
        match e {
            pannier::Error::Cancelled => CliError::Interrupted,
            other => CliError::Failed(other.to_string()),
        }
    }
}

impl From<pannier::store::StoreError> for CliError {
    fn from(e: pannier::store::StoreError) -> Self {
        CliError::Failed(e.to_string())
    }
}

impl From<pannier_forge::Error> for CliError {
    fn from(e: pannier_forge::Error) -> Self {
        match e {
            pannier_forge::Error::Cancelled => CliError::Interrupted,
            other => CliError::Failed(other.to_string()),
        }
    }
}

impl From<pannier_gguf::Error> for CliError {
    fn from(e: pannier_gguf::Error) -> Self {
        CliError::Failed(e.to_string())
    }
}

impl From<pannier_tokenizer::TokenizerError> for CliError {
    fn from(e: pannier_tokenizer::TokenizerError) -> Self {
        CliError::Failed(e.to_string())
    }
}

/// Says `what` on stderr, in one line whatever is in it. File names and keys may hold anything, also terminal codes.
pub fn report(what: &str) {
    let line: String = what.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    print_to_stderr(&format!("pannier: {}\n", line.trim()));
}

/// Unlike `eprint!`, no panic when stderr is closed.
pub fn print_to_stderr(text: &str) {
    let mut stderr = std::io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes());
    let _ = stderr.flush();
}
