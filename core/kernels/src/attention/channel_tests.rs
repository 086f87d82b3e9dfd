//! Keys per channel: what is stored is near what was written, and depends on nothing else.

use half::f16;

use super::rows::{AnyRows, Rows};
use super::*;
use crate::Kernels;
use crate::math::{Lanes, ScalarLanes};

/// The formats, and the steps that a channel is divided into.
const FORMATS: [(KvFormat, f32); 2] = [(KvFormat::Q4Channel, 15.0), (KvFormat::Q8Channel, 238.0)];

const DIMS: [usize; 6] = [1, 16, 40, 64, 80, 128];

fn layout(k: KvFormat, dim: usize, v_dim: usize) -> KvLayout {
    let shape = AttentionShape { heads: 2, kv_heads: 2, k_dim: dim, v_dim };
    KvLayout { shape, k, v: KvFormat::Q4, summaries: false }
}

/// Fresh keys whose value of a head, slot and channel is `of` it.
fn fresh(layout: &KvLayout, of: impl Fn(usize, usize, usize) -> f32) -> Vec<u16> {
    let mut page = vec![0; layout.fresh().page_len()];
    for slot in 0..PAGE_TOKENS {
        let key: Vec<f32> = (0..layout.shape.kv_heads * layout.shape.k_dim)
            .map(|i| of(i / layout.shape.k_dim, slot, i % layout.shape.k_dim))
            .collect();
        Kernels::detect().write_kv(&layout.fresh(), &mut page, slot, &key, &[]);
    }
    page
}

fn read(layout: &KvLayout, page: &[u16], head: usize, slot: usize) -> Vec<f32> {
    match AnyRows::keys(layout, page, head) {
        AnyRows::Q4Channel(rows) => read_rows(rows, layout.shape.k_dim, slot),
        AnyRows::Q8Channel(rows) => read_rows(rows, layout.shape.k_dim, slot),
        _ => panic!("another format"),
    }
}

fn read_rows(rows: impl Rows, dim: usize, slot: usize) -> Vec<f32> {
    let scalar = ScalarLanes;
    let mut out = Vec::new();
    for chunk in 0..dim.div_ceil(16) {
        let mut values = [0.0; 16];
        scalar.store(rows.load_padded(scalar, slot, chunk), &mut values);
        out.extend(values);
    }
    out.truncate(dim);
    out
}

fn noise(head: usize, slot: usize, channel: usize) -> f32 {
    let x = (head * 7919 + slot * 104_729 + channel * 1_299_709 + 17) as u32;
    let x = x.wrapping_mul(2_654_435_761) ^ (x >> 7);
    (x.wrapping_mul(2_246_822_519) >> 8) as f32 / 8_388_608.0 - 1.0
}

/// Each channel has its own range, which may be far from zero: no value is off by more than a step of its channel.
#[test]
fn channels_that_stand_out_cost_the_others_nothing() {
    for (dim, (k, steps)) in DIMS.into_iter().flat_map(|dim| FORMATS.map(|k| (dim, k))) {
        let layout = layout(k, dim, 8);
        let spread = |channel: usize| [1.0, 0.01, 30.0, 0.5][channel % 4];
        let level = |channel: usize| [0.0, 5.0, 300.0, -60.0, 0.0][channel % 5];
        let fresh = fresh(&layout, |head, slot, channel| {
            level(channel) + spread(channel) * noise(head, slot, channel)
        });
        let mut page = vec![0x7e00; layout.page_len()];
        layout.close_keys(&fresh, &mut page);
        for head in 0..2 {
            for slot in 0..PAGE_TOKENS {
                for (channel, got) in read(&layout, &page, head, slot).into_iter().enumerate() {
                    let at = layout.fresh().key_at(head, slot) + channel;
                    let was = f16::from_bits(fresh[at]).to_f32();
                    // A step, and what halves at this level are apart.
                    let most = 2.0 * spread(channel) / steps + level(channel).abs() / 1024.0;
                    assert!((got - was).abs() <= most, "{k:?} {dim} {head} {slot} {channel}: {got} {was}");
                }
            }
        }
    }
}

#[test]
fn constant_channels_are_near_and_nothing_panics() {
    for (k, _) in FORMATS {
        let layout = layout(k, 40, 8);
        for value in
            [0.0, -0.0, 1.5, 1e-7, -60_000.0, 65_504.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 3e38]
        {
            let fresh = fresh(&layout, |_, _, _| value);
            let mut page = vec![0; layout.page_len()];
            layout.close_keys(&fresh, &mut page);
            let got = read(&layout, &page, 1, 31);
            assert!(got.iter().all(|x| x.is_finite()), "{value}");
            let half = f16::from_f32(value).to_f32();
            // Offsets of int4 are halves; those of int8 have a little more than eleven bits, and scales no less than 2^-17.
            let apart = if k == KvFormat::Q4Channel { 0.0 } else { half.abs() / 2032.0 + 4e-6 };
            if half.is_finite() {
                assert!(got.iter().all(|&x| (x - half).abs() <= apart), "{k:?} {value} {got:?}");
            }
        }
        // From one end of the halves to the other.
        let fresh = fresh(&layout, |_, slot, _| if slot % 2 == 0 { 65_504.0 } else { -65_504.0 });
        let mut page = vec![0; layout.page_len()];
        layout.close_keys(&fresh, &mut page);
        assert!(read(&layout, &page, 0, 0).iter().all(|&x| (x - 65_504.0).abs() < 5000.0));
    }
}

/// Closing a page looks at its fresh keys only, touches its keys only, and can be repeated.
#[test]
fn closing_is_a_function_of_the_fresh_keys() {
    for (k, _) in FORMATS {
        let layout = layout(k, 80, 64);
        let fresh = fresh(&layout, noise);
        let (mut one, mut two) = (vec![0x1234; layout.page_len()], vec![0x4321; layout.page_len()]);
        layout.close_keys(&fresh, &mut one);
        for _ in 0..2 {
            layout.close_keys(&fresh, &mut two);
        }
        for head in 0..2 {
            assert_eq!(one[layout.keys(head)], two[layout.keys(head)]);
            assert!(one[layout.values(head)].iter().all(|&word| word == 0x1234));
            assert!(two[layout.values(head)].iter().all(|&word| word == 0x4321));
        }
        // Tokens write values and leave the keys.
        let (key, value) = (vec![9.0; 160], vec![1.0; 128]);
        let keys = one[layout.keys(1)].to_vec();
        Kernels::detect().write_kv(&layout, &mut one, 3, &key, &value);
        assert_eq!(one[layout.keys(1)], keys);
        layout.clear_keys(&mut one);
        assert!(one[layout.keys(0)].iter().chain(&one[layout.keys(1)]).all(|&word| word == 0));
    }
}
