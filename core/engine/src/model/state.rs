//! What a sequence is: keys and values of its tokens, and the states of recurrent layers.
//!
//! A state cannot forget its last tokens the way a KV cache can. So beside the current state a sequence keeps an older one,
//! the *base*, and a journal of what each token since then brought to it. Going back is to replay the journal from the base up
//! to the wanted token, which needs no weights:
//!
//! ```text
//! tokens   0 ------------ origin ======== covered -- len
//!                         base    journal            state
//! truncate to l, or a failed step, with origin <= l <= covered:   covered = l; the state is stale
//! a layer's turn in the next step:   if its state is stale: base takes the journal up to len; state = base
//!                                    state takes the new tokens; the journal takes them too, if the step is short
//! before a step:   if the journal does not reach len, or grew long: base = state
//! ```
//!
//! So what speculation and failed steps need (back to the start of the last step, and some tokens further) always works,
//! for two states and a journal of some tokens; a step of many tokens (prefill) is not journalled and costs at most one copy.

use super::spec::RecurrentSpec;
use crate::kv::{Heat, Sequence};
use crate::memory::{Accountant, Category, Reservation, zeroed};
use crate::residency::View;
use crate::{Error, Result};
use std::ops::Range;

/// Steps of up to this many tokens are journalled.
const SHORT_STEP: usize = 16;
/// So many of the last tokens of a step can be forgotten: the first one of a journalled step stays.
pub(super) const UNDO: usize = SHORT_STEP - 1;
/// A journal that starts a step with more tokens than this begins anew, so that it holds at most three short steps.
const RENEW: usize = SHORT_STEP;
const CAPACITY: usize = 3 * SHORT_STEP;

/// One text, as a runner remembers it.
#[derive(Debug)]
pub struct ModelSequence {
    pub(super) kv: Sequence,
    pub(super) recurrent: Option<RecurrentState>,
    /// For policies that watch attention.
    pub(super) heat: Option<Heat>,
    /// The weights that all of its tokens are computed with.
    pub(super) view: View,
}

impl ModelSequence {
    /// How many tokens it has.
    pub fn len(&self) -> usize {
        self.kv.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.kv.is_empty()
    }
}

/// The states of all recurrent layers of one text.
#[derive(Debug)]
pub(super) struct RecurrentState {
    layers: Vec<Layer>,
    state: Vec<f32>,
    base: Vec<f32>,
    /// Per layer a ring of [`CAPACITY`] rows.
    journal: Vec<f32>,
    len: usize,
    origin: usize,
    covered: usize,
    /// The step that runs is journalled.
    journalling: bool,
    _held: Reservation,
}

#[derive(Clone, Copy, Debug)]
struct Layer {
    spec: RecurrentSpec,
    /// Where its state begins.
    state_at: usize,
    /// Where its journal begins.
    journal_at: usize,
    /// Its base holds the tokens before this one.
    base_len: usize,
    /// Its state is not that of the tokens before `len`.
    stale: bool,
}

/// Bytes of the states of one sequence.
pub(super) fn bytes(layers: &[RecurrentSpec]) -> u64 {
    let values = |spec: &RecurrentSpec| 2 * spec.state_len() as u64 + (CAPACITY * spec.row_len()) as u64;
    layers.iter().map(|spec| values(spec).saturating_mul(4)).fold(0, u64::saturating_add)
}

impl RecurrentState {
    /// The state of no tokens.
    ///
    /// # Errors
    /// [`Error::OutOfBudget`], [`Error::OutOfMemory`].
    pub fn new(specs: &[RecurrentSpec], accountant: &Accountant) -> Result<RecurrentState> {
        let held = accountant.reserve(Category::Kv, bytes(specs))?;
        let (mut state_len, mut journal_len) = (0usize, 0usize);
        let too_large = || Error::internal("sizes of recurrent states overflow");
        let mut layers = Vec::with_capacity(specs.len());
        for &spec in specs {
            let (state_at, journal_at) = (state_len, journal_len);
            layers.push(Layer { spec, state_at, journal_at, base_len: 0, stale: false });
            state_len = state_len.checked_add(spec.state_len()).ok_or_else(too_large)?;
            journal_len = spec
                .row_len()
                .checked_mul(CAPACITY)
                .and_then(|rows| rows.checked_add(journal_len))
                .ok_or_else(too_large)?;
        }
        Ok(RecurrentState {
            layers,
            state: zeroed(state_len, Category::Kv)?,
            base: zeroed(state_len, Category::Kv)?,
            journal: zeroed(journal_len, Category::Kv)?,
            len: 0,
            origin: 0,
            covered: 0,
            journalling: false,
            _held: held,
        })
    }

    /// A copy.
    ///
    /// # Errors
    /// [`Error::OutOfBudget`], [`Error::OutOfMemory`].
    pub fn fork(&self, accountant: &Accountant) -> Result<RecurrentState> {
        let specs: Vec<RecurrentSpec> = self.layers.iter().map(|layer| layer.spec).collect();
        let mut fork = RecurrentState::new(&specs, accountant)?;
        fork.layers.copy_from_slice(&self.layers);
        fork.state.copy_from_slice(&self.state);
        fork.base.copy_from_slice(&self.base);
        fork.journal.copy_from_slice(&self.journal);
        (fork.len, fork.origin, fork.covered) = (self.len, self.origin, self.covered);
        Ok(fork)
    }

    /// The state after `len` tokens, from [`RecurrentState::values`].
    ///
    /// # Errors
    /// [`Error::OutOfBudget`], [`Error::OutOfMemory`]; values of another length.
    pub fn of(
        specs: &[RecurrentSpec],
        len: usize,
        values: &[f32],
        accountant: &Accountant,
    ) -> Result<RecurrentState> {
        let mut state = RecurrentState::new(specs, accountant)?;
        if values.len() != state.state.len() {
            return Err(Error::internal("a recurrent state of another length"));
        }
        state.state.copy_from_slice(values);
        state.base.copy_from_slice(values);
        state.layers.iter_mut().for_each(|layer| layer.base_len = len);
        (state.len, state.origin, state.covered) = (len, len, len);
        Ok(state)
    }

    /// The current state of all layers; `None` if the next step has yet to make it from the journal.
    pub fn values(&self) -> Option<Vec<f32>> {
        (!self.layers.iter().any(|layer| layer.stale)).then(|| self.state.clone())
    }

    /// A step of `n` tokens begins.
    pub fn begin(&mut self, n: usize) {
        let stale = self.layers.iter().any(|layer| layer.stale);
        if !stale && (self.covered < self.len || self.len - self.origin > RENEW) {
            self.base.copy_from_slice(&self.state);
            self.layers.iter_mut().for_each(|layer| layer.base_len = self.len);
            (self.origin, self.covered) = (self.len, self.len);
        }
        self.journalling = n <= SHORT_STEP && self.len - self.origin + n <= CAPACITY;
    }

    /// The step has succeeded.
    pub fn commit(&mut self, n: usize) {
        // Layers that were stale have moved their bases to the beginning of this step.
        self.origin = self.layers.iter().map(|layer| layer.base_len).min().unwrap_or(self.len);
        self.len += n;
        if self.journalling {
            self.covered = self.len;
        }
    }

    /// The step has failed: its tokens are forgotten.
    pub fn rollback(&mut self) {
        self.layers.iter_mut().for_each(|layer| layer.stale = true);
    }

    /// Whether [`RecurrentState::truncate`] can go back to `len` tokens.
    pub fn can_truncate(&self, len: usize) -> bool {
        let first = self.layers.iter().map(|layer| layer.base_len).max().unwrap_or(0);
        len == 0 || len == self.len || (first..=self.covered).contains(&len)
    }

    /// Forgets the tokens from `len` on; only if it can.
    pub fn truncate(&mut self, len: usize) {
        if len == self.len || !self.can_truncate(len) {
            return;
        }
        if len == 0 {
            self.base.fill(0.0);
            self.layers.iter_mut().for_each(|layer| layer.base_len = 0);
            self.origin = 0;
        }
        (self.len, self.covered) = (len, len);
        self.rollback();
    }

    /// A layer's parts, for the tokens of a step from its token `start` on.
    ///
    /// # Errors
    /// Only for mistakes of the caller.
    pub fn layer(&mut self, index: usize, start: usize) -> Result<LayerState<'_>> {
        let len = self.len;
        let layer = self
            .layers
            .get_mut(index)
            .ok_or_else(|| Error::internal(format!("no recurrent layer {index}")))?;
        let states = layer.state_at..layer.state_at + layer.spec.state_len();
        let rows = layer.journal_at..layer.journal_at + CAPACITY * layer.spec.row_len();
        let replay = if layer.stale { layer.base_len..len } else { 0..0 };
        let parts = self.state.get_mut(states.clone()).zip(self.base.get_mut(states));
        let ((state, base), journal) = parts
            .zip(self.journal.get_mut(rows))
            .ok_or_else(|| Error::internal("parts of a recurrent state"))?;
        let (spec, next) = (layer.spec, len + start);
        Ok(LayerState { state, base, journal, spec, replay, next, journalling: self.journalling, layer, len })
    }
}

/// The state of one layer, while its turn lasts.
pub(super) struct LayerState<'a> {
    pub state: &'a mut [f32],
    pub base: &'a mut [f32],
    journal: &'a mut [f32],
    spec: RecurrentSpec,
    /// Journalled tokens that the base must take before it becomes the state, if that is stale.
    pub replay: Range<usize>,
    /// Position of the first new token.
    next: usize,
    journalling: bool,
    layer: &'a mut Layer,
    len: usize,
}

impl LayerState<'_> {
    /// Whether the state must be made from the base.
    pub fn is_stale(&self) -> bool {
        self.layer.stale
    }

    /// The base, and what a journalled token brought: channels, then the gates.
    pub fn base_and_row(&mut self, position: usize) -> (&mut [f32], &[f32]) {
        let width = self.spec.row_len();
        (&mut *self.base, &self.journal[position % CAPACITY * width..][..width])
    }

    /// The base has taken the replayed tokens: it is the state now.
    pub fn refreshed(&mut self) {
        self.state.copy_from_slice(self.base);
        self.layer.base_len = self.len;
        self.layer.stale = false;
        self.replay = 0..0;
    }

    /// Keeps what new tokens bring, unless there are too many.
    pub fn record(&mut self, x: &[f32], gates: [&[f32]; 2]) {
        if !self.journalling {
            return;
        }
        let (channels, heads, width) = (self.spec.channels, self.spec.v_heads(), self.spec.row_len());
        for (i, x) in x.chunks_exact(channels).enumerate() {
            let row = &mut self.journal[(self.next + i) % CAPACITY * width..][..width];
            let (to, rest) = row.split_at_mut(channels);
            to.copy_from_slice(x);
            for (to, gate) in rest.chunks_exact_mut(heads.max(1)).zip(gates) {
                to.copy_from_slice(&gate[i * heads..(i + 1) * heads]);
            }
        }
    }
}
