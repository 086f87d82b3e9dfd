//! Buffers of a forward pass: sized once from the spec, so that a token allocates nothing.

use super::builder::Product;
use super::precision::PrecisionTable;
use super::spec::{AttentionSpec, ModelSpec, RopeConfig};
use crate::memory::{Accountant, Category, Reservation, zeroed};
use crate::residency::WeightStore;
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
}

/// Values per row of each buffer.
#[derive(Clone, Copy, Debug)]
struct Widths {
    embd: usize,
    q: usize,
    k: usize,
    v: usize,
    out: usize,
    ff: usize,
}

impl ScratchPlan<'_> {
    fn widths(&self) -> Widths {
        let most = |of: fn(&AttentionSpec) -> usize| self.spec.attention.iter().map(of).max().unwrap_or(0);
        Widths {
            embd: self.spec.embd,
            q: most(AttentionSpec::q_width),
            k: most(AttentionSpec::k_width),
            v: most(AttentionSpec::v_width),
            out: most(AttentionSpec::out_width),
            ff: self.spec.ff,
        }
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
        let values = (2 * w.embd + w.q + w.k + w.v + w.out + 2 * w.ff) as u64;
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
        rows.saturating_mul(4 * values + 4)
            .saturating_add(activations)
            .saturating_add(ropes)
            .saturating_add(attention)
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
        Ok(Scratch {
            x: Vec::new(),
            h: Vec::new(),
            q: Vec::new(),
            k: Vec::new(),
            v: Vec::new(),
            a: Vec::new(),
            gate: Vec::new(),
            up: Vec::new(),
            act: Activations::default(),
            attention: AttentionScratch::new(&plan.largest(), plan.threads, plan.spec.context),
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
        let Widths { embd, q, k, v, out, ff } = self.widths;
        for (buffer, width) in [
            (&mut self.x, embd),
            (&mut self.h, embd),
            (&mut self.q, q),
            (&mut self.k, k),
            (&mut self.v, v),
            (&mut self.a, out),
            (&mut self.gate, ff),
            (&mut self.up, ff),
        ] {
            replace(buffer, rows, width)?;
        }
        // Its buffers grow when they are first set; the old ones go first.
        self.act = Activations::default();
        self.rows = rows;
        Ok(())
    }

    /// Makes room for `rows` rows of logits.
    ///
    /// # Errors
    /// [`Error::OutOfBudget`], [`Error::OutOfMemory`].
    pub fn fit_logits(&mut self, rows: usize, accountant: &Accountant) -> Result<()> {
        let rows = rows.max(1);
        let len = rows.checked_mul(self.vocab).ok_or_else(|| Error::internal("rows of logits overflow"))?;
        // A step that asked for many rows was one of a kind: its memory does not stay with those that ask for one.
        if len > self.logits.len() || len < self.logits.len() / 4 {
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
