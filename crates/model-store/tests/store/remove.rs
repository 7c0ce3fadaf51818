//! A removal takes what was brought, and nothing else.

use std::path::PathBuf;

use model_store::Removed;

use crate::world::{World, check, model};

fn files(world: &World) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![
        world.cache().join("models--openai--model/blobs"),
        world.cache().join("models--openai--model/snapshots"),
    ];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files.sort();
    files
}

#[tokio::test]
async fn what_was_downloaded_goes_and_comes_again_on_demand() {
    let world = World::new(model()).await;
    let (store, manifest) = (world.store(), world.manifest().await);
    world.ensure(&store, &manifest).await.unwrap();
    // By another process of the same node.
    let removed = world.store().remove(&manifest, &[]).await.unwrap();
    assert!(removed.bytes > 301_000 && removed.files >= 5, "{removed:?}");
    assert_eq!(files(&world), Vec::<PathBuf>::new());
    assert!(check(&store, &manifest).await.is_err());
    world.ensure(&world.store(), &manifest).await.unwrap();
}

#[tokio::test]
async fn what_lay_there_before_stays() {
    let world = World::new(model()).await;
    let manifest = world.manifest().await;
    world.ensure(&world.store(), &manifest).await.unwrap();
    let before = files(&world);
    // Without its memory the store is one that found everything in place.
    std::fs::remove_file(world.dir.path().join("state/brought.json")).unwrap();
    let store = world.store();
    world.ensure(&store, &manifest).await.unwrap();
    assert_eq!(store.remove(&manifest, &[]).await.unwrap(), Removed::default());
    assert_eq!(files(&world), before);
    // A memory that is broken is none.
    std::fs::write(world.dir.path().join("state/brought.json"), "{\"version\": 1, \"files\": 7}").unwrap();
    assert_eq!(world.store().remove(&manifest, &[]).await.unwrap(), Removed::default());
    assert_eq!(files(&world), before);
}

#[tokio::test]
async fn what_another_model_needs_stays() {
    let world = World::new(model()).await;
    let (store, manifest) = (world.store(), world.manifest().await);
    world.ensure(&store, &manifest).await.unwrap();
    let before = files(&world);
    assert_eq!(store.remove(&manifest, &[&manifest]).await.unwrap(), Removed::default());
    assert_eq!(files(&world), before);
}

#[cfg(unix)]
#[tokio::test]
async fn a_blob_that_another_commit_leads_to_stays() {
    let world = World::new(model()).await;
    let (store, manifest) = (world.store(), world.manifest().await);
    world.ensure(&store, &manifest).await.unwrap();
    let shard = manifest.files.iter().find(|f| f.name == crate::world::SHARD).unwrap();
    let blob = world.blob(shard.git_oid.as_deref().unwrap_or(&shard.sha256));
    let other = world.cache().join("models--openai--model/snapshots/another");
    std::fs::create_dir_all(&other).unwrap();
    let link = other.join("weights.safetensors");
    std::os::unix::fs::symlink(format!("../../blobs/{}", blob.file_name().unwrap().to_str().unwrap()), &link)
        .unwrap();
    store.remove(&manifest, &[]).await.unwrap();
    assert_eq!(std::fs::metadata(&link).unwrap().len(), 300_000);
    assert_eq!(files(&world), [blob, link]);
}

#[tokio::test]
async fn a_file_that_was_changed_since_stays() {
    let world = World::new(model()).await;
    let (store, manifest) = (world.store(), world.manifest().await);
    world.ensure(&store, &manifest).await.unwrap();
    let config = manifest.files.iter().find(|f| f.name == "config.json").unwrap();
    let blob = world.blob(config.git_oid.as_deref().unwrap_or(&config.sha256));
    std::fs::write(&blob, "somebody else's, and longer than before, by far").unwrap();
    store.remove(&manifest, &[]).await.unwrap();
    assert!(blob.exists());
}
