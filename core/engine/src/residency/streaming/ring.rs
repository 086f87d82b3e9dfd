//! Dense weights that do not fit: the same parts in the same order, pass after pass.

use super::{Failure, Shared, Waited};
use crate::memory::{Category, Reservation};
use crate::residency::View;
use crate::residency::extent::{Extents, Slab};
use crate::{Error, Result};
use std::sync::Arc;

/// The buffers, and what is in them.
#[derive(Debug)]
pub(super) struct Ring {
    /// What each turn of a pass reads.
    turns: Vec<Arc<Extents>>,
    buffers: Vec<Buffer>,
    /// The turn to read next.
    next: usize,
    /// The planes to read.
    view: View,
    _held: Reservation,
}

#[derive(Debug)]
struct Buffer {
    /// Away while a lane fills it.
    slab: Option<Arc<Slab>>,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Empty,
    Reading(usize),
    Ready(usize),
    /// How many guards.
    Used(usize, u32),
    Failed(usize, Failure),
}

impl Content {
    fn turn(&self) -> Option<usize> {
        match *self {
            Content::Empty => None,
            Content::Reading(turn)
            | Content::Ready(turn)
            | Content::Used(turn, _)
            | Content::Failed(turn, _) => Some(turn),
        }
    }
}

impl Ring {
    pub fn new(reads: Vec<Extents>, buffers: usize, bytes: u64, held: Reservation) -> Result<Ring> {
        let bytes = usize::try_from(bytes).map_err(|_| Error::internal("a buffer of this size"))?;
        let buffer = || -> Result<Buffer> {
            let slab = Some(Arc::new(Slab::new(bytes, Category::Cache)?));
            Ok(Buffer { slab, content: Content::Empty })
        };
        Ok(Ring {
            turns: reads.into_iter().map(Arc::new).collect(),
            buffers: (0..buffers).map(|_| buffer()).collect::<Result<_>>()?,
            next: 0,
            view: View::Full,
            _held: held,
        })
    }

    pub fn is_ready(&self, turn: usize) -> bool {
        self.buffers.iter().any(|b| matches!(b.content, Content::Ready(t) | Content::Used(t, _) if t == turn))
    }

    pub fn release(&mut self, turn: usize) {
        for buffer in &mut self.buffers {
            if let Content::Used(t, guards) = &mut buffer.content
                && *t == turn
            {
                *guards -= 1;
                if *guards == 0 {
                    buffer.content = Content::Empty;
                }
                return;
            }
        }
    }

    /// Between passes: from now on, other planes are wanted, and what was read ahead may lack them.
    pub fn set_view(&mut self, view: View) {
        if view == View::Full {
            self.go_to(0);
        }
        // What failed may have failed in planes that nobody wants any more.
        for buffer in &mut self.buffers {
            if let Content::Failed(..) = buffer.content {
                buffer.content = Content::Empty;
            }
        }
        self.view = view;
    }

    /// A buffer that can be filled, and with what.
    fn job(&mut self) -> Option<(usize, Arc<Slab>, usize, Arc<Extents>)> {
        let turn = self.next;
        let extents = Arc::clone(self.turns.get(turn)?);
        let index = self.buffers.iter().position(|buffer| matches!(buffer.content, Content::Empty))?;
        let buffer = self.buffers.get_mut(index)?;
        let slab = buffer.slab.take()?;
        buffer.content = Content::Reading(turn);
        self.next = (turn + 1) % self.turns.len();
        Some((index, slab, turn, extents))
    }

    /// The pass went elsewhere than was expected: a step was cancelled, or another began. What was read ahead is useless,
    /// except for buffers of turns that come soon after `turn`.
    fn go_to(&mut self, turn: usize) {
        for buffer in &mut self.buffers {
            if let Content::Ready(_) | Content::Failed(..) = buffer.content {
                buffer.content = Content::Empty;
            }
        }
        self.next = turn;
    }
}

/// The part of this turn; waits until it is there.
pub(super) fn take(shared: &Shared, turn: usize) -> Result<Arc<Slab>> {
    let mut state = shared.lock();
    let mut waited = None;
    loop {
        let ring = &mut state.ring;
        // What was read for turns before this one will not be asked for in this pass.
        let found = ring.buffers.iter_mut().find(|buffer| buffer.content.turn() == Some(turn));
        match found {
            Some(buffer) => match &mut buffer.content {
                Content::Reading(_) | Content::Empty => {}
                Content::Ready(_) => {
                    buffer.content = Content::Used(turn, 1);
                    let slab = buffer.slab.clone();
                    let behind = skip_before(ring, turn);
                    if behind {
                        shared.work.notify_all();
                    }
                    return slab.ok_or_else(|| Error::internal("a ready buffer without its slab"));
                }
                Content::Used(_, guards) => {
                    *guards += 1;
                    return buffer
                        .slab
                        .clone()
                        .ok_or_else(|| Error::internal("a used buffer without its slab"));
                }
                Content::Failed(..) => {
                    let failed = std::mem::replace(&mut buffer.content, Content::Empty);
                    // The next attempt reads it again.
                    ring.go_to(turn);
                    if let Content::Failed(_, failure) = failed {
                        return Err(failure.error());
                    }
                }
            },
            None => {
                // Also when it is the next to be read: the pass before may have ended early, and what was read for its end fills
                // all buffers; or a read for another turn has failed, and the reader pauses until that is forgotten.
                ring.go_to(turn);
                shared.work.notify_all();
            }
        }
        waited.get_or_insert_with(|| Waited::begin(shared));
        state = shared.wait(&shared.arrived, state);
    }
}

/// Empties buffers of turns that the pass has skipped (the output head of a chunk without logits).
fn skip_before(ring: &mut Ring, turn: usize) -> bool {
    // Whatever is ready lies in (turn, next), cyclically; the rest was left behind.
    let (len, next) = (ring.turns.len(), ring.next);
    let ahead = (next + len - turn) % len;
    let mut any = false;
    for buffer in &mut ring.buffers {
        if let Content::Ready(t) = buffer.content {
            let distance = (t + len - turn) % len;
            // `ahead` is 0 when the next read is this turn again: then all others are ahead.
            if ahead != 0 && distance > ahead {
                buffer.content = Content::Empty;
                any = true;
            }
        }
    }
    any
}

/// The reader thread.
pub(super) fn read_ahead(shared: &Shared) {
    let mut state = shared.lock();
    while !shared.stopped() {
        let Some((index, slab, turn, extents)) = state.ring.job() else {
            state = shared.wait(&shared.work, state);
            continue;
        };
        let view = state.ring.view;
        drop(state);
        let (slab, result) = fill(shared, slab, &extents, view);
        state = shared.lock();
        let other = view != state.ring.view;
        let lacks = view == View::Low && state.ring.view == View::Full;
        if let Some(buffer) = state.ring.buffers.get_mut(index) {
            buffer.slab = Some(slab);
            buffer.content = match result {
                // Whoever waits for this turn asks for it again.
                Ok(()) if lacks => Content::Empty,
                Ok(()) => Content::Ready(turn),
                Err(_) if other => Content::Empty,
                Err(failure) => Content::Failed(turn, failure),
            };
        }
        let failed = state.ring.buffers.iter().any(|buffer| matches!(buffer.content, Content::Failed(..)));
        shared.arrived.notify_all();
        if failed {
            // Reading on would fail again and again; whoever needs the part asks anew.
            while !shared.stopped()
                && state.ring.buffers.iter().any(|buffer| matches!(buffer.content, Content::Failed(..)))
            {
                state = shared.wait(&shared.work, state);
            }
        }
    }
}

/// Reads into a slab that nobody else has.
pub(super) fn fill(
    shared: &Shared,
    mut slab: Arc<Slab>,
    extents: &Extents,
    view: View,
) -> (Arc<Slab>, Result<(), Failure>) {
    let result = match Arc::get_mut(&mut slab) {
        Some(own) => shared.read(extents, own, view),
        None => Err(Failure::Other("a buffer is still in use".to_owned())),
    };
    (slab, result)
}
