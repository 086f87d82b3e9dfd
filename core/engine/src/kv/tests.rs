use super::*;
use crate::memory::Category;
use proptest::prelude::*;

const GLOBAL: KvGeometry = KvGeometry {
    kv_heads: 2,
    k_dim: 4,
    v_dim: 8,
    window: None,
    k: KvType::F16,
    v: KvType::Q8,
    summaries: false,
};
const LOCAL: KvGeometry = KvGeometry {
    kv_heads: 2,
    k_dim: 4,
    v_dim: 8,
    window: Some(40),
    k: KvType::F16,
    v: KvType::F16,
    summaries: false,
};
const WIDE: KvGeometry = KvGeometry {
    kv_heads: 1,
    k_dim: 48,
    v_dim: 64,
    window: None,
    k: KvType::Q4Rotated,
    v: KvType::Q4,
    summaries: false,
};
const LAYERS: [KvGeometry; 3] = [GLOBAL, LOCAL, WIDE];
const FINGERPRINT: Fingerprint = [7; 32];
const LIMITS: Limits = Limits { context: 1 << 20, vocab: 1 << 20, state: 0 };

/// The keys or values of a token.
fn row(id: u32, layer: usize, head: usize, dim: usize) -> Vec<f32> {
    (0..dim).map(|i| (id as f32 + 1.0) * ((3 * i + head + layer) % 7) as f32 - i as f32).collect()
}

/// Those of all heads.
fn rows(id: u32, layer: usize, dim: usize) -> Vec<f32> {
    (0..LAYERS[layer].kv_heads).flat_map(|head| row(id, layer, head, dim)).collect()
}

/// Appends tokens.
fn append(cache: &mut KvCache, seq: &mut Sequence, ids: &[u32]) -> Result<()> {
    cache.prepare(seq, ids.len())?;
    for (layer, geometry) in LAYERS.iter().enumerate() {
        let rows = |dim: usize| -> Vec<f32> { ids.iter().flat_map(|&id| rows(id, layer, dim)).collect() };
        cache.write(Kernels::detect(), seq, layer, 0, &rows(geometry.k_dim), &rows(geometry.v_dim))?;
    }
    cache.commit(seq, ids.len());
    Ok(())
}

/// What a sequence should be: its tokens, and for each slot of the layers without a window the index of the token.
#[derive(Clone, Debug, Default, PartialEq)]
struct Naive {
    ids: Vec<u32>,
    slots: Vec<usize>,
    floor: usize,
}

impl Naive {
    fn of(ids: &[u32]) -> Naive {
        Naive { ids: ids.to_vec(), slots: (0..ids.len()).collect(), floor: 0 }
    }

    fn append(&mut self, ids: &[u32]) {
        self.slots.extend(self.ids.len()..self.ids.len() + ids.len());
        self.ids.extend(ids);
    }

    fn truncate(&mut self, len: usize) {
        self.ids.truncate(len);
        self.slots.retain(|&index| index < len);
        if len == 0 {
            self.floor = 0;
        }
    }

    fn evict(&mut self, sinks: usize, recent: usize) {
        if self.slots.len() > sinks + recent {
            let tail = self.slots.split_off(self.slots.len() - recent);
            self.slots.truncate(sinks);
            self.slots.extend(tail);
            self.floor = self.ids.len();
        }
    }
}

/// Checks all that attention can see of a sequence.
fn check(cache: &KvCache, seq: &Sequence, naive: &Naive) {
    assert_eq!(seq.len(), naive.ids.len());
    for (layer, geometry) in LAYERS.iter().enumerate() {
        let pages = cache.pages(seq, layer).unwrap();
        let layout = geometry.layout();
        let needed = geometry.window.map_or(0, |window| needed_from(naive.ids.len(), window));
        assert!(pages.first_token <= needed);
        let all: Vec<usize> = (0..naive.ids.len()).collect();
        let slots = if geometry.window.is_some() { &all } else { &naive.slots };
        assert_eq!(cache.slot(seq, layer), slots.len());
        let mut expected = vec![0; layout.page_len()];
        let mut found = vec![0; layout.page_len()];
        for (slot, &index) in slots.iter().enumerate().skip(pages.first_token) {
            let (at, id) = (slot % PAGE_TOKENS, naive.ids[index]);
            let (k, v) = (rows(id, layer, geometry.k_dim), rows(id, layer, geometry.v_dim));
            Kernels::detect().write_kv(&layout, &mut expected, 0, &k, &v);
            for head in 0..geometry.kv_heads {
                layout.copy_row(head, (pages.page(slot / PAGE_TOKENS), at), (&mut found, 0));
            }
            assert_eq!(found, expected, "layer {layer} slot {slot}");
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Append { seq: usize, n: usize },
    Fork { seq: usize },
    Truncate { seq: usize, keep: f64 },
    Abandon { seq: usize, n: usize },
    Evict { seq: usize, sinks: usize, recent: usize },
    Publish { seq: usize },
    Resume { seq: usize, keep: f64 },
    Restore { seq: usize },
    Pressure { share: u64 },
    Drop { seq: usize },
    Trim,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..4usize, 1..90usize).prop_map(|(seq, n)| Step::Append { seq, n }),
        2 => (0..4usize).prop_map(|seq| Step::Fork { seq }),
        2 => (0..4usize, 0.0..1.0f64).prop_map(|(seq, keep)| Step::Truncate { seq, keep }),
        1 => (0..4usize, 1..90usize).prop_map(|(seq, n)| Step::Abandon { seq, n }),
        2 => (0..4usize, 0..40usize, 1..80usize).prop_map(|(seq, sinks, recent)| Step::Evict { seq, sinks, recent }),
        2 => (0..4usize).prop_map(|seq| Step::Publish { seq }),
        2 => (0..4usize, 0.0..1.0f64).prop_map(|(seq, keep)| Step::Resume { seq, keep }),
        1 => (0..4usize).prop_map(|seq| Step::Restore { seq }),
        1 => (0..6u64).prop_map(|share| Step::Pressure { share }),
        1 => (0..4usize).prop_map(|seq| Step::Drop { seq }),
        1 => Just(Step::Trim),
    ];
    prop::collection::vec(step, 1..40)
}

proptest! {
    #[test]
    fn interleaved_sequences_equal_naive_ones(steps in steps(), slack in prop::option::of(0..70usize)) {
        let accountant = Accountant::new(None);
        let options = KvOptions { window_slack: slack, ..KvOptions::default() };
        let mut cache = KvCache::new(&LAYERS, options, &accountant).unwrap();
        let mut all: Vec<(Sequence, Naive)> = vec![(cache.new_sequence(), Naive::default())];
        let mut next = 0u32;
        for step in steps {
            let pick = |seq: usize, all: &[(Sequence, Naive)]| seq % all.len().max(1);
            match step {
                Step::Append { seq, n } => {
                    let index = pick(seq, &all);
                    let (seq, naive) = &mut all[index];
                    // Few different texts, so that prefixes meet.
                    let ids: Vec<u32> = (0..n as u32).map(|i| (naive.ids.len() as u32 + i + next % 2) % 2000).collect();
                    next += 1;
                    append(&mut cache, seq, &ids).unwrap();
                    naive.append(&ids);
                }
                Step::Fork { seq } => {
                    let (seq, naive) = &all[pick(seq, &all)];
                    let fork = (cache.fork(seq).unwrap(), naive.clone());
                    all.push(fork);
                }
                Step::Truncate { seq, keep } => {
                    let index = pick(seq, &all);
                    let (seq, naive) = &mut all[index];
                    let len = (naive.ids.len() as f64 * keep) as usize;
                    match cache.truncate(seq, len) {
                        Ok(()) => {
                            prop_assert!(len == 0 || len >= naive.floor);
                            naive.truncate(len);
                        }
                        Err(error) => {
                            prop_assert!(len > 0 && (slack.is_some() || len < naive.floor), "{error}");
                        }
                    }
                }
                Step::Abandon { seq, n } => {
                    let index = pick(seq, &all);
                    let (seq, _) = &mut all[index];
                    cache.prepare(seq, n).unwrap();
                    cache.rollback(seq);
                }
                Step::Evict { seq, sinks, recent } => {
                    let index = pick(seq, &all);
                    let (seq, naive) = &mut all[index];
                    let before = naive.slots.len();
                    let evicted = cache.evict(seq, KvPolicy::Sinks { sinks, recent }, None).unwrap();
                    naive.evict(sinks, recent);
                    let kept = naive.slots.len();
                    prop_assert_eq!(evicted, Evicted { gone: before - kept, kept });
                }
                Step::Publish { seq } => {
                    let (seq, naive) = &all[pick(seq, &all)];
                    cache.publish(seq, &naive.ids, None);
                }
                Step::Resume { seq, keep } => {
                    let ids = &all[pick(seq, &all)].1.ids;
                    let ids = ids[..(ids.len() as f64 * keep) as usize].to_vec();
                    let published = cache.published(&ids, false);
                    match cache.resume(&ids, false) {
                        Some((seq, _)) => {
                            prop_assert!(seq.len() == published && published <= ids.len());
                            all.push((seq, Naive::of(&ids[..published])));
                        }
                        None => prop_assert_eq!(published, 0),
                    }
                }
                Step::Restore { seq } => {
                    let (seq, naive) = &all[pick(seq, &all)];
                    let saved = Saved { tokens: naive.ids.clone(), state: Vec::new() };
                    let mut file = Vec::new();
                    cache.save(seq, &FINGERPRINT, &saved, &mut file).unwrap();
                    let mut input = std::io::Cursor::new(file);
                    let (seq, read) = cache.restore(&FINGERPRINT, &LIMITS, &mut input).unwrap();
                    prop_assert_eq!(read, saved);
                    let naive = naive.clone();
                    all.push((seq, naive));
                }
                Step::Pressure { share } => {
                    let left = cache.limit_prefixes(share * 100_000);
                    prop_assert!(left <= share * 100_000);
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

    /// Whatever is changed in a file, it is refused, and nothing of it stays.
    #[test]
    fn a_damaged_file_is_refused(n in 0..100usize, at in 0.0..1.0f64, flip in 1..=255u8, cut in any::<bool>()) {
        let accountant = Accountant::new(None);
        let mut cache = KvCache::new(&LAYERS, KvOptions::default(), &accountant).unwrap();
        let mut seq = cache.new_sequence();
        let ids: Vec<u32> = (0..n as u32).collect();
        append(&mut cache, &mut seq, &ids).unwrap();
        let mut file = Vec::new();
        let saved = Saved { tokens: ids, state: Vec::new() };
        cache.save(&seq, &FINGERPRINT, &saved, &mut file).unwrap();
        let at = (file.len() as f64 * at) as usize;
        if cut {
            file.truncate(at);
        } else {
            file[at] ^= flip;
        }
        let pages = cache.pages_in_use();
        let error = cache.restore(&FINGERPRINT, &LIMITS, &mut std::io::Cursor::new(file)).unwrap_err();
        prop_assert!(matches!(error, Error::BadCacheFile { .. }), "{error}");
        prop_assert_eq!(cache.pages_in_use(), pages);
    }
}

#[test]
fn foreign_files_and_small_budgets_are_refused() {
    let accountant = Accountant::new(None);
    let mut cache = KvCache::new(&LAYERS, KvOptions::default(), &accountant).unwrap();
    let mut seq = cache.new_sequence();
    let ids: Vec<u32> = (0..70).collect();
    append(&mut cache, &mut seq, &ids).unwrap();
    let mut file = Vec::new();
    let saved = Saved { tokens: ids, state: vec![1.5] };
    cache.save(&seq, &FINGERPRINT, &saved, &mut file).unwrap();
    let reason = |cache: &mut KvCache, fingerprint, limits| {
        let mut input = std::io::Cursor::new(file.clone());
        cache.restore(fingerprint, &limits, &mut input).map(|_| ()).unwrap_err().to_string()
    };
    let limits = Limits { state: 1, ..LIMITS };
    assert!(reason(&mut cache, &[8; 32], limits).contains("another model"));
    assert!(reason(&mut cache, &FINGERPRINT, Limits { context: 69, ..limits }).contains("69"));
    assert!(reason(&mut cache, &FINGERPRINT, Limits { vocab: 69, ..limits }).contains("69"));
    assert!(reason(&mut cache, &FINGERPRINT, LIMITS).contains("states"));
    let mut other = KvCache::new(&LAYERS[..2], KvOptions::default(), &accountant).unwrap();
    assert!(reason(&mut other, &FINGERPRINT, limits).contains("layers"));
    let mut other = KvCache::new(&[GLOBAL, LOCAL, GLOBAL], KvOptions::default(), &accountant).unwrap();
    assert!(reason(&mut other, &FINGERPRINT, limits).contains("pages"));
    let small = Accountant::new(Some(1000));
    let mut other = KvCache::new(&LAYERS, KvOptions::default(), &small).unwrap();
    assert!(reason(&mut other, &FINGERPRINT, limits).contains("budget"));
    assert_eq!(small.used(), 0);
    let (seq, read) = cache.restore(&FINGERPRINT, &limits, &mut std::io::Cursor::new(file.clone())).unwrap();
    assert_eq!(read, saved);
    check(&cache, &seq, &Naive::of(&saved.tokens));
}

/// Each KV head keeps its own positions; what stays is what it was.
#[test]
fn heavy_hitters_are_kept_per_head() {
    let accountant = Accountant::new(None);
    let mut cache = KvCache::new(&LAYERS, KvOptions::default(), &accountant).unwrap();
    let mut seq = cache.new_sequence();
    let ids: Vec<u32> = (0..200).collect();
    let mut heat = Heat::new(cache.watched_heads(), 2, &accountant).unwrap();
    heat.begin(0, 0, 200).unwrap();
    // Head h of layer l looks at every position that is 10 i + h + l.
    for (layer, heads) in [(0, 2), (2, 1)] {
        let (sums, _) = heat.of_layer(layer, 200, (0, 200)).unwrap();
        for (head, sums) in sums.iter_mut().enumerate().take(heads) {
            (head + layer..200).step_by(10).for_each(|position| sums[position] = 1.0);
        }
    }
    assert!(heat.of_layer(1, 200, (0, 200)).is_none(), "layers with a window take no part");
    append(&mut cache, &mut seq, &ids).unwrap();
    heat.commit(0, 0, 200);
    let policy = KvPolicy::HeavyHitters { sinks: 3, recent: 20, top: 10 };
    let evicted = cache.evict(&mut seq, policy, Some(&mut heat)).unwrap();
    assert_eq!(evicted, Evicted { gone: 167, kept: 33 });
    append(&mut cache, &mut seq, &[500]).unwrap();
    for (layer, geometry) in LAYERS.iter().enumerate().filter(|(_, geometry)| geometry.window.is_none()) {
        let (pages, layout) = (cache.pages(&seq, layer).unwrap(), geometry.layout());
        for head in 0..geometry.kv_heads {
            // The latest ten of those near hot ones, between sinks and the last twenty.
            let is_hot = |position: usize| position % 10 == (head + layer) % 10;
            let hot: Vec<usize> =
                (3usize..180).filter(|&at| (at.saturating_sub(6)..=at + 2).any(is_hot)).collect();
            let kept: Vec<usize> =
                (0..3).chain(hot[hot.len() - 10..].iter().copied()).chain(180..200).chain([500]).collect();
            let (mut found, mut expected) = (vec![0; layout.page_len()], vec![0; layout.page_len()]);
            for (slot, &id) in kept.iter().enumerate() {
                let id = id as u32;
                let (k, v) = (rows(id, layer, geometry.k_dim), rows(id, layer, geometry.v_dim));
                let mut page = vec![0; layout.page_len()];
                Kernels::detect().write_kv(&layout, &mut page, 0, &k, &v);
                layout.copy_row(head, (&page, 0), (&mut expected, 0));
                layout.copy_row(head, (pages.page(slot / PAGE_TOKENS), slot % PAGE_TOKENS), (&mut found, 0));
                assert_eq!(found, expected, "layer {layer} head {head} slot {slot}");
            }
        }
    }
    assert!(matches!(cache.truncate(&mut seq, 199), Err(Error::CannotTruncate { .. })));
    cache.truncate(&mut seq, 200).unwrap();
    // What lost positions is no prefix for others.
    cache.publish(&seq, &ids, None);
    assert_eq!(cache.published(&ids, false), 0);
}

/// Prefixes yield to sequences that need their memory.
#[test]
fn prefixes_yield_to_the_budget() {
    let accountant = Accountant::new(Some(3 << 20));
    let mut cache = KvCache::new(&LAYERS, KvOptions::default(), &accountant).unwrap();
    let text = |first: u32| -> Vec<u32> { (first..first + 640).collect() };
    for first in [0, 1000] {
        let mut seq = cache.new_sequence();
        append(&mut cache, &mut seq, &text(first)).unwrap();
        cache.publish(&seq, &text(first), None);
    }
    assert_eq!((cache.published(&text(0), false), cache.published(&text(1000), false)), (640, 640));
    cache.published(&text(0), false);
    let before = cache.pages_in_use();
    let mut seq = cache.new_sequence();
    // More than there is: in the end all prefixes have gone, and that is not enough.
    let mut n = 0;
    while append(&mut cache, &mut seq, &text(5000)).is_ok() {
        n += 640;
        assert!(n < 1_000_000);
    }
    assert_eq!(seq.len(), n);
    assert!(cache.pages_in_use() > before);
    assert_eq!(cache.published(&text(1000), false), 0);
    check(&cache, &seq, &Naive::of(&text(5000).repeat(n / 640)));
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

/// What is measured is the formula of each type, and the formulas are in the proportions that they promise.
#[test]
fn memory_follows_the_formula() {
    let plain = KvGeometry {
        kv_heads: 8,
        k_dim: 128,
        v_dim: 128,
        window: None,
        k: KvType::F16,
        v: KvType::F16,
        summaries: false,
    };
    let measure = |k, v| {
        let accountant = Accountant::new(None);
        let layers = [KvGeometry { k, v, ..plain }; 4];
        let mut cache = KvCache::new(&layers, KvOptions::default(), &accountant).unwrap();
        let mut seq = cache.new_sequence();
        cache.prepare(&mut seq, 16384).unwrap();
        let formula = 16384 * cache.bytes_per_token();
        let measured = accountant.used();
        assert!(measured >= formula && measured as f64 <= formula as f64 * 1.02, "{measured} {formula}");
        measured as f64
    };
    let f16 = measure(KvType::F16, KvType::F16);
    assert_eq!(plain.bytes_per_token(), 2 * 8 * 256);
    // Bits per value, and a half per row or two bytes per 32 values.
    let row = |bits: f64, scales: f64| (bits * 128.0 + 16.0 * scales) / 8.0;
    let by_hand = |k: f64, v: f64| 16384.0 * 4.0 * 8.0 * (k + v);
    for (k, v, bytes, most) in [
        (KvType::Q8, KvType::Q8, by_hand(row(8.0, 1.0), row(8.0, 1.0)), 0.53),
        (KvType::Q8, KvType::Q4, by_hand(row(8.0, 1.0), row(4.0, 4.0)), 0.41),
        (KvType::Q4Rotated, KvType::Q4, by_hand(row(4.0, 4.0), row(4.0, 4.0)), 0.29),
    ] {
        let measured = measure(k, v);
        assert!(measured >= bytes && measured <= 1.02 * bytes, "{k:?} {v:?}: {measured} {bytes}");
        assert!(measured <= most * f16, "{k:?} {v:?}: {} of f16", measured / f16);
    }
}

#[test]
fn pages_behind_the_window_come_back() {
    let accountant = Accountant::new(None);
    let options = KvOptions { window_slack: Some(0), ..KvOptions::default() };
    let mut cache = KvCache::new(&LAYERS, options, &accountant).unwrap();
    let mut seq = cache.new_sequence();
    append(&mut cache, &mut seq, &(0..320).collect::<Vec<u32>>()).unwrap();
    // 10 pages of 32 tokens for the global layers; the window of 40 needs the last 2.
    assert_eq!(cache.pages_in_use(), 10 + 2 + 10);
    assert!(matches!(cache.truncate(&mut seq, 100), Err(Error::CannotTruncate { len: 100, have: 320, .. })));
    assert!(matches!(cache.truncate(&mut seq, 321), Err(Error::CannotTruncate { .. })));
    cache.truncate(&mut seq, 0).unwrap();
    assert_eq!(cache.pages_in_use(), 0);
    append(&mut cache, &mut seq, &[5, 6, 7]).unwrap();
    check(&cache, &seq, &Naive::of(&[5, 6, 7]));
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

#[test]
fn policies_that_make_no_sense_are_refused() {
    let check = |policy, evict| KvOptions { policy, evict, ..KvOptions::default() }.check();
    for policy in
        [KvPolicy::Window { recent: 1 }, KvPolicy::Sinks { sinks: 1, recent: 1 }, KvPolicy::HEAVY_HITTERS]
    {
        check(policy, EvictWhen::Asked).unwrap();
        check(policy, EvictWhen::Above(0)).unwrap();
    }
    check(KvPolicy::KeepAll, EvictWhen::Asked).unwrap();
    let heavy = |sinks, recent, top| KvPolicy::HeavyHitters { sinks, recent, top };
    for (policy, option) in [
        (KvPolicy::KeepAll, "evict"),
        (KvPolicy::Window { recent: 0 }, "recent"),
        (KvPolicy::Sinks { sinks: 0, recent: 9 }, "sinks"),
        (KvPolicy::Sinks { sinks: 9, recent: 0 }, "recent"),
        (heavy(0, 9, 9), "sinks"),
        (heavy(9, 0, 9), "recent"),
        (heavy(9, 9, 0), "top"),
    ] {
        let error = check(policy, EvictWhen::Above(8)).unwrap_err();
        assert!(matches!(error, Error::BadOption { option: found, .. } if found == option), "{error}");
    }
}
