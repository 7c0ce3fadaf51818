//! The layout on disk, in each way of linking.

use super::*;

const COMMIT: &str = "6cee5e81ee83917806bbde320786a8fb61efebee";

fn linked(mode: Option<LinkMode>) -> (tempfile::TempDir, Cache) {
    let dir = tempfile::tempdir().unwrap();
    let cache = match mode {
        Some(mode) => Cache::with_mode(dir.path().to_owned(), mode),
        None => Cache::new(dir.path().to_owned()),
    };
    for (blob, path, content) in [("aa", "config.json", "{}"), ("bb", "metal/model.bin", "weights")] {
        let blob_path = cache.blob("org/name", blob);
        std::fs::create_dir_all(blob_path.parent().unwrap()).unwrap();
        std::fs::write(&blob_path, content).unwrap();
        cache.link("org/name", blob, COMMIT, path).unwrap();
    }
    (dir, cache)
}

#[test]
fn files_of_a_commit_lead_to_their_bytes_in_every_mode() {
    for mode in [None, Some(LinkMode::Symlink), Some(LinkMode::HardLink), Some(LinkMode::Move)] {
        if cfg!(windows) && mode == Some(LinkMode::Symlink) {
            continue; // needs a right that test users rarely have
        }
        let (dir, _cache) = linked(mode);
        let snapshot = dir.path().join("models--org--name/snapshots").join(COMMIT);
        assert_eq!(std::fs::read_to_string(snapshot.join("config.json")).unwrap(), "{}", "{mode:?}");
        assert_eq!(
            std::fs::read_to_string(snapshot.join("metal").join("model.bin")).unwrap(),
            "weights",
            "{mode:?}"
        );
        let left: Vec<_> = std::fs::read_dir(&snapshot).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left.len(), 2, "{mode:?}: nothing but the files: {left:?}");
    }
}

#[cfg(unix)]
#[test]
fn links_are_relative_so_that_the_cache_can_be_moved() {
    let (dir, _cache) = linked(None);
    let snapshot = dir.path().join("models--org--name/snapshots").join(COMMIT);
    let target = |path: &str| std::fs::read_link(snapshot.join(path)).unwrap();
    assert_eq!(target("config.json"), Path::new("../../blobs/aa"));
    assert_eq!(target("metal/model.bin"), Path::new("../../../blobs/bb"));
}

#[test]
fn linking_again_replaces_what_was_there() {
    let (_dir, cache) = linked(None);
    std::fs::write(cache.blob("org/name", "cc"), "new").unwrap();
    cache.link("org/name", "cc", COMMIT, "config.json").unwrap();
    assert_eq!(std::fs::read_to_string(cache.file("org/name", COMMIT, "config.json")).unwrap(), "new");
}

#[test]
fn a_revision_is_noted_once_and_never_turned_back() {
    let (dir, cache) = linked(None);
    let reference = dir.path().join("models--org--name/refs/main");
    cache.note_revision("org/name", "main", COMMIT).unwrap();
    assert_eq!(std::fs::read_to_string(&reference).unwrap(), COMMIT);
    cache.note_revision("org/name", "main", &"0".repeat(40)).unwrap();
    assert_eq!(std::fs::read_to_string(&reference).unwrap(), COMMIT);
    cache.note_revision("org/name", "refs/pr/1", COMMIT).unwrap();
    assert_eq!(std::fs::read_to_string(dir.path().join("models--org--name/refs/refs/pr/1")).unwrap(), COMMIT);
    cache.note_revision("org/name", COMMIT, COMMIT).unwrap();
    assert!(!dir.path().join("models--org--name/refs").join(COMMIT).exists());
}
