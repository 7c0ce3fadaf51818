//! Folders of this machine: registered in place, hashed then, looked at before each load.

use std::path::{Path, PathBuf};

use model_manifest::{Manifest, Request, Rules, Source};
use model_store::{Phase, Progress, RegisterError, StoreError, register_folder};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::world::{SHARD, World, bytes, check, model};

/// The files of the fixture model in a folder.
fn folder(world: &World) -> PathBuf {
    let dir = world.dir.path().join("My Model.v1");
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("config.json"), r#"{"model_type": "gpt_oss"}"#).unwrap();
    std::fs::write(dir.join("tokenizer.json"), "{}").unwrap();
    let index = format!(r#"{{"weight_map": {{"a": "{SHARD}"}}}}"#);
    std::fs::write(dir.join("model.safetensors.index.json"), index).unwrap();
    std::fs::write(dir.join(SHARD), bytes(300_000)).unwrap();
    dir
}

async fn register(world: &World, dir: &Path) -> Result<Manifest, RegisterError> {
    let progress = watch::Sender::new(Progress::default());
    let cancel = CancellationToken::new();
    let store = world.store();
    let registered =
        register_folder(dir, &Request::default(), &Rules::default(), store.verified(), &progress, &cancel)
            .await?;
    assert_eq!(progress.borrow().phase, Phase::Done);
    assert!(registered.contents.contains_key("config.json"));
    Ok(registered.manifest)
}

#[tokio::test]
async fn a_folder_is_used_where_it_is() {
    let world = World::new(model()).await;
    let dir = folder(&world);
    let manifest = register(&world, &dir).await.unwrap();
    assert_eq!(manifest.id, "local/My-Model-v1");
    assert_eq!(manifest.source, Source::Local { path: dir.to_str().unwrap().to_owned() });
    let local = world.ensure(&world.store(), &manifest).await.unwrap();
    assert_eq!(local.files[SHARD], dir.join(SHARD));
    assert_eq!(local.model_dir, dir);
    assert!(!world.cache().exists(), "nothing is copied");
    assert_eq!(world.hub.requests().len(), 0);
}

#[tokio::test]
async fn a_change_is_found_before_a_load() {
    let world = World::new(model()).await;
    let dir = folder(&world);
    let manifest = register(&world, &dir).await.unwrap();
    assert!(check(&world.store(), &manifest).await.is_ok());

    let mut other = bytes(300_000);
    other[7] ^= 1;
    std::fs::write(dir.join(SHARD), &other).unwrap();
    let error = check(&world.store(), &manifest).await.unwrap_err();
    assert!(matches!(&error, StoreError::Changed { file, .. } if file == SHARD), "{error}");

    std::fs::write(dir.join(SHARD), bytes(300_000)).unwrap();
    assert!(
        check(&world.store(), &manifest).await.is_ok(),
        "the same content with another time is no change"
    );

    std::fs::remove_file(dir.join(SHARD)).unwrap();
    let error = check(&world.store(), &manifest).await.unwrap_err();
    assert!(matches!(&error, StoreError::Absent { file, .. } if file == SHARD), "{error}");
    let error = world.ensure(&world.store(), &manifest).await.unwrap_err();
    assert!(matches!(error, StoreError::Absent { .. }), "a folder is not fetched from anywhere: {error}");
}

#[tokio::test]
async fn folders_that_cannot_be_registered_are_refused() {
    let world = World::new(model()).await;
    let missing = register(&world, &world.dir.path().join("nowhere")).await.unwrap_err();
    assert_eq!((missing.code(), missing.http_status()), ("folder_absent", 404));
    let relative = register(&world, Path::new("relative")).await.unwrap_err();
    assert_eq!(relative.code(), "folder_unusable");
    let dir = folder(&world);
    std::fs::remove_file(dir.join("tokenizer.json")).unwrap();
    let error = register(&world, &dir).await.unwrap_err();
    assert_eq!((error.code(), error.http_status()), ("missing_file", 400));
    assert!(error.message().contains("tokenizer.json"));
}

#[tokio::test]
async fn a_snapshot_of_the_cache_can_be_registered_as_a_folder() {
    let world = World::new(model()).await;
    let hub_manifest = world.manifest().await;
    let local = world.ensure(&world.store(), &hub_manifest).await.unwrap();
    let manifest = register(&world, &local.model_dir).await.unwrap();
    assert_eq!(manifest.file(SHARD).unwrap().sha256, hub_manifest.file(SHARD).unwrap().sha256);
}
