//! `pannier tokenize`: text to ids.

use std::path::PathBuf;

use clap::Args;
use pannier_tokenizer::EncodeOptions;
use serde::Serialize;

use crate::args::ModelArg;
use crate::error::Result;
use crate::input;
use crate::output::Output;

#[derive(Args)]
#[command(after_help = "\
Examples:
  pannier tokenize -m smollm2 'Hello, world'
  pannier tokenize -m model.gguf --file letter.txt --json
  echo -n 'from a pipe' | pannier tokenize -m smollm2 --file -

Text such as <|im_start|> is read as the special token it names. JSON: ids, pieces (in the vocabulary's own spelling).")]
pub struct TokenizeArgs {
    #[command(flatten)]
    model: ModelArg,

    /// The text.
    #[arg(
        value_name = "TEXT",
        required_unless_present = "file",
        conflicts_with = "file",
        allow_hyphen_values = true
    )]
    text: Option<String>,

    /// Read the text from a file; `-` is stdin.
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,

    /// Do not add the BOS and EOS tokens that the model wants.
    #[arg(long)]
    no_special: bool,
}

#[derive(Serialize)]
struct Report {
    ids: Vec<u32>,
    pieces: Vec<String>,
}

pub fn run(args: &TokenizeArgs, out: &mut Output) -> Result<()> {
    let text = input::text(args.text.as_deref(), args.file.as_ref())?;
    let tokenizer = input::tokenizer(&args.model.model)?;
    let options = EncodeOptions { add_special: !args.no_special, parse_special: true };
    let ids = tokenizer.encode(&text, options);
    let pieces: Vec<String> =
        ids.iter().map(|&id| tokenizer.piece(id).unwrap_or_default().to_owned()).collect();
    if !out.json() {
        let mut lines = String::new();
        for (id, piece) in ids.iter().zip(&pieces) {
            lines.push_str(&format!("{id:>7}  {}\n", piece.escape_debug()));
        }
        out.text(&lines)?;
    }
    out.object(&Report { ids, pieces })
}
