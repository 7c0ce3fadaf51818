//! What is remembered, what makes it forget, and that a broken memory harms nothing.

use super::*;

fn hash(verified: &Verified, path: &Path) -> (String, bool) {
    let mut read = false;
    let hash = verified.sha256(path, &CancellationToken::new(), |_| read = true).unwrap();
    (hash, read)
}

#[test]
fn a_file_is_read_once_and_not_again_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("weights");
    std::fs::write(&file, "abc").unwrap();
    let verified = Verified::open(&dir.path().join("state")).unwrap();
    let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert_eq!(hash(&verified, &file), (expected.to_owned(), true));
    assert_eq!(hash(&verified, &file), (expected.to_owned(), false));
    let restarted = Verified::open(&dir.path().join("state")).unwrap();
    assert_eq!(hash(&restarted, &file), (expected.to_owned(), false));
}

#[test]
fn another_file_of_the_same_size_and_time_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("weights");
    std::fs::write(&file, "abc").unwrap();
    let verified = Verified::open(dir.path()).unwrap();
    let before = hash(&verified, &file).0;
    let modified = std::fs::metadata(&file).unwrap().modified().unwrap();
    let new = dir.path().join("new");
    std::fs::write(&new, "xyz").unwrap();
    std::fs::rename(&new, &file).unwrap();
    std::fs::File::options().write(true).open(&file).unwrap().set_modified(modified).unwrap();
    let (after, read) = hash(&verified, &file);
    assert!(read && after != before);
}

#[test]
fn a_broken_memory_is_started_anew() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("weights");
    std::fs::write(&file, "abc").unwrap();
    for broken in ["", "{", r#"{"version": 2, "files": {}}"#, r#"{"version": 1, "files": {"a": 1}}"#] {
        std::fs::write(dir.path().join(FILE_NAME), broken).unwrap();
        let verified = Verified::open(dir.path()).unwrap();
        assert!(hash(&verified, &file).1, "{broken}");
        assert!(!hash(&Verified::open(dir.path()).unwrap(), &file).1, "{broken}");
    }
}

#[test]
fn hashing_can_be_cancelled() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("weights");
    std::fs::write(&file, "abc").unwrap();
    let cancel = CancellationToken::new();
    cancel.cancel();
    let verified = Verified::open(dir.path()).unwrap();
    assert!(matches!(verified.sha256(&file, &cancel, |_| ()), Err(HashError::Cancelled { .. })));
    assert_eq!(verified.known(&file), None);
}

#[test]
fn files_that_are_gone_are_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let verified = Verified::open(&dir.path().join("state")).unwrap();
    for name in ["a", "b"] {
        std::fs::write(dir.path().join(name), name).unwrap();
        hash(&verified, &dir.path().join(name));
        std::fs::remove_file(dir.path().join(name)).unwrap();
    }
    std::fs::write(dir.path().join("c"), "c").unwrap();
    hash(&verified, &dir.path().join("c"));
    assert_eq!(verified.lock().len(), 1);
}
