//! The best mixture under a size.
//!
//! ```text
//! for every matrix and every type: error = Σ E[x²] (w - w')² / Σ E[x²] w²  on a sample of its rows, times its role's factor
//! start with the smallest type everywhere; while bytes are left: make the step that saves most error per byte
//! ```
//! The quotient is the noise that quantising adds to a product, relative to the product; noise of independent matrices adds.
//! Steps go along each matrix' lower convex hull of (bytes, error), which makes the greedy choice optimal up to one step.

use super::awq::Factors;
use super::mixture::{Role, quantisable, that_fits};
use super::source::Source;
use super::{QuantizeOptions, SizeLimit, Work, encoded_bytes};
use crate::encode::encoder;
use crate::{Error, Result};
use pannier_gguf::{GgmlType, Gguf, TensorInfo};
use pannier_kernels::format;
use rayon::prelude::*;

/// What quantising one matrix to one type costs.
#[derive(Debug, Clone, PartialEq)]
pub struct Sensitivity {
    /// The matrix.
    pub tensor: String,
    /// The type.
    pub ty: GgmlType,
    /// Bytes of the whole matrix.
    pub bytes: u64,
    /// Relative error of its products.
    pub error: f64,
}

/// The types a search chooses from.
const CANDIDATES: &[GgmlType] = &[
    GgmlType::Q2_K,
    GgmlType::Q3_K,
    GgmlType::IQ4_XS,
    GgmlType::Q4_K,
    GgmlType::Q5_K,
    GgmlType::Q6_K,
    GgmlType::Q8_0,
];

/// Weights looked at per matrix: 64 pieces of 2048 spread over it estimate the error within about 2%.
const SAMPLES: u64 = 64;
const SAMPLE: u64 = 2048;

/// How much an error of this role counts. These factors are a judgement that was not fitted to anything: the measured part of a
/// matrix' sensitivity is the error of its products; what becomes of that error further on is not measured. The values and the second feed-forward matrix write into the residual stream
/// unfiltered; an error of queries and keys is dampened by the softmax; the output matrix is the last, nothing averages it out.
fn factor(role: Role, tied: bool) -> f64 {
    match role {
        Role::Output => 2.0,
        Role::Embedding if tied => 2.0,
        Role::Value | Role::Fused => 1.5,
        Role::Down => 1.25,
        Role::Query | Role::Key => 0.7,
        _ => 1.0,
    }
}

/// Measures every matrix of the model with every candidate type.
///
/// # Errors
/// The input cannot be read or decoded, or the importance matrix is of another model.
pub fn sensitivities(input: &Gguf, options: &QuantizeOptions) -> Result<Vec<Sensitivity>> {
    let source = Source::new(input)?;
    let measured: Vec<Vec<Sensitivity>> = input
        .tensors()
        .par_iter()
        .with_max_len(1)
        .filter(|tensor| quantisable(tensor))
        .map(|tensor| measure(tensor, &source, options))
        .collect::<Result<_>>()?;
    Ok(measured.into_iter().flatten().collect())
}

fn measure(tensor: &TensorInfo, source: &Source<'_>, options: &QuantizeOptions) -> Result<Vec<Sensitivity>> {
    let columns = tensor.dims.first().copied().unwrap_or(0);
    let elements: u64 = tensor.dims.iter().product();
    let mut types: Vec<GgmlType> = CANDIDATES.iter().map(|ty| that_fits(*ty, columns)).collect();
    // Nothing is gained beyond the bits that the input has.
    types.retain(|ty| ty.bits_per_weight() <= tensor.ty.bits_per_weight());
    types.sort_by(|a, b| a.bits_per_weight().total_cmp(&b.bits_per_weight()).then(a.cmp(b)));
    types.dedup();
    let blocks = elements / SAMPLE;
    let places: Vec<(u64, u64)> = if blocks <= SAMPLES {
        (0..elements).step_by(SAMPLE as usize).map(|first| (first, SAMPLE.min(elements - first))).collect()
    } else {
        (0..SAMPLES).map(|place| (place * blocks / SAMPLES * SAMPLE, SAMPLE)).collect()
    };
    let mut out = Vec::with_capacity(types.len());
    for ty in types {
        let (Some(encoder), Some(format)) = (encoder(ty), format(ty.id())) else { continue };
        let work = Work::new(tensor, (ty, false), options.imatrix.as_ref(), Factors::default())?;
        let (mut error, mut energy) = (0f64, 0f64);
        for (first, count) in &places {
            let count = *count as usize;
            let mut weights = vec![0f32; count];
            source.decode(tensor, *first, &mut weights)?;
            let importance = work.importance_of(*first, count);
            let bytes = count / ty.block_elements() as usize * ty.block_bytes() as usize;
            let mut encoded = vec![0; bytes];
            let mut decoded = vec![0f32; count];
            if ty == tensor.ty {
                decoded.copy_from_slice(&weights);
            } else {
                encoder.encode_weighted(&weights, importance.as_deref(), &mut encoded).map_err(|fault| {
                    Error::Weight {
                        tensor: tensor.name.clone(),
                        row: first / columns.max(1),
                        column: 0,
                        fault,
                    }
                })?;
                format.decode_row(&encoded, &mut decoded);
            }
            for (index, (x, y)) in weights.iter().zip(&decoded).enumerate() {
                let w = importance.as_ref().and_then(|w| w.get(index)).map_or(1.0, |w| f64::from(*w));
                error += w * (f64::from(*x) - f64::from(*y)).powi(2);
                energy += w * f64::from(*x).powi(2);
            }
        }
        let error = if energy > 0.0 { error / energy } else { 0.0 };
        out.push(Sensitivity { tensor: tensor.name.clone(), ty, bytes: encoded_bytes(tensor, ty), error });
    }
    Ok(out)
}

/// A type that a matrix could have: its bytes, its error times its role's factor.
type Point = (u64, f64, GgmlType);

/// The steps worth taking: bytes rise, error falls, each step's gain per byte is below the one before.
fn hull(mut points: Vec<Point>) -> Vec<Point> {
    points.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let slope = |a: &Point, b: &Point| (a.1 - b.1) / (b.0 - a.0).max(1) as f64;
    let mut hull: Vec<Point> = Vec::new();
    for point in points {
        if hull.last().is_some_and(|last| point.1 >= last.1) {
            continue;
        }
        while let [.., before, last] = hull.as_slice() {
            if slope(last, &point) < slope(before, last) {
                break;
            }
            hull.pop();
        }
        hull.push(point);
    }
    hull
}

/// Replaces the types of the matrices by the best that fit.
pub(super) fn fit(
    input: &Gguf,
    options: &QuantizeOptions,
    limit: SizeLimit,
    types: &mut [GgmlType],
) -> Result<()> {
    let tensors = input.tensors();
    let elements: u64 = tensors.iter().map(|tensor| tensor.dims.iter().product::<u64>()).sum();
    let wanted = match limit {
        // The header of the output is about that of the input.
        SizeLimit::Bytes(bytes) => bytes.saturating_sub(header_bytes(input)),
        SizeLimit::BitsPerWeight(bits) => (elements as f64 * bits.max(0.0) / 8.0) as u64,
    };
    let tied = !tensors.iter().any(|tensor| tensor.name == "output.weight");
    let fixed = |tensor: &TensorInfo| {
        !quantisable(tensor)
            || options.overrides.iter().any(|given| given.matches(&tensor.name))
            || options.keep_f16_attention && Role::of(&tensor.name).is_attention()
    };
    let measured = sensitivities(input, options)?;
    let mut used = 0u64;
    let mut choices: Vec<(usize, Vec<Point>)> = Vec::new();
    for (index, (tensor, ty)) in tensors.iter().zip(types.iter_mut()).enumerate() {
        let weight = factor(Role::of(&tensor.name), tied);
        let points: Vec<_> = measured
            .iter()
            .filter(|point| point.tensor == tensor.name)
            .map(|point| (point.bytes, point.error * weight, point.ty))
            .collect();
        let points = hull(points);
        match points.first() {
            Some(smallest) if !fixed(tensor) => {
                *ty = smallest.2;
                choices.push((index, points));
            }
            _ => {}
        }
        used = used.saturating_add(encoded_bytes(tensor, *ty).next_multiple_of(u64::from(input.alignment())));
    }
    if used > wanted {
        return Err(Error::TargetTooSmall { wanted, smallest: used });
    }
    // All steps, best first. A matrix' own steps are in order already, for their gains fall.
    let mut steps: Vec<(f64, u64, usize, GgmlType)> = Vec::new();
    for (index, points) in &choices {
        for pair in points.windows(2) {
            if let [a, b] = pair {
                steps.push(((a.1 - b.1) / (b.0 - a.0).max(1) as f64, b.0 - a.0, *index, b.2));
            }
        }
    }
    steps.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.2.cmp(&b.2)));
    let mut stopped = std::collections::HashSet::new();
    for (_, bytes, index, better) in steps {
        let fits = used.saturating_add(bytes) <= wanted && !stopped.contains(&index);
        match types.get_mut(index) {
            Some(ty) if fits => {
                *ty = better;
                used += bytes;
            }
            // Later, larger steps of this matrix start from the one that did not fit.
            _ => {
                stopped.insert(index);
            }
        }
    }
    Ok(())
}

fn header_bytes(input: &Gguf) -> u64 {
    input.shards().iter().map(|shard| shard.data_offset()).sum::<u64>().saturating_add(4096)
}
