//! `pannier pack`: a model's file, rearranged for flash and for the kernels.

use std::path::PathBuf;

use clap::Args;
use pannier::pack::pack;
use pannier_gguf::Gguf;
use serde::Serialize;

use crate::error::Result;
use crate::input;
use crate::output::{self, Output};

#[derive(Args)]
#[command(after_help = "\
Examples:
  pannier pack model.gguf model.pack.gguf

The pack is a GGUF file in the order of a pass; an expert's matrices lie side by side, and rows of quantised matrices are interleaved by
sixteen, as the kernels read them. It gives the same answers as its source, bit for bit, and decodes faster, streamed and resident.
Only Pannier reads it; other readers say that a tensor is missing. A pack of the same source that is whole is left as it is; an
interrupted run is continued.

JSON: path, bytes, sha256, reused, resumed_bytes.")]
pub struct PackArgs {
    /// A GGUF file (any part of a split one), or the name of a pulled model.
    #[arg(value_name = "IN")]
    input: String,

    /// Where the pack goes.
    #[arg(value_name = "OUT")]
    out: PathBuf,
}

#[derive(Serialize)]
struct Report {
    path: String,
    bytes: u64,
    sha256: String,
    reused: bool,
    resumed_bytes: u64,
}

pub fn run(args: &PackArgs, out: &mut Output) -> Result<()> {
    let source = Gguf::open(input::model_path(&args.input)?)?;
    let bar = output::byte_bar(Some(source.file_bytes()));
    bar.set_message("packing");
    let packed = pack(&source, &args.out, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let packed = packed?;
    let report = Report {
        path: args.out.display().to_string(),
        bytes: packed.bytes,
        sha256: packed.sha256,
        reused: packed.reused,
        resumed_bytes: packed.resumed_bytes,
    };
    out.object(&report)?;
    let what = if report.reused { "is whole and of this model already" } else { "written" };
    out.line(&format!("{}: {what}, {}", report.path, output::bytes(report.bytes)))
}
