//! One file per subcommand: its arguments, its work, its output.

pub mod bench;
pub mod chat;
pub mod convert;
pub mod forge;
pub mod inspect;
pub mod logits;
pub mod perplexity;
pub mod pull;
pub mod quantize;
pub mod run;
pub mod tokenize;
