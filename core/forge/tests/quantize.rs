//! Whole models through the quantiser.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::Noise;
use half::f16;
use pannier::model::{ActivationObserver, MatrixInput};
use pannier_forge::imatrix::{Collector, Imatrix};
use pannier_forge::quantize::{FileType, Notice, Override, SizeLimit, plan, sensitivities};
use pannier_forge::{Error, Progress, QuantizeOptions, Silent, quantize};
use pannier_gguf::{GgmlType, Gguf, Writer};
use pannier_kernels::format;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

const LAYERS: u64 = 8;

/// A small llama of f16 matrices, `width` wide.
fn model(path: &Path, width: u64, spoil: impl Fn(&str, &mut Vec<f32>)) {
    model_of("llama", path, width, spoil);
}

/// The same tensors under another name.
fn model_of(arch: &str, path: &Path, width: u64, spoil: impl Fn(&str, &mut Vec<f32>)) {
    let mut writer = Writer::new();
    writer.set("general.architecture", arch);
    writer.set(format!("{arch}.block_count"), LAYERS as u32);
    writer.set(format!("{arch}.attention.head_count"), 8u32);
    writer.set(format!("{arch}.attention.head_count_kv"), 2u32);
    let mut tensors: Vec<(String, Vec<u64>, GgmlType)> =
        vec![("token_embd.weight".into(), vec![width, 300], GgmlType::F16)];
    for layer in 0..LAYERS {
        let mut matrix = |name: &str, dims: [u64; 2]| {
            tensors.push((format!("blk.{layer}.{name}.weight"), dims.to_vec(), GgmlType::F16));
        };
        matrix("attn_q", [width, width]);
        matrix("attn_k", [width, width / 4]);
        matrix("attn_v", [width, width / 4]);
        matrix("attn_output", [width, width]);
        matrix("ffn_gate", [width, 2 * width]);
        matrix("ffn_up", [width, 2 * width]);
        matrix("ffn_down", [2 * width, width]);
        tensors.push((format!("blk.{layer}.attn_norm.weight"), vec![width], GgmlType::F32));
        tensors.push((format!("blk.{layer}.ffn_gate_inp.weight"), vec![width, 4], GgmlType::F32));
    }
    tensors.push(("output_norm.weight".into(), vec![width], GgmlType::F32));
    for (name, dims, ty) in &tensors {
        writer.tensor(name.clone(), dims, *ty).unwrap();
    }
    let mut noise = Noise(1);
    let write = |out: &mut pannier_gguf::TensorStream<_>| -> Result<(), pannier_gguf::Error> {
        for (name, dims, ty) in &tensors {
            let mut values: Vec<f32> = (0..dims.iter().product()).map(|_| noise.next(0.05)).collect();
            spoil(name, &mut values);
            let bytes: Vec<u8> = if *ty == GgmlType::F32 {
                values.iter().flat_map(|x| x.to_le_bytes()).collect()
            } else {
                values.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect()
            };
            out.write(name, &bytes)?;
        }
        Ok(())
    };
    writer.write_file(path, write).unwrap();
}

struct Fixture {
    _folder: tempfile::TempDir,
    input: PathBuf,
    output: PathBuf,
}

fn fixture(width: u64) -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("in.gguf");
    model(&input, width, |_, _| {});
    let output = folder.path().join("out.gguf");
    Fixture { _folder: folder, input, output }
}

fn target(name: &str) -> FileType {
    FileType::parse(name).unwrap()
}

fn values(model: &Gguf, name: &str) -> Vec<f32> {
    let tensor = model.tensor(name).unwrap();
    let mut out = vec![0f32; tensor.dims.iter().product::<u64>() as usize];
    format(tensor.ty.id()).unwrap().decode_row(model.tensor_data(tensor).unwrap(), &mut out);
    out
}

/// Relative error of all matrices together.
fn relative_error(before: &Gguf, after: &Gguf) -> f64 {
    let (mut error, mut energy) = (0f64, 0f64);
    for tensor in before.tensors() {
        for (x, y) in values(before, &tensor.name).iter().zip(&values(after, &tensor.name)) {
            error += f64::from(x - y).powi(2);
            energy += f64::from(*x).powi(2);
        }
    }
    (error / energy).sqrt()
}

fn type_of(model: &Gguf, name: &str) -> GgmlType {
    model.tensor(name).unwrap().ty
}

#[test]
fn every_target_gives_a_model_that_decodes_close_to_the_original() {
    let f = fixture(256);
    let before = Gguf::open(&f.input).unwrap();
    let mut last = 0.0;
    for target in FileType::all() {
        let report = quantize(&f.input, &f.output, &QuantizeOptions::new(*target), &Silent).unwrap();
        let after = Gguf::open(&f.output).unwrap();
        assert_eq!(report.bytes, after.file_bytes(), "{}", target.name);
        assert_eq!(report.bytes, std::fs::metadata(&f.output).unwrap().len());
        assert_eq!(after.metadata().u32("general.file_type").unwrap(), target.id);
        assert_eq!(after.metadata().u32("general.quantization_version").unwrap(), 2);
        assert_eq!(after.metadata().str("general.architecture").unwrap(), "llama");
        assert_eq!(type_of(&after, "blk.0.attn_norm.weight"), GgmlType::F32);
        assert_eq!(type_of(&after, "blk.0.ffn_gate_inp.weight"), GgmlType::F32);
        let bits = report.plan.bits_per_weight;
        let error = relative_error(&before, &after);
        // A bit less doubles the error, about. The float types spend bits on the exponent.
        let bound = if target.base.block_elements() == 1 { 0.003 } else { 3.0 * 2f64.powf(-bits) };
        assert!(error < bound, "{}: {bits} bits, error {error}", target.name);
        if target.id > 1 && target.id != 32 {
            assert!(error > last * 0.5, "targets are listed from fine to coarse");
            last = error;
        }
    }
}

#[test]
fn customary_mixtures_spend_bits_where_they_count() {
    let f = fixture(256);
    let input = Gguf::open(&f.input).unwrap();
    let types = |target: &str| {
        let plan = plan(&input, &QuantizeOptions::new(FileType::parse(target).unwrap())).unwrap();
        move |name: &str| plan.tensors.iter().find(|tensor| tensor.name == name).unwrap().to
    };
    let medium = types("q4_k_m");
    // Tied: the embedding is the output.
    assert_eq!(medium("token_embd.weight"), GgmlType::Q6_K);
    let more: Vec<u64> =
        (0..LAYERS).filter(|l| medium(&format!("blk.{l}.ffn_down.weight")) == GgmlType::Q6_K).collect();
    assert_eq!(more, [0, 3, 6, 7]);
    let more: Vec<u64> =
        (0..LAYERS).filter(|l| medium(&format!("blk.{l}.attn_v.weight")) == GgmlType::Q6_K).collect();
    assert_eq!(more, [0, 3, 6, 7]);
    assert_eq!(medium("blk.5.attn_q.weight"), GgmlType::Q4_K);
    let small = types("Q4_K_S");
    assert_eq!(small("blk.0.ffn_down.weight"), GgmlType::Q5_K);
    assert_eq!(small("blk.1.ffn_down.weight"), GgmlType::Q4_K);
    assert_eq!(small("blk.3.attn_v.weight"), GgmlType::Q5_K);
    assert_eq!(small("blk.4.attn_v.weight"), GgmlType::Q4_K);
    let two = types("Q2_K");
    assert_eq!(two("blk.5.attn_v.weight"), GgmlType::Q4_K);
    assert_eq!(two("blk.5.attn_output.weight"), GgmlType::Q3_K);
    assert_eq!(two("blk.5.ffn_up.weight"), GgmlType::Q2_K);
    let eight = types("Q8_0");
    assert_eq!(eight("token_embd.weight"), GgmlType::Q8_0);
}

#[test]
fn rows_of_odd_length_fall_back() {
    let f = fixture(96);
    let report = quantize(&f.input, &f.output, &QuantizeOptions::new(target("Q4_K_M")), &Silent).unwrap();
    let after = Gguf::open(&f.output).unwrap();
    assert_eq!(type_of(&after, "blk.5.attn_q.weight"), GgmlType::Q5_0);
    assert_eq!(type_of(&after, "blk.0.attn_v.weight"), GgmlType::Q8_0);
    assert_eq!(type_of(&after, "token_embd.weight"), GgmlType::Q8_0);
    let odd = |to| {
        report.plan.notices.iter().any(|n| matches!(n, Notice::OddRows { to: given, .. } if *given == to))
    };
    assert!(odd(GgmlType::Q5_0) && odd(GgmlType::Q8_0), "{:?}", report.plan.notices);
    assert!(relative_error(&Gguf::open(&f.input).unwrap(), &after) < 0.04);
}

#[test]
fn overrides_and_protected_attention() {
    let f = fixture(256);
    let mut options = QuantizeOptions::new(target("Q3_K_S"));
    options.keep_f16_attention = true;
    options.overrides = vec![
        Override::parse(r"blk\.3\.attn_q=Q8_0").unwrap(),
        Override::parse("ffn_up=IQ4_XS").unwrap(),
        Override::parse("ffn_gate_inp=Q4_0").unwrap(),
    ];
    quantize(&f.input, &f.output, &options, &Silent).unwrap();
    let (before, after) = (Gguf::open(&f.input).unwrap(), Gguf::open(&f.output).unwrap());
    for part in ["attn_q", "attn_k", "attn_v", "attn_output"] {
        let name = format!("blk.7.{part}.weight");
        assert_eq!(type_of(&after, &name), GgmlType::F16);
        assert_eq!(values(&before, &name), values(&after, &name));
    }
    assert_eq!(type_of(&after, "blk.3.attn_q.weight"), GgmlType::Q8_0);
    assert_eq!(type_of(&after, "blk.3.ffn_up.weight"), GgmlType::IQ4_XS);
    assert_eq!(type_of(&after, "blk.3.ffn_down.weight"), GgmlType::Q3_K);
    // Routers are never quantised, whatever is asked for.
    assert_eq!(type_of(&after, "blk.3.ffn_gate_inp.weight"), GgmlType::F32);
    for bad in ["", "x", "=Q8_0", "(=Q8_0", "a=Q9", "a=IQ1_S"] {
        assert!(matches!(Override::parse(bad), Err(Error::BadOverride { .. })), "{bad}");
    }
    assert!(matches!(FileType::parse("Q4_K_XL"), Err(Error::UnknownType { .. })));
}

/// Statistics in which some columns matter a thousand times more.
fn statistics(input: &Gguf, uneven: impl Fn(usize) -> f32) -> Imatrix {
    let collector = Collector::new();
    for tensor in input.tensors().iter().filter(|tensor| tensor.name.starts_with("blk.")) {
        let columns = tensor.dims[0] as usize;
        let rows: Vec<f32> = (0..3).flat_map(|_| (0..columns).map(&uneven)).collect();
        let input = MatrixInput { tensor: &tensor.name, matrix: (0, 1), cols: columns, rows: &rows };
        collector.observed(&input);
    }
    collector.imatrix()
}

#[test]
fn an_importance_matrix_moves_the_error_to_where_it_matters_less() {
    let f = fixture(256);
    let input = Gguf::open(&f.input).unwrap();
    let uneven = |column: usize| if column.is_multiple_of(7) { 3.0 } else { 0.1 };
    let imatrix = statistics(&input, uneven);
    let weighted = |model: &Gguf| -> f64 {
        (0..LAYERS)
            .map(|layer| {
                let name = format!("blk.{layer}.ffn_up.weight");
                let pairs = values(&input, &name).into_iter().zip(values(model, &name));
                let errors = pairs.enumerate();
                errors.map(|(i, (x, y))| f64::from((x - y) * uneven(i % 256)).powi(2)).sum::<f64>()
            })
            .sum()
    };
    for ty in ["Q2_K", "Q3_K_S", "Q4_0", "Q4_K_S", "IQ4_XS", "Q6_K"] {
        let mut options = QuantizeOptions::new(target(ty));
        quantize(&f.input, &f.output, &options, &Silent).unwrap();
        let plain = weighted(&Gguf::open(&f.output).unwrap());
        options.imatrix = Some(imatrix.clone());
        let report = quantize(&f.input, &f.output, &options, &Silent).unwrap();
        let with = weighted(&Gguf::open(&f.output).unwrap());
        assert!(with < 0.9 * plain, "{ty}: {with} against {plain}");
        assert!(!report.plan.notices.iter().any(|n| matches!(n, Notice::NoImportance { .. })));
    }
}

/// Products of one layer that the model's results are made of, each with the columns of activations that it meets.
fn layer_products(model: &Gguf, layer: u64, width: usize) -> Vec<(&'static str, Vec<f32>)> {
    let of = |part: &str| values(model, &format!("blk.{layer}.{part}.weight"));
    let (norm, v, out) = (of("attn_norm"), of("attn_v"), of("attn_output"));
    let normed = |matrix: Vec<f32>| -> Vec<f32> {
        matrix.chunks_exact(width).flat_map(|row| row.iter().zip(&norm).map(|(w, n)| w * n)).collect()
    };
    let (up, down) = (of("ffn_up"), of("ffn_down"));
    let (dim, inner) = (width / 8, 2 * width);
    // Eight heads, two of values; the first column of the normed values and of up stands for all.
    let value = |column: usize| (column / dim / 4) * dim + column % dim;
    let v = normed(v);
    vec![
        ("q", normed(of("attn_q"))),
        ("k", normed(of("attn_k"))),
        ("v to output", (0..width * width).map(|i| out[i] * v[value(i % width) * width]).collect()),
        ("up to down", (0..inner * width).map(|i| down[i] * up[(i % inner) * width]).collect()),
    ]
}

#[test]
fn activation_aware_scales_are_undone_by_the_tensors_in_front() {
    let f = fixture(256);
    let input = Gguf::open(&f.input).unwrap();
    let uneven = |column: usize| if column.is_multiple_of(37) { 30.0 } else { 0.5 };
    let mut options = QuantizeOptions::new(target("Q8_0"));
    options.imatrix = Some(statistics(&input, uneven));
    let norms = |model: &Gguf| values(model, "blk.0.attn_norm.weight");
    quantize(&f.input, &f.output, &options, &Silent).unwrap();
    assert_eq!(norms(&Gguf::open(&f.output).unwrap()), norms(&input));
    options.awq = true;
    quantize(&f.input, &f.output, &options, &Silent).unwrap();
    let after = Gguf::open(&f.output).unwrap();
    assert_ne!(norms(&after), norms(&input), "nothing was scaled");
    for layer in 0..LAYERS {
        let pairs = layer_products(&input, layer, 256).into_iter().zip(layer_products(&after, layer, 256));
        for ((name, x), (_, y)) in pairs {
            let columns = if name == "up to down" { 512 } else { 256 };
            let (mut error, mut energy) = (0f64, 0f64);
            for (i, (x, y)) in x.iter().zip(&y).enumerate() {
                let weight = f64::from(uneven(i % columns)).powi(2);
                error += weight * f64::from(x - y).powi(2);
                energy += weight * f64::from(*x).powi(2);
            }
            let error = (error / energy).sqrt();
            assert!(error < 0.02, "layer {layer}, {name}: {error}");
        }
    }
}

/// Values that are normed before attention do not pass on what they are divided by.
#[test]
fn activation_aware_scales_leave_normed_values_alone() {
    for (arch, scaled) in [("llama", true), ("gemma4", false)] {
        let f = fixture(256);
        model_of(arch, &f.input, 256, |_, _| {});
        let input = Gguf::open(&f.input).unwrap();
        let mut options = QuantizeOptions::new(target("Q8_0"));
        options.imatrix =
            Some(statistics(&input, |column| if column.is_multiple_of(37) { 30.0 } else { 0.5 }));
        options.awq = true;
        quantize(&f.input, &f.output, &options, &Silent).unwrap();
        let after = Gguf::open(&f.output).unwrap();
        let differs = (0..LAYERS).any(|layer| {
            let name = format!("blk.{layer}.attn_output.weight");
            values(&input, &name).iter().zip(values(&after, &name)).any(|(x, y)| (x - y).abs() > 0.01)
        });
        assert_eq!(differs, scaled, "{arch}");
    }
}

#[test]
fn activation_aware_scales_lower_the_error_of_products() {
    let f = fixture(256);
    let input = Gguf::open(&f.input).unwrap();
    let uneven = |column: usize| if column.is_multiple_of(37) { 30.0 } else { 0.5 };
    let mut options = QuantizeOptions::new(target("Q3_K_S"));
    options.imatrix = Some(statistics(&input, uneven));
    let mut errors = |awq: bool| {
        options.awq = awq;
        let report = quantize(&f.input, &f.output, &options, &Silent).unwrap();
        let after = Gguf::open(&f.output).unwrap();
        let (x, y) = (layer_products(&input, 3, 256), layer_products(&after, 3, 256));
        let terms = x[0].1.iter().zip(&y[0].1).enumerate();
        let error: f64 = terms.map(|(i, (x, y))| f64::from((x - y) * uneven(i % 256)).powi(2)).sum();
        (error, report.plan.notices)
    };
    let (plain, none) = errors(false);
    assert!(none.iter().all(|notice| !matches!(notice, Notice::Scaled { .. })));
    let (scaled, notices) = errors(true);
    assert!(scaled < 0.9 * plain, "{scaled} {plain}");
    let found = notices.iter().find_map(|notice| match notice {
        Notice::Scaled { groups, scaled, error_ratio } => Some((*groups, *scaled, *error_ratio)),
        _ => None,
    });
    // After the norm, values, up: three in each layer (a router reads the other norm).
    let (groups, scaled, ratio) = found.unwrap();
    assert_eq!((groups, scaled), (3 * LAYERS as usize, groups));
    assert!(ratio < 0.9, "{ratio}");
}

#[test]
fn an_importance_matrix_of_another_model_is_refused() {
    let f = fixture(256);
    let other = fixture(96);
    let mut options = QuantizeOptions::new(target("Q4_0"));
    options.imatrix = Some(statistics(&Gguf::open(&other.input).unwrap(), |_| 1.0));
    let refused = quantize(&f.input, &f.output, &options, &Silent);
    assert!(matches!(refused, Err(Error::ImatrixShape { columns: 256, found: 96, .. })), "{refused:?}");
    assert!(!f.output.exists());
}

/// Interleaved rows would be read as if they were rows.
#[test]
fn a_pack_is_refused() {
    let f = fixture(256);
    let packed = f.input.with_extension("pack");
    quantize(&f.input, &f.output, &QuantizeOptions::new(target("Q8_0")), &Silent).unwrap();
    pannier::pack::pack(&Gguf::open(&f.output).unwrap(), &packed, &mut |_, _| {}).unwrap();
    std::fs::remove_file(&f.output).unwrap();
    let refused = quantize(&packed, &f.output, &QuantizeOptions::new(target("Q4_0")), &Silent);
    assert!(matches!(refused, Err(Error::Packed { .. })), "{refused:?}");
    assert!(!f.output.exists());
}

#[test]
fn the_best_mixture_under_a_size_beats_the_customary_one_of_that_size() {
    let f = fixture(256);
    let before = Gguf::open(&f.input).unwrap();
    for name in ["Q3_K_M", "Q4_K_M", "Q5_K_S"] {
        let mut options = QuantizeOptions::new(target(name));
        let customary = quantize(&f.input, &f.output, &options, &Silent).unwrap();
        let customary_error = relative_error(&before, &Gguf::open(&f.output).unwrap());
        options.limit = Some(SizeLimit::Bytes(customary.bytes));
        let searched = quantize(&f.input, &f.output, &options, &Silent).unwrap();
        assert!(searched.bytes <= customary.bytes, "{name}");
        assert!(searched.bytes as f64 > 0.97 * customary.bytes as f64, "{name} leaves room unused");
        let error = relative_error(&before, &Gguf::open(&f.output).unwrap());
        assert!(error < 1.1 * customary_error, "{name}: {error} against {customary_error}");
        options.limit = Some(SizeLimit::BitsPerWeight(customary.plan.bits_per_weight));
        let plan = plan(&before, &options).unwrap();
        assert!(plan.bits_per_weight <= customary.plan.bits_per_weight);
    }
    let mut options = QuantizeOptions::new(target("Q2_K"));
    options.limit = Some(SizeLimit::Bytes(1000));
    assert!(matches!(plan(&before, &options), Err(Error::TargetTooSmall { .. })));
    let measured = sensitivities(&before, &options).unwrap();
    let of = |ty| measured.iter().find(|m| m.tensor == "blk.2.ffn_up.weight" && m.ty == ty).unwrap().error;
    assert!(of(GgmlType::Q2_K) > of(GgmlType::Q3_K) && of(GgmlType::Q4_K) > of(GgmlType::Q6_K));
}

#[test]
fn a_weight_that_is_not_finite_is_named_and_leaves_no_file() {
    let f = fixture(256);
    model(&f.input, 256, |name, values| {
        if name == "blk.7.ffn_down.weight" {
            values[512 * 100 + 17] = f32::NAN;
        }
    });
    let failed = quantize(&f.input, &f.output, &QuantizeOptions::new(target("Q4_K_M")), &Silent);
    match failed {
        Err(Error::Weight { tensor, row: 100, column: 17, .. }) => {
            assert_eq!(tensor, "blk.7.ffn_down.weight")
        }
        other => panic!("{other:?}"),
    }
    assert!(!f.output.exists());
}

#[test]
fn truncated_input_and_unwritable_output_are_errors() {
    let f = fixture(96);
    let bytes = std::fs::read(&f.input).unwrap();
    let options = QuantizeOptions::new(target("Q8_0"));
    for cut in [0, 3, 100, bytes.len() / 2, bytes.len() - 1] {
        std::fs::write(&f.input, &bytes[..cut]).unwrap();
        assert!(matches!(quantize(&f.input, &f.output, &options, &Silent), Err(Error::Gguf(_))), "{cut}");
        assert!(!f.output.exists());
    }
    std::fs::write(&f.input, &bytes).unwrap();
    let nowhere = f.input.with_file_name("nowhere").join("out.gguf");
    assert!(matches!(quantize(&f.input, nowhere, &options, &Silent), Err(Error::Io { .. })));
}

struct StopAfter(AtomicUsize);

impl Progress for StopAfter {
    fn cancelled(&self) -> bool {
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_err()
    }
}

#[derive(Default)]
struct Watch(AtomicU64);

impl Progress for Watch {
    fn step(&self, done: u64, total: u64, tensor: &str) {
        assert!(done <= total && !tensor.is_empty());
        self.0.fetch_max(done, Ordering::Relaxed);
    }
}

#[test]
fn the_same_bytes_for_any_threads_and_after_a_stop() {
    let f = fixture(256);
    let mut options = QuantizeOptions::new(target("Q4_K_M"));
    options.imatrix = Some(statistics(&Gguf::open(&f.input).unwrap(), |column| 1.0 + (column % 5) as f32));
    options.threads = 1;
    let watch = Watch::default();
    let report = quantize(&f.input, &f.output, &options, &watch).unwrap();
    assert!(watch.0.into_inner() > report.bytes * 9 / 10);
    let expected = std::fs::read(&f.output).unwrap();
    for (threads, stop_after) in [(2, 15), (3, 40)] {
        options.threads = threads;
        std::fs::remove_file(&f.output).unwrap();
        let stopped = quantize(&f.input, &f.output, &options, &StopAfter(AtomicUsize::new(stop_after)));
        assert!(matches!(stopped, Err(Error::Cancelled)), "{stopped:?}");
        assert!(!f.output.exists());
        quantize(&f.input, &f.output, &options, &Silent).unwrap();
        assert_eq!(std::fs::read(&f.output).unwrap(), expected);
    }
}

#[test]
fn a_model_can_be_quantised_onto_itself() {
    let f = fixture(96);
    let before = Gguf::open(&f.input).unwrap();
    quantize(&f.input, &f.input, &QuantizeOptions::new(target("Q8_0")), &Silent).unwrap();
    let after = Gguf::open(&f.input).unwrap();
    assert_eq!(type_of(&after, "blk.0.attn_q.weight"), GgmlType::Q8_0);
    assert!(relative_error(&before, &after) < 0.01);
}

#[test]
fn requantising_is_allowed_and_announced() {
    let f = fixture(256);
    quantize(&f.input, &f.input, &QuantizeOptions::new(target("Q6_K")), &Silent).unwrap();
    let report = quantize(&f.input, &f.output, &QuantizeOptions::new(target("Q4_0")), &Silent).unwrap();
    let announced = |n: &Notice| matches!(n, Notice::Requantised { from: GgmlType::Q6_K, .. });
    assert!(report.plan.notices.iter().any(announced), "{:?}", report.plan.notices);
    assert!(report.plan.notices.iter().all(|notice| !notice.to_string().is_empty()));
}
