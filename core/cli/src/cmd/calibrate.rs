//! `pannier calibrate`: activation statistics for `pannier quantize --imatrix`.

use std::path::{Path, PathBuf};

use clap::Args;
use pannier_forge::imatrix::RareExpert;
use pannier_forge::{CalibrateOptions, calibrate};
use pannier_tokenizer::EncodeOptions;
use serde::Serialize;

use crate::args::RunArgs;
use crate::engine;
use crate::error::{CliError, Result};
use crate::input;
use crate::output::{self, Output};

#[derive(Args)]
#[command(after_help = "\
Examples:
  pannier calibrate -m model-f16.gguf --file support-tickets.txt -o imatrix.gguf
  pannier calibrate -m model-f16.gguf --file wiki.txt --windows 100 -o imatrix.gguf
  pannier quantize model-f16.gguf model-q3.gguf Q3_K_M --imatrix imatrix.gguf

Use text of the kind the model will read, a thousand lines or more, and not the text it will be judged by. The file holds the
sums of squares and of magnitudes of each column of each matrix, and of each expert; llama.cpp's tools read it too. An existing
OUT is replaced.
JSON: bytes, tokens, windows, tensors, experts, unseen_experts, rare_experts [{tensor, expert, tokens}].")]
pub struct CalibrateArgs {
    #[command(flatten)]
    run: RunArgs,

    /// The text; `-` is stdin.
    #[arg(long, value_name = "PATH")]
    file: PathBuf,

    /// The file to write.
    #[arg(short, long, value_name = "IMATRIX")]
    output: PathBuf,

    /// Stop after so many windows (of `--ctx` tokens, by default 512).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    windows: Option<u32>,

    /// Leave the output matrix out.
    #[arg(long)]
    no_output: bool,

    /// Report experts that saw fewer tokens than this.
    #[arg(long, value_name = "N", default_value_t = 64)]
    rare: u64,
}

/// Window, where `--ctx` says nothing.
const WINDOW: u32 = 512;
/// Rare experts that are listed for people.
const LISTED: usize = 8;

#[derive(Serialize)]
struct Report {
    bytes: u64,
    tokens: u64,
    windows: u32,
    tensors: usize,
    experts: usize,
    unseen_experts: usize,
    rare_experts: Vec<Rare>,
}

#[derive(Serialize)]
struct Rare {
    tensor: String,
    expert: usize,
    tokens: u64,
}

pub fn run(args: &CalibrateArgs, out: &mut Output) -> Result<()> {
    // Better refused now than after an hour.
    let folder = args.output.parent().filter(|folder| !folder.as_os_str().is_empty());
    if args.output.is_dir() || folder.is_some_and(|folder| !folder.is_dir()) {
        return Err(CliError::failed(format!(
            "cannot write {}: no such folder, or a folder itself",
            args.output.display()
        )));
    }
    let text = input::text_file(&args.file)?;
    let mut run = args.run.clone();
    let window = *run.ctx.get_or_insert(WINDOW) as usize;
    let loaded = engine::load(&run)?;
    let tokenizer = loaded.tokenizer()?;
    let options = CalibrateOptions {
        window,
        limit: args.windows.map(|n| n as usize),
        bos: tokenizer.special_tokens().bos.filter(|_| tokenizer.add_bos()),
        output: !args.no_output,
    };
    let ids = tokenizer.encode(&text, EncodeOptions { add_special: true, parse_special: true });
    let bar = output::count_bar(0, "windows");
    let mut found = loaded.with_forward(|forward, cancel| {
        Ok(calibrate(forward, &ids, &options, cancel, &mut |done, total| {
            bar.set_length(total as u64);
            bar.set_position(done as u64);
        })?)
    })?;
    bar.finish_and_clear();
    found.imatrix.datasets.push(dataset(&args.file));
    found.imatrix.write(&args.output)?;

    let stacks = || found.imatrix.iter().map(|(_, entry)| entry.counts()).filter(|counts| counts.len() > 1);
    let experts: usize = stacks().map(<[f32]>::len).sum();
    let unseen = stacks().flatten().filter(|count| **count == 0.0).count();
    let rare = found.imatrix.rare_experts(args.rare);
    if unseen > 0 || !rare.is_empty() {
        output::note(&warning(&rare, unseen, args.rare));
    }
    let bytes = std::fs::metadata(&args.output).map_err(|e| CliError::io("look at", &args.output, &e))?.len();
    let report = Report {
        bytes,
        tokens: found.tokens,
        windows: found.imatrix.chunks,
        tensors: found.imatrix.len(),
        experts,
        unseen_experts: unseen,
        rare_experts: rare
            .into_iter()
            .map(|RareExpert { tensor, expert, count }| Rare { tensor, expert, tokens: count })
            .collect(),
    };
    let Report { tokens, windows, tensors, .. } = &report;
    out.line(&format!("{tensors} tensors, {tokens} tokens in {windows} windows, {}", output::bytes(bytes)))?;
    out.object(&report)
}

/// What the file says about its text: the name, not the folder, which is nobody else's business.
fn dataset(path: &Path) -> String {
    path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

fn warning(rare: &[RareExpert], unseen: usize, least: u64) -> String {
    let some: Vec<String> = rare
        .iter()
        .take(LISTED)
        .map(|one| format!("{} #{}: {}", one.tensor, one.expert, one.count))
        .collect();
    let more = if rare.len() > LISTED { ", …" } else { "" };
    format!(
        "note: {} matrices of experts saw fewer than {least} tokens, {unseen} of them none ({}{more}); use more, or more varied, text",
        rare.len(),
        some.join(", ")
    )
}
