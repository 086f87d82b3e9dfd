//! One file per subcommand: its arguments, its work, its output.

pub mod inspect;
pub mod pull;
pub mod tokenize;
