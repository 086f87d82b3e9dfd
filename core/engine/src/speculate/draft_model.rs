//! Guesses from a smaller model of the same vocabulary.
//!
//! ```text
//! forget what the draft model has read behind the last common token; read the rest of the text
//! repeat: token = draw(its logits), with the number that the answer's own draw will use; read it
//! ```
//!
//! The sampler is a copy of the answer's: the same filters and penalties, its constraints in a state of their own, the same numbers.

use super::odds::CLASSES;
use super::proposer::{Ask, Proposal, Proposer};
use crate::Result;
use crate::memory::Reservation;
use crate::model::{Forward, Outputs};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A draft model, shared by the sessions of the model that it drafts for. Whoever uses it has the turn of that model, so it is never
/// waited for; and releasing it never waits either.
pub struct Draft<F> {
    slot: Mutex<Slot<F>>,
    chunk: usize,
    bytes: u64,
    cost: f64,
}

struct Slot<F> {
    forward: Option<Box<F>>,
    held: Option<Reservation>,
    released: bool,
}

impl<F> std::fmt::Debug for Draft<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Draft").field("bytes", &self.bytes).field("cost", &self.cost).finish_non_exhaustive()
    }
}

impl<F: Forward> Draft<F> {
    /// `chunk`: tokens that it reads at once, at most. `held`: its share of the budget. `cost`: of one of its passes, as a share of
    /// one of the model's, until that is measured.
    #[must_use]
    pub fn new(forward: F, chunk: usize, held: Option<Reservation>, cost: f64) -> Self {
        let bytes = held.as_ref().map_or(0, Reservation::bytes);
        let slot = Slot { forward: Some(Box::new(forward)), held, released: false };
        Self { slot: Mutex::new(slot), chunk: chunk.max(1), bytes, cost }
    }

    fn slot(&self) -> MutexGuard<'_, Slot<F>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Frees it, now or when the guess that is being made is done. Answers how many bytes that gives back; `None` if it was released
    /// before. Never blocks.
    pub fn release(&self) -> Option<u64> {
        let (forward, held) = {
            let mut slot = self.slot();
            if std::mem::replace(&mut slot.released, true) {
                return None;
            }
            let forward = slot.forward.take();
            // Whoever uses it now gives the rest back.
            let held = if forward.is_some() { slot.held.take() } else { None };
            (forward, held)
        };
        // The memory first, then the right to it.
        drop(forward);
        drop(held);
        Some(self.bytes)
    }

    /// Whether it was released.
    #[must_use]
    pub fn is_released(&self) -> bool {
        self.slot().released
    }

    fn lend(&self) -> Option<Lent<'_, F>> {
        let forward = self.slot().forward.take()?;
        Some(Lent { draft: self, forward: Some(forward) })
    }
}

/// Gives the model back, also after a panic.
struct Lent<'a, F: Forward> {
    draft: &'a Draft<F>,
    forward: Option<Box<F>>,
}

impl<F: Forward> Drop for Lent<'_, F> {
    fn drop(&mut self) {
        let held = {
            let mut slot = self.draft.slot();
            if !slot.released {
                slot.forward = self.forward.take();
                return;
            }
            slot.held.take()
        };
        self.forward = None;
        drop(held);
    }
}

/// What a draft model has read of one session's text.
#[derive(Debug)]
pub struct DraftText<S> {
    seq: Option<S>,
    tokens: Vec<u32>,
}

impl<S> Default for DraftText<S> {
    fn default() -> Self {
        Self { seq: None, tokens: Vec::new() }
    }
}

/// Asks a draft model.
pub struct DraftModel<F: Forward> {
    draft: Arc<Draft<F>>,
    text: Arc<Mutex<DraftText<F::Seq>>>,
    batch: Vec<u32>,
    row: Vec<f32>,
    vocab: usize,
}

impl<F: Forward> std::fmt::Debug for DraftModel<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DraftModel").field("draft", &self.draft).finish_non_exhaustive()
    }
}

/// Guesses by how sure the draft model is.
fn class(probability: f32) -> usize {
    const BORDERS: [f32; CLASSES - 1] = [0.3, 0.5, 0.65, 0.8, 0.9, 0.96, 0.99];
    BORDERS.iter().take_while(|&&border| probability >= border).count()
}

impl<F: Forward> DraftModel<F> {
    /// `text` outlives the generation. `vocab`: token ids of the model that is drafted for.
    #[must_use]
    pub fn new(draft: Arc<Draft<F>>, text: Arc<Mutex<DraftText<F::Seq>>>, vocab: usize) -> Self {
        Self { draft, text, batch: Vec::new(), row: Vec::new(), vocab }
    }

    /// Bytes of buffers besides the draft model's own.
    #[must_use]
    pub fn bytes(vocab: usize) -> u64 {
        4 * vocab as u64
    }
}

impl<F: Forward> Proposer for DraftModel<F> {
    fn name(&self) -> &'static str {
        "draft"
    }

    fn prior(&self) -> [f64; CLASSES] {
        [0.25, 0.4, 0.5, 0.6, 0.7, 0.8, 0.87, 0.93]
    }

    fn cost(&self) -> f64 {
        self.draft.cost
    }

    fn backlog(&self, len: usize) -> usize {
        let text = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        len.saturating_sub(text.tokens.len())
    }

    fn propose(&mut self, ask: &Ask<'_>, out: &mut Proposal) -> Result<()> {
        let Some(mut lent) = self.draft.lend() else { return Ok(()) };
        let Some(forward) = lent.forward.as_deref_mut() else { return Ok(()) };
        let text = Arc::clone(&self.text);
        let mut text = text.lock().unwrap_or_else(PoisonError::into_inner);
        let DraftText { seq, tokens } = &mut *text;
        let context = forward.context();
        if ask.len() > context {
            return Ok(());
        }
        let seq = match seq {
            Some(seq) => seq,
            none => {
                tokens.clear();
                none.insert(forward.new_seq()?)
            }
        };
        // At least one token is read: its logits are needed.
        let common = tokens.iter().copied().zip(ask.tokens_from(0)).take_while(|(a, b)| a == b).count();
        let keep = common.min(ask.len() - 1);
        if keep < tokens.len() {
            match forward.truncate_near(seq, keep)? {
                Some(kept) => tokens.truncate(kept),
                None => {
                    forward.truncate(seq, 0)?;
                    tokens.clear();
                }
            }
        }
        self.batch.clear();
        self.batch.extend(ask.tokens_from(tokens.len()).take(self.draft.chunk));
        if self.batch.iter().any(|&t| usize::try_from(t).map_or(true, |t| t >= forward.vocab())) {
            // Padding that the draft model does not have.
            return Ok(());
        }
        if self.batch.len() > super::MAX_DRAFT {
            out.tell_read(self.batch.len());
        }
        if tokens.len() + self.batch.len() < ask.len() {
            // The rest another time: sessions that wait for their turn do not wait for a whole text.
            forward.step(seq, &self.batch, Outputs::None, ask.cancel)?;
            tokens.extend_from_slice(&self.batch);
            return Ok(());
        }
        let mut sampler = ask.sampler.fork();
        loop {
            let logits = forward.step(seq, &self.batch, Outputs::Last, ask.cancel)?;
            tokens.extend_from_slice(&self.batch);
            let logits = if logits.len() == self.vocab {
                logits
            } else {
                self.row.clear();
                self.row.extend(logits.iter().copied().take(self.vocab));
                self.row.resize(self.vocab, f32::NEG_INFINITY);
                self.row.as_slice()
            };
            // A constraint may leave nothing of what a draft model wants: the guess ends there.
            let Ok(token) = sampler.sample(logits) else { break };
            if !out.push(ask, token.id, class(token.logprob.exp())) || tokens.len() >= context {
                break;
            }
            self.batch.clear();
            self.batch.push(token.id);
            if usize::try_from(token.id).map_or(true, |t| t >= forward.vocab()) {
                break;
            }
        }
        Ok(())
    }
}
