//! What need not be read again: what this session has read, and what another one has.

use std::fs::File;
use std::io::{BufReader, BufWriter, Seek, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::core::{Cache, SessionCore};
use super::{Model, SessionError};
use crate::kv::Evicted;
use crate::model::{Forward, PromptSteps};
use crate::residency::View;
use crate::{Error, Result};

/// How much of a prompt is there already.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Reused {
    /// Tokens that need no work.
    pub kept: usize,
    /// Tokens that this session has read before and must read again.
    pub lost: usize,
}

/// Brings the cache to the longest part of `prompt` that is known, but not all of it: the logits of its last token are needed.
pub(super) fn reuse<F: Forward>(
    model: &Model<F>,
    cache: &mut Option<Cache<F::Seq>>,
    prompt: &[u32],
    view: View,
    stop: impl Fn() -> bool,
) -> Result<Reused> {
    let wanted = prompt.get(..prompt.len().saturating_sub(1)).unwrap_or_default();
    // Keys and values of another view are of no use. What the draft model has read still is.
    let other = cache.take_if(|have| F::view(&have.seq) != view).map(|other| (other.tokens, other.draft));
    let Some(have) = cache.as_mut() else {
        let seq = model.forward.with(stop, |forward| -> Result<_> {
            forward.set_view(view)?;
            match forward.resume(wanted)? {
                Some(seq) => Ok(seq),
                None => forward.new_seq(),
            }
        })??;
        let kept = F::len(&seq);
        let tokens = wanted.get(..kept).unwrap_or_default().to_vec();
        let (before, draft) = other.unwrap_or_default();
        *cache = Some(Cache { tokens, draft, ..Cache::new(seq) });
        let common = before.iter().zip(wanted).take_while(|(a, b)| a == b).count();
        return Ok(Reused { kept, lost: common.saturating_sub(kept) });
    };
    let common = have.tokens.iter().zip(wanted).take_while(|(a, b)| a == b).count();
    if common == have.tokens.len() && common > 0 {
        return Ok(Reused { kept: common, lost: 0 });
    }
    let (kept, seq) = model.forward.with(stop, |forward| -> Result<_> {
        forward.set_view(view)?;
        let other = |forward: &mut F| -> Result<Option<(usize, Option<F::Seq>)>> {
            Ok(forward.resume(wanted)?.map(|seq| (F::len(&seq), Some(seq))))
        };
        if forward.published(wanted) > common
            && let Some(other) = other(forward)?
        {
            return Ok(other);
        }
        if let Some(kept) = forward.truncate_near(&mut have.seq, common)? {
            return Ok((kept, None));
        }
        match other(forward)? {
            Some(other) => Ok(other),
            None => forward.truncate(&mut have.seq, 0).map(|()| (0, None)),
        }
    })??;
    if let Some(seq) = seq {
        have.seq = seq;
    }
    have.tokens.clear();
    have.tokens.extend_from_slice(wanted.get(..kept).unwrap_or_default());
    Ok(Reused { kept, lost: common.saturating_sub(kept) })
}

/// The steps in which the tokens `from..end` of a prompt are read.
pub(super) fn steps(how: PromptSteps, chunk: usize, from: usize, end: usize) -> Vec<Range<usize>> {
    let border =
        how.border.filter(|&border| border > 0).map(|border| end.saturating_sub(1) / border * border);
    let last = (how.last > 0).then(|| end.saturating_sub(how.last));
    let mut ends: Vec<usize> =
        [border, last].into_iter().flatten().filter(|at| (from + 1..end).contains(at)).collect();
    ends.push(end);
    ends.sort_unstable();
    let mut steps = Vec::new();
    let mut at = from;
    for end in ends {
        while at < end {
            let next = end.min(at + chunk.max(1));
            steps.push(at..next);
            at = next;
        }
    }
    steps
}

fn no_cache() -> Error {
    SessionError::NothingRead.into()
}

impl<F: Forward> SessionCore<F> {
    /// Forgets what the policy of the cache does not keep.
    pub fn evict(self: &Arc<Self>) -> Result<Evicted> {
        let mut admission = self.admit()?;
        match admission.cache_mut() {
            Some(cache) => self.model.forward.with(|| false, |forward| forward.evict(&mut cache.seq))?,
            None => Ok(Evicted::default()),
        }
    }

    /// Writes what was read to a file, which is there whole or not at all.
    pub fn save(self: &Arc<Self>, path: &Path) -> Result<()> {
        let mut admission = self.admit()?;
        let cache = admission.cache_mut().as_ref().ok_or_else(no_cache)?;
        let io = |action| move |source| Error::Io { action, path: path.to_owned(), source };
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".new");
        let new = path.with_file_name(name);
        let write = || -> Result<()> {
            let mut out = BufWriter::new(File::create(&new).map_err(io("create"))?);
            self.model
                .forward
                .with(|| false, |forward| forward.save(&cache.seq, &cache.tokens, &mut out))??;
            out.flush().map_err(io("write"))?;
            // A name that points at a half-written file would be refused, but the old file would be lost.
            out.get_ref().sync_all().map_err(io("write"))?;
            std::fs::rename(&new, path).map_err(io("replace"))
        };
        write().inspect_err(|_| {
            let _ = std::fs::remove_file(&new);
        })
    }

    /// Takes the place of what was read. Gives the number of tokens.
    pub fn restore(self: &Arc<Self>, path: &Path) -> Result<usize> {
        let mut admission = self.admit()?;
        let (seq, tokens) = self.model.read_sequence(path)?;
        let n = tokens.len();
        *admission.cache_mut() = Some(Cache { tokens, ..Cache::new(seq) });
        Ok(n)
    }
}

impl<F: Forward> Model<F> {
    fn read_sequence(&self, path: &Path) -> Result<(F::Seq, Vec<u32>)> {
        let io = |action| move |source| Error::Io { action, path: path.to_owned(), source };
        let file = File::open(path).map_err(io("open"))?;
        let mut input = BufReader::with_capacity(256 << 10, file);
        let (low, full) = self.views;
        let views = [full.then_some(View::Full), low.then_some(View::Low)];
        self.forward.with(
            || false,
            |forward| {
                let mut refused = no_cache();
                // A file fits the view that it was read with, or none.
                for view in views.into_iter().flatten() {
                    forward.set_view(view)?;
                    input.rewind().map_err(io("read"))?;
                    match forward.restore(&mut input) {
                        Err(error @ Error::BadCacheFile { .. }) => refused = error,
                        result => return result,
                    }
                }
                Err(refused)
            },
        )?
    }

    /// Makes what a session has saved available to all sessions of this model whose prompts begin alike: a system prompt that
    /// was read before the app was started again. Gives the number of tokens that need no work from now on.
    ///
    /// # Errors
    /// As for [`Session::restore`](super::Session::restore).
    pub fn restore_prefix(&self, path: &Path) -> Result<usize> {
        let (seq, tokens) = self.read_sequence(path)?;
        let published = self.forward.with(
            || false,
            |forward| {
                forward.publish(&seq, &tokens);
                // A view that gave a sequence is there.
                let _ = forward.set_view(F::view(&seq));
                forward.published(&tokens)
            },
        )?;
        drop(seq);
        Ok(published)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_cut_where_it_helps() {
        let plain = PromptSteps::default();
        assert_eq!(steps(plain, 512, 0, 1030), [0..512, 512..1024, 1024..1030]);
        assert_eq!(steps(plain, 512, 5, 5), []);
        let border = PromptSteps { border: Some(32), last: 0 };
        assert_eq!(steps(border, 100, 10, 133), [10..110, 110..128, 128..133]);
        // The last token is always left to read.
        assert_eq!(steps(border, 100, 0, 64), [0..32, 32..64]);
        assert_eq!(steps(border, 100, 64, 70), vec![64..70]);
        let last = PromptSteps { border: None, last: 64 };
        assert_eq!(steps(last, 512, 0, 1030), [0..512, 512..966, 966..1030]);
        assert_eq!(steps(last, 512, 1000, 1030), vec![1000..1030]);
    }
}
