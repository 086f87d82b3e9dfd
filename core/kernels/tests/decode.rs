//! Blocks of real files against values decoded by the `gguf` Python package.
//!
//! `data/decode.bin` holds, for each format: type number, bytes, weights (u32 each), the blocks, the weights as f32.

#![allow(clippy::unwrap_used)]

use pannier_kernels::{Matrix, ShapeError, format, formats};

fn take<'a>(data: &mut &'a [u8], n: usize) -> &'a [u8] {
    let (head, tail) = data.split_at(n);
    *data = tail;
    head
}

fn number(data: &mut &[u8]) -> usize {
    u32::from_le_bytes(take(data, 4).try_into().unwrap()) as usize
}

#[test]
fn every_format_decodes_as_the_reference_does() {
    let mut data: &[u8] = include_bytes!("data/decode.bin");
    let mut seen = Vec::new();
    while !data.is_empty() {
        let (id, bytes, weights) = (number(&mut data), number(&mut data), number(&mut data));
        let row = take(&mut data, bytes);
        let expected: Vec<f32> = take(&mut data, weights * 4)
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
            .collect();
        let f = format(id as u32).unwrap();
        assert_eq!(f.row_bytes(weights), Some(bytes), "{}", f.name);
        let mut out = vec![f32::NAN; weights];
        f.decode_row(row, &mut out);
        // The reference multiplies in another order, so the last bit may differ.
        for (k, (got, want)) in out.iter().zip(&expected).enumerate() {
            assert!((got - want).abs() <= want.abs() * 3e-7, "{} weight {k}: {got} is not {want}", f.name);
        }
        seen.push(id as u32);
    }
    for f in formats().iter().filter(|f| f.is_in_files()) {
        assert!(seen.contains(&f.id), "no reference for {}", f.name);
    }
}

#[test]
fn short_rows_decode_to_zeros_and_never_panic() {
    for f in formats() {
        let row = vec![1u8; f.bytes * 2];
        for len in 0..row.len() {
            let mut out = vec![f32::NAN; f.block * 2 + 7];
            f.decode_row(&row[..len], &mut out);
            assert!(out[len / f.bytes * f.block..].iter().all(|&w| w == 0.0), "{} {len}", f.name);
        }
    }
}

#[test]
fn shapes_are_checked() {
    let q4_k = format(12).unwrap();
    assert_eq!(q4_k.name, "Q4_K");
    assert!(format(9).is_none(), "Q8_1 never occurs in files");
    assert!(Matrix::new(q4_k, 2, 512, &[0; 576]).is_ok());
    assert!(matches!(Matrix::new(q4_k, 2, 500, &[0; 576]), Err(ShapeError::Columns { cols: 500, .. })));
    let wrong = Matrix::new(q4_k, 2, 512, &[0; 575]);
    assert_eq!(wrong.unwrap_err().to_string(), "Q4_K: 2 x 512 weights need 576 bytes, 575 are there");
    assert!(matches!(Matrix::new(q4_k, usize::MAX, 512, &[]), Err(ShapeError::Bytes { .. })));
}

#[test]
fn rows_are_views() {
    let q8_0 = format(8).unwrap();
    let bytes: Vec<u8> = (0..34 * 6).map(|b| b as u8).collect();
    let w = Matrix::new(q8_0, 3, 64, &bytes).unwrap();
    assert_eq!(&*w.row(1), &bytes[68..136]);
    assert!(w.row(3).is_empty());
    assert_eq!(w.rows_range(1..9).bytes(), &bytes[68..]);
    assert_eq!(w.rows_range(7..9).rows(), 0);
}
