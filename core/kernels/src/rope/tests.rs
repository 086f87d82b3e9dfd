//! Rotations against complex multiplication in f64, scalings against their published formulas.

use super::*;

fn spec(style: RopeStyle, n_rot: usize) -> RopeSpec<'static> {
    RopeSpec { style, n_rot, ..RopeSpec::default() }
}

fn noise(n: usize) -> Vec<f32> {
    let mut state = 7u32;
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / 8_388_608.0 - 1.0
        })
        .collect()
}

#[test]
fn pairs_turn_by_their_angle_on_every_isa() {
    let positions = [0, 1, 5, 4095, 131_071];
    for style in [RopeStyle::Normal, RopeStyle::Neox] {
        for (heads, head_dim, n_rot) in
            [(1, 64, 64), (3, 80, 80), (2, 96, 32), (2, 128, 100), (1, 10, 2), (2, 256, 256)]
        {
            let mut table = RopeTable::new(&spec(style, n_rot), positions.len()).unwrap();
            table.prepare(&positions);
            let x = noise(positions.len() * heads * head_dim);
            let mut first: Option<Vec<f32>> = None;
            for k in Kernels::available() {
                let mut got = x.clone();
                k.rope(&mut got, heads, head_dim, &table, &positions);
                for (t, &position) in positions.iter().enumerate() {
                    for h in 0..heads {
                        let at = (t * heads + h) * head_dim;
                        assert_eq!(
                            got[at + n_rot..at + head_dim],
                            x[at + n_rot..at + head_dim],
                            "beyond n_rot"
                        );
                        for i in 0..n_rot / 2 {
                            let (a, b) = match style {
                                RopeStyle::Normal => (at + 2 * i, at + 2 * i + 1),
                                RopeStyle::Neox => (at + i, at + i + n_rot / 2),
                            };
                            let angle = f64::from(position) * 10_000f64.powf(-2.0 * i as f64 / n_rot as f64);
                            let (sin, cos) = angle.sin_cos();
                            // One rounding of the angle per pair before this one.
                            let bound = 3e-7 + angle * (i + 1) as f64 * f64::from(f32::EPSILON);
                            let (x, y) = (f64::from(x[a]), f64::from(x[b]));
                            assert!(
                                (f64::from(got[a]) - (x * cos - y * sin)).abs() < bound,
                                "{style:?} {n_rot} pair {i}"
                            );
                            assert!(
                                (f64::from(got[b]) - (x * sin + y * cos)).abs() < bound,
                                "{style:?} {n_rot} pair {i}"
                            );
                        }
                    }
                }
                let first = first.get_or_insert_with(|| got.clone());
                assert!(first.iter().zip(&got).all(|(a, b)| a.to_bits() == b.to_bits()), "{:?}", k.isa());
            }
        }
    }
}

#[test]
fn preparing_changes_no_bit() {
    for style in [RopeStyle::Normal, RopeStyle::Neox] {
        let mut table = RopeTable::new(&spec(style, 64), 3).unwrap();
        let positions = [100, 7, 101, 102, 100];
        let x = noise(5 * 128);
        let run = |table: &RopeTable| {
            let mut x = x.clone();
            Kernels::detect().rope(&mut x, 2, 64, table, &positions);
            x
        };
        let cold = run(&table);
        table.prepare(&positions);
        assert_eq!(run(&table), cold);
        table.prepare(&[102, 103]);
        assert_eq!(run(&table), cold);
        table.prepare(&[]);
        assert_eq!(run(&table), cold);
    }
}

#[test]
fn linear_scaling_divides_positions() {
    let scaled = RopeTable::new(&RopeSpec { freq_scale: 0.25, ..spec(RopeStyle::Neox, 64) }, 1).unwrap();
    let plain = RopeTable::new(&spec(RopeStyle::Neox, 64), 1).unwrap();
    for (s, p) in scaled.frequencies().iter().zip(plain.frequencies()) {
        assert_eq!(*s, p / 4.0);
    }
    assert_eq!(scaled.magnitude(), 1.0);
}

#[test]
fn factors_divide_frequencies() {
    let factors: Vec<f32> = (0..32).map(|i| 1.0 + i as f32).collect();
    let spec = RopeSpec { factors: Some(&factors), attn_factor: 1.19, ..spec(RopeStyle::Neox, 64) };
    let table = RopeTable::new(&spec, 1).unwrap();
    for (i, f) in table.frequencies().iter().enumerate() {
        let expected = 10_000f64.powf(-(i as f64) / 32.0) / (1 + i) as f64;
        assert!((f / expected - 1.0).abs() < 1e-14);
    }
    assert_eq!(table.magnitude(), f64::from(1.19f32));
}

/// The numbers of gpt-oss: base 150000, factor 32, 64 values, 4096 original positions. By the formulas of the paper the ramp runs from
/// pair floor(8.09) to ceil(17.40).
#[test]
fn yarn_leaves_fast_pairs_and_interpolates_slow_ones() {
    let yarn = Yarn { ext_factor: 1.0, beta_fast: 32.0, beta_slow: 1.0, original_context: 4096 };
    let spec = RopeSpec {
        freq_base: 150_000.0,
        freq_scale: 1.0 / 32.0,
        yarn: Some(yarn),
        ..spec(RopeStyle::Neox, 64)
    };
    let table = RopeTable::new(&spec, 1).unwrap();
    for (i, f) in table.frequencies().iter().enumerate() {
        let base = 150_000f64.powf(-(i as f64) / 32.0);
        let kept = match i {
            0..=8 => 1.0,
            9..18 => 1.0 - (i as f64 - 8.0) / 10.0,
            _ => 0.0,
        };
        let expected = base * (kept + (1.0 - kept) / 32.0);
        assert!((f / expected - 1.0).abs() < 1e-12, "pair {i}: {f} and {expected}");
    }
    assert!((table.magnitude() - (1.0 + 0.1 * 32f64.ln())).abs() < 1e-12);
    // With ext_factor 0 it is linear scaling, without the magnitude.
    let none = RopeTable::new(&RopeSpec { yarn: Some(Yarn { ext_factor: 0.0, ..yarn }), ..spec }, 1).unwrap();
    let linear = RopeTable::new(&RopeSpec { yarn: None, ..spec }, 1).unwrap();
    assert_eq!(none.frequencies(), linear.frequencies());
    assert_eq!(none.magnitude(), 1.0);
}

#[test]
fn multi_section_rope_of_a_text_is_plain() {
    // Qwen3.5 (interleaved), Qwen2-VL (in sequence).
    assert!(sections_are_plain([11, 11, 10, 0], true, 64));
    assert!(sections_are_plain([16, 24, 24, 0], false, 128));
    // A pair that takes its position from the fourth section.
    assert!(!sections_are_plain([16, 24, 20, 4], false, 128));
    assert!(!sections_are_plain([8, 8, 8, 8], true, 64));
    // Time, height and width in turn, but more of one than there are turns.
    assert!(!sections_are_plain([20, 6, 6, 0], true, 64));
    assert!(!sections_are_plain([0; 4], false, 64));
    assert!(!sections_are_plain([usize::MAX, 1, 0, 0], false, 64));
}

#[test]
fn nonsense_is_refused_by_name() {
    let good = spec(RopeStyle::Neox, 64);
    let yarn = Yarn { ext_factor: 1.0, beta_fast: 32.0, beta_slow: 1.0, original_context: 4096 };
    let zeros = [0.0; 32];
    let bad = [
        RopeSpec { n_rot: 0, ..good },
        RopeSpec { n_rot: 63, ..good },
        RopeSpec { n_rot: usize::MAX - 1, ..good },
        RopeSpec { freq_base: 0.0, ..good },
        RopeSpec { freq_base: f32::NAN, ..good },
        RopeSpec { freq_scale: f32::INFINITY, ..good },
        RopeSpec { attn_factor: -1.0, ..good },
        RopeSpec { factors: Some(&zeros[..31]), ..good },
        RopeSpec { factors: Some(&zeros), ..good },
        RopeSpec { yarn: Some(Yarn { original_context: 0, ..yarn }), ..good },
        RopeSpec { yarn: Some(Yarn { beta_fast: f32::NAN, ..yarn }), ..good },
        RopeSpec { freq_base: 1.0, yarn: Some(yarn), ..good },
    ];
    for spec in bad {
        let error = RopeTable::new(&spec, 1).unwrap_err();
        assert!(error.to_string().starts_with("RoPE"), "{error}");
    }
}

#[test]
fn a_table_takes_the_bytes_it_says() {
    for style in [RopeStyle::Normal, RopeStyle::Neox] {
        let yarn = Yarn { ext_factor: 1.0, beta_fast: 32.0, beta_slow: 1.0, original_context: 4096 };
        let spec = RopeSpec { factors: Some(&[2.0; 32]), yarn: Some(yarn), ..spec(style, 64) };
        let table = RopeTable::new(&spec, 100).unwrap();
        let angles = table.angles.factors.len() + table.angles.mixes.len();
        let bytes =
            4 * (table.rows.len() + table.positions.capacity() + angles) + 8 * table.frequencies.len();
        assert_eq!(bytes, RopeTable::bytes(style, 64, 100));
    }
}
