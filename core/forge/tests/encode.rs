//! The encoders against the reference implementation's output, and against their own error bounds.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use half::f16;
use pannier_forge::encode::{EncodeError, Encoder, Importance, encoder, encoders};
use pannier_gguf::GgmlType;
use pannier_kernels::format;
use proptest::prelude::*;

const ROW: usize = 1536;

fn edge_blocks() -> Vec<f32> {
    let bytes = include_bytes!("data/edge_blocks.f32");
    bytes.as_chunks::<4>().0.iter().map(|raw| f32::from_le_bytes(*raw)).collect()
}

/// Eight rows of a real model (Qwen2.5-Coder-1.5B: token embedding, and a gate whose 4-bit lattice was dithered away).
fn real_rows() -> Vec<f32> {
    let bytes = include_bytes!("data/real_rows.f16");
    bytes.as_chunks::<2>().0.iter().map(|raw| f16::from_le_bytes(*raw).to_f32()).collect()
}

fn of(ty: GgmlType) -> &'static Encoder {
    encoder(ty).unwrap()
}

fn encode(ty: GgmlType, row: &[f32], importance: Option<&Importance>) -> Vec<u8> {
    let mut out = vec![0; ty.row_bytes(row.len() as u64).unwrap() as usize];
    of(ty).encode_row(row, importance, &mut out).unwrap();
    out
}

fn decode(ty: GgmlType, bytes: &[u8], len: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; len];
    format(ty.id()).unwrap().decode_row(bytes, &mut out);
    out
}

fn error(ty: GgmlType, row: &[f32], importance: Option<&Importance>, weights: Option<&[f32]>) -> f64 {
    let decoded = decode(ty, &encode(ty, row, importance), row.len());
    let errors = row.iter().zip(&decoded).map(|(x, y)| (f64::from(*x) - f64::from(*y)).powi(2));
    match weights {
        Some(weights) => errors.zip(weights).map(|(error, weight)| error * f64::from(*weight)).sum(),
        None => errors.sum(),
    }
}

#[test]
fn deterministic_formats_equal_the_reference_to_the_byte() {
    let vectors: [(GgmlType, &[u8]); 5] = [
        (GgmlType::Q8_0, include_bytes!("data/q8_0.bin")),
        (GgmlType::Q4_0, include_bytes!("data/q4_0.bin")),
        (GgmlType::Q4_1, include_bytes!("data/q4_1.bin")),
        (GgmlType::Q5_0, include_bytes!("data/q5_0.bin")),
        (GgmlType::Q5_1, include_bytes!("data/q5_1.bin")),
    ];
    let mut input = edge_blocks();
    input.extend(&real_rows()[..2 * ROW]);
    for (ty, expected) in vectors {
        let ours = encode(ty, &input, None);
        let block = ty.block_bytes() as usize;
        for (index, (ours, expected)) in ours.chunks(block).zip(expected.chunks(block)).enumerate() {
            assert_eq!(ours, expected, "{ty} block {index}: {:?}", &input[index * 32..][..32]);
        }
        assert_eq!(ours.len(), expected.len());
    }
}

/// The pattern with which `reference_errors.json` was measured.
fn importance_pattern() -> Vec<f32> {
    (0..ROW as i32).map(|i| 2f32.powi((i * 37) % 13 - 6)).collect()
}

#[test]
fn searched_formats_lose_no_more_than_the_reference_encoder() {
    let reference: serde_json::Value =
        serde_json::from_str(include_str!("data/reference_errors.json")).unwrap();
    let rows = real_rows();
    let weights = importance_pattern();
    let importance = Importance::new(&weights).unwrap();
    for (name, errors) in reference.as_object().unwrap() {
        let ty = GgmlType::from_name(name).unwrap();
        let plain: f64 = rows.chunks(ROW).map(|row| error(ty, row, None, None)).sum();
        let weighted: f64 =
            rows.chunks(ROW).map(|row| error(ty, row, Some(&importance), Some(&weights))).sum();
        let (reference_plain, reference_weighted) =
            (errors["plain"].as_f64().unwrap(), errors["weighted"].as_f64().unwrap());
        assert!(plain <= reference_plain * 1.00001, "{name}: {plain} against {reference_plain}");
        assert!(weighted < reference_weighted, "{name} weighted: {weighted} against {reference_weighted}");
    }
}

#[test]
fn importance_pays_where_it_is_used() {
    let rows = real_rows();
    let weights = importance_pattern();
    let importance = Importance::new(&weights).unwrap();
    for encoder in encoders().iter().filter(|encoder| encoder.uses_importance()) {
        let ty = encoder.ty();
        let with: f64 = rows.chunks(ROW).map(|row| error(ty, row, Some(&importance), Some(&weights))).sum();
        let without: f64 = rows.chunks(ROW).map(|row| error(ty, row, None, Some(&weights))).sum();
        assert!(with < 0.95 * without, "{ty}: {with} against {without}");
    }
}

#[test]
fn a_row_does_not_depend_on_its_neighbours() {
    let rows = real_rows();
    let weights = importance_pattern();
    let importance = Importance::new(&weights).unwrap();
    for encoder in encoders() {
        let ty = encoder.ty();
        let whole = encode(ty, &rows, None);
        let parts: Vec<u8> = rows.chunks(ROW).flat_map(|row| encode(ty, row, None)).collect();
        assert_eq!(whole, parts, "{ty}");
        let row = &rows[..ROW];
        assert_eq!(encode(ty, row, Some(&importance)), encode(ty, row, Some(&importance)), "{ty}");
    }
}

#[test]
fn zeros_stay_zero_and_constants_stay_close() {
    for encoder in encoders() {
        let ty = encoder.ty();
        // A codebook without a zero still decodes to zero under a zero scale.
        assert!(decode(ty, &encode(ty, &[0.0; 256], None), 256).iter().all(|x| *x == 0.0), "{ty}");
        let importance = Importance::new(&[0.0; 256]).unwrap();
        assert!(
            decode(ty, &encode(ty, &[-0.0; 256], Some(&importance)), 256).iter().all(|x| *x == 0.0),
            "{ty}"
        );
        for constant in [1.0f32, -1.0, 0.01, -700.0, 65504.0, -65504.0] {
            for importance in [None, Some(&importance)] {
                let decoded = decode(ty, &encode(ty, &[constant; 256], importance), 256);
                for value in decoded {
                    assert!(
                        (value - constant).abs() <= 0.011 * constant.abs(),
                        "{ty}: {constant} became {value}"
                    );
                }
            }
        }
    }
}

#[test]
fn what_cannot_be_encoded_is_refused() {
    for encoder in encoders() {
        let ty = encoder.ty();
        let mut out = vec![0; ty.row_bytes(256).unwrap() as usize];
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut row = [0.5; 256];
            row[77] = bad;
            let refused = encoder.encode_row(&row, None, &mut out);
            assert!(matches!(refused, Err(EncodeError::NotFinite { index: 77, .. })), "{ty}: {refused:?}");
        }
        if ty != GgmlType::F32 && ty != GgmlType::BF16 {
            let mut row = [0.5; 256];
            row[255] = -65536.0;
            let refused = encoder.encode_row(&row, None, &mut out);
            assert!(matches!(refused, Err(EncodeError::TooLarge { index: 255, .. })), "{ty}: {refused:?}");
        }
        let refused = encoder.encode_row(&[0.0; 256], None, &mut out[1..]);
        assert!(matches!(refused, Err(EncodeError::OutputSize { .. })), "{ty}: {refused:?}");
        if ty.block_elements() > 1 {
            let refused = encoder.encode_row(&[0.0; 255], None, &mut out);
            assert!(matches!(refused, Err(EncodeError::PartialBlock { row: 255, .. })), "{ty}: {refused:?}");
        }
        let short = Importance::new(&[1.0; 32]).unwrap();
        let refused = encoder.encode_row(&[0.0; 256], Some(&short), &mut out);
        assert!(
            matches!(refused, Err(EncodeError::ImportanceSize { importance: 32, .. })),
            "{ty}: {refused:?}"
        );
    }
    assert!(encoder(GgmlType::IQ2_XXS).is_none());
    assert!(Importance::new(&[1.0, -1.0]).is_err());
    assert!(Importance::new(&[1.0, f32::NAN]).is_err());
}

/// Root mean square error of a block of 256, as a share of its largest magnitude, that no input may exceed.
fn bound(ty: GgmlType) -> f64 {
    match ty {
        GgmlType::F32 => 0.0,
        GgmlType::F16 => 0.0005,
        GgmlType::BF16 => 0.004,
        GgmlType::Q8_0 => 0.005,
        GgmlType::Q6_K => 0.02,
        GgmlType::Q5_K | GgmlType::Q5_0 | GgmlType::Q5_1 => 0.045,
        GgmlType::Q4_K | GgmlType::Q4_1 => 0.09,
        GgmlType::Q4_0 | GgmlType::IQ4_NL | GgmlType::IQ4_XS => 0.1,
        GgmlType::Q3_K => 0.2,
        _ => 0.35,
    }
}

fn within_bound(ty: GgmlType, row: &[f32; 256], importance: Option<&Importance>) {
    let largest = row.iter().fold(0f32, |largest, x| largest.max(x.abs()));
    let rms = (error(ty, row, importance, importance.map(Importance::weights)) / 256.0).sqrt();
    // The last term: an f16 scale of a tiny block is subnormal or zero.
    let bound = bound(ty) * f64::from(largest) + 2e-6;
    assert!(rms <= bound, "{ty}: error {rms} above {bound} for {row:?}");
}

/// Weights of many magnitudes in one block, from nothing to the largest that fits.
fn weights() -> impl Strategy<Value = [f32; 256]> {
    let one = prop_oneof![
        4 => -1.0f32..1.0,
        2 => (-30i32..16, -1.0f32..1.0).prop_map(|(e, x)| x * 2f32.powi(e)),
        1 => Just(0.0f32),
        1 => prop_oneof![Just(65504.0f32), Just(-65504.0), Just(1e-30), Just(-1e-40), Just(f32::MIN_POSITIVE)],
    ];
    prop::collection::vec(one, 256).prop_map(|row| row.try_into().unwrap())
}

/// Blocks as they are in models: one magnitude, some sub-blocks off it.
fn model_like() -> impl Strategy<Value = [f32; 256]> {
    let sub = (-8i32..4, prop::collection::vec(-1.0f32..1.0, 16), -1.0f32..1.0);
    prop::collection::vec(sub, 16).prop_map(|subs| {
        let row: Vec<f32> = subs
            .iter()
            .flat_map(|(e, xs, shift)| xs.iter().map(move |x| (x * x * x + 0.3 * shift) * 2f32.powi(*e)))
            .collect();
        row.try_into().unwrap()
    })
}

fn importances() -> impl Strategy<Value = Importance> {
    prop::collection::vec((-20i32..20).prop_map(|e| 2f32.powi(e)), 256)
        .prop_map(|importance| Importance::new(&importance).unwrap())
}

proptest! {
    #[test]
    fn any_block_is_encoded_within_the_bound(row in weights()) {
        for encoder in encoders() {
            within_bound(encoder.ty(), &row, None);
        }
    }

    #[test]
    fn model_like_blocks_are_encoded_within_the_bound(row in model_like()) {
        for encoder in encoders() {
            within_bound(encoder.ty(), &row, None);
        }
    }

    #[test]
    fn weighted_blocks_are_finite_and_repeatable(row in model_like(), importance in importances()) {
        for encoder in encoders() {
            let ty = encoder.ty();
            let bytes = encode(ty, &row, Some(&importance));
            prop_assert_eq!(&bytes, &encode(ty, &row, Some(&importance)));
            prop_assert!(decode(ty, &bytes, 256).iter().all(|x| x.is_finite()), "{}", ty);
        }
    }
}
