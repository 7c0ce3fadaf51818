use super::*;

#[test]
fn made_once_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("join-secret");
    let first = load_or_create(&path).unwrap();
    assert_eq!(first.len(), 2 * SECRET_BYTES);
    assert_eq!(load_or_create(&path).unwrap(), first);
}

#[cfg(unix)]
#[test]
fn only_the_owner_reads_it() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("join-secret");
    load_or_create(&path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn short_empty_or_spaced_secrets_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for text in ["", "short\n", "two words of some length\n"] {
        let path = dir.path().join("join-secret");
        std::fs::write(&path, text).unwrap();
        let error = load_or_create(&path).unwrap_err().to_string();
        assert!(error.contains("join-secret") && error.contains("delete it"), "{error}");
    }
}

#[test]
fn comparison_sees_every_difference() {
    assert!(same("abcdefgh", "abcdefgh"));
    for other in ["", "abcdefg", "abcdefghi", "bbcdefgh", "abcdefgi"] {
        assert!(!same("abcdefgh", other), "{other}");
    }
}
