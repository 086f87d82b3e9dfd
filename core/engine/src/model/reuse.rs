//! What a runner does with sequences besides computing them: sharing prefixes, forgetting, saving.

use std::io::{Read, Seek, Write};

use pannier_gguf::nested::FINE;
use sha2::{Digest, Sha256};

use super::loaded::LoadedModel;
use super::runner::Runner;
use super::state::{ModelSequence, RecurrentState};
use crate::kv::{EvictWhen, Evicted, Fingerprint, Heat, KvPolicy, Limits, Saved};
use crate::memory::MemoryPressure;
use crate::residency::View;
use crate::{Error, Result};

/// Counts up when the same tokens give other keys and values than before.
const NUMERICS: u32 = 1;

impl LoadedModel {
    /// What identifies the model's file: its metadata, and of each tensor name, shape, type and first bytes. Reading all of the
    /// weights would take as long as computing what is to be saved.
    fn identity(&self, view: View) -> Result<[u8; 32]> {
        let mut sum = Sha256::new();
        for (key, value) in self.gguf().metadata().iter() {
            sum.update(format!("{key:?}={value:?};"));
        }
        for tensor in self.gguf().tensors() {
            sum.update(format!("{:?}{:?}{:?};", tensor.name, tensor.dims, tensor.ty));
            if view == View::Low && tensor.name.ends_with(FINE) {
                continue;
            }
            let data = self.gguf().tensor_data(tensor)?;
            sum.update(data.get(..data.len().min(64)).unwrap_or_default());
        }
        Ok(sum.finalize().into())
    }
}

/// Prefixes of one view are none of the other.
fn root(view: View) -> u64 {
    match view {
        View::Full => 0,
        View::Low => 1,
    }
}

impl Runner {
    /// The heat of a new sequence, if the policy watches attention.
    pub(super) fn new_heat(&self) -> Result<Option<Heat>> {
        if !self.kv.options().policy.watches() {
            return Ok(None);
        }
        let heads = self.model().spec().attention.iter().map(|layer| layer.shape.heads).max().unwrap_or(0);
        Heat::new(self.kv.watched_heads(), heads, &self.accountant).map(Some)
    }

    fn has_states(&self) -> bool {
        !self.model().spec().recurrent.is_empty()
    }

    /// Makes what a sequence has read available to sequences that begin alike.
    pub(super) fn publish_sequence(&mut self, seq: &ModelSequence, tokens: &[u32]) {
        let checkpoint = match &seq.recurrent {
            None => None,
            Some(state) => match state.fork(&self.accountant) {
                Ok(state) => Some(Box::new(state) as crate::kv::Checkpoint),
                // No memory to keep it in: nothing is published, nothing is lost.
                Err(_) => return,
            },
        };
        self.kv.set_root(root(seq.view));
        self.kv.publish(&seq.kv, tokens, checkpoint);
    }

    /// A sequence of the longest known prefix of `tokens`.
    pub(super) fn resume_sequence(&mut self, tokens: &[u32]) -> Result<Option<ModelSequence>> {
        let states = self.has_states();
        let heat = self.new_heat()?;
        self.kv.set_root(root(self.view));
        let Some((kv, checkpoint)) = self.kv.resume(tokens, states) else { return Ok(None) };
        let recurrent = match checkpoint.and_then(|state| state.downcast_ref::<RecurrentState>()) {
            Some(state) => Some(state.fork(&self.accountant)?),
            None if states => return Err(Error::internal("a prefix without its states")),
            None => None,
        };
        let mut seq = ModelSequence { kv, recurrent, heat, view: self.view };
        if let Some(heat) = &mut seq.heat {
            let len = seq.kv.len();
            heat.begin(0, 0, len)?;
            heat.commit(0, 0, len);
        }
        Ok(Some(seq))
    }

    /// How many tokens a resumed sequence would have.
    pub(super) fn published_tokens(&mut self, tokens: &[u32]) -> usize {
        let states = self.has_states();
        self.kv.set_root(root(self.view));
        self.kv.published(tokens, states)
    }

    /// Forgets what `policy` does not keep of a sequence.
    ///
    /// # Errors
    /// [`Error::OutOfBudget`]; the sequence is as it was then.
    pub fn evict_with(&mut self, seq: &mut ModelSequence, policy: KvPolicy) -> Result<Evicted> {
        self.kv.evict(&mut seq.kv, policy, seq.heat.as_mut())
    }

    pub(super) fn evict_before(
        &mut self,
        seq: &mut ModelSequence,
        next: usize,
        pressure: Option<MemoryPressure>,
    ) -> Result<Option<Evicted>> {
        let options = *self.kv.options();
        let Some(keeps) = options.policy.keeps() else { return Ok(None) };
        let due = match options.evict {
            EvictWhen::Above(slack) => {
                self.kv.slots(&seq.kv).saturating_add(next) > keeps.saturating_add(slack)
            }
            EvictWhen::Asked => false,
        };
        if !due && pressure != Some(MemoryPressure::Critical) {
            return Ok(None);
        }
        let evicted = self.evict_with(seq, options.policy)?;
        if pressure == Some(MemoryPressure::Critical) {
            self.kv.trim();
        }
        Ok(Some(evicted).filter(|evicted| evicted.gone > 0))
    }

    /// What the keys and values of this runner depend on besides the tokens.
    fn fingerprint(&self, view: View) -> Result<Fingerprint> {
        let mut sum = Sha256::new();
        sum.update(self.model().identity(view)?);
        let spec = self.model().spec();
        sum.update(format!(
            "{NUMERICS};{};{:?};{:?};{:?};{:?};{:?}",
            spec.context,
            spec.attention,
            spec.recurrent,
            spec.ropes,
            self.precision,
            self.kv.options().types
        ));
        // Policies that forget leave the keys and values that stay as they are; what a query reads is in those of the next layer.
        if self.kv.options().policy.reads().is_some() {
            sum.update(self.kv.options().policy.to_string());
        }
        if view == View::Low {
            sum.update("low");
        }
        Ok(sum.finalize().into())
    }

    pub(super) fn save_sequence(
        &mut self,
        seq: &ModelSequence,
        tokens: &[u32],
        out: &mut dyn Write,
    ) -> Result<()> {
        if tokens.len() != seq.len() {
            return Err(Error::internal("a sequence is saved with tokens that are not its own"));
        }
        let state = match &seq.recurrent {
            None => Vec::new(),
            Some(state) => state.values().ok_or_else(|| Error::Unsupported {
                what: "saving a sequence with recurrent layers right after it was shortened".into(),
            })?,
        };
        let saved = Saved { tokens: tokens.to_vec(), state };
        let fingerprint = self.fingerprint(seq.view)?;
        self.kv.save(&seq.kv, &fingerprint, &saved, out).map_err(|source| Error::Io {
            action: "write",
            path: "the saved sequence".into(),
            source,
        })
    }

    pub(super) fn restore_sequence<R: Read + Seek>(
        &mut self,
        input: &mut R,
    ) -> Result<(ModelSequence, Vec<u32>)> {
        let spec = self.model().spec();
        let state = spec.recurrent.iter().map(|layer| layer.state_len()).sum();
        let limits = Limits { context: spec.context, vocab: spec.vocab, state };
        let layers = spec.recurrent.clone();
        let fingerprint = self.fingerprint(self.view)?;
        let heat = self.new_heat()?;
        let (kv, saved) = self.kv.restore(&fingerprint, &limits, input)?;
        let recurrent = match layers.as_slice() {
            [] => None,
            layers => Some(RecurrentState::of(layers, kv.len(), &saved.state, &self.accountant)?),
        };
        let mut seq = ModelSequence { kv, recurrent, heat, view: self.view };
        if let Some(heat) = &mut seq.heat {
            let slots = self.kv.slots(&seq.kv);
            heat.begin(0, 0, slots)?;
            heat.commit(0, 0, slots);
        }
        Ok((seq, saved.tokens))
    }
}
