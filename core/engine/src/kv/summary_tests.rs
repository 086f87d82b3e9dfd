//! Summaries: whatever is done to sequences, each full page has the summary that follows from what was written.

use super::*;
use proptest::prelude::*;

const GLOBAL: KvGeometry = KvGeometry {
    kv_heads: 2,
    k_dim: 20,
    v_dim: 8,
    window: None,
    k: KvType::F16,
    v: KvType::Q8,
    summaries: false,
};
const LAYERS: [KvGeometry; 5] = [
    GLOBAL,
    KvGeometry { window: Some(40), ..GLOBAL },
    KvGeometry { k: KvType::Q4Channel, v: KvType::Q4, ..GLOBAL },
    KvGeometry { k: KvType::Q8Channel, ..GLOBAL },
    KvGeometry { kv_heads: 1, k_dim: 32, v_dim: 32, k: KvType::Q8, ..GLOBAL },
];
const POLICY: KvPolicy = KvPolicy::Pages { tokens: 128 };
const FINGERPRINT: Fingerprint = [7; 32];
const LIMITS: Limits = Limits { context: 1 << 20, vocab: 1 << 20, state: 0 };

/// The keys or values of a token, all heads.
fn row(id: u32, layer: usize, heads: usize, dim: usize) -> Vec<f32> {
    let value = |i: usize| ((id * 31 + 7) % 97) as f32 * ((3 * i + layer) % 7) as f32 * 0.1 - i as f32;
    (0..heads * dim).map(value).collect()
}

fn append(cache: &mut KvCache, seq: &mut Sequence, ids: &[u32], pieces: usize) {
    cache.prepare(seq, ids.len()).unwrap();
    write(cache, seq, ids, pieces);
    cache.commit(seq, ids.len());
}

fn write(cache: &mut KvCache, seq: &Sequence, ids: &[u32], pieces: usize) {
    for (layer, geometry) in LAYERS.iter().enumerate() {
        let rows = |ids: &[u32], dim: usize| -> Vec<f32> {
            ids.iter().flat_map(|&id| row(id, layer, geometry.kv_heads, dim)).collect()
        };
        for (i, ids) in ids.chunks(pieces).enumerate() {
            let (k, v) = (rows(ids, geometry.k_dim), rows(ids, geometry.v_dim));
            cache.write(Kernels::detect(), seq, layer, i * pieces, &k, &v).unwrap();
        }
    }
}

/// Checks the full pages of a sequence, every word of them.
fn check(cache: &KvCache, seq: &Sequence, ids: &[u32]) {
    assert_eq!(seq.len(), ids.len());
    for (layer, geometry) in LAYERS.iter().enumerate() {
        let pages = cache.pages(seq, layer).unwrap();
        let layout = geometry.under(POLICY).layout();
        assert_eq!(layout.summaries, geometry.window.is_none());
        assert_eq!(pages.most_pages, layout.summaries.then_some(4));
        assert_eq!(pages.layout, layout);
        for (index, ids) in ids.chunks_exact(PAGE_TOKENS).enumerate().skip(pages.first_token / PAGE_TOKENS) {
            let mut expected = vec![0; layout.page_len()];
            let mut halves = vec![0; layout.fresh().page_len()];
            for (slot, &id) in ids.iter().enumerate() {
                let k = row(id, layer, geometry.kv_heads, geometry.k_dim);
                let v = row(id, layer, geometry.kv_heads, geometry.v_dim);
                Kernels::detect().write_kv(&layout, &mut expected, slot, &k, &v);
                Kernels::detect().write_kv(&layout.fresh(), &mut halves, slot, &k, &[]);
            }
            if geometry.k.is_per_channel() {
                layout.close_keys(&halves, &mut expected);
            }
            layout.summarise(&mut expected);
            assert_eq!(pages.page(index), expected, "layer {layer} page {index}");
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Append { seq: usize, n: usize, pieces: usize },
    Fork { seq: usize },
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
        3 => (0..4usize, 0.0..1.0f64).prop_map(|(seq, keep)| Step::Truncate { seq, keep }),
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
    fn interleaved_sequences_equal_naive_ones(steps in steps()) {
        let accountant = Accountant::new(None);
        let options = KvOptions { policy: POLICY, ..KvOptions::default() };
        let mut cache = KvCache::new(&LAYERS, options, &accountant).unwrap();
        let mut all: Vec<(Sequence, Vec<u32>)> = vec![(cache.new_sequence(), Vec::new())];
        for (next, step) in steps.into_iter().enumerate() {
            let pick = |seq: usize, all: &[(Sequence, Vec<u32>)]| seq % all.len().max(1);
            match step {
                Step::Append { seq, n, pieces } => {
                    let index = pick(seq, &all);
                    let (seq, ids) = &mut all[index];
                    let new: Vec<u32> = (0..n).map(|i| ((ids.len() + i + next % 2) % 2000) as u32).collect();
                    append(&mut cache, seq, &new, pieces);
                    ids.extend(&new);
                }
                Step::Fork { seq } => {
                    let (seq, ids) = &all[pick(seq, &all)];
                    let fork = (cache.fork(seq).unwrap(), ids.clone());
                    all.push(fork);
                }
                Step::Truncate { seq, keep } => {
                    let index = pick(seq, &all);
                    let (seq, ids) = &mut all[index];
                    let len = (ids.len() as f64 * keep) as usize;
                    // Keys per channel are cut at any border, and elsewhere where their halves are.
                    match cache.truncate(seq, len) {
                        Ok(()) => ids.truncate(len),
                        Err(error) => prop_assert!(!len.is_multiple_of(PAGE_TOKENS), "{error}"),
                    }
                }
                Step::Abandon { seq, n, written } => {
                    let index = pick(seq, &all);
                    let (seq, _) = &mut all[index];
                    cache.prepare(seq, n).unwrap();
                    let ids: Vec<u32> = (0..written.min(n) as u32).map(|i| 5000 + i).collect();
                    write(&mut cache, seq, &ids, 7);
                    cache.rollback(seq);
                }
                Step::Publish { seq } => {
                    let (seq, ids) = &all[pick(seq, &all)];
                    cache.publish(seq, ids, None);
                }
                Step::Resume { seq, keep } => {
                    let ids = &all[pick(seq, &all)].1;
                    let ids = ids[..(ids.len() as f64 * keep) as usize].to_vec();
                    if let Some((seq, _)) = cache.resume(&ids, false) {
                        let len = seq.len();
                        all.push((seq, ids[..len].to_vec()));
                    }
                }
                Step::Restore { seq } => {
                    let (seq, ids) = &all[pick(seq, &all)];
                    let saved = Saved { tokens: ids.clone(), state: Vec::new() };
                    let mut file = Vec::new();
                    cache.save(seq, &FINGERPRINT, &saved, &mut file).unwrap();
                    let (seq, read) = cache.restore(&FINGERPRINT, &LIMITS, &mut std::io::Cursor::new(file)).unwrap();
                    prop_assert_eq!(&read, &saved);
                    all.push((seq, read.tokens));
                }
                Step::Evict { seq } => {
                    let index = pick(seq, &all);
                    let (seq, ids) = &mut all[index];
                    let evicted = cache.evict(seq, KvPolicy::Window { recent: 20 }, None);
                    prop_assert_eq!(evicted.is_err(), ids.len() > 20);
                    let evicted = cache.evict(seq, POLICY, None).unwrap();
                    prop_assert_eq!(evicted, Evicted { gone: 0, kept: ids.len() });
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
            all.iter().for_each(|(seq, ids)| check(&cache, seq, ids));
            prop_assert_eq!(cache.bytes(), accountant.used());
        }
        drop(all);
        cache.limit_prefixes(0);
        prop_assert_eq!(cache.pages_in_use(), 0);
        cache.trim();
        prop_assert_eq!(accountant.used(), 0);
    }
}

/// A file says of its sequence only what the sequence says: nothing of a text behind it that was taken back.
#[test]
fn files_do_not_tell_of_what_was_taken_back() {
    let accountant = Accountant::new(None);
    let options = KvOptions { policy: POLICY, ..KvOptions::default() };
    let mut cache = KvCache::new(&LAYERS, options, &accountant).unwrap();
    let save = |cache: &KvCache, seq: &Sequence, ids: &[u32]| {
        let saved = Saved { tokens: ids.to_vec(), state: Vec::new() };
        let mut file = Vec::new();
        cache.save(seq, &FINGERPRINT, &saved, &mut file).unwrap();
        file
    };
    let ids: Vec<u32> = (0..50).collect();
    let (mut straight, mut round) = (cache.new_sequence(), cache.new_sequence());
    append(&mut cache, &mut straight, &ids, 512);
    append(&mut cache, &mut round, &[&ids[..], &[90; 20]].concat(), 512);
    cache.truncate(&mut round, 50).unwrap();
    assert_eq!(save(&cache, &straight, &ids), save(&cache, &round, &ids));
    // A cache without summaries has other pages.
    let file = save(&cache, &straight, &ids);
    let mut other = KvCache::new(&LAYERS, KvOptions::default(), &accountant).unwrap();
    let error = other.restore(&FINGERPRINT, &LIMITS, &mut std::io::Cursor::new(file)).unwrap_err();
    assert!(error.to_string().contains("pages"), "{error}");
}

#[test]
fn memory_follows_the_formula() {
    let plain = KvGeometry { kv_heads: 8, k_dim: 128, v_dim: 128, v: KvType::F16, ..GLOBAL };
    assert_eq!(plain.under(POLICY).bytes_per_token(), plain.bytes_per_token() + 8 * 128 / 8);
    assert_eq!(plain.under(KvPolicy::HEAVY_HITTERS), plain);
    let accountant = Accountant::new(None);
    let options = KvOptions { policy: POLICY, ..KvOptions::default() };
    let mut cache = KvCache::new(&[plain; 4], options, &accountant).unwrap();
    let mut seq = cache.new_sequence();
    cache.prepare(&mut seq, 16384).unwrap();
    let formula = 16384 * 4 * plain.under(POLICY).bytes_per_token();
    assert_eq!(formula, 16384 * cache.bytes_per_token());
    assert!(accountant.used() >= formula && accountant.used() as f64 <= 1.02 * formula as f64);
}

#[test]
fn what_was_read_is_counted_by_positions() {
    let accountant = Accountant::new(None);
    let options = KvOptions { policy: POLICY, ..KvOptions::default() };
    let cache = KvCache::new(&LAYERS, options, &accountant).unwrap();
    // Four layers without a window. Positions 0 .. 128 see up to four pages, and read them.
    assert_eq!(cache.page_reads(0..128), PageReads { read: 4 * 32 * 10, there: 4 * 32 * 10 });
    assert_eq!(cache.page_reads(1023..1024), PageReads { read: 16, there: 128 });
    assert_eq!(cache.page_reads(1023..1024).share(), Some(0.125));
    let plain = KvCache::new(&LAYERS, KvOptions::default(), &accountant).unwrap();
    assert_eq!(plain.page_reads(0..1000).share(), None);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let accountant = Accountant::new(None);
    for (tokens, evict, option) in [
        (96, EvictWhen::Asked, "tokens"),
        (0, EvictWhen::Asked, "tokens"),
        (1024, EvictWhen::Above(9), "evict"),
    ] {
        let options = KvOptions { policy: KvPolicy::Pages { tokens }, evict, ..KvOptions::default() };
        for error in [options.check().unwrap_err(), KvCache::new(&LAYERS, options, &accountant).unwrap_err()]
        {
            assert!(matches!(error, Error::BadOption { option: found, .. } if found == option), "{error}");
        }
    }
    for tokens in [97, 128, usize::MAX] {
        KvOptions { policy: KvPolicy::Pages { tokens }, ..KvOptions::default() }.check().unwrap();
    }
    let types = KvTypes::Q4_CHANNEL;
    KvOptions { policy: KvPolicy::PAGES, types, ..KvOptions::default() }.check().unwrap();
}
