//! `pannier convert`: a checkpoint in the Hugging Face layout to one GGUF file.

use std::path::PathBuf;

use clap::Args;
use pannier_forge::{ConvertOptions, convert};
use pannier_gguf::GgmlType;
use serde::Serialize;

use crate::cmd::forge::Watch;
use crate::error::{CliError, Result};
use crate::output::{self, Output};

#[derive(Args)]
#[command(after_help = "\
Examples:
  pannier convert ./Qwen3-0.6B qwen3-0.6b-f16.gguf
  pannier convert ./gemma-3-1b-it gemma.gguf --dtype bf16

The folder holds config.json, *.safetensors and the tokenizer files, as they are published.
An interrupted run continues where it was when it is started again with the same arguments.
JSON: bytes, architecture, tensors, warnings.")]
pub struct ConvertArgs {
    /// The checkpoint's folder.
    #[arg(value_name = "HF_DIR")]
    folder: PathBuf,

    /// The file to write.
    #[arg(value_name = "OUT")]
    output: PathBuf,

    /// The type of matrices: f16, bf16, f32 or q8_0.
    #[arg(long, value_name = "TYPE", default_value = "f16")]
    dtype: String,

    /// The model's name in the file; by default that of the folder.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// Threads; by default one per core.
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

#[derive(Serialize)]
struct Report {
    bytes: u64,
    architecture: String,
    tensors: usize,
    warnings: Vec<String>,
}

pub fn run(args: &ConvertArgs, out: &mut Output) -> Result<()> {
    let dtype = GgmlType::from_name(&args.dtype)
        .ok_or_else(|| CliError::failed(format!("unknown type {:?}: f16, bf16, f32 or q8_0", args.dtype)))?;
    let threads = args.threads.map_or(0, usize::from);
    let options = ConvertOptions { dtype, name: args.name.clone(), threads };
    let watch = Watch::start("converting");
    let report = convert(&args.folder, &args.output, &options, &watch)?;
    watch.finish();
    let warnings: Vec<String> = report.warnings.iter().map(ToString::to_string).collect();
    for warning in &warnings {
        output::note(&format!("warning: {warning}"));
    }
    let size = output::bytes(report.bytes);
    out.line(&format!("{}: {} tensors, {size}", report.architecture, report.tensors))?;
    out.object(&Report {
        bytes: report.bytes,
        architecture: report.architecture,
        tensors: report.tensors,
        warnings,
    })
}
