//! What lies on the disk: the layout others share, corruption, links, room.

use model_store::StoreError;
use model_store::cache::LinkMode;

use crate::world::{SHARD, World, bytes, check, model};

#[tokio::test]
async fn the_cache_has_the_layout_that_others_share() {
    let world = World::new(model()).await;
    let manifest = world.manifest().await;
    world.ensure(&world.store(), &manifest).await.unwrap();
    let repo = world.cache().join("models--openai--model");
    let commit = model().commit();
    assert_eq!(std::fs::read_to_string(repo.join("refs/main")).unwrap(), commit);
    let config = manifest.file("config.json").unwrap();
    // Small files have their git id for a name, large ones their sha256.
    assert!(repo.join("blobs").join(config.git_oid.as_ref().unwrap()).is_file());
    assert!(repo.join("blobs").join(&manifest.file(SHARD).unwrap().sha256).is_file());
    assert!(repo.join("snapshots").join(&commit).join("config.json").is_file());
    let mut names = Vec::new();
    let mut folders = vec![world.dir.path().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            names.push(entry.file_name().into_string().unwrap());
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
            }
        }
    }
    assert!(!names.iter().any(|n| n == "metadata.json" || n.ends_with(".incomplete")), "{names:?}");
}

#[tokio::test]
async fn what_another_tool_fetched_is_used() {
    let world = World::new(model()).await;
    let manifest = world.manifest().await;
    let blob = world.blob(&manifest.file(SHARD).unwrap().sha256);
    std::fs::create_dir_all(blob.parent().unwrap()).unwrap();
    std::fs::write(&blob, bytes(300_000)).unwrap();
    world.ensure(&world.store(), &manifest).await.unwrap();
    assert_eq!(world.ranges(SHARD).len(), 0);
}

#[tokio::test]
async fn a_corrupt_blob_is_found_removed_and_fetched_again() {
    let world = World::new(model()).await;
    let manifest = world.manifest().await;
    let local = world.ensure(&world.store(), &manifest).await.unwrap();
    let mut wrong = bytes(300_000);
    wrong[150_000] ^= 1;
    std::fs::write(world.blob(&manifest.file(SHARD).unwrap().sha256), &wrong).unwrap();
    let error = check(&world.store(), &manifest).await.unwrap_err();
    assert!(matches!(&error, StoreError::Changed { file, .. } if file == SHARD), "{error}");
    world.hub.forget_requests();
    world.ensure(&world.store(), &manifest).await.unwrap();
    assert_eq!(std::fs::read(&local.files[SHARD]).unwrap(), bytes(300_000));
    assert_eq!(world.ranges("safetensors").len(), 1, "only the corrupt one");
    assert!(check(&world.store(), &manifest).await.is_ok());
}

#[tokio::test]
async fn a_truncated_blob_and_a_lost_link_are_mended() {
    let world = World::new(model()).await;
    let manifest = world.manifest().await;
    let local = world.ensure(&world.store(), &manifest).await.unwrap();
    std::fs::write(world.blob(&manifest.file(SHARD).unwrap().sha256), b"short").unwrap();
    std::fs::remove_file(&local.files["config.json"]).unwrap();
    let error = check(&world.store(), &manifest).await.unwrap_err();
    assert!(matches!(error, StoreError::Changed { .. } | StoreError::Absent { .. }), "{error}");
    world.ensure(&world.store(), &manifest).await.unwrap();
    assert_eq!(std::fs::read(&local.files[SHARD]).unwrap(), bytes(300_000));
    assert!(local.files["config.json"].is_file());
}

#[tokio::test]
async fn file_systems_without_links_work_too() {
    for mode in [LinkMode::HardLink, LinkMode::Move] {
        let world = World::new(model()).await;
        let manifest = world.manifest().await;
        let store = world.store_with(|config| config.link_mode = Some(mode));
        let local = world.ensure(&store, &manifest).await.unwrap();
        assert_eq!(std::fs::read(&local.files[SHARD]).unwrap(), bytes(300_000), "{mode:?}");
        assert!(!std::fs::symlink_metadata(&local.files[SHARD]).unwrap().is_symlink(), "{mode:?}");
        world.hub.forget_requests();
        let again = world.store_with(|config| config.link_mode = Some(mode));
        world.ensure(&again, &manifest).await.unwrap();
        assert_eq!(world.hub.requests().len(), 0, "{mode:?}");
    }
}

#[tokio::test]
async fn too_little_room_is_said_before_anything_is_fetched_with_both_numbers() {
    let world = World::new(model()).await;
    let mut manifest = world.manifest().await;
    for file in &mut manifest.files {
        if file.name == SHARD {
            file.size = 15 << 40;
        }
    }
    world.hub.forget_requests();
    let error = world.ensure(&world.store(), &manifest).await.unwrap_err();
    let StoreError::NoSpace { needed, available, .. } = &error else { panic!("{error}") };
    assert!(needed > available && *needed > 15 << 40);
    let text = error.to_string();
    assert!(text.contains(&needed.to_string()) && text.contains(&available.to_string()), "{text}");
    assert_eq!(world.hub.requests().len(), 0);
}

/// Linux has a file that is always full; a link to it in the download's place is a disk that fills up.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_disk_that_fills_up_during_the_download_is_named() {
    let world = World::new(model()).await;
    let manifest = world.manifest().await;
    let incomplete = world.blob(&format!("{}.incomplete", manifest.file(SHARD).unwrap().sha256));
    std::fs::create_dir_all(incomplete.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink("/dev/full", &incomplete).unwrap();
    let error = world.ensure(&world.store(), &manifest).await.unwrap_err();
    assert!(matches!(error, StoreError::DiskFull { .. }), "{}", error.message());
    assert!(error.hint().is_some_and(|hint| hint.contains("free space")));
}

#[tokio::test]
async fn a_manifest_that_leaves_the_cache_is_refused() {
    let world = World::new(model()).await;
    let mut manifest = world.manifest().await;
    manifest.files[0].repo_path = Some("../../../../outside".to_owned());
    let error = world.ensure(&world.store(), &manifest).await.unwrap_err();
    assert!(matches!(error, StoreError::Manifest(_)), "{error}");
}
