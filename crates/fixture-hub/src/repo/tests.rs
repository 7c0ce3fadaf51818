//! Ids equal those of git and of the large file storage.

use super::*;

#[test]
fn small_files_have_the_id_that_git_gives_them() {
    // `printf 'hello\n' | git hash-object --stdin`
    let repo = Repo::new("org/name").file("README.md", "hello\n");
    assert_eq!(repo.etag("README.md"), Some("ce013625030ba8dba906f756967f9e9ca394464a"));
}

#[test]
fn weights_have_their_sha256_whatever_their_size() {
    let repo = Repo::new("org/name").file("model.safetensors", "");
    assert_eq!(
        repo.etag("model.safetensors"),
        Some("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")
    );
    let entry = &repo.into_parts().0["model.safetensors"];
    assert_ne!(entry.git_oid, git_blob_id(b""), "the oid is the pointer's");
}

#[test]
fn a_folder_and_its_copy_in_memory_are_the_same_commit() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("metal")).unwrap();
    std::fs::write(dir.path().join("config.json"), "{}").unwrap();
    std::fs::write(dir.path().join("metal/model.bin"), "bytes").unwrap();
    std::fs::write(dir.path().join(".hidden"), "no").unwrap();
    let from_disk = Repo::from_dir("org/name", dir.path()).unwrap();
    let from_memory = Repo::new("org/name").file("config.json", "{}").file("metal/model.bin", "bytes");
    assert_eq!(from_disk.commit(), from_memory.commit());
    assert_ne!(from_memory.commit(), from_memory.clone().without("config.json").commit());
}
