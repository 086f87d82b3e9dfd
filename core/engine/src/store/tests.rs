//! The store without a network.

use super::*;

fn name_of(url: &str) -> String {
    file_name(&reqwest::Url::parse(url).unwrap())
}

#[test]
fn file_names_from_addresses_are_harmless() {
    assert_eq!(name_of("https://h/a/b/model.Q4_0.gguf?download=true"), "model.Q4_0.gguf");
    assert_eq!(name_of("https://h/"), "model.gguf");
    assert_eq!(name_of("https://h/a/..%2f..%2fetc%2fpasswd"), "_2f.._2fetc_2fpasswd.gguf");
    assert_eq!(name_of("https://h/.hidden"), "hidden.gguf");
    assert_eq!(name_of("https://h/x.part"), "x.part.gguf");
    assert!(name_of(&format!("https://h/{}", "x".repeat(1000))).len() < 200);
}

#[test]
fn names_and_paths_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let store = ModelStore::at(dir.path());
    let unknown = store.locate("nonsense").unwrap_err();
    assert!(unknown.to_string().contains("smollm2-135m-instruct"), "{unknown}");
    assert!(unknown.to_string().contains("pannier pull"), "{unknown}");
    assert!(matches!(store.locate(""), Err(StoreError::UnknownModel { .. })));
    assert!(matches!(store.locate("smollm2"), Err(StoreError::NotDownloaded { .. })));
    assert!(matches!(store.locate("./no.gguf"), Err(StoreError::Io { .. })));

    let entry = catalogue::find("smollm2").unwrap();
    let path = dir.path().join(entry.file);
    std::fs::write(&path, b"GGUF").unwrap();
    assert!(matches!(store.locate("smollm2"), Err(StoreError::WrongStoredSize { actual: 4, .. })));
    assert_eq!(store.locate(path.to_str().unwrap()).unwrap(), path);
    std::fs::File::options().write(true).open(&path).unwrap().set_len(entry.bytes).unwrap();
    assert_eq!(store.locate("smollm2").unwrap(), path);
}

#[test]
fn list_and_delete() {
    let dir = tempfile::tempdir().unwrap();
    let store = ModelStore::at(dir.path().join("models"));
    assert_eq!(store.list().unwrap(), []);
    std::fs::create_dir(store.dir()).unwrap();
    let entry = catalogue::find("smollm2").unwrap();
    for file in [entry.file, "other.gguf", "other.gguf.part", "other.gguf.part.json", "notes.txt"] {
        std::fs::write(store.dir().join(file), b"1234").unwrap();
    }
    let models = store.list().unwrap();
    assert_eq!(models.iter().map(|m| m.entry.is_some()).collect::<Vec<_>>(), [true, false]);
    assert!(store.delete("smollm2").unwrap());
    assert!(!store.delete("smollm2").unwrap());
    assert!(store.delete("other.gguf").unwrap());
    assert_eq!(std::fs::read_dir(store.dir()).unwrap().count(), 1, "only the notes are left");
    for outside in ["../x", "/etc/passwd", "..", "", "a/b"] {
        assert!(store.delete(outside).is_err(), "{outside}");
    }
}

#[test]
fn requests_for_names_and_addresses() {
    let store = ModelStore::at("models");
    let known = store.request("SmolLM2", None).unwrap();
    assert_eq!(known.bytes, Some(98_362_432));
    assert!(known.sha256.is_some());
    let url = store.request("https://example.org/dir/tiny.gguf", None).unwrap();
    assert_eq!((url.file.as_str(), url.bytes, url.sha256), ("tiny.gguf", None, None));
    assert!(matches!(store.request("nonsense", None), Err(StoreError::UnknownModel { .. })));
    assert!(matches!(store.request("ftp://x/y", None), Err(StoreError::BadUrl { .. })));
}

#[test]
fn a_model_without_an_address_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let store = ModelStore::at(dir.path());
    let request = DownloadRequest { urls: vec![], file: "x.gguf".into(), bytes: None, sha256: None };
    let error = store
        .pull_blocking(&request, DownloadOptions::default(), &DownloadCanceller::new(), &mut |_| {})
        .unwrap_err();
    assert!(matches!(error, StoreError::NoSource { .. }), "{error}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "no litter");
}
