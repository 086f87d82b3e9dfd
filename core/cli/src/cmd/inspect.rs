//! `pannier inspect`: what is in a model file. Works on every sound GGUF file, also of models that cannot be run.

use std::collections::BTreeMap;

use clap::Args;
use pannier_gguf::{Array, Gguf, Metadata, TensorInfo, Value, nested};
use pannier_kernels::nested as planes;
use serde::Serialize;
use serde_json::{Map, Value as Json, json};

use crate::error::Result;
use crate::input;
use crate::output::{self, Output};

#[derive(Args)]
#[command(after_help = "\
Examples:
  pannier inspect model.gguf
  pannier inspect smollm2 --json | jq .types

JSON: path, format_version, files, bytes, architecture, name, parameters, context_length, layers [{layer, bytes, tensors}],
other_bytes, types {TYPE: {tensors, elements, bytes}}, tensors [{name, type, shape, bytes}], template, metadata (long
arrays are shown as their type and length).")]
pub struct InspectArgs {
    /// A GGUF file (any part of a split one), or the name of a pulled model.
    #[arg(value_name = "FILE|NAME")]
    file: String,

    /// List every tensor and every key.
    #[arg(long)]
    all: bool,
}

#[derive(Serialize)]
struct Report {
    path: String,
    format_version: u32,
    files: usize,
    bytes: u64,
    architecture: Option<String>,
    name: Option<String>,
    parameters: u64,
    context_length: Option<u64>,
    layers: Vec<Layer>,
    /// Embedding, output, and what else is in no layer.
    other_bytes: u64,
    types: BTreeMap<&'static str, TypeUse>,
    tensors: Vec<Tensor>,
    template: Option<String>,
    metadata: Map<String, Json>,
}

#[derive(Serialize, Default, Clone, Copy)]
struct Layer {
    layer: u64,
    bytes: u64,
    tensors: u64,
}

#[derive(Serialize, Default, Clone, Copy)]
struct TypeUse {
    tensors: u64,
    elements: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct Tensor {
    name: String,
    r#type: &'static str,
    shape: Vec<u64>,
    bytes: u64,
}

pub fn run(args: &InspectArgs, out: &mut Output) -> Result<()> {
    let path = input::model_path(&args.file)?;
    let gguf = Gguf::open(&path)?;
    let report = report(path.display().to_string(), &gguf);
    if out.json() { out.object(&report) } else { out.text(&page(&report, args.all)) }
}

fn report(path: String, gguf: &Gguf) -> Report {
    let meta = gguf.metadata();
    let text = |key: &str| meta.opt_str(key).ok().flatten().map(str::to_owned);
    let architecture = text("general.architecture");
    let context_length =
        architecture.as_ref().and_then(|arch| meta.opt_u64(&format!("{arch}.context_length")).ok().flatten());

    let mut layers: BTreeMap<u64, Layer> = BTreeMap::new();
    let mut types: BTreeMap<&'static str, TypeUse> = BTreeMap::new();
    let (mut parameters, mut other_bytes) = (0u64, 0u64);
    let has_planes = meta.get(nested::VERSION_KEY).is_some();
    for tensor in gguf.tensors() {
        let (name, weights, is_first) = kind_of(tensor, has_planes);
        let used = types.entry(name).or_default();
        used.tensors += 1;
        used.elements = used.elements.saturating_add(weights);
        used.bytes = used.bytes.saturating_add(tensor.bytes);
        parameters = parameters.saturating_add(if is_first { weights } else { 0 });
        match layer_of(tensor) {
            Some(index) => {
                let layer = layers.entry(index).or_insert(Layer { layer: index, ..Layer::default() });
                layer.tensors += 1;
                layer.bytes = layer.bytes.saturating_add(tensor.bytes);
            }
            None => other_bytes = other_bytes.saturating_add(tensor.bytes),
        }
    }
    Report {
        path,
        format_version: gguf.version(),
        files: gguf.shards().len(),
        bytes: gguf.file_bytes(),
        name: text("general.name"),
        architecture,
        parameters,
        context_length,
        layers: layers.into_values().collect(),
        other_bytes,
        types,
        tensors: gguf
            .tensors()
            .iter()
            .map(|t| Tensor {
                name: t.name.clone(),
                r#type: kind_of(t, has_planes).0,
                shape: t.dims.clone(),
                bytes: t.bytes,
            })
            .collect(),
        template: text("tokenizer.chat_template"),
        metadata: metadata(meta),
    }
}

/// What a tensor's type is called, how many weights it is part of, and whether they are counted with it: those of a fine plane are with its low one.
fn kind_of(tensor: &TensorInfo, has_planes: bool) -> (&'static str, u64, bool) {
    let weights = |block: usize| tensor.bytes / block as u64 * planes::BLOCK as u64;
    if has_planes && tensor.name.ends_with(nested::LOW) {
        ("low", weights(planes::LOW_BYTES), true)
    } else if has_planes && tensor.name.ends_with(nested::FINE) {
        ("fine", weights(planes::FINE_BYTES), false)
    } else {
        (tensor.ty.name(), tensor.elements(), true)
    }
}

/// The number in `blk.N.…`.
fn layer_of(tensor: &TensorInfo) -> Option<u64> {
    tensor.name.strip_prefix("blk.")?.split_once('.')?.0.parse().ok()
}

fn metadata(meta: &Metadata) -> Map<String, Json> {
    meta.iter().map(|(key, value)| (key.to_owned(), value_json(value))).collect()
}

/// Arrays up to this length are shown whole: per-layer lists are, vocabularies are not.
const SHOWN: usize = 256;

fn value_json(value: &Value) -> Json {
    match value {
        Value::String(text) => Json::from(text.as_str()),
        Value::Bool(b) => Json::from(*b),
        Value::F32(x) => Json::from(*x),
        Value::F64(x) => Json::from(*x),
        Value::Array(array) => array_json(array),
        other => match other.as_integer() {
            Some(i) => i64::try_from(i)
                .map(Json::from)
                .or_else(|_| u64::try_from(i).map(Json::from))
                .unwrap_or(Json::Null),
            None => Json::Null,
        },
    }
}

fn array_json(array: &Array) -> Json {
    if array.len() > SHOWN {
        return json!({ "array": array.type_name(), "length": array.len() });
    }
    if let Some(integers) = array.integers() {
        return integers.into_iter().map(|i| i64::try_from(i).map_or(Json::Null, Json::from)).collect();
    }
    match array {
        Array::String(strings) => strings.iter().map(Json::from).collect(),
        Array::F32(values) => values.iter().map(Json::from).collect(),
        Array::F64(values) => values.iter().map(Json::from).collect(),
        Array::Bool(values) => values.iter().map(Json::from).collect(),
        Array::Array(nested) => nested.arrays().iter().map(array_json).collect(),
        other => json!({ "array": other.type_name(), "length": other.len() }),
    }
}

/// The report for people.
fn page(r: &Report, all: bool) -> String {
    let mut page = String::new();
    let mut line = |text: String| {
        page.push_str(&text);
        page.push('\n');
    };
    line(format!(
        "file          {} (GGUF version {}, {}{})",
        r.path,
        r.format_version,
        output::bytes(r.bytes),
        if r.files > 1 { format!(", {} files", r.files) } else { String::new() }
    ));
    line(format!("architecture  {}", printable(r.architecture.as_deref().unwrap_or("not named"))));
    if let Some(name) = &r.name {
        line(format!("name          {}", printable(name)));
    }
    line(format!("parameters    {:.1} million", r.parameters as f64 / 1e6));
    if let Some(n) = r.context_length {
        line(format!("context       {n} tokens"));
    }
    line(match &r.template {
        Some(t) => format!("template      {} characters", t.chars().count()),
        None => "template      none: the model continues text, it does not chat".into(),
    });
    line("types".into());
    for (name, used) in &r.types {
        let bits = used.bytes as f64 * 8.0 / used.elements.max(1) as f64;
        line(format!(
            "  {name:<9} {:>5} tensors {:>10}  {bits:.2} bits per weight",
            used.tensors,
            output::bytes(used.bytes)
        ));
    }
    line(format!(
        "layers        {} in {} tensors outside of them",
        r.layers.len(),
        r.tensors.len() as u64 - r.layers.iter().map(|l| l.tensors).sum::<u64>()
    ));
    // Equal neighbours in one line.
    let mut rest = r.layers.as_slice();
    while let Some(first) = rest.first() {
        let run = rest.iter().take_while(|l| l.bytes == first.bytes && l.tensors == first.tensors).count();
        let last = rest.get(run - 1).unwrap_or(first);
        let range =
            if run == 1 { first.layer.to_string() } else { format!("{}-{}", first.layer, last.layer) };
        let each = if run == 1 { "" } else { " each" };
        line(format!("  {range:<9} {:>5} tensors {:>10}{each}", first.tensors, output::bytes(first.bytes)));
        rest = rest.get(run..).unwrap_or_default();
    }
    line(format!("  other           {:>15}", output::bytes(r.other_bytes)));
    if all {
        line("tensors".into());
        for t in &r.tensors {
            line(format!(
                "  {:<36} {:<8} {:>10}  {:?}",
                printable(&t.name),
                t.r#type,
                output::bytes(t.bytes),
                t.shape
            ));
        }
        line("metadata".into());
        for (key, value) in &r.metadata {
            line(format!("  {:<44} {value}", printable(key)));
        }
    }
    page
}

/// Text from the file without what a terminal would obey.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}
