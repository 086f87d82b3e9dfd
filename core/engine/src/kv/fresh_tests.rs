//! Keys per channel: whatever is done to sequences, full pages are the rounded form of what was written, and the halves of the newest are
//! there.

use super::*;
use crate::memory::Category;
use proptest::prelude::*;

const GLOBAL: KvGeometry = KvGeometry {
    kv_heads: 2,
    k_dim: 20,
    v_dim: 8,
    window: None,
    k: KvType::Q4Channel,
    v: KvType::Q4,
    summaries: false,
};
const LAYERS: [KvGeometry; 3] = [
    GLOBAL,
    KvGeometry { window: Some(40), k: KvType::Q8Channel, v: KvType::F16, ..GLOBAL },
    KvGeometry {
        kv_heads: 1,
        k_dim: 32,
        v_dim: 32,
        window: None,
        k: KvType::Q8,
        v: KvType::Q8,
        summaries: false,
    },
];
const FINGERPRINT: Fingerprint = [7; 32];
const LIMITS: Limits = Limits { context: 1 << 20, vocab: 1 << 20, state: 0 };

/// The keys or values of a token, all heads.
fn row(id: u32, layer: usize, heads: usize, dim: usize) -> Vec<f32> {
    let value = |i: usize| (id % 97) as f32 * ((3 * i + layer) % 7) as f32 * 0.1 - i as f32;
    (0..heads * dim).map(value).collect()
}

fn write(cache: &mut KvCache, seq: &Sequence, ids: &[u32], pieces: usize) -> Result<()> {
    for (layer, geometry) in LAYERS.iter().enumerate() {
        let rows = |ids: &[u32], dim: usize| -> Vec<f32> {
            ids.iter().flat_map(|&id| row(id, layer, geometry.kv_heads, dim)).collect()
        };
        for (i, ids) in ids.chunks(pieces).enumerate() {
            let (k, v) = (rows(ids, geometry.k_dim), rows(ids, geometry.v_dim));
            cache.write(Kernels::detect(), seq, layer, i * pieces, &k, &v)?;
        }
    }
    Ok(())
}

fn append(cache: &mut KvCache, seq: &mut Sequence, ids: &[u32], pieces: usize) -> Result<()> {
    cache.prepare(seq, ids.len())?;
    write(cache, seq, ids, pieces)?;
    cache.commit(seq, ids.len());
    Ok(())
}

/// What a sequence should be, and how far it can be taken back for certain.
#[derive(Clone, Debug, Default)]
struct Naive {
    ids: Vec<u32>,
    base: usize,
    longest: usize,
}

impl Naive {
    fn of(ids: &[u32]) -> Self {
        Naive { ids: ids.to_vec(), base: ids.len(), longest: ids.len() }
    }
    fn certain(&self, slack: usize) -> usize {
        self.longest.saturating_sub(slack).max(self.base)
    }
}

/// Checks all that attention can see of a sequence.
fn check(cache: &KvCache, seq: &Sequence, naive: &Naive) {
    let len = naive.ids.len();
    assert_eq!(seq.len(), len);
    for (layer, geometry) in LAYERS.iter().enumerate() {
        let (pages, layout) = (cache.pages(seq, layer).unwrap(), geometry.layout());
        assert_eq!(pages.fresh.is_some(), geometry.k.is_per_channel());
        let of_page = layout.fresh();
        for index in pages.first_token / PAGE_TOKENS..len.div_ceil(PAGE_TOKENS) {
            let ids = &naive.ids[index * PAGE_TOKENS..len.min((index + 1) * PAGE_TOKENS)];
            let (mut found, mut expected) = (pages.page(index).to_vec(), vec![0; layout.page_len()]);
            let mut halves = vec![0; of_page.page_len()];
            for (slot, &id) in ids.iter().enumerate() {
                let k = row(id, layer, geometry.kv_heads, geometry.k_dim);
                let v = row(id, layer, geometry.kv_heads, geometry.v_dim);
                Kernels::detect().write_kv(&layout, &mut expected, slot, &k, &v);
                Kernels::detect().write_kv(&of_page, &mut halves, slot, &k, &[]);
            }
            (ids.len()..PAGE_TOKENS).for_each(|slot| layout.clear_row(&mut found, slot));
            if let Some(fresh) = &pages.fresh {
                if ids.len() == PAGE_TOKENS {
                    layout.close_keys(&halves, &mut expected);
                } else {
                    layout.clear_keys(&mut found);
                }
                let there = index >= fresh.first && index < fresh.first + fresh.table.len();
                assert!(there || ids.len() == PAGE_TOKENS, "the halves of the last page");
                if there {
                    let mut fresh = fresh.page(index).to_vec();
                    (ids.len()..PAGE_TOKENS).for_each(|slot| of_page.clear_row(&mut fresh, slot));
                    assert_eq!(fresh, halves, "layer {layer} halves of page {index}");
                }
            }
            assert_eq!(found, expected, "layer {layer} page {index}");
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Append { seq: usize, n: usize, pieces: usize },
    Fork { seq: usize },
    TakeBack { seq: usize, n: usize },
    Truncate { seq: usize, keep: f64 },
    Abandon { seq: usize, n: usize, written: usize },
    Publish { seq: usize },
    Resume { seq: usize, keep: f64 },
    Restore { seq: usize },
    Evict { seq: usize },
    Drop { seq: usize },
    Trim,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..4usize, 1..90usize, 1..40usize).prop_map(|(seq, n, pieces)| Step::Append { seq, n, pieces }),
        2 => (0..4usize).prop_map(|seq| Step::Fork { seq }),
        4 => (0..4usize, 0..40usize).prop_map(|(seq, n)| Step::TakeBack { seq, n }),
        1 => (0..4usize, 0.0..1.0f64).prop_map(|(seq, keep)| Step::Truncate { seq, keep }),
        2 => (0..4usize, 1..90usize, 0..90usize).prop_map(|(seq, n, written)| Step::Abandon { seq, n, written }),
        2 => (0..4usize).prop_map(|seq| Step::Publish { seq }),
        2 => (0..4usize, 0.0..1.0f64).prop_map(|(seq, keep)| Step::Resume { seq, keep }),
        2 => (0..4usize).prop_map(|seq| Step::Restore { seq }),
        1 => (0..4usize).prop_map(|seq| Step::Evict { seq }),
        1 => (0..4usize).prop_map(|seq| Step::Drop { seq }),
        1 => Just(Step::Trim),
    ];
    prop::collection::vec(step, 1..40)
}

proptest! {
    #[test]
    fn interleaved_sequences_equal_naive_ones(steps in steps(), window_slack in prop::option::of(0..70usize)) {
        let accountant = Accountant::new(None);
        let options = KvOptions { window_slack, ..KvOptions::default() };
        let mut cache = KvCache::new(&LAYERS, options, &accountant).unwrap();
        let slack = cache.slack();
        prop_assert_eq!(slack, window_slack.unwrap_or(32).min(32));
        let mut all: Vec<(Sequence, Naive)> = vec![(cache.new_sequence(), Naive::default())];
        for (next, step) in steps.into_iter().enumerate() {
            let pick = |seq: usize, all: &[(Sequence, Naive)]| seq % all.len().max(1);
            match step {
                Step::Append { seq, n, pieces } => {
                    let index = pick(seq, &all);
                    let (seq, naive) = &mut all[index];
                    let ids: Vec<u32> = (0..n).map(|i| ((naive.ids.len() + i + next % 2) % 2000) as u32).collect();
                    append(&mut cache, seq, &ids, pieces).unwrap();
                    naive.ids.extend(&ids);
                    naive.longest = naive.longest.max(naive.ids.len());
                }
                Step::Fork { seq } => {
                    let (seq, naive) = &all[pick(seq, &all)];
                    let fork = (cache.fork(seq).unwrap(), naive.clone());
                    all.push(fork);
                }
                Step::TakeBack { .. } | Step::Truncate { .. } => {
                    let index = match step {
                        Step::TakeBack { seq, .. } | Step::Truncate { seq, .. } => pick(seq, &all),
                        _ => unreachable!(),
                    };
                    let (seq, naive) = &mut all[index];
                    let len = match step {
                        Step::TakeBack { n, .. } => naive.ids.len().saturating_sub(n),
                        Step::Truncate { keep, .. } => (naive.ids.len() as f64 * keep) as usize,
                        _ => unreachable!(),
                    };
                    let certain = naive.certain(slack);
                    match cache.truncate(seq, len) {
                        Ok(()) => {
                            naive.ids.truncate(len);
                            if len < certain {
                                (naive.base, naive.longest) = (len, len);
                            }
                        }
                        Err(error) => {
                            prop_assert!(matches!(error, Error::CannotTruncate { .. }), "{error}");
                            prop_assert!(len < certain, "{error}");
                            prop_assert!(window_slack.is_some() || !len.is_multiple_of(32), "{error}");
                        }
                    }
                }
                Step::Abandon { seq, n, written } => {
                    let index = pick(seq, &all);
                    let (seq, _) = &mut all[index];
                    cache.prepare(seq, n).unwrap();
                    let ids: Vec<u32> = (0..written.min(n) as u32).map(|i| 5000 + i).collect();
                    write(&mut cache, seq, &ids, 7).unwrap();
                    cache.rollback(seq);
                }
                Step::Publish { seq } => {
                    let (seq, naive) = &all[pick(seq, &all)];
                    cache.publish(seq, &naive.ids, None);
                }
                Step::Resume { seq, keep } => {
                    let ids = &all[pick(seq, &all)].1.ids;
                    let ids = ids[..(ids.len() as f64 * keep) as usize].to_vec();
                    if let Some((seq, _)) = cache.resume(&ids, false) {
                        let len = seq.len();
                        all.push((seq, Naive::of(&ids[..len])));
                    }
                }
                Step::Restore { seq } => {
                    let (seq, naive) = &all[pick(seq, &all)];
                    let saved = Saved { tokens: naive.ids.clone(), state: Vec::new() };
                    let mut file = Vec::new();
                    cache.save(seq, &FINGERPRINT, &saved, &mut file).unwrap();
                    let (seq, read) = cache.restore(&FINGERPRINT, &LIMITS, &mut std::io::Cursor::new(file)).unwrap();
                    prop_assert_eq!(&read, &saved);
                    all.push((seq, Naive::of(&read.tokens)));
                }
                Step::Evict { seq } => {
                    let index = pick(seq, &all);
                    let (seq, naive) = &mut all[index];
                    let evicted = cache.evict(seq, KvPolicy::Window { recent: 20 }, None);
                    prop_assert_eq!(evicted.is_err(), naive.ids.len() > 20);
                }
                Step::Drop { seq } => {
                    let index = pick(seq, &all);
                    all.swap_remove(index);
                    if all.is_empty() {
                        all.push((cache.new_sequence(), Naive::default()));
                    }
                }
                Step::Trim => cache.trim(),
            }
            all.iter().for_each(|(seq, naive)| check(&cache, seq, naive));
            prop_assert_eq!(cache.bytes(), accountant.used());
        }
        drop(all);
        cache.limit_prefixes(0);
        prop_assert_eq!(cache.pages_in_use(), 0);
        cache.trim();
        prop_assert_eq!(accountant.used(), 0);
    }

    /// As speculation does it: steps of up to 33 tokens, of which up to 32 are taken back.
    #[test]
    fn guesses_can_be_taken_back(start in 0..100usize, guesses in prop::collection::vec((0..=32usize, 0.0..=1.0f64), 1..20)) {
        let accountant = Accountant::new(None);
        let mut cache = KvCache::new(&LAYERS, KvOptions::default(), &accountant).unwrap();
        let mut seq = cache.new_sequence();
        let mut naive = Naive::default();
        let text = |from: usize, n: usize, other: u32| -> Vec<u32> { (from as u32..(from + n) as u32).map(|id| id + other).collect() };
        naive.ids = text(0, start, 0);
        append(&mut cache, &mut seq, &naive.ids, 512).unwrap();
        for (guesses, right) in guesses {
            let len = naive.ids.len();
            append(&mut cache, &mut seq, &text(len, guesses + 1, 1), 512).unwrap();
            let kept = 1 + (guesses as f64 * right) as usize;
            cache.truncate(&mut seq, len + kept).unwrap();
            naive.ids.extend(text(len, kept, 1));
            check(&cache, &seq, &naive);
        }
    }
}

/// A file says of its sequence only what the sequence says, and what does not fit is refused.
#[test]
fn files_carry_the_halves_of_the_last_page() {
    let accountant = Accountant::new(None);
    let mut cache = KvCache::new(&LAYERS, KvOptions::default(), &accountant).unwrap();
    let save = |cache: &KvCache, seq: &Sequence, ids: &[u32]| {
        let saved = Saved { tokens: ids.to_vec(), state: Vec::new() };
        let mut file = Vec::new();
        cache.save(seq, &FINGERPRINT, &saved, &mut file).unwrap();
        file
    };
    let ids: Vec<u32> = (0..50).collect();
    let (mut straight, mut round) = (cache.new_sequence(), cache.new_sequence());
    append(&mut cache, &mut straight, &ids, 512).unwrap();
    // With a text behind it that was taken back, and that had filled the page.
    append(&mut cache, &mut round, &[&ids[..], &[90; 20]].concat(), 512).unwrap();
    cache.truncate(&mut round, 50).unwrap();
    assert_eq!(save(&cache, &straight, &ids), save(&cache, &round, &ids));
    // At a border there is nothing to carry.
    cache.truncate(&mut round, 32).unwrap();
    let halves: usize = LAYERS.iter().filter_map(KvGeometry::fresh_len).map(|words| 2 * words).sum();
    let page: usize = LAYERS.iter().map(|layer| 2 * layer.layout().page_len()).sum();
    let (long, short) = (save(&cache, &straight, &ids).len(), save(&cache, &round, &ids[..32]).len());
    assert_eq!(long - short, halves + page + 4 * 18);
}

#[test]
fn fresh_pages_are_few_and_known_before() {
    let accountant = Accountant::new(None);
    let mut cache = KvCache::new(&LAYERS, KvOptions::default(), &accountant).unwrap();
    let mut seq = cache.new_sequence();
    let pools: Vec<usize> = cache.layers.iter().filter_map(|layer| layer.fresh).collect();
    assert_eq!(pools.len(), 2);
    let used = |cache: &KvCache| cache.pools[pools[0]].used();
    let mut ids = 0;
    for n in [1, 30, 1, 1, 95, 512, 31, 33, 1, 7, 512] {
        let most = 2 * Fresh::most(n, ids + n);
        cache.prepare(&mut seq, n).unwrap();
        assert!(used(&cache) <= most, "{n} after {ids}: {} of {most}", used(&cache));
        cache.commit(&mut seq, n);
        ids += n;
        let kept = (ids.div_ceil(PAGE_TOKENS) - (ids / PAGE_TOKENS).saturating_sub(1)) * 2;
        assert_eq!(used(&cache), kept);
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let accountant = Accountant::new(None);
    let policy = KvPolicy::HEAVY_HITTERS;
    let options = KvOptions { policy, types: KvTypes::Q4_CHANNEL, ..KvOptions::default() };
    for error in [KvCache::new(&LAYERS, options, &accountant).unwrap_err(), options.check().unwrap_err()] {
        assert!(matches!(error, Error::Unsupported { .. }) && error.to_string().contains("heavy"), "{error}");
    }
    KvOptions { types: KvTypes::Q4, ..options }.check().unwrap();
    KvOptions { policy: KvPolicy::KeepAll, ..options }.check().unwrap();
    // Layers with a window forget whole pages.
    KvCache::new(&LAYERS[1..], options, &accountant).unwrap();
    let values = KvGeometry { v: KvType::Q4Channel, ..GLOBAL };
    assert!(KvCache::new(&[values], KvOptions::default(), &accountant).is_err());
    // A budget that has no room for the halves.
    let small = Accountant::new(Some(3 << 20));
    let mut cache = KvCache::new(&LAYERS, KvOptions::default(), &small).unwrap();
    let mut seq = cache.new_sequence();
    let error = cache.prepare(&mut seq, 100).unwrap_err();
    assert!(matches!(error, Error::OutOfBudget { category: Category::Kv, .. }), "{error}");
    assert_eq!((seq.len(), cache.pages_in_use()), (0, 0));
}
