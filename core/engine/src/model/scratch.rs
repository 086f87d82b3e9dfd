//! Buffers of a forward pass: sized once from the spec, so that a token allocates nothing.

use super::builder::Product;
use super::precision::{PrecisionTable, Role};
use super::routing::Groups;
use super::spec::{AttentionSpec, ModelSpec, MoeSpec, RopeConfig};
use crate::memory::{Accountant, Category, Reservation, zeroed};
use crate::residency::{UnitId, WeightStore};
use crate::{Error, Result};
use pannier_kernels::{Activations, AttentionScratch, AttentionShape, Need, Precision, RopeSpec, RopeTable};

/// What the buffers follow from.
#[derive(Clone, Copy, Debug)]
pub struct ScratchPlan<'a> {
    /// The model.
    pub spec: &'a ModelSpec,
    /// Its products.
    pub products: &'a [Product],
    /// Their precisions.
    pub precision: &'a PrecisionTable,
    /// The most tokens that are computed together.
    pub chunk: usize,
    /// Threads.
    pub threads: usize,
    /// Whether queries choose the pages that they read.
    pub chooses: bool,
}

/// Rows of logits that stay once they were asked for: those of a step that checks a few guessed tokens.
const FEW_ROWS: usize = 9;

/// Values per row of each buffer.
#[derive(Clone, Copy, Debug)]
struct Widths {
    embd: usize,
    q: usize,
    k: usize,
    v: usize,
    out: usize,
    ff: usize,
    mix: usize,
    z: usize,
    conv: usize,
    heads: usize,
    per_layer: usize,
    moe: Option<MoeSpec>,
}

impl ScratchPlan<'_> {
    fn widths(&self) -> Widths {
        let most = |of: fn(&AttentionSpec) -> usize| self.spec.attention.iter().map(of).max().unwrap_or(0);
        let mut w = Widths {
            embd: self.spec.embd,
            q: most(AttentionSpec::q_width),
            k: most(AttentionSpec::k_width),
            v: most(AttentionSpec::v_width),
            out: most(AttentionSpec::out_width),
            // The gate of a layer's own embedding takes turns with that of the feed-forward block.
            ff: self.spec.ff.max(self.spec.per_layer),
            mix: 0,
            z: 0,
            conv: 0,
            heads: 0,
            per_layer: self.spec.layers * self.spec.per_layer,
            moe: self.spec.moe,
        };
        let gated = self.spec.attention.iter().filter(|attention| attention.gated);
        w.z = gated.map(AttentionSpec::q_width).max().unwrap_or(0);
        w.mix = 2 * w.z;
        for layer in &self.spec.recurrent {
            let out = layer.out_width();
            // b, c, x of a short convolution.
            w.mix = w.mix.max(if layer.delta.is_some() { layer.channels } else { 3 * layer.channels });
            w.z = w.z.max(out);
            w.out = w.out.max(out);
            // Also takes all inputs of a delta net, before they are put in order.
            w.conv = w.conv.max(layer.channels + if layer.delta.is_some() { out } else { 0 });
            w.heads = w.heads.max(layer.v_heads());
        }
        w
    }

    /// The forms that products of a kind read.
    fn need(&self, role: Role) -> Need {
        let none = Need::default();
        self.products.iter().filter(|product| product.role == role).fold(none, |need, product| {
            need.and(match (product.quantised, self.precision.get(product.role)) {
                (false, _) => Need { f32: true, ..none },
                (true, Precision::Q8) => Need { q8: true, ..none },
                (true, Precision::Q16) => Need { q16: true, ..none },
            })
        })
    }

    /// Bytes of the buffers for experts.
    fn moe_bytes(&self) -> u64 {
        let Some(moe) = self.spec.moe else { return 0 };
        let (rows, embd) = (self.chunk, self.spec.embd);
        let capacity = rows.max(moe.used);
        let uses = rows.saturating_mul(moe.used);
        // sum, the shared expert's result, scores and its share
        let per_row = 2 * embd + moe.experts + 1;
        let per_slot = 2 * moe.ff + embd;
        let values = rows.saturating_mul(per_row).saturating_add(capacity.saturating_mul(per_slot));
        let activations = Activations::bytes_for(capacity, embd, self.need(Role::GateUp))
            .saturating_add(Activations::bytes_for(capacity, moe.ff, self.need(Role::Down)))
            .saturating_add(Activations::bytes_for(rows, self.spec.ff, self.need(Role::Down)));
        // Per use: expert, weight, its place, its token, its row in a batch.
        let lists = uses.saturating_mul(2 + 4 + 12 + 4 + 4);
        values.saturating_mul(4).saturating_add(activations).saturating_add(lists) as u64
    }

    /// A shape that working memory for all layers can be made for.
    fn largest(&self) -> AttentionShape {
        let most = |of: fn(&AttentionShape) -> usize| {
            self.spec.attention.iter().map(|layer| of(&layer.shape)).max().unwrap_or(1)
        };
        AttentionShape {
            heads: most(|shape| shape.heads),
            kv_heads: most(|shape| shape.kv_heads),
            k_dim: most(|shape| shape.k_dim),
            v_dim: most(|shape| shape.v_dim),
        }
    }

    /// Columns of the widest activations in each form: f32, Q8, Q16.
    fn activations(&self) -> [(Need, usize); 3] {
        let none = Need::default();
        let mut forms = [
            (Need { f32: true, ..none }, 0),
            (Need { q8: true, ..none }, 0),
            (Need { q16: true, ..none }, 0),
        ];
        for product in self.products {
            let need = match (product.quantised, self.precision.get(product.role)) {
                (false, _) => Need { f32: true, ..none },
                (true, Precision::Q8) => Need { q8: true, ..none },
                (true, Precision::Q16) => Need { q16: true, ..none },
            };
            for (form, cols) in &mut forms {
                if *form == need {
                    *cols = product.cols.max(*cols);
                }
            }
        }
        forms
    }

    /// Bytes of all buffers, with one row of logits.
    pub fn bytes(&self) -> u64 {
        let w = self.widths();
        let values = 2 * w.embd + w.q + w.k + w.v + w.out + 2 * w.ff + w.mix + w.z + w.conv + 4 * w.heads;
        let values = (values + w.per_layer) as u64;
        let rows = self.chunk as u64;
        let activations: u64 = self
            .activations()
            .iter()
            .map(|&(need, cols)| Activations::bytes_for(self.chunk, cols, need) as u64)
            .sum();
        let ropes: u64 = self
            .spec
            .ropes
            .iter()
            .map(|rope| RopeTable::bytes(rope.style, rope.n_rot, self.chunk) as u64)
            .sum();
        let attention = AttentionScratch::bytes(&self.largest(), self.threads, self.spec.context) as u64;
        let choosing = if self.chooses {
            AttentionScratch::choosing_bytes(&self.largest(), self.threads, self.spec.context) as u64
        } else {
            0
        };
        rows.saturating_mul(4 * values + 4)
            .saturating_add(activations)
            .saturating_add(ropes)
            .saturating_add(self.moe_bytes())
            .saturating_add(attention)
            .saturating_add(choosing)
            .saturating_add(4 * self.spec.vocab as u64)
    }
}

/// The buffers. All are `rows x width`, row after row.
#[derive(Debug)]
pub struct Scratch {
    /// The residual stream: rows x embd.
    pub(super) x: Vec<f32>,
    /// Input and output of blocks: rows x embd.
    pub(super) h: Vec<f32>,
    /// Queries: rows x heads x k_dim.
    pub(super) q: Vec<f32>,
    /// Keys: rows x kv_heads x k_dim.
    pub(super) k: Vec<f32>,
    /// Values: rows x kv_heads x v_dim.
    pub(super) v: Vec<f32>,
    /// Result of attention: rows x heads x v_dim.
    pub(super) a: Vec<f32>,
    /// Gate, and then the gated activations: rows x ff.
    pub(super) gate: Vec<f32>,
    /// Up: rows x ff.
    pub(super) up: Vec<f32>,
    /// Inputs of recurrent layers, or queries with their gates.
    pub(super) mix: Vec<f32>,
    /// Gates of attention or of a delta net: rows x width.
    pub(super) z: Vec<f32>,
    /// Convolved inputs of recurrent layers.
    pub(super) conv: Vec<f32>,
    /// Both gates of the heads of a delta net, mixed, and each alone: rows x 2 heads, rows x heads.
    pub(super) gates: Vec<f32>,
    pub(super) decay: Vec<f32>,
    pub(super) beta: Vec<f32>,
    /// What each layer has of a token for itself: rows x layers x width.
    pub(super) per_layer: Vec<f32>,
    /// For experts.
    pub(super) moe: Option<MoeScratch>,
    /// What the matrices read.
    pub(super) act: Activations,
    pub(super) attention: AttentionScratch,
    /// Rows asked for x vocab.
    pub(super) logits: Vec<f32>,
    /// Rows that the buffers have room for.
    rows: usize,
    widths: Widths,
    chunk: usize,
    vocab: usize,
    _held: Reservation,
    /// For more than one row of logits.
    more_logits: Option<Reservation>,
}

impl Scratch {
    /// Takes all from the budget that a pass of `plan.chunk` tokens will need. Pages are touched as passes grow.
    ///
    /// # Errors
    /// [`Error::OutOfBudget`].
    pub fn new(plan: &ScratchPlan<'_>, accountant: &Accountant) -> Result<Scratch> {
        let held = accountant.reserve(Category::Scratch, plan.bytes())?;
        let mut attention = AttentionScratch::new(&plan.largest(), plan.threads, plan.spec.context);
        if plan.chooses {
            attention = attention.choosing(&plan.largest(), plan.threads, plan.spec.context);
        }
        Ok(Scratch {
            x: Vec::new(),
            h: Vec::new(),
            q: Vec::new(),
            k: Vec::new(),
            v: Vec::new(),
            a: Vec::new(),
            gate: Vec::new(),
            up: Vec::new(),
            mix: Vec::new(),
            z: Vec::new(),
            conv: Vec::new(),
            gates: Vec::new(),
            decay: Vec::new(),
            beta: Vec::new(),
            per_layer: Vec::new(),
            moe: plan.spec.moe.map(|_| MoeScratch::default()),
            act: Activations::default(),
            attention,
            logits: Vec::new(),
            rows: 0,
            widths: plan.widths(),
            chunk: plan.chunk,
            vocab: plan.spec.vocab,
            _held: held,
            more_logits: None,
        })
    }

    /// Makes room for a pass of `rows` tokens (at most the chunk of the plan).
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn fit(&mut self, rows: usize) -> Result<()> {
        if rows > self.chunk {
            return Err(Error::internal(format!("a pass of {rows} tokens, planned for {}", self.chunk)));
        }
        if rows <= self.rows {
            return Ok(());
        }
        // By powers of two: prompts of slowly growing length must not allocate each time.
        let rows = rows.next_power_of_two().min(self.chunk);
        self.rows = 0;
        let Widths { embd, q, k, v, out, ff, mix, z, conv, heads, per_layer, moe } = self.widths;
        for (buffer, width) in [
            (&mut self.x, embd),
            (&mut self.h, embd),
            (&mut self.q, q),
            (&mut self.k, k),
            (&mut self.v, v),
            (&mut self.a, out),
            (&mut self.gate, ff),
            (&mut self.up, ff),
            (&mut self.mix, mix),
            (&mut self.z, z),
            (&mut self.conv, conv),
            (&mut self.gates, 2 * heads),
            (&mut self.decay, heads),
            (&mut self.beta, heads),
            (&mut self.per_layer, per_layer),
        ] {
            replace(buffer, rows, width)?;
        }
        if let Some((scratch, spec)) = self.moe.as_mut().zip(moe) {
            scratch.fit(rows, embd, &spec)?;
        }
        // Its buffers grow when they are first set; the old ones go first.
        self.act = Activations::default();
        self.rows = rows;
        Ok(())
    }

    /// Values of a row of [`Scratch::per_layer`].
    pub(super) fn per_layer_width(&self) -> usize {
        self.widths.per_layer
    }

    /// Gives back the rows of logits that were kept for speed. Answers whether there were any.
    pub fn give_back_logits(&mut self) -> bool {
        if self.more_logits.is_none() {
            return false;
        }
        self.logits = Vec::new();
        self.more_logits = None;
        true
    }

    /// Makes room for `rows` rows of logits.
    ///
    /// # Errors
    /// [`Error::OutOfBudget`], [`Error::OutOfMemory`].
    pub fn fit_logits(&mut self, rows: usize, accountant: &Accountant) -> Result<()> {
        let rows = rows.max(1);
        let len = rows.checked_mul(self.vocab).ok_or_else(|| Error::internal("rows of logits overflow"))?;
        // A step that asked for many rows was one of a kind: its memory does not stay with those that ask for one. But steps that check a
        // few guessed tokens alternate with plain ones, and pages that come and go cost more than they hold.
        let few = FEW_ROWS.saturating_mul(self.vocab);
        if len > self.logits.len() || (len < self.logits.len() / 4 && self.logits.len() > few) {
            self.logits = Vec::new();
            self.more_logits = None;
            let more = 4 * (len - self.vocab) as u64;
            if more > 0 {
                self.more_logits = Some(accountant.reserve(Category::Scratch, more)?);
            }
            self.logits = zeroed(len, Category::Scratch)?;
        }
        Ok(())
    }
}

/// Buffers for experts. A *use* is one token's use of one expert; a *wave* is some experts, whose uses fit into the buffers.
#[derive(Debug, Default)]
pub(super) struct MoeScratch {
    /// Experts of each token of this pass.
    pub used: usize,
    /// Uses in a wave.
    pub capacity: usize,
    /// The router's: rows x experts.
    pub scores: Vec<f32>,
    /// Rows x used, by falling score.
    pub chosen: Vec<u16>,
    pub weights: Vec<f32>,
    pub groups: Groups,
    /// Units of the experts that are used.
    pub units: Vec<UnitId>,
    /// Units that the next layer will probably use.
    pub guesses: Vec<UnitId>,
    /// Working memory of the choice.
    pub ranked: Vec<(u32, f32)>,
    pub biased: Vec<f32>,
    /// Capacity x ff.
    pub gate: Vec<f32>,
    pub up: Vec<f32>,
    /// Capacity x embd.
    pub y: Vec<f32>,
    /// Rows x embd.
    pub sum: Vec<f32>,
    pub shared_y: Vec<f32>,
    /// The shared expert's weight for each row.
    pub shared_share: Vec<f32>,
    /// Rows of some buffer, in the order in which a batch reads them.
    pub index: Vec<u32>,
    pub act_in: Activations,
    pub act_down: Activations,
    pub act_shared: Activations,
}

impl MoeScratch {
    fn fit(&mut self, rows: usize, embd: usize, spec: &MoeSpec) -> Result<()> {
        // An expert has at most as many uses as there are tokens; a single token's experts are one wave.
        let capacity = rows.max(spec.used);
        let uses = rows.checked_mul(spec.used).ok_or_else(|| Error::internal("uses of experts overflow"))?;
        *self = MoeScratch::default();
        self.capacity = capacity;
        for (buffer, rows, width) in [
            (&mut self.scores, rows, spec.experts),
            (&mut self.weights, rows, spec.used),
            (&mut self.gate, capacity, spec.ff),
            (&mut self.up, capacity, spec.ff),
            (&mut self.y, capacity, embd),
            (&mut self.sum, rows, embd),
            (&mut self.shared_y, rows, embd),
            (&mut self.shared_share, rows, 1),
        ] {
            replace(buffer, rows, width)?;
        }
        self.chosen = zeroed(uses, Category::Scratch)?;
        self.groups.uses = zeroed(uses, Category::Scratch)?;
        self.groups.tokens = zeroed(uses, Category::Scratch)?;
        self.index = zeroed(uses.max(capacity), Category::Scratch)?;
        Ok(())
    }
}

/// A buffer of another size; the old content goes first, so that both never exist at once.
fn replace(buffer: &mut Vec<f32>, rows: usize, width: usize) -> Result<()> {
    *buffer = Vec::new();
    let len = rows.checked_mul(width).ok_or_else(|| Error::internal("size of a buffer overflows"))?;
    *buffer = zeroed(len, Category::Scratch)?;
    Ok(())
}

impl RopeConfig {
    /// The table for batches of up to `rows` positions.
    ///
    /// # Errors
    /// Parameters that make no sense.
    pub fn table(&self, weights: &dyn WeightStore, rows: usize) -> Result<RopeTable> {
        let factors = self.factors.map(|factors| weights.vector(factors)).transpose()?;
        RopeTable::new(
            &RopeSpec {
                style: self.style,
                n_rot: self.n_rot,
                freq_base: self.freq_base,
                freq_scale: self.freq_scale,
                factors,
                yarn: self.yarn,
                attn_factor: self.attn_factor,
            },
            rows,
        )
        .map_err(|error| Error::Unsupported { what: error.to_string() })
    }
}
