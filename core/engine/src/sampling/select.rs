//! The k largest logits in one pass, and the prefix of them that top-p and min-p keep.

use std::cmp::Ordering;

/// One token and its logit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    pub id: u32,
    pub logit: f32,
}

/// Most likely first, the lower id first among equals. Total, because NaN never gets this far.
pub fn by_rank(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal).then(a.id.cmp(&b.id))
}

/// Fills `out` with the `k` highest-ranked tokens, ranked; banned ones (minus infinity) are never among them.
///
/// Keeps up to 2k survivors and cuts them to k when full. Each cut raises the bar, so that after the first few thousand
/// tokens nearly every comparison fails, and the pass runs at the speed of reading: no sort of the vocabulary, no allocation
/// after the first call.
pub fn top_k(logits: &[f32], k: usize, out: &mut Vec<Candidate>) {
    out.clear();
    if k == 0 {
        return;
    }
    let room = k.saturating_mul(2).max(64);
    let mut bar = f32::NEG_INFINITY;
    for (id, &logit) in (0u32..).zip(logits) {
        // An equal logit with a higher id ranks below the k already there.
        if logit > bar {
            out.push(Candidate { id, logit });
            if out.len() == room {
                let (_, kth, _) = out.select_nth_unstable_by(k - 1, by_rank);
                bar = kth.logit;
                out.truncate(k);
            }
        }
    }
    if out.len() > k {
        out.select_nth_unstable_by(k - 1, by_rank);
        out.truncate(k);
    }
    out.sort_unstable_by(by_rank);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn top_k_equals_a_full_sort(
            // Few distinct values, so that ties are the rule.
            logits in prop::collection::vec(prop_oneof![
                4 => (-6i8..6).prop_map(f32::from), 1 => Just(f32::NEG_INFINITY), 1 => Just(-0.0f32)], 0..600),
            k in 0usize..700,
        ) {
            let mut all: Vec<Candidate> = logits.iter().enumerate()
                .filter(|(_, l)| **l > f32::NEG_INFINITY)
                .map(|(i, &logit)| Candidate { id: i as u32, logit }).collect();
            all.sort_by(by_rank);
            all.truncate(k);
            let mut got = Vec::new();
            top_k(&logits, k, &mut got);
            prop_assert_eq!(got, all);
        }
    }
}
