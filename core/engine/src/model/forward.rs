//! The seam between models and sessions.

use crate::kv::{Evicted, PageReads};
use crate::memory::{MemoryPressure, ThermalLevel};
use crate::residency::View;
use crate::{CancelFlag, Error, Result};
use pannier_kernels::PAGE_TOKENS;
use std::io::{Read, Seek, Write};
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

/// How a prompt is best cut into steps. The logits do not depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromptSteps {
    /// A step ends at the last multiple of this that lies before the prompt's last token: only there can the sequence be published.
    pub border: Option<usize>,
    /// The last step has at least so many tokens, if the prompt has.
    pub last: usize,
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

    /// Forgets all tokens from index `len` on, or, where that cannot be, from the border of a page below it: keys that are rounded
    /// per channel are cut only there. Gives how many tokens are left; `None` if neither could be done.
    ///
    /// # Errors
    /// Those of [`Forward::truncate`] but `CannotTruncate`.
    fn truncate_near(&mut self, seq: &mut Self::Seq, len: usize) -> Result<Option<usize>> {
        for len in [len, len / PAGE_TOKENS * PAGE_TOKENS] {
            match self.truncate(seq, len) {
                Err(Error::CannotTruncate { .. }) => {}
                result => return result.map(|()| Some(len)),
            }
        }
        Ok(None)
    }

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

    /// What queries of successful steps have read of the KV cache so far, where they may leave pages out; zero if they read all of it.
    fn page_reads(&self) -> PageReads {
        PageReads::default()
    }

    /// Makes what `seq` has read, which is `tokens`, available to sequences that begin alike. Costs no memory that others need.
    fn publish(&mut self, seq: &Self::Seq, tokens: &[u32]) {
        let _ = (seq, tokens);
    }

    /// How many of the first tokens need no work because another sequence has read them.
    fn published(&mut self, tokens: &[u32]) -> usize {
        let _ = tokens;
        0
    }

    /// A sequence that has read so many of the first tokens; `None` if there are none. Its logits are bit for bit those of
    /// a sequence that read them itself.
    ///
    /// # Errors
    /// [`crate::Error::OutOfBudget`].
    fn resume(&mut self, tokens: &[u32]) -> Result<Option<Self::Seq>> {
        let _ = tokens;
        Ok(None)
    }

    /// How a prompt is best cut into steps.
    fn prompt_steps(&self) -> PromptSteps {
        PromptSteps::default()
    }

    /// Forgets what the policy of the cache does not keep.
    ///
    /// # Errors
    /// [`crate::Error::OutOfBudget`]; `seq` is as it was then.
    fn evict(&mut self, seq: &mut Self::Seq) -> Result<Evicted> {
        let _ = seq;
        Ok(Evicted::default())
    }

    /// The same before a step of `next` tokens, but only if it is configured to be done then, or memory has become critically
    /// scarce. Gives what is gone, if anything is.
    ///
    /// # Errors
    /// As for [`evict`](Self::evict).
    fn make_room(
        &mut self,
        seq: &mut Self::Seq,
        next: usize,
        pressure: Option<MemoryPressure>,
    ) -> Result<Option<Evicted>> {
        let _ = (seq, next, pressure);
        Ok(None)
    }

    /// Writes `seq`, which has read `tokens`, so that [`restore`](Self::restore) can bring it back in another process.
    ///
    /// # Errors
    /// [`crate::Error::Unsupported`], and those of writing.
    fn save(&mut self, seq: &Self::Seq, tokens: &[u32], out: &mut dyn Write) -> Result<()> {
        let _ = (seq, tokens, out);
        Err(crate::Error::Unsupported { what: "saving sequences of this kind of model".into() })
    }

    /// A saved sequence and its tokens.
    ///
    /// # Errors
    /// [`crate::Error::BadCacheFile`] for files that are damaged, or of another model or other settings;
    /// [`crate::Error::OutOfBudget`].
    fn restore<R: Read + Seek>(&mut self, input: &mut R) -> Result<(Self::Seq, Vec<u32>)> {
        let _ = input;
        Err(crate::Error::Unsupported { what: "restoring sequences of this kind of model".into() })
    }

    /// The device is hot, or no longer: fewer threads, and nothing read ahead. Gives how many threads run from the next step on, or
    /// `None` if nothing depends on heat. No result does.
    fn cool(&mut self, level: ThermalLevel) -> Option<usize> {
        let _ = level;
        None
    }

    /// Whether it can compute with this view of the weights.
    fn has_view(&self, view: View) -> bool {
        view == View::Full
    }

    /// Sequences that are made, resumed or restored from now on are computed with this view; those that are there keep theirs.
    ///
    /// # Errors
    /// [`crate::Error::Unsupported`] if there is no such view.
    fn set_view(&mut self, view: View) -> Result<()> {
        match view {
            View::Full => Ok(()),
            View::Low => Err(crate::Error::Unsupported { what: "a low view of this kind of model".into() }),
        }
    }

    /// The view that all tokens of `seq` are computed with.
    fn view(seq: &Self::Seq) -> View {
        let _ = seq;
        View::Full
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
