//! The seam between models and sessions.

use crate::memory::{MemoryPressure, ThermalLevel};
use crate::{CancelFlag, Result};
use std::ops::Range;

/// Which of the tokens given to a step need logits. The output head is the largest matrix of a small model: rows that
/// nobody reads are not computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outputs {
    /// None: prefill of a chunk that is not the last.
    None,
    /// The last token only.
    Last,
    /// All tokens.
    All,
    /// The tokens from this index (into the step's tokens) to the end; none when it is beyond them.
    From(usize),
}

impl Outputs {
    /// The rows asked for, out of `n` tokens.
    pub fn rows(self, n: usize) -> Range<usize> {
        match self {
            Outputs::None => n..n,
            Outputs::Last => n.saturating_sub(1)..n,
            Outputs::All => 0..n,
            Outputs::From(first) => first.min(n)..n,
        }
    }
}

/// Something that turns tokens into logits: a model with its buffers, or a script in tests.
pub trait Forward: Send {
    /// What it remembers of one text.
    type Seq: Send;

    /// An empty sequence.
    ///
    /// # Errors
    /// [`crate::Error::OutOfBudget`].
    fn new_seq(&mut self) -> Result<Self::Seq>;

    /// How many token ids there are, and so the length of a row of logits.
    fn vocab(&self) -> usize;

    /// How many tokens a sequence can have.
    fn context(&self) -> usize;

    /// Appends `tokens` to `seq` and gives logits for the rows asked for, row after row, `vocab` floats each.
    ///
    /// The result does not depend on how a text is cut into steps. A failed or cancelled step leaves `seq` as it was.
    /// No tokens is no work.
    ///
    /// # Errors
    /// [`crate::Error::ContextFull`], [`crate::Error::TokenOutOfRange`], [`crate::Error::OutOfBudget`],
    /// [`crate::Error::Cancelled`], and what reading weights may bring.
    fn step(
        &mut self,
        seq: &mut Self::Seq,
        tokens: &[u32],
        outputs: Outputs,
        cancel: &CancelFlag,
    ) -> Result<&[f32]>;

    /// Forgets all tokens from index `len` on. A `len` of 0 always works.
    ///
    /// # Errors
    /// [`crate::Error::CannotTruncate`] when `len` is longer than the sequence, or what an earlier position needs is gone.
    fn truncate(&mut self, seq: &mut Self::Seq, len: usize) -> Result<()>;

    /// Memory is scarce, or no longer: makes what is kept only for speed as large as `pressure` allows, from the next step on. Gives
    /// the size that it will have in bytes, or `None` if there is nothing of that kind.
    fn relieve(&mut self, pressure: MemoryPressure) -> Option<u64> {
        let _ = pressure;
        None
    }

    /// How many of the last tokens of a step [`truncate`](Forward::truncate) can forget for certain, so that what is left
    /// is exactly what it was before them. Wider steps than that are not tried on a guess.
    fn undo(&self) -> usize {
        usize::MAX
    }

    /// Bytes of weights read from storage since loading; `None` if they are not streamed.
    fn flash_bytes(&self) -> Option<u64> {
        None
    }

    /// The device is hot, or no longer: fewer threads, and nothing read ahead. Gives how many threads run from the next step on, or
    /// `None` if nothing depends on heat. No result does.
    fn cool(&mut self, level: ThermalLevel) -> Option<usize> {
        let _ = level;
        None
    }

    /// How many tokens `seq` has.
    fn len(seq: &Self::Seq) -> usize;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_outputs() {
        assert_eq!(Outputs::None.rows(3), 3..3);
        assert_eq!(Outputs::Last.rows(3), 2..3);
        assert_eq!(Outputs::Last.rows(0), 0..0);
        assert_eq!(Outputs::All.rows(3), 0..3);
        assert_eq!(Outputs::From(1).rows(3), 1..3);
        assert_eq!(Outputs::From(9).rows(3), 3..3);
    }
}
