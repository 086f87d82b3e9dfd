//! Importance matrix files: ours, llama.cpp's two forms, and broken ones.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use pannier::model::{ActivationObserver, MatrixInput};
use pannier_forge::Error;
use pannier_forge::imatrix::{Collector, Imatrix, ImatrixError};
use pannier_gguf::{GgmlType, Gguf, Writer};
use proptest::prelude::*;

fn observe(collector: &Collector, tensor: &str, matrix: usize, of: usize, cols: usize, rows: &[f32]) {
    collector.observed(&MatrixInput { tensor, matrix: (matrix, of), cols, rows });
}

fn collected() -> Imatrix {
    let collector = Collector::new();
    observe(&collector, "blk.0.attn_q.weight", 0, 1, 4, &[1.0, 2.0, 3.0, -4.0, 1.0, 0.0, 1.0, 2.0]);
    observe(&collector, "blk.0.attn_q.weight", 0, 1, 4, &[1.0, 1.0, 1.0, 1.0]);
    observe(&collector, "blk.0.ffn_up_exps.weight", 2, 3, 2, &[1.0, -2.0, 3.0, 4.0]);
    // Nonsense is ignored, not summed into somewhere.
    observe(&collector, "blk.0.ffn_up_exps.weight", 3, 3, 2, &[1.0, 1.0]);
    observe(&collector, "blk.0.attn_q.weight", 0, 1, 5, &[1.0; 5]);
    observe(&collector, "x", 0, 1, 0, &[1.0]);
    let mut imatrix = collector.imatrix();
    imatrix.datasets.push("words.txt".into());
    imatrix.chunks = 3;
    imatrix.chunk_tokens = 512;
    imatrix
}

#[test]
fn statistics_are_means_per_column_and_expert() {
    let imatrix = collected();
    let entry = imatrix.get("blk.0.attn_q.weight").unwrap();
    assert_eq!(entry.counts(), [3.0]);
    assert_eq!(entry.mean_squares(0).unwrap(), [1.0, 5.0 / 3.0, 11.0 / 3.0, 7.0]);
    assert_eq!(entry.mean_magnitudes(0).unwrap(), [1.0, 1.0, 5.0 / 3.0, 7.0 / 3.0]);
    assert_eq!(entry.mean_squares(1), None);
    let experts = imatrix.get("blk.0.ffn_up_exps.weight").unwrap();
    assert_eq!(experts.mean_squares(2).unwrap(), [5.0, 10.0]);
    assert_eq!(experts.mean_squares(0).unwrap(), [1.0, 1.0]);
    let rare = imatrix.rare_experts(2);
    assert_eq!(rare.iter().map(|rare| rare.expert).collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn files_come_back_as_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("im.gguf");
    let imatrix = collected();
    imatrix.write(&path).unwrap();
    assert_eq!(Imatrix::open(&path).unwrap(), imatrix);
    let file = Gguf::open(&path).unwrap();
    // The names and shapes that llama.cpp reads.
    assert_eq!(file.tensor("blk.0.ffn_up_exps.weight.in_sum2").unwrap().dims, [2, 3]);
    assert_eq!(file.tensor("blk.0.ffn_up_exps.weight.counts").unwrap().dims, [1, 3]);
    assert_eq!(file.metadata().str("general.type").unwrap(), "imatrix");
    let mut twice = imatrix.clone();
    twice.merge(imatrix.clone()).unwrap();
    assert_eq!(twice.get("blk.0.attn_q.weight").unwrap().counts(), [6.0]);
    let same = |imatrix: &Imatrix| imatrix.get("blk.0.attn_q.weight").unwrap().mean_squares(0);
    assert_eq!(same(&twice), same(&imatrix));
}

fn legacy() -> Vec<u8> {
    let mut bytes = 1i32.to_le_bytes().to_vec();
    bytes.extend(3i32.to_le_bytes());
    bytes.extend(b"a.b");
    bytes.extend(4i32.to_le_bytes());
    bytes.extend(2i32.to_le_bytes());
    for value in [8.0f32, 2.0] {
        bytes.extend(value.to_le_bytes());
    }
    bytes.extend(7i32.to_le_bytes());
    bytes.extend(4i32.to_le_bytes());
    bytes.extend(b"text");
    bytes
}

#[test]
fn the_older_form_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("old.dat");
    std::fs::write(&path, legacy()).unwrap();
    let imatrix = Imatrix::open(&path).unwrap();
    assert_eq!(imatrix.get("a.b").unwrap().mean_squares(0).unwrap(), [2.0, 0.5]);
    assert_eq!((imatrix.chunks, imatrix.datasets), (7, vec!["text".to_owned()]));
    for cut in 0..legacy().len() {
        // Cut at the end of the values, the file is a valid one from before chunks were recorded.
        if cut != legacy().len() - 12 && cut != legacy().len() - 8 {
            assert!(Imatrix::from_legacy(&legacy()[..cut]).is_err(), "{cut}");
        }
    }
}

#[test]
fn other_files_are_refused_with_their_fault() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("im.gguf");
    let refusal = |writer: Writer, data: &[(&str, &[u8])]| {
        writer
            .write_file(&path, |out| data.iter().try_for_each(|(name, bytes)| out.write(name, bytes)))
            .map_err(Error::from)
            .unwrap();
        match Imatrix::open(&path).unwrap_err() {
            Error::Imatrix { fault, .. } => fault,
            other => panic!("{other}"),
        }
    };
    let mut model = Writer::new();
    model.set("general.architecture", "llama");
    assert!(matches!(refusal(model, &[]), ImatrixError::NotAnImatrix { .. }));
    let imatrix = || {
        let mut writer = Writer::new();
        writer.set("general.type", "imatrix");
        writer
    };
    assert!(matches!(refusal(imatrix(), &[]), ImatrixError::Empty));
    let mut alone = imatrix();
    alone.tensor("a.in_sum2", &[1, 1], GgmlType::F32).unwrap();
    assert!(matches!(refusal(alone, &[("a.in_sum2", &[0; 4])]), ImatrixError::Mismatch { .. }));
    let mut infinite = imatrix();
    infinite.tensor("a.in_sum2", &[1, 1], GgmlType::F32).unwrap();
    infinite.tensor("a.counts", &[1, 1], GgmlType::F32).unwrap();
    let (bad, one) = (f32::INFINITY.to_le_bytes(), 1f32.to_le_bytes());
    assert!(matches!(
        refusal(infinite, &[("a.in_sum2", &bad), ("a.counts", &one)]),
        ImatrixError::Value { .. }
    ));
    assert!(matches!(Imatrix::open(folder.path().join("none")), Err(Error::Io { .. })));
}

proptest! {
    #[test]
    fn bytes_of_any_kind_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Imatrix::from_legacy(&bytes);
    }

    #[test]
    fn changed_files_are_read_or_refused(place in 0usize..40, value in any::<u8>()) {
        let mut bytes = legacy();
        if let Some(byte) = bytes.get_mut(place) {
            *byte = value;
        }
        let _ = Imatrix::from_legacy(&bytes);
    }
}
