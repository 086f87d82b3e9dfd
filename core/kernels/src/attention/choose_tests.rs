//! Reading only some pages: the bits of the oracle, whoever computes what; and what summaries are.

use half::f16;
use proptest::prelude::*;

use super::scratch::padded;
use super::test_support::{Cache, FORMATS, Noise, Threads, assert_bits, shape};
use super::*;
use crate::Kernels;
use crate::parallel::Serial;

fn with_summaries(shape: AttentionShape, k: KvFormat, v: KvFormat) -> KvLayout {
    KvLayout { shape, k, v, summaries: true }
}

fn formats() -> impl Iterator<Item = (KvFormat, KvFormat)> {
    std::iter::once((KvFormat::F16, KvFormat::F16)).chain(FORMATS)
}

#[test]
fn chosen_pages_have_the_bits_of_the_oracle() {
    for (i, s) in [shape(7, 1, 64, 64), shape(6, 3, 32, 32), shape(2, 2, 40, 72), shape(40, 1, 32, 20)]
        .into_iter()
        .enumerate()
    {
        for (k, v) in formats() {
            let mut cache = Cache::with(with_summaries(s, k, v), 700, 800 + i as u64);
            for (most, first, n) in [(4, 699, 1), (4, 120, 20), (9, 600, 3), (20, 640, 12)] {
                cache.most_pages = Some(most);
                let expected = cache.oracle(first, n, true);
                for kernels in Kernels::available() {
                    for threads in [1, 3] {
                        let got = cache.run(kernels, &Threads(threads), first, n, true);
                        let what = format!("{:?} {s:?} {k:?} {v:?} {most} pages {first}+{n}", kernels.isa());
                        assert_bits(&got, &expected, &what);
                    }
                }
            }
        }
    }
}

/// With room for all pages, the bits are those of a cache that knows nothing of summaries.
#[test]
fn all_pages_have_the_bits_of_plain_attention() {
    let s = shape(6, 2, 64, 64);
    for (k, v) in formats() {
        let plain = Cache::with(KvLayout { shape: s, k, v, summaries: false }, 700, 900);
        let mut cache = Cache::with(with_summaries(s, k, v), 700, 900);
        for (most, same) in [(22, true), (1000, true), (21, false)] {
            cache.most_pages = Some(most);
            for kernels in Kernels::available() {
                let (got, expected) = (
                    cache.run(kernels, &Threads(2), 660, 40, false),
                    plain.run(kernels, &Threads(2), 660, 40, false),
                );
                assert_eq!(got == expected, same, "{k:?} {v:?} {most} pages");
            }
        }
    }
}

/// What is left out is not looked at; what is read, is.
#[test]
fn pages_that_are_not_chosen_may_hold_anything() {
    let s = shape(2, 1, 32, 32);
    let mut cache = Cache::with(with_summaries(s, KvFormat::F16, KvFormat::F16), 640, 901);
    cache.most_pages = Some(5);
    let all = &cache.q[639 * 64..];
    let chosen = oracle::choose(&cache.kv(), (all, cache.scale), 639, 0, 2);
    assert_eq!(chosen.iter().filter(|&&read| read).count(), 5);
    assert!(chosen[0] && chosen[18] && chosen[19]);
    let before = cache.run(Kernels::detect(), &Serial, 639, 1, false);
    let layout = cache.layout;
    for (page, &read) in chosen.iter().enumerate() {
        let mut other = Cache::with(layout, 640, 901);
        other.most_pages = Some(5);
        let data = super::test_support::page_mut(&mut other.chunks, other.table[page], layout.page_len());
        let rows = layout.summary(0).start;
        data[..rows].fill(0x7e00);
        for kernels in Kernels::available() {
            let after = other.run(kernels, &Threads(2), 639, 1, false);
            assert_eq!(after.iter().all(|x| !x.is_nan()), !read, "page {page}");
            assert!(read || after == before, "page {page}");
        }
    }
}

/// No key of a page has a larger product with a query than its summary says, but for the last bits of sums.
#[test]
fn bounds_are_bounds() {
    let mut noise = Noise(902);
    for (k, v) in formats() {
        for dim in [16, 40, 64] {
            let layout = with_summaries(shape(2, 2, dim, 32), k, v);
            let cache = Cache::with(layout, 32, 903);
            for head in 0..2 {
                let summary = &cache.kv().page(0)[layout.summary(head)];
                let value = |i: usize| f64::from(f16::from_bits(summary[i]).to_f32());
                for _ in 0..20 {
                    let q = noise.vec(dim);
                    let bound: f64 = (0..dim)
                        .map(|c| {
                            let q = f64::from(q[c]);
                            (q * value(c)).max(q * value(padded(dim) + c))
                        })
                        .sum();
                    for key in 0..32 {
                        let product: f64 =
                            (0..dim).map(|c| f64::from(q[c]) * cache.stored_key(head, key, c)).sum();
                        assert!(product <= bound + 0.01, "{k:?} {dim}: {product} above {bound}");
                    }
                }
            }
        }
    }
}

/// Keys that are no numbers, or too large, make no summary that is not finite.
#[test]
fn odd_keys_have_finite_summaries() {
    for row in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30, -0.0] {
        for (k, v) in formats().filter(|(k, _)| !k.per_channel()) {
            let layout = with_summaries(shape(1, 1, 40, 8), k, v);
            let mut page = vec![0; layout.page_len()];
            Kernels::detect().write_kv(&layout, &mut page, 7, &[row; 40], &[1.0; 8]);
            layout.summarise(&mut page);
            let summary = &page[layout.summary(0)];
            assert!(summary.iter().all(|&half| f16::from_bits(half).is_finite()), "{k:?} {row}");
            layout.clear_summary(&mut page);
            assert!(page[layout.summary(0)].iter().all(|&half| half == 0));
        }
    }
    // Queries that are none choose something.
    let mut cache = Cache::with(with_summaries(shape(2, 1, 32, 32), KvFormat::F16, KvFormat::F16), 400, 904);
    cache.most_pages = Some(6);
    cache.q[399 * 64..].fill(f32::NAN);
    cache.q[398 * 64..399 * 64].fill(f32::INFINITY);
    for kernels in Kernels::available() {
        assert_eq!(cache.run(kernels, &Threads(2), 390, 10, false).len(), 640);
    }
}

#[test]
fn a_summary_takes_an_eighth_of_a_byte_per_channel_and_token() {
    for (k, v) in formats() {
        let layout = with_summaries(shape(8, 2, 64, 64), k, v);
        let plain = KvLayout { summaries: false, ..layout };
        assert_eq!(layout.bytes_per_token() - plain.bytes_per_token(), 2 * 64 / 8);
        assert_eq!(2 * layout.page_len(), PAGE_TOKENS * layout.bytes_per_token());
        assert_eq!(layout.summary(1).end, layout.page_len());
        assert_eq!(layout.summary(0).start, plain.page_len());
    }
}

#[test]
fn scratch_takes_the_bytes_it_says() {
    let s = shape(9, 3, 64, 64);
    let scratch = AttentionScratch::new(&s, 2, 4096).choosing(&s, 2, 4096);
    assert_eq!(scratch.choice.allocated(), AttentionScratch::choosing_bytes(&s, 2, 4096));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn chunks_batches_and_threads_change_no_bit(
        seed in any::<u64>(),
        group in 1usize..=8,
        kv_heads in 1usize..=3,
        k_dim in 1usize..=80,
        v_dim in 1usize..=80,
        cuts in proptest::collection::vec(1usize..=150, 2..6),
        most in 4usize..12,
        threads in 1usize..=3,
        format in 0..FORMATS.len() + 1,
    ) {
        let tokens: usize = cuts.iter().sum();
        let (k, v) = formats().nth(format).unwrap();
        let mut cache = Cache::with(with_summaries(shape(group * kv_heads, kv_heads, k_dim, v_dim), k, v), tokens, seed);
        cache.most_pages = Some(most);
        let kernels = Kernels::available();
        let whole = cache.run(kernels[0], &Serial, 0, tokens, true);
        let row = group * kv_heads * v_dim;
        for kernels in kernels {
            let mut first = 0;
            for &n in &cuts {
                let got = cache.run(kernels, &Threads(threads), first, n, true);
                assert_bits(&got, &whole[first * row..(first + n) * row], "chunk");
                first += n;
            }
            let last = cache.run(kernels, &Serial, tokens - 1, 1, true);
            assert_bits(&last, &whole[(tokens - 1) * row..], "single query");
        }
    }
}
