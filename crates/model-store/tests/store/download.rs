//! Downloads: resume, verification, refusals, progress and cancellation.

use std::time::Duration;

use fixture_hub::{Fault, Origin};
use model_store::{Phase, Progress, StoreError};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::world::{DEADLINE, ID, SHARD, World, bytes, check, ensure_for, model};

#[tokio::test]
async fn a_model_arrives_and_is_verified() {
    let world = World::new(model()).await;
    let manifest = world.manifest().await;
    let local = world.ensure(&world.store(), &manifest).await.unwrap();
    assert_eq!(std::fs::read(&local.files[SHARD]).unwrap(), bytes(300_000));
    assert!(local.files.values().all(|path| path.is_absolute()));
    assert!(!local.files.contains_key("model.metal.bin"), "nobody here runs metal");
    assert!(
        !world.hub.requests().iter().any(|r| r.target.contains("original")),
        "only what the manifest names"
    );
    let descriptor = local.descriptor(&manifest, "gpt-oss", "cpu").unwrap();
    assert_eq!(descriptor.primary, "model.safetensors.index.json");
    assert!(descriptor.model_dir.join("config.json").is_file());
}

#[tokio::test]
async fn the_second_time_nothing_is_asked_and_nothing_is_hashed() {
    let world = World::new(model()).await;
    let manifest = world.manifest().await;
    world.ensure(&world.store(), &manifest).await.unwrap();
    world.hub.forget_requests();
    let progress = watch::Sender::new(Progress::default());
    let mut phases = progress.subscribe();
    let watching = tokio::spawn(async move {
        let mut seen = Vec::new();
        while phases.changed().await.is_ok() {
            seen.push(phases.borrow().phase);
        }
        seen
    });
    let restarted = world.store();
    let runtimes = ["gpt-oss/cpu".to_owned()];
    restarted.ensure(&manifest, &runtimes, &progress, &CancellationToken::new()).await.unwrap();
    drop(progress);
    let seen = watching.await.unwrap();
    assert!(!seen.contains(&Phase::Verifying) && !seen.contains(&Phase::Downloading), "{seen:?}");
    assert_eq!(world.hub.requests().len(), 0);
}

#[tokio::test]
async fn a_cut_at_any_byte_is_survived() {
    let size: u64 = 300_000;
    let world = World::new(model()).await;
    let manifest = world.manifest().await;
    let mut offsets =
        vec![0, 1, 2, 63, 64, 65, 4095, 4096, 65_535, 65_536, 65_537, 131_072, size - 2, size - 1];
    offsets.extend((0..20).map(|i| (i * 15_013 + 7) % size));
    for cut in offsets {
        std::fs::remove_dir_all(world.dir.path().join("hub")).ok();
        world.hub.fault(SHARD, Fault::CutAfter(cut), 1);
        world.hub.forget_requests();
        let local = world.ensure(&world.store(), &manifest).await.unwrap();
        assert_eq!(std::fs::read(&local.files[SHARD]).unwrap(), bytes(300_000), "cut after {cut}");
        let ranges = world.ranges(SHARD);
        assert_eq!(ranges.len(), 2, "cut after {cut}");
        // Bytes that were sent just before the cut may be lost with the connection, never more than were sent.
        let resumed =
            ranges[1].as_deref().map_or(0, |r| r["bytes=".len()..].trim_end_matches('-').parse().unwrap());
        assert!(resumed <= cut, "cut after {cut}, went on at {resumed}");
    }
}

#[tokio::test]
async fn many_cuts_of_one_file_are_survived_as_long_as_each_try_brings_something() {
    let world = World::new(model()).await;
    let manifest = world.manifest().await;
    world.hub.fault(SHARD, Fault::CutAfter(40_000), 10);
    let local = world.ensure(&world.store(), &manifest).await.unwrap();
    assert_eq!(std::fs::read(&local.files[SHARD]).unwrap(), bytes(300_000));
}

#[tokio::test]
async fn another_process_goes_on_where_this_one_was_interrupted() {
    let world = World::new(model()).await;
    let manifest = world.manifest().await;
    world.hub.fault(SHARD, Fault::StallAfter(100_000), 1);
    let store = world.store();
    let cancel = CancellationToken::new();
    let progress = watch::Sender::new(Progress::default());
    let mut seen = progress.subscribe();
    let runtimes = ["gpt-oss/cpu".to_owned()];
    let ensure = store.ensure(&manifest, &runtimes, &progress, &cancel);
    let interrupt = async {
        // Both the small files and the part before the stall.
        tokio::time::timeout(DEADLINE, seen.wait_for(|p| p.bytes_done >= 100_000)).await.unwrap().unwrap();
        cancel.cancel();
    };
    let (result, ()) = tokio::join!(ensure, interrupt);
    assert!(matches!(result, Err(StoreError::Cancelled)), "{result:?}");
    world.hub.forget_requests();
    let local = world.ensure(&world.store(), &manifest).await.unwrap();
    assert_eq!(std::fs::read(&local.files[SHARD]).unwrap(), bytes(300_000));
    let ranges = world.ranges(SHARD);
    assert!(matches!(ranges.as_slice(), [Some(_)]), "{ranges:?}");
}

#[tokio::test]
async fn a_server_without_ranges_is_read_from_the_start() {
    let world = World::new(model()).await;
    let manifest = world.manifest().await;
    world.hub.fault(SHARD, Fault::CutAfter(100_000), 1);
    world.hub.fault(SHARD, Fault::IgnoreRange, 1);
    let local = world.ensure(&world.store(), &manifest).await.unwrap();
    assert_eq!(std::fs::read(&local.files[SHARD]).unwrap(), bytes(300_000));
}

#[tokio::test]
async fn a_beginning_that_is_not_of_this_file_is_thrown_away() {
    let world = World::new(model()).await;
    let manifest = world.manifest().await;
    let shard = manifest.file(SHARD).unwrap();
    let incomplete = world.blob(&format!("{}.incomplete", shard.sha256));
    std::fs::create_dir_all(incomplete.parent().unwrap()).unwrap();
    for left in [vec![0; 1000], vec![0; 300_000], vec![0; 400_000]] {
        std::fs::write(&incomplete, &left).unwrap();
        let local = world.ensure(&world.store(), &manifest).await.unwrap();
        assert_eq!(
            std::fs::read(&local.files[SHARD]).unwrap(),
            bytes(300_000),
            "{} bytes were left",
            left.len()
        );
        std::fs::remove_dir_all(world.cache().join("models--openai--model/snapshots")).unwrap();
        std::fs::remove_file(world.blob(&shard.sha256)).unwrap();
    }
}

#[tokio::test]
async fn wrong_bytes_are_fetched_again_once_and_then_refused() {
    let world = World::new(model()).await;
    let manifest = world.manifest().await;
    world.hub.fault(SHARD, Fault::WrongBytes, 1);
    let local = world.ensure(&world.store(), &manifest).await.unwrap();
    assert_eq!(std::fs::read(&local.files[SHARD]).unwrap(), bytes(300_000));

    let world = World::new(model()).await;
    let manifest = world.manifest().await;
    world.hub.fault(SHARD, Fault::WrongBytes, u32::MAX);
    let error = world.ensure(&world.store(), &manifest).await.unwrap_err();
    assert!(matches!(&error, StoreError::Corrupt { file, .. } if file == SHARD), "{error}");
    let sha256 = &manifest.file(SHARD).unwrap().sha256;
    assert!(error.to_string().contains(sha256), "{error}");
    assert!(!world.blob(sha256).exists(), "nothing wrong is ever in place");
}

#[tokio::test]
async fn wrong_bytes_of_a_small_file_are_found_too() {
    let world = World::new(model()).await;
    let manifest = world.manifest().await;
    world.hub.fault("tokenizer.json", Fault::WrongBytes, u32::MAX);
    let error = world.ensure(&world.store(), &manifest).await.unwrap_err();
    assert!(matches!(&error, StoreError::Corrupt { file, .. } if file == "tokenizer.json"), "{error}");
}

#[tokio::test]
async fn passing_failures_of_the_hub_are_tried_again_and_lasting_ones_end() {
    let world = World::new(model()).await;
    let manifest = world.manifest().await;
    for (fault, times) in
        [(Fault::Status(503), 2), (Fault::Status(500), 1), (Fault::RateLimited { retry_after_s: 1 }, 1)]
    {
        world.hub.fault(SHARD, fault, times);
        std::fs::remove_dir_all(world.cache()).ok();
        world.ensure(&world.store(), &manifest).await.unwrap();
    }
    world.hub.fault(SHARD, Fault::Status(503), u32::MAX);
    std::fs::remove_dir_all(world.cache()).unwrap();
    let error = world.ensure(&world.store(), &manifest).await.unwrap_err();
    assert!(matches!(&error, StoreError::Fetch { file, .. } if file == SHARD), "{error}");
    assert!(error.is_transient());
}

#[tokio::test]
async fn a_hub_that_wants_a_long_pause_is_not_waited_for() {
    let world = World::new(model()).await;
    let manifest = world.manifest().await;
    world.hub.fault(SHARD, Fault::RateLimited { retry_after_s: 3600 }, u32::MAX);
    let error = world.ensure(&world.store(), &manifest).await.unwrap_err();
    assert_eq!(error.code(), "hub_rate_limited");
    assert!(error.message().contains("3600"), "{}", error.message());
}

#[tokio::test]
async fn our_token_never_reaches_the_content_network() {
    let world = World::new(model().private()).await;
    world.hub.allow_token("hf_good");
    let client = model_store::HubClient::new(&world.hub_config(Some("hf_good"))).unwrap();
    let request = model_manifest::Request::default();
    let rules = model_manifest::Rules::default();
    let manifest = model_store::register_hub(&client, ID, "main", &request, &rules).await.unwrap().manifest;
    let config = model_store::StoreConfig::new(world.cache(), world.dir.path().join("state"));
    let store = model_store::Store::open(&config, client).unwrap();
    world.ensure(&store, &manifest).await.unwrap();
    let requests = world.hub.requests();
    let network: Vec<_> = requests.iter().filter(|r| r.origin == Origin::ContentNetwork).collect();
    assert!(!network.is_empty() && network.iter().all(|r| r.authorization.is_none()));
    let on_hub = requests.iter().filter(|r| r.origin == Origin::Hub);
    assert!(on_hub.into_iter().all(|r| r.authorization.as_deref() == Some("Bearer hf_good")));
}

#[tokio::test]
async fn optional_files_may_fail_and_files_for_others_are_skipped() {
    let world = World::new(model()).await;
    let manifest = world.manifest().await;
    let on_metal = ensure_for(&world.store(), &manifest, "gpt-oss/metal").await.unwrap();
    assert_eq!(std::fs::read(&on_metal.files["model.metal.bin"]).unwrap(), bytes(5000));
    assert!(
        on_metal.files["model.metal.bin"].ends_with("metal/model.bin"),
        "in the cache it has the hub's name"
    );

    let world = World::new(model()).await;
    let manifest = world.manifest().await;
    world.hub.fault("metal/model.bin", Fault::Status(404), u32::MAX);
    let local = ensure_for(&world.store(), &manifest, "gpt-oss/metal").await.unwrap();
    assert!(!local.files.contains_key("model.metal.bin"));
    assert!(local.notes.len() == 1 && local.notes[0].contains("model.metal.bin"), "{:?}", local.notes);
    assert!(check(&world.store(), &manifest).await.is_ok());
}

#[tokio::test]
async fn progress_rises_to_the_total_and_names_the_files() {
    let world = World::new(model()).await;
    let manifest = world.manifest().await;
    world.hub.fault(SHARD, Fault::Slow { piece_bytes: 30_000, pause: Duration::from_millis(60) }, 1);
    let progress = watch::Sender::new(Progress::default());
    let mut watcher = progress.subscribe();
    let watching = tokio::spawn(async move {
        let mut seen = Vec::new();
        while watcher.changed().await.is_ok() {
            seen.push(watcher.borrow_and_update().clone());
        }
        seen
    });
    let store = world.store();
    let runtimes = ["gpt-oss/cpu".to_owned()];
    store.ensure(&manifest, &runtimes, &progress, &CancellationToken::new()).await.unwrap();
    drop(progress);
    let seen = watching.await.unwrap();
    let last = seen.last().unwrap();
    let total: u64 = manifest.files.iter().filter(|f| !f.optional).map(|f| f.size).sum();
    assert_eq!((last.phase, last.bytes_done, last.bytes_total), (Phase::Done, total, total));
    let downloading: Vec<_> = seen.iter().filter(|p| p.phase == Phase::Downloading).collect();
    assert!(downloading.windows(2).all(|w| w[0].bytes_done <= w[1].bytes_done), "{downloading:?}");
    assert!(downloading.iter().any(|p| p.files.contains(&SHARD.to_owned()) && p.bytes_done < total));
}

#[tokio::test]
async fn the_pinned_commit_is_fetched_when_the_branch_has_moved() {
    let world = World::new(model()).await;
    let manifest = world.manifest().await;
    world.hub.push(model().file(SHARD, bytes(10)));
    let local = world.ensure(&world.store(), &manifest).await.unwrap();
    assert_eq!(std::fs::read(&local.files[SHARD]).unwrap().len(), 300_000);
}

#[tokio::test]
async fn two_stores_on_one_cache_fetch_each_file_once() {
    let world = World::new(model()).await;
    let manifest = world.manifest().await;
    world.hub.fault(SHARD, Fault::Slow { piece_bytes: 60_000, pause: Duration::from_millis(30) }, 1);
    let one = world.store();
    let two = world.store_with(|config| config.state_dir = world.dir.path().join("other-state"));
    let (first, second) = tokio::join!(world.ensure(&one, &manifest), world.ensure(&two, &manifest));
    for local in [first.unwrap(), second.unwrap()] {
        assert_eq!(std::fs::read(&local.files[SHARD]).unwrap(), bytes(300_000));
    }
    assert_eq!(world.ranges(SHARD).len(), 1, "the second waited for the first");
}

#[tokio::test]
async fn no_more_files_are_fetched_at_once_than_allowed() {
    let mut repo = model();
    let names: Vec<String> = (0..8).map(|n| format!("part-{n}.safetensors")).collect();
    let map: Vec<String> = names.iter().map(|name| format!("{name:?}: {name:?}")).collect();
    repo = repo.file("model.safetensors.index.json", format!(r#"{{"weight_map": {{{}}}}}"#, map.join(", ")));
    for (n, name) in names.iter().enumerate() {
        repo = repo.file(name.as_str(), bytes(20_000 + n));
    }
    let world = World::new(repo).await;
    let manifest = world.manifest().await;
    for name in &names {
        world.hub.fault(name, Fault::Slow { piece_bytes: 5000, pause: Duration::from_millis(20) }, 1);
    }
    let progress = watch::Sender::new(Progress::default());
    let mut watcher = progress.subscribe();
    let watching = tokio::spawn(async move {
        let mut most = 0;
        while watcher.changed().await.is_ok() {
            most = most.max(watcher.borrow_and_update().files.len());
        }
        most
    });
    let store = world.store_with(|config| config.parallel = 2);
    store.ensure(&manifest, &["gpt-oss/cpu".to_owned()], &progress, &CancellationToken::new()).await.unwrap();
    drop(progress);
    assert_eq!(watching.await.unwrap(), 2);
}
