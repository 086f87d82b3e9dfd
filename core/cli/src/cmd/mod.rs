//! One file per subcommand: its arguments, its work, its output.

pub mod bench;
pub mod calibrate;
pub mod chat;
pub mod convert;
pub mod evaluate;
pub mod forge;
pub mod inspect;
pub mod logits;
pub mod pack;
pub mod perplexity;
pub mod plan;
pub mod pull;
pub mod quantize;
pub mod replay;
pub mod run;
pub mod tokenize;
