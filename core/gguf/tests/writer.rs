//! What the writer writes, the reader reads; and what it must not write.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests, too")]

use pannier_gguf::{Error, GgmlType, Gguf, Writer};

fn two_tensors() -> Writer {
    let mut writer = Writer::new();
    writer.set("general.architecture", "llama");
    writer.tensor("a", &[3], GgmlType::F32).unwrap();
    writer.tensor("b", &[32, 2], GgmlType::Q8_0).unwrap();
    writer
}

fn fill<W: std::io::Write>(stream: &mut pannier_gguf::TensorStream<W>) -> Result<(), Error> {
    stream.write("a", &[1; 5])?;
    stream.write("a", &[2; 7])?;
    stream.write("b", &[3; 68])
}

#[test]
fn pieces_come_back_whole_padded_and_aligned() {
    for alignment in [1u32, 8, 32, 4096, 16_384] {
        let mut writer = two_tensors();
        writer.set_alignment(alignment);
        let mut stream = writer.begin(Vec::new()).unwrap();
        assert_eq!(stream.due(), Some(("a", 12)));
        fill(&mut stream).unwrap();
        assert_eq!(stream.due(), None);
        let written = stream.written();
        let file = stream.finish().unwrap();
        assert_eq!(file.len() as u64, written);
        assert!(file.len().is_multiple_of(alignment as usize));
        let gguf = Gguf::from_vec(file).unwrap();
        assert_eq!((gguf.version(), gguf.alignment()), (3, alignment));
        let data = |name: &str| gguf.tensor_data(gguf.tensor(name).unwrap()).unwrap().to_vec();
        assert_eq!(data("a"), [vec![1; 5], vec![2; 7]].concat());
        assert_eq!(data("b"), vec![3; 68]);
    }
}

#[test]
fn misuse_is_an_error() {
    let mut stream = two_tensors().begin(Vec::new()).unwrap();
    assert!(matches!(stream.write("b", &[0]), Err(Error::WrongTensorOrder { .. })));
    assert!(matches!(
        stream.write("a", &[0; 13]),
        Err(Error::TooMuchTensorData { declared: 12, got: 13, .. })
    ));
    stream.write("a", &[0; 4]).unwrap();
    let error = stream.finish().unwrap_err();
    assert!(matches!(error, Error::MissingTensorData { declared: 12, got: 4, .. }), "{error}");

    let mut done = two_tensors().begin(Vec::new()).unwrap();
    fill(&mut done).unwrap();
    assert!(matches!(done.write("b", &[0]), Err(Error::WrongTensorOrder { .. })));

    let mut writer = two_tensors();
    assert!(matches!(writer.tensor("a", &[1], GgmlType::F32), Err(Error::DuplicateTensor { .. })));
    assert!(matches!(writer.tensor("c", &[33], GgmlType::Q8_0), Err(Error::PartialBlock { .. })));
    assert!(matches!(writer.tensor("c", &[], GgmlType::F32), Err(Error::BadRank { .. })));
    assert!(matches!(writer.tensor("c", &[1; 5], GgmlType::F32), Err(Error::BadRank { .. })));
    assert!(matches!(writer.tensor("c", &[0], GgmlType::F32), Err(Error::ZeroDimension { .. })));
    assert!(matches!(writer.tensor("n".repeat(257), &[1], GgmlType::F32), Err(Error::NameTooLong { .. })));
    writer.set_alignment(48);
    assert!(matches!(writer.begin(Vec::new()), Err(Error::BadAlignment { value: 48, .. })));
    let mut long = Writer::new();
    long.set("k".repeat(65_536), 1u32);
    assert!(matches!(long.begin(Vec::new()), Err(Error::NameTooLong { .. })));
}

#[test]
fn offsets_that_overflow_are_refused() {
    let mut writer = Writer::new();
    for name in ["a", "b", "c"] {
        writer.tensor(name, &[1 << 63], GgmlType::I8).unwrap();
    }
    assert!(matches!(writer.begin(Vec::new()), Err(Error::TensorOutOfRange { .. })));
}

#[test]
fn a_file_appears_whole_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let files = || std::fs::read_dir(folder.path()).unwrap().count();

    let failed = two_tensors().write_file(&path, |stream| stream.write("a", &[0; 12]));
    assert!(matches!(failed.unwrap_err().fault(), Error::MissingTensorData { .. }));
    assert_eq!(files(), 0, "the temporary file is gone");

    two_tensors().write_file(&path, fill).unwrap();
    assert_eq!(Gguf::open(&path).unwrap().tensors().len(), 2);
    assert_eq!(files(), 1);

    // A later failure leaves the good file, and a model that is open keeps its bytes when it is replaced.
    let open = Gguf::open(&path).unwrap();
    let failed: Result<(), Error> = two_tensors().write_file(&path, |_| Err(Error::Empty));
    assert!(failed.is_err());
    assert_eq!(Gguf::open(&path).unwrap().tensors().len(), 2);
    Writer::new().write_file(&path, |_| Ok::<(), Error>(())).unwrap();
    assert_eq!(Gguf::open(&path).unwrap().tensors().len(), 0);
    assert_eq!(open.tensor_data(&open.tensors()[1]).unwrap(), [3; 68]);
    assert_eq!(files(), 1);
}

#[test]
fn a_folder_that_is_not_there_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("none/m.gguf");
    let error = two_tensors().write_file(&path, fill).unwrap_err();
    assert!(matches!(error.fault(), Error::Io { .. }));
    assert!(error.to_string().contains("m.gguf"), "{error}");
}

/// A disk that fills up after some bytes.
struct Full(usize);

impl std::io::Write for Full {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let fits = bytes.len().min(self.0);
        self.0 -= fits;
        if fits == 0 && !bytes.is_empty() { Err(std::io::ErrorKind::StorageFull.into()) } else { Ok(fits) }
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_is_an_error_at_every_byte() {
    let mut whole = two_tensors().begin(Vec::new()).unwrap();
    fill(&mut whole).unwrap();
    let size = whole.finish().unwrap().len();
    for room in 0..=size {
        let result = two_tensors().begin(Full(room)).and_then(|mut stream| {
            fill(&mut stream)?;
            stream.finish().map(drop)
        });
        assert_eq!(result.is_ok(), room == size, "{room} of {size}");
        if let Err(error) = result {
            assert!(matches!(error, Error::Io { action: "write", .. }), "{error}");
        }
    }
}
