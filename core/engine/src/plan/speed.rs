//! How fast it will be.
//!
//! ```text
//! compute   = sum over matrices that a token touches of bytes / rate(block format, precision) + regions * what a region costs
//! attention = sum over layers of bytes of K and V / rate of such layers, or, where that was not measured, of
//!             max(bytes of K and V / rate of f16, operations / f16 operations per second), of the tokens that are read; where a query chooses pages, also that of their summaries, of all tokens
//! flash     = (bytes streamed by every pass + bytes of missed experts) / flash bandwidth   behind computing
//! cost      = bytes read * computing that is lost to reading a byte
//! stalls    = sum over layers, mean over how many experts are missed, of
//!             max(0, reading these - computing with those there)                          known only when the router has run
//!
//! decode T  = max(compute + attention + cost + stalls, flash)
//! prefill T = max(operations / rate, flash of a chunk), a chunk of some size touching every expert
//! ```
//!
//! The rates of a measured device differ by block format and precision by up to a factor of three; of a device on paper only one is
//! known.

use super::speculation::PassTimes;
use super::{Bound, DeviceProfile, FormatRate, Plan};
use crate::kv::KvPolicy;
use crate::model::{Blueprint, PrecisionTable, Role};
use crate::residency::{UnitKind, UnitTensor, View};
use pannier_gguf::GgmlType;
use pannier_kernels::{PAGE_TOKENS, Precision};
use std::collections::BTreeMap;

/// What decoding a token takes, in seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenTime {
    /// Products with weights, and starting them.
    pub compute: f64,
    /// Attention, per token before this one: seconds, and how many such tokens a layer looks at.
    pub attention: Vec<(f64, usize)>,
    /// All reading, were nothing else to do.
    pub flash: f64,
    /// Waiting for experts that are not there.
    pub stalls: f64,
}

impl TokenTime {
    /// Of a token behind `position` others.
    pub fn total(&self, position: usize) -> f64 {
        (self.compute + self.attending(position) + self.stalls).max(self.flash)
    }

    /// Attention of a token behind `position` others.
    pub fn attending(&self, position: usize) -> f64 {
        self.attention.iter().map(|&(seconds, most)| seconds * position.min(most) as f64).sum()
    }
}

/// Parallel regions of a layer: products, what is between them, attention.
const REGIONS: f64 = 12.0;
/// The type of keys and values in attention, whose products cost what those with a matrix of this format do.
const F16: u32 = 1;

/// What products cost on a device.
struct Rates<'a>(&'a DeviceProfile);

impl Rates<'_> {
    fn of(&self, format: u32, precision: Precision) -> FormatRate {
        let exact = precision == Precision::Q16;
        let device = self.0;
        let known = |exact: bool| {
            device.rates.iter().find(|rate| rate.format == format && rate.exact == exact).copied()
        };
        // Float formats know no precision, so they are measured once.
        known(exact).or_else(|| known(false)).unwrap_or(FormatRate {
            format,
            exact,
            decode_bps: device.decode_bps,
            gflops: device.gflops,
        })
    }
}

/// The format whose rate stands for that of a matrix. Planes are unpacked with the same instructions as the format of their bits, and devices are
/// measured with types of GGUF.
fn rated_as(info: &UnitTensor) -> u32 {
    let format = info.format_in(View::Full);
    match (format.is_in_files() || format.interleaved > 1, info.fine) {
        (true, _) => format.id,
        (false, Some(_)) => GgmlType::Q5_K.id(),
        (false, None) => GgmlType::Q3_K.id(),
    }
}

/// What all matrices of a pass take.
#[derive(Default)]
struct Sums {
    /// Seconds of a token with the dense matrices, and with the experts that it uses.
    dense: f64,
    experts: f64,
    /// Bytes of the experts that it uses.
    touched: f64,
    /// Seconds per token of a chunk.
    prefill: f64,
}

fn sums(model: &Blueprint, rates: &Rates<'_>, precision: &PrecisionTable) -> Sums {
    let layout = model.layout();
    let count = expert_layers(model);
    let mut sums = Sums::default();
    for &(tensor, role) in model.roles() {
        let (Ok(unit), Ok(info)) = (layout.unit(tensor.unit()), layout.tensor(tensor)) else { continue };
        let bytes = info.bytes_in(View::Full) as f64;
        let rate = rates.of(rated_as(info), precision.get(role));
        let seconds = bytes / rate.decode_bps;
        let operations = 2.0 * info.rows as f64 * info.cols as f64;
        let share = match unit.kind {
            UnitKind::Expert { layer, .. } => {
                let all = count.get(&layer).copied().unwrap_or(1).max(1) as f64;
                (model.experts_used() as f64 / all).min(1.0)
            }
            _ => 1.0,
        };
        if let UnitKind::Expert { .. } = unit.kind {
            sums.experts += share * seconds;
            sums.touched += share * bytes;
        } else {
            sums.dense += seconds;
        }
        // One row of a chunk needs logits.
        if role != Role::Head {
            sums.prefill += share * operations / (rate.gflops * 1e9);
        }
    }
    sums
}

fn attention(model: &Blueprint, rates: &Rates<'_>, policy: KvPolicy) -> Vec<(f64, usize)> {
    let rate = rates.of(F16, Precision::Q8);
    let chosen = policy.reads().map(|pages| pages.saturating_mul(PAGE_TOKENS));
    let mut by_window = BTreeMap::<usize, f64>::new();
    for layer in &model.spec().attention {
        let shape = layer.shape;
        let width = (shape.k_dim + shape.v_dim) as f64;
        let read = 2.0 * shape.kv_heads as f64 * width / rate.decode_bps;
        let operations = 2.0 * shape.heads as f64 * width / (rate.gflops * 1e9);
        let measured = rates.0.attention_rate(&shape);
        let seconds =
            measured.map_or(read.max(operations), |rate| 2.0 * shape.kv_heads as f64 * width / rate.bps);
        let most = layer.window.or(chosen).unwrap_or(usize::MAX);
        *by_window.entry(most).or_default() += seconds;
        if layer.window.is_none() && chosen.is_some() {
            // Two halves per channel and page; one query stands for the heads that share it.
            let summaries = 4.0 * (shape.kv_heads * shape.k_dim) as f64 / PAGE_TOKENS as f64;
            *by_window.entry(usize::MAX).or_default() += summaries / rate.decode_bps;
        }
    }
    by_window.into_iter().map(|(window, seconds)| (seconds, window)).collect()
}

impl Plan {
    /// Fills in the speeds.
    pub(super) fn speed(
        &mut self,
        model: &Blueprint,
        device: &DeviceProfile,
        precision: &PrecisionTable,
        policy: KvPolicy,
    ) {
        let residency = &self.residency;
        let rates = Rates(device);
        let sums = sums(model, &rates, precision);
        let hits = match residency.experts {
            0 => None,
            _ if residency.mapped => Some(1.0),
            all => Some(expected_hits(f64::from(residency.slots) / f64::from(all), share_used(model))),
        };
        let missed = sums.touched * (1.0 - hits.unwrap_or(1.0));
        let streamed = residency.streamed_bytes as f64 + missed;
        let regions = REGIONS * model.spec().layers as f64;
        let time = TokenTime {
            compute: sums.dense + sums.experts + regions * device.region_s + streamed * device.flash_cost_s,
            attention: attention(model, &rates, policy),
            flash: streamed / device.flash_bps,
            stalls: hits.map_or(0.0, |hits| stalls(model, device, &sums, hits)),
        };
        // Half the context is a fair guess of where an answer is.
        let position = self.context / 2;
        self.decode_tok_s = 1.0 / time.total(position).max(1e-9);
        self.streamed_bytes_per_token = streamed as u64;
        self.expert_hit_rate = hits;
        let own = time.compute + time.attending(position);
        self.bound_by = if time.flash.max(time.stalls) > own { Bound::Flash } else { Bound::Memory };

        self.times = PassTimes {
            memory: time.compute - sums.experts + time.attending(position),
            experts: sums.experts,
            share: share_used(model),
            flash: residency.streamed_bytes as f64 / device.flash_bps,
            stalls: time.stalls,
            missed: missed / device.flash_bps,
            compute: sums.prefill,
        };

        let chunk = self.chunk as f64;
        // A chunk of some size touches nearly every expert.
        let misses = residency.expert_bytes as f64
            * (1.0 - f64::from(residency.slots) / f64::from(residency.experts.max(1)))
            * f64::from(u8::from(!residency.mapped));
        let chunk_flash = (residency.streamed_bytes as f64 + misses) / device.flash_bps;
        self.prefill_tok_s = chunk / (sums.prefill * chunk).max(chunk_flash).max(1e-9);
        self.time = time;
    }

    /// Tokens per second behind `position` other tokens.
    pub fn decode_tok_s_at(&self, position: usize) -> f64 {
        1.0 / self.time.total(position).max(1e-9)
    }
}

/// Waiting for experts, per token. A layer knows what it misses when its router has run, so that only its own experts that are there hide the
/// reading, and a layer that misses one has no other to read beside it. Misses are taken as independent.
fn stalls(model: &Blueprint, device: &DeviceProfile, sums: &Sums, hits: f64) -> f64 {
    let layers = expert_layers(model).len() as f64;
    let used = model.experts_used();
    let experts = layers * used as f64;
    let (bytes, compute) = (sums.touched / experts.max(1.0), sums.experts / experts.max(1.0));
    let (mut ways, mut layer) = (1.0, 0.0);
    for missed in 1..=used {
        let (m, there) = (missed as f64, (used - missed) as f64);
        ways *= (there + 1.0) / m;
        let probability = ways * (1.0 - hits).powf(m) * hits.powf(there);
        let flash_bps = device.flash_bps * device.lone_read.max((m * device.lone_read).min(1.0));
        layer += probability * (m * bytes / flash_bps - there * compute).max(0.0);
    }
    layers * layer
}

/// The experts of each layer that has some.
fn expert_layers(model: &Blueprint) -> BTreeMap<usize, u64> {
    let mut layers = BTreeMap::new();
    for unit in model.layout().units() {
        if let UnitKind::Expert { layer, .. } = unit.kind {
            *layers.entry(layer).or_default() += 1;
        }
    }
    layers
}

/// The share of a layer's experts that a token uses, over all layers that have some; 0 without experts.
fn share_used(model: &Blueprint) -> f64 {
    let layers = expert_layers(model);
    let all = layers.values().sum::<u64>() as f64;
    if all > 0.0 { (model.experts_used() as f64 * layers.len() as f64 / all).min(1.0) } else { 0.0 }
}

/// Hits of the default policy when a `share` of all experts has slots and a token uses a share `used` of them.
///
/// Slots that hold as many experts as a token uses, a few times over, catch what routing repeats; the rest is met by chance, which is
/// the share itself: `share + (1 - share) * repeats(share / used)`. The curve lies below what was seen: gpt-oss-120b, the recorded
/// trace with fewer hits, repeats 0.11 to 0.14 more up to 4 times and is the curve from 6 times on; qwen3-30b-a3b repeats 0.1 to 0.2 more than that; our
/// mixture of 32 experts is at 0.38, 0.54 and 0.72 with 2.3, 4.0 and 5.7 times. A plan should rather be outdone.
fn expected_hits(share: f64, used: f64) -> f64 {
    const REPEATS: [(f64, f64); 8] = [
        (1.0, 0.24),
        (1.5, 0.30),
        (2.0, 0.36),
        (3.0, 0.44),
        (4.0, 0.51),
        (6.0, 0.70),
        (8.0, 0.74),
        (12.0, 0.78),
    ];
    share + (1.0 - share) * interpolate(&REPEATS, share / used.max(1e-9))
}

/// The value of a curve that begins at the origin and stays at its last value.
fn interpolate(curve: &[(f64, f64)], at: f64) -> f64 {
    let mut before = (0.0, 0.0);
    for &(x, y) in curve {
        if at <= x {
            let (x0, y0) = before;
            return if x > x0 { y0 + (y - y0) * (at - x0) / (x - x0) } else { y };
        }
        before = (x, y);
    }
    before.1
}
