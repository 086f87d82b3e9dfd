use super::*;
use crate::memory::Category;
use proptest::prelude::*;

const GLOBAL: KvGeometry = KvGeometry { kv_heads: 2, k_dim: 4, v_dim: 8, window: None };
const LOCAL: KvGeometry = KvGeometry { kv_heads: 2, k_dim: 4, v_dim: 8, window: Some(40) };
const WIDE: KvGeometry = KvGeometry { kv_heads: 1, k_dim: 16, v_dim: 16, window: None };
const LAYERS: [KvGeometry; 3] = [GLOBAL, LOCAL, WIDE];

/// Appends tokens whose keys and values are all their id, which f16 holds exactly.
fn append(cache: &mut KvCache, seq: &mut Sequence, ids: &[u32]) -> Result<()> {
    cache.prepare(seq, ids.len())?;
    for (layer, geometry) in LAYERS.iter().enumerate() {
        let rows = |dim: usize| -> Vec<f32> {
            ids.iter().flat_map(|&id| std::iter::repeat_n(id as f32, geometry.kv_heads * dim)).collect()
        };
        cache.write(Kernels::detect(), seq, layer, 0, &rows(geometry.k_dim), &rows(geometry.v_dim))?;
    }
    cache.commit(seq, ids.len());
    Ok(())
}

/// Checks all that attention can see of a sequence against the ids it should have.
fn check(cache: &KvCache, seq: &Sequence, ids: &[u32]) {
    assert_eq!(seq.len(), ids.len());
    for (layer, geometry) in LAYERS.iter().enumerate() {
        let pages = cache.pages(seq, layer).unwrap();
        let needed = geometry.window.map_or(0, |window| needed_from(ids.len(), window));
        assert!(pages.first_token <= needed);
        for (position, &id) in ids.iter().enumerate().skip(pages.first_token) {
            let page = pages.page(position / PAGE_TOKENS);
            let shape = geometry.shape();
            for head in 0..geometry.kv_heads {
                let slot = position % PAGE_TOKENS;
                for value in page[shape.key_at(head, slot)..][..geometry.k_dim]
                    .iter()
                    .chain(&page[shape.value_at(head, slot)..][..geometry.v_dim])
                {
                    let mut out = [0.0];
                    Kernels::detect().from_f16(&[*value], &mut out);
                    assert_eq!(out, [id as f32], "layer {layer} position {position}");
                }
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Append { seq: usize, n: usize },
    Fork { seq: usize },
    Truncate { seq: usize, keep: f64 },
    Abandon { seq: usize, n: usize },
    Drop { seq: usize },
    Trim,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..4usize, 1..90usize).prop_map(|(seq, n)| Step::Append { seq, n }),
        2 => (0..4usize).prop_map(|seq| Step::Fork { seq }),
        2 => (0..4usize, 0.0..1.0f64).prop_map(|(seq, keep)| Step::Truncate { seq, keep }),
        1 => (0..4usize, 1..90usize).prop_map(|(seq, n)| Step::Abandon { seq, n }),
        1 => (0..4usize).prop_map(|seq| Step::Drop { seq }),
        1 => Just(Step::Trim),
    ];
    prop::collection::vec(step, 1..40)
}

proptest! {
    #[test]
    fn interleaved_sequences_equal_naive_ones(steps in steps(), slack in prop::option::of(0..70usize)) {
        let accountant = Accountant::new(None);
        let mut cache = KvCache::new(&LAYERS, KvOptions { window_slack: slack }, &accountant).unwrap();
        let mut all: Vec<(Sequence, Vec<u32>)> = vec![(cache.new_sequence(), Vec::new())];
        let mut next = 0u32;
        for step in steps {
            let pick = |seq: usize, all: &[(Sequence, Vec<u32>)]| seq % all.len().max(1);
            match step {
                Step::Append { seq, n } => {
                    let index = pick(seq, &all);
                    let (seq, naive) = &mut all[index];
                    let ids: Vec<u32> = (0..n as u32).map(|i| (next + i) % 2000).collect();
                    next += 7;
                    append(&mut cache, seq, &ids).unwrap();
                    naive.extend(ids);
                }
                Step::Fork { seq } => {
                    let (seq, naive) = &all[pick(seq, &all)];
                    let fork = (cache.fork(seq).unwrap(), naive.clone());
                    all.push(fork);
                }
                Step::Truncate { seq, keep } => {
                    let index = pick(seq, &all);
                    let (seq, naive) = &mut all[index];
                    let len = (naive.len() as f64 * keep) as usize;
                    match cache.truncate(seq, len) {
                        Ok(()) => naive.truncate(len),
                        Err(error) => prop_assert!(slack.is_some() && len > 0, "{error}"),
                    }
                }
                Step::Abandon { seq, n } => {
                    let index = pick(seq, &all);
                    let (seq, _) = &mut all[index];
                    cache.prepare(seq, n).unwrap();
                    cache.rollback(seq);
                }
                Step::Drop { seq } => {
                    let index = pick(seq, &all);
                    all.swap_remove(index);
                    if all.is_empty() {
                        all.push((cache.new_sequence(), Vec::new()));
                    }
                }
                Step::Trim => cache.trim(),
            }
            all.iter().for_each(|(seq, naive)| check(&cache, seq, naive));
            prop_assert_eq!(cache.bytes(), accountant.used());
        }
        drop(all);
        prop_assert_eq!(cache.pages_in_use(), 0);
        cache.trim();
        prop_assert_eq!(accountant.used(), 0);
    }
}

#[test]
fn a_sequence_that_does_not_fit_the_budget_is_left_as_it_was() {
    let accountant = Accountant::new(Some(2 << 20));
    let mut cache = KvCache::new(&[GLOBAL], KvOptions::default(), &accountant).unwrap();
    let mut seq = cache.new_sequence();
    cache.prepare(&mut seq, 10).unwrap();
    cache.commit(&mut seq, 10);
    let tokens = (3 << 20) / cache.bytes_per_token() as usize;
    let error = cache.prepare(&mut seq, tokens).unwrap_err();
    assert!(matches!(error, Error::OutOfBudget { category: Category::Kv, .. }), "{error}");
    assert_eq!((seq.len(), cache.pages_in_use()), (10, 1));
    cache.prepare(&mut seq, 1000).unwrap();
}

#[test]
fn memory_follows_the_formula() {
    let accountant = Accountant::new(None);
    let geometry = KvGeometry { kv_heads: 8, k_dim: 128, v_dim: 128, window: None };
    let mut cache = KvCache::new(&[geometry; 4], KvOptions::default(), &accountant).unwrap();
    let mut seq = cache.new_sequence();
    cache.prepare(&mut seq, 16384).unwrap();
    let formula = 16384 * cache.bytes_per_token();
    assert_eq!(cache.bytes_per_token(), 4 * 2 * 8 * 256);
    let measured = accountant.used();
    assert!(measured >= formula && measured as f64 <= formula as f64 * 1.02, "{measured} {formula}");
}

#[test]
fn pages_behind_the_window_come_back() {
    let accountant = Accountant::new(None);
    let mut cache = KvCache::new(&LAYERS, KvOptions { window_slack: Some(0) }, &accountant).unwrap();
    let mut seq = cache.new_sequence();
    append(&mut cache, &mut seq, &(0..320).collect::<Vec<u32>>()).unwrap();
    // 10 pages of 32 tokens for the global layers; the window of 40 needs the last 2.
    assert_eq!(cache.pages_in_use(), 10 + 2 + 10);
    assert!(matches!(cache.truncate(&mut seq, 100), Err(Error::CannotTruncate { len: 100, have: 320, .. })));
    assert!(matches!(cache.truncate(&mut seq, 321), Err(Error::CannotTruncate { .. })));
    cache.truncate(&mut seq, 0).unwrap();
    assert_eq!(cache.pages_in_use(), 0);
    append(&mut cache, &mut seq, &[5, 6, 7]).unwrap();
    check(&cache, &seq, &[5, 6, 7]);
}

#[test]
fn a_sequence_of_another_cache_is_refused() {
    let accountant = Accountant::new(None);
    let mut one = KvCache::new(&LAYERS, KvOptions::default(), &accountant).unwrap();
    let two = KvCache::new(&LAYERS, KvOptions::default(), &accountant).unwrap();
    let mut foreign = two.new_sequence();
    assert!(matches!(one.prepare(&mut foreign, 1), Err(Error::Internal { .. })));
    assert!(one.fork(&foreign).is_err());
}
