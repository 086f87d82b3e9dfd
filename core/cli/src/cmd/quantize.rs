//! `pannier quantize`: a smaller model from a larger one.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use pannier_forge::imatrix::Imatrix;
use pannier_forge::quantize::{FileType, Override, SizeLimit, plan};
use pannier_forge::{QuantizeOptions, quantize};
use pannier_gguf::Gguf;
use serde::Serialize;

use crate::cmd::forge::Watch;
use crate::error::{CliError, Result};
use crate::output::{self, Output};

#[derive(Args)]
#[command(after_help = "\
Examples:
  pannier quantize model-f16.gguf model-q4.gguf Q4_K_M
  pannier quantize model-f16.gguf model-q3.gguf Q3_K_M --imatrix imatrix.gguf --keep-f16 attn
  pannier quantize model-f16.gguf model-q3.gguf Q3_K_M --imatrix imatrix.gguf --method awq
  pannier quantize model-f16.gguf model.gguf Q4_K_M --target-bytes 900000000
  pannier quantize model-f16.gguf - Q4_K_M --plan --json
  pannier quantize --nested model-f16.gguf model-nested.gguf --imatrix imatrix.gguf

--nested writes one file that is two models: matrices are stored in two planes, of which the first alone is a model of 3.5 bits per weight
(`run --precision low` reads only that part of the file) and both together are Q5_K (`--precision full`, the default; `auto` decides for each
request). The file is as large as the Q5_K file alone. TYPE may then be left out, or be Q5_K_S (the default) or Q5_K_M. Only Pannier reads such files;
other readers say that a tensor is missing.

Types: F32 F16 BF16 Q8_0 Q6_K Q5_K_M Q5_K_S Q5_1 Q5_0 Q4_K_M Q4_K_S Q4_1 Q4_0 IQ4_NL IQ4_XS Q3_K_L Q3_K_M Q3_K_S Q2_K.
An interrupted run continues where it was when it is started again with the same arguments.
JSON: bytes, bits_per_weight, type, low_bytes and low_bits_per_weight (of the low view's tensors, with --nested), notices, tensors (name, from, to,
bytes, nested).")]
pub struct QuantizeArgs {
    /// The model to read; f16, bf16, f32 or q8_0 lose nothing beforehand.
    #[arg(value_name = "IN")]
    input: PathBuf,

    /// The file to write.
    #[arg(value_name = "OUT")]
    output: PathBuf,

    /// The target type, such as Q4_K_M.
    #[arg(value_name = "TYPE", required_unless_present = "nested")]
    target: Option<String>,

    /// Two planes, of which the first is a model of 3.5 bits: one file for a fast and for a good answer.
    #[arg(long, conflicts_with_all = ["target_bytes", "target_bpw"])]
    nested: bool,

    /// Activation statistics: errors count where the model's text makes them matter.
    #[arg(long, value_name = "FILE")]
    imatrix: Option<PathBuf>,

    /// Keep these layers in f16.
    #[arg(long, value_name = "LAYERS")]
    keep_f16: Option<Kept>,

    /// How weights are rounded; `imatrix` is the default when statistics are given.
    #[arg(long, value_name = "METHOD")]
    method: Option<Method>,

    /// A type for tensors whose name matches a regular expression; may be given several times, the first match wins.
    #[arg(long, value_name = "PATTERN=TYPE")]
    tensor_type: Vec<String>,

    /// The target type for every matrix, without the customary exceptions.
    #[arg(long)]
    pure: bool,

    /// Search the mixture that loses least within this file size.
    #[arg(long, value_name = "N", conflicts_with_all = ["target_bpw", "pure"])]
    target_bytes: Option<u64>,

    /// Search the mixture that loses least within so many bits per weight.
    #[arg(long, value_name = "X", conflicts_with = "pure")]
    target_bpw: Option<f64>,

    /// Show what would be done, and write nothing.
    #[arg(long)]
    plan: bool,

    /// Threads; by default one per core.
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Kept {
    /// The projections of attention: query, key, value and output.
    Attn,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Method {
    /// Least squared error of each block.
    Rtn,
    /// The same, weighted by the activation statistics.
    Imatrix,
    /// Columns are scaled by their activations before that; the scales go into the tensors in front.
    Awq,
}

#[derive(Serialize)]
struct Report {
    /// Of the file; of all tensors for a plan.
    bytes: u64,
    bits_per_weight: f64,
    r#type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    low_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    low_bits_per_weight: Option<f64>,
    notices: Vec<String>,
    tensors: Vec<Tensor>,
}

#[derive(Serialize)]
struct Tensor {
    name: String,
    from: &'static str,
    to: &'static str,
    bytes: u64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    nested: bool,
}

/// Every matrix of a layer in planes; what Q5_K_M keeps higher, the low view would have to read, too.
const NESTED_TYPE: &str = "Q5_K_S";

pub fn run(args: &QuantizeArgs, out: &mut Output) -> Result<()> {
    let target = FileType::parse(args.target.as_deref().unwrap_or(NESTED_TYPE))?;
    let mut options = QuantizeOptions::new(target);
    options.imatrix = match (&args.imatrix, args.method) {
        (None, Some(Method::Imatrix | Method::Awq)) => {
            return Err(CliError::failed("this method needs --imatrix FILE (see `pannier calibrate`)"));
        }
        (Some(_), Some(Method::Rtn)) | (None, _) => None,
        (Some(path), _) => Some(Imatrix::open(path)?),
    };
    options.awq = args.method == Some(Method::Awq);
    options.keep_f16_attention = args.keep_f16.is_some();
    options.overrides =
        args.tensor_type.iter().map(|given| Override::parse(given)).collect::<Result<_, _>>()?;
    options.pure = args.pure;
    options.nested = args.nested;
    options.limit = args.target_bytes.map(SizeLimit::Bytes).or(args.target_bpw.map(SizeLimit::BitsPerWeight));
    options.threads = args.threads.map_or(0, usize::from);
    let (bytes, plan) = if args.plan {
        let plan = plan(&Gguf::open(&args.input)?, &options)?;
        (plan.tensor_bytes, plan)
    } else {
        let watch = Watch::start("quantising");
        let report = quantize(&args.input, &args.output, &options, &watch)?;
        watch.finish();
        (report.bytes, report.plan)
    };
    let notices: Vec<String> = plan.notices.iter().map(ToString::to_string).collect();
    for notice in &notices {
        output::note(&format!("note: {notice}"));
    }
    if !out.json() {
        if args.plan {
            let mut lines = String::new();
            for tensor in &plan.tensors {
                let name = tensor.name.escape_debug();
                lines.push_str(&format!(
                    "{name:<32} {:>6} -> {:<6} {:>10}{}\n",
                    tensor.from,
                    tensor.to,
                    output::bytes(tensor.bytes),
                    if tensor.nested { "  in two planes" } else { "" }
                ));
            }
            out.text(&lines)?;
        }
        out.line(&format!("{}, {:.2} bits per weight", output::bytes(bytes), plan.bits_per_weight))?;
        if let Some((bytes, bits)) = plan.low {
            out.line(&format!("low view: {}, {bits:.2} bits per weight", output::bytes(bytes)))?;
        }
    }
    let tensors = plan.tensors.iter().map(|tensor| Tensor {
        name: tensor.name.clone(),
        from: tensor.from.name(),
        to: tensor.to.name(),
        bytes: tensor.bytes,
        nested: tensor.nested,
    });
    out.object(&Report {
        bytes,
        bits_per_weight: plan.bits_per_weight,
        r#type: target.name,
        low_bytes: plan.low.map(|(bytes, _)| bytes),
        low_bits_per_weight: plan.low.map(|(_, bits)| bits),
        notices,
        tensors: tensors.collect(),
    })
}
