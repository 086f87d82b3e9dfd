//! Quantising a model: GGUF in, smaller GGUF out.
//!
//! ```text
//! plan:     a type for every tensor (mixture, overrides, or the best mixture under a size)
//! scales:   with `awq`, for every group of matrices with one input, the scales that lose least
//! pieces:   of 260 000 weights, on all threads: read, decode, encode weighted by the importance matrix, write in place
//! finish:   read everything back, rename
//! ```

mod awq;
mod budget;
mod mixture;
mod nested;
mod overrides;
mod source;
mod types;

pub use budget::{Sensitivity, sensitivities};
pub use overrides::Override;
pub use types::FileType;

use crate::assemble::{Assembly, Piece, Target};
use crate::encode::{EncodeError, Importance, NESTED, encoder};
use crate::imatrix::{Imatrix, ImatrixError};
use crate::{Error, Progress, Result};
use awq::{Factors, Scaling};
use pannier_gguf::interleaved;
use pannier_gguf::nested::{VERSION, VERSION_KEY};
use pannier_gguf::{GgmlType, Gguf, TensorInfo};
use pannier_kernels::format;
use source::Source;
use std::path::Path;
use xxhash_rust::xxh3::Xxh3;

/// How large the result may be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SizeLimit {
    /// Bytes of the file.
    Bytes(u64),
    /// Bits per weight, over all tensors.
    BitsPerWeight(f64),
}

/// What to quantise to.
#[derive(Debug, Clone)]
pub struct QuantizeOptions {
    /// The mixture.
    pub target: FileType,
    /// Activation statistics: the error of each weight counts by E[x²] of its column.
    pub imatrix: Option<Imatrix>,
    /// Scale columns by their activations before rounding, and fold the scales into the tensors that make these activations. Needs
    /// statistics; without them it does nothing.
    pub awq: bool,
    /// Keep the projections of attention in f16: the layers where errors hurt most, at a moderate price.
    pub keep_f16_attention: bool,
    /// Types for tensors by name; the first that matches wins.
    pub overrides: Vec<Override>,
    /// The base type for every matrix, without the mixture's exceptions.
    pub pure: bool,
    /// Search the best mixture under this size instead of taking the customary one.
    pub limit: Option<SizeLimit>,
    /// Store the matrices of the base type in two planes, so that the file can also be run with three bits. For targets whose base is Q5_K.
    pub nested: bool,
    /// Threads; 0 is one per core.
    pub threads: usize,
}

impl QuantizeOptions {
    /// The customary mixture, nothing else.
    pub fn new(target: FileType) -> Self {
        QuantizeOptions {
            target,
            imatrix: None,
            awq: false,
            keep_f16_attention: false,
            overrides: Vec::new(),
            pure: false,
            limit: None,
            nested: false,
            threads: 0,
        }
    }
}

/// One tensor before and after.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedTensor {
    /// Its name.
    pub name: String,
    /// Its dimensions, fastest first.
    pub dims: Vec<u64>,
    /// Its type in the input.
    pub from: GgmlType,
    /// Its type in the output.
    pub to: GgmlType,
    /// Bytes in the output.
    pub bytes: u64,
    /// Whether it is stored in two planes.
    pub nested: bool,
}

/// Something worth telling.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Notice {
    /// Quantised weights are quantised again: both errors add up. Better start from the original.
    Requantised {
        /// How many tensors.
        tensors: usize,
        /// The coarsest type among them.
        from: GgmlType,
    },
    /// Rows that are not whole blocks of the target get another type.
    OddRows {
        /// How many tensors.
        tensors: usize,
        /// What they get instead.
        to: GgmlType,
    },
    /// The importance matrix does not know tensors of the model; they are quantised without.
    NoImportance {
        /// How many tensors.
        tensors: usize,
        /// One of them.
        example: String,
    },
    /// What activation-aware scales brought.
    Scaled {
        /// Groups of matrices that share an input and could be scaled.
        groups: usize,
        /// Those where scales helped.
        scaled: usize,
        /// Error of their products, over that without scales.
        error_ratio: f64,
    },
    /// Experts that saw no text: their importance is flat.
    UnseenExperts {
        /// How many.
        experts: usize,
    },
}

impl std::fmt::Display for Notice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Notice::Requantised { tensors, from } => write!(
                f,
                "{tensors} tensors are quantised already (down to {from}); quantising them again adds to their error, \
                 the original model would give a better result"
            ),
            Notice::OddRows { tensors, to } => {
                write!(f, "{tensors} tensors have rows that are not whole blocks of 256; they become {to}")
            }
            Notice::NoImportance { tensors, example } => write!(
                f,
                "the importance matrix has no entry for {tensors} tensors (such as {example}); they are quantised without"
            ),
            Notice::Scaled { groups, scaled, error_ratio } => write!(
                f,
                "activation-aware scales for {scaled} of {groups} groups of matrices; the error of their products is {error_ratio:.3} \
                 of that without"
            ),
            Notice::UnseenExperts { experts } => {
                write!(f, "{experts} experts saw no calibration text; use more, or more varied, text")
            }
        }
    }
}

/// What quantising will do, or did.
#[derive(Debug, Clone, PartialEq)]
pub struct QuantizePlan {
    /// Every tensor, in file order.
    pub tensors: Vec<PlannedTensor>,
    /// Bytes of all tensors in the output.
    pub tensor_bytes: u64,
    /// Bits per weight in the output.
    pub bits_per_weight: f64,
    /// Bytes, and bits per weight, of what the low view reads; `None` without planes.
    pub low: Option<(u64, f64)>,
    /// What the user should know.
    pub notices: Vec<Notice>,
}

/// The result of [`quantize`].
#[derive(Debug, Clone, PartialEq)]
pub struct QuantizeReport {
    /// Bytes of the output file.
    pub bytes: u64,
    /// What was done.
    pub plan: QuantizePlan,
}

/// Decides the type of every tensor.
///
/// # Errors
/// A pack as input, metadata of a wrong type, an importance matrix of another model, or a size that cannot be reached.
pub fn plan(input: &Gguf, options: &QuantizeOptions) -> Result<QuantizePlan> {
    let tensors = input.tensors();
    if let Some(tensor) = tensors.iter().find(|tensor| tensor.name.ends_with(interleaved::SUFFIX)) {
        return Err(Error::Packed { tensor: tensor.name.clone() });
    }
    let mut types = mixture::choose(
        input.metadata(),
        tensors,
        options.target,
        options.imatrix.is_some(),
        options.pure,
        &options.overrides,
        options.keep_f16_attention,
    )?;
    if let Some(limit) = options.limit {
        budget::fit(input, options, limit, &mut types)?;
    }
    let nested = nested::choose(input, &types, options)?;
    describe(tensors, &types, &nested, options)
}

fn describe(
    tensors: &[TensorInfo],
    types: &[GgmlType],
    nested: &[bool],
    options: &QuantizeOptions,
) -> Result<QuantizePlan> {
    let mut planned = Vec::with_capacity(tensors.len());
    let (mut tensor_bytes, mut fine_bytes, mut elements) = (0u64, 0u64, 0u64);
    for ((tensor, to), nested) in tensors.iter().zip(types).zip(nested) {
        let bytes = encoded_bytes(tensor, *to);
        tensor_bytes = tensor_bytes.saturating_add(bytes);
        fine_bytes += if *nested { nested::fine_bytes(bytes) } else { 0 };
        elements = elements.saturating_add(tensor.dims.iter().product());
        planned.push(PlannedTensor {
            name: tensor.name.clone(),
            dims: tensor.dims.clone(),
            from: tensor.ty,
            to: *to,
            bytes,
            nested: *nested,
        });
    }
    let notices = notices(&planned, options)?;
    let bits = |bytes: u64| bytes as f64 * 8.0 / elements.max(1) as f64;
    let low_bytes = tensor_bytes.saturating_sub(fine_bytes);
    let low = options.nested.then(|| (low_bytes, bits(low_bytes)));
    Ok(QuantizePlan { tensors: planned, tensor_bytes, bits_per_weight: bits(tensor_bytes), low, notices })
}

fn encoded_bytes(tensor: &TensorInfo, ty: GgmlType) -> u64 {
    // The input's sizes were checked when it was opened, and no target is larger than f32.
    let elements = tensor.dims.iter().fold(1u64, |product, dim| product.saturating_mul(*dim));
    (elements / ty.block_elements()).saturating_mul(ty.block_bytes())
}

fn notices(planned: &[PlannedTensor], options: &QuantizeOptions) -> Result<Vec<Notice>> {
    let mut notices = Vec::new();
    let changed = || planned.iter().filter(|tensor| tensor.from != tensor.to);
    let again =
        || changed().filter(|tensor| tensor.from.block_elements() > 1 && tensor.from != GgmlType::Q8_0);
    if let Some(coarsest) =
        again().min_by(|a, b| a.from.bits_per_weight().total_cmp(&b.from.bits_per_weight()))
    {
        notices.push(Notice::Requantised { tensors: again().count(), from: coarsest.from });
    }
    let odd = || {
        let base = options.target.base.block_elements();
        changed()
            .filter(move |tensor| tensor.dims.first().is_some_and(|columns| !columns.is_multiple_of(base)))
    };
    for to in GgmlType::all() {
        let tensors = odd().filter(|tensor| tensor.to == to).count();
        if tensors > 0 {
            notices.push(Notice::OddRows { tensors, to });
        }
    }
    if let Some(imatrix) = &options.imatrix {
        let quantised = || changed().filter(|tensor| tensor.to.block_elements() > 1);
        // Embeddings are looked up, not multiplied: no statistics exist.
        let unknown = || {
            quantised().filter(|tensor| imatrix.get(&tensor.name).is_none() && !tensor.name.contains("_embd"))
        };
        if let Some(first) = unknown().next() {
            notices.push(Notice::NoImportance { tensors: unknown().count(), example: first.name.clone() });
        }
        let known = quantised().filter_map(|tensor| imatrix.get(&tensor.name));
        let experts = known
            .filter(|entry| entry.counts().len() > 1)
            .map(|entry| entry.counts().iter().filter(|count| **count == 0.0).count())
            .sum();
        if experts > 0 {
            notices.push(Notice::UnseenExperts { experts });
        }
    }
    Ok(notices)
}

/// Quantises the model at `input` into `output`.
///
/// Memory stays at a few MiB per thread, whatever the size of the model. The output appears under its name when it is
/// complete and has been read back; until then it is `OUTPUT.part`, which a rerun with the same input and options continues.
///
/// # Errors
/// A broken or truncated input, weights that cannot be encoded, a full disk, a stop, or a size that cannot be reached.
pub fn quantize(
    input: impl AsRef<Path>,
    output: impl AsRef<Path>,
    options: &QuantizeOptions,
    progress: &dyn Progress,
) -> Result<QuantizeReport> {
    let model = Gguf::open(input.as_ref())?;
    let mut plan = plan(&model, options)?;
    let scaling = match &options.imatrix {
        Some(imatrix) if options.awq => {
            let types: Vec<GgmlType> = plan.tensors.iter().map(nested::stand_in).collect();
            let scaling = in_pool(options.threads, || awq::search(&model, &types, imatrix, progress))?;
            let Scaling { groups, scaled, error_ratio, .. } = scaling;
            plan.notices.push(Notice::Scaled { groups, scaled, error_ratio });
            scaling
        }
        _ => Scaling::default(),
    };
    let source = Source::new(&model)?;
    let work: Vec<Work<'_>> = model
        .tensors()
        .iter()
        .zip(&plan.tensors)
        .enumerate()
        .map(|(index, (tensor, planned))| {
            let factors = scaling.factors.get(&index).cloned().unwrap_or_default();
            Work::new(tensor, (planned.to, planned.nested), options.imatrix.as_ref(), factors)
        })
        .collect::<Result<_>>()?;
    let mut metadata = model.metadata().clone();
    metadata.insert("general.quantization_version", 2u32);
    metadata.insert("general.file_type", options.target.id);
    for key in ["split.no", "split.count", "split.tensors.count"] {
        metadata.remove(key);
    }
    if options.nested {
        metadata.insert(VERSION_KEY, VERSION);
    }
    let targets = plan
        .tensors
        .iter()
        .map(|tensor| Target {
            planes: tensor.nested,
            ..Target::whole(tensor.name.clone(), tensor.dims.clone(), tensor.to)
        })
        .collect();
    let assembly = Assembly {
        path: output.as_ref(),
        metadata,
        targets,
        fingerprint: fingerprint(&model, options)?,
        threads: options.threads,
        progress,
    };
    let bytes = assembly.run(|piece, out| match work.get(piece.tensor) {
        Some(work) => work.encode(&source, piece, out),
        None => Ok(()),
    })?;
    Ok(QuantizeReport { bytes, plan })
}

/// Runs parallel work with so many threads; 0 is one per core.
fn in_pool<R: Send>(threads: usize, work: impl FnOnce() -> Result<R> + Send) -> Result<R> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    pool.map_err(|error| Error::Threads { threads, why: error.to_string() })?.install(work)
}

/// Identifies what the output depends on, apart from its header: the input files and the importance matrix.
fn fingerprint(model: &Gguf, options: &QuantizeOptions) -> Result<u64> {
    let mut hash = Xxh3::new();
    hash.update(env!("CARGO_PKG_VERSION").as_bytes());
    for shard in model.shards() {
        hash.update(&(shard.bytes().len() as u64).to_le_bytes());
        let Some(path) = shard.path() else { continue };
        let metadata = std::fs::metadata(path).map_err(Error::io("look at", path))?;
        let modified =
            metadata.modified().ok().and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
        hash.update(&modified.unwrap_or_default().as_nanos().to_le_bytes());
        hash.update(path.as_os_str().as_encoded_bytes());
    }
    hash.update(&[u8::from(options.awq)]);
    for (name, entry) in options.imatrix.iter().flat_map(Imatrix::iter) {
        hash.update(name.as_bytes());
        for matrix in 0..entry.counts().len() {
            let values = [entry.mean_squares(matrix), entry.mean_magnitudes(matrix)];
            for value in values.into_iter().flatten().flatten() {
                hash.update(&value.to_le_bytes());
            }
        }
    }
    Ok(hash.digest())
}

/// How one tensor is made.
struct Work<'a> {
    tensor: &'a TensorInfo,
    columns: u64,
    to: GgmlType,
    /// In two planes.
    nested: bool,
    /// Per matrix; empty without statistics.
    importance: Vec<Importance>,
    factors: Factors,
}

impl<'a> Work<'a> {
    fn new(
        tensor: &'a TensorInfo,
        (to, nested): (GgmlType, bool),
        imatrix: Option<&Imatrix>,
        factors: Factors,
    ) -> Result<Work<'a>> {
        let columns = tensor.dims.first().copied().unwrap_or(1).max(1);
        let mut work = Work { tensor, columns, to, nested, importance: Vec::new(), factors };
        if work.is_copy() {
            return Ok(work);
        }
        if format(tensor.ty.id()).is_none() {
            return Err(Error::CannotDecode { tensor: tensor.name.clone(), ty: tensor.ty });
        }
        let Some(encoder) = encoder(to) else { return Err(Error::CannotEncode { ty: to }) };
        let entry =
            imatrix.filter(|_| encoder.uses_importance()).and_then(|imatrix| imatrix.get(&tensor.name));
        if let Some(entry) = entry {
            let matrices = tensor.dims.iter().skip(2).product::<u64>().max(1);
            let mismatch =
                |found: usize| Error::ImatrixShape { tensor: tensor.name.clone(), columns, matrices, found };
            work.importance = entry
                .for_matrices(columns, matrices, &work.factors.columns)
                .map_err(mismatch)?
                .map_err(|fault| Error::Imatrix {
                    path: Default::default(),
                    fault: ImatrixError::Value { name: tensor.name.clone(), fault },
                })?;
        }
        Ok(work)
    }

    /// Whether its bytes stay as they are.
    fn is_copy(&self) -> bool {
        self.to == self.tensor.ty && !self.nested && self.factors == Factors::default()
    }

    fn encode(&self, source: &Source<'_>, piece: &Piece, out: &mut [u8]) -> Result<()> {
        if self.is_copy() {
            return source.read(self.tensor, piece.first, piece.count, |bytes| {
                out.copy_from_slice(bytes.get(..out.len()).unwrap_or(bytes));
            });
        }
        let mut weights = vec![0f32; piece.count];
        source.decode(self.tensor, piece.first, &mut weights)?;
        self.factors.apply(piece.first, self.columns, &mut weights);
        let importance = self.importance_of(piece.first, piece.count);
        let encoder = if self.nested { Some(&NESTED) } else { encoder(self.to) };
        let Some(encoder) = encoder else { return Err(Error::CannotEncode { ty: self.to }) };
        encoder.encode_weighted(&weights, importance.as_deref(), out).map_err(|fault| {
            let index = match fault {
                EncodeError::NotFinite { index, .. } | EncodeError::TooLarge { index, .. } => index,
                _ => 0,
            };
            let element = piece.first + index as u64;
            Error::Weight {
                tensor: self.tensor.name.clone(),
                row: element / self.columns,
                column: element % self.columns,
                fault,
            }
        })
    }

    /// The importance of each weight of a run that may cross rows and experts.
    fn importance_of(&self, first: u64, count: usize) -> Option<Vec<f32>> {
        if self.importance.is_empty() {
            return None;
        }
        let rows = self.tensor.dims.get(1).copied().unwrap_or(1).max(1);
        let mut out = Vec::with_capacity(count);
        let mut at = first;
        while out.len() < count {
            let (row, column) = (at / self.columns, (at % self.columns) as usize);
            let weights = self.importance.get((row / rows) as usize).map_or(&[][..], Importance::weights);
            let rest = weights.get(column..).unwrap_or_default();
            let rest = rest.get(..count - out.len()).unwrap_or(rest);
            if rest.is_empty() {
                return None;
            }
            out.extend_from_slice(rest);
            at += rest.len() as u64;
        }
        Some(out)
    }
}
