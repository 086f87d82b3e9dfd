//! A text as windows of tokens, the way the field cuts it.

use crate::{Error, Result};
use pannier::model::Forward;

/// Logits of all rows of a step are one buffer; this many bytes of it are enough to keep the kernels busy.
const LOGIT_BYTES: usize = 32 << 20;

/// Rows of logits to ask for in one step.
pub(crate) fn logit_rows(vocab: usize) -> usize {
    (LOGIT_BYTES / (vocab.max(1) * size_of::<f32>())).clamp(1, 512)
}

/// Fewer tokens than this leave nothing to score, or nothing to score it by.
const LEAST: usize = 4;

/// Checks that windows of this length can be run.
pub(crate) fn check<F: Forward>(forward: &F, window: usize) -> Result<()> {
    let most = forward.context();
    if (LEAST..=most).contains(&window) {
        return Ok(());
    }
    Err(Error::Window { window, least: LEAST, most })
}

/// Window `index` of a text that was tokenised once: its first token is replaced by BOS where the model adds one, so that every
/// window looks like the beginning of a text. The last window may be shorter.
pub(crate) fn window(ids: &[u32], window: usize, index: usize, bos: Option<u32>) -> Vec<u32> {
    let start = index.saturating_mul(window);
    let end = start.saturating_add(window).min(ids.len());
    let mut piece = ids.get(start..end).unwrap_or_default().to_vec();
    if let (Some(bos), Some(first)) = (bos, piece.first_mut()) {
        *first = bos;
    }
    piece
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_begin_with_bos() {
        let ids = [9, 1, 2, 3, 4, 5, 6];
        assert_eq!(window(&ids, 3, 0, Some(9)), [9, 1, 2]);
        assert_eq!(window(&ids, 3, 1, Some(9)), [9, 4, 5]);
        assert_eq!(window(&ids, 3, 1, None), [3, 4, 5]);
        assert_eq!(window(&ids, 3, 2, None), [6]);
        assert!(window(&ids, 3, 3, Some(9)).is_empty());
    }

    #[test]
    fn rows_keep_the_buffer_small() {
        assert_eq!(logit_rows(1), 512);
        assert_eq!(logit_rows(152_064), 55);
        assert_eq!(logit_rows(1 << 30), 1);
    }
}
